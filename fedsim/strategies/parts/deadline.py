"""Deadlines: how long a round waits, or a client may train.

Here is the time alone: ``Synchronous`` ends the tasks that are open when it is over, and a step of the world the training.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.language.registry import Registry
from fedsim.language.spec import Epochs, Spec
from fedsim.language.units import PositiveSeconds
from fedsim.world.population import DeadlineBase

_HERE = "fedsim.strategies.parts.deadline"
Since = Literal["round", "download"]
DEADLINES = Registry(
    "deadline",
    f"{_HERE}:Deadline",
    {
        "fixed": (f"{_HERE}:Fixed", "the same time in every round"),
        "relative": (f"{_HERE}:Relative", "a multiple of the mean training time of all devices"),
        "quantile": ("fedsim.toolbox.deadlines:Quantile", "a share of the clients of the last rounds would have been in time"),
    },
    bare="time",
    usual="fixed",
)


class Deadline(Spec):
    """The base of every deadline. What it must remember is in ``state``, JSON-able."""

    kind: str

    @property
    def bounds_training(self) -> bool:
        """Whether it counts from each client's own download on and bounds its training alone; else it ends the round."""
        return getattr(self, "since", None) == "download"

    def among(self, mean_epoch_s: float) -> "Deadline":
        """The rule for devices that need so long (s) for an epoch on the mean."""
        return self

    def least_s(self) -> float:
        """The limit by which a scenario is checked (s): it is refused if nobody could receive the model within it."""
        raise NotImplementedError

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        """The time that clients have in a round (s); None if unlimited. Called when the round begins."""
        raise NotImplementedError

    def heard(self, state: dict[str, Any], took_s: float, in_time: bool) -> None:
        """A task of a round has ended after so long (s), in time or not."""


class Fixed(Deadline):
    """Clients have ``time`` (s) in every round; ``deadline = "90 s"`` is short for it.

    Attributes:
        since: ``round``: the time counts from the begin of the round, for a whole task, and then ends what is open.
            ``download``: it counts from the end of each client's own download and bounds its training alone; the round closes
            when the last upload has come (CATA-Fed's reading). None: ``round``, but for CATA-Fed.
    """

    kind: Literal["fixed"] = "fixed"
    time: PositiveSeconds
    since: Since | None = None

    @classmethod
    def of(cls, time: float) -> "Fixed":
        """From a number (s), which a scenario may not give without its unit."""
        return cls.model_construct(kind="fixed", time=time)

    def least_s(self) -> float:
        return self.time

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        return self.time


class Relative(Deadline):
    """Clients have ``times`` the mean time in which all devices, undisturbed, train ``epochs`` (CATA-Fed's T, section 5.2).

    Attributes:
        devices: in a population with tentative stragglers, whether the mean is the one without them (``unslowed``) or over the
            devices as they are (``all``).
        since: as of ``Fixed``; by default ``download``.
    """

    instead: ClassVar[Mapping[str, str]] = {"time": "times"}

    kind: Literal["relative"] = "relative"
    times: float = Field(default=1.0, gt=0.0, le=1e9)
    epochs: Epochs = 5
    devices: DeadlineBase = "unslowed"
    since: Since = "download"

    def among(self, mean_epoch_s: float) -> Deadline:
        if not 0 < mean_epoch_s < math.inf:
            raise ScenarioError(
                f"strategy.deadline.times is {self.times:g} in units of the mean training time, which is {mean_epoch_s:g} s in "
                "this population; give 'population.speed' values above 0 and finite, or a time as 'deadline'"
            )
        return Fixed.of(self.times * self.epochs * mean_epoch_s)


DeadlineSpec = Annotated[Deadline, DEADLINES]
