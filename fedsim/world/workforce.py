"""Devices at work: each task carries out its steps one after another, and may be ended early at any instant.

A task is no SimPy process but a few callbacks and the record of where it stands: with a thousand devices a round, processes and
their events were what took the time, and a record can be saved. How steps end says ``wait``; what they do stands in
``computing`` and ``transfers``. The server acts only when the world stands still, so what is complete at the very instant of a
deadline is in time. So is what would be complete some ticks of the clock later, at most ``tie_s``: no tick lies on 0.8 s or on
10 s, but a task of 0.8 + 10 + 0.8 s is in time for 11.6 s. It is complete then.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.simulation import Simulation
from fedsim.world.availability import Availability
from fedsim.world.compute import Compute
from fedsim.world.computing import Computing
from fedsim.world.edges import Edges
from fedsim.world.network.base import Network
from fedsim.world.network.flow import Direction
from fedsim.world.task import Cause, Code, Download, Evaluate, Queue, Step, Task, Train, Upload, Work
from fedsim.world.transfers import Transfers
from fedsim.world.wait import Ending, Gate, Wait

if TYPE_CHECKING:
    from fedsim.world.energy.batteries import Batteries
    from fedsim.world.population import Population

_COMPUTING = (Train, Evaluate, Work)
_ALONE = (*_COMPUTING, Code)  # without a link


class Workforce:
    """Carries out tasks on the devices of a population.

    Args:
        simulation: the clock.
        population: the devices' columns.
        availability: when each can be reached, cut to its lifetime.
        compute: how long training takes.
        network: how long messages take.
        batch_size: B, samples of an SGD step.
        next_steps: asked when a task's steps are carried out: what follows; nothing where that was all.
        on_end: told of each task once, when it has ended.
        batteries: those of the devices, if they have any.
        edges: the edge servers, if there are any.

    Attributes:
        running: where the tasks stand that have not ended, by their numbers.
        times_asked, times_selected: how many tasks each device was given, and in how many of them it was selected for a round.
        computing, transfers: carry out their steps.
        off: the devices that are switched off, whatever their availability says.
    """

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        availability: Availability,
        compute: Compute,
        network: Network,
        batch_size: int,
        next_steps: Callable[[Task], tuple[Step, ...]],
        on_end: Callable[[Task], None],
        batteries: "Batteries | None" = None,
        edges: Edges | None = None,
    ) -> None:
        self._simulation = simulation
        self._population = population
        self._availability = availability
        self._next_steps = next_steps
        self._on_end = on_end
        self.batteries = batteries
        self._edges = edges
        gate = Gate(simulation, population.departure, self._go_on)
        self.computing = computing = Computing(simulation, gate, population, compute, network, batch_size, batteries)
        self.transfers = transfers = Transfers(simulation, gate, network, batteries)
        self._gate = gate
        self._ways: dict[type[Step], tuple[Callable[[Wait, Any], None], Callable[[Wait, Any, Ending], Ending]]] = {
            Download: (transfers.send, transfers.sent),
            Upload: (transfers.send, transfers.sent),
            Queue: (transfers.stand, transfers.stood),
            Train: (computing.train, computing.trained),
            Evaluate: (computing.test, computing.tested),
            Work: (computing.work, computing.worked),
            Code: (computing.code, computing.coded),
        }  # what begins a step, and what ends it
        self.off: set[int] = set()
        self.running: dict[int, Wait] = {}
        self._working: dict[int, int] = {}
        self._busy = np.zeros(len(population.speed), dtype=np.bool_)  # who is in _working
        self._asked = 0
        self.times_asked: Counter[int] = Counter()
        self.times_selected: Counter[int] = Counter()

    def is_idle(self, device: int) -> bool:
        """Whether the device can be reached now and has nothing to do."""
        if device in self._working or device in self.off:
            return False
        return self._availability.span(device, self._simulation.now).on

    def idle(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of ``devices``, all different, can be reached now and have nothing to do; bool, as many."""
        free: NDArray[np.bool_] = ~self._busy[devices]
        if self.off:
            free &= ~np.isin(devices, sorted(self.off))
        free[free] = self._availability.on(devices[free], self._simulation.now)
        return free

    def reachable(self, devices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of ``devices``, all different, can be reached now, whether they work or not; bool, as many."""
        on = self._availability.on(devices, self._simulation.now)
        return on & ~np.isin(devices, sorted(self.off)) if self.off else on

    def next_on(self, device: int, time: float) -> float:
        """The first time at or after ``time`` at which the device can be reached (s); infinity if there is none.

        Where the run is over before ``time``, it is that. Nobody knows for how long a device stays switched off, so that counts
        for nothing here.
        """
        return self._availability.next_on(device, time) if time <= self._simulation.end else time

    def anyone_ever(self) -> bool:
        """Whether some device is on now or will be at some time."""
        now = self._simulation.now
        departure = self._population.departure
        staying = (device for device in range(len(departure)) if departure.item(device) > now)
        return any(self._availability.next_on(device, now) < math.inf for device in staying)

    def start(
        self,
        device: int,
        steps: tuple[Step, ...],
        round: int | None,  # noqa: A002
        group: int | None,
        *,
        continues: bool = False,
        edge: int | None = None,
    ) -> Task:
        """Give a task to an idle device; it begins in this instant.

        ``continues``: it goes on with what the device's task before began, and is no selection of its own. ``edge``: it is one
        of the device's edge server; None: of the server.

        Raises:
            SimulationError: the device still works on another task, or there are no steps.
        """
        if device in self._working:
            raise SimulationError(f"device {device} still works on task {self._working[device]}; it does one thing at a time")
        count = self.times_asked.get(device, 0)
        task = Task(self._asked, device, steps, round, group, count, continues, edge=edge)
        self.computing.note_task(task)
        self._asked += 1
        self.times_asked[device] = count + 1
        if round is not None and not continues:  # not for a message outside of any round
            self.times_selected[device] += 1
        self._set_working(task)
        wait = self.running[task.id] = Wait(task, task.fields(), self._off(task))
        self._simulation.soon(partial(self._begin_task, wait), first=True)
        return task

    def end(self, task_id: int, cause: Cause) -> None:
        """End a running task early, in this instant. A task that has just ended stays as it ended, one that is due is done."""
        wait = self.running.get(task_id)
        if wait is None:
            return
        if cause == "late" and wait.closed and self._is_due(wait):
            self._gate.open(wait, None)
            self._simulation.soon(partial(self.end, task_id, cause))  # what it still had to do then would be late
        else:
            self._gate.open(wait, cause)

    def _is_due(self, wait: Wait) -> bool:
        """Whether the running step ought to be carried out now, but for the rounding of times; it then is."""
        return self.computing.is_due(wait) if wait.flow is None else self.transfers.is_due(wait.flow)

    def end_all(self, cause: Cause) -> None:
        """End every running task: the run is over."""
        for task_id in list(self.running):
            self.end(task_id, cause)

    # What processes of the world do to devices.

    def set_pace(self, device: int, pace: float) -> None:
        """From now on the device computes at a factor of its own speed."""
        wait = self.running.get(self._working.get(device, -1))
        computes = wait is not None and wait.closed and isinstance(wait.task.steps[wait.task.position], _COMPUTING)
        self.computing.set_pace(device, pace, wait if computes else None)

    def switch_off(self, device: int) -> None:
        """From now on the device cannot be reached; its task is lost, but for what ends in this very instant."""
        self.off.add(device)
        wait = self.running.get(self._working.get(device, -1))
        if wait is not None:
            self._cut_off(wait)

    def lose_edge(self, edge: int) -> None:
        """An edge server is lost, and with it the tasks of its devices that are its; but for what ends in this very instant."""
        for wait in [wait for wait in self.running.values() if wait.task.edge == edge]:
            self._cut_off(wait)

    def _cut_off(self, wait: Wait) -> None:
        wait.off = self._simulation.now
        if not wait.closed:
            return  # the next step is lost when it begins
        if isinstance(wait.task.steps[wait.task.position], _ALONE):
            self.computing.cut_off(wait)
        else:
            self.transfers.vanish(wait)

    def switch_on(self, device: int) -> None:
        """The device can be reached again whenever its availability says so."""
        self.off.discard(device)

    def queue(self, direction: Direction, slots: simpy.Resource) -> None:
        """See ``Transfers.queue``."""
        self.transfers.queue(direction, slots, self.running)

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """All that must be remembered of the devices' work; ``restore`` takes it back."""
        return {
            "asked": self._asked,
            "times_asked": np.array(list(self.times_asked.items()), dtype=np.int64).reshape(-1, 2),
            "times_selected": np.array(list(self.times_selected.items()), dtype=np.int64).reshape(-1, 2),
            "running": [(wait.task, wait.flow) for wait in self.running.values()],
            "off": sorted(self.off),
            "dry": {task_id: wait.dry for task_id, wait in self.running.items() if wait.dry < math.inf},
            **self.computing.snapshot(),
            **self.transfers.snapshot(self.running),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave: every task stands where it stood. Alarms follow by ``rearm``, queues by ``queue``."""
        self._asked = state["asked"]
        self.times_asked = Counter(dict(state["times_asked"].tolist()))
        self.times_selected = Counter(dict(state["times_selected"].tolist()))
        self.off = set(state["off"])
        for task, flow in state["running"]:
            dry = state["dry"].get(task.id, math.inf)
            self.running[task.id] = Wait(task, task.fields(), self._off(task), dry, closed=True, flow=flow)
            self._set_working(task)
        self.computing.restore(state)
        self.transfers.restore(state, self.running)

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm that was there when the snapshot was taken: of a ``step``, a ``look-ahead`` or a device's ``vanish``."""
        wait = self.running[number]
        rings = {"step": self.computing.complete, "look-ahead": self.computing.look_ahead, "vanish": self.transfers.vanish}
        wait.alarm = self._simulation.wake((kind, number), when, partial(rings[kind], wait))

    def _set_working(self, task: Task) -> None:
        self._working[task.device] = task.id
        self._busy[task.device] = True

    # From step to step.

    def _begin_task(self, wait: Wait) -> None:
        continues = {"continues": True} if wait.task.continues else {}
        self._simulation.record("task-start", wait.fields | continues)
        if self.batteries is not None:
            self.batteries.start(wait.task.device)
        if not wait.task.steps:
            wait.task.steps = self._next_steps(wait.task)
        if not wait.task.steps:
            raise SimulationError(f"a task for device {wait.task.device} has no steps")
        self._begin_step(wait)

    def _begin_step(self, wait: Wait) -> None:
        task = wait.task
        step = task.steps[task.position]
        if self.transfers.queues and isinstance(step, Download | Upload) and self.transfers.has_to_queue(wait, step):
            step = Queue()
            task.steps = (*task.steps[: task.position], step, *task.steps[task.position :])
        task.step_start = self._simulation.now
        wait.closed = True
        self._simulation.record("step-start", {**wait.fields, "step": step.name})
        if self.batteries is not None:
            self.batteries.begin(task.device, step)
        self._ways[type(step)][0](wait, step)

    def _go_on(self, wait: Wait, ending: Ending) -> None:
        """The running step has ended; the next one begins, unless the task ends with it."""
        task, flow = wait.task, wait.flow
        step = task.steps[task.position]
        if wait.alarm is not None:
            wait.alarm.cancel()
            wait.alarm = None
        ending = self._ways[type(step)][1](wait, step, ending)
        if self.batteries is not None:
            self.transfers.scarce.pop(task.id, None)
            wait.dry = math.inf
            self.batteries.end(task.device, 0.0 if flow is None else flow.sent, dry=ending == "battery")
        if ending is None:
            task.position += 1
            more = task.position < len(task.steps)
            if not more and (steps := self._next_steps(task)):
                task.steps += steps
                more = True
            if more:
                self._begin_step(wait)
                return
        del self.running[task.id], self._working[task.device]
        self._busy[task.device] = False
        task.outcome = ending or "done"
        self._simulation.record("task-end", {**wait.fields, "outcome": task.outcome})
        if self.batteries is not None:
            self.batteries.stop(task.device)
        self._on_end(task)

    def _off(self, task: Task) -> float:
        """When the task's device vanishes next (s); now if it is away, or its edge server is."""
        now, device = self._simulation.now, task.device
        span = self._availability.span(device, now)
        there = span.on and device not in self.off and (self._edges is None or task.edge not in self._edges.off)
        return span.end if there else now
