"""Whether a link can have carried its messages, of which only begins and ends are known."""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from fedsim.common.arrays import Flags, Floats
from fedsim.lab.audit.frames import grain_s

SLACK = 1 + 1e-9  # rounding error of a rate


class Stretch(NamedTuple):
    """An interval in which a link would have had to carry more than it can."""

    begin: float  # s
    end: float  # s
    carried: float  # bytes of the messages wholly within


def slack_s(end: Floats) -> Floats:
    """Time that rounding may take from each message (s), up to a tie with a deadline.

    Args:
        end: of the messages (s); float64 [messages].

    Returns:
        float64 [messages].
    """
    return 12 * grain_s(end)


class Rate(NamedTuple):
    """Capacity of a link that changes with time."""

    since: Floats  # begin of each value (s), ascending, the first 0; float64 [n]
    values: Floats  # bytes/s, infinity allowed; float64 [n]

    def carried(self, until: Floats) -> Floats:
        """The most bytes from 0 to each of some times (s), without times of infinite rate.

        Args:
            until: float64 [times].

        Returns:
            float64 [times].
        """
        values = np.where(np.isinf(self.values), 0.0, self.values)
        sums = np.append(0.0, np.cumsum(values[:-1] * np.diff(self.since)))
        place = np.searchsorted(self.since, until, side="right") - 1
        return np.asarray(sums[place] + values[place] * (until - self.since[place]))

    def is_unlimited(self, begin: Floats, end: Floats) -> Flags:
        """Whether the rate is infinite at some instant of each interval.

        Args:
            begin: of the intervals (s); float64 [n].
            end: of the intervals (s), part of them; float64 [n].

        Returns:
            bool [n].
        """
        counts = np.append(0, np.cumsum(np.isinf(self.values)))
        first = np.searchsorted(self.since, begin, side="right")
        last = np.searchsorted(self.since, end, side="right")
        return np.asarray(counts[last] > counts[np.maximum(first - 1, 0)])

    def overfull(self, begin: Floats, end: Floats, size: Floats) -> Stretch | None:
        """Find an interval whose messages the link cannot have carried.

        Args:
            begin: of the link's messages (s); float64 [messages].
            end: of the messages (s); float64 [messages].
            size: of the messages (bytes); float64 [messages].

        Returns:
            The interval that ends first; None if there is none.
        """
        due = end + slack_s(end)
        limited = np.flatnonzero((size > 0) & ~self.is_unlimited(begin, due))
        order = limited[np.argsort(begin[limited], kind="stable")]
        begin = begin[order]
        end = end[order]
        due = due[order]
        size = size[order]
        # on a clock of carried bytes the rate is always 1
        opens = self.carried(begin)
        closes = self.carried(due)
        for deadline in _missed(opens, closes, size / SLACK):
            # from the last start on: the addition of each further message
            within = np.flatnonzero(closes <= deadline)[::-1]
            carried = np.cumsum(size[within])
            excess = carried - SLACK * (deadline - opens[within])
            worst = int(excess.argmax())
            if excess[worst] > 0:  # not for the rounding error of a sum of many times
                last_end = end[within].max().item()
                return Stretch(begin.item(within[worst]), last_end, carried.item(worst))
        return None


def _missed(begin: Floats, due: Floats, duration: Floats) -> Iterator[float]:
    """Due times of messages that are late even if the link sends in the order of due times.

    A schedule by due times misses none that another schedule keeps. All times are on the clock
    of carried bytes.

    Args:
        begin: from when on each message may be sent, ascending; float64 [messages].
        due: until when it has to be sent; float64 [messages].
        duration: of its transmission alone on the link; float64 [messages].
    """
    waiting: list[tuple[float, float]] = []  # due time, rest of the duration
    # the clock starts again when the link falls idle, so that little is lost to rounding
    origin = 0.0
    now = 0.0
    messages = [*zip(begin.tolist(), due.tolist(), duration.tolist(), strict=True)]
    messages.append((np.inf, np.inf, 0.0))
    for start, deadline, length in messages:
        until = start - origin
        while waiting:
            first_due, rest = waiting[0]
            if now + rest > until:
                waiting[0] = (first_due, rest - (until - now))
                now = until
                break
            now += rest
            heappop(waiting)
            if now > first_due - origin:
                yield first_due
        if not waiting:
            origin = start
            now = 0.0
        heappush(waiting, (deadline, length))
