"""Queues for messages of tasks, if a process of the world limits how many are sent at a time."""

from collections.abc import Mapping
from typing import TypedDict

import simpy

from fedsim.common.errors import SimulationError
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Task, TaskStep, in_line


class SlotsState(TypedDict):
    """State of ``MessageSlots`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        lines: direction (``up`` or ``down``) -> IDs of the tasks that have a slot (a place for a
            message that is sent), then IDs of the tasks that wait for a slot, in order.
    """

    lines: dict[Direction, list[int]]


class MessageSlots:
    """Limits on how many messages of tasks pass between devices and the server at a time.

    A process of the world, such as ``upload-slots``, sets the limits by ``World.queue``.

    Attributes:
        queues: direction (``up`` or ``down``) -> SimPy resource whose capacity is the limit; each
            message holds one slot, a unit of the capacity. A missing direction has no limit.
    """

    def __init__(self, running: Mapping[int, Task]) -> None:
        self._running = running
        self.queues: dict[Direction, simpy.Resource] = {}
        # direction -> task IDs from a snapshot, holders of slots first; ``add`` removes them
        self._lines: dict[Direction, list[int]] = {}

    def add(self, direction: Direction, slots: simpy.Resource) -> None:
        """Limit the messages in a direction to the slots of a resource, from now on.

        A message waits for a slot, and holds it until it has arrived.

        Args:
            direction: ``up`` or ``down``.
            slots: SimPy resource, whose capacity is the limit.

        Raises:
            SimulationError: the direction has a limit already.
        """
        queue = self.queues.get(direction)
        if queue is not None:
            raise SimulationError(
                f"messages {direction} queue for {queue.capacity} slots already; a direction "
                "has one queue"
            )
        self.queues[direction] = slots
        # in a resumed run, the tasks of the checkpoint get their slots, or wait, in the same order
        for task_id in self._lines.pop(direction, ()):
            self._running[task_id].request("slot", slots)

    def must_wait(self, task: Task, step: TaskStep) -> bool:
        """Request a slot for the message of a task's step, if messages in its direction are limited.

        ``TaskRunner`` calls this before each step. A step that sends no message, or exchanges it
        with an edge server, needs no slot (place for a message that is sent).

        Returns:
            True if the step has to wait for a slot; False if it has one or needs none.
        """
        direction = step.direction
        if direction is None or direction not in self.queues:
            return False
        if task.slot is not None or task.edge is not None:
            return False
        return not task.request("slot", self.queues[direction])

    def snapshot(self) -> SlotsState:
        lines = {
            direction: in_line("slot", slots, self._running)
            for direction, slots in self.queues.items()
        }
        return {"lines": lines}

    def restore(self, state: SlotsState) -> None:
        """Restore which tasks have a slot or wait for one, when a run is resumed.

        The tasks request their slots again in ``add``, which the restored process of the world
        calls by ``World.queue``.
        """
        self._lines = state["lines"]
