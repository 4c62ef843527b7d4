"""Interfaces of the world for steps: times of devices, timing of computations, batteries."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedsim.common.training import Limit, Training
    from fedsim.world.compute import Hosts
    from fedsim.world.steps.computations import Work
    from fedsim.world.task import Cause, Task


class DeviceTimes(Protocol):
    """Interface of ``Population`` for the times of work, without jitter or slow phases."""

    def training_s(self, device: int, training: "Training", samples: int) -> float:
        """Return the time of one epoch of a training on ``samples`` samples (s)."""

    def testing_s(self, device: int, samples: int) -> float:
        """Return the time of a forward pass over ``samples`` samples (s)."""

    def working_s(self, device: int, work: "Work") -> float:
        """Return the time of a step ``Work`` (s)."""

    def failing_s(self, device: int, training: "Training | None", samples: int) -> float | None:
        """Return the time until a computation runs out of memory (s); None if it fits.

        ``training`` is None for a test.
        """


class ComputationTimer(Protocol):
    """Interface of ``Computing``, the timing of computations."""

    @property
    def hosts(self) -> "Hosts | None":
        """Machines whose cores the devices share; None if each device has its own."""

    def begin(self, task: "Task", training: "Training | None") -> None:
        """Begin a training, or an evaluation if ``training`` is None."""

    def look_ahead(self, task: "Task") -> None:
        """Set the alarm for the end of the running computation, or for a later check."""

    def limit_of(self, task: "Task", limit: "Limit") -> float:
        """Return the simulated time (s) at which a limit ends the running step; may be infinity."""

    def end(self, task: "Task", limit: "Limit", cause: "Cause | None") -> dict[str, Any]:
        """End the running computation; return fields of its record."""


class ChargeWatch(Protocol):
    """Interface of ``BatteryWatch``, the watch over the batteries of devices with a task."""

    def look(self, task: "Task") -> None:
        """Set the alarm for the next check of the battery during a message or a wait."""

    def runs_dry(self, task: "Task", until: float) -> bool:
        """Whether the battery runs flat by ``until`` (s)."""
