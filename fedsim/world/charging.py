"""When a device is plugged in: always, never, each day at its time, in random phases, or whenever it can be reached.

Like availability a path is a pure function of (seed, device), whatever the device is asked to do.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.streams import Streams
from fedsim.world.phases import Span

if TYPE_CHECKING:
    from fedsim.world.availability import Availability


class Charging(Protocol):
    """The paths of a whole population."""

    def span(self, device: int, time: float) -> Span:
        """The phase that ``device`` is in at ``time`` (s): on while it is plugged in. An off phase may follow another one."""


class ChargingModel(Spec):
    """The base of every kind."""

    kind: str

    def build(self, streams: Streams, devices: int, starts: float, availability: "Availability", root: Path | None) -> Charging:
        """Paths of a run from ``starts``, a time of the day (s); draws from ``world/charging``. By default the spec itself."""
        return self  # type: ignore[return-value]


class Never(ChargingModel):
    """A device has what is in its battery at first."""

    kind: Literal["never"] = "never"

    def span(self, device: int, time: float) -> Span:
        return Span(False, 0.0, math.inf)


_KINDS = "fedsim.toolbox.worlds.charging"
_OTHERS = {
    "always": (f"{_KINDS}:Always", "a device is plugged in all the time"),
    "reached": (f"{_KINDS}:WhenReached", "a device is plugged in while it can be reached: phones as FLASH recorded them"),
    "renewal": (f"{_KINDS}:RenewalCharging", "plugged in and unplugged for exponential times"),
    "daily": (f"{_KINDS}:Daily", "plugged in each day at a time of its own, for as long as it has always been"),
}
CHARGINGS = Registry("charging", "", {**Registry.of("charging", Never).known, **_OTHERS})
ChargingSpec = Annotated[ChargingModel, CHARGINGS]
