"""Alternating random phases of a device, a pure function of (seed, device), with the phase found
last as a cache.
"""

import math
from typing import NamedTuple

import numpy as np

from fedsim.clock.simulation import TICK_S
from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.world.columns import DeviceRows

_TICKS_PER_SECOND = 1 / TICK_S
_ROWS_AT_ONCE = 4_096  # bounds the memory of a walk for any population
_PHASES_AT_ONCE = 128
_LAST_BITS = 2.0**-48  # more than two logarithms of a number may differ by, as a share of it
_MOST_PHASES = 10_000_000  # of one device in one walk, which then takes some ten seconds


class Span(NamedTuple):
    """One phase of a path.

    Attributes:
        on: whether the device can be reached.
        start: its beginning (s, simulated).
        end: its end (s), which is not part of it; infinity for a phase without end.

    Example:
        >>> from fedsim.plugin import Span
        >>> span = Span(on=True, start=0.0, end=120.0)
        >>> span.on, span.end
        (True, 120.0)
    """

    on: bool
    start: float
    end: float


class Phases:
    """Alternating exponential phases of each device, with mean lengths in s, sampled lazily.

    Phase k of a device is its k-th draw of ``purpose``. The phase at time 0 (drawn from
    ``purpose/first``) is on with the long-run share of on time, so that the population starts in
    its steady state.
    """

    def __init__(
        self, streams: Streams, purpose: str, mean_on: float, mean_off: float, devices: int
    ) -> None:
        self._streams = streams
        self._purpose = purpose
        self._first = f"{purpose}/first"
        self._means = (mean_off, mean_on)
        self._share_on = mean_on / (mean_on + mean_off)
        # before that there are not too many phases
        self._far_s = _MOST_PHASES * min(mean_on, mean_off)
        self._rows = DeviceRows(devices)
        # The phase that each device was last found in, by its row; one that ends at 0 has never
        # been looked for.
        self._count = np.zeros(self._rows.room, dtype=np.int64)
        self._on = np.zeros(self._rows.room, dtype=np.bool_)
        self._start = np.zeros(self._rows.room)
        self._end = np.zeros(self._rows.room)

    def span(self, device: int, time: float) -> Span:
        row = device if self._rows.all else int(self._rows_of(np.array([device]))[0])
        start = self._start.item(row)
        end = self._end.item(row)
        if start <= time < end:
            return Span(self._on.item(row), start, end)
        if time < start or end == 0.0:
            count = 0
            start = 0.0
            on = self._streams.uniform(self._first, device) < self._share_on
            end = self._length(device, 0, on)
        else:
            count = self._count.item(row)
            on = self._on.item(row)
        if time - end > self._far_s:
            self.check_walk(device, end, time)
        while time >= end:
            count = count + 1
            on = not on
            start = end
            end += self._length(device, count, on)
        self._count[row], self._on[row], self._start[row], self._end[row] = count, on, start, end
        return Span(on, start, end)

    def check_walk(self, device: int, start: float, end: float) -> None:
        """Raise ``SimulationError`` if there are too many phases from ``start`` to ``end`` (s)
        to go through.
        """
        expected, (off, on) = 2 * (end - start) / sum(self._means), self._means
        if expected > _MOST_PHASES:
            many = (
                f"{expected:.1g} phases of {on:g} s and {off:g} s between {start:g} s and {end:g} "
                f"s ({self._purpose})"
            )
            raise SimulationError(
                f"device {device} has {many}; allowed are {_MOST_PHASES:.0e}; make them longer"
            )

    def next_on(self, device: int, time: float) -> float:
        span = self.span(device, time)
        return time if span.on else span.end

    def on(self, devices: Ints, time: float) -> Flags:
        return self.spans(devices, np.full(len(devices), time))[0]

    def spans(self, devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        """``span`` of different devices, each at a time of its own (s): whether each is on, and
        until when (s).
        """
        rows = self._rows_of(devices)
        for begin in range(0, len(devices), _ROWS_AT_ONCE):
            piece = slice(begin, begin + _ROWS_AT_ONCE)
            self._bring(devices[piece], rows[piece], times[piece])
        return self._on[rows], self._end[rows]

    def _rows_of(self, devices: Ints) -> Ints:
        rows = self._rows.of(devices)
        if len(self._end) < self._rows.room:
            columns = (self._count, self._on, self._start, self._end)
            self._count, self._on, self._start, self._end = map(self._rows.grown, columns)
        return rows

    def _length(self, device: int, count: int, on: bool) -> float:
        uniform = self._streams.uniform(self._purpose, device, count)
        return max(
            TICK_S,
            round(-math.log(uniform) * self._means[on] * _TICKS_PER_SECOND) / _TICKS_PER_SECOND,
        )

    # Many devices at once.

    def _bring(self, devices: Ints, rows: Ints, time: Floats) -> None:
        start = self._start[rows]
        end = self._end[rows]
        again = (time < start) | (end == 0.0)
        if again.any():
            ask = devices[again]
            row = rows[again]
            on = self._streams.uniforms(self._first, ask) < self._share_on
            self._count[row], self._on[row], self._start[row] = 0, on, 0.0
            self._end[row] = self._lengths(
                ask, np.zeros((len(ask), 1), dtype=np.int64), on[:, None]
            )[:, 0]
            end = self._end[rows]
        behind = np.flatnonzero(end <= time)
        if behind.size:
            first = int(behind[np.argmax(time[behind] - end[behind])])
            self.check_walk(int(devices[first]), end.item(first), time.item(first))
        while behind.size:
            self._walk(devices[behind], rows[behind], time[behind])
            behind = behind[self._end[rows[behind]] <= time[behind]]

    def _walk(self, devices: Ints, rows: Ints, time: Floats) -> None:
        """Take so many phases as will probably bring most of the devices to their times."""
        count = self._count[rows]
        on = self._on[rows]
        end = self._end[rows]
        expected = float(np.mean(time - end)) / (sum(self._means) / 2)
        ahead = np.arange(1, min(_PHASES_AT_ONCE, int(1.1 * expected) + 4))
        states = on[:, None] ^ (ahead % 2 == 1)
        ends = np.empty((len(devices), len(ahead) + 1))
        ends[:, 0], ends[:, 1:] = end, self._lengths(devices, count[:, None] + ahead, states)
        np.cumsum(ends, axis=1, out=ends)
        # the column of the phase that each stops in
        passed = np.minimum((ends <= time[:, None]).sum(axis=1), len(ahead))
        own = np.arange(len(devices))
        self._count[rows], self._on[rows] = count + passed, on ^ (passed % 2 == 1)
        self._start[rows], self._end[rows] = ends[own, passed - 1], ends[own, passed]

    def _lengths(self, devices: Ints, counts: Ints, on: Flags) -> Floats:
        """``_length`` of several phases of each device, to the same bits; float64, shape as
        ``counts``.
        """
        uniforms = self._streams.uniforms(self._purpose, devices[:, None], counts)
        means = np.where(on, self._means[1], self._means[0])
        ticks = -np.log(uniforms) * means * _TICKS_PER_SECOND
        # numpy's own logarithm differs from that of ``math`` in the last bits now and then: where
        # that may matter, it is taken.
        close = np.abs(ticks - np.floor(ticks) - 0.5) <= ticks * _LAST_BITS
        exact = np.array([-math.log(one) for one in uniforms[close].tolist()])
        ticks[close] = exact * means[close] * _TICKS_PER_SECOND
        lengths: Floats = np.maximum(TICK_S, np.rint(ticks) / _TICKS_PER_SECOND)
        return lengths
