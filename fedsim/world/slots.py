"""Slots that messages of tasks hold while they are under way, if a process limits their number."""

from collections.abc import Mapping
from typing import Any

import simpy

from fedsim.common.errors import SimulationError
from fedsim.world.network.endpoints import Direction
from fedsim.world.task import Task, TaskStep, in_line


class MessageSlots:
    """Queues of the messages between devices and the server, one queue a direction.

    Attributes:
        queues: direction -> slots that messages of that direction hold while under way.
    """

    def __init__(self, running: Mapping[int, Task]) -> None:
        self._running = running
        self.queues: dict[Direction, simpy.Resource] = {}
        # of a snapshot, until ``add`` is called: tasks with a slot, then tasks that wait
        self._lines: dict[Direction, list[int]] = {}

    def add(self, direction: Direction, slots: simpy.Resource) -> None:
        """Let each message of a direction hold a slot from now on, from its first byte to its end.

        Raises:
            SimulationError: the messages of that direction queue already.
        """
        queue = self.queues.get(direction)
        if queue is not None:
            raise SimulationError(
                f"messages {direction} queue for {queue.capacity} slots already; a direction "
                "has one queue"
            )
        self.queues[direction] = slots
        for task_id in self._lines.pop(direction, ()):
            self._running[task_id].request("slot", slots)

    def must_wait(self, task: Task, step: TaskStep) -> bool:
        """Whether a step has to wait for a slot; takes the slot if one is free."""
        direction = step.direction
        if direction is None or direction not in self.queues:
            return False
        if task.slot is not None or task.edge is not None:
            return False
        return not task.request("slot", self.queues[direction])

    def snapshot(self) -> dict[str, object]:
        lines = {
            direction: in_line("slot", slots, self._running)
            for direction, slots in self.queues.items()
        }
        return {"queued": lines}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state; slots are taken again when a process adds the queue again."""
        self._lines = state["queued"]
