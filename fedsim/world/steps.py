"""The steps of tasks: computations of a device, and messages between the device and the server.

A computation has one alarm, at its end if the device does not disconnect before, or at a look on
the way if that is far away. A message is a flow; where messages queue, it takes a slot before its
first byte leaves.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import simpy

from fedsim.clock.environment import CUT
from fedsim.clock.simulation import TICK_S, on_grid, on_grid_after, tie_s
from fedsim.common.errors import SimulationError
from fedsim.common.training import NO_LIMIT, Limit
from fedsim.world.compute import Compute, Hosts, HostSpec
from fedsim.world.messages import Messages
from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.population import Population
from fedsim.world.task import (
    Cause,
    Code,
    Download,
    Evaluate,
    Pause,
    Power,
    Queue,
    Task,
    TaskStep,
    Train,
    Upload,
    Work,
    in_line,
)

_DISCONNECTED = ("lost", "left", "battery")
_COMPUTED = Train | Evaluate | Work

Ending = tuple[Cause | None, dict[str, Any]]
"""Cause by which a step ended (None: it was completed), and further fields of its record."""


class StepRunner:
    """Begins and ends the steps of tasks, and interrupts them; ``TaskRunner`` carries out tasks
    with it.

    Attributes:
        running: number -> task that has not ended.
        paces: device -> factor of its speed now, if not 1.
        queues: direction -> slots that messages of that direction hold while under way.
        scarce: number -> task whose battery may run out during its message.
    """

    def __init__(
        self,
        messages: Messages,
        population: Population,
        compute: Compute,
        batteries: Power | None,
        host: HostSpec | None,
    ) -> None:
        self.messages = messages
        self.population = population
        self.compute = compute
        self.batteries = batteries
        self.network = messages.network
        self._simulation = messages.simulation
        self._env = self._simulation.env
        self.hosts = None if host is None else Hosts(self._simulation, host, self._end_epoch)
        sending = (self._send, self._sent)
        pausing = (self._pause, self._stood)
        self._ways: dict[
            type[TaskStep],
            tuple[Callable[[Task, Any], None], Callable[[Task, Any, Cause | None], Ending]],
        ] = {
            Download: sending,
            Upload: sending,
            Queue: (lambda task, _: self._look_at_charge(task), self._stood),
            Train: (self._learn, self._computed),
            Evaluate: (self._learn, self._computed),
            Work: (self._work, self._computed),
            Code: pausing,
            Pause: pausing,
        }
        self.running: dict[int, Task] = {}
        self._working: dict[int, Task] = {}
        self.paces: dict[int, float] = {}
        # where the pace has changed: task -> ends up to the running one
        self._known_ends: dict[int, list[float]] = {}
        # seconds of the budget used so far, by device; a task that goes on begins there
        self._spent: dict[int, float] = {}
        self.scarce: dict[int, Task] = {}
        if batteries is not None:
            self.network.on_shared = self._look_at_scarce
        self.queues: dict[Direction, simpy.Resource] = {}
        # as a snapshot said: tasks with a slot, and then those that wait
        self._queued: dict[Direction, list[int]] = {}

    def _battery_of(self, task: Task) -> Power | None:
        return (
            self.batteries
            if self.batteries is not None and self.batteries.has(task.device)
            else None
        )

    def _note_data(self, task: Task) -> None:
        task.samples = self.population.samples.item(task.device)
        task.version = self.population.version.item(task.device)

    def _interrupt(self, task: Task, cause: Cause) -> None:
        if task.waits and task.process is not None and task.process.target is task.done:
            task.process.interrupt(cause)

    def _cut(self, task: Task) -> None:
        now = self._simulation.now
        left = now >= self.population.departure[task.device]
        self._interrupt(task, "left" if left else "battery" if now >= task.dry else "lost")

    # Computations begin.

    def _learn(self, task: Task, step: Train | Evaluate) -> None:
        self._note_data(task)
        training = step.training if isinstance(step, Train) else None
        if training is not None and training.part is not None:
            task.samples = training.part.samples
        elif isinstance(step, Evaluate) and step.samples is not None:
            task.samples = min(task.samples, step.samples)
        if task.budget_from is None:
            task.budget_from = self._simulation.now - task.spent_s
        failing_s = self.population.failing_s(task.device, training, task.samples)
        task.fails = failing_s is not None
        if failing_s is None:
            self._look_ahead(task)
        else:
            task.epoch_ends = []
            self._arm(task, on_grid_after(self._simulation.now + failing_s))

    def _work(self, task: Task, step: Work) -> None:
        self._note_data(task)
        self._look_ahead(task)

    def _pause(self, task: Task, step: Code | Pause) -> None:
        self._arm(task, on_grid(self._simulation.now + step.seconds))

    def _look_ahead(self, task: Task) -> None:
        """Compute when the running computation ends, or look again later, twice as far: mostly a
        deadline comes before.
        """
        now = self._simulation.now
        step = task.step
        start = task.step_start
        epoch_s, epochs, limit, adaptive, draw = self._planned(task)
        if self.hosts is not None:
            task.epoch_ends = []
            if limit < math.inf:
                self._arm(task, max(limit, now))
            self._begin_epoch(task)
            return
        # then the device has vanished, or the run is over
        last = max(start, min(task.off, self._simulation.end))
        reach = self.compute.reach_s
        reach = reach if reach == math.inf else on_grid(start + max(reach, 2 * (now - start)))
        known = self._known_ends.get(task.id, [])
        begin = known[-1] if known else start
        horizon = min(last, reach)
        left = epochs - len(known)
        ends = known + self.compute.epoch_ends(
            task.device, begin, epoch_s, left, limit, horizon, draw
        )
        far = reach < last and bool(ends) and reach < min(ends[-1], limit)
        reserves = isinstance(step, Train) and step.limit.reserves
        rounded_s = tie_s(limit) if reserves else 0.0  # reserves are rounded up
        if ends and limit < ends[-1] <= limit + rounded_s:
            ends[-1] = limit
        if adaptive and not far:
            ends = self.compute.adapt(start, ends, limit + rounded_s)
        task.epoch_ends = ends
        if far and self._runs_dry(task, reach):
            self._arm(task, math.inf)
        elif far:
            task.alarm = self._env.at(
                ("look-ahead", task.id), reach, partial(self._look_ahead, task)
            )
        else:
            all_fit = (
                bool(ends)
                and ends[-1] <= limit
                and (adaptive or len(ends) == epochs or limit == math.inf)
            )
            self._arm(task, ends[-1] if all_fit else max(limit, now))

    def _planned(self, task: Task) -> tuple[float, int, float, bool, int | None]:
        """The running computation: seconds an epoch, epochs, limit (s), whether it adapts,
        number that names its jitter.
        """
        step = task.step
        population = self.population
        pace = self.paces.get(task.device, 1.0)
        if isinstance(step, Train):
            limit = math.inf if step.limit is NO_LIMIT else self._limit(task, step.limit)
            epoch_s = population.training_s(task.device, step.training, task.samples)
            return epoch_s / pace, step.training.epochs, limit, step.limit.adaptive, None
        if isinstance(step, Work):
            return population.working_s(task.device, step) / pace, 1, math.inf, False, task.count
        assert isinstance(step, Evaluate)
        epoch_s = population.testing_s(task.device, task.samples) * len(step.models)
        return epoch_s / pace, 1, self._limit(task, step.limit), False, None

    def _limit(self, task: Task, limit: Limit) -> float:
        until = math.inf if limit.stop_at is None else limit.stop_at
        if limit.budget is not None and task.budget_from is not None:
            until = min(until, task.budget_from + limit.budget)
        if until == math.inf:
            return math.inf
        reserve = 0.0
        if limit.reserve_upload:
            alone_s = self.network.nominal_s(
                task.device, "up", limit.reserve_upload, near=task.edge is not None
            )
            # The last byte is noticed on a tick: the next one, or that after it by rounding.
            reserve = alone_s if on_grid(alone_s) == alone_s else on_grid_after(alone_s) + TICK_S
        if limit.reserve_s:
            reserve += on_grid_after(limit.reserve_s) + TICK_S
        return on_grid(until) - reserve

    def _arm(self, task: Task, end: float) -> None:
        """Set the alarm for the ``end`` or an earlier flat battery; none if the device
        disconnects first.
        """
        off = max(task.off, self._simulation.now)
        if self._runs_dry(task, min(end, off)) and task.dry < end:
            task.battery = self._env.at(
                ("battery", task.id), task.dry, partial(self._cut, task), CUT
            )
        elif end <= off:
            task.alarm = self._env.at(("step", task.id), end, task.carried_out)

    def _runs_dry(self, task: Task, until: float) -> bool:
        if (battery := self._battery_of(task)) is not None:
            task.dry = battery.dry(task.device, until)
        return task.dry < math.inf

    # Computations on hosts.

    def _end_epoch(self, task: Task) -> None:
        assert task.epoch_ends is not None
        task.epoch_ends.append(self._simulation.now)
        self._begin_epoch(task)

    def _begin_epoch(self, task: Task) -> None:
        """Begin the next epoch, or end the step after the last one that fits."""
        assert self.hosts is not None
        assert task.epoch_ends is not None
        epoch_s, epochs, limit, adaptive, draw = self._planned(task)
        now = self._simulation.now
        ends = task.epoch_ends
        over = len(ends) == epochs
        if ends and adaptive and not over:
            over = len(self.compute.adapt(task.step_start, [*ends, math.inf], limit)) == len(ends)
        if over:
            task.carried_out()
        elif now < limit:  # else the alarm at the limit rings in this instant
            self.hosts.compute(task, epoch_s * self.compute.jitter(task.device, now, draw))

    # Computations end.

    def _is_due(self, task: Task) -> bool:
        """Whether the running step ends now, but for the rounding of times; an epoch that does
        is then counted.
        """
        now = self._simulation.now
        alarm = task.alarm
        ends = task.epoch_ends
        if task.flow is not None:
            return self.network.finish(task.flow)
        if self.hosts is not None and self.hosts.is_due(task) and ends is not None:
            return len(ends) + 1 == self._planned(task)[1]
        if alarm is None or alarm.name[0] != "step" or task.fails or alarm.when > now + tie_s(now):
            return False
        if ends:
            ends[-1] = min(ends[-1], now)
        return True

    def _computed(self, task: Task, step: Train | Evaluate | Work, cause: Cause | None) -> Ending:
        now = self._simulation.now
        limit = NO_LIMIT if isinstance(step, Work) else step.limit
        shared = dict[str, Any]()
        self._known_ends.pop(task.id, None)
        if limit.budget is not None and task.budget_from is not None:
            self._spent[task.device] = now - task.budget_from
        if self.hosts is not None:
            is_due = cause is None and self.hosts.is_due(task)
            # an epoch in between has no end
            if self.hosts.stop(task) and task.epoch_ends is not None:
                task.epoch_ends.append(now if is_due else math.inf)
            shared = {"core_s": self.hosts.used_s(task)}
        ends = task.epoch_ends or []
        done = bisect_right(ends, now)
        if isinstance(step, Work):
            return cause, step.facts | shared
        if isinstance(step, Evaluate):
            part = {} if step.samples is None else {"samples": task.samples}
            return cause or (None if done else "late"), {
                "models": len(step.models),
                **part,
                **shared,
            }
        cut = limit.cut_undoes and done < len(ends)
        is_slow = cause is None and (cut or done < limit.at_least)  # a straggler
        task.epochs = 0 if is_slow and limit.go_on else done
        task.trained = (*task.trained, task.epochs)
        facts: dict[str, Any] = {
            "epochs": task.epochs,
            "asked": step.training.epochs,
            "epoch_ends": ends[:done],
        } | shared
        if (held := step.training.part) is not None:
            facts["part"] = [held.number, 2**held.splits, held.samples]
        return "late" if is_slow and not limit.go_on else cause, facts

    # Actions of processes of the world.

    def set_pace(self, device: int, pace: float) -> None:
        """From now on the device computes at a factor of its own speed, also the rest of a
        running epoch or evaluation.
        """
        before = self.paces.pop(device, 1.0)
        if pace != 1.0:
            self.paces[device] = pace
        task = self._working.get(device)
        if (
            task is None
            or not task.waits
            or task.epoch_ends is None
            or task.fails
            or not isinstance(task.step, _COMPUTED)
        ):
            return
        if self.hosts is not None:
            self.hosts.stretch(task, before / pace)
            return
        now = self._simulation.now
        done = bisect_right(task.epoch_ends, self._simulation.now)
        if done < len(task.epoch_ends):
            end = on_grid(now + (task.epoch_ends[done] - now) * (before / pace))
            task.cancel("alarm")
            task.cancel("battery")
            self._known_ends[task.id] = [*task.epoch_ends[:done], end]
            self._look_ahead(task)

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """From now on a message of that direction takes a slot before its first byte leaves, and
        gives it back at its end.
        """
        if (other := self.queues.get(direction)) is not None:
            raise SimulationError(
                f"messages {direction} queue for {other.capacity} slots already; a direction "
                "has one queue"
            )
        self.queues[direction] = slots
        for task_id in self._queued.pop(direction, ()):
            self.running[task_id].request("slot", slots)

    # Messages.

    def _has_to_queue(self, task: Task, step: TaskStep) -> bool:
        """Whether a message has to wait for a slot; otherwise takes one, if messages queue."""
        if (
            not isinstance(step, Download | Upload)
            or task.slot is not None
            or task.edge is not None
        ):
            return False
        return step.direction in self.queues and not task.request(
            "slot", self.queues[step.direction]
        )

    def _send(self, task: Task, step: Download | Upload) -> None:
        parts = step.payloads
        size = float(parts[0].bytes if len(parts) == 1 else sum([part.bytes for part in parts]))
        at = SERVER if task.edge is None else self.network.devices + task.edge
        task.flow = self.network.send(
            *ends(task.device, step.direction, at), size, task.carried_out
        )
        self._look_at_charge(task)

    def _look_at_charge(self, task: Task) -> None:
        """Set the alarm for when the battery is flat, or until when it lasts at any rate of the
        message.
        """
        battery = self._battery_of(task)
        flow = task.flow
        if battery is None:
            return
        left, rate = (
            (0.0, 0.0)
            if flow is None
            else (flow.size - self.network.sent(flow), self.network.rate(flow))
        )
        rate /= self.network.overhead  # batteries count bytes of payload, as ``left`` is
        when, is_dry, is_scarce = battery.look(task.device, left, rate)
        task.dry = when if is_dry else math.inf
        if is_scarce:
            self.scarce[task.id] = task
        if when < task.off:
            name = ("battery", task.id)
            ring = partial(self._look_at_battery, task)
            task.battery = self._env.at(name, max(when, self._simulation.now), ring, CUT)

    def _look_at_battery(self, task: Task) -> None:
        (self._cut if self._simulation.now >= task.dry else self._look_again)(task)

    def _look_at_scarce(self) -> None:
        """Look again at scarce batteries: links were shared anew."""
        for task in list(self.scarce.values()):
            if task.waits and task.flow is not None and task.flow.ended is None:
                self._look_again(task)

    def _look_again(self, task: Task) -> None:
        assert self.batteries is not None
        self.batteries.settle(
            task.device, 0.0 if task.flow is None else self.network.sent(task.flow)
        )
        task.cancel("battery")
        self._look_at_charge(task)

    def _sent(self, task: Task, step: Download | Upload, cause: Cause | None) -> Ending:
        """End a message; one that is interrupted after its last byte has arrived is done."""
        flow = task.flow
        task.flow = None
        assert flow is not None
        task.release("slot")
        if cause is not None:
            self.network.cancel(flow)
            if (
                cause in _DISCONNECTED
                and flow.sent == flow.size
                and self._simulation.now > task.step_start
            ):
                cause = None
        facts: dict[str, Any] = {
            "bytes": flow.size,
            "delivered": flow.sent,
            "payloads": step.payloads,
        }
        if self.network.overhead != 1:
            facts["wire_bytes"] = flow.sent * self.network.overhead
        if task.edge is not None:
            facts["receiver" if step.direction == "up" else "sender"] = self.network.name(
                self.network.devices + task.edge
            )
        return cause, facts

    def _stood(self, task: Task, step: Queue, cause: Cause | None) -> Ending:
        if cause is not None:
            task.release("slot")
        return cause, {}

    def snapshot(self) -> dict[str, Any]:
        queued = {way: in_line("slot", slots, self.running) for way, slots in self.queues.items()}
        kept = {"paces": self.paces, "known_ends": self._known_ends, "spent": self._spent}
        hosts = {} if self.hosts is None else {"hosts": self.hosts.snapshot(self.running)}
        return kept | {"queued": queued, "scarce": list(self.scarce)} | hosts

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore when the tasks are there, before the alarms and ``queue``."""
        self.paces = state["paces"]
        self._known_ends = state["known_ends"]
        self._spent = state["spent"]
        self._queued = state["queued"]
        self.scarce = {task_id: self.running[task_id] for task_id in state["scarce"]}
        if self.hosts is not None:
            self.hosts.restore(state["hosts"], self.running)
