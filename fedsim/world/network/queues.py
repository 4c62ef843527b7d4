"""Parts of ``Queueing``: its constants, its plan of a step, and who loses what a queue drops."""

import math
from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.world.network.congestion import Control

_LEAST_QUEUE = 2  # packets that every queue holds


@dataclass(frozen=True, slots=True)
class SenderMemory:
    """State of a sender that lasts from one flow of a pair of endpoints to the next.

    Attributes:
        window, threshold, peak: see ``Senders`` (segments).
        until: end of the last flow (s).
    """

    window: float
    threshold: float
    peak: float
    until: float


@dataclass(frozen=True)
class QueueingRules:
    """Constants of ``Queueing``.

    Attributes:
        control: congestion control.
        packet: a full packet on the wire (bytes).
        initial_window: window of a new connection (segments).
        queue_s: length of queues (s); None if ``queue_bytes`` has it.
        queue_bytes: length of queues (bytes); None if ``queue_s`` has it.
        queues: link name -> (s, bytes), one of both None, for links with another length.
        hystart: whether slow start ends when the round trip rises.
        holds_back: whether the first queue of a route holds senders back instead of dropping.
    """

    control: Control
    packet: float
    initial_window: float
    queue_s: float | None
    queue_bytes: float | None
    queues: dict[str, tuple[float | None, float | None]]
    hystart: bool
    holds_back: bool

    def length(self, link: str, capacity: float) -> float:
        """Return the length of a link's queue (bytes)."""
        seconds, size = self.queues.get(link, (self.queue_s, self.queue_bytes))
        length = capacity * seconds if seconds is not None else size
        assert length is not None
        return max(length, _LEAST_QUEUE * self.packet)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step: what moves in it at a constant rate; float64 [flows] unless said.

    Attributes:
        length_s: its length (s); infinity if nothing moves.
        sent, delivered, dropped: bytes of each flow.
        credit: change of ``Queueing._credit`` (bytes).
        before_loss: change of ``RandomLosses.before`` (bytes).
        waiting, arriving: state at its end (bytes), float64 [flows, hops].
        growth: growth of windows (segments).
        ends: end of each flow (s); infinity for flows that go on.
        held: whether the first link of a flow holds its sender back, bool [flows].
    """

    length_s: float
    sent: Floats
    delivered: Floats
    dropped: Floats
    credit: Floats
    before_loss: Floats
    waiting: Floats
    arriving: Floats
    growth: Floats
    ends: Floats
    held: Flags


def choose_drops(
    excess: Floats, refused: Floats, spare: Floats, numbers: Ints, packet: float
) -> tuple[Floats, Floats]:
    """Choose the flows that lose what the queues of links do not hold.

    Over time each flow loses its share of what arrives, but a packet at a time, as a real
    queue drops: the flow that has lost least in proportion is the first to lose a packet.

    Args:
        excess: bytes that do not fit, float64 [links].
        refused: arriving bytes that are not served in this step, float64 [flows on links].
        spare: ``Queueing._credit`` of each flow (bytes), float64 [flows on links].
        numbers: link of each flow, int64 [flows on links].
        packet: bytes of a packet.

    Returns:
        Dropped bytes, in whole packets of each link, and by how much they are less than the
        flow's share; float64 [flows on links] each.
    """
    falls = np.zeros(len(numbers))
    spared = np.zeros(len(numbers))
    for link in np.flatnonzero(excess > 0).tolist():
        rows = np.flatnonzero((numbers == link) & (refused > 0))
        offered = refused[rows]
        total = float(offered.sum())
        lost = min(math.ceil(excess.item(link) / packet) * packet, total)
        spared[rows] = offered * (lost / total)
        credit = spare[rows] + spared[rows]
        order = np.argsort(-credit, kind="stable")
        packets = np.minimum(offered, packet)[order]
        before = np.cumsum(packets) - packets
        first = np.clip(lost - before, 0.0, packets)
        rest = lost - float(first.sum())
        remaining = offered[order] - first
        if rest > 0:
            first += remaining * (rest / max(float(remaining.sum()), rest))
        falls[rows[order]] = first
    return falls, spared - falls
