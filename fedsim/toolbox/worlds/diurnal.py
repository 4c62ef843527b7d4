"""Devices that come and go by day and night."""

import math
from datetime import time as TimeOfDay  # noqa: N812
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fedsim.arrays import Flags, Floats, Ints
from fedsim.language.units import TICK_S, PositiveSeconds
from fedsim.simulation import on_grid
from fedsim.streams import Streams
from fedsim.world.availability.base import AvailabilityModel
from fedsim.world.calendar import DAY_S, Calendar, seconds_of_day
from fedsim.world.columns import each
from fedsim.world.phases import Span


def _time_of_day(text: str) -> str:
    try:
        TimeOfDay.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("time_of_day", "a time of day such as '02:00' or '22:30:15' is allowed") from None
    return text


TimeText = Annotated[
    str, AfterValidator(_time_of_day), BeforeValidator(lambda v: v.isoformat() if isinstance(v, TimeOfDay) else v)
]


class Diurnal(AvailabilityModel):
    """The share of devices that are on goes up and down with the local hour, as a sinusoid; it is met at every instant.

    Each device draws a number, keeps it for ``lasts``, and draws again; it is on while the share is above what it has drawn. So
    with a long ``lasts`` a device has its habits, on at the same hours for days; with a short one it comes and goes.

    Attributes:
        most, least: the share that is on at the best and at the worst hour.
        peak: the best hour, local time (``population.calendar`` says where the devices are, and which time of day time 0 is).
        lasts: how long a device keeps to what it has drawn.
    """

    kind: Literal["diurnal"] = "diurnal"
    most: float = Field(ge=0.001, le=1.0)
    least: float = Field(ge=0.0, le=0.999)
    peak: TimeText = "02:00"
    lasts: PositiveSeconds = 3600.0

    @model_validator(mode="after")
    def _ordered(self) -> "Diurnal":
        if self.least > self.most:
            raise ValueError(f"'least' is {self.least:g}, above 'most', which is {self.most:g}")
        return self

    def build_on(self, streams: Streams, devices: int, root: Path | None, calendar: Calendar) -> "Tides":
        peak_s = seconds_of_day(TimeOfDay.fromisoformat(self.peak))
        peaks = each(lambda day_s: peak_s - day_s, calendar.day_s())
        return Tides(streams, self.least, self.most, peaks, self.lasts)


class Tides:
    """The paths of ``Diurnal``; ``peak`` is a time at which the share is highest, for each device (s), float64 [devices].

    Time is cut into pieces of one length, at places of each device's own. In a piece a device has one draw u, uniform from 0 to
    1, and is on while the share s(t) is above it: P(on at t) = P(u < s(t)) = s(t), exactly. As s is a sinusoid, that is one
    window a day around the peak. Any instant can be looked at alone.
    """

    def __init__(self, streams: Streams, least: float, most: float, peak: Floats, lasts: float) -> None:
        self._streams = streams
        self._middle, self._swing = (least + most) / 2, (most - least) / 2
        self._peak = peak
        self._lasts = on_grid(lasts)
        self._found: dict[int, Span] = {}  # the phase that each device was last found in, as a cache

    def span(self, device: int, time: float) -> Span:
        last = self._found.get(device)
        if last is not None and last.start <= time < last.end:
            return last
        follows = last is not None and time == last.end > 0
        on, start, end = self._stretch(device, time)
        while end < math.inf:
            other, _, beyond = self._stretch(device, end)
            if other != on:
                break
            end = beyond
        while start > 0 and not follows:  # what follows a phase that was found begins where that ends
            other, before, _ = self._stretch(device, start - max(TICK_S, math.ulp(start)))
            if other != on:
                break
            start = before
        start = time if follows else max(0.0, start)
        self._found[device] = found = Span(on, start, end)
        return found

    def next_on(self, device: int, time: float) -> float:
        span = self.span(device, time)
        return time if span.on else span.end

    def on(self, devices: Ints, time: float) -> Flags:
        first = self._streams.uniforms("world/availability/first", devices)
        into = np.rint(first * self._lasts / TICK_S) * TICK_S  # the first piece, at time 0
        piece = (time + into) // self._lasts
        draws = self._streams.uniforms("world/availability", devices, piece.astype(np.int64))
        half = np.fromiter(map(self._half_window, draws.tolist()), dtype=np.float64, count=len(draws))
        peak = self._peak[devices]
        nearest = peak + (time - peak + DAY_S / 2) // DAY_S * DAY_S
        on: Flags = (nearest - half <= time) & (time < nearest + half) | (half == DAY_S / 2)
        return on

    def _half_window(self, draw: float) -> float:
        """For how long before and after a peak the share is above ``draw`` (s): half a day for always, 0 for never."""
        if self._swing == 0.0:
            return DAY_S / 2 if draw < self._middle else 0.0
        height = (draw - self._middle) / self._swing
        return 0.0 if height >= 1 else DAY_S / 2 if height <= -1 else on_grid(math.acos(height) * DAY_S / (2 * math.pi))

    def _stretch(self, device: int, time: float) -> tuple[bool, float, float]:
        """Whether ``device`` is on at ``time``, and from when to when (s) nothing can change: a piece, or a part of it."""
        into = round(self._streams.uniform("world/availability/first", device) * self._lasts / TICK_S) * TICK_S
        piece = (time + into) // self._lasts
        start, end = piece * self._lasts - into, (piece + 1) * self._lasts - into
        half = self._half_window(self._streams.uniform("world/availability", device, int(piece)))
        if half in (0.0, DAY_S / 2):
            return half > 0, start, end
        peak = self._peak.item(device)
        nearest = peak + (time - peak + DAY_S / 2) // DAY_S * DAY_S
        if time < nearest - half:
            return False, max(start, nearest - DAY_S + half), min(end, nearest - half)
        if time >= nearest + half:
            return False, max(start, nearest + half), min(end, nearest + DAY_S - half)
        return True, max(start, nearest - half), min(end, nearest + half)
