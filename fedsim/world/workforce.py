"""Devices at work: one SimPy process a task, which carries out its steps and may be ended early at any instant.

A step ends exactly once, through its gate: by its own completion, by the device vanishing, or by the server. Who comes first
wins; where completion and disconnection fall on the same instant the step counts as complete (and the next one is lost at
once). The server acts only when the world stands still, so what is complete at the very instant of a deadline is in time.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import Event

from fedsim.errors import SimulationError
from fedsim.simulation import TICK_S, Simulation, Wakeup, on_grid, on_grid_after
from fedsim.world.availability import Availability
from fedsim.world.compute import Compute
from fedsim.world.network.base import Direction, Flow, Network
from fedsim.world.task import Cause, Download, Evaluate, Step, Task, Train, Upload

if TYPE_CHECKING:
    from fedsim.world.population import Population

Ending = Cause | None
"""How a step ended: None when it was carried out."""

Finish = Callable[[Ending], Ending]
"""What must be done when a step has ended; says how it is to be counted."""

_FORWARD_SHARE = 1 / 3  # a forward pass costs a third of a training step (forward, and backward at twice that)


class Workforce:
    """Carries out tasks on the devices of a population.

    Args:
        simulation: the clock.
        population: the devices' columns.
        availability: when each can be reached.
        compute: how long training takes.
        network: how long messages take.
        on_end: told of each task once, when it has ended.
    """

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        availability: Availability,
        compute: Compute,
        network: Network,
        on_end: Callable[[Task], None],
    ) -> None:
        self._simulation = simulation
        self._population = population
        self._availability = availability
        self._compute = compute
        self._network = network
        self._on_end = on_end
        self.running: dict[int, Task] = {}
        self._gates: dict[int, Event] = {}
        self._working: dict[int, int] = {}
        self._asked = 0
        self.times_asked: NDArray[np.int64] = np.zeros(len(population.speed), dtype=np.int64)
        self.times_selected: NDArray[np.int64] = np.zeros(len(population.speed), dtype=np.int64)

    def is_idle(self, device: int) -> bool:
        """Whether the device can be reached now and has nothing to do."""
        return device not in self._working and self._availability.span(device, self._simulation.now).on

    def next_on(self, device: int, time: float) -> float:
        """The first time at or after ``time`` at which the device can be reached (s); infinity if there is none."""
        return self._availability.next_on(device, time)

    def anyone_ever(self) -> bool:
        """Whether some device is on now or will be at some time."""
        now, devices = self._simulation.now, range(len(self._population.speed))
        return any(self._availability.next_on(device, now) < float("inf") for device in devices)

    def start(self, device: int, steps: tuple[Step, ...], round: int | None, group: int | None) -> Task:  # noqa: A002
        """Give a task to an idle device; it begins in this instant.

        Raises:
            SimulationError: the device still works on another task, or there are no steps.
        """
        if device in self._working:
            raise SimulationError(f"device {device} still works on task {self._working[device]}; it does one thing at a time")
        if not steps:
            raise SimulationError(f"a task for device {device} has no steps")
        task = Task(self._asked, device, steps, round, group, int(self.times_asked[device]))
        self._asked += 1
        self.times_asked[device] += 1
        self.times_selected[device] += round is not None  # not for a message outside of any round
        self.running[task.id] = task
        self._working[device] = task.id
        self._simulation.process(self._carry_out(task))
        return task

    def end(self, task_id: int, cause: Cause) -> None:
        """End a running task early, in this instant. A task that has just ended stays as it ended."""
        gate = self._gates.get(task_id)
        if gate is not None and not gate.triggered:
            gate.succeed(cause)

    def end_all(self, cause: Cause) -> None:
        """End every running task: the run is over."""
        for task_id in list(self._gates):
            self.end(task_id, cause)

    def _carry_out(self, task: Task) -> simpy.events.ProcessGenerator:
        simulation = self._simulation
        simulation.emit("task-start", **task.fields())
        cause: Ending = None
        while cause is None and task.position < len(task.steps):
            step = task.steps[task.position]
            task.step_start = simulation.now
            gate = self._gates[task.id] = simulation.env.event()
            simulation.emit("step-start", **task.fields(), step=step.name)
            finish = self._begin(task, step, gate)
            cause = yield gate
            cause = finish(cause)
            if cause is None:
                task.position += 1
        del self._gates[task.id], self.running[task.id], self._working[task.device]
        task.outcome = cause or "done"
        simulation.emit("task-end", **task.fields(), outcome=task.outcome)
        self._on_end(task)

    def _begin(self, task: Task, step: Step, gate: Event) -> Finish:
        """Start a step, arm what will open its gate, and return what must be done when it has opened."""
        if isinstance(step, Train):
            return self._begin_training(task, step, gate)
        if isinstance(step, Evaluate):
            return self._begin_evaluation(task, step, gate)
        return self._begin_transfer(task, step, gate)

    # Computing: one wake-up, at the end or when the device vanishes before.

    def _begin_training(self, task: Task, step: Train, gate: Event) -> Finish:
        now = self._simulation.now
        device = task.device
        limit = self._training_limit(task, step)
        epoch_s = self._population.epoch_s(device, None if step.part is None else step.part.samples)
        ends = self._compute.epoch_ends(device, now, epoch_s, step.epochs, limit)
        if step.adaptive:
            ends = self._compute.adapt(now, ends, limit)
        task.epoch_ends = ends
        all_fit = bool(ends) and ends[-1] <= limit and (step.adaptive or len(ends) == step.epochs)
        wakeup = self._arm(task, gate, ends[-1] if all_fit else max(limit, now))

        def finish(cause: Ending) -> Ending:
            wakeup.cancel()
            done = sum(end <= self._simulation.now for end in ends)
            task.epochs = done
            if cause is None and done < step.at_least:  # a slow straggler
                if step.go_on:
                    task.epochs = 0
                else:
                    cause = "late"
            part = {} if step.part is None else {"part": [step.part.number, 2**step.part.splits, step.part.samples]}
            self._simulation.emit(
                "step-end",
                **task.fields(),
                step=step.name,
                outcome=cause or "done",
                epochs=task.epochs,
                asked=step.epochs,
                epoch_ends=ends[:done],
                **part,
            )
            return cause

        return finish

    def _training_limit(self, task: Task, step: Train) -> float:
        limits = [float("inf") if step.stop_at is None else step.stop_at]
        limits += [] if step.budget is None else [self._simulation.now + step.budget]
        following = task.steps[task.position + 1 :]
        reserve = 0.0
        if step.reserve_upload and following and isinstance(following[0], Upload):
            nominal_s = self.nominal_transfer_s(task.device, "up", sum(part.bytes for part in following[0].payloads))
            # News of the last byte comes on a tick: between two of them on the next one, or on that after it by rounding.
            reserve = nominal_s if on_grid(nominal_s) == nominal_s else on_grid_after(nominal_s) + TICK_S
        return on_grid(min(limits)) - reserve

    def nominal_transfer_s(self, device: int, direction: Direction, size: float) -> float:
        """How long a message takes if the device's own link is the only limit (s); what a device can know of it."""
        return self._network.latency_s(device) + size / self._network.access_rate(device, direction)

    def _begin_evaluation(self, task: Task, step: Evaluate, gate: Event) -> Finish:
        now = self._simulation.now
        work_s = self._population.epoch_s(task.device) * _FORWARD_SHARE * len(step.models)
        end = self._compute.epoch_ends(task.device, now, work_s, 1, float("inf"))[0]
        wakeup = self._arm(task, gate, end)

        def finish(cause: Ending) -> Ending:
            wakeup.cancel()
            self._simulation.emit("step-end", **task.fields(), step=step.name, outcome=cause or "done", models=len(step.models))
            return cause

        return finish

    def _arm(self, task: Task, gate: Event, end: float) -> Wakeup:
        """Open the gate at ``end``, or when the device vanishes if that comes first (completion wins a tie)."""
        span = self._availability.span(task.device, self._simulation.now)
        off = span.end if span.on else self._simulation.now
        cause: Ending = None if end <= off else "lost"
        return self._simulation.wake(("step", task.id), min(end, off), lambda: _open(gate, cause))

    # Messages: a flow, and beside it a wake-up for the instant at which the device vanishes.

    def _begin_transfer(self, task: Task, step: Download | Upload, gate: Event) -> Finish:
        direction: Direction = "down" if isinstance(step, Download) else "up"
        untrained = step.untrained if isinstance(step, Upload) and not task.epochs else None
        payloads = step.payloads if untrained is None else untrained
        size = float(sum(part.bytes for part in payloads))
        flow = self._network.start(task.device, direction, size, lambda: _open(gate, None))
        vanish = self._arm_vanish(task, gate, flow)

        def finish(cause: Ending) -> Ending:
            if vanish is not None:
                vanish.cancel()
            if cause is not None:
                self._network.cancel(flow)
            self._simulation.emit(
                "step-end",
                **task.fields(),
                step=step.name,
                outcome=cause or "done",
                bytes=size,
                delivered=flow.sent,
                payloads=[[part.purpose, part.bytes] for part in payloads],
            )
            return cause

        return finish

    def _arm_vanish(self, task: Task, gate: Event, flow: Flow) -> Wakeup | None:
        simulation = self._simulation
        span = self._availability.span(task.device, simulation.now)
        off = span.end if span.on else simulation.now
        if off == float("inf"):
            return None

        def vanish() -> None:
            self._network.cancel(flow)
            _open(gate, None if flow.sent == flow.size and off > task.step_start else "lost")

        return simulation.wake(("vanish", task.id), off, vanish)


def _open(gate: Event, cause: Ending) -> None:
    if not gate.triggered:
        gate.succeed(cause)
