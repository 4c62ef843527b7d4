"""Steps of tasks that last for a fixed time, and the step in which a device waits for a slot."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedsim.clock.simulation import on_grid
from fedsim.common.step_names import DECODE, ENCODE, QUEUE
from fedsim.world.steps.base import Cause, Ending, StepServices, Task, TaskStep


@dataclass(frozen=True, slots=True)
class Code(TaskStep):
    """Step of a task in which the device encodes or decodes models.

    Attributes:
        name: ``encode`` or ``decode``.
        seconds: the time that it takes (s).
    """

    name: Literal["encode", "decode"]
    seconds: float
    names: ClassVar[tuple[str, ...]] = (ENCODE, DECODE)
    power = "compute"

    def begin(self, task: Task, services: StepServices) -> None:
        services.end_step_at(task, on_grid(services.simulation.now + self.seconds))


@dataclass(frozen=True, slots=True)
class Pause(TaskStep):
    """Step of a task in which the device waits for a fixed time.

    Attributes:
        name: ``sleep``, or ``start-up`` for the start of a task on a host.
        seconds: the time (s).
    """

    name: Literal["start-up", "sleep"]
    seconds: float

    def begin(self, task: Task, services: StepServices) -> None:
        services.end_step_at(task, on_grid(services.simulation.now + self.seconds))


@dataclass(frozen=True, slots=True)
class Queue(TaskStep):
    """Task step in which a device waits until it may send its message, or run on its host.

    It waits before a message if a process of the world limits how many messages are sent at a time
    (``World.queue``). It waits for its host if the scenario limits the tasks that run on a host at a
    time.
    """

    name = QUEUE

    def begin(self, task: Task, services: StepServices) -> None:
        services.battery_watch.predict(task)

    def end(self, task: Task, services: StepServices, cause: Cause | None) -> Ending:
        if cause is not None:
            task.release("slot")
        return cause, {}
