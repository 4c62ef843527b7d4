"""Timing of the computations of tasks: ends of epochs, time limits, changes of a device's speed.

A computation has one alarm at a time. The alarm rings at the end of the computation, unless the
device disconnects before. If the end is too far ahead to be computed, the alarm rings earlier, and
the end is then looked for again.
"""

import math
from bisect import bisect_right
from functools import partial
from typing import TypedDict

from fedsim.clock.simulation import TICK_S, on_grid, on_grid_after
from fedsim.common.training import Limit, Training
from fedsim.world.hosts import Hosts, HostSpec, HostsState
from fedsim.world.steps import Cause, StepServices, Task
from fedsim.world.steps.computations import EpochStep, Plan
from fedsim.world.time_variation import TimeVariation


class TimerState(TypedDict):
    """State of ``EpochTimer`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        paces: device -> present factor of its speed, if it is not 1.
        fixed_ends: task ID -> ends of the task's epochs (s), up to the epoch that was running when
            the speed of the device last changed; later ends are computed at the new speed.
        budget_used: device -> time that the device's previous task has used of its time budget (s).
        hosts: state of shared hosts; None if each device has its own cores.
    """

    paces: dict[int, float]
    fixed_ends: dict[int, list[float]]
    budget_used: dict[int, float]
    hosts: HostsState | None


class EpochTimer:
    """Part of ``TaskRunner`` that sets the alarms for the ends of trainings and evaluations.

    A step of a task calls ``begin``, which calls ``schedule_end``. That method gets count and usual
    times of the epochs from the step (``EpochStep.plan``), and the ends of the epochs, with jitter
    and slow phases, from ``TimeVariation.epoch_ends``. ``TaskRunner.end_step_at`` sets the alarm.

    Args:
        runner: the runner of the tasks.
        compute: model of the times of epochs.
        host: machines whose cores devices share; None if each device has its own.

    Attributes:
        paces: device -> factor by which processes of the world change its speed now, if not 1.
        hosts: machines whose cores the devices share; None if each device has its own.
    """

    def __init__(self, runner: StepServices, compute: TimeVariation, host: HostSpec | None) -> None:
        self._runner = runner
        self._simulation = runner.simulation
        self._compute = compute
        self.hosts: Hosts | None = None
        if host is not None:
            self.hosts = Hosts(self._simulation, host, self._end_epoch)
        self._simulation.env.declare_alarm("look-ahead", self._set_next_call)
        self.paces: dict[int, float] = {}
        # ID of a task whose pace has changed -> ends of its epochs, up to the running epoch (s)
        self._fixed_ends: dict[int, list[float]] = {}
        # device -> time (s) that the device's previous task has used of its budget
        self._budget_used: dict[int, float] = {}

    def take_budget(self, device: int) -> float:
        """Return the time (s) that a device's previous task has used of its time budget; forget it.

        ``TaskRunner.start`` subtracts this time from the budget of a new task that continues the
        previous task.

        Args:
            device: index of the device.

        Returns:
            The time; 0 if the previous task had no budget (``Limit.budget``).
        """
        return self._budget_used.pop(device, 0.0)

    def begin(self, task: Task, training: Training | None) -> None:
        """Begin the computation of a task's step, and set the alarm for its end.

        If the computation does not fit into the device's memory, it will fail at the alarm.

        Args:
            task: the task.
            training: the training; None for an evaluation.
        """
        now = self._simulation.now
        # a budget counts from the first computation; a continued task has spent some of it before
        if task.budget_from is None:
            task.budget_from = now - task.spent_s
        failing_s = self._runner.population.failing_s(task.device, training, task.samples)
        task.fails = failing_s is not None
        if failing_s is None:
            self.schedule_end(task)
        else:
            task.epoch_ends = []
            self._runner.end_step_at(task, on_grid_after(now + failing_s))

    def schedule_end(self, task: Task) -> None:
        """Compute the end of a task's running computation, and set the alarm for it.

        A training that would contain thousands of slow phases (``population.slow_phases``) is not
        computed to its end in one call. Phases are then drawn only up to ``TimeVariation.reach_s``
        seconds from the begin of the step. If the computation does not end by then, the alarm calls
        this method again at that time. Each further call draws phases for twice the time that has passed
        since the begin of the step.

        Args:
            task: the task.
        """
        plan = self._plan(task)  # count, usual time and limit of the epochs
        if self.hosts is not None:
            self._begin_on_host(task, plan)
            return
        horizon = math.inf  # time (s) up to which slow phases are drawn now
        if self._compute.reach_s < math.inf:
            horizon = self._next_horizon(task)
        # time (s) after which no end is needed, as the device is disconnected or the run is over
        last = max(task.step_start, min(task.disconnects_at, self._simulation.end))
        ends = self._epoch_ends(task, plan, min(last, horizon))
        task.epoch_ends = ends
        # the ends after the horizon are still unknown, if there are any within the limit
        if horizon < last and ends and horizon < min(ends[-1], plan.limit):
            self._schedule_again(task, horizon)
            return
        if plan.adaptive:  # the device begins no epoch that would probably exceed the limit
            ends = self._compute.adapt(task.step_start, ends, plan.limit + plan.slack_s)
            task.epoch_ends = ends
        # the end of the last epoch, or the limit, which cuts the computation short
        end = ends[-1] if _all_fit(ends, plan) else max(plan.limit, self._simulation.now)
        self._runner.end_step_at(task, end)

    def _next_horizon(self, task: Task) -> float:
        """Return the time (s) up to which the ends of a task's epochs are computed now."""
        start = task.step_start
        ahead_s = max(self._compute.reach_s, 2 * (self._simulation.now - start))
        return on_grid(start + ahead_s)

    def _schedule_again(self, task: Task, when: float) -> None:
        """Set the alarm at ``when`` (s) for another ``schedule_end``, or before for a flat battery."""
        if self._runner.battery_watch.runs_flat(task, when):
            self._runner.end_step_at(task, math.inf)
        else:
            self._set_next_call(task.id, when)

    def _plan(self, task: Task) -> Plan:
        """Return count, times and limit of the epochs of a task's step, at the present speed."""
        step = task.step
        assert isinstance(step, EpochStep)
        plan = step.plan(task, self._runner)
        pace = self.paces.get(task.device, 1.0)
        return plan if pace == 1.0 else plan._replace(epoch_s=plan.epoch_s / pace)

    def _epoch_ends(self, task: Task, plan: Plan, horizon: float) -> list[float]:
        """Return the ends of a task's epochs (s) that begin up to the time ``horizon`` (s).

        A last end that exceeds the task's time limit only by rounding is set to the limit.
        """
        # after a change of the device's speed, the ends up to that of the running epoch are fixed
        fixed = self._fixed_ends.get(task.id, [])
        begin = fixed[-1] if fixed else task.step_start
        remaining = plan.epochs - len(fixed)
        limit = plan.limit
        ends = fixed + self._compute.epoch_ends(
            task.device, begin, plan.epoch_s, remaining, limit, horizon, plan.jitter_of
        )
        if ends and limit < ends[-1] <= limit + plan.slack_s:
            ends[-1] = limit
        return ends

    def limit_of(self, task: Task, limit: Limit) -> float:
        """Return the simulated time (s) at which a time limit ends a task's computation.

        The result is infinity if there is no limit. If the limit also covers the upload, the
        expected time of the upload is subtracted.

        Args:
            task: the task.
            limit: a deadline, or a time budget (s) from the begin of the device's first computation
                for the round, or both.
        """
        until = math.inf if limit.stop_at is None else limit.stop_at
        if limit.budget is not None and task.budget_from is not None:
            until = min(until, task.budget_from + limit.budget)
        if until == math.inf:
            return math.inf
        return on_grid(until) - self._reserve_s(task, limit)

    def _reserve_s(self, task: Task, limit: Limit) -> float:
        """Return the time (s) that a task's computation must leave before its limit.

        This is the expected time of the upload (``reserve_upload``, its bytes), and of other work
        after the computation (``reserve_s``).
        """
        reserve_s = 0.0
        if limit.reserve_upload:
            alone_s = self._runner.network.nominal_s(
                task.device, "up", limit.reserve_upload, near=task.edge is not None
            )
            # a time of whole ticks is exact; the end of other work is noticed up to two ticks late
            takes_whole_ticks = on_grid(alone_s) == alone_s
            reserve_s = alone_s
            if not takes_whole_ticks:
                reserve_s = _until_noticed_s(alone_s)
        if limit.reserve_s:
            reserve_s += _until_noticed_s(limit.reserve_s)
        return reserve_s

    def _begin_on_host(self, task: Task, plan: Plan) -> None:
        task.epoch_ends = []
        if plan.limit < math.inf:
            self._runner.end_step_at(task, max(plan.limit, self._simulation.now))
        self._begin_epoch(task)

    def _end_epoch(self, task: Task) -> None:
        assert task.epoch_ends is not None
        task.epoch_ends.append(self._simulation.now)
        self._begin_epoch(task)

    def _begin_epoch(self, task: Task) -> None:
        """Begin a task's next epoch on a shared host.

        The step ends instead if all epochs are done, or if the plan is adaptive and another epoch of
        the mean length so far would exceed the time limit.
        """
        assert self.hosts is not None
        assert task.epoch_ends is not None
        plan = self._plan(task)
        now = self._simulation.now
        ends = task.epoch_ends  # ends of the epochs so far
        is_over = len(ends) == plan.epochs
        if ends and plan.adaptive and not is_over:
            # the epochs that the device begins; infinity stands for the unknown end of the next epoch
            begun = self._compute.adapt(task.step_start, [*ends, math.inf], plan.limit)
            is_over = len(begun) == len(ends)
        if is_over:
            task.end_step()  # ends the step
        elif now < plan.limit:  # otherwise the alarm of the limit rings in this instant
            jitter = self._compute.jitter(task.device, now, plan.jitter_of)
            self.hosts.compute(task, plan.epoch_s * jitter)

    def end(self, task: Task, limit: Limit, cause: Cause | None) -> dict[str, object]:
        """End the computation that a task's device runs now, when it is complete or cut short.

        Args:
            task: the task.
            limit: time limits of the task's step. If it has a budget, the used time is stored for
                ``take_budget``.
            cause: cause of an early end; None if the computation is complete.

        Returns:
            Fields for the record of the step: ``core_s``, the used core time, if devices share a host;
            otherwise none.
        """
        now = self._simulation.now
        self._fixed_ends.pop(task.id, None)
        if limit.budget is not None and task.budget_from is not None:
            self._budget_used[task.device] = now - task.budget_from
        if self.hosts is None:
            return {}
        is_due = cause is None and self.hosts.is_due(task)
        # ``epoch_ends`` lacks the running epoch, which ends now if it is due, and otherwise never
        if self.hosts.stop(task) and task.epoch_ends is not None:
            task.epoch_ends.append(now if is_due else math.inf)
        return {"core_s": self.hosts.used_s(task)}

    def set_pace(self, device: int, pace: float) -> None:
        """Change the speed of a device from the present time on.

        The remaining part of a running epoch or evaluation runs at the new speed.

        Args:
            device: index of the device.
            pace: factor of the device's usual speed, above 0.
        """
        before = self.paces.pop(device, 1.0)  # the former factor of the speed
        if pace != 1.0:
            self.paces[device] = pace
        task = self._runner.task_of(device)
        # return if no epoch or evaluation is running, or if it fails for lack of memory
        if task is None or not task.waits or task.epoch_ends is None or task.fails:
            return
        if not isinstance(task.step, EpochStep):
            return
        if self.hosts is not None:
            self.hosts.stretch(task, before / pace)
            return
        now = self._simulation.now
        done = bisect_right(task.epoch_ends, now)  # count of the complete epochs
        if done < len(task.epoch_ends):
            # the end of the running epoch is fixed now, and later epochs are computed anew
            end = on_grid(now + (task.epoch_ends[done] - now) * (before / pace))
            task.cancel("alarm")
            task.cancel("battery")
            self._fixed_ends[task.id] = [*task.epoch_ends[:done], end]
            self.schedule_end(task)

    # state for checkpoints, and alarms that a resumed run sets again

    def _set_next_call(self, number: int, when: float) -> None:
        """Set the alarm for another ``schedule_end`` of the task with ID ``number`` at ``when`` (s)."""
        task = self._runner.running[number]
        task.alarm = self._simulation.env.at(
            ("look-ahead", number), when, partial(self.schedule_end, task)
        )

    def snapshot(self) -> TimerState:
        hosts = None
        if self.hosts is not None:
            hosts = self.hosts.snapshot(self._runner.running)
        return {
            "paces": self.paces,
            "fixed_ends": self._fixed_ends,
            "budget_used": self._budget_used,
            "hosts": hosts,
        }

    def restore(self, state: TimerState) -> None:
        """Restore the state; call this after the tasks and before the alarms are restored."""
        self.paces = state["paces"]
        self._fixed_ends = state["fixed_ends"]
        self._budget_used = state["budget_used"]
        hosts = state["hosts"]
        if self.hosts is not None and hosts is not None:
            self.hosts.restore(hosts, self._runner.running)


def _until_noticed_s(seconds: float) -> float:
    """Return after how long the end of work of ``seconds`` is noticed for certain (s).

    It is noticed at the next tick of the clock, or by rounding one tick later.
    """
    return on_grid_after(seconds) + TICK_S


def _all_fit(ends: list[float], plan: Plan) -> bool:
    """Return whether a computation ends with the last epoch in ``ends``, not at its time limit.

    Args:
        ends: ends of the epochs that the device begins (s).
        plan: count of the epochs, and their time limit.
    """
    if not ends or ends[-1] > plan.limit:
        return False
    return plan.adaptive or len(ends) == plan.epochs or plan.limit == math.inf
