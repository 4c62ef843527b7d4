"""Acknowledgements of flows on links with queues, and what senders learn from them."""

import math
from dataclasses import replace

import numpy as np

from fedsim.common.arrays import Flags, Floats
from fedsim.world.network.queues.bbr import change_states, grow_by_bandwidth, note_round
from fedsim.world.network.queues.congestion import (
    Growth,
    grow,
    leave_slow_start,
    pacing_rate,
    reduce,
)
from fedsim.world.network.queues.queued_flows import QueuedFlows
from fedsim.world.network.queues.step_plan import NO_BYTES, QueueingRules

_LEAST_SHARE = 1 / 2  # an acknowledgement may shorten a step to this share of its length, not more


class AcknowledgedFlows(QueuedFlows):
    """Base of ``LinkComponent`` that grows senders' congestion windows by acknowledgements.

    A sender learns of the delivery of bytes one round trip after the delivery. Bytes move through the
    links without propagation delay: the delay of both ways is in this round trip.

    Args:
        rules: congestion control, sizes of queues, and size of packets.
    """

    def __init__(self, rules: QueueingRules) -> None:
        super().__init__(rules)
        self._since = 0.0  # time up to which bytes have been moved (s)

    def _memory_s(self) -> float:
        """Return for how long past deliveries and queueing delays of flows must be kept (s).

        A sender reacts at each time to the values of one round trip before.
        """
        return 2 * float(self.senders.round_trip.max()) + 1.0

    def _react(self, now: float, acked: Floats | None) -> None:
        """Change the windows of senders that learn of losses now, or whose round trip ends now.

        Args:
            now: the time (s).
            acked: bytes of each flow that are acknowledged by now, float64 [flows]; None to compute
                them from the stored deliveries.
        """
        senders = self.senders
        if acked is None:
            acked = self._history.at(now - senders.round_trip)
        self._acked = acked
        # a flow's mark is finite from a loss until the sender learns of the loss
        if np.count_nonzero(np.isfinite(self._mark)):
            self._learn_losses(acked)
        segments = acked / self._rules.packet
        # a round trip ends when the segments that were sent before its begin are acknowledged
        is_round_over = segments >= senders.round_end
        if self._has_bbr:
            self._update_estimates(segments, is_round_over, now)
        if self._rules.hystart and np.count_nonzero(np.isinf(senders.threshold)):
            senders.least_wait = np.minimum(senders.least_wait, self._acked_waits(now))
            leave_slow_start(senders, segments)
        if np.count_nonzero(is_round_over):
            in_network = self._sent - self._lost - self._dropped
            segments_sent = in_network / self._rules.packet
            senders.round_begin[is_round_over] = segments[is_round_over]
            # The end is above the acknowledged count, so that a round trip does not end while no
            # segment is in flight.
            senders.round_end[is_round_over] = segments_sent[is_round_over] + 1e-9
            senders.least_wait[is_round_over] = math.inf

    def _learn_losses(self, acked: Floats) -> None:
        """Let senders learn of losses whose acknowledgements are missing by now.

        A sender learns of a loss when the bytes that were under way at the loss are acknowledged, or
        when no more bytes are under way. The window of such a sender is reduced (not with BBR), and
        the sender will send the lost bytes again.

        Args:
            acked: bytes of each flow that are acknowledged by now, float64 [flows].
        """
        # the mark is the count of acknowledged bytes at which the sender learns; infinity: no loss
        has_mark = np.isfinite(self._mark)
        # no byte is under way, and all delivered bytes are acknowledged
        is_silent = (self._under_way() <= NO_BYTES) & (acked >= self._delivered - NO_BYTES)
        has_learned = (acked >= self._mark - NO_BYTES) | (has_mark & is_silent)
        if not np.count_nonzero(has_learned):
            return
        # ``_dropped``: bytes lost without the sender's knowledge; ``_lost``: with its knowledge
        is_reduced = has_learned & (self._dropped > NO_BYTES)
        if self._has_bbr:
            is_reduced &= ~self.bbr.is_used
        if np.count_nonzero(is_reduced):
            reduce(self.senders, self._rules.control, is_reduced)
        self._lost[has_learned] += self._dropped[has_learned]
        self._dropped[has_learned] = 0.0
        self._mark[has_learned] = math.inf

    def _acked_waits(self, now: float) -> Floats:
        """Return the queueing time along each flow's route one round trip ago (s), float64 [flows].

        This is the time for which the bytes that are acknowledged now have waited. The present
        queueing time is stored for later calls.
        """
        self._waits.add(now, self._delays(), self._memory_s())
        return self._waits.at(now - self.senders.round_trip)

    def _update_estimates(self, segments: Floats, is_round_over: Flags, now: float) -> None:
        """Update the bandwidths, round trips and states that senders with BBR have estimated.

        Args:
            segments: segments of each flow that are acknowledged by now, float64 [flows].
            is_round_over: whether a round trip of the flow ends now, bool [flows].
            now: the time (s).
        """
        senders = self.senders
        bbr = self.bbr
        # ``round_begin``: acknowledged segments at the begin of the present round trip; a round trip in
        # which nothing was acknowledged is no measurement
        acked_in_round = segments - senders.round_begin
        rows = np.flatnonzero(is_round_over & bbr.is_used & (segments > senders.round_begin))
        has_unsent = self._size + self._lost - self._sent > NO_BYTES
        note_round(bbr, rows, acked_in_round[rows], has_unsent[rows], now)
        round_trip = senders.round_trip + self._acked_waits(now)
        in_flight = (self._sent - self._lost) / self._rules.packet - segments
        change_states(senders, bbr, round_trip, in_flight, now)

    def _window_growth(
        self, segments: Floats, is_limited: Flags, end: float, delays: Floats
    ) -> Growth:
        """Compute by how much each sender's window grows in a step, without changing the windows.

        Args:
            segments: segments of each flow that are acknowledged in the step, float64 [flows].
            is_limited: whether the flow is limited by its window, bool [flows].
            end: end of the step (s).
            delays: time that bytes wait in the queues of the flow's route (s), float64 [flows].
        """
        senders = self.senders
        if self._has_bbr and self.bbr.is_used.all():
            return Growth(grow_by_bandwidth(senders, self.bbr, segments))
        # without BBR, windows grow by CUBIC or Reno
        round_trip = senders.round_trip + delays
        by_losses = grow(senders, self._rules.control, segments, is_limited, end, round_trip)
        if not self._has_bbr:
            return by_losses
        by_bandwidth = grow_by_bandwidth(senders, self.bbr, segments)
        windows = np.where(self.bbr.is_used, by_bandwidth, by_losses.windows)
        return replace(by_losses, windows=windows)

    def _window_paces(self, growth: Floats, delays: Floats) -> Floats:
        """Return the rate that spreads each window over a round trip (segments/s), float64 [flows].

        The result is infinity without pacing. Senders with BBR do not use it: their rate follows from
        the estimated bandwidth.

        Args:
            growth: growth of each window in the step (segments), float64 [flows].
            delays: time that bytes wait in the queues of the flow's route (s), float64 [flows].
        """
        if self._rules.pacing:
            return pacing_rate(self.senders, growth, delays)
        return np.full(len(growth), math.inf)

    def _pacing_limits(self, growth: Floats, delays: Floats, has_acks: Flags) -> Floats | None:
        """Return the highest rate at which each sender may send (segments/s), float64 [flows].

        The rate spreads a window over a round trip, or follows from BBR's estimates. It is infinity for
        senders without pacing. The result is None if no sender has a pacing rate.

        Args:
            growth: growth of each window in the step (segments), float64 [flows].
            delays: time that bytes wait in the queues of the flow's route (s), float64 [flows].
            has_acks: whether any byte of the flow is acknowledged, bool [flows]; until then a flow
                without BBR has the last rate of its connection's previous flow.
        """
        if not self._rules.pacing and not self._has_bbr:
            return None
        rates = self._window_paces(growth, delays)
        if self._rules.pacing:
            rates = np.where(has_acks, rates, self.senders.pace)
        if not self._has_bbr:
            return rates
        by_bandwidth = self.bbr.pacing_gain() * self.bbr.bandwidth
        return np.where(self.bbr.is_used, by_bandwidth, rates)

    def _shorten_to_acks(self, length_s: float, acked: Floats) -> float:
        """Shorten a step so that it ends when a sender with a full window gets an acknowledgement.

        Without this, the sender would react to the acknowledgement from the begin of the step on. The
        step is not shortened to less than half.

        Args:
            length_s: length of the step before (s).
            acked: acknowledged bytes at the begin of the step, float64 [flows].

        Returns:
            The new length (s).
        """
        senders = self.senders
        # bytes that the window still allows, and bytes that are still to be sent (lost ones again)
        free_window = senders.window * self._rules.packet + acked + self._lost - self._sent
        unsent = self._size + self._lost - self._sent
        # indices of the flows whose sender has bytes to send, but no room for a packet in the window
        waiting = ((free_window < self._rules.packet) & (unsent > NO_BYTES)).nonzero()[0]
        if not len(waiting):
            return length_s
        least_s = _LEAST_SHARE * length_s
        round_trips = senders.round_trip[waiting]
        # an acknowledgement arrives one round trip after the delivery that it acknowledges
        begins = self._since + least_s - round_trips
        known_bytes = acked[waiting] + NO_BYTES
        interval_s = length_s - least_s
        delivered_at = self._history.times_before_exceeding(
            waiting, known_bytes, begins, interval_s
        )
        times_left = delivered_at + round_trips - self._since
        is_within = (times_left >= least_s) & (times_left < length_s)
        return float(times_left[is_within].min(initial=length_s))

    def _is_stuck(self) -> bool:
        """Return whether no sender awaits an acknowledgement or learns of a loss any more.

        If no byte moves either, only a change of a link can end the standstill.
        """
        acked = self._history.at(self._since - self.senders.round_trip)
        awaits_acks = acked < self._delivered - NO_BYTES
        return not awaits_acks.any() and bool(np.isinf(self._mark).all())
