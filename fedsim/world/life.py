"""The life of a device at work: one SimPy process a task, ``TaskRunner.life``, which carries out
one step after another.

A process exists while a device works; idle devices are rows of the population.

A step ends once: it completes, or the process is interrupted, with one cause. A step that completes
in the same instant has completed, and the next one is interrupted as it begins. Completions up to
``tie_s`` after a deadline are in time.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import simpy

from fedsim.clock.environment import CUT, NORMAL, ProcessGenerator
from fedsim.common.arrays import Flags, Ints
from fedsim.common.errors import SimulationError
from fedsim.world.availability import Availability
from fedsim.world.compute import Compute, HostSpec
from fedsim.world.messages import Messages
from fedsim.world.population import Population
from fedsim.world.steps import StepRunner
from fedsim.world.task import Cause, Power, Queue, Task, TaskStep


class TaskRunner(StepRunner):
    """Carries out tasks on the devices of a population.

    ``availability`` is cut to lifetimes. ``next_steps`` returns the steps that follow a task's,
    if any. ``on_end`` is called once with each task that has ended.

    Attributes:
        times_asked, times_selected: device -> number of its tasks, and of its selections for a
            round.
        off: devices that are switched off, whatever their availability.
    """

    def __init__(
        self,
        messages: Messages,
        population: Population,
        availability: Availability,
        compute: Compute,
        next_steps: Callable[[Task], tuple[TaskStep, ...]],
        on_end: Callable[[Task], None],
        batteries: Power | None = None,
        host: HostSpec | None = None,
    ) -> None:
        super().__init__(messages, population, compute, batteries, host)
        self._availability = availability
        self._next_steps = next_steps
        self._on_end = on_end
        messages.until = self.reachable_until
        self.off: set[int] = set()
        self._busy = np.zeros(len(population.speed), dtype=np.bool_)  # devices in _working
        self._asked = 0
        self.times_asked: Counter[int] = Counter()
        self.times_selected: Counter[int] = Counter()

    def life(self, task: Task) -> ProcessGenerator:
        """Process of a device that carries out a task, from the step that had begun if it was
        saved.
        """
        if not task.begun:
            self._begin(task)
        cause: Cause | None = None
        while cause is None and (task.position < len(task.steps) or self._asks_for_more(task)):
            if not task.begun:
                self._begin_step(task)
            try:
                cause = yield task.done  # type: ignore[misc]  # the end of a flow or a computation, or a slot
            except simpy.Interrupt as interrupt:
                cause = interrupt.cause
            cause = self._end_step(task, cause)
        self._end(task, cause)

    def _begin(self, task: Task) -> None:
        self._simulation.record(
            "task-start", task.fields | ({"continues": True} if task.continues else {})
        )
        if (battery := self._battery_of(task)) is not None:
            battery.start(task.device)
        if not task.steps and not self._asks_for_more(task):
            raise SimulationError(f"a task for device {task.device} has no steps")
        if self.hosts is not None:
            task.steps = (*self.hosts.admit(task), *task.steps)

    def _asks_for_more(self, task: Task) -> bool:
        following = self._next_steps(task)
        task.steps += following
        return bool(following)

    def _begin_step(self, task: Task) -> None:
        step = task.step
        if self.queues and self._has_to_queue(task, step):
            step = Queue()
            task.steps = (*task.steps[: task.position], step, *task.steps[task.position :])
        task.begun = True
        task.step_start = self._simulation.now
        task.done = simpy.Event(self._env)
        self._simulation.record("step-start", {**task.fields, "step": step.name})
        if (battery := self._battery_of(task)) is not None:
            battery.begin(task.device, step)
        self._ways[type(step)][0](task, step)

    def _end_step(self, task: Task, cause: Cause | None) -> Cause | None:
        """End the running step; returns the cause for which the task ends with it, if any."""
        step = task.step
        flow = task.flow
        was_cut = cause is not None
        task.cancel("alarm")
        cause, facts = self._ways[type(step)][1](task, step, cause)
        self._simulation.record(
            "step-end", {**task.fields, "step": step.name, "outcome": cause or "done", **facts}
        )
        task.begun = False
        task.done = None
        if (battery := self._battery_of(task)) is not None:
            task.cancel("battery")
            self.scarce.pop(task.id, None)
            task.dry = math.inf
            battery.end(task.device, 0.0 if flow is None else flow.sent, dry=cause == "battery")
        if cause is None:
            task.position += 1
            if was_cut:
                self._watch(task)
        return cause

    def _end(self, task: Task, cause: Cause | None) -> None:
        task.cancel("vanish")
        task.release("worker")
        del self.running[task.id], self._working[task.device]
        self._busy[task.device] = False
        task.outcome = cause or "done"
        self._simulation.record("task-end", {**task.fields, "outcome": task.outcome})
        if (battery := self._battery_of(task)) is not None:
            battery.stop(task.device)
        self._on_end(task)

    def is_idle(self, device: int) -> bool:
        """Whether the device can be reached now and has nothing to do."""
        return device not in self._working and self.reachable_until(device) > self._simulation.now

    def idle(self, devices: Ints) -> Flags:
        """Vectorised ``is_idle`` of different devices; bool [len(devices)]."""
        free: Flags = ~self._busy[devices]
        free[free] = self.reachable(devices[free])
        return free

    def reachable(self, devices: Ints) -> Flags:
        """Devices of ``devices``, all different, that can be reached now, working or not; bool
        [len(devices)].
        """
        on = self._availability.on(devices, self._simulation.now)
        return on & ~np.isin(devices, sorted(self.off)) if self.off else on

    def reachable_until(self, endpoint: int) -> float:
        """When a device disconnects next, or another endpoint is lost (s); now if it cannot be
        reached, infinity for never.
        """
        now = self._simulation.now
        if 0 <= endpoint < self.network.devices:
            span = self._availability.span(endpoint, now)
            return span.end if span.on and endpoint not in self.off else now
        return now if self.network.edge_at(endpoint) in self.messages.lost else math.inf

    def next_on(self, device: int, time: float) -> float:
        """First time (s) from ``time`` on at which the device is available, or infinity;
        ``time`` after the run's end.
        """
        return self._availability.next_on(device, time) if time <= self._simulation.end else time

    def anyone_ever(self) -> bool:
        """Whether some device is on now or will be at some time."""
        now = self._simulation.now
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
        context: Any = None,
    ) -> Task:
        """Give a task to an idle device, which begins in this instant; see ``Task``.

        ``SimulationError``: the device works.
        """
        if (other := self._working.get(device)) is not None:
            raise SimulationError(
                f"device {device} still works on task {other.id}; it does one thing at a time"
            )
        count = self.times_asked.get(device, 0)
        spent_s = self._spent.pop(device, 0.0)
        task = Task(self._asked, device, steps, round, group, count, continues, edge, context)
        task.spent_s = spent_s if continues else 0.0
        self._note_data(task)
        self._asked += 1
        self.times_asked[device] = count + 1
        if round is not None and not continues:  # not for a message outside of any round
            self.times_selected[device] += 1
        lost = edge in self.messages.lost
        # now if it is away, or its edge server is
        task.off = self._simulation.now if lost else self.reachable_until(device)
        self._put_to_work(task)
        self._watch(task)
        return task

    def _put_to_work(self, task: Task) -> None:
        self.running[task.id] = self._working[task.device] = task
        self._busy[task.device] = True
        task.process = self._simulation.process(self.life(task))

    def end(self, task_id: int, cause: Cause) -> None:
        """Interrupt a running task in this instant; a task that has ended, or is due, stays as
        it is.
        """
        if (task := self.running.get(task_id)) is None:
            return
        if cause == "late" and task.waits and self._is_due(task):
            task.carried_out()
            # its remaining steps are late then
            self._env.call(partial(self.end, task_id, cause), CUT)
        else:
            self._interrupt(task, cause)

    def end_all(self, cause: Cause) -> None:
        for task_id in list(self.running):
            self.end(task_id, cause)

    def _watch(self, task: Task) -> None:
        task.cancel("vanish")
        if task.off < math.inf:
            task.vanish = self._env.at(
                ("vanish", task.id), max(task.off, self._env.now), partial(self._cut, task), CUT
            )

    def switch_off(self, device: int) -> None:
        self.off.add(device)
        if device in self._working:
            self._lose(self._working[device])
        self.messages.lose(device)

    def lose_edge(self, edge: int) -> None:
        for task in self.running.values():
            if task.edge == edge:
                self._lose(task)

    def _lose(self, task: Task) -> None:
        task.off = self._simulation.now
        self._watch(task)

    def snapshot(self) -> dict[str, Any]:
        counts = {"times_asked": self.times_asked, "times_selected": self.times_selected}
        arrays = {
            name: np.array(list(of.items()), dtype=np.int64).reshape(-1, 2)
            for name, of in counts.items()
        }
        batteries = None if self.batteries is None else self.batteries.snapshot()
        running = {
            "running": list(self.running.values()),
            "off": sorted(self.off),
            "batteries": batteries,
        }
        return {"asked": self._asked, **arrays, **running, **super().snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.batteries is not None:
            self.batteries.restore(state["batteries"])
        self._asked = state["asked"]
        self.times_asked = Counter(dict(state["times_asked"].tolist()))
        self.times_selected = Counter(dict(state["times_selected"].tolist()))
        self.off = set(state["off"])
        for task in state["running"]:
            task.take_up()
            task.done = self._env.event()
            if task.flow is not None:
                task.flow.done = task.carried_out
            self._put_to_work(task)
        super().restore(state)

    def rearm(self, kind: str, number: int, when: float) -> None:
        owner: Any = {"flat": self.batteries, "host": self.hosts}.get(kind)
        if owner is not None:
            owner.rearm(kind, number, when)
            return
        rings: dict[str, Callable[[Task], object]] = {
            "step": Task.carried_out,
            "look-ahead": self._look_ahead,
            "vanish": self._cut,
            "battery": self._look_at_battery,
        }
        task = self.running[number]
        cuts = kind in ("vanish", "battery")
        alarm = self._env.at(
            (kind, number), when, partial(rings[kind], task), CUT if cuts else NORMAL
        )
        setattr(task, kind if cuts else "alarm", alarm)
