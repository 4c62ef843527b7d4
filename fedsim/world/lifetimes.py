"""Newcomers and those who leave for good: when, what that does to availability, and who is told.

A device is there from its arrival up to but not including its departure, both columns of the population. Nothing is built
for a device before it comes: all arrivals share one wake-up, and so do all departures.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from fedsim.arrays import Flags, Floats, Ints
from fedsim.errors import ScenarioError
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import PerSecond, PositiveSeconds, Seconds
from fedsim.simulation import TICK_S, Simulation, on_grid
from fedsim.streams import Streams
from fedsim.world.availability import Availability, spans_of
from fedsim.world.distributions import FileColumn
from fedsim.world.phases import Span


class Turnover(Spec):
    """The base of arrivals and departures. ``draw`` tells when each device joins, or leaves (s); float64 [devices]."""

    key: ClassVar[str]

    def check(self, devices: int) -> None:
        """Raise ``ScenarioError`` if this does not fit a population of so many devices."""


class _Schedule(Turnover):
    """One device at each of the given times.

    Attributes:
        times: in any order; each is for one device.
        devices: the device of each time, none twice; None for a random choice.
    """

    kind: Literal["schedule"] = "schedule"
    times: list[PositiveSeconds] = Field(min_length=1)
    devices: list[int] | None = None

    def ticks(self) -> Floats:
        """The times on the clock's grid (s), in the order given."""
        return np.array([on_grid(time) for time in self.times])

    def check(self, devices: int) -> None:
        if len(self.times) > devices:
            raise ScenarioError(f"{self.key}.times has {len(self.times)} times; allowed are at most {devices}, one a device")
        named = self.devices or []
        if self.devices is not None and len(named) != len(self.times):
            raise ScenarioError(f"{self.key}.devices has {len(named)} devices for {len(self.times)} times; give one for each")
        for device, count in Counter(named).items():
            if not 0 <= device < devices:
                raise ScenarioError(f"{self.key}.devices names device {device}; allowed are 0 to {devices - 1}")
            if count > 1:
                raise ScenarioError(f"{self.key}.devices names device {device} twice; allowed is once")


class _TimesFromFile(FileColumn, Turnover):
    def times(self, devices: int, root: Path | None, empty: float) -> Floats:
        """The times on the clock's grid (s), float64 [devices]; ``empty`` where there is none. ``DataError``: malformed."""
        return np.array([on_grid(time) for time in self.cells(self.key, devices, root, Seconds, empty=empty).tolist()])


def _positive(rate: float) -> float:
    if not 0 < rate < math.inf:
        raise PydanticCustomError("quantity", "a rate of arrivals must be above 0 /s and finite")
    return rate


class PoissonArrivals(Turnover):
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
        if self.newcomers is not None and self.newcomers > devices:
            raise ScenarioError(f"population.arrivals.newcomers is {self.newcomers}; allowed are 1 to {devices} (all devices)")

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        count = devices // 2 if self.newcomers is None else self.newcomers
        gaps = streams.generator("world/arrivals/gap").exponential(1 / self.rate, count)
        arrival = np.zeros(devices)
        arrival[streams.generator("world/arrivals").permutation(devices)[:count]] = np.rint(np.cumsum(gaps) / TICK_S) * TICK_S
        return arrival


class ScheduledArrivals(_Schedule):
    """One newcomer joins at each of the given times; which devices they are is said, or chosen at random."""

    key = "population.arrivals"

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        named = self.devices
        newcomers = streams.generator("world/arrivals").permutation(devices)[: len(self.times)] if named is None else named
        arrival = np.zeros(devices)
        arrival[newcomers] = self.ticks()
        return arrival


class ArrivalsFromFile(_TimesFromFile):
    """When each device joins stands in a column of a table; one with 0 or an empty cell is there from the start."""

    key = "population.arrivals"

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Floats:
        return self.times(devices, root, 0.0)


ARRIVALS = Registry.of("arrival", PoissonArrivals, ScheduledArrivals, ArrivalsFromFile, by_device=True)
ArrivalsSpec = Annotated[PoissonArrivals | ScheduledArrivals | ArrivalsFromFile, ARRIVALS]


class ExponentialStays(Turnover):
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

    def draw(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        leaving = streams.generator("world/departures").permutation(len(arrival))[: round(self.share * len(arrival))]
        uniforms = streams.uniforms("world/departures/stay", leaving).tolist()
        stay = np.array([-math.log(one) for one in uniforms]) * self.mean_stay  # numpy's has other last bits with AVX-512
        departure = np.full(len(arrival), np.inf)
        departure[leaving] = arrival[leaving] + np.maximum(1.0, np.rint(stay / TICK_S)) * TICK_S
        return departure


class ScheduledDepartures(_Schedule):
    """One device leaves at each of the given times; which they are is said, or chosen at random among those that are there."""

    key = "population.departures"

    def draw(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        """``ScenarioError``: a device would leave before it has arrived, or nobody is there who could leave."""
        departure = np.full(len(arrival), np.inf)
        if self.devices is not None:
            departure[self.devices] = self.ticks()
            return _after(arrival, departure)
        order = streams.generator("world/departures").permutation(len(arrival))
        # In order of time nobody who could leave now loses that later, so whoever is taken, the choice gets as far as any.
        for time in np.sort(self.ticks()):
            candidates = np.flatnonzero((arrival[order] < time) & (departure[order] == np.inf))
            if not len(candidates):
                raise ScenarioError(
                    f"population.departures.times has a departure at {time:.12g} s, when no device is there to leave; allowed "
                    f"are at most {int((arrival < time).sum())} by then, one for each device that has arrived"
                )
            departure[order[candidates[0]]] = time
        return departure


class DeparturesFromFile(_TimesFromFile):
    """When each device leaves for good stands in a column of a table; one with an empty cell stays."""

    key = "population.departures"

    def draw(self, streams: Streams, arrival: Floats, root: Path | None) -> Floats:
        return _after(arrival, self.times(len(arrival), root, np.inf))


def _after(arrival: Floats, departure: Floats) -> Floats:
    for device in np.flatnonzero(departure <= arrival).tolist():
        raise ScenarioError(
            f"population.departures: device {device} leaves at {departure[device]:.12g} s but arrives at "
            f"{arrival[device]:.12g} s; allowed are times after its arrival"
        )
    return departure


DEPARTURES = Registry.of("departure", ExponentialStays, ScheduledDepartures, DeparturesFromFile, by_device=True)
DeparturesSpec = Annotated[ExponentialStays | ScheduledDepartures | DeparturesFromFile, DEPARTURES]


class Bounded:
    """Paths of availability cut to each device's lifetime: off before its arrival, and off for good from its departure.

    An off phase may follow another one (not yet arrived, then arrived but away); on phases never touch, if those of the
    paths within do not. Lifetimes are in s, float64 [devices].
    """

    def __init__(self, within: Availability, arrival: Floats, departure: Floats) -> None:
        self._within, self._arrival, self._departure = within, arrival, departure

    def span(self, device: int, time: float) -> Span:
        arrival, departure = self._arrival.item(device), self._departure.item(device)
        if time < arrival:
            return Span(False, 0.0, arrival)
        if time >= departure:
            return Span(False, departure, math.inf)
        on, start, end = self._within.span(device, time)
        return Span(on, max(start, arrival), min(end, departure))

    def next_on(self, device: int, time: float) -> float:
        when = self._within.next_on(device, max(time, float(self._arrival[device])))
        return when if when < self._departure[device] else math.inf

    def on(self, devices: Ints, time: float) -> Flags:
        there: Flags = (self._arrival[devices] <= time) & (time < self._departure[devices])
        there[there] = self._within.on(devices[there], time)
        return there

    def spans(self, devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        arrival, departure = self._arrival[devices], self._departure[devices]
        on, end = np.zeros(len(devices), dtype=np.bool_), np.where(times < arrival, arrival, math.inf)
        there = (arrival <= times) & (times < departure)
        on[there], until = spans_of(self._within)(devices[there], times[there])
        end[there] = np.minimum(until, departure[there])
        return on, end


def bounded(within: Availability, arrival: Floats, departure: Floats) -> Availability:
    """``within``, cut to lifetimes (s, float64 [devices]); untouched if everybody is there from 0 and for ever."""
    return Bounded(within, arrival, departure) if arrival.any() or (departure < math.inf).any() else within


class Lifetimes:
    """Records who joins and who leaves, and tells of newcomers when they can first be reached.

    Emits ``arrival`` and ``departure`` with the ``device``, in order of time, then device; a device that is there from time 0
    does not arrive. ``on_arrival`` is called with each newcomer at the first instant in which it can be reached, be it its
    arrival or later; never for one who leaves before.
    """

    def __init__(
        self,
        simulation: Simulation,
        arrival: Floats,
        departure: Floats,
        availability: Availability,
        on_arrival: Callable[[int], None],
    ) -> None:
        self._simulation, self._arrival, self._departure = simulation, arrival, departure
        self._availability, self._on_arrival = availability, on_arrival
        self._newcomers, self._arrivals = _in_order(arrival, arrival > 0)
        self._leavers, self._departures = _in_order(departure, departure < math.inf)
        self._arrived = self._left = 0
        self._waiting: list[tuple[float, int]] = []  # a heap: newcomers who have arrived but cannot be reached yet, and when
        self._arm("arrival")
        self._arm("departure")

    def present(self, time: float) -> Flags:
        """Devices that have arrived and not left at ``time`` (s), on or off; bool [devices]."""
        return (self._arrival <= time) & (time < self._departure)

    def snapshot(self) -> dict[str, Any]:
        return {"arrived": self._arrived, "left": self._left, "waiting": self._waiting}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._arrived, self._left, self._waiting = state["arrived"], state["left"], state["waiting"]

    def rearm(self, kind: str, number: int, when: float) -> None:
        self._simulation.wake((kind, number), when, self._arrive if kind == "arrival" else self._depart)

    def _arm(self, kind: str) -> None:
        """Wake up at the next arrival, or when a newcomer who is waiting comes on; or at the next departure."""
        number, when = self._left, self._departures.item(self._left)
        if kind == "arrival":
            number = self._arrived
            when = min(self._waiting[0][0] if self._waiting else math.inf, self._arrivals.item(number))
        if when < math.inf:
            self.rearm(kind, number, when)

    def _arrive(self) -> None:
        now = self._simulation.now
        while self._arrivals.item(self._arrived) <= now:
            device = self._newcomers.item(self._arrived)
            self._arrived += 1
            self._simulation.emit("arrival", device=device)
            reachable = self._availability.next_on(device, now)
            if reachable < math.inf:
                heappush(self._waiting, (reachable, device))
        while self._waiting and self._waiting[0][0] <= now:
            self._on_arrival(heappop(self._waiting)[1])
        self._arm("arrival")

    def _depart(self) -> None:
        while self._departures.item(self._left) <= self._simulation.now:
            self._simulation.emit("departure", device=self._leavers.item(self._left))
            self._left += 1
        self._arm("departure")


def _in_order(times: Floats, chosen: Flags) -> tuple[Ints, Floats]:
    """The chosen devices in order of their times, then of their numbers; and these times, with infinity at the end."""
    devices = np.flatnonzero(chosen)
    devices = devices[np.argsort(times[devices], kind="stable")]
    return devices, np.append(times[devices], math.inf)
