"""A kind of step of a user's, and a strategy whose tasks have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.clock.simulation import on_grid
from fedsim.plugin import (
    AggregatingParams,
    Device,
    FedAvg,
    Instruction,
    Pause,
    SynchronousClient,
    TaskStep,
)
from fedsim.world.steps import Cause, Ending


@dataclass(frozen=True, slots=True)
class Read(TaskStep):
    """The device reads its samples from flash memory, at ``rate`` (samples/s)."""

    rate: float
    name = "read"
    power = "compute"

    def begin(self, task: Any, services: Any) -> None:
        services.note_data(task)
        services.end_step_at(task, on_grid(services.simulation.now + task.samples / self.rate))

    def end(self, task: Any, services: Any, cause: Cause | None) -> Ending:
        return cause, {"samples": task.samples, "bytes": "unknown"}


class FromFlashClient(SynchronousClient[AggregatingParams]):
    """Reads its samples before it trains, and sleeps after that."""

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """The steps of a task, between its download and its upload."""
        return (Read(50.0), *super().work(device, instruction), Pause("sleep", 1.5))


class FromFlash(FedAvg[AggregatingParams]):
    """FedAvg on devices that read their samples from flash memory."""

    Client = FromFlashClient
