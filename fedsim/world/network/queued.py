"""Flows on links with queues: their routes, bytes and senders, and how they come and go.

``Queueing`` says what time does to them.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedsim.common.arrays import Flags, Floats
from fedsim.world.network.bbr import FILTER_S, OTHER, BbrSenders, first_estimates
from fedsim.world.network.congestion import Control, Senders, append_row, first_state
from fedsim.world.network.deliveries import Deliveries
from fedsim.world.network.filling import Route
from fedsim.world.network.losses import RandomLosses
from fedsim.world.network.queues import Level, QueueingRules, SenderMemory

LEAST_STEP_S = 1e-3  # the shortest step, and round trip
UNLIMITED = 1e15  # bytes/s; stands for an infinite rate
_RETRANSMISSION_S = 0.2  # least timeout beyond the round trip (s; Linux)


class QueuedFlows:
    """State of flows on links with queues, the base of ``Queueing``.

    Args:
        rules: control, queues and packets.
    """

    def __init__(self, rules: QueueingRules) -> None:
        self._rules = rules
        self._names: dict[str, int] = {}  # link -> index from 1; index 0 pads routes
        self._capacity = np.array([UNLIMITED])
        self._length = np.array([math.inf])
        self._level_of: list[int] = [0]  # largest position of each link on a route
        self._connections: dict[tuple[int, int], SenderMemory] = {}
        self._ends: dict[int, tuple[int, int]] = {}  # flow ID -> its connection
        self._id = np.empty(0, dtype=np.int64)
        self._size = np.empty(0)
        self._sent = np.empty(0)  # bytes that left the sender, each repeat included
        self._delivered = np.empty(0)
        self._dropped = np.empty(0)  # bytes dropped, of which the sender does not know
        self._lost = np.empty(0)  # bytes dropped, of which the sender knows
        # a flow's share of what full queues lost, less what it was expected to lose (bytes)
        self._credit = np.empty(0)
        # whether the first link holds the sender back, so that late acknowledgements do not matter
        self._held = np.empty(0, dtype=bool)
        self._mark = np.empty(0)  # delivered bytes at which it learns; infinity for no drop
        self._route = np.zeros((0, 1), dtype=np.int64)
        self._waiting = np.zeros((0, 1))  # bytes in the queue of each link of a route
        # bytes in queues by the time at which they came, oldest first, [flows, hops, batches]
        self._batches = np.zeros((0, 1, 1))
        self._arriving = np.zeros((0, 1))  # bytes between a link and the next
        self._senders = Senders.none()
        self._bbr = BbrSenders.none()
        # connection -> its estimates at the end of its last flow
        self._estimates: dict[tuple[int, int], dict[str, float | Floats]] = {}
        self._losses = RandomLosses(rules.packet)
        self._history = Deliveries()
        self._waits = Deliveries()  # time in queues of each flow's route (s)
        self._levels: list[Level] = []
        self._is_grouped = True
        self._has_bbr = False
        self._acked: Floats | None = None  # bytes acknowledged by now, if known, [flows]
        self._never_full = np.empty(0, dtype=np.int64)
        self._lasts = np.empty(0, dtype=np.int64)

    def _add(
        self,
        flow_id: int,
        size: float,
        route: Route,
        ends: tuple[int, int],
        loss_key: int,
        sender: dict[str, float],
        now: float,
        control: Control,
    ) -> None:
        """Add a flow with the state of its sender; ``begin`` explains the other arguments."""
        links = [self._link(name, capacity) for name, capacity in route] or [0]
        for place, link in enumerate(links):
            self._level_of[link] = max(self._level_of[link], place)
        hops = max(self._route.shape[1], len(links))
        self._widen(hops)
        padded = [*links, *[0] * (hops - len(links))]
        self._id = append_row(self._id, flow_id)
        self._size = append_row(self._size, size)
        for name in _EMPTY_AT_FIRST:
            setattr(self, name, append_row(getattr(self, name), 0.0))
        self._mark = append_row(self._mark, math.inf)
        self._held = append_row(self._held, False)
        self._lasts = append_row(self._lasts, len(links) - 1)
        self._route = append_row(self._route, np.array(padded, dtype=np.int64))
        self._senders.append(sender)
        self._losses.append(loss_key)
        first_loss = self._losses.draw_drop(len(self._id) - 1)
        self._credit = append_row(self._credit, -first_loss)
        self._bbr.append(self._estimates_of(ends, loss_key, sender, now, control))
        self._history.add_flow(0.0)
        self._waits.add_flow(0.0)
        self._ends[flow_id] = ends
        self._forget()

    def _link(self, name: str, capacity: float) -> int:
        number = self._names.setdefault(name, len(self._capacity))
        if number == len(self._capacity):
            self._capacity = np.append(self._capacity, 0.0)
            self._length = np.append(self._length, 0.0)
            self._level_of.append(0)
        self._set_link(number, name, capacity)
        return number

    def _set_link(self, number: int, name: str, capacity: float) -> None:
        rate = min(capacity, UNLIMITED)
        self._capacity[number] = rate
        # an outage does not shorten a queue
        if rate:
            self._length[number] = self._rules.length(name, rate)

    def _widen(self, hops: int) -> None:
        more = hops - self._route.shape[1]
        if more > 0:
            pad = ((0, 0), (0, more))
            self._route = np.pad(self._route, pad)
            self._waiting = np.pad(self._waiting, pad)
            self._batches = np.pad(self._batches, (*pad, (0, 0)))
            self._arriving = np.pad(self._arriving, pad)

    def _first_state(
        self, ends: tuple[int, int], round_trip: float, now: float, control: Control
    ) -> dict[str, float]:
        """Return the state of a sender: new, or restarted after an idle time.

        After more than a timeout without a byte, the window is the initial one (RFC 5681, section
        4.1), and the threshold remembers three quarters of the former window (RFC 2861).
        """
        round_trip = max(round_trip, LEAST_STEP_S)
        first = self._rules.initial_window
        before = self._connections.get(ends)
        if before is None:
            return first_state(round_trip, first, math.inf, 0.0)
        window = before.window
        threshold = before.threshold
        # BBR keeps its window over an idle time
        is_idle = now - before.until > round_trip + _RETRANSMISSION_S
        if is_idle and control != "bbr":
            window = min(window, first)
            threshold = max(threshold, 0.75 * before.window)
        sender = first_state(round_trip, window, threshold, before.peak)
        # Linux: CUBIC's epoch goes on as if there had been no idle time
        sender["epoch"] = now - before.elapsed
        sender["epoch_window"] = before.epoch_window
        sender["friendly"] = before.friendly
        return sender

    def _estimates_of(
        self,
        ends: tuple[int, int],
        key: int,
        sender: dict[str, float],
        now: float,
        control: Control,
    ) -> Mapping[str, float | Floats]:
        """Return the estimates of a connection with BBR, which an idle time does not change."""
        before = self._estimates.get(ends)
        if before is None:
            row = first_estimates(sender["round_trip"], sender["window"], now, key)
            if control != "bbr":
                row["state"] = OTHER
            return row
        idle_s = now - self._connections[ends].until
        shifted = {name: before[name] + idle_s for name in ("round_since", "phase_since")}
        estimates = {**before, **shifted}
        if now > before["least_since"] + FILTER_S:
            # an idle time has emptied the queues, and needs no small window
            estimates["least_since"] = now
        return estimates

    def _remember(self, row: int, until: float) -> None:
        senders = self._senders
        ends = self._ends.pop(self._id.item(row))
        if self._bbr.is_used[row]:
            self._estimates[ends] = self._bbr.row(row)
        self._connections[ends] = SenderMemory(
            senders.window.item(row),
            senders.threshold.item(row),
            senders.peak.item(row),
            senders.epoch_window.item(row),
            senders.friendly.item(row),
            until - senders.epoch.item(row),
            until,
        )

    def _remove(self, rows: Flags, now: float) -> None:
        """Remove flows, and remember the state of their senders."""
        for row in np.flatnonzero(rows).tolist():
            self._remember(row, now)
        stay = ~rows
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[stay])
        self._senders.select(stay)
        self._bbr.select(stay)
        self._losses.select(stay)
        self._history.select(stay)
        self._waits.select(stay)
        self._forget()

    def _forget(self) -> None:
        """Forget what holds only until flows come or go."""
        self._is_grouped = False
        self._acked = None

    def _group(self) -> None:
        """Sort the links of routes by level, so that bytes pass a route within a step."""
        self._is_grouped = True
        self._has_bbr = bool(self._bbr.is_used.any())
        on_route = np.arange(self._route.shape[1]) <= self._lasts[:, None]
        flows, places = on_route.nonzero()
        links = self._route[flows, places]
        levels = np.array(self._level_of)[links]
        # links that only hold senders back
        later = np.bincount(links, weights=1.0 * (places > 0), minlength=len(self._capacity))
        holds = (later == 0) & self._rules.holds_back
        self._never_full = np.flatnonzero(holds)
        hops = self._route.shape[1]
        self._levels = []
        for level in range(int(levels.max(initial=-1)) + 1):
            at = levels == level
            if at.any():
                is_last = places[at] == self._lasts[flows[at]]
                cells = flows[at] * hops + places[at]
                self._levels.append(Level(flows[at], links[at], cells, is_last))

    def _delays(self) -> Floats:
        """Return the time in queues of each flow's route (s), float64 [flows]."""
        backlog = np.bincount(
            self._route.ravel(), weights=self._waiting.ravel(), minlength=len(self._capacity)
        )
        rate = np.where(self._capacity > 0, self._capacity, math.inf)
        delays: Floats = (backlog / rate)[self._route].sum(axis=1)
        return delays

    def queued(self) -> dict[str, tuple[float, float]]:
        """Return bytes in the queue of each link, and its length (bytes), by name."""
        backlog = np.bincount(
            self._route.ravel(), weights=self._waiting.ravel(), minlength=len(self._capacity)
        )
        queues: dict[str, tuple[float, float]] = {}
        for name, number in self._names.items():
            queues[name] = (backlog.item(number), self._length.item(number))
        return queues

    def balance(self) -> Floats:
        """Return what each flow sent less what is delivered, on the way or dropped (bytes), [flows]."""
        under_way = self._waiting.sum(axis=1) + self._arriving.sum(axis=1)
        balance: Floats = self._sent - self._delivered - under_way - self._lost - self._dropped
        return balance


_EMPTY_AT_FIRST: Sequence[str] = (
    "_sent",
    "_delivered",
    "_dropped",
    "_lost",
    "_waiting",
    "_batches",
    "_arriving",
)
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
