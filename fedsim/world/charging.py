"""Paths of when a device is plugged in: never, each day at its time, or in random phases."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from fedsim.clock.simulation import TICK_S, on_grid
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import PositiveSeconds
from fedsim.world.calendar import DAY_S
from fedsim.world.distributions import TimeDistribution
from fedsim.world.phases import Phases, Span


class Charging(Protocol):
    """When devices are plugged in: pure functions of (seed, device)."""

    def span(self, device: int, time: float) -> Span:
        """The phase of ``device`` at ``time`` (s), on while it is plugged in.

        An off phase may follow another one.
        """


class ChargingModel(Spec):
    """The base of every kind of charging."""

    kind: str

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        """Paths of a run from ``starts``, a time of the day (s); draws from ``world/charging``.

        By default the spec itself.
        """
        return self  # type: ignore[return-value]


class Never(ChargingModel):
    """A device has what is in its battery at first."""

    kind: Literal["never"] = "never"

    def span(self, device: int, time: float) -> Span:
        return Span(False, 0.0, math.inf)


class RenewalCharging(ChargingModel):
    """Plugged in and unplugged for exponential times, independent between devices."""

    kind: Literal["renewal"] = "renewal"
    mean_on: PositiveSeconds
    mean_off: PositiveSeconds

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        return Phases(streams, "world/charging", self.mean_on, self.mean_off, devices)


class Daily(ChargingModel):
    """Plugged in each day, at an individual time and for an individual duration."""

    kind: Literal["daily"] = "daily"
    begins: TimeDistribution
    """the time of the day, from '24 h' on of the next morning."""
    lasts: TimeDistribution
    """at most 24 h."""
    chance: float = Field(default=1.0, ge=0.0, le=1.0)
    """that a device is plugged in on a day."""

    def build(self, streams: Streams, devices: int, starts: float, root: Path | None) -> Charging:
        begins, lasts = (
            said.by_device(
                f"energy.battery.charging.{name}",
                streams.generator(f"world/charging/{name}"),
                devices,
                root,
            )
            for name, said in (("begins", self.begins), ("lasts", self.lasts))
        )
        begins, lasts = (
            np.rint(each / TICK_S) * TICK_S
            for each in (np.mod(begins - starts, DAY_S), np.clip(lasts, 0.0, DAY_S))
        )
        return _Days(streams, begins, lasts, self.chance)


class _Days:
    """Each day from ``begins`` (s from the start of the run, below a day) for ``lasts`` (s);
    float64 [devices] each.
    """

    def __init__(self, streams: Streams, begins: Any, lasts: Any, chance: float) -> None:
        self._streams = streams
        self._begins = begins
        self._lasts = lasts
        self._chance = chance

    def span(self, device: int, time: float) -> Span:
        begins = self._begins.item(device)
        lasts = self._lasts.item(device)
        day = math.floor((time - begins) / DAY_S)  # the first may have begun before the run
        # beyond 97 days the division's rounding may be a tick short
        if time >= begins + (day + 1) * DAY_S:
            day += 1
        start = begins + day * DAY_S
        end = begins + (day + 1) * DAY_S
        if (
            self._chance < 1
            and self._streams.uniform("world/charging", device, day + 1) >= self._chance
        ):
            return Span(False, start, end)
        if time < start + lasts:
            return Span(True, start, on_grid(start + lasts))
        return Span(False, start + lasts, end)


CHARGINGS = Registry.of("charging", Never, RenewalCharging, Daily)
ChargingSpec = Annotated[ChargingModel, CHARGINGS]
