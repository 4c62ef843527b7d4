"""Time steps in which the bytes of flows move through links with queues.

Within a step each flow sends the bytes that its window allows after the acknowledgements of the
step, each link serves its queue first in, first out, and all bytes move at constant rates. Steps are
a fraction of a round trip. If all rates stay constant, one step lasts until the next flow ends.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedsim.clock.simulation import on_grid_after
from fedsim.common.arrays import AnyArray, Flags, Floats
from fedsim.common.saved import saved
from fedsim.world.network.queues.batches import open_batch
from fedsim.world.network.queues.congestion import Growth, part_of
from fedsim.world.network.queues.connections import SenderMemory
from fedsim.world.network.queues.links import share_first_links
from fedsim.world.network.queues.losses import LossDraws
from fedsim.world.network.queues.movement import MovedBytes, Movement
from fedsim.world.network.queues.queued_flows import LEAST_STEP_S, NewFlow
from fedsim.world.network.queues.steady import MOST_STEP_S, SteadyFlows
from fedsim.world.network.queues.step_plan import NO_BYTES, QueueingRules, StepPlan

_STEP_SHARE = 1 / 4  # length of a step as a share of a round trip on empty links
_QUEUE_SHARE = 1 / 4  # length of a step as a share of the time in queues
_LEAST_BUSY = 1e-6  # least part of a step in which the bytes of an ending flow move
_PATIENCE_STEPS = 4  # steps between two attempts to plan a single step up to a flow's end

Memories = list[tuple[tuple[int, int], SenderMemory]]
"""A pair for each ended flow: its (sender ID, receiver ID), and the state of its sender."""


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Bytes that senders send in a time step of the window model; arrays [flows].

    Attributes:
        sent: bytes that each sender sends, float64.
        busy: share of the step in which the sender would send at its pacing rate, 0 to 1, float64: the
            bytes that its window and pacing rate allow and that it still has to send, divided by the
            bytes that its pacing rate allows in the step. 0 without pacing.
        is_held: whether the flow's first link, rather than the window, limits the sender, bool. It is
            true only if the window suffices for ``MOST_STEP_S`` more, so that the sender stays held.
        growth: growth of the flows' windows in the step.
        acked: bytes that are acknowledged at the end of the step, float64.
    """

    sent: Floats
    busy: Floats
    is_held: Flags
    growth: Growth
    acked: Floats


@saved()
class LinkComponent(SteadyFlows):
    """Set of flows that share links with each other; it moves their bytes (TCP's window model).

    Flows in different sets (components) share no link, so ``Queueing`` computes each set separately.
    Two flows without a common link are in one component if a third flow shares a link with each.
    ``plan`` computes how all bytes move in the next step of simulated time, without moving them.
    ``commit`` moves the bytes up to a given time. It must be called before any flow or link is
    changed.

    Args:
        rules: congestion control, sizes of queues, and size of packets.

    Attributes:
        next_end: next time at which a flow or the step that ``plan`` computed ends (s); infinity
            without such a step.
    """

    def __init__(self, rules: QueueingRules) -> None:
        super().__init__(rules)
        self.next_end = math.inf
        self._plan: StepPlan | None = None
        self._told = -math.inf  # time up to which ``take_ended`` has returned ends
        self._steps_until_look = 0  # steps until a single step up to a flow's end is tried again

    def add(self, flow: NewFlow, now: float) -> None:
        """Add a flow that begins now.

        Args:
            flow: the flow.
            now: the time (s), up to which ``commit`` must have been called.
        """
        self._since = now
        self._append(flow)
        self._history.add(now, self._delivered, math.inf)
        self._try_long_step_next()

    def remove(self, flow_id: int, now: float) -> Memories:
        """Remove a cancelled flow at the time ``now``.

        Args:
            flow_id: ID of the flow.
            now: the time (s), up to which ``commit`` must have been called.

        Returns:
            A list of one pair: the flow's (sender ID, receiver ID), and the state of the sender,
            such as its window, with which the next flow between the two begins.
        """
        self._try_long_step_next()
        is_cancelled = self._id == flow_id
        return self._remove_rows(is_cancelled, np.full(len(self), now))

    def adopt(self, others: "LinkComponent") -> None:
        """Move all flows of another component into this one, when a new flow connects the two.

        ``commit`` must have been called on both components for the same time. Afterwards ``others``
        must not be used any more.
        """
        self._adopt(others)
        self._try_long_step_next()

    def split(self) -> list["LinkComponent"]:
        """Divide the flows into components without common links, after a flow has ended.

        Returns:
            The components, which replace this one; only this one if all flows are still connected;
            empty if there are no flows.
        """
        if not len(self):
            return []
        if self._is_whole or len(self) == 1:
            return [self]
        return self._split()

    def set_link(self, name: str, rate: float, length: float) -> None:
        """Change the rate and the queue of a link.

        Before, ``commit`` must be called with the present time, as it moves bytes by the old rate.

        Args:
            name: name of the link.
            rate: its rate (bytes/s).
            length: capacity of its queue (bytes).
        """
        number = self.links.names[name]
        self.links.capacity[number] = rate
        self.links.length[number] = length
        self._known_delays = None
        self._try_long_step_next()

    def has_loss(self, flow_id: int, at_sender: float, at_receiver: float) -> bool:
        """Return whether a flow's packets are lost with exactly the given probabilities.

        Args:
            flow_id: ID of the flow.
            at_sender: probability on the sender's own link, 0 to 1.
            at_receiver: probability on the receiver's own link, 0 to 1.
        """
        return self._losses.has_probabilities(self.row_of(flow_id), at_sender, at_receiver)

    def set_loss(self, flow_id: int, at_sender: float, at_receiver: float) -> None:
        """Change the probabilities with which a flow's packets are lost on devices' own links.

        ``commit`` must have been called up to the present time.

        Args:
            flow_id: ID of the flow.
            at_sender: probability on the sender's own link, 0 to 1.
            at_receiver: probability on the receiver's own link, 0 to 1.
        """
        self._losses.set_probabilities(self.row_of(flow_id), at_sender, at_receiver)
        self._try_long_step_next()

    def set_round_trip(self, flow_id: int, round_trip: float) -> None:
        """Change the round trip time that a flow has if all queues are empty.

        ``commit`` must have been called up to the present time.

        Args:
            flow_id: ID of the flow.
            round_trip: the new round trip (s).
        """
        self.senders.round_trip[self.row_of(flow_id)] = round_trip
        self._acked = None
        self._try_long_step_next()

    def _try_long_step_next(self) -> None:
        self._steps_until_look = 0

    def round_trip(self, flow_id: int) -> float:
        """Return the round trip time that a flow has if all queues are empty (s)."""
        return self.senders.round_trip.item(self.row_of(flow_id))

    @property
    def is_planned(self) -> bool:
        """Whether the next time step of this component's flows is computed, but not carried out."""
        return self._plan is not None

    def take_ended(self, until: float) -> list[tuple[float, int]]:
        """Return the flows that end in the planned step by a time, and that were not returned before.

        The flows remain in the component until ``commit``.

        Args:
            until: the time (s).

        Returns:
            Exact end (s) and ID of each flow.
        """
        plan = self._plan
        assert plan is not None
        if plan.parts is None:
            return []
        # ends up to the time ``_told`` were returned before
        is_new = (plan.ends <= until) & (plan.ends > self._told)
        self._told = until
        self._find_next_end(plan)
        if not np.count_nonzero(is_new):
            return []
        return list(zip(plan.ends[is_new].tolist(), self._id[is_new].tolist(), strict=True))

    def is_over(self, now: float) -> bool:
        """Return whether the time step that is being simulated ends by ``now`` (s).

        The result is False if no step has been planned.
        """
        return self._plan is not None and self._since + self._plan.length_s <= now

    def _find_next_end(self, plan: StepPlan) -> None:
        """Set ``next_end`` to the end of the step, or the end of a flow that was not returned yet.

        The earlier of these ends is the next one.
        """
        self.next_end = self._since + plan.length_s
        if plan.parts is not None:
            later = plan.ends[plan.ends > self._told]
            self.next_end = min(self.next_end, float(later.min(initial=math.inf)))

    def commit(self, now: float) -> Memories:
        """Move the bytes of the planned step up to ``now``, and remove the flows that have ended.

        The rest of the step is forgotten; ``plan`` must be called for the time after ``now``.

        Args:
            now: the time (s), for which ``take_ended`` must have been called.

        Returns:
            A pair for each removed flow: its (sender ID, receiver ID), and the state of the sender,
            such as its window, with which the next flow between the two begins.
        """
        plan = self._plan
        passed_s = now - self._since
        if plan is None or passed_s <= 0:
            return []
        self._since = now
        self._plan = None
        self.next_end = math.inf
        # ``plan.parts``: part of the step in which each flow moves its bytes; None: the whole step.
        # A step of infinite length moves no bytes.
        passed_part = passed_s / plan.length_s if plan.length_s < math.inf else 0.0
        is_whole_step = passed_part >= 1
        if is_whole_step:
            self._carry_out_all(plan)
        elif plan.parts is None:  # no flow ends in the step
            self._carry_out_part(plan, np.full(len(self), passed_part))
        else:  # a flow that ends moves all its bytes within its part of the step
            self._carry_out_part(plan, np.minimum(passed_part / plan.parts, 1.0))
        self._history.add(now, self._delivered, self._memory_s())
        self._react(now, plan.acked if is_whole_step else None)
        if plan.parts is None:
            return []
        has_ended = plan.ends <= now
        return self._remove_rows(has_ended, plan.ends) if np.count_nonzero(has_ended) else []

    def give_up_plan(self, now: float) -> None:
        """Discard the planned time step, before a flow or link changes at ``now`` (s).

        ``commit`` must have carried out the part of the time step up to ``now`` before.
        """
        self._plan = None
        self.next_end = math.inf
        self._since = now

    def _carry_out_all(self, plan: StepPlan) -> None:
        """Move the bytes, and grow the windows, of a whole planned step."""
        had_no_losses = self._apply_changes(plan, share=None)
        self._batches = plan.batches
        self._waiting = plan.waiting
        self._arriving = plan.arriving
        self._mark_losses(had_no_losses)
        self._steps_until_look -= 1
        if plan.is_look:
            self._steps_until_look = _PATIENCE_STEPS

    def _carry_out_part(self, plan: StepPlan, shares: Floats) -> None:
        """Move the bytes, and grow the windows, of the first part of the planned step.

        Args:
            plan: the planned step.
            shares: part of each flow's bytes that have moved by now, 0 to 1, float64 [flows].
        """
        had_no_losses = self._apply_changes(plan, shares)
        # the plan has a batch for the bytes of the step too (``_move``)
        self._batches = _between(open_batch(self._batches), plan.batches, shares)
        self._waiting = _between(self._waiting, plan.waiting, shares)
        self._arriving = _between(self._arriving, plan.arriving, shares)
        self._mark_losses(had_no_losses)

    def _apply_changes(self, plan: StepPlan, share: Floats | None) -> Flags:
        """Add the planned changes to the flows' counts of bytes and to their windows.

        Args:
            plan: the planned step.
            share: part of each flow's changes that is carried out, 0 to 1, [flows]; None for all.

        Returns:
            Whether each flow had no unnoticed losses before this step (lost bytes of which its sender
            has not learned), bool [flows].
        """
        had_no_losses: Flags = self._dropped <= 0  # dropped bytes of which senders do not know
        self._sent += part_of(plan.sent, share)
        self._delivered += part_of(plan.delivered, share)
        self._dropped += part_of(plan.dropped, share)
        self._credit += part_of(plan.credit, share)
        self._losses.until_loss += part_of(plan.until_loss, share)
        self._known_delays = None
        self._losses.use(plan.draws_on_links, plan.draws_in_queues)
        self._held = plan.is_held
        self.senders.apply(plan.growth, share, self._since)
        return had_no_losses

    def _mark_losses(self, had_no_losses: Flags) -> None:
        """Store when the sender of each flow with a new loss will learn of it.

        It learns of the loss when all bytes that are now delivered or under way are acknowledged.

        Args:
            had_no_losses: whether the flow had no unnoticed losses before the step, bool [flows].
        """
        # the mark is the count of acknowledged bytes at which the sender learns; infinity: no loss
        is_new = had_no_losses & (self._dropped > 0) & np.isinf(self._mark)
        if np.count_nonzero(is_new):
            ahead = self._delivered + self._under_way()
            self._mark[is_new] = ahead[is_new]

    def _remove_rows(self, rows: Flags, ends: Floats) -> Memories:
        """Remove flows that have ended.

        Args:
            rows: whether each flow is removed, bool [flows].
            ends: end of each flow (s), float64 [flows].

        Returns:
            The connection of each removed flow: the IDs (sender, receiver), with the state of the
            sender, from which the next flow between the two begins.
        """
        memories = []
        # without pacing the delays have no effect, and any array may replace them
        delays = self._delays() if self._rules.pacing else self._size
        paces = self._window_paces(np.zeros(len(self)), delays)
        for row in rows.nonzero()[0].tolist():
            connection = self._ends[self._id.item(row)]
            memory = self._sender_memory(row, ends.item(row), paces.item(row))
            memories.append((connection, memory))
        self._select(~rows)
        return memories

    def plan(self) -> None:
        """Compute and store how all bytes move in the next time step, without moving them.

        If all rates stay constant until the next end of a flow, the step lasts until then.
        Otherwise it is short compared with round trips and times in queues.
        """
        if self.links.grouped < len(self):  # some flows are not in ``links.levels`` yet
            self.links.group(self._route, self._lasts)
        is_look = self._steps_until_look <= 0  # whether a long step is tried now
        plan = self._plan_until_end() if is_look else None
        if plan is None:
            plan = self._plan_step(is_look)
        self._plan = plan
        self._told = self._since  # ``take_ended`` has returned no end of this step yet
        self._find_next_end(plan)

    def _length_s(self, delays: Floats, acked: Floats) -> float:
        """Return the length of the next step (s), short compared with round trips and times in queues.

        Args:
            delays: time that bytes wait in the queues of each flow's route (s), float64 [flows].
            acked: bytes of each flow that are acknowledged by now, float64 [flows].
        """
        senders = self.senders
        lengths_s = np.maximum(_STEP_SHARE * senders.round_trip, _QUEUE_SHARE * delays)
        # a sender that its first link holds back does not send more after an acknowledgement
        lengths_s[self._held] = MOST_STEP_S
        length_s = min(max(float(lengths_s.min()), LEAST_STEP_S), MOST_STEP_S)
        length_s = self._shorten_to_acks(length_s, acked)
        return on_grid_after(self._since + length_s) - self._since

    def _plan_step(self, is_look: bool) -> StepPlan:
        """Return the plan of a step that is short compared with round trips and times in queues.

        Args:
            is_look: whether the caller has just tried to plan a long step, until the next end of a
                flow, which was not possible. It tries again only some steps later.
        """
        delays = self._delays()
        acked = self._known_acks()
        length_s = self._length_s(delays, acked)
        sending = self._send(length_s, delays, acked)
        draws = self._losses.draws()
        movement = self._move(sending, length_s, draws)
        amounts = movement.bytes
        ends, parts = self._find_ends(movement, length_s)
        # An acknowledgement comes a round trip after the delivery. If no round trip is shorter than
        # the step, all deliveries that are acknowledged in the step were before the step.
        has_known_acks = bool((self.senders.round_trip >= length_s).all())
        # nothing will happen before a flow or a link changes
        if not self._moves(sending, amounts) and self._is_stuck():
            length_s = math.inf
        return StepPlan(
            length_s=length_s,
            sent=sending.sent,
            delivered=amounts.delivered,
            dropped=amounts.dropped,
            credit=amounts.credit,
            until_loss=amounts.until_loss - self._losses.until_loss,
            batches=amounts.batches,
            waiting=amounts.waiting,
            arriving=amounts.arriving,
            growth=sending.growth,
            ends=ends,
            parts=parts,
            is_held=sending.is_held,
            acked=sending.acked if has_known_acks else None,
            is_look=is_look,
            draws_on_links=draws.on_links,
            draws_in_queues=draws.in_queues,
        )

    def _send(self, length_s: float, delays: Floats, acked_before: Floats) -> SentBytes:
        """Compute how many bytes each sender sends in a step, limited by its window and first link.

        Windows are in segments (packets). A sender is held if its first link makes it wait, instead
        of dropping bytes that do not fit into its queue.

        Args:
            length_s: length of the step (s).
            delays: time that bytes wait in the queues of each flow's route (s), float64 [flows].
            acked_before: bytes that are acknowledged at the begin of the step, float64 [flows].
        """
        senders = self.senders
        packet = self._rules.packet
        end = self._since + length_s
        acked = self._history.at(end - senders.round_trip)
        # limit 1: the window, less the sent bytes that are neither acknowledged nor known to be lost
        growth = self._growth_by_acks(acked_before, acked, end, delays)
        allowed = (senders.window + growth.windows) * packet + acked + self._lost - self._sent
        # within a step that is longer than the round trip, a held sender sends several windows
        is_repeating = self._held & (length_s > senders.round_trip)
        if np.count_nonzero(is_repeating):
            repeated = senders.window * packet * length_s / senders.round_trip
            allowed = np.where(is_repeating, np.maximum(allowed, repeated), allowed)
        # limit 2: the pacing rates (segments/s), if any
        paces = self._pacing_limits(growth.windows, delays, has_acks=acked_before > 0)
        paced = None
        if paces is not None:
            paced = paces * packet * length_s
            allowed = np.minimum(allowed, paced)
        # limit 3: the bytes that the sender has, with the lost bytes, which it sends again
        unsent = self._size + self._lost - self._sent
        wanted = np.minimum(np.maximum(allowed, 0.0), unsent)
        # limit 4: the first link, if it makes senders wait
        sent = wanted
        if self._rules.holds_back:
            sendable = self.links.capacity * length_s
            sent = share_first_links(wanted, self._route[:, 0], sendable)
        # A long step needs a sender that stays held: its window must suffice for MOST_STEP_S more.
        lasting_bytes = senders.window * packet * length_s
        is_held = (sent < wanted) & (lasting_bytes >= sent * (senders.round_trip + MOST_STEP_S))
        # part of the step in which a paced sender sends; without pacing, all bytes are sent at the
        # begin of the step
        busy = np.zeros(len(self)) if paced is None else wanted / paced
        return SentBytes(sent, busy, is_held, growth, acked)

    def _growth_by_acks(
        self, acked_before: Floats, acked: Floats, end: float, delays: Floats
    ) -> Growth:
        """Compute by how much the acknowledgements of a step let each sender's window grow.

        Args:
            acked_before, acked: bytes that are acknowledged at the begin and at the end of the step,
                float64 [flows].
            end: end of the step (s).
            delays: time that bytes wait in the queues of each flow's route (s), float64 [flows].
        """
        senders = self.senders
        packet = self._rules.packet
        in_flight = self._sent - self._lost - acked_before
        # in slow start a window grows up to twice the bytes in flight; afterwards it grows only if
        # it is full
        is_slow = senders.window < senders.threshold
        full_bytes = np.where(is_slow, 0.5, 1.0) * senders.window * packet
        # a finite mark: the sender has still to learn of a loss, and its window does not grow
        is_limited = (in_flight >= full_bytes - packet) & np.isinf(self._mark)
        return self._window_growth((acked - acked_before) / packet, is_limited, end, delays)

    def _move(self, sending: SentBytes, length_s: float, draws: LossDraws) -> Movement:
        """Compute where the bytes of all flows are after a step, without changing the flows.

        Args:
            sending: bytes that senders send in the step.
            length_s: length of the step (s).
            draws: random draws that decide which packets are lost.
        """
        amounts = MovedBytes(
            dropped=np.zeros(len(self)),
            delivered=np.zeros(len(self)),
            credit=np.zeros(len(self)),
            until_loss=self._losses.until_loss,
            batches=open_batch(self._batches),
            waiting=self._waiting.copy(),
            arriving=self._arriving.copy(),
        )
        packet = self._rules.packet
        movement = Movement(self.links, length_s, packet, self._losses, draws, amounts)
        movement.send(sending.sent, sending.busy)
        for level in self.links.levels:
            movement.pass_level(level, self._credit)
        movement.receive()
        return movement

    @staticmethod
    def _moves(sending: SentBytes, amounts: MovedBytes) -> bool:
        """Return whether any byte moves, or any sender's window grows, in a time step.

        Args:
            sending: bytes that senders send in the step.
            amounts: bytes in queues and on links at the end of the step.
        """
        amounts_that_move = (
            sending.sent,
            amounts.delivered,
            amounts.arriving,
            sending.growth.windows,
        )
        return any(np.count_nonzero(amount) for amount in amounts_that_move)

    def _find_ends(self, movement: Movement, length_s: float) -> tuple[Floats, Floats | None]:
        """Find the flows whose last bytes are delivered in a step.

        A flow that ends within the step moves all its bytes in the part of the step until then.

        Args:
            movement: movement of all bytes in the step.
            length_s: length of the step (s).

        Returns:
            End of each flow (s), infinity for flows that go on; and the part of the step in which
            each flow's bytes move, None if no flow ends; float64 [flows] each.
        """
        ends = np.full(len(self), math.inf)
        missing = self._size - self._delivered
        delivered = movement.bytes.delivered
        is_complete = delivered >= missing - NO_BYTES
        if not np.count_nonzero(is_complete):
            return ends, None
        # the bytes of a flow that ends move only while its sender or a link on its route is busy
        parts = np.ones(len(self))
        parts[is_complete] = np.maximum(movement.busy()[is_complete], _LEAST_BUSY)
        share_needed = missing[is_complete] / np.maximum(delivered[is_complete], NO_BYTES)
        delays_s = length_s * parts[is_complete] * np.clip(share_needed, 0.0, 1.0)
        # an end is after the begin of the step, even if the time until the end is rounded to 0
        ends[is_complete] = np.maximum(
            self._since + delays_s, math.nextafter(self._since, math.inf)
        )
        return ends, parts

    def sent(self, flow_id: int, at: float) -> float:
        """Return the bytes of a flow that have arrived by a time.

        Args:
            flow_id: ID of the flow.
            at: a time between the last change and ``next_end`` (s).
        """
        row = self.row_of(flow_id)
        plan = self._plan
        delivered = self._delivered.item(row)
        if plan is None or plan.length_s == math.inf:
            return delivered
        # The bytes of a flow that ends in the step move within this part of the step, which begins
        # at ``_since``.
        part = 1.0 if plan.parts is None else plan.parts.item(row)
        passed = min((at - self._since) / plan.length_s / part, 1.0)
        return delivered + plan.delivered.item(row) * passed

    def rate(self, flow_id: int) -> float:
        """Return the rate at which a flow is delivered in the planned step (bytes/s)."""
        row = self.row_of(flow_id)
        plan = self._plan
        if plan is None or plan.length_s == math.inf:
            return 0.0
        part = 1.0 if plan.parts is None else plan.parts.item(row)
        return plan.delivered.item(row) / (plan.length_s * part)


def _between(before: AnyArray, after: AnyArray, shares: Floats) -> AnyArray:
    """Interpolate linearly between the bytes at the begin and at the end of a step, [flows, ...].

    Args:
        before, after: bytes at the begin and at the end of the step, [flows, ...].
        shares: part of each flow's bytes that have moved, 0 to 1, float64 [flows].
    """
    column = shares.reshape(-1, *[1] * (before.ndim - 1))
    between: AnyArray = before + column * (after - before)
    return between
