"""Parts of the world that steps and their timing use: devices' speeds, computations, batteries."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedsim.common.training import Limit, Training
    from fedsim.world.compute import Hosts
    from fedsim.world.steps.computations import Work
    from fedsim.world.task import Cause, Task


class DeviceTimes(Protocol):
    """Times of undisturbed work on each device; a ``Population`` has them."""

    def training_s(self, device: int, training: "Training", samples: int) -> float:
        """Time of one epoch of a training on ``samples`` samples (s)."""

    def testing_s(self, device: int, samples: int) -> float:
        """Time of a forward pass over ``samples`` samples (s)."""

    def working_s(self, device: int, work: "Work") -> float:
        """Time of other work (s)."""

    def failing_s(self, device: int, training: "Training | None", samples: int) -> float | None:
        """Time until a training, or a test (None), runs out of memory (s); None if it fits."""


class ComputationTimer(Protocol):
    """The timing of computations; ``Computing`` implements it."""

    @property
    def hosts(self) -> "Hosts | None":
        """Machines whose cores the devices share; None if each device has its own."""

    def begin(self, task: "Task", training: "Training | None") -> None:
        """Begin a training, or an evaluation (None)."""

    def look_ahead(self, task: "Task") -> None:
        """Set the alarm for the end of the running computation, or for a later look."""

    def limit_of(self, task: "Task", limit: "Limit") -> float:
        """Absolute time at which a limit ends the running step (s); infinity for never."""

    def end(self, task: "Task", limit: "Limit", cause: "Cause | None") -> dict[str, Any]:
        """End the running computation; returns fields of its record."""


class ChargeWatch(Protocol):
    """The watch over batteries of devices at work; ``BatteryWatch`` implements it."""

    def look(self, task: "Task") -> None:
        """Set an alarm for the time until which the battery lasts during the running step."""

    def runs_dry(self, task: "Task", until: float) -> bool:
        """Whether the battery runs flat by ``until`` (s)."""
