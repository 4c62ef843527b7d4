"""Sharing rule ``Queueing``: congestion windows of senders, and a drop-tail queue before each link.

Time goes in coarse steps. Within a step each flow sends what its window allows after the
acknowledgements of the step, each link serves its queue first in, first out, and everything moves
linearly. While no queue can lose anything, one step lasts until the next flow ends.
"""

import math

import numpy as np

from fedsim.clock.simulation import on_grid_after
from fedsim.common.arrays import Floats
from fedsim.world.network.acknowledged import NO_BYTES, AcknowledgedFlows
from fedsim.world.network.batches import (
    mix_batches,
    open_batch,
    serve_in_order,
    sum_by_link,
)
from fedsim.world.network.congestion import Control
from fedsim.world.network.filling import Route, max_min
from fedsim.world.network.queued import LEAST_STEP_S, UNLIMITED
from fedsim.world.network.queues import QueueingRules, StepPlan, choose_drops

_MOST_STEP_S = 20e-3
_STEP_SHARE = 1 / 4  # of a round trip on empty links
_QUEUE_SHARE = 1 / 4  # of the time in queues
_LEAST_BUSY = 1e-6  # part of a step that a moving flow takes at least
_PATIENCE_STEPS = 4  # steps between two looks for a jump


class Queueing(AcknowledgedFlows):
    """Sharing rule of links with queues, on which flows have congestion windows.

    Args:
        rules: control, queues and packets.
    """

    def __init__(self, rules: QueueingRules) -> None:
        super().__init__(rules)
        self.next_end = math.inf
        self.changed = False
        self.steps = 0
        self._plan: StepPlan | None = None
        self._since_look = 0

    # changes

    def begin(
        self,
        flow_id: int,
        size: float,
        now: float,
        route: Route,
        round_trip: float,
        ends: tuple[int, int],
        loss_key: int = 0,
        control: Control | None = None,
    ) -> None:
        """Add a flow, with the window that its connection has by now.

        Args:
            flow_id: ID of the flow.
            size: bytes of the flow on the wire.
            now: the time (s).
            route: name and capacity (bytes/s) of each of its links, in the order in which its
                bytes pass them.
            round_trip: round trip on empty links (s).
            ends: IDs of sender and receiver.
            loss_key: seed of its losses, in queues and by ``set_loss``.
            control: its congestion control; None for the rules' control.
        """
        self._commit(now)
        control = control or self._rules.control
        sender = self._first_state(ends, round_trip, now, control)
        self._add(flow_id, size, route, ends, loss_key, sender, now, control)
        self._replan()

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
        """Add a flow of a new connection without a round trip; see ``begin``."""
        self.begin(flow_id, size, now, route, 0.0, (flow_id, flow_id))

    def leave(self, flow_id: int, now: float) -> None:
        self._commit(now)
        self._remove(self._id == flow_id, now)
        self._replan()

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        """Change nothing, because own links are links of the route here."""

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        if link in self._names:
            self._commit(now)
            self._set_link(self._names[link], link, capacity)
            self._replan()

    def set_rate(self, link: str, rate: float, now: float) -> None:
        """Change the rate of a link, and keep the length of its queue (bytes).

        Args:
            link: name of the link; unknown links are ignored.
            rate: the rate (bytes/s), 0 allowed.
            now: the time (s).
        """
        if link in self._names:
            self._commit(now)
            self._capacity[self._names[link]] = min(rate, UNLIMITED)
            self._replan()

    def set_loss(self, flow_id: int, first: float, last: float, now: float) -> None:
        """Change the chances with which a flow's packets are lost, beside what queues drop.

        Args:
            flow_id: ID of the flow.
            first: chance on the sender's own link.
            last: chance on the receiver's own link.
            now: the time (s).
        """
        self._commit(now)
        self._losses.set_chances(self._id == flow_id, first, last)
        self._replan()

    def set_round_trip(self, flow_id: int, round_trip: float, now: float) -> None:
        """Change the round trip of a flow.

        Args:
            flow_id: ID of the flow.
            round_trip: round trip on empty links (s).
            now: the time (s).
        """
        self._commit(now)
        self._senders.round_trip[self._id == flow_id] = max(round_trip, LEAST_STEP_S)
        self._acked = None
        self._replan()

    def _replan(self) -> None:
        self._plan = None
        self.next_end = math.inf
        self.changed = True

    def share(self, now: float) -> None:
        self.changed = False
        self._commit(now)
        self._since_look = 0
        self._plan_step()

    # time

    def advance(self, until: float) -> list[tuple[float, int]]:
        ended: list[tuple[float, int]] = []
        while self.next_end <= until:
            now = self.next_end
            plan = self._plan
            assert plan is not None
            over = plan.ends <= now
            self._commit(now)
            if over.any():
                ended.extend((now, flow_id) for flow_id in self._id[over].tolist())
                self._remove(over, now)
            self._plan_step()
            self.changed = False
        return ended

    def _commit(self, now: float) -> None:
        """Carry out the planned step as far as ``now``."""
        plan = self._plan
        passed = now - self._since
        self._since = now
        if passed:
            self._acked = None
        if plan is None or passed <= 0 or not len(self._id):
            return
        self._plan = None
        self.next_end = math.inf
        share = min(passed / plan.length_s, 1.0) if plan.length_s < math.inf else 0.0
        self._sent += share * plan.sent
        self._delivered += share * plan.delivered
        self._dropped += share * plan.dropped
        self._credit += share * plan.credit
        self._losses.before += share * plan.before_loss
        new_drops = (plan.dropped > 0) & np.isinf(self._mark)
        self._batches = mix_batches(self._batches, plan.batches, share)
        self._waiting += share * (plan.waiting - self._waiting)
        self._arriving += share * (plan.arriving - self._arriving)
        if new_drops.any():
            ahead = self._delivered + self._waiting.sum(axis=1) + self._arriving.sum(axis=1)
            self._mark[new_drops] = ahead[new_drops]
        self._held = plan.held
        self._senders.window += share * plan.growth
        self._history.add(now, self._delivered, self._memory_s())
        self._react(now)

    def _plan_step(self) -> None:
        self._plan = None
        self.next_end = math.inf
        if not len(self._id):
            return
        if not self._is_grouped:
            self._group()
        self._history.add(self._since, self._delivered, math.inf)
        self._since_look -= 1
        plan = None
        if self._since_look < 0:
            plan = self._jump()
            self._since_look = _PATIENCE_STEPS
        if plan is None:
            plan = self._step()
        self.steps += 1
        self._plan = plan
        first = float(plan.ends.min())
        self.next_end = min(self._since + plan.length_s, first)

    def _step(self) -> "StepPlan":
        senders = self._senders
        delays = self._delays()
        floor = np.maximum(_STEP_SHARE * senders.round_trip, _QUEUE_SHARE * delays)
        floor[self._held] = _MOST_STEP_S
        length_s = min(max(float(floor.min()), LEAST_STEP_S), _MOST_STEP_S)
        packet = self._rules.packet
        acked_before = self._acked
        if acked_before is None:
            acked_before = self._history.at(self._since - senders.round_trip)
        length_s = self._until_acks(length_s, acked_before)
        length_s = on_grid_after(self._since + length_s) - self._since
        end = self._since + length_s
        acked = self._history.at(end - senders.round_trip)
        in_flight = self._sent - self._lost - acked_before
        # in slow start a window grows up to twice the flight, else only if it is full
        slow = senders.window < senders.threshold
        full = np.where(slow, 0.5, 1.0) * senders.window * packet
        limited = (in_flight >= full - packet) & np.isinf(self._mark)
        growth = self._grow((acked - acked_before) / packet, limited, end, delays)
        room = (senders.window + growth) * packet + acked + self._lost - self._sent
        # within a step that is longer than its round trip, a held sender sends several windows
        repeated = senders.window * packet * length_s / senders.round_trip
        repeats = self._held & (length_s > senders.round_trip)
        room = np.where(repeats, np.maximum(room, repeated), room)
        paced = self._paced(growth, delays) * packet * length_s
        room = np.minimum(room, paced)
        unsent = self._size + self._lost - self._sent
        wants = np.minimum(np.maximum(room, 0.0), unsent)
        return self._move(wants, length_s, growth, wants / paced)

    def _move(self, wants: Floats, length_s: float, growth: Floats, busy: Floats) -> "StepPlan":
        """Plan the way of all bytes in a step.

        Args:
            wants: bytes that each sender wants to send, float64 [flows].
            length_s: length of the step (s).
            growth: growth of windows (segments), float64 [flows].
            busy: part of the step in which each sender sends, 0 to 1, float64 [flows].
        """
        links = len(self._capacity)
        room = self._capacity * length_s
        opened = open_batch(self._batches)
        batches = opened.copy()
        waiting = self._waiting.copy()
        arriving = self._arriving.copy()
        dropped = np.zeros(len(self._id))
        credit = np.zeros(len(self._id))
        delivered = np.zeros(len(self._id))
        busy = busy.copy()
        sent = wants
        if self._rules.holds_back:
            sent = self._hold_back(wants, length_s)
        losses = self._losses
        before_loss = losses.before
        entering = sent
        if losses.may_lose:
            lost, before_loss = losses.lose(losses.first, sent, before_loss)
            dropped += lost
            entering = sent - lost
        arriving[:, 0] += entering
        queues = batches.reshape(-1, batches.shape[2])
        waiting_cells = waiting.reshape(-1)
        arriving_cells = arriving.reshape(-1)
        divisor = np.where(room > 0, room, 1.0)
        for level in self._levels:
            flows = level.flows
            numbers = level.links
            cells = level.cells
            new = arriving_cells.take(cells)
            queue = queues.take(cells, axis=0)
            queue[:, -1] += new
            totals = sum_by_link(queue, numbers, links)
            out = queue * serve_in_order(totals, room).take(numbers, axis=0)
            rest = queue - out
            queued = totals.sum(axis=1)
            excess = np.maximum(queued - room - self._length, 0.0)
            excess[self._never_full] = 0.0
            if excess.any():
                refused = np.minimum(rest[:, -1], new)
                falls, change = choose_drops(
                    excess,
                    refused,
                    (self._credit + credit)[flows],
                    numbers,
                    flows,
                    self._rules.packet,
                    losses.draw_drop,
                )
                np.add.at(dropped, flows, falls)
                np.add.at(credit, flows, change)
                rest[:, -1] = np.maximum(rest[:, -1] - falls, 0.0)
            queues[cells] = rest
            waiting_cells[cells] = rest.sum(axis=1)
            arriving_cells[cells] = 0.0
            leaves = out.sum(axis=1)
            last = level.is_last
            delivered[flows[last]] = leaves[last]
            arriving_cells[cells[~last] + 1] += leaves[~last]
            part_used = np.minimum(queued / divisor, 1.0)
            np.maximum.at(busy, flows, part_used.take(numbers))
        if losses.may_lose:
            lost, before_loss = losses.lose(losses.last, delivered, before_loss)
            dropped += lost
            delivered -= lost
        missing = self._size - self._delivered
        ends = np.full(len(self._id), math.inf)
        over = delivered >= missing - NO_BYTES
        reached = missing[over] / np.maximum(delivered[over], NO_BYTES)
        ends[over] = self._since + length_s * busy[over] * np.clip(reached, 0.0, 1.0)
        if over.any():
            # a flow that ends within the step moves all its bytes in the first part of the step
            speed = np.ones(len(over))
            speed[over] = 1 / np.maximum(busy[over], _LEAST_BUSY)
            sent = sent * speed
            delivered *= speed
            dropped *= speed
            waiting = self._waiting + (waiting - self._waiting) * speed[:, None]
            arriving = self._arriving + (arriving - self._arriving) * speed[:, None]
            batches = opened + (batches - opened) * speed[:, None, None]
        stands = not (delivered.any() or sent.any() or arriving.any() or growth.any())
        if stands and self._is_stuck():
            length_s = math.inf
        # a held sender whose window outlasts a long step may take one
        lasting = self._senders.window * self._rules.packet * length_s
        held = (sent < wants) & (lasting >= sent * (self._senders.round_trip + _MOST_STEP_S))
        return StepPlan(
            length_s,
            sent,
            delivered,
            dropped,
            credit,
            before_loss - losses.before,
            batches,
            waiting,
            arriving,
            growth,
            ends,
            held,
        )

    def _hold_back(self, wants: Floats, length_s: float) -> Floats:
        """Share the first link of each route among its senders, which queue no more than it sends.

        Links that are not first on some route hold nobody back.
        """
        first = self._route[:, 0]
        total = np.bincount(first, weights=wants, minlength=len(self._capacity))
        room = self._capacity * length_s
        crowded = (total > room)[first]
        if not crowded.any():
            return wants
        counts = np.bincount(first[crowded], minlength=len(self._capacity))
        sent = wants.copy()
        if counts.max() == 1:
            sent[crowded] = np.minimum(wants, room[first])[crowded]
            return sent
        links = np.flatnonzero(counts)
        numbers = (np.cumsum(counts > 0) - 1)[first[crowded]]
        capacity = np.append(room[links], UNLIMITED)
        ones = np.ones(len(numbers))
        sent[crowded] = max_min(capacity, numbers.reshape(-1, 1), wants[crowded], ones)
        return sent

    # jumps

    def _jump(self) -> "StepPlan | None":
        """Plan one step until the next end, if no queue changes what flows deliver; else None."""
        senders = self._senders
        capacity = self._capacity
        if self._has_bbr:
            return None
        if np.isfinite(self._mark).any() or self._arriving.any() or self._losses.may_lose:
            return None
        if (senders.window < senders.threshold).any():
            grows = senders.window < senders.threshold
        else:
            grows = np.zeros(len(self._id), dtype=bool)
        flows = np.arange(len(self._id))
        rates_of_links = capacity[self._route]
        narrowest = rates_of_links.argmin(axis=1)
        rates = rates_of_links[flows, narrowest]
        load = np.bincount(
            self._route.ravel(),
            weights=np.repeat(rates, rates_of_links.shape[1]),
            minlength=len(capacity),
        )
        load[0] = 0.0
        if (load > capacity).any() or not rates.all():
            return None
        packet = self._rules.packet
        flight = rates * senders.round_trip
        window = senders.window * packet
        at_first = narrowest == 0
        queue = self._length[self._route[flows, narrowest]]
        waits = self._waiting[flows, narrowest]
        other_queues = self._waiting.sum(axis=1) - waits
        held = at_first & self._rules.holds_back
        # a queue of this part of the flight never runs dry after a loss
        keeps = queue >= (1 / 0.5 - 1) * flight + packet
        if self._rules.control == "cubic":
            keeps = queue >= (1 / 0.7 - 1) * flight + packet
        ready = (window >= flight + packet) & (other_queues <= NO_BYTES)
        unsent = self._size + self._lost - self._sent
        has_queue = (waits > packet) & keeps & ~grows
        in_pipe = self._sent - self._lost - self._history.at(self._since - senders.round_trip)
        fills = in_pipe >= flight - packet
        if not (ready & fills & (held | has_queue | (unsent <= 0))).all():
            return None
        ends = self._since + (self._size - self._delivered) / rates
        length_s = float(ends.min()) - self._since
        if length_s <= _MOST_STEP_S:
            return None
        delivered = rates * length_s
        sent = np.minimum(delivered, unsent)
        waiting = self._waiting.copy()
        waiting[flows, narrowest] = np.maximum(waits + sent - delivered, 0.0)
        batches = np.zeros_like(open_batch(self._batches))
        batches[:, :, -1] = waiting
        none = np.zeros(len(self._id))
        return StepPlan(
            length_s,
            sent,
            delivered,
            none,
            none,
            none,
            batches,
            waiting,
            self._arriving,
            none,
            ends,
            held,
        )

    # queries

    def sent(self, flow_id: int, at: float) -> float:
        row = int(np.flatnonzero(self._id == flow_id)[0])
        plan = self._plan
        delivered = self._delivered.item(row)
        if plan is None or plan.length_s == math.inf:
            return delivered
        passed = min((at - self._since) / plan.length_s, 1.0)
        return delivered + plan.delivered.item(row) * passed

    def rate(self, flow_id: int) -> float:
        row = int(np.flatnonzero(self._id == flow_id)[0])
        plan = self._plan
        if plan is None or plan.length_s == math.inf:
            return 0.0
        return plan.delivered.item(row) / plan.length_s
