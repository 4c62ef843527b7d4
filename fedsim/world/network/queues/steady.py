"""Steady flows, whose delivery rates are constant, so that one long step leads to the next end."""

from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.world.network.queues.acknowledged import AcknowledgedFlows
from fedsim.world.network.queues.batches import open_batch, sum_over_hops
from fedsim.world.network.queues.congestion import CUBIC_BETA, RENO_BETA, Growth
from fedsim.world.network.queues.step_plan import NO_BYTES, StepPlan

MOST_STEP_S = 20e-3  # the longest step while flows are not steady


@dataclass(frozen=True, slots=True)
class Bottlenecks:
    """Slowest link of each flow's route, and the flow's bytes in queues; arrays [flows].

    ``SteadyFlows`` decides by them whether a long time step is possible.

    Attributes:
        positions: position of the slowest link on the route, from 0, int64.
        rates: rate of the slowest link (bytes/s), float64.
        waiting: bytes of the flow in the queue of the slowest link, float64.
        elsewhere: bytes of the flow in other queues, float64.
        lengths: capacity of the queue of the slowest link (bytes), float64.
    """

    positions: Ints
    rates: Floats
    waiting: Floats
    elsewhere: Floats
    lengths: Floats


class SteadyFlows(AcknowledgedFlows):
    """Base of ``LinkComponent`` that replaces many short time steps by one long step if possible.

    The long step lasts until the next flow ends. It is possible if all flows are steady: each flow is
    delivered at the rate of its slowest link. This link then has enough rate for all of its flows,
    and the window and queue are so large that the link never idles.

    Args:
        rules: congestion control, sizes of queues, and size of packets.
    """

    def _plan_until_end(self) -> StepPlan | None:
        """Plan one step until the next end of a flow; None if not all flows are steady.

        All flows are steady if these conditions hold:
        - No flow uses BBR, whose rate changes by phases, and no link loses packets at random.
        - No bytes are on the way between two links, and no sender has still to learn of a loss.
        - Each link has enough rate for all of its flows (``_find_bottlenecks``).
        - Windows and queues keep the slowest link of each flow busy (``_are_steady``).

        The result is also None if the step would last at most ``MOST_STEP_S``, which a short step can
        do too.
        """
        if self._has_bbr or self._losses.may_lose:
            return None
        if np.count_nonzero(self._arriving):  # bytes between two links
            return None
        # a sender's mark is finite from a loss until the sender learns of the loss
        if np.count_nonzero(np.isfinite(self._mark)):
            return None
        bottlenecks = self._find_bottlenecks()
        if bottlenecks is None:
            return None
        unsent = self._size + self._lost - self._sent  # lost bytes are sent again
        is_slowest_first = bottlenecks.positions == 0
        # with ``holds_back``, the first link makes its senders wait while its queue is full
        is_held = is_slowest_first & self._rules.holds_back
        if not self._are_steady(bottlenecks, unsent, is_held):
            return None
        ends = self._since + (self._size - self._delivered) / bottlenecks.rates
        length_s = float(ends.min()) - self._since
        if length_s <= MOST_STEP_S:
            return None
        return self._plan_steady(bottlenecks, unsent, is_held, ends, length_s)

    def _find_bottlenecks(self) -> Bottlenecks | None:
        """Find the link with the lowest rate on each flow's route.

        Returns:
            The slowest links; None if one has the rate 0, or if any link is too slow to serve all of
            its flows at the rates of their slowest links.
        """
        capacity = self.links.capacity
        flows = np.arange(len(self))
        rates_on_route = capacity[self._route]
        positions = rates_on_route.argmin(axis=1)  # position of the slowest link on each route
        rates = rates_on_route[flows, positions]
        # bytes/s on each link if each flow is sent at the rate of its slowest link
        rates_by_hop = np.repeat(rates, self._route.shape[1])
        load = np.bincount(self._route.ravel(), weights=rates_by_hop, minlength=len(capacity))
        load[0] = 0.0  # number 0 pads short routes, and is no link
        if np.count_nonzero(load > capacity) or np.count_nonzero(rates) < len(rates):
            return None
        waiting = self._waiting[flows, positions]  # bytes in the queue of the flow's slowest link
        elsewhere = sum_over_hops(self._waiting) - waiting
        lengths = self.links.length[self._route[flows, positions]]
        return Bottlenecks(positions, rates, waiting, elsewhere, lengths)

    def _are_steady(self, bottlenecks: Bottlenecks, unsent: Floats, is_held: Flags) -> bool:
        """Return whether each flow is delivered at the rate of its slowest link until its end.

        Args:
            bottlenecks: the slowest link of each flow.
            unsent: bytes that each sender has still to send, [flows].
            is_held: whether the slowest link makes the sender wait if its queue is full, [flows].
        """
        senders = self.senders
        packet = self._rules.packet
        pipe = bottlenecks.rates * senders.round_trip  # bandwidth-delay product (bytes)
        window = senders.window * packet
        # a loss multiplies the window by beta
        beta = CUBIC_BETA if self._rules.control == "cubic" else RENO_BETA
        # a queue that may be at least this long never runs dry after a loss
        is_long = bottlenecks.lengths >= (1 / beta - 1) * pipe + packet
        in_slow_start = senders.window < senders.threshold
        has_queue = (bottlenecks.waiting > packet) & is_long & ~in_slow_start
        # the window lets the sender use the whole rate, and only one queue holds bytes
        is_wide = (window >= pipe + packet) & (bottlenecks.elsewhere <= NO_BYTES)
        in_pipe = self._sent - self._lost - self._known_acks()
        fills_pipe = in_pipe >= pipe - packet
        # three reasons why the slowest link never waits for its sender
        is_busy = is_held | has_queue | (unsent <= 0)
        return bool((is_wide & fills_pipe & is_busy).all())

    def _plan_steady(
        self,
        bottlenecks: Bottlenecks,
        unsent: Floats,
        is_held: Flags,
        ends: Floats,
        length_s: float,
    ) -> StepPlan:
        """Plan a step in which each flow is delivered at the rate of its slowest link.

        Args:
            bottlenecks: the slowest link of each flow.
            unsent: bytes that each sender has still to send, [flows].
            is_held: whether the slowest link makes the sender wait if its queue is full, [flows].
            ends: end of each flow (s), [flows].
            length_s: length of the step (s).
        """
        flows = np.arange(len(self))
        delivered = bottlenecks.rates * length_s
        # each sender sends as fast as its bytes are delivered, until it has sent all
        sent = np.minimum(delivered, unsent)
        waiting = self._waiting.copy()
        remaining = np.maximum(bottlenecks.waiting + sent - delivered, 0.0)
        waiting[flows, bottlenecks.positions] = remaining
        # all bytes in a queue are one batch after the step, as if they had come in it
        batches = np.zeros_like(open_batch(self._batches))
        batches[:, :, -1] = waiting
        zeros = np.zeros(len(self))
        draws = self._losses.draws()
        return StepPlan(
            length_s=length_s,
            sent=sent,
            delivered=delivered,
            dropped=zeros,
            credit=zeros,
            until_loss=zeros,
            batches=batches,
            waiting=waiting,
            arriving=self._arriving,
            growth=Growth(zeros),
            ends=ends,
            parts=np.ones(len(self)),
            is_held=is_held,
            acked=None,
            is_look=True,
            draws_on_links=draws.on_links,
            draws_in_queues=draws.in_queues,
        )

    def _known_acks(self) -> Floats:
        """Return the bytes of each flow that are acknowledged by now, float64 [flows]."""
        if self._acked is None:
            return self._history.at(self._since - self.senders.round_trip)
        return self._acked
