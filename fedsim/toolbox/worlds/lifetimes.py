"""When devices join, and when they leave for good: at random, at given times, or as a table says."""

import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from fedsim.arrays import Floats
from fedsim.errors import ScenarioError
from fedsim.language.units import PerSecond, PositiveSeconds, Seconds
from fedsim.simulation import TICK_S, on_grid
from fedsim.streams import Streams
from fedsim.world.distributions import FileColumn
from fedsim.world.lifetimes import Turnover


class _Schedule(Turnover):
    """One device at each of the given times."""

    kind: Literal["schedule"] = "schedule"
    times: list[PositiveSeconds] = Field(min_length=1)
    """in any order; each is for one device."""
    devices: list[int]
    """the device of each time, none twice."""

    def check(self, devices: int) -> None:
        if len(self.devices) != len(self.times):
            counts = f"{len(self.devices)} devices for {len(self.times)} times"
            raise ScenarioError(f"{self.key}.devices has {counts}; give one for each")
        for device, count in Counter(self.devices).items():
            if not 0 <= device < devices:
                raise ScenarioError(f"{self.key}.devices names device {device}; allowed are 0 to {devices - 1}")
            if count > 1:
                raise ScenarioError(f"{self.key}.devices names device {device} twice; allowed is once")

    def put_into(self, column: Floats) -> Floats:
        column[self.devices] = [on_grid(time) for time in self.times]
        return column


class _TimesFromFile(FileColumn, Turnover):
    def times(self, devices: int, root: Path | None, empty: float) -> Floats:
        """Times on the clock's grid (s), float64 [devices]; ``empty`` for empty cells. ``DataError``: malformed."""
        return np.array([on_grid(time) for time in self.cells(self.key, devices, root, Seconds, empty=empty).tolist()])


def _positive(rate: float) -> float:
    if not 0 < rate < math.inf:
        raise PydanticCustomError("quantity", "a rate of arrivals must be above 0 /s and finite")
    return rate


class PoissonArrivals(Turnover):
    """Newcomers join one after another, after independent exponential gaps, in a random order of the devices."""

    kind: Literal["poisson"] = "poisson"
    rate: Annotated[PerSecond, AfterValidator(_positive)]
    """mean arrivals per unit of time."""
    newcomers: int | None = Field(default=None, ge=1)
    """how many join in all; None for half of the devices, rounded down."""

    def check(self, devices: int) -> None:
        if self.newcomers is not None and self.newcomers > devices:
            raise ScenarioError(f"population.arrivals.newcomers is {self.newcomers}; allowed are 1 to {devices} (all devices)")

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        count = devices // 2 if self.newcomers is None else self.newcomers
        gaps = streams.generator("world/arrivals/gap").exponential(1 / self.rate, count)
        arrival = np.zeros(devices)
        arrival[streams.generator("world/arrivals").permutation(devices)[:count]] = np.rint(np.cumsum(gaps) / TICK_S) * TICK_S
        return arrival


class ScheduledArrivals(_Schedule):
    """One newcomer joins at each of the given times."""

    key = "population.arrivals"

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        return self.put_into(np.zeros(devices))


class ArrivalsFromFile(_TimesFromFile):
    """When each device joins stands in a column of a table; one with 0 or an empty cell is there from the start."""

    key = "population.arrivals"

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        return self.times(devices, root, 0.0)


class ExponentialStays(Turnover):
    """A device stays for an exponential time from its arrival; in the same world a larger share only adds leavers."""

    kind: Literal["exponential"] = "exponential"
    mean_stay: PositiveSeconds
    """of those that leave."""
    share: float = Field(default=1.0, gt=0.0, le=1.0)
    """of the devices that ever leave."""

    def draw(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        leaving = streams.generator("world/departures").permutation(len(arrival))[: round(self.share * len(arrival))]
        uniforms = streams.uniforms("world/departures/stay", leaving).tolist()
        stay = np.array([-math.log(one) for one in uniforms]) * self.mean_stay  # numpy's has other last bits with AVX-512
        departure = np.full(len(arrival), np.inf)
        departure[leaving] = arrival[leaving] + np.maximum(1.0, np.rint(stay / TICK_S)) * TICK_S
        return departure


class ScheduledDepartures(_Schedule):
    """One device leaves at each of the given times."""

    key = "population.departures"

    def draw(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        return _after(arrival, self.put_into(np.full(len(arrival), np.inf)))


class DeparturesFromFile(_TimesFromFile):
    """When each device leaves for good stands in a column of a table; one with an empty cell stays."""

    key = "population.departures"

    def draw(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        return _after(arrival, self.times(len(arrival), root, np.inf))


def _after(arrival: Floats, departure: Floats) -> Floats:
    for device in np.flatnonzero(departure <= arrival).tolist():
        times = f"leaves at {departure[device]:.12g} s but arrives at {arrival[device]:.12g} s"
        raise ScenarioError(f"population.departures: device {device} {times}; allowed are times after its arrival")
    return departure
