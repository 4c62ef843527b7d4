"""When devices leave the population for good: after a stay of random length, or by a schedule."""

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds
from fedsim.simulation import TICK_S
from fedsim.streams import Streams
from fedsim.world.schedule import Schedule, TimesFromFile


class ExponentialStays(Spec):
    """A device stays for an exponential time, counted from its arrival.

    Who ever leaves is the first of a random order of the devices, so with a larger share in the same world the same ones
    leave at the same times, and more.

    Attributes:
        mean_stay: of those that leave.
        share: of the devices that ever leave.
    """

    kind: Literal["exponential"] = "exponential"
    mean_stay: PositiveSeconds
    share: float = Field(default=1.0, gt=0.0, le=1.0)

    def check(self, devices: int) -> None:
        """Any number of devices will do."""

    def draw(self, streams: Streams, arrival: NDArray[np.float64], root: Path | None) -> NDArray[np.float64]:
        """When each device leaves (s), inf for never, float64 [devices].

        Draws from ``world/departures`` and ``world/departures/stay``.
        """
        devices = len(arrival)
        leaving = streams.generator("world/departures").permutation(devices)[: round(self.share * devices)]
        uniforms = streams.uniforms("world/departures/stay", leaving).tolist()
        stay = np.array([-math.log(one) for one in uniforms]) * self.mean_stay  # numpy's has other last bits with AVX-512
        departure = np.full(devices, np.inf)
        departure[leaving] = arrival[leaving] + np.maximum(1.0, np.rint(stay / TICK_S)) * TICK_S
        return departure


class ScheduledDepartures(Schedule):
    """One device leaves at each of the given times; which they are is said, or chosen at random among those that are there."""

    def check(self, devices: int) -> None:
        """Refuse a schedule that does not fit so many devices.

        Raises:
            ScenarioError: names the key, the value and what is allowed.
        """
        self.check_devices("population.departures", devices)

    def draw(self, streams: Streams, arrival: NDArray[np.float64], root: Path | None) -> NDArray[np.float64]:
        """When each device leaves (s), inf for never, float64 [devices]; draws from ``world/departures`` if none are named.

        Raises:
            ScenarioError: a device would leave before it has arrived, or nobody is there who could leave.
        """
        departure = np.full(len(arrival), np.inf)
        if self.devices is not None:
            departure[self.devices] = self.ticks()
            return _after(arrival, departure)
        order = streams.generator("world/departures").permutation(len(arrival))
        # In order of time nobody who could leave now loses that later, so whoever is taken, the choice gets as far as any.
        for time in np.sort(self.ticks()):
            candidates = np.flatnonzero((arrival[order] < time) & (departure[order] == np.inf))
            if not len(candidates):
                arrived = int((arrival < time).sum())
                raise ScenarioError(
                    f"population.departures.times has a departure at {time:.12g} s, when no device is there to leave; "
                    f"allowed are at most {arrived} by then, one for each device that has arrived"
                )
            departure[order[candidates[0]]] = time
        return departure


class DeparturesFromFile(TimesFromFile):
    """When each device leaves for good stands in a column of a table; one with an empty cell stays."""

    def draw(self, streams: Streams, arrival: NDArray[np.float64], root: Path | None) -> NDArray[np.float64]:
        """When each device leaves (s), inf for never, float64 [devices].

        Raises:
            ScenarioError: a device would leave before it has arrived.
        """
        return _after(arrival, self.by_device("population.departures", len(arrival), root, np.inf))


def _after(arrival: NDArray[np.float64], departure: NDArray[np.float64]) -> NDArray[np.float64]:
    """The departures, if all are after the arrivals."""
    for device in np.flatnonzero(departure <= arrival).tolist():
        raise ScenarioError(
            f"population.departures: device {device} leaves at {departure[device]:.12g} s but arrives at "
            f"{arrival[device]:.12g} s; allowed are times after its arrival"
        )
    return departure


DEPARTURES = Registry.of("departure", ExponentialStays, ScheduledDepartures, DeparturesFromFile, by_device=True)
DeparturesSpec = Annotated[ExponentialStays | ScheduledDepartures | DeparturesFromFile, DEPARTURES]
