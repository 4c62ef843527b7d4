"""When newcomers join the population: at the times of a Poisson process, or by a schedule. All others are there from time 0."""

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from fedsim.errors import ScenarioError
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import PerSecond
from fedsim.simulation import TICK_S
from fedsim.streams import Streams
from fedsim.world.schedule import Schedule, TimesFromFile


def _positive(rate: float) -> float:
    if not 0 < rate < math.inf:
        raise PydanticCustomError("quantity", "a rate of arrivals must be above 0 /s and finite")
    return rate


class PoissonArrivals(Spec):
    """Newcomers join one after another, after exponential gaps that do not depend on each other.

    They are the first of a random order of the devices, so with more newcomers in the same world the first ones are the same.

    Attributes:
        rate: how many join per unit of time on average.
        newcomers: how many join in all; None for half of the devices, rounded down.
    """

    kind: Literal["poisson"] = "poisson"
    rate: Annotated[PerSecond, AfterValidator(_positive)]
    newcomers: int | None = Field(default=None, ge=1)

    def check(self, devices: int) -> None:
        """Refuse more newcomers than devices.

        Raises:
            ScenarioError: names the key, the value and what is allowed.
        """
        if self.newcomers is not None and self.newcomers > devices:
            raise ScenarioError(f"population.arrivals.newcomers is {self.newcomers}; allowed are 1 to {devices} (all devices)")

    def draw(self, streams: Streams, devices: int, root: Path | None) -> NDArray[np.float64]:
        """When each device joins (s), float64 [devices]; draws from ``world/arrivals`` and ``world/arrivals/gap``."""
        count = devices // 2 if self.newcomers is None else self.newcomers
        gaps = streams.generator("world/arrivals/gap").exponential(1 / self.rate, count)
        arrival = np.zeros(devices)
        arrival[streams.generator("world/arrivals").permutation(devices)[:count]] = np.rint(np.cumsum(gaps) / TICK_S) * TICK_S
        return arrival


class ScheduledArrivals(Schedule):
    """One newcomer joins at each of the given times; which devices they are is said, or chosen at random."""

    def check(self, devices: int) -> None:
        """Refuse a schedule that does not fit so many devices.

        Raises:
            ScenarioError: names the key, the value and what is allowed.
        """
        self.check_devices("population.arrivals", devices)

    def draw(self, streams: Streams, devices: int, root: Path | None) -> NDArray[np.float64]:
        """When each device joins (s), float64 [devices]; draws from ``world/arrivals`` if no devices are named."""
        named = self.devices
        newcomers = streams.generator("world/arrivals").permutation(devices)[: len(self.times)] if named is None else named
        arrival = np.zeros(devices)
        arrival[newcomers] = self.ticks()
        return arrival


class ArrivalsFromFile(TimesFromFile):
    """When each device joins stands in a column of a table; one with 0 or an empty cell is there from the start."""

    def draw(self, streams: Streams, devices: int, root: Path | None) -> NDArray[np.float64]:
        """When each device joins (s), float64 [devices]."""
        return self.by_device("population.arrivals", devices, root, 0.0)


ARRIVALS = Registry.of("arrival", PoissonArrivals, ScheduledArrivals, ArrivalsFromFile, by_device=True)
ArrivalsSpec = Annotated[PoissonArrivals | ScheduledArrivals | ArrivalsFromFile, ARRIVALS]
