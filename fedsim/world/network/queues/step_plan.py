"""Constants of links with queues, the plan of a time step, and the choice of dropped packets."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.saved import saved
from fedsim.world.network.queues.congestion import Control, Growth

_LEAST_QUEUE = 2  # packets that every queue holds
_MOST_DRAWS = 32  # upper bound of the packets per link and step that are dropped one by one
NO_BYTES = 1e-6  # an amount up to this one (bytes) is a rounding error, and counts as 0


@saved()
@dataclass(frozen=True)
class QueueingRules:
    """Constants of TCP's window model: congestion control, packets, and queues of links.

    Attributes:
        control: congestion control.
        packet: a full packet on the wire (bytes).
        initial_window: window of a new connection (segments).
        queue_s: size of queues as the time in which a link sends a full queue (s); or None.
        queue_bytes: bytes of a full queue, if ``queue_s`` is None; otherwise None.
        queues: link name -> (``queue_s``, ``queue_bytes``), for links whose queue has another size.
        hystart: whether slow start ends when the round trip rises.
        pacing: whether senders spread a window over its round trip.
        holds_back: whether a full queue at the first link of a route makes senders wait, instead of
            dropping packets.
    """

    control: Control
    packet: float
    initial_window: float
    queue_s: float | None
    queue_bytes: float | None
    queues: dict[str, tuple[float | None, float | None]]
    hystart: bool
    pacing: bool
    holds_back: bool

    def length(self, link: str, capacity: float) -> float:
        """Return the capacity of a link's queue (bytes), 2 packets or more.

        Args:
            link: name of the link, which may have an entry in ``queues``.
            capacity: rate of the link (bytes/s), by which a size in seconds is multiplied.
        """
        seconds, size = self.queues.get(link, (self.queue_s, self.queue_bytes))
        length = capacity * seconds if seconds is not None else size
        assert length is not None
        return max(length, _LEAST_QUEUE * self.packet)


@saved()
@dataclass(frozen=True, slots=True)
class Level:
    """Group of links that are served together in a time step, with the flows on them.

    A link belongs to the group of the furthest position that it has on the route of any flow. Each
    array has an entry for each pair of a flow and one of its links in the group, [flows on links].

    Attributes:
        number: the position of the group's links, from 0.
        flows: index of the pair's flow, int64.
        links: number of the pair's link, int64.
        cells: index of the pair in flattened arrays of shape [flows, hops], where a hop is a position
            on a route, int64.
        is_last: whether the link is the last of the flow's route, bool.
    """

    number: int
    flows: Ints
    links: Ints
    cells: Ints
    is_last: Flags

    def followed_by(self, others: "Level") -> "Level":
        """Return a group with the pairs of both groups, the pairs of ``others`` last.

        Args:
            others: group of the same position, whose flows have higher indices.
        """
        if not len(others.flows):
            return self
        return Level(
            self.number,
            np.concatenate((self.flows, others.flows)),
            np.concatenate((self.links, others.links)),
            np.concatenate((self.cells, others.cells)),
            np.concatenate((self.is_last, others.is_last)),
        )


@saved()
@dataclass(frozen=True, slots=True)
class StepPlan:
    """Movement of bytes in one time step of the window model, in which all rates are constant.

    A plan is computed without changing any flow. It may be carried out wholly, in part or not at
    all. Attributes are float64 [flows] if no shape is given.

    Attributes:
        length_s: length of the step (s); infinity if no byte moves.
        sent, delivered, dropped: bytes of each flow that are sent, delivered and dropped in the step.
        credit: change of each flow's credit (bytes), which decides whose packet is dropped next.
        until_loss: change of ``RandomLosses.until_loss``, the expected loss left until the next packet
            is lost on a link (bytes).
        batches: bytes in queues at the end of the step, by the step in which they came, oldest
            first; float64 [flows, hops, batches].
        waiting, arriving: bytes in the queue of each link of a route, and bytes between this link
            and the next, at the end of the step; float64 [flows, hops].
        growth: growth of the senders' congestion windows in the step.
        ends: end of each flow (s); infinity for flows that do not end in the step.
        parts: fraction of the step in which the bytes of each flow move, above 0, at most 1. It is
            below 1 for flows that end before the end of the step. None if no flow ends in the step.
        is_held: whether the first link of a flow makes its sender wait, bool [flows].
        acked: bytes that are acknowledged at the end of the step; None if the step is so long that
            they depend on deliveries within the step.
        is_look: whether a long step, until the next end of a flow, was tried when this step was
            planned. Then this step is the long step, or a short step because the long step was
            impossible. To save time, a long step is tried again only some steps later.
        draws_on_links, draws_in_queues: counts of random draws of losses so far, this step included,
            int64 [flows].
    """

    length_s: float
    sent: Floats
    delivered: Floats
    dropped: Floats
    credit: Floats
    until_loss: Floats
    batches: Floats
    waiting: Floats
    arriving: Floats
    growth: Growth
    ends: Floats
    parts: Floats | None
    is_held: Flags
    acked: Floats | None
    is_look: bool
    draws_on_links: Ints
    draws_in_queues: Ints


def choose_drops(
    excess: Floats,
    unsent: Floats,
    credit_before: Floats,
    links: Ints,
    flows: Ints,
    packet: float,
    draw: Callable[[int], float],
) -> tuple[Floats, Floats]:
    """Choose which flows lose packets when the queues of links overflow.

    On average each flow loses in proportion to its arriving bytes, one packet at a time. Each flow
    has a credit (bytes), which grows by its expected loss and shrinks by a random amount with each
    of its lost packets. The flow with the highest credit loses the next packet.

    Arrays [flows on links] have an entry for each pair of a flow and a link on its route.

    Args:
        excess: bytes that do not fit into the queue of each link, float64 [links].
        unsent: bytes that arrived in this step and are not sent in it, float64 [flows on links].
        credit_before: credit of each flow (bytes), float64 [flows on links].
        links: index of the pair's link, int64 [flows on links].
        flows: index of the pair's flow, the argument of ``draw``, int64 [flows on links].
        packet: bytes of a packet.
        draw: function that draws by how much a lost packet lowers a flow's credit (bytes).

    Returns:
        Bytes that each flow loses, and the change of its credit (bytes); float64 [flows on links]
        each. The lost bytes at a link are whole packets together, or all of ``unsent``.
    """
    dropped = np.zeros(len(links))
    credit_change = np.zeros(len(links))
    # links are independent of each other, as each entry belongs to one link
    for link in (excess > 0).nonzero()[0].tolist():
        rows = ((links == link) & (unsent > 0)).nonzero()[0]
        offered = unsent[rows]
        total = float(offered.sum())
        packets = math.ceil(excess.item(link) / packet)
        to_drop = min(packets * packet, total)
        expected = offered * (to_drop / total)
        # beyond ``_MOST_DRAWS`` packets, each flow loses this share of its expected loss
        proportional = max(to_drop - _MOST_DRAWS * packet, 0.0) / to_drop
        losses = expected * proportional
        credit = credit_before[rows] + expected - losses
        remaining = to_drop - float(losses.sum())
        # the rest is dropped packet by packet, from the flow with the highest credit
        while remaining > NO_BYTES:
            has_more = losses < offered - NO_BYTES
            loser = int(np.where(has_more, credit, -math.inf).argmax())
            loss = min(packet, offered.item(loser) - losses.item(loser), remaining)
            if loss <= 0:  # no flow has bytes left, which rounding can cause
                break
            losses[loser] += loss
            credit[loser] -= draw(flows.item(rows.item(loser))) * (loss / packet)
            remaining -= loss
        dropped[rows] = losses
        credit_change[rows] = credit - credit_before[rows]
    return dropped, credit_change
