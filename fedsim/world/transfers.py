"""The messages of tasks: each is a flow. Where messages queue, one takes a slot before its first byte leaves."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import simpy

from fedsim.environment import CUT
from fedsim.errors import SimulationError
from fedsim.simulation import Simulation
from fedsim.world.network.base import Network
from fedsim.world.network.flow import SERVER, Direction
from fedsim.world.task import Cause, Download, Ending, Queue, Task, Upload

if TYPE_CHECKING:
    from fedsim.world.energy.batteries import Batteries

_DISCONNECTED = ("lost", "left", "battery")


class Transfers:
    """Begins and ends the steps of tasks in which messages move, or wait; ``cut`` interrupts a task whose battery is flat.

    Attributes:
        queues: direction -> what each message of that direction holds while it is under way. They wait for it in order.
        scarce: the tasks whose batteries may not last for what they send or receive.
        nominal_s: how long a message takes if the device's own link is the only limit (s); what a device can know of it.
    """

    def __init__(
        self, simulation: Simulation, network: Network, cut: Callable[[Task], None], batteries: "Batteries | None"
    ) -> None:
        self._simulation, self._network, self._cut, self._batteries = simulation, network, cut, batteries
        self.nominal_s = network.nominal_s
        self.scarce: dict[int, Task] = {}
        if batteries is not None:
            network.on_shared = self._look_at_scarce
        self.queues: dict[Direction, simpy.Resource] = {}
        self._queued: dict[Direction, list[int]] = {}  # as a snapshot said: tasks with a slot, and then those that wait

    # Slots.

    def queue(self, direction: Direction, slots: simpy.Resource, running: Mapping[int, Task]) -> None:
        """From now on a message of that direction takes a slot before its first byte leaves, and gives it back at its end.

        ``SimulationError``: messages of that direction queue for something else already.
        """
        if direction in self.queues:
            raise SimulationError(
                f"messages {direction} queue for {self.queues[direction].capacity} slots already; a direction has one queue"
            )
        self.queues[direction] = slots
        for task_id in self._queued.pop(direction, ()):
            self._take_slot(running[task_id], slots)

    def has_to_queue(self, task: Task, step: Download | Upload) -> bool:
        """Whether a message has to wait for a slot; otherwise it has taken one, if there are any."""
        if task.slot is not None or task.edge is not None or step.direction not in self.queues:
            return False
        return not self._take_slot(task, self.queues[step.direction])

    @staticmethod
    def _take_slot(task: Task, slots: simpy.Resource) -> bool:
        """Ask for a slot; returns whether there was one. If not, the running step ends when there is."""
        task.slot = slots.request()
        if not task.slot.triggered:
            task.slot.callbacks.append(lambda _: task.carried_out())
        return task.slot.triggered

    @staticmethod
    def _leave_slot(task: Task) -> None:
        slot, task.slot = task.slot, None
        if slot is not None and slot.triggered:
            slot.resource.release(slot)
        elif slot is not None:
            slot.cancel()

    # Begins.

    def send(self, task: Task, step: Download | Upload) -> None:
        """A message leaves."""
        parts = step.payloads
        size = float(parts[0].bytes if len(parts) == 1 else sum([part.bytes for part in parts]))
        at, device = SERVER if task.edge is None else self._network.devices + task.edge, task.device
        source, destination = (at, device) if step.direction == "down" else (device, at)
        task.flow = self._network.send(source, destination, size, task.carried_out)
        if self._batteries is not None:
            self._look(self._batteries, task)

    def stand(self, task: Task, step: Queue) -> None:
        """A message begins to wait."""
        if self._batteries is not None:
            self._look(self._batteries, task)

    # The battery while a message moves or waits.

    def _look(self, batteries: "Batteries", task: Task) -> None:
        """Set the alarm for when the battery is flat, or until when it surely lasts, whatever becomes of the message's rate."""
        flow, device = task.flow, task.device
        left, rate = (0.0, 0.0) if flow is None else (flow.size - self._network.sent(flow), self._network.rate(flow))
        rate /= self._network.overhead  # batteries count bytes of payload, as ``left`` is
        when, is_dry = batteries.look(device, left, rate)
        task.dry = when if is_dry else math.inf
        if batteries.is_scarce(device):
            self.scarce[task.id] = task
        if when < task.off:
            name, ring = ("battery", task.id), partial(self.look_at_battery, task)
            task.battery = self._simulation.wake(name, max(when, self._simulation.now), ring, CUT)

    def look_at_battery(self, task: Task) -> None:
        """The battery is flat, or must be looked at again."""
        if self._simulation.now >= task.dry:
            self._cut(task)
        else:
            self._look_again(task)

    def _look_at_scarce(self) -> None:
        """Links were shared again: batteries that may not last for their messages last for longer now, or shorter."""
        for task in list(self.scarce.values()):
            if task.waits and task.flow is not None and task.flow.ended is None:
                self._look_again(task)

    def _look_again(self, task: Task) -> None:
        assert self._batteries is not None
        self._batteries.note(task.device, 0.0 if task.flow is None else self._network.sent(task.flow))
        if task.battery is not None:
            task.battery.cancel()
        self._look(self._batteries, task)

    # Ends.

    def sent(self, task: Task, step: Download | Upload, cause: Cause | None) -> Ending:
        """A message has come, or was cut short; one whose last byte is there has come."""
        flow, task.flow = task.flow, None
        assert flow is not None
        if task.slot is not None:
            self._leave_slot(task)
        if cause is not None:
            self._network.cancel(flow)
            if cause in _DISCONNECTED and flow.sent == flow.size and self._simulation.now > task.step_start:
                cause = None
        facts: dict[str, Any] = {"bytes": flow.size, "delivered": flow.sent, "payloads": step.payloads}
        if self._network.overhead != 1:
            facts["wire_bytes"] = flow.sent * self._network.overhead
        if task.edge is not None:
            facts["receiver" if step.direction == "up" else "sender"] = self._network.name(self._network.devices + task.edge)
        return cause, facts

    def stood(self, task: Task, step: Queue, cause: Cause | None) -> Ending:
        """A message waits no more."""
        if cause is not None:
            self._leave_slot(task)
        return cause, {}

    # Snapshots, between two instants.

    def snapshot(self, running: Mapping[int, Task]) -> dict[str, Any]:
        """What must be remembered besides the tasks and flows; ``restore`` takes it back."""
        tasks = {id(task.slot): task_id for task_id, task in running.items() if task.slot is not None}
        queued = {way: [tasks[id(slot)] for slot in (*queue.users, *queue.queue)] for way, queue in self.queues.items()}
        return {"queued": queued, "scarce": list(self.scarce)}

    def restore(self, state: Mapping[str, Any], running: Mapping[int, Task]) -> None:
        """Take up what ``snapshot`` gave, when the tasks are there. Alarms follow, and ``queue``."""
        self._queued = state["queued"]
        self.scarce = {task_id: running[task_id] for task_id in state["scarce"]}
