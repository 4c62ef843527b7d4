"""Kinds of ``population.arrivals`` and ``departures``: random, scheduled, or from a table."""

import math
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from fedsim.clock.simulation import TICK_S, on_grid
from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.common.units import PerSecond, PositiveSeconds, Seconds
from fedsim.world.distributions import FileColumn
from fedsim.world.lifetimes import Turnover


class Schedule(Turnover):
    """Model of arrivals or departures: one device joins, or leaves, at each of the given times.

    All other devices are present from the start, or never leave.

    Attributes:
        times: the times, in any order.
        devices: for each of the times the device that joins or leaves; no device occurs twice.
    """

    kind: Literal["schedule"] = "schedule"
    times: list[PositiveSeconds] = Field(min_length=1)
    devices: list[int]

    def check(self, key: str, devices: int) -> None:
        if len(self.devices) != len(self.times):
            counts = f"{len(self.devices)} devices for {len(self.times)} times"
            raise ScenarioError(f"{key}.devices has {counts}; give one for each")
        for device, count in Counter(self.devices).items():
            if not 0 <= device < devices:
                raise ScenarioError(
                    f"{key}.devices names device {device}; allowed are 0 to {devices - 1}"
                )
            if count > 1:
                raise ScenarioError(f"{key}.devices names device {device} twice; allowed is once")

    def draw(
        self, key: str, streams: Streams, arrival: Floats, usual: float, root: Path | None
    ) -> Floats:
        times = np.full(len(arrival), usual)
        times[self.devices] = [on_grid(time) for time in self.times]
        return times


class TimesFromFile(FileColumn, Turnover):
    """Model of arrivals or departures: a column of a table has the time of each device.

    An empty cell means that the device is present from the start, or never leaves.
    """

    def draw(
        self, key: str, streams: Streams, arrival: Floats, usual: float, root: Path | None
    ) -> Floats:
        times = self.cells(key, len(arrival), root, Seconds, empty=usual)
        return np.array([on_grid(time) for time in times.tolist()])


def _positive(rate: float) -> float:
    if not 0 < rate < math.inf:
        raise PydanticCustomError("quantity", "a rate of arrivals must be above 0 /s and finite")
    return rate


class PoissonArrivals(Turnover):
    """Model of arrivals: newcomers join one by one, after independent exponential gaps.

    The newcomers are drawn at random; all other devices are present from the start.

    Attributes:
        rate: mean count of arrivals per unit of time.
        newcomers: count of devices that join during the run; None: half of the devices, rounded
            down.
    """

    kind: Literal["poisson"] = "poisson"
    rate: Annotated[PerSecond, AfterValidator(_positive)]
    newcomers: int | None = Field(default=None, ge=1)

    def check(self, key: str, devices: int) -> None:
        if self.newcomers is not None and self.newcomers > devices:
            raise ScenarioError(
                f"{key}.newcomers is {self.newcomers}; allowed are 1 to {devices} (all devices)"
            )

    def draw(
        self, key: str, streams: Streams, arrival: Floats, usual: float, root: Path | None
    ) -> Floats:
        devices = len(arrival)
        count = devices // 2 if self.newcomers is None else self.newcomers
        gaps = streams.generator("world/arrivals/gap").exponential(1 / self.rate, count)
        newcomers = streams.generator("world/arrivals").permutation(devices)[:count]
        times = np.zeros(devices)
        times[newcomers] = np.rint(np.cumsum(gaps) / TICK_S) * TICK_S
        return times


class ExponentialStays(Turnover):
    """Model of departures: a device leaves an exponential time after its arrival.

    The devices that leave are drawn at random. If ``share`` is raised, the same devices leave, and
    more.

    Attributes:
        mean_stay: mean time from arrival to departure.
        share: share of the devices that leave; all others never leave.
    """

    kind: Literal["exponential"] = "exponential"
    mean_stay: PositiveSeconds
    share: float = Field(default=1.0, gt=0.0, le=1.0)

    def draw(
        self, key: str, streams: Streams, arrival: Floats, usual: float, root: Path | None
    ) -> Floats:
        """Draw the devices that leave and the lengths of their stays, at least a tick of the clock.

        The departure of a device that stays is infinite.
        """
        count = round(self.share * len(arrival))
        leaving = streams.generator("world/departures").permutation(len(arrival))[:count]
        uniforms = streams.uniforms("world/departures/stay", leaving).tolist()
        # math.log, as numpy's logarithm differs in its last bits on processors with AVX-512
        stay = np.array([-math.log(uniform) for uniform in uniforms]) * self.mean_stay
        departure = np.full(len(arrival), np.inf)
        stay_ticks = np.maximum(1.0, np.rint(stay / TICK_S))
        departure[leaving] = arrival[leaving] + stay_ticks * TICK_S
        return departure
