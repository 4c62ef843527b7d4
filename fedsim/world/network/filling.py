"""Rules by which flows share links: the interface ``Sharing``, and the max-min fair ``Filling``.

``Filling`` works for any routes, and computes the rates of all flows anew at each change, in numpy.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints

_ROUNDING = 4  # ends that differ by at most this many units in the last place count as equal

Route = Iterable[tuple[str, float]]
"""Links of a flow, as name and present rate (bytes/s) of each link."""


class Sharing(Protocol):
    """Interface of a sharing rule: it computes the rates of running flows that share links.

    ``Network`` calls it when flows begin, end or change. Sizes are in bytes on the wire. All
    attributes are plain data, so that a snapshot can store them.

    Attributes:
        next_end: exact end of the next flow to end if nothing changes (s); infinity without flows.
        changed: whether flows or links have changed since the last ``share``.
    """

    next_end: float
    changed: bool

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
        """Add a flow that begins, or that moves here from another sharing rule.

        Args:
            flow_id: ID of the flow.
            size: bytes of the whole flow on the wire, ``sent`` included.
            cap: highest rate of the flow, in addition to the limits by its links (bytes/s).
            now: the time (s).
            weight: weight of the flow in the sharing of links: a flow of weight w gets the share of
                w flows.
            sent: bytes of the flow that were sent before, under another rule or cap.
            route: name and capacity (bytes/s) of each of its links.
        """

    def leave(self, flow_id: int, now: float) -> None:
        """Remove a flow before its end.

        Args:
            flow_id: ID of the flow.
            now: the time (s).
        """

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        """Change the cap of a running flow: the highest rate that it may have.

        Args:
            flow_id: ID of the flow.
            size: bytes of the whole flow on the wire, sent bytes included, as in ``enter``. It is for
                rules, such as a star's, that remove the flow and call ``enter`` again.
            cap: the new highest rate (bytes/s).
            now: the time (s).
        """

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        """Change the capacity of a link; a link that no flow of this rule uses is ignored.

        Args:
            link: name of the link.
            capacity: the capacity (bytes/s), 0 allowed.
            now: the time (s).
        """

    def share(self, now: float) -> None:
        """Compute the rates and ``next_end`` of all running flows, after changes of flows or links.

        Args:
            now: the time (s).
        """

    def advance(self, until: float) -> list[tuple[float, int]]:
        """Let time pass up to ``until``, and remove the flows that end on the way.

        The remaining flows get new rates after each end, so that more flows may end by ``until``.

        Args:
            until: the time (s).

        Returns:
            Exact end (s) and ID of each removed flow.
        """

    def sent(self, flow_id: int, at: float) -> float:
        """Return the bytes (on the wire) that a running flow has sent by a time.

        Args:
            flow_id: ID of the flow.
            at: a time between the last change and the next end (s).
        """

    def rate(self, flow_id: int) -> float:
        """Return the rate of a running flow (bytes on the wire/s), as ``share`` computed it.

        Args:
            flow_id: ID of the flow.
        """


def max_min(capacity: Floats, routes: Ints, caps: Floats, weights: Floats) -> Floats:
    """Compute the weighted max-min fair rates of flows that share links.

    In each iteration, each link divides its remaining capacity among its unsettled flows, in
    proportion to their weights. A flow is offered the least of these shares on its route, or its cap
    if that is less. A flow is settled, and gets the rate that it is offered, in two cases: it is
    offered its cap, or one of its links is a bottleneck, which offers its own share to all of its
    unsettled flows. Shares only rise in later iterations, so that settled rates are final (Bertsekas
    and Gallager, Data Networks, section 6.5.2, here with all bottlenecks of an iteration together).

    Args:
        capacity: capacity of each link (bytes/s), float64 [links]; infinite for the link that
            pads routes.
        routes: indices of the links of each flow, padded to equal length; int64 [flows, hops].
        caps: largest rate of each flow (bytes/s), which may be infinite if a link is finite;
            float64 [flows].
        weights: weight of each flow, above 0; float64 [flows]. A flow of weight w is served as w
            flows.

    Returns:
        Rates (bytes/s), float64 [flows].
    """
    links = len(capacity)
    hops = routes.shape[1]
    remaining = capacity.copy()
    rates = np.empty(len(routes))
    unsettled = np.arange(len(routes))
    while unsettled.size:
        # ``cap``, ``shares`` and ``offer`` are rates per unit of weight; arrays that are indexed by
        # ``route`` get one entry for each hop of each unsettled flow
        route = routes[unsettled]
        weight = weights[unsettled]
        cap = (caps / weights)[unsettled]
        flat_route = route.ravel()
        # total weight of the unsettled flows on each link
        link_weight = np.bincount(flat_route, weights=np.repeat(weight, hops), minlength=links)
        # what each link of a route offers to each of its unsettled flows, [flows, hops]
        shares = (remaining / np.where(link_weight > 0, link_weight, 1))[route]
        offer = np.minimum(shares.min(axis=1), cap)
        # count of the flows on each link whose offer from another link, or whose cap, is lower
        lower_offers = np.bincount(
            flat_route, weights=(offer[:, None] < shares).ravel(), minlength=links
        )
        # a link without lower offers is a bottleneck
        is_settled = (cap <= offer) | (lower_offers[route] == 0).any(axis=1)
        rate = (offer * weight)[is_settled]
        rates[unsettled[is_settled]] = rate
        remaining -= np.bincount(
            route[is_settled].ravel(), weights=np.repeat(rate, hops), minlength=links
        )
        unsettled = unsettled[~is_settled]
    return rates


class Filling:
    """Sharing rule for networks of any shape: flows get weighted max-min fair rates.

    The class computes all rates anew, by ``max_min``, after each change of flows or links. A link is
    added together with its first flow.
    """

    def __init__(self) -> None:
        self.next_end = math.inf
        self.changed = False
        self._links: dict[str, int] = {}  # name -> index from 1; index 0 pads routes
        self._capacity = [math.inf]  # capacity of each link (bytes/s), by its index
        self._since = 0.0  # time (s) for which ``_sent`` holds
        # arrays with an entry for each flow
        self._id = np.empty(0, dtype=np.int64)
        self._size = np.empty(0)  # bytes on the wire
        self._sent = np.empty(0)  # bytes on the wire
        self._cap = np.empty(0)  # highest rate, in addition to the limits by links (bytes/s)
        self._weight = np.empty(0)
        self._rate = np.empty(0)  # bytes/s on the wire
        self._end = np.empty(0)  # end at the present rate (s)
        self._route = np.zeros((0, 1), dtype=np.int64)  # indices of links, padded [flows, hops]
        # ID, size, sent bytes, cap, weight and links of each flow that ``share`` adds
        self._entering: list[tuple[int, float, float, float, float, list[int]]] = []
        self._leaving: list[int] = []  # IDs of the flows that ``share`` removes

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
        links = []  # indices of the route's links
        for name, capacity in route:
            link = self._links.setdefault(name, len(self._capacity))
            if link == len(self._capacity):  # a new link
                self._capacity.append(capacity)
            self._capacity[link] = capacity
            links.append(link)
        self._entering.append((flow_id, size, sent, cap, weight, links))
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
        self._move(now)  # the bytes up to now are sent at the former rates
        if self._leaving:
            self._select_rows(~np.isin(self._id, self._leaving))
            self._leaving.clear()
        if self._entering:  # rows of the new flows, which are turned into columns
            ids, sizes, sent, caps, weights, routes = zip(*self._entering, strict=True)
            self._id = np.append(self._id, np.array(ids, dtype=np.int64))
            self._size = np.append(self._size, sizes)
            self._sent = np.append(self._sent, sent)
            self._cap = np.append(self._cap, caps)
            self._weight = np.append(self._weight, weights)
            self._add_routes(routes)
            self._entering.clear()
        self._fill()

    def _add_routes(self, routes: Sequence[list[int]]) -> None:
        """Append routes (indices of links) to ``_route``, and pad all rows to one length."""
        former_hops = self._route.shape[1]
        hops = max(former_hops, *map(len, routes))
        padded = np.pad(self._route, ((0, 0), (0, hops - former_hops)))
        added = [[*route, *[0] * (hops - len(route))] for route in routes]
        self._route = np.concatenate((padded, added))

    def advance(self, until: float) -> list[tuple[float, int]]:
        ended: list[tuple[float, int]] = []
        while self.next_end <= until:
            now = self.next_end
            has_ended = self._end <= now + _ROUNDING * math.ulp(now)
            ended.extend((now, flow_id) for flow_id in self._id[has_ended].tolist())
            self._move(now)
            self._select_rows(~has_ended)
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

    def _select_rows(self, rows: Flags) -> None:
        self._id = self._id[rows]
        self._size = self._size[rows]
        self._sent = self._sent[rows]
        self._cap = self._cap[rows]
        self._weight = self._weight[rows]
        self._route = self._route[rows]

    def _fill(self) -> None:
        """Compute the rate and end of each flow, and the next end, after changes."""
        capacity = self._capacity  # capacity of each link, by the link's index
        route = self._route  # indices of each flow's links
        if len(capacity) > route.size:  # many links are unused: the used ones get new indices
            used_links, new_indices = np.unique(route, return_inverse=True)
            capacity = [capacity[link] for link in used_links.tolist()]
            route = new_indices.reshape(route.shape)
        self._rate = max_min(np.array(capacity), route, self._cap, self._weight)
        missing = np.maximum(self._size - self._sent, 0.0)
        # the capacity of a link may be 0 in an outage
        with np.errstate(divide="ignore", invalid="ignore"):
            self._end = self._since + missing / self._rate
        self._end[self._rate == 0] = math.inf
        self.next_end = float(self._end.min()) if self._end.size else math.inf
