"""The form of sharing rules; and max-min fairness over any links: all that runs is shared again
at each change, in numpy.
"""

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints

_ROUNDING = 4  # ends that differ by so many last bits of a float64 are one

Route = Iterable[tuple[str, float]]
"""The links of a flow: the name, and the present rate of each (bytes/s)."""


class Sharing(Protocol):
    """A sharing rule at work on a set of links, in bytes on the wire.

    A snapshot keeps its attributes: plain data.
    """

    next_end: float
    """end of the next flow if nothing changes (s, exact); infinity without flows."""
    changed: bool
    """whether flows or links have changed since the last ``share``."""

    def enter(
        self,
        flow_id: int,
        size: float,
        cap: float,
        now: float,
        weight: float = 1.0,
        sent: float = 0.0,
        route: Route = (),
    ) -> None:
        """Add a flow.

        Args:
            flow_id: number of the flow.
            size: bytes of the flow on the wire.
            cap: its highest rate, apart from the links' (bytes/s).
            now: the time (s).
            weight: its weight in the links' shares.
            sent: bytes of the flow that have been sent before.
            route: name and capacity (bytes/s) of each of its links.
        """

    def leave(self, flow_id: int, now: float) -> None:
        """Remove a flow before its end.

        Args:
            flow_id: number of the flow.
            now: the time (s).
        """

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        """Give a running flow another cap.

        Args:
            flow_id: number of the flow.
            size: bytes of the flow on the wire.
            cap: its highest rate (bytes/s).
            now: the time (s).
        """

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        """Give a link another capacity.

        Args:
            link: name of the link.
            capacity: the capacity (bytes/s).
            now: the time (s).
        """

    def share(self, now: float) -> None:
        """Share the links again among the running flows.

        Args:
            now: the time (s).
        """

    def advance(self, until: float) -> list[tuple[float, int]]:
        """Carry out all ends of flows up to a time.

        Args:
            until: the time (s).

        Returns:
            Exact end (s) and number of each flow that has ended.
        """

    def sent(self, flow_id: int, at: float) -> float:
        """Return the bytes that a running flow has sent.

        Args:
            flow_id: number of the flow.
            at: a time between the last change and the next end (s).
        """

    def rate(self, flow_id: int) -> float:
        """Return the rate of a running flow (bytes/s).

        Args:
            flow_id: number of the flow.
        """


def max_min(capacity: Floats, routes: Ints, caps: Floats, weights: Floats) -> Floats:
    """Weighted max-min fair rates of flows over shared links (bytes/s), float64 [flows].

    Each round offers every flow the least of its links' shares a unit of weight. Shares only rise,
    so these are final: the cap of a flow within its offer, and a link's share where it is the offer
    of all its flows. (Bertsekas and Gallager, Data Networks, section 6.5.2, at all local
    bottlenecks at a time.)

    Args:
        capacity: bytes/s, float64 [links]; an infinite one pads routes.
        routes: numbers of the links of each flow, padded; int64 [flows, hops].
        caps: largest rate of each flow, bytes/s, infinity allowed where a link is finite;
            float64 [flows].
        weights: of the flows, above 0; float64 [flows]. A flow of weight w is as w flows.
    """
    links = len(capacity)
    hops = routes.shape[1]
    room = capacity.copy()
    rates = np.empty(len(routes))
    open_ = np.arange(len(routes))
    while open_.size:
        route = routes[open_]
        weight = weights[open_]
        cap = (caps / weights)[open_]
        flat = route.ravel()
        there = np.bincount(flat, weights=np.repeat(weight, hops), minlength=links)
        shares = (room / np.where(there > 0, there, 1))[route]
        offer = np.minimum(shares.min(axis=1), cap)
        not_full = np.bincount(flat, weights=(offer[:, None] < shares).ravel(), minlength=links)
        settled = (cap <= offer) | (not_full[route] == 0).any(axis=1)
        rate = rates[open_[settled]] = (offer * weight)[settled]
        room -= np.bincount(route[settled].ravel(), weights=np.repeat(rate, hops), minlength=links)
        open_ = open_[~settled]
    return rates


class Filling:
    """Flows over any links, shared by ``max_min`` at each change.

    A link is known from its first flow on.
    """

    def __init__(self) -> None:
        self.next_end = math.inf
        self.changed = False
        self._links: dict[str, int] = {}  # name -> number, from 1; 0 pads routes
        self._capacity = [math.inf]
        self._since = 0.0
        self._id = np.empty(0, dtype=np.int64)
        self._size, self._sent, self._cap, self._weight, self._rate, self._end = (
            np.empty(0) for _ in range(6)
        )
        self._route = np.zeros((0, 1), dtype=np.int64)
        self._entering: list[tuple[int, float, float, float, float, list[int]]] = []
        self._leaving: list[int] = []

    def enter(
        self,
        flow_id: int,
        size: float,
        cap: float,
        now: float,
        weight: float = 1.0,
        sent: float = 0.0,
        route: Route = (),
    ) -> None:
        numbers = []
        for name, capacity in route:
            number = self._links.setdefault(name, len(self._capacity))
            if number == len(self._capacity):
                self._capacity.append(capacity)
            self._capacity[number] = capacity
            numbers.append(number)
        self._entering.append((flow_id, size, sent, cap, weight, numbers))
        self.changed = True

    def leave(self, flow_id: int, now: float) -> None:
        self._leaving.append(flow_id)
        self.changed = True

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        self._cap[self._id == flow_id] = cap
        self.changed = True

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        if link in self._links:
            self._capacity[self._links[link]] = capacity
            self.changed = True

    def share(self, now: float) -> None:
        self.changed = False
        self._move(now)
        if self._leaving:
            self._keep(~np.isin(self._id, self._leaving))
            self._leaving.clear()
        if self._entering:
            ids, *numbers, routes = zip(*self._entering, strict=True)
            self._id = np.append(self._id, np.array(ids, dtype=np.int64))
            columns = (self._size, self._sent, self._cap, self._weight)
            self._size, self._sent, self._cap, self._weight = map(np.append, columns, numbers)
            hops = max(self._route.shape[1], *map(len, routes))
            known = np.pad(self._route, ((0, 0), (0, hops - self._route.shape[1])))
            self._route = np.concatenate(
                (known, [[*route, *[0] * (hops - len(route))] for route in routes])
            )
            self._entering.clear()
        self._fill()

    def advance(self, until: float) -> list[tuple[float, int]]:
        ended: list[tuple[float, int]] = []
        while self.next_end <= until:
            now = self.next_end
            over = self._end <= now + _ROUNDING * math.ulp(now)
            ended.extend((now, flow_id) for flow_id in self._id[over].tolist())
            self._move(now)
            self._keep(~over)
            self._fill()
        return ended

    def sent(self, flow_id: int, at: float) -> float:
        row = int(np.flatnonzero(self._id == flow_id)[0])
        return self._sent.item(row) + self._rate.item(row) * (at - self._since)

    def rate(self, flow_id: int) -> float:
        return self._rate.item(int(np.flatnonzero(self._id == flow_id)[0]))

    def _move(self, now: float) -> None:
        self._sent += self._rate * (now - self._since)
        self._since = now

    def _keep(self, rows: Flags) -> None:
        self._id = self._id[rows]
        self._size = self._size[rows]
        self._sent = self._sent[rows]
        self._cap = self._cap[rows]
        self._weight = self._weight[rows]
        self._route = self._route[rows]

    def _fill(self) -> None:
        capacity = self._capacity
        route = self._route
        if len(capacity) > route.size:  # consider only links in use
            used, numbers = np.unique(route, return_inverse=True)
            capacity = [capacity[link] for link in used.tolist()]
            route = numbers.reshape(route.shape)
        self._rate = max_min(np.array(capacity), route, self._cap, self._weight)
        missing = np.maximum(self._size - self._sent, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # a link may carry nothing for a while
            self._end = self._since + missing / self._rate
        self._end[self._rate == 0] = math.inf
        self.next_end = float(self._end.min()) if self._end.size else math.inf
