"""Lifetimes of devices. A device is present from its arrival to just before its departure."""

import math
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.world.availability import Availability
from fedsim.world.phases import Span


class Turnover(Spec):
    """Base of the models of ``population.arrivals`` and ``population.departures``.

    A model draws the times at which devices join a run, or leave it for good.
    """

    kind: str

    def check(self, key: str, devices: int) -> None:
        """Raise an error if the model does not fit the devices, such as an index of no device.

        Args:
            key: the key of the scenario that has the model, for the error message.
            devices: number of devices.

        Raises:
            ScenarioError: the model names a device that does not exist or names a device twice, or
                more devices are to join than exist.
        """

    def draw(
        self, key: str, streams: Streams, arrival: Floats, usual: float, root: Path | None
    ) -> Floats:
        """Draw the times of arrival, or of departure, of all devices.

        Args:
            key: the key of the scenario that has the model, for error messages.
            streams: random streams.
            arrival: arrival of each device (s), float64 [devices]. A model of departures receives
                the drawn arrivals, a model of arrivals receives zeros.
            usual: time of a device to which the model gives none (s): 0 for arrivals, infinity for
                departures.
            root: folder of data files; None for the working directory.

        Returns:
            The times (s), float64 [devices].
        """
        raise NotImplementedError


_KINDS = "fedsim.toolbox.worlds.lifetimes"
_ARRIVALS = {
    "poisson": (
        f"{_KINDS}:PoissonArrivals",
        "newcomers join one after another, after exponential gaps",
    ),
    "schedule": (f"{_KINDS}:Schedule", "one newcomer joins at each of the given times"),
    "file": (
        f"{_KINDS}:TimesFromFile",
        "a column of a table has the time at which each device joins",
    ),
}
_DEPARTURES = {
    "exponential": (
        f"{_KINDS}:ExponentialStays",
        "a device stays for an exponential time, counted from its arrival",
    ),
    "schedule": (f"{_KINDS}:Schedule", "one device leaves at each of the given times"),
    "file": (
        f"{_KINDS}:TimesFromFile",
        "a column of a table has the time at which each device leaves for good",
    ),
}
ARRIVALS = Registry("arrival", "", _ARRIVALS)
DEPARTURES = Registry("departure", "", _DEPARTURES)
ArrivalsSpec = Annotated[Turnover, KindField(ARRIVALS, by_device=True)]
DeparturesSpec = Annotated[Turnover, KindField(DEPARTURES, by_device=True)]


class Bounded:
    """Availability in which a device is unreachable before its arrival and after its departure.

    An off phase may be followed by another off phase, so a device need not be on after an off phase.

    Args:
        within: availability without arrivals and departures.
        arrival: arrival of each device (s), float64 [devices].
        departure: departure of each device (s), float64 [devices]; infinity for none.
    """

    def __init__(self, within: Availability, arrival: Floats, departure: Floats) -> None:
        self._within = within
        self._arrival = arrival
        self._departure = departure

    def span(self, device: int, time: float) -> Span:
        arrival = self._arrival.item(device)
        departure = self._departure.item(device)
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
        on: Flags = (self._arrival[devices] <= time) & (time < self._departure[devices])
        on[on] = self._within.on(devices[on], time)
        return on

    def spans(self, devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        arrival = self._arrival[devices]
        departure = self._departure[devices]
        on = np.zeros(len(devices), dtype=np.bool_)
        end = np.where(times < arrival, arrival, math.inf)
        present = (arrival <= times) & (times < departure)
        on[present], until = self._within.spans(devices[present], times[present])
        end[present] = np.minimum(until, departure[present])
        return on, end


def bounded(within: Availability, arrival: Floats, departure: Floats) -> Availability:
    """Return an availability in which devices are unreachable before arrival and after departure.

    The result is ``within`` itself if all devices are present throughout.

    Args:
        within: availability without arrivals and departures.
        arrival: arrival of each device (s), float64 [devices].
        departure: departure of each device (s), float64 [devices]; infinity for none.
    """
    if arrival.any() or (departure < math.inf).any():
        return Bounded(within, arrival, departure)
    return within


class LifetimesState(TypedDict):
    """State of ``Lifetimes`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        arrived, left: count of arrivals, and of departures, that were recorded so far.
        waiting: heap of (time (s), device) for devices that have arrived and were never available;
            the time is that at which the device first becomes available.
    """

    arrived: int
    left: int
    waiting: list[tuple[float, int]]


class Lifetimes:
    """Part of a run that records arrivals and departures of devices, and reports arrivals.

    An arrival is reported to the strategy when the device is first available. An arrival at time 0
    is neither recorded nor reported.

    Args:
        simulation: the clock.
        arrival: arrival of each device (s), float64 [devices].
        departure: departure of each device (s), float64 [devices].
        availability: availability of the devices.
        on_arrival: function that is called with the index of a newly arrived device when it first
            becomes available.
    """

    def __init__(
        self,
        simulation: Simulation,
        arrival: Floats,
        departure: Floats,
        availability: Availability,
        on_arrival: Callable[[int], None],
    ) -> None:
        self._simulation = simulation
        self._arrival = arrival
        self._departure = departure
        self._availability = availability
        self._on_arrival = on_arrival
        # devices and their times, in order of time; the counts say how many have arrived and left
        self._newcomers, self._arrivals = _in_order(arrival, arrival > 0)
        self._leavers, self._departures = _in_order(departure, departure < math.inf)
        self._arrival_count = 0
        self._departure_count = 0
        # heap of (time (s) at which a newly arrived device first becomes available, device)
        self._waiting: list[tuple[float, int]] = []
        simulation.env.declare_alarm("arrival", self._set_arrival)
        simulation.env.declare_alarm("departure", self._set_departure)
        self._await_arrival()
        self._await_departure()

    def present(self, time: float) -> Flags:
        """Whether each device has arrived and not departed at ``time`` (s); bool [devices]."""
        return (self._arrival <= time) & (time < self._departure)

    def snapshot(self) -> LifetimesState:
        return {
            "arrived": self._arrival_count,
            "left": self._departure_count,
            "waiting": self._waiting,
        }

    def restore(self, state: LifetimesState) -> None:
        self._arrival_count = state["arrived"]
        self._departure_count = state["left"]
        self._waiting = state["waiting"]

    def _set_arrival(self, number: int, when: float) -> None:
        if when < math.inf:
            self._simulation.wake(("arrival", number), when, self._arrive)

    def _set_departure(self, number: int, when: float) -> None:
        if when < math.inf:
            self._simulation.wake(("departure", number), when, self._depart)

    def _await_arrival(self) -> None:
        """Set the alarm for the next arrival, or for an arrived device that becomes available."""
        when = self._arrivals.item(self._arrival_count)
        if self._waiting:
            when = min(when, self._waiting[0][0])
        self._set_arrival(self._arrival_count, when)

    def _await_departure(self) -> None:
        self._set_departure(self._departure_count, self._departures.item(self._departure_count))

    def _arrive(self) -> None:
        """Record devices that arrive now, and report arrived devices that become available now."""
        now = self._simulation.now
        # ``_arrivals`` and ``_newcomers``: times and devices of all arrivals, in order of time
        while self._arrivals.item(self._arrival_count) <= now:
            device = self._newcomers.item(self._arrival_count)
            self._arrival_count += 1
            self._simulation.record("arrival", {"device": device})
            reachable_at = self._availability.next_on(device, now)
            if reachable_at < math.inf:  # the device is reported when it becomes available
                heappush(self._waiting, (reachable_at, device))
        while self._waiting and self._waiting[0][0] <= now:
            _, device = heappop(self._waiting)
            self._on_arrival(device)
        self._await_arrival()

    def _depart(self) -> None:
        while self._departures.item(self._departure_count) <= self._simulation.now:
            device = self._leavers.item(self._departure_count)
            self._simulation.record("departure", {"device": device})
            self._departure_count += 1
        self._await_departure()


def _in_order(times: Floats, selection: Flags) -> tuple[Ints, Floats]:
    """Sort selected devices by time, then by index.

    Args:
        times: time of each device (s), float64 [devices].
        selection: whether each device is selected, bool [devices].

    Returns:
        The selected devices in order, int64 [n], and their times followed by infinity (s),
        float64 [n + 1].
    """
    devices = np.flatnonzero(selection)
    devices = devices[np.argsort(times[devices], kind="stable")]
    return devices, np.append(times[devices], math.inf)
