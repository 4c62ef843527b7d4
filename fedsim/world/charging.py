"""Models of when devices are plugged into their chargers."""

import math
from pathlib import Path
from typing import Annotated, Literal, Protocol

import numpy as np
from pydantic import Field

from fedsim.clock.simulation import TICK_S, on_grid
from fedsim.common.arrays import Floats
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import PositiveSeconds
from fedsim.world.calendar import DAY_S
from fedsim.world.distributions import Distribution, TimeDistribution
from fedsim.world.phases import Phases, Span


class Charging(Protocol):
    """Interface of objects that compute when each device is plugged into its charger.

    The times depend only on the seed and the device, not on earlier calls.
    """

    def span(self, device: int, time: float) -> Span:
        """Return the phase around a time in which a device is plugged in, or is unplugged.

        The result's ``on`` is true if the device is plugged in. An unplugged phase may be followed
        by another unplugged phase, so a device need not be plugged in at the end of the phase.

        Args:
            device: index of the device.
            time: simulated time (s).
        """


class ChargingModel(Spec):
    """Base of the models of when devices are plugged in (``energy.battery.charging``)."""

    kind: str

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        """Build the object that computes when each device is plugged in.

        Args:
            streams: random streams of the run; draws are from the stream ``world/charging``.
            devices: number of devices.
            starts: time of day at the start of the run (s).
            root: folder of data files; None for the working directory.
        """
        raise NotImplementedError


class Never(ChargingModel):
    """Charging model without chargers: a device has only the energy of its battery at the start."""

    kind: Literal["never"] = "never"

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> "Never":
        return self

    def span(self, device: int, time: float) -> Span:
        return Span(False, 0.0, math.inf)


class RenewalCharging(ChargingModel):
    """Charging model in which each device is alternately plugged in and unplugged.

    The lengths of the phases are exponential random variables. Devices are independent of each
    other.

    Attributes:
        mean_on, mean_off: mean length of the phases in which a device is plugged in, and unplugged.
    """

    kind: Literal["renewal"] = "renewal"
    mean_on: PositiveSeconds
    mean_off: PositiveSeconds

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        return Phases(streams, "world/charging", self.mean_on, self.mean_off, devices)


class Daily(ChargingModel):
    """Charging model in which each device is plugged in once a day, always at one time of day.

    Attributes:
        begins: time of day at which a device is plugged in; 24 h or more for a time after midnight,
            so that a distribution can extend from the evening into the night.
        lasts: time for which a device is plugged in, at most 24 h.
        chance: probability that a device is plugged in on a day.
    """

    kind: Literal["daily"] = "daily"
    begins: TimeDistribution
    lasts: TimeDistribution
    chance: float = Field(default=1.0, ge=0.0, le=1.0)

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        def draw(name: str, distribution: Distribution) -> Floats:
            key = f"energy.battery.charging.{name}"
            generator = streams.generator(f"world/charging/{name}")
            return distribution.by_device(key, generator, devices, root)

        begins = np.mod(draw("begins", self.begins) - starts, DAY_S)
        lasts = np.clip(draw("lasts", self.lasts), 0.0, DAY_S)
        return _Days(streams, _round_to_ticks(begins), _round_to_ticks(lasts), self.chance)


def _round_to_ticks(times: Floats) -> Floats:
    rounded: Floats = np.rint(times / TICK_S) * TICK_S
    return rounded


class _Days:
    """Charging phases of devices that are plugged in once a day.

    Args:
        streams: random streams of the run.
        begins: simulated time at which each device is first plugged in (s), less than a day,
            float64 [devices].
        lasts: duration of each device's charging (s), float64 [devices].
        chance: probability that a device is plugged in on a day.
    """

    def __init__(self, streams: Streams, begins: Floats, lasts: Floats, chance: float) -> None:
        self._streams = streams
        self._begins = begins
        self._lasts = lasts
        self._chance = chance

    def span(self, device: int, time: float) -> Span:
        begins = self._begins.item(device)
        lasts = self._lasts.item(device)
        # Days are counted from the device's first begin; -1 is the day before. On a day on which it
        # is plugged in, a device charges for ``lasts`` from the begin of the day.
        day = math.floor((time - begins) / DAY_S)
        # after 97 days, rounding may make the difference too small
        if time >= begins + (day + 1) * DAY_S:
            day += 1
        start = begins + day * DAY_S
        end = begins + (day + 1) * DAY_S
        if self._chance < 1:
            draw = self._streams.uniform("world/charging", device, day + 1)  # day + 1 is 0 or more
            if draw >= self._chance:  # the device is not plugged in on this day
                return Span(False, start, end)
        if time < start + lasts:
            return Span(True, start, on_grid(start + lasts))
        return Span(False, start + lasts, end)


CHARGINGS = Registry.of("charging", Never, RenewalCharging, Daily)
ChargingSpec = Annotated[ChargingModel, KindField(CHARGINGS)]
