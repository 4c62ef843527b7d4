"""The messages of tasks: each is a flow, and beside it a wake-up for the instant at which the device vanishes.

Where messages queue, one takes a slot before its first byte leaves, and gives it back at its end.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import simpy

from fedsim.errors import SimulationError
from fedsim.simulation import Simulation
from fedsim.world.edges import edge_name
from fedsim.world.network.base import Network
from fedsim.world.network.flow import Direction, Flow
from fedsim.world.task import Download, Queue, Upload
from fedsim.world.wait import Ending, Gate, Wait

if TYPE_CHECKING:
    from fedsim.world.energy.batteries import Batteries


class Transfers:
    """Carries out the steps of tasks in which messages move, or wait.

    Args:
        simulation: the clock.
        gate: opens when a message has come, or may leave.
        network: how long messages take.
        batteries: those of the devices, if they have any.

    Attributes:
        queues: direction -> what each message of that direction holds while it is under way. They wait for it in order.
        scarce: the tasks whose batteries may not last for what they send or receive.
        nominal_s: how long a message takes if the device's own link is the only limit (s); what a device can know of it.
    """

    def __init__(self, simulation: Simulation, gate: Gate, network: Network, batteries: "Batteries | None") -> None:
        self._simulation, self._gate, self._network, self._batteries = simulation, gate, network, batteries
        self.nominal_s = network.alone_s
        self.scarce: dict[int, Wait] = {}
        if batteries is not None:
            network.on_shared = self._look_at_scarce
        self.queues: dict[Direction, simpy.Resource] = {}
        self._queued: dict[Direction, list[int]] = {}  # as a snapshot said: tasks with a slot, and then those that wait

    # Slots.

    def queue(self, direction: Direction, slots: simpy.Resource, waits: Mapping[int, Wait]) -> None:
        """From now on a message of that direction takes a slot before its first byte leaves, and gives it back at its end.

        Raises:
            SimulationError: messages of that direction queue for something else already.
        """
        if direction in self.queues:
            raise SimulationError(
                f"messages {direction} queue for {self.queues[direction]!r} already; there is one queue a direction"
            )
        self.queues[direction] = slots
        for task_id in self._queued.pop(direction, ()):
            self._take_slot(waits[task_id], slots)

    def has_to_queue(self, wait: Wait, step: Download | Upload) -> bool:
        """Whether a message has to wait for a slot; otherwise it has taken one, if there are any."""
        if wait.slot is not None or wait.task.edge is not None or step.direction not in self.queues:
            return False
        return not self._take_slot(wait, self.queues[step.direction])

    def _take_slot(self, wait: Wait, slots: simpy.Resource) -> bool:
        """Ask for a slot; returns whether there was one. If not, the gate opens when there is."""
        wait.slot = slots.request()
        if not wait.slot.triggered:
            wait.slot.callbacks.append(lambda _: self._gate.open(wait, None))
        return wait.slot.triggered

    def _leave_slot(self, wait: Wait) -> None:
        slot, wait.slot = wait.slot, None
        if slot is not None and slot.triggered:
            slot.resource.release(slot)
        elif slot is not None:
            slot.cancel()

    # Begins.

    def send(self, wait: Wait, step: Download | Upload) -> None:
        """A message leaves."""
        task, parts = wait.task, step.payloads
        size = float(parts[0].bytes if len(parts) == 1 else sum([part.bytes for part in parts]))
        done, near = partial(self._gate.open, wait, None), task.edge is not None
        wait.flow = self._network.start(task.device, step.direction, size, done, near=near)
        self._watch(wait)

    def stand(self, wait: Wait, step: Queue) -> None:
        """A message begins to wait."""
        self._watch(wait)

    def _watch(self, wait: Wait) -> None:
        """Set the alarm for the instant at which the device vanishes, or at which to look at its battery again."""
        off = wait.off if self._batteries is None else min(wait.off, self._look(self._batteries, wait))
        if off < math.inf:
            off = max(off, self._simulation.now)
            wait.alarm = self._simulation.wake(("vanish", wait.task.id), off, partial(self.vanish, wait))

    def _look(self, batteries: "Batteries", wait: Wait) -> float:
        """Until when the battery lasts (s), or surely does, whatever becomes of the message's rate."""
        flow, device = wait.flow, wait.task.device
        left, rate = (0.0, 0.0) if flow is None else (flow.size - self._network.sent(flow), self._network.rate(flow))
        rate /= self._network.overhead  # batteries count bytes of payload, as ``left`` is
        when, is_dry = batteries.look(device, left, rate)
        wait.dry = when if is_dry else math.inf
        if batteries.is_scarce(device):
            self.scarce[wait.task.id] = wait
        return when

    def _look_at_scarce(self) -> None:
        """Links were shared again: batteries that may not last for their messages last for longer now, or shorter."""
        assert self._batteries is not None
        for wait in list(self.scarce.values()):
            if wait.closed and wait.flow is not None and wait.flow.ended is None:
                self._look_again(self._batteries, wait, wait.flow)

    def _look_again(self, batteries: "Batteries", wait: Wait, flow: Flow | None) -> None:
        batteries.note(wait.task.device, 0.0 if flow is None else self._network.sent(flow))
        if wait.alarm is not None:
            wait.alarm.cancel()
        self._watch(wait)

    # Ends.

    def vanish(self, wait: Wait) -> None:
        """The device vanishes while a message is on its way, or waits; one that is there by now has arrived."""
        task, flow, now = wait.task, wait.flow, self._simulation.now
        if self._batteries is not None and now < min(wait.off, wait.dry):
            self._look_again(self._batteries, wait, flow)
            return
        if flow is not None:
            self._network.cancel(flow)
        arrived = flow is not None and flow.sent == flow.size and now > task.step_start
        self._gate.open(wait, None if arrived else self._gate.loss(wait, now))

    def is_due(self, flow: Flow) -> bool:
        """Whether a message has come by now, but for the rounding of times; it then has."""
        return self._network.finish(flow)

    def sent(self, wait: Wait, step: Download | Upload, ending: Ending) -> Ending:
        """A message has come, or was cut short: record it. Returns how it is to be counted."""
        flow, task = wait.flow, wait.task
        assert flow is not None
        wait.flow = None
        if wait.slot is not None:
            self._leave_slot(wait)
        if ending is not None:
            self._network.cancel(flow)
        fields = {**wait.fields, "step": step.name, "outcome": ending or "done", "bytes": flow.size, "delivered": flow.sent}
        fields["payloads"] = step.payloads
        if self._network.overhead != 1:
            fields["wire_bytes"] = flow.sent * self._network.overhead
        if task.edge is not None:
            fields["receiver" if step.direction == "up" else "sender"] = edge_name(task.edge)
        self._simulation.record("step-end", fields)
        return ending

    def stood(self, wait: Wait, step: Queue, ending: Ending) -> Ending:
        """A message waits no more."""
        self._simulation.record("step-end", {**wait.fields, "step": step.name, "outcome": ending or "done"})
        if ending is not None:
            self._leave_slot(wait)
        return ending

    # Snapshots, between two instants.

    def snapshot(self, waits: Mapping[int, Wait]) -> dict[str, Any]:
        """What must be remembered besides the tasks and flows; ``restore`` takes it back."""
        tasks = {id(wait.slot): task_id for task_id, wait in waits.items() if wait.slot is not None}
        queued = {way: [tasks[id(slot)] for slot in (*queue.users, *queue.queue)] for way, queue in self.queues.items()}
        return {"queued": queued, "scarce": list(self.scarce)}

    def restore(self, state: Mapping[str, Any], waits: Mapping[int, Wait]) -> None:
        """Take up what ``snapshot`` gave, when the tasks are there. Alarms follow, and ``queue``."""
        self._queued = state["queued"]
        self.scarce = {task_id: waits[task_id] for task_id in state["scarce"]}
        for wait in waits.values():
            if wait.flow is not None:
                wait.flow.done = partial(self._gate.open, wait, None)
