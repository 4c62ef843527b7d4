"""Test whether a link can have carried its messages, if only their begins and ends are known."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from fedsim.common.arrays import Flags, Floats
from fedsim.lab.audit.frames import grain_s

RATE_TOLERANCE = 1 + 1e-9  # factor on a rate that allows for rounding errors


class Stretch(NamedTuple):
    """Interval in which a link, by the records, carried more bytes than its rate allows.

    Attributes:
        begin: begin of the interval (s).
        end: end of the interval (s).
        carried: total size of the messages that lie wholly within the interval (bytes).
    """

    begin: float
    end: float
    carried: float


def time_tolerance_s(end: Floats) -> Floats:
    """Return by how much (s) each message may end earlier than its link's rate allows.

    One reason is the rounding of simulated times. The other one is a deadline: a message that would
    end some clock ticks after the deadline counts as complete at the deadline.

    Args:
        end: ends of the messages (s); float64 [messages].

    Returns:
        Tolerances (s); float64 [messages].
    """
    return 12 * grain_s(end)


class LinkCapacity(ABC):
    """Base class of a link's rate over time, to test whether it can have carried a run's messages.

    The subclasses are ``Rate``, a step function of time, and ``TraceRate``, which follows a trace.
    """

    @abstractmethod
    def capacity_until(self, until: Floats) -> Floats:
        """Return how many bytes the link can carry from time 0 to each of the given times.

        Periods of infinite rate count as 0 bytes. ``is_unlimited`` tells whether an interval has
        such a period.

        Args:
            until: times (s); float64 [times].

        Returns:
            Bytes; float64 [times].
        """

    @abstractmethod
    def is_unlimited(self, begin: Floats, end: Floats) -> Flags:
        """Whether the rate is infinite at some instant of each interval.

        Args:
            begin: begins of the intervals (s); float64 [n].
            end: ends of the intervals (s), inclusive; float64 [n].

        Returns:
            bool [n].
        """

    def overfull(self, begin: Floats, end: Floats, size: Floats) -> Stretch | None:
        """Find an interval in which the recorded messages have more bytes than the link can carry.

        Only messages that begin and end within the interval count. Their order does not matter.

        Args:
            begin: begins of the link's messages (s); float64 [messages].
            end: ends of the messages (s); float64 [messages].
            size: sizes of the messages (bytes); float64 [messages].

        Returns:
            Of these intervals, one with the earliest end; None if the link can have carried all
            messages.
        """
        latest_end = end + time_tolerance_s(end)
        # messages that can overload the link, in the order of their begins
        limited = np.flatnonzero((size > 0) & ~self.is_unlimited(begin, latest_end))
        order = limited[np.argsort(begin[limited], kind="stable")]
        begin = begin[order]
        end = end[order]
        latest_end = latest_end[order]
        size = size[order]
        # Each time becomes the bytes that the link can carry until then, so that the link has a
        # rate of 1 on this axis.
        begin_bytes = self.capacity_until(begin)
        due_bytes = self.capacity_until(latest_end)
        for missed_due in _late_due_times(begin_bytes, due_bytes, size / RATE_TOLERANCE):
            # Messages that are due by then, the latest begin first: the running sum of sizes is
            # what the link has to carry from each message's begin to the missed due time.
            due_by_then = np.flatnonzero(due_bytes <= missed_due)[::-1]
            sent_bytes = np.cumsum(size[due_by_then])
            excess = sent_bytes - RATE_TOLERANCE * (missed_due - begin_bytes[due_by_then])
            worst = int(excess.argmax())
            if excess[worst] > 0:  # only rounding errors of the sums can make it false
                last_end = end[due_by_then].max().item()
                return Stretch(begin.item(due_by_then[worst]), last_end, sent_bytes.item(worst))
        return None


@dataclass(frozen=True, eq=False)
class Rate(LinkCapacity):
    """Capacity of a link whose rate is a step function of time, to check its recorded traffic.

    Attributes:
        since: begin of each rate (s), ascending, the first 0; float64 [n].
        values: rates (bytes/s), infinity allowed; float64 [n].
    """

    since: Floats
    values: Floats

    def capacity_until(self, until: Floats) -> Floats:
        values = np.where(np.isinf(self.values), 0.0, self.values)
        # bytes until the begin of each piece of constant rate
        sums = np.append(0.0, np.cumsum(values[:-1] * np.diff(self.since)))
        piece = np.searchsorted(self.since, until, side="right") - 1
        return np.asarray(sums[piece] + values[piece] * (until - self.since[piece]))

    def is_unlimited(self, begin: Floats, end: Floats) -> Flags:
        # entry i: count of infinite rates before piece i
        counts = np.append(0, np.cumsum(np.isinf(self.values)))
        first = np.maximum(np.searchsorted(self.since, begin, side="right") - 1, 0)
        last = np.searchsorted(self.since, end, side="right") - 1
        return np.asarray(counts[last + 1] > counts[first])


def _late_due_times(begin: Floats, due: Floats, duration: Floats) -> Iterator[float]:
    """Yield the due times that messages miss even if the link sends the most urgent message first.

    If any order of sending keeps all due times, sending in the order of due times keeps them too.
    Times are given in bytes: the bytes that the link can have carried from simulated time 0 until
    then.

    Args:
        begin: earliest begin of each message's transmission, ascending; float64 [messages].
        due: latest end of each message's transmission; float64 [messages].
        duration: bytes of each message, its duration if it has the whole link; float64 [messages].
    """
    waiting: list[tuple[float, float]] = []  # (due time, remaining duration), a heap
    # times count from ``origin``, the last time at which the link was idle, so that they stay small
    # and lose little to rounding
    origin = 0.0
    now = 0.0
    messages = [*zip(begin.tolist(), due.tolist(), duration.tolist(), strict=True)]
    messages.append((np.inf, np.inf, 0.0))  # after all others, so that they are sent to their end
    for message_begin, message_due, length in messages:
        next_begin = message_begin - origin
        # send waiting messages, the most urgent first, until the next message begins
        while waiting:
            first_due, remaining = waiting[0]
            if now + remaining > next_begin:
                waiting[0] = (first_due, remaining - (next_begin - now))
                now = next_begin
                break
            now += remaining
            heappop(waiting)
            if now > first_due - origin:
                yield first_due
        if not waiting:
            origin = message_begin
            now = 0.0
        heappush(waiting, (message_due, length))
