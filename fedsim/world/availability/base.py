"""When a device can be reached: what a path of availability answers, and what a scenario's kind of it must have.

A path is a pure function of (seed, device): ``span(device, time)`` answers for any time in any order, and the answer never
depends on what was asked before. One who asks every second and one who asks once at the end see the same path.
"""

import math
from abc import abstractmethod
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.language.spec import Spec
from fedsim.streams import Streams
from fedsim.world.calendar import Calendar
from fedsim.world.phases import Span


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
