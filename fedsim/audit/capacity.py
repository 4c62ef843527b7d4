"""Is there a way to send all messages of a link, each between its begin and its end, at no more than the link's rate?

If there is any, then sending first what must be there first is one (as for one machine whose jobs may be interrupted: Horn,
"Some simple scheduling algorithms", 1974). If there is none, then in some stretch of time the messages that lie wholly within
it are more than the link can carry meanwhile. So the check misses nothing that times and sizes of one link's messages can tell.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from fedsim.arrays import Flags, Floats
from fedsim.audit.evidence import grain_s

SLACK = 1 + 1e-9  # what rounding may add to a rate


class Stretch(NamedTuple):
    """A time (s) in which a link would have had to carry more than it can: so many bytes of messages wholly within."""

    begin: float
    end: float
    carried: float


def slack_s(end: Floats) -> Floats:
    """Time that rounding may take from each message (s), a tie with a deadline included; float64 [messages]."""
    return 12 * grain_s(end)


class Rate(NamedTuple):
    """Capacity of a link that changes with time.

    Attributes:
        since: from when on (s), ascending, the first 0; float64 [n].
        values: bytes/s, infinity allowed; float64 [n].
    """

    since: Floats
    values: Floats

    def carried(self, until: Floats) -> Floats:
        """The most bytes from 0 to each of some times (s), those of times of infinite rate left out; float64 [times]."""
        values = np.where(np.isinf(self.values), 0.0, self.values)
        place = np.searchsorted(self.since, until, side="right") - 1
        return self._sums()[place] + values[place] * (until - self.since[place])

    def is_unlimited(self, begin: Floats, end: Floats) -> Flags:
        """Whether the rate is infinite at some instant from ``begin`` to ``end`` (s); bool, as many."""
        free = np.append(0, np.cumsum(np.isinf(self.values)))
        first, last = (np.searchsorted(self.since, times, side="right") for times in (begin, end))
        return np.asarray(free[last] > free[np.maximum(first - 1, 0)])

    def overfull(self, begin: Floats, end: Floats, size: Floats) -> Stretch | None:
        """As the function of that name: on a clock that counts what the link can carry, its rate is always 1."""
        due = end + slack_s(end)
        bound = ~self.is_unlimited(begin, due)
        found = overfull(self.carried(begin[bound]), self.carried(due[bound]), size[bound], 1.0)
        if found is None:
            return None
        first, last = (self.since[np.searchsorted(self._sums(), at, side="right") - 1] for at in found[:2])
        return Stretch(first, max(first, last), found.carried)

    def _sums(self) -> Floats:
        values = np.where(np.isinf(self.values), 0.0, self.values)
        return np.append(0.0, np.cumsum(values[:-1] * np.diff(self.since)))


def overfull(begin: Floats, end: Floats, size: Floats, rate: float) -> Stretch | None:
    """A stretch that a link of a finite rate (bytes/s) cannot have carried, the one that ends first; None where there is none.

    ``begin``, ``end`` (s) and ``size`` (bytes) are of its messages; float64 [messages] each.
    """
    moving = size > 0
    order = np.argsort(begin[moving], kind="stable")
    begin, end, size = (column[moving][order] for column in (begin, end, size))
    due = end + slack_s(end)
    for late in _missed(begin, due, size / (rate * SLACK)):
        within = np.flatnonzero(due <= late)[::-1]  # from the one that begins last on: what each more would add
        carried = np.cumsum(size[within])
        excess = carried - rate * SLACK * (late - begin[within])
        worst = int(excess.argmax())
        if excess[worst] > 0:  # not for what rounding does to a sum of many times
            return Stretch(begin.item(within[worst]), end[within].max().item(), carried.item(worst))
    return None


def _missed(begin: Floats, due: Floats, need: Floats) -> Iterator[float]:
    """When messages are due that are late even if what is due first is sent first.

    Each has the link from ``begin`` (s, ascending), is ``due`` (s), and would ``need`` it for so long alone (s).
    """
    waiting: list[tuple[float, float]] = []  # due, need
    origin = now = 0.0  # the clock starts again when the link falls idle, so that little is lost to rounding
    ends = [*zip(begin.tolist(), due.tolist(), need.tolist(), strict=True), (np.inf, np.inf, 0.0)]
    for start, end, takes in ends:
        until = start - origin
        while waiting:
            first, left = waiting[0]
            if now + left > until:
                waiting[0] = (first, left - (until - now))
                now = until
                break
            now += left
            heappop(waiting)
            if now > first - origin:
                yield first
        if not waiting:
            origin, now = start, 0.0
        heappush(waiting, (end, takes))
