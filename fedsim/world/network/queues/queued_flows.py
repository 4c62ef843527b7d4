"""Flows on links with queues: arrays of their routes, bytes and senders, to which flows are added.

The subclass ``LinkComponent`` computes how the bytes move in time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple, Self

import numpy as np

from fedsim.common.arrays import AnyArray, Flags, Floats
from fedsim.world.network.filling import Route
from fedsim.world.network.queues.batches import sum_over_hops
from fedsim.world.network.queues.bbr import OTHER, BbrSenders
from fedsim.world.network.queues.congestion import Senders, append_row
from fedsim.world.network.queues.connections import SenderMemory
from fedsim.world.network.queues.deliveries import Deliveries
from fedsim.world.network.queues.links import QueuedLinks, label_components
from fedsim.world.network.queues.losses import RandomLosses
from fedsim.world.network.queues.step_plan import QueueingRules

LEAST_STEP_S = 1e-3  # shortest time step, and shortest round trip (s)


class NewFlow(NamedTuple):
    """Flow that begins in the window model, with the initial state of its sender.

    Attributes:
        id: ID of the flow.
        size: bytes of the flow on the wire.
        route: name and rate (bytes/s) of each link of the flow, in the order in which bytes pass the
            links.
        ends: IDs of sender and receiver.
        loss_key: seed of the flow's random packet losses.
        sender: congestion window and related values: attribute of ``Senders`` -> value.
        estimates: estimates of BBR: attribute of ``BbrSenders`` -> value.
    """

    id: int
    size: float
    route: Route
    ends: tuple[int, int]
    loss_key: int
    sender: Mapping[str, float]
    estimates: Mapping[str, float | Floats]


class QueuedFlows:
    """Base of ``LinkComponent`` that stores the state of flows on links with queues, as arrays.

    A subclass adds the rules by which bytes move.

    Args:
        rules: congestion control, queues and packets.

    Attributes:
        links: the links of the flows.
        senders: congestion windows of the senders.
        bbr: estimates of the senders that use BBR.
    """

    def __init__(self, rules: QueueingRules) -> None:
        self._rules = rules
        self.links = QueuedLinks(rules)
        self._ends: dict[int, tuple[int, int]] = {}  # flow ID -> IDs of sender and receiver
        # arrays with a row for each flow; bytes are on the wire
        self._id = np.empty(0, dtype=np.int64)
        self._size = np.empty(0)
        self._sent = np.empty(0)  # bytes that have left the sender, retransmissions included
        self._delivered = np.empty(0)
        self._dropped = np.empty(0)  # dropped bytes of whose loss the sender has not learned yet
        self._lost = np.empty(0)  # dropped bytes of whose loss the sender has learned
        # credit (bytes), by which ``choose_drops`` chooses the flow that loses the next packet: it
        # grows by expected losses, and shrinks at each loss
        self._credit = np.empty(0)
        # whether the flow's first link makes the sender wait; late acknowledgements then have no effect
        self._held = np.empty(0, dtype=bool)
        # acknowledged bytes at which a sender learns of its drops; infinity without drops
        self._mark = np.empty(0)
        self._lasts = np.empty(0, dtype=np.int64)  # position of the last link of each route
        # numbers of each flow's links, padded with 0; this and the next two arrays are [flows, hops]
        self._route = np.zeros((0, 1), dtype=np.int64)
        self._waiting = np.zeros((0, 1))  # bytes in the queue of each link of a route
        # bytes in queues by the time at which they came, oldest first, [flows, hops, batches]
        self._batches = np.zeros((0, 1, 1))
        self._arriving = np.zeros((0, 1))  # bytes on the way from each link to the next
        # further objects with a row for each flow: congestion windows, BBR's estimates, draws of
        # losses, and bytes delivered over time
        self.senders = Senders.none()
        self.bbr = BbrSenders.none()
        self._losses = RandomLosses(rules.packet)
        self._history = Deliveries()
        self._waits = Deliveries()  # time in queues of each flow's route (s)
        # whether no flow was removed since the last ``split``, so that all flows are still connected
        self._is_whole = True
        self._has_bbr = False  # whether any flow uses BBR; ``bbr`` has no rows if not
        # bytes of each flow that are acknowledged by now, [flows]; None if not computed yet
        self._acked: Floats | None = None
        self._known_delays: Floats | None = None  # last result of ``_delays``; None after a change

    def __len__(self) -> int:
        return len(self._id)

    def has_flow(self, flow_id: int) -> bool:
        """Return whether the flow with this ID is one of these flows."""
        return flow_id in self._ends

    def row_of(self, flow_id: int) -> int:
        """Return the index of the flow with this ID in all arrays over flows."""
        return int(np.flatnonzero(self._id == flow_id)[0])

    def queued(self) -> Iterator[tuple[str, float, float]]:
        """Yield for each link its name, the present bytes in its queue, and the bytes of a full queue."""
        backlog = self._backlog()
        for name, number in self.links.names.items():
            yield name, backlog.item(number), self.links.length.item(number)

    def balance(self) -> Floats:
        """Return how many bytes of each flow are unaccounted for; used by tests; float64 [flows].

        Sent bytes are delivered, in queues, on links, or lost, so the result is 0 within rounding.
        """
        balance: Floats = (
            self._sent - self._delivered - self._under_way() - self._lost - self._dropped
        )
        return balance

    def _under_way(self) -> Floats:
        """Return the bytes of each flow in queues and between links, float64 [flows]."""
        return sum_over_hops(self._waiting) + sum_over_hops(self._arriving)

    def _backlog(self) -> Floats:
        """Return the bytes in the queue of each link, float64 [links]."""
        links = len(self.links.capacity)
        weights = self._waiting.ravel()
        backlog = np.bincount(self._route.ravel(), weights=weights, minlength=links)
        return np.asarray(backlog, dtype=np.float64)

    def _delays(self) -> Floats:
        """Return how long a byte would wait in all queues on each flow's route (s), [flows]."""
        if self._known_delays is None:
            capacity = self.links.capacity
            # a link at rate 0 counts as no delay, instead of an infinite one
            rate = np.where(capacity > 0, capacity, math.inf)
            self._known_delays = sum_over_hops((self._backlog() / rate).take(self._route))
        return self._known_delays

    # flows that come, go, and change their component

    def _append(self, flow: NewFlow) -> None:
        """Append the row of a flow to all arrays over flows, and its links to the links."""
        # number 0 is a link of unlimited rate, for flows without links, and for padding
        numbers = [self.links.add(name, rate) for name, rate in flow.route] or [0]
        self._widen(max(self._route.shape[1], len(numbers)))
        padding = [0] * (self._route.shape[1] - len(numbers))
        padded = [*numbers, *padding]
        self._id = append_row(self._id, flow.id)
        self._size = append_row(self._size, flow.size)
        for name in _ZERO_AT_FIRST:
            setattr(self, name, append_row(getattr(self, name), 0.0))
        self._mark = append_row(self._mark, math.inf)  # infinity: no loss yet
        self._held = append_row(self._held, False)
        self._lasts = append_row(self._lasts, len(numbers) - 1)  # position of its last link
        self._route = append_row(self._route, np.array(padded, dtype=np.int64))
        self.senders.append(flow.sender)
        self._append_estimates(flow.estimates)
        # a drawn first credit, so that a flow loses its first packet after a random amount
        self._credit = append_row(self._credit, -self._losses.append(flow.loss_key))
        self._history.add_flow()
        self._waits.add_flow()
        self._ends[flow.id] = flow.ends
        self._drop_cache()

    def _append_estimates(self, estimates: Mapping[str, float | Floats]) -> None:
        """Append the estimates of a new flow to ``bbr``; do nothing if no flow uses BBR."""
        if estimates["state"] == OTHER and not self._has_bbr:
            return
        self._add_missing_estimates(len(self) - 1)
        self.bbr.append(estimates)

    def _add_missing_estimates(self, flows: int) -> None:
        """Fill an empty ``bbr`` with rows for ``flows`` flows that do not use BBR."""
        if not self._has_bbr:
            self.bbr = BbrSenders.others(flows)
            self._has_bbr = True

    def _widen(self, hops: int) -> None:
        """Pad all routes, and the arrays [flows, hops], to ``hops`` links per flow."""
        missing = hops - self._route.shape[1]
        if missing > 0:
            pad = ((0, 0), (0, missing))
            self._route = np.pad(self._route, pad)
            self._waiting = np.pad(self._waiting, pad)
            self._batches = np.pad(self._batches, (*pad, (0, 0)))
            self._arriving = np.pad(self._arriving, pad)

    def _pad_batches(self, batches: int) -> None:
        """Prepend empty batches to the bytes in queues, so that there are ``batches`` batches.

        A batch holds the bytes that came into queues in one step; the oldest is the first.
        """
        missing = batches - self._batches.shape[2]
        if missing > 0:
            self._batches = np.pad(self._batches, ((0, 0), (0, 0), (missing, 0)))

    def _adopt(self, others: Self) -> None:
        """Append the flows and links of ``others``, which must not be used any more."""
        # links get new numbers, and all arrays equal shapes, before rows are joined
        new_numbers = self.links.join(others.links)
        others._route = new_numbers[others._route]
        hops = max(self._route.shape[1], others._route.shape[1])
        batches = max(self._batches.shape[2], others._batches.shape[2])
        for component in (self, others):
            component._widen(hops)
            component._pad_batches(batches)
        for name in _COLUMNS:
            columns: list[AnyArray] = [getattr(self, name), getattr(others, name)]
            setattr(self, name, np.concatenate(columns))
        self.senders.join(others.senders)
        # ``bbr`` has rows for all flows if any flow uses BBR; these flows now include the others
        if self._has_bbr or others._has_bbr:
            self._add_missing_estimates(len(self) - len(others))
            others._add_missing_estimates(len(others))
            self.bbr.join(others.bbr)
        self._losses.join(others._losses)
        self._history.join(others._history)
        self._waits.join(others._waits)
        self._ends |= others._ends
        self._is_whole &= others._is_whole
        self._drop_cache()

    def _select(self, rows: Flags) -> None:
        """Keep some flows and the links on their routes, and remove all others.

        Args:
            rows: whether each flow is kept, bool [flows].
        """
        for flow_id in self._id[~rows].tolist():
            del self._ends[flow_id]
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[rows])
        self.senders.select(rows)
        if self._has_bbr:  # otherwise ``bbr`` has no rows
            self.bbr.select(rows)
            self._has_bbr = bool(np.count_nonzero(self.bbr.is_used))
            if not self._has_bbr:
                self.bbr = BbrSenders.none()
        self._losses.select(rows)
        self._history.select(rows)
        self._waits.select(rows)
        self._route = self.links.remove_unused(self._route)
        self._is_whole = False  # perhaps the remaining flows no longer share links
        self._drop_cache()

    def _split(self) -> list[Self]:
        """Divide the flows among several objects, so that flows of different objects share no link.

        The first of the returned objects is this one, with the remaining flows.
        """
        # flows with equal labels are connected, by common links or by other flows
        labels = label_components(self._route, len(self.links.capacity))
        components = [self]
        first_label, *other_labels = np.unique(labels).tolist()
        # copies come first, because ``_select`` removes the rows of the other components
        for label in other_labels:
            component = deepcopy(self)
            component._select(labels == label)
            components.append(component)
        if other_labels:
            self._select(labels == first_label)
        for component in components:
            component._is_whole = True
        return components

    def _sender_memory(self, row: int, end: float, pace: float) -> SenderMemory:
        """Return a sender's state at the end of its flow, for the next flow to the same receiver.

        Args:
            row: index of the flow.
            end: end of the flow (s).
            pace: pacing rate at its end (segments/s).
        """
        senders = self.senders
        uses_bbr = self._has_bbr and self.bbr.is_used[row]
        estimates = self.bbr.row(row) if uses_bbr else None
        return SenderMemory(
            window=senders.window.item(row),
            threshold=senders.threshold.item(row),
            peak=senders.peak.item(row),
            epoch_window=senders.epoch_window.item(row),
            friendly=senders.friendly.item(row),
            elapsed=end - senders.epoch.item(row),
            until=end,
            pace=pace,
            estimates=estimates,
        )

    def _drop_cache(self) -> None:
        """Drop cached values, which are no longer valid after a change of the flows."""
        self._acked = None
        self._known_delays = None


# attributes that are 0 for a new flow
_ZERO_AT_FIRST: Sequence[str] = (
    "_sent",
    "_delivered",
    "_dropped",
    "_lost",
    "_waiting",
    "_batches",
    "_arriving",
)
# attributes that are arrays with one row per flow
_COLUMNS: Sequence[str] = (
    "_id",
    "_size",
    "_sent",
    "_delivered",
    "_dropped",
    "_lost",
    "_credit",
    "_mark",
    "_held",
    "_lasts",
    "_route",
    "_waiting",
    "_batches",
    "_arriving",
)
