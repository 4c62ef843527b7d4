"""Runner of the tasks on devices: the SimPy process ``TaskRunner.carry_out`` carries out one task.

A device has a process only while it carries out a task. An idle device is only an index of the
population. The kinds of steps are in ``fedsim.world.steps``.

No process watches whether devices can be reached. When a task starts, its runner looks up when the
device will disconnect, and sets an alarm for that time, which ends the task.

A step either completes, or ends early because its process is interrupted with a cause. If a step
completes in the instant of an interruption, it counts as complete, and the next step is interrupted
as it begins. A step is in time if it completes at most ``tie_s``, the error of rounding, after a
deadline.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypedDict

import numpy as np
import simpy

from fedsim.clock.environment import CUT, URGENT, DirectProcess, ProcessGenerator, Signal
from fedsim.common.arrays import Flags, Ints
from fedsim.common.errors import SimulationError
from fedsim.world.availability import Availability
from fedsim.world.batteries import Batteries
from fedsim.world.battery_watch import BatteryWatch, BatteryWatchState
from fedsim.world.epoch_timer import EpochTimer, TimerState
from fedsim.world.hosts import HostSpec
from fedsim.world.messages import Messages
from fedsim.world.population import Population
from fedsim.world.slots import MessageSlots, SlotsState
from fedsim.world.steps import Cause, Queue, Task, TaskStep
from fedsim.world.time_variation import TimeVariation


class RunnerState(TypedDict):
    """State of ``TaskRunner`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        tasks: count of all tasks so far.
        times_asked: rows (index of a device, count of its tasks so far); int64 [devices with a task,
            2].
        times_selected: rows (index of a device, count of its selections for a round); int64 [devices
            with a selection, 2].
        running: the tasks that have not ended.
        switched_off: indices of the devices that a process of the world, such as an outage, has
            switched off.
        batteries: state of ``BatteryWatch``.
        computations: state of ``EpochTimer``.
        slots: state of ``MessageSlots``, the limits on messages at a time.
    """

    tasks: int
    times_asked: Ints
    times_selected: Ints
    running: list[Task]
    switched_off: list[int]
    batteries: BatteryWatchState
    computations: TimerState
    slots: SlotsState


class TaskRunner:
    """Runner of the tasks of all devices, each as a SimPy process that carries out the task's steps.

    ``Dispatch`` starts tasks here for the server's requests. Steps of tasks, such as ``Download``,
    use the runner's attributes and methods.

    Args:
        messages: messages outside of tasks.
        population: properties of the devices, such as speeds and sample counts.
        availability: times in which devices can be reached, within their lifetimes.
        compute: model of the times of epochs.
        next_steps: function that returns the next steps of a task that has carried out all of its
            steps; an empty tuple ends the task. In a run it is ``ClientSide.next_steps``.
        on_task_end: function that is called once with each task that has ended; in a run it is
            ``Dispatch.on_task_end``.
        batteries: the devices' batteries; None if no device has one.
        host: machines whose cores devices share; None if each device has its own.

    Attributes:
        running: task ID -> task, for all tasks that have not ended.
        computing: timer of the tasks' computations.
        battery_watch: object that ends a task when its device's battery is flat.
        slots: limits on how many messages are sent at a time.
        times_asked, times_selected: device -> count of its tasks, and count of its selections for a
            round.
        switched_off: indices of the devices that a process of the world, such as an outage, has
            switched off.
    """

    def __init__(
        self,
        messages: Messages,
        population: Population,
        availability: Availability,
        compute: TimeVariation,
        next_steps: Callable[[Task], tuple[TaskStep, ...]],
        on_task_end: Callable[[Task], None],
        batteries: Batteries | None = None,
        host: HostSpec | None = None,
    ) -> None:
        self.messages = messages
        self.population = population
        self.compute = compute
        self.batteries = batteries
        self.network = messages.network
        self.simulation = messages.simulation
        self._env = self.simulation.env
        # functions that set these alarms again in a resumed run
        self._env.declare_alarm("step", self._set_step_end)
        self._env.declare_alarm("disconnection", self._set_disconnection)
        self.running: dict[int, Task] = {}  # task ID -> task that has not ended
        self._working: dict[int, Task] = {}  # device -> its running task
        self.computing = EpochTimer(self, compute, host)
        self.battery_watch = BatteryWatch(self, batteries)
        self.slots = MessageSlots(self.running)
        self._availability = availability
        self._next_steps = next_steps
        self._on_task_end = on_task_end
        # messages are built before the tasks, and need to know how long endpoints can be reached
        messages.reachable_until = self.reachable_until
        self.switched_off: set[int] = set()  # devices that processes of the world have switched off
        # whether each device is in ``_working``
        self._busy = np.zeros(len(population.speed), dtype=np.bool_)
        # processes that the next call of ``_begin_processes`` begins; None if no call is scheduled
        self._starting: list[DirectProcess] | None = None
        self._task_count = 0  # count of all tasks so far; the ID of the next task
        # device -> count of its tasks, and count of its selections for a round
        self.times_asked: Counter[int] = Counter()
        self.times_selected: Counter[int] = Counter()

    # course of a task

    def carry_out(self, task: Task) -> ProcessGenerator:
        """Carry out the steps of a task one after the other; this is its SimPy process.

        In a resumed run the task continues in the step in which it was saved.

        Args:
            task: the task.
        """
        if not task.step_begun:  # a new task, as a saved one is in the middle of a step
            self._begin(task)
        cause: Cause | None = None
        while cause is None and (task.position < len(task.steps) or self._add_steps(task)):
            if not task.step_begun:
                self._begin_step(task)
            try:
                # fired by the end of a flow or of a computation, or by a free slot
                cause = yield task.step_ended  # type: ignore[misc]
            except simpy.Interrupt as interrupt:
                cause = interrupt.cause
            cause = self._end_step(task, cause)
        self._end(task, cause)

    def _begin(self, task: Task) -> None:
        """Record the start of a task, and add its first steps, after those of its device's host.

        Raises:
            SimulationError: the task has no steps.
        """
        fields: dict[str, object] = dict(task.fields)
        if task.continues:
            fields["continues"] = True
        self.simulation.record("task-start", fields)
        if self.batteries is not None:
            self.battery_watch.begin_task(task)
        if not task.steps:
            self._add_steps(task)
        if not task.steps:
            raise SimulationError(f"a task for device {task.device} has no steps")
        if self.computing.hosts is not None:
            task.steps = (*self.computing.hosts.steps_until_admitted(task), *task.steps)

    def _add_steps(self, task: Task) -> bool:
        """Append the next steps to a task; return whether there are any."""
        following = self._next_steps(task)
        task.steps += following
        return bool(following)

    def _begin_step(self, task: Task) -> None:
        step = task.steps[task.position]
        # ``queues``: directions in which the count of messages at a time is limited
        if self.slots.queues and self.slots.must_wait(task, step):
            # the task first waits for a slot, in an additional step
            step = Queue()
            task.steps = (*task.steps[: task.position], step, *task.steps[task.position :])
        task.step_begun = True
        task.step_start = self.simulation.now
        task.step_ended = Signal(self._env)
        self.simulation.record("step-start", {**task.fields, "step": step.name})
        if self.batteries is not None:
            self.battery_watch.begin_step(task, step)
        step.begin(task, self)

    def _end_step(self, task: Task, cause: Cause | None) -> Cause | None:
        """End the running step of a task.

        Args:
            task: the task.
            cause: cause of an early end, such as ``late``; None if the step is complete.

        Returns:
            The cause if the task ends too; None if it continues with its next step.
        """
        step = task.steps[task.position]
        flow = task.flow
        was_interrupted = cause is not None
        if task.alarm is not None:
            task.alarm.cancel()
            task.alarm = None
        # the step may change the cause: a message whose last byte has just arrived is complete
        cause, facts = step.end(task, self, cause)
        self.simulation.record(
            "step-end", {**task.fields, "step": step.name, "outcome": cause or "done", **facts}
        )
        task.step_begun = False
        task.step_ended = None
        if self.batteries is not None:
            sent = 0.0 if flow is None else flow.sent
            self.battery_watch.end_step(task, sent, is_flat=cause == "battery")
        if cause is None:
            task.position += 1
            if was_interrupted:  # the step counts as complete: the next step is interrupted instead
                self._watch_disconnection(task)
        return cause

    def _end(self, task: Task, cause: Cause | None) -> None:
        """End a task: free its device, record its outcome, and report it to ``on_task_end``.

        Args:
            task: the task.
            cause: cause of an early end, which becomes the outcome; None for ``done``.
        """
        if task.disconnection is not None:
            task.disconnection.cancel()
            task.disconnection = None
        if task.worker is not None:
            task.release("worker")
        del self.running[task.id], self._working[task.device]
        self._busy[task.device] = False
        task.outcome = cause or "done"
        self.simulation.record("task-end", {**task.fields, "outcome": task.outcome})
        if self.batteries is not None:
            self.battery_watch.end_task(task)
        self._on_task_end(task)

    # services for steps

    def end_step_at(self, task: Task, end: float) -> None:
        """Set the alarm for the end of a task's running step, or for a flat battery before it.

        If the device disconnects earlier, no alarm is set here.

        Args:
            task: the task.
            end: time at which the step is complete (s); infinity for never.
        """
        disconnects_at = max(task.disconnects_at, self.simulation.now)
        runs_flat = self.batteries is not None and self.battery_watch.runs_flat(
            task, min(end, disconnects_at)
        )
        if runs_flat and task.flat_at < end:  # the battery's alarm ends the task before ``end``
            self.battery_watch.set_alarm(task.id, task.flat_at)
        elif end <= disconnects_at:
            self._set_step_end(task.id, end)

    def note_data(self, task: Task) -> None:
        """Store the device's present sample count and data version in its task.

        The method is called at the start of a task and of each of its computations. A computation
        is timed by this count, and keeps this version if the data change while it is running.
        """
        task.samples = self.population.samples.item(task.device)
        task.version = self.population.version.item(task.device)

    def task_of(self, device: int) -> Task | None:
        """Return the running task of a device; None if the device has no task."""
        return self._working.get(device)

    # states of the devices

    def is_idle(self, device: int) -> bool:
        """Return whether a device is available now and has no task."""
        return device not in self._working and self.reachable_until(device) > self.simulation.now

    def idle(self, devices: Ints) -> Flags:
        """Return for each of several devices whether it is available now and has no task; bool [n].

        Args:
            devices: indices of different devices, int64 [n].
        """
        free: Flags = ~self._busy[devices]
        free[free] = self.reachable(devices[free])
        return free

    def reachable(self, devices: Ints) -> Flags:
        """Return whether devices are available now, with or without a task; bool [n].

        Processes of the world may switch a device off, whatever its availability model says.

        Args:
            devices: indices of different devices, int64 [n].
        """
        on = self._availability.on(devices, self.simulation.now)
        return on & ~np.isin(devices, sorted(self.switched_off)) if self.switched_off else on

    def reachable_until(self, endpoint: int) -> float:
        """Return the time (s) until which an endpoint can be reached without interruption.

        The time is now if the endpoint cannot be reached, and infinity if it stays reachable.

        Args:
            endpoint: ID of a device, an edge server, the server or another endpoint of the network.
        """
        now = self.simulation.now
        if 0 <= endpoint < self.network.devices:
            span = self._availability.span(endpoint, now)
            return span.end if span.on and endpoint not in self.switched_off else now
        return now if self.network.edge_at(endpoint) in self.messages.lost else math.inf

    def next_on(self, device: int, time: float) -> float:
        """Return the first time (s), not before ``time``, at which the device is available.

        The result is infinity if there is no such time. A ``time`` after the end of the run is
        returned unchanged.
        """
        return self._availability.next_on(device, time) if time <= self.simulation.end else time

    def anyone_ever(self) -> bool:
        """Return whether any device can be reached now or at a later time of the run."""
        now = self.simulation.now
        departure = self.population.departure
        staying = (device for device in range(len(departure)) if departure.item(device) > now)
        return any(self._availability.next_on(device, now) < math.inf for device in staying)

    def start(
        self,
        device: int,
        steps: tuple[TaskStep, ...],
        round: int | None,  # noqa: A002
        group: int | None,
        *,
        continues: bool = False,
        edge: int | None = None,
        context: object = None,
    ) -> Task:
        """Start a task on an idle device at the present time.

        Args:
            device: index of the device.
            steps: first steps of the task; ``next_steps`` of the constructor returns later ones.
            round: index of the round; None for a task outside of rounds.
            group: index of the device's group; None without groups.
            continues: whether the task continues the device's previous task, so that it shares the
                time budget of that task and counts as no new selection.
            edge: index of the edge server with which the device exchanges messages; None for the
                server.
            context: data that the federation attaches to the task.

        Raises:
            SimulationError: the device has another task.
        """
        if (other := self._working.get(device)) is not None:
            raise SimulationError(
                f"device {device} still works on task {other.id}; it does one thing at a time"
            )
        count = self.times_asked.get(device, 0)
        # time that the device's previous task has used of its budget
        spent_s = self.computing.take_budget(device)
        task = Task(self._task_count, device, steps, round, group, count, continues, edge, context)
        task.spent_s = spent_s if continues else 0.0
        self.note_data(task)
        self._task_count += 1
        self.times_asked[device] = count + 1
        if round is not None and not continues:  # a message outside of rounds is no selection
            self.times_selected[device] = self.times_selected.get(device, 0) + 1
        lost = edge in self.messages.lost
        # the task is cut off now if its device or its edge server is unavailable
        task.disconnects_at = self.simulation.now if lost else self.reachable_until(device)
        self._start_process(task)
        self._watch_disconnection(task)
        return task

    def _start_process(self, task: Task) -> None:
        self.running[task.id] = self._working[task.device] = task
        self._busy[task.device] = True
        task.process = DirectProcess(self._env, self.carry_out(task))
        if self._starting is None:
            self._starting = []
            self._env.call(partial(self._begin_processes, self._starting), URGENT)
        self._starting.append(task.process)

    def _begin_processes(self, processes: list[DirectProcess]) -> None:
        self._starting = None
        for process in processes:
            process.begin()

    def end(self, task_id: int, cause: Cause) -> None:
        """End a running task now; nothing changes if it has ended.

        If ``cause`` is ``late`` and the running step is complete at this very time, the step still
        counts: it ends as done, and the task ends at the begin of its next step.

        Args:
            task_id: ID of the task.
            cause: why the task ends, which becomes its outcome, such as ``late``.
        """
        if (task := self.running.get(task_id)) is None:
            return
        if cause == "late" and task.waits and task.step.is_due(task, self):
            task.end_step_later()
            # interrupts the task in its next step
            self._env.call(partial(self.end, task_id, cause), CUT)
        else:
            self._interrupt(task, cause)

    def end_disconnected(self, task: Task) -> None:
        """End a task now because its device leaves for good, has a flat battery or disconnects.

        The outcome of the task becomes ``left``, ``battery`` or ``lost``.

        Args:
            task: the task.
        """
        now = self.simulation.now
        if now >= self.population.departure[task.device]:
            self._interrupt(task, "left")
        elif now >= task.flat_at:
            self._interrupt(task, "battery")
        else:
            self._interrupt(task, "lost")

    def _interrupt(self, task: Task, cause: Cause) -> None:
        if task.waits and task.process is not None and task.process.target is task.step_ended:
            task.process.interrupt(cause)
            self._starting = None  # later processes begin after the interrupt

    def end_all(self, cause: Cause) -> None:
        for task_id in list(self.running):
            self.end(task_id, cause)

    def _watch_disconnection(self, task: Task) -> None:
        if task.disconnection is not None:
            task.cancel("disconnection")
        if task.disconnects_at < math.inf:
            self._set_disconnection(task.id, max(task.disconnects_at, self.simulation.now))

    def switch_off(self, device: int) -> None:
        self.switched_off.add(device)
        if device in self._working:
            self._disconnect_now(self._working[device])
        self.messages.lose(device)

    def lose_edge(self, edge: int) -> None:
        for task in self.running.values():
            if task.edge == edge:
                self._disconnect_now(task)

    def _disconnect_now(self, task: Task) -> None:
        task.disconnects_at = self.simulation.now
        self._watch_disconnection(task)

    # state for checkpoints, and alarms that a resumed run sets again

    def snapshot(self) -> RunnerState:
        return {
            "tasks": self._task_count,
            "times_asked": _to_array(self.times_asked),
            "times_selected": _to_array(self.times_selected),
            "running": list(self.running.values()),
            "switched_off": sorted(self.switched_off),
            "batteries": self.battery_watch.snapshot(),
            "computations": self.computing.snapshot(),
            "slots": self.slots.snapshot(),
        }

    def restore(self, state: RunnerState) -> None:
        """Restore the tasks and all that belongs to them, when a run is resumed.

        Each saved task is in the middle of a step. Its process begins anew, and waits for the end of
        this step (``carry_out``). Later the clock sets the saved alarms again, such as the alarm
        ``step`` for the end of the step (``_set_step_end``).
        """
        # Batteries come in two parts. Their levels are restored first, because availability depends
        # on them; the tasks that may run flat are restored last, because they are found in
        # ``running``.
        self.battery_watch.restore_batteries(state["batteries"])
        self._task_count = state["tasks"]
        self.times_asked = Counter(dict(state["times_asked"].tolist()))
        self.times_selected = Counter(dict(state["times_selected"].tolist()))
        self.switched_off = set(state["switched_off"])
        for task in state["running"]:
            task.take_up()  # reset what a checkpoint does not save
            task.step_ended = Signal(self._env)
            if task.flow is not None:
                task.flow.done = task.end_step  # checkpoints do not save functions
            self._start_process(task)
        self.battery_watch.restore_tasks(state["batteries"])
        self.computing.restore(state["computations"])
        self.slots.restore(state["slots"])

    def _set_step_end(self, number: int, when: float) -> None:
        task = self.running[number]
        task.alarm = self._env.at(("step", number), when, task.end_step)

    def _set_disconnection(self, number: int, when: float) -> None:
        task = self.running[number]
        task.disconnection = self._env.at(
            ("disconnection", number), when, partial(self.end_disconnected, task), CUT
        )


def _to_array(counts: Mapping[int, int]) -> Ints:
    """Convert a dict device -> count to an array with rows (device, count), int64 [n, 2]."""
    return np.array(list(counts.items()), dtype=np.int64).reshape(-1, 2)
