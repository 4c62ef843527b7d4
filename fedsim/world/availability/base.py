"""When a device can be reached: what a path of availability answers, and what a scenario's kind of it must have.

A path is a pure function of (seed, device): ``span(device, time)`` answers for any time in any order, and the answer never
depends on what was asked before. One who asks every second and one who asks once at the end see the same path.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds
from fedsim.streams import Streams
from fedsim.world.calendar import Calendar
from fedsim.world.phases import Phases, Span

_GOLDEN = (5**0.5 - 1) / 2


class Availability(Protocol):
    """The paths of a whole population. Who inherits it and has ``span`` has all; the rest is there to be made faster."""

    @abstractmethod
    def span(self, device: int, time: float) -> Span:
        """The phase that ``device`` is in at ``time`` (s): it begins then or before, and ends later."""

    def next_on(self, device: int, time: float) -> float:
        """The first time at or after ``time`` at which ``device`` is on; ``inf`` if it never comes back."""
        while time < math.inf and not (span := self.span(device, time)).on:
            time = span.end
        return time

    def on(self, devices: NDArray[np.int64], time: float) -> NDArray[np.bool_]:
        """Which of ``devices``, all different, are on at ``time`` (s); bool, as many. What their ``span`` says, at once."""
        return np.array([self.span(device, time).on for device in devices.tolist()], dtype=np.bool_)


class AvailabilityModel(Spec):
    """The base of every availability: when devices can be reached. It has ``build``, or ``build_on`` if it knows days."""

    kind: str

    def build(self, streams: Streams, devices: int, root: Path | None) -> Availability:
        """The paths of so many devices; draws from streams ``world/...``, files are sought under ``root``."""
        raise NotImplementedError

    def build_on(self, streams: Streams, devices: int, root: Path | None, calendar: Calendar) -> Availability:
        """The same, where it matters which time of day it is where each device is; this is what a run calls."""
        return self.build(streams, devices, root)


class AlwaysOn(AvailabilityModel):
    """Every device can be reached at any time."""

    kind: Literal["always"] = "always"

    def build(self, streams: Streams, devices: int, root: Path | None) -> "AlwaysOn":
        """The spec is its own path."""
        return self

    def span(self, device: int, time: float) -> Span:
        """One phase without end."""
        return Span(True, 0.0, math.inf)

    def next_on(self, device: int, time: float) -> float:
        """Now."""
        return time

    def on(self, devices: NDArray[np.int64], time: float) -> NDArray[np.bool_]:
        """All of them."""
        return np.ones(len(devices), dtype=np.bool_)


class Renewal(AvailabilityModel):
    """On and off phases of exponential length, independent between devices."""

    kind: Literal["renewal"] = "renewal"
    mean_on: PositiveSeconds
    mean_off: PositiveSeconds

    def build(self, streams: Streams, devices: int, root: Path | None) -> Phases:
        """Draws from ``world/availability``."""
        return Phases(streams, "world/availability", self.mean_on, self.mean_off, devices)


def changes(span: Callable[[int, float], Span], devices: NDArray[np.int64], end: float, most: int) -> dict[str, NDArray[Any]]:
    """Each device's state at time 0, and every change of it up to ``end`` (s), in order of devices and times.

    Of more than ``most`` rows whole devices are left out, evenly over their numbers.

    Returns:
        ``device`` int64, ``time`` (s) float64 and ``on`` bool, [rows] each.
    """
    found: dict[int, list[tuple[float, bool]]] = {}
    rows = 0
    spread = np.argsort(np.arange(len(devices)) * _GOLDEN % 1, kind="stable")  # any beginning of it is spread evenly
    for device in devices[spread].tolist():
        own = _changes_of(span, device, end, most - rows)
        rows += len(own)
        if rows > most:
            break
        found[device] = own
    times = [(device, time, on) for device in sorted(found) for time, on in found[device]]
    return {
        "device": np.array([device for device, _, _ in times], dtype=np.int64),
        "time": np.array([time for _, time, _ in times], dtype=np.float64),
        "on": np.array([on for _, _, on in times], dtype=np.bool_),
    }


def _changes_of(span: Callable[[int, float], Span], device: int, end: float, most: int) -> list[tuple[float, bool]]:
    """The changes of one device, not many more than ``most``; an off phase may follow another one."""
    own: list[tuple[float, bool]] = []
    time = 0.0
    while time <= end and len(own) <= most:
        on, _, until = span(device, time)
        if not own or own[-1][1] != on:
            own.append((time, on))
        if until <= time:  # a path of the user's own that does not move on
            break
        time = until
    return own
