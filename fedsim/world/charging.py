"""Charging models, which give the phases in which a device is plugged in."""

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
    """Interface of objects that know when each device is plugged into its charger.

    The answer depends on the seed and the device alone, not on the run.
    """

    def span(self, device: int, time: float) -> Span:
        """Return whether a device is plugged in at a time (s), and since when and until when.

        The result's ``on`` is true if the device is plugged in. Two phases in which it is not may
        follow each other.

        Args:
            device: index of the device.
            time: simulated time (s).
        """


class ChargingModel(Spec):
    """Base of the kinds of charging in a scenario, which build the devices' charging times."""

    kind: str

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        """Build the charging phases of all devices; draws are from ``world/charging``.

        Args:
            streams: random streams of the run.
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
    """Charging model: devices are plugged in and unplugged in turn, for random exponential times.

    Devices are independent of each other.

    Attributes:
        mean_on, mean_off: mean length of the times in which a device is plugged in, and unplugged.
    """

    kind: Literal["renewal"] = "renewal"
    mean_on: PositiveSeconds
    mean_off: PositiveSeconds

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        return Phases(streams, "world/charging", self.mean_on, self.mean_off, devices)


class Daily(ChargingModel):
    """Charging model: a device is plugged in once a day, at a time and for a duration of its own.

    Attributes:
        begins: time of day at which the device is plugged in; from '24 h', a time of the next
            morning.
        lasts: time for which the device is plugged in, at most 24 h.
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
        begins: first begin of charging of each device (s from the start of the run, below a day),
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
        # may be -1, for a phase that began before the run
        day = math.floor((time - begins) / DAY_S)
        # after 97 days, rounding may make the quotient a tick too small
        if time >= begins + (day + 1) * DAY_S:
            day += 1
        start = begins + day * DAY_S
        end = begins + (day + 1) * DAY_S
        if self._chance < 1:
            draw = self._streams.uniform("world/charging", device, day + 1)
            if draw >= self._chance:
                return Span(False, start, end)
        if time < start + lasts:
            return Span(True, start, on_grid(start + lasts))
        return Span(False, start + lasts, end)


CHARGINGS = Registry.of("charging", Never, RenewalCharging, Daily)
ChargingSpec = Annotated[ChargingModel, KindField(CHARGINGS)]
