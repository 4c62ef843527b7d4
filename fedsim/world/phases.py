"""Random phases in which a device is alternately on and off; they depend only on seed and device.

The phase that was last looked up is cached for each device.
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
_ROWS_AT_ONCE = 4_096  # count of devices per block, which bounds memory
_PHASES_AT_ONCE = 128
_LAST_BITS = 2.0**-48  # bound of the relative difference of two implementations of the logarithm
_MOST_PHASES = 10_000_000  # upper bound of a device's phases per look-up, which takes some 10 s


class Span(NamedTuple):
    """Interval in which a device is on, or off: a phase.

    Attributes:
        on: whether the device is on; in ``Availability``, whether it can be reached.
        start: begin of the phase (simulated s).
        end: end of the phase (s), which is not part of the phase; infinity if it does not end.

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
    """On and off phases of devices, which alternate and have random exponential lengths.

    Phases are drawn only up to the times for which a caller asks. The length of a device's phase k
    is its k-th draw from the stream ``purpose``. The phase at time 0 (drawn from ``purpose/first``)
    is on with a probability equal to the long-run share of on time, so that the population starts
    in its steady state.

    Args:
        streams: random streams of the run.
        purpose: name of the stream.
        mean_on: mean length of the phases in which a device is on (s).
        mean_off: mean length of the phases in which a device is off (s).
        devices: number of devices.
    """

    def __init__(
        self, streams: Streams, purpose: str, mean_on: float, mean_off: float, devices: int
    ) -> None:
        self._streams = streams
        self._purpose = purpose
        self._first_purpose = f"{purpose}/first"
        self._means = (mean_off, mean_on)  # indexed by whether the phase is on
        self._share_on = mean_on / (mean_on + mean_off)
        # a look-up that is less time (s) ahead is not checked for too many phases
        self._far_s = _MOST_PHASES * min(mean_on, mean_off)
        self._rows = DeviceRows(devices)
        # Phase of the last look-up in each row of the cache. Before the first look-up, the end is 0,
        # at which no phase ends.
        self._count = np.zeros(self._rows.length, dtype=np.int64)  # index k of the phase
        self._on = np.zeros(self._rows.length, dtype=np.bool_)
        self._start = np.zeros(self._rows.length)
        self._end = np.zeros(self._rows.length)

    def span(self, device: int, time: float) -> Span:
        """Return the on or off phase in which a device is at ``time`` (s), and cache it.

        The phases are drawn one after the other: from the cached phase to later times, and from the
        phase at time 0 to earlier times.
        """
        # the device's row in the arrays that cache a phase of each device
        row = device if self._rows.has_all else int(self._rows_of(np.array([device]))[0])
        start = self._start.item(row)
        end = self._end.item(row)
        if start <= time < end:
            return Span(self._on.item(row), start, end)
        has_cached = end > 0.0
        if not has_cached or time < start:
            count = 0  # index of the phase, from the phase at time 0
            on, start, end = self._first_span(device)
        else:
            count = self._count.item(row)
            on = self._on.item(row)
        if time - end > self._far_s:  # the time may be too many phases ahead
            self.check_walk(device, end, time)
        while time >= end:
            count = count + 1
            on = not on
            start = end
            end += self._length(device, count, on)
        self._count[row] = count
        self._on[row] = on
        self._start[row] = start
        self._end[row] = end
        return Span(on, start, end)

    def _first_span(self, device: int) -> Span:
        """Draw the phase in which a device is at time 0."""
        on = self._streams.uniform(self._first_purpose, device) < self._share_on
        return Span(on, 0.0, self._length(device, 0, on))

    def check_walk(self, device: int, start: float, end: float) -> None:
        """Refuse a look-up for which too many phases of a device would have to be drawn.

        Args:
            device: index of the device.
            start: begin of the interval whose phases would be drawn (s).
            end: end of the interval (s).

        Raises:
            SimulationError: the expected count of phases in the interval exceeds 10 million.
        """
        mean_off, mean_on = self._means
        expected = 2 * (end - start) / sum(self._means)  # two phases for each mean cycle
        if expected > _MOST_PHASES:
            raise SimulationError(
                f"device {device} has {expected:.1g} phases of {mean_on:g} s and {mean_off:g} s "
                f"between {start:g} s and {end:g} s ({self._purpose}); allowed are "
                f"{_MOST_PHASES:.0e}; make them longer"
            )

    def next_on(self, device: int, time: float) -> float:
        """Return the first time (s), not before ``time``, at which a device is in an on phase."""
        span = self.span(device, time)
        return time if span.on else span.end

    def on(self, devices: Ints, time: float) -> Flags:
        """Whether each of different devices is on at ``time`` (s); bool [len(devices)]."""
        return self.spans(devices, np.full(len(devices), time))[0]

    def spans(self, devices: Ints, times: Floats) -> tuple[Flags, Floats]:
        """Return for several devices, each at its own time, whether it is on and until when.

        Args:
            devices: indices of devices, all different, int64 [n].
            times: a time for each device (s), float64 [n].

        Returns:
            Whether each device is on, bool [n], and the end of its phase (s), float64 [n].
        """
        rows = self._rows_of(devices)
        for begin in range(0, len(devices), _ROWS_AT_ONCE):
            piece = slice(begin, begin + _ROWS_AT_ONCE)
            self._walk_to(devices[piece], rows[piece], times[piece])
        return self._on[rows], self._end[rows]

    def _rows_of(self, devices: Ints) -> Ints:
        rows = self._rows.of(devices)
        if len(self._end) < self._rows.length:
            columns = (self._count, self._on, self._start, self._end)
            self._count, self._on, self._start, self._end = map(self._rows.lengthen, columns)
        return rows

    def _length(self, device: int, count: int, on: bool) -> float:
        """Draw the length of phase ``count`` of a device (s)."""
        uniform = self._streams.uniform(self._purpose, device, count)
        ticks = round(-math.log(uniform) * self._means[on] * _TICKS_PER_SECOND)
        return max(TICK_S, ticks / _TICKS_PER_SECOND)

    # look-ups for many devices in one call

    def _walk_to(self, devices: Ints, rows: Ints, times: Floats) -> None:
        """Find for each device the on or off phase in which its time lies, and cache it.

        Args:
            devices: indices of devices, int64 [n].
            rows: row of each device in the stored arrays, int64 [n].
            times: a time for each device (s), float64 [n].
        """
        # the time is before the cached phase, or no phase is cached: a cached phase ends after 0
        is_unknown = (times < self._start[rows]) | (self._end[rows] == 0.0)
        if is_unknown.any():
            self._cache_first(devices[is_unknown], rows[is_unknown])
        end = self._end[rows]
        behind = np.flatnonzero(end <= times)  # positions of devices that need further phases
        if behind.size:  # ``check_walk`` raises if the farthest time is too many phases ahead
            farthest = int(behind[np.argmax(times[behind] - end[behind])])
            self.check_walk(int(devices[farthest]), end.item(farthest), times.item(farthest))
        while behind.size:
            self._walk(devices[behind], rows[behind], times[behind])
            behind = behind[self._end[rows[behind]] <= times[behind]]

    def _cache_first(self, devices: Ints, rows: Ints) -> None:
        """Set the cached phase of each device to its phase at time 0.

        Args:
            devices: indices of devices, int64 [n].
            rows: row of each device in the stored arrays, int64 [n].
        """
        on = self._streams.uniforms(self._first_purpose, devices) < self._share_on
        # one phase of each device, with the index 0; as it begins at time 0, its length is its end
        first_counts = np.zeros((len(devices), 1), dtype=np.int64)
        self._count[rows] = 0
        self._on[rows] = on
        self._start[rows] = 0.0
        self._end[rows] = self._lengths(devices, first_counts, on[:, None])[:, 0]

    def _walk(self, devices: Ints, rows: Ints, times: Floats) -> None:
        """Draw some further phases of each device, and cache the phase nearest to the device's time.

        The count of drawn phases suffices for most devices. The caller repeats the call for devices
        whose cached phase still ends before their time.

        Args:
            devices: indices of devices, int64 [n].
            rows: row of each device in the stored arrays, int64 [n].
            times: a time for each device (s), float64 [n].
        """
        count = self._count[rows]
        on = self._on[rows]
        end = self._end[rows]
        # mean count of phases up to the times; some more are drawn, so that they suffice for most
        expected = float(np.mean(times - end)) / (sum(self._means) / 2)
        ahead = np.arange(1, min(_PHASES_AT_ONCE, int(1.1 * expected) + 4))
        states = on[:, None] ^ (ahead % 2 == 1)  # on and off phases alternate
        # end of the cached phase, and lengths of the next phases; their cumulative sums are the ends
        ends = np.empty((len(devices), len(ahead) + 1))
        ends[:, 0] = end
        ends[:, 1:] = self._lengths(devices, count[:, None] + ahead, states)
        np.cumsum(ends, axis=1, out=ends)
        # Column of the phase in which each device's time lies; the last column if the time is later.
        # It is at least 1, as the caller passes devices whose cached phase ends before their time.
        passed = np.minimum((ends <= times[:, None]).sum(axis=1), len(ahead))
        lines = np.arange(len(devices))  # each device's row of ``ends``
        self._count[rows] = count + passed
        self._on[rows] = on ^ (passed % 2 == 1)
        self._start[rows] = ends[lines, passed - 1]
        self._end[rows] = ends[lines, passed]

    def _lengths(self, devices: Ints, counts: Ints, on: Flags) -> Floats:
        """Draw lengths of several phases of each device (s), equal to ``_length`` to the bit.

        Args:
            devices: indices of devices, int64 [n].
            counts: indices of phases, int64 [n, m].
            on: whether the device is on in each phase, bool [n, m].

        Returns:
            Lengths (s), float64 [n, m].
        """
        uniforms = self._streams.uniforms(self._purpose, devices[:, None], counts)
        means = np.where(on, self._means[1], self._means[0])
        ticks = -np.log(uniforms) * means * _TICKS_PER_SECOND
        # numpy's logarithm may differ in its last bits from that of ``math``, used by ``_length``.
        # If these bits decide how a length is rounded to ticks, ``math`` is used here as well.
        is_tie = np.abs(ticks - np.floor(ticks) - 0.5) <= ticks * _LAST_BITS
        exact = np.array([-math.log(uniform) for uniform in uniforms[is_tie].tolist()])
        ticks[is_tie] = exact * means[is_tie] * _TICKS_PER_SECOND
        lengths: Floats = np.maximum(TICK_S, np.rint(ticks) / _TICKS_PER_SECOND)
        return lengths
