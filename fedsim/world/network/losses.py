"""Random losses of packets: on the devices' own links, and in full queues."""

import math

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.streams import Streams
from fedsim.world.network.congestion import append_row


class LossDraws:
    """Random draws for one time step that decide which packets of flows are lost.

    A draw is exponential (bytes): a flow loses its next packet when its bytes, each times the
    probability of a loss, add up to the draw. It is a function of the flow's seed and of the count
    of its earlier draws, so a step that is computed twice draws the same. ``RandomLosses.use``
    stores the counts of a step that is carried out.

    Args:
        keys: seed of each flow.
        on_links: count of each flow's draws for its links, int64 [flows].
        in_queues: count of each flow's draws for queues, int64 [flows].
        packet: mean of a draw, the bytes of a packet.
    """

    def __init__(self, keys: list[int], on_links: Ints, in_queues: Ints, packet: float) -> None:
        self._keys = keys
        self.on_links = on_links
        self.in_queues = in_queues
        self._packet = packet

    def draw_on_link(self, row: int) -> float:
        """Draw the expected loss (bytes) that a flow can take until it loses a packet on its links.

        The expected loss of a flow is its bytes times the probability of a loss.

        Args:
            row: index of the flow.
        """
        return self._draw("loss", self.on_links, row)

    def draw_in_queue(self, row: int) -> float:
        """Draw the expected loss (bytes) that a flow can take until it loses a packet in a queue.

        The expected loss of a flow is its bytes times the probability of a loss.

        Args:
            row: index of the flow.
        """
        return self._draw("drop", self.in_queues, row)

    def _draw(self, purpose: str, counts: Ints, row: int) -> float:
        count = counts.item(row)
        counts[row] += 1
        return -math.log(Streams(self._keys[row]).uniform(purpose, count)) * self._packet


class RandomLosses:
    """Packet losses of flows: their probabilities, and how far each flow is from its next loss.

    Packets are lost independently. So the expected loss (probability times bytes) between two lost
    packets is exponential, with the size of a packet as its mean. It is drawn in advance for each
    flow; the flow loses a packet when it has used it up.

    Args:
        packet: size of a packet (bytes).
    """

    def __init__(self, packet: float) -> None:
        self._packet = packet
        self._keys: list[int] = []  # seed of each flow's draws
        self._on_links = np.empty(0, dtype=np.int64)  # count of each flow's draws for its links
        self._in_queues = np.empty(0, dtype=np.int64)  # count of each flow's draws for queues
        self.may_lose = False  # whether any flow has a chance
        self.first = np.empty(0)  # chance on the sender's own link, [flows]
        self.last = np.empty(0)  # chance on the receiver's own link, [flows]
        self.before = np.empty(0)  # expected loss left until the next lost packet (bytes), [flows]

    def append(self, key: int) -> float:
        """Add a flow, at first with loss probability 0 on its links.

        Args:
            key: seed of its draws.

        Returns:
            The flow's expected loss until its first packet is lost in a queue (bytes).
        """
        self._keys.append(key)
        self._on_links = append_row(self._on_links, 0)
        self._in_queues = append_row(self._in_queues, 0)
        self.first = append_row(self.first, 0.0)
        self.last = append_row(self.last, 0.0)
        row = len(self._keys) - 1
        draws = self.draws()
        self.before = append_row(self.before, draws.draw_on_link(row))
        in_queue = draws.draw_in_queue(row)
        self.use(draws.on_links, draws.in_queues)
        return in_queue

    def select(self, flows: Flags) -> None:
        """Keep some flows, and remove all others.

        Args:
            flows: whether each flow is kept, bool [flows].
        """
        self._keys = [self._keys[row] for row in flows.nonzero()[0].tolist()]
        self._on_links = self._on_links[flows]
        self._in_queues = self._in_queues[flows]
        self.first = self.first[flows]
        self.last = self.last[flows]
        self.before = self.before[flows]
        if self.may_lose:
            self._note_chances()

    def join(self, others: "RandomLosses") -> None:
        """Append the losses of other flows.

        Args:
            others: losses of other flows.
        """
        self._keys += others._keys
        self._on_links = np.concatenate((self._on_links, others._on_links))
        self._in_queues = np.concatenate((self._in_queues, others._in_queues))
        self.first = np.concatenate((self.first, others.first))
        self.last = np.concatenate((self.last, others.last))
        self.before = np.concatenate((self.before, others.before))
        self._note_chances()

    def has_chances(self, row: int, first: float, last: float) -> bool:
        """Return whether a flow's packets are lost with exactly the given probabilities.

        Args:
            row: index of the flow.
            first: probability on the sender's own link, 0 to 1.
            last: probability on the receiver's own link, 0 to 1.
        """
        return bool(self.first[row] == first and self.last[row] == last)

    def set_chances(self, row: int, first: float, last: float) -> None:
        """Change the probabilities with which a flow's packets are lost.

        Args:
            row: index of the flow.
            first: probability on the sender's own link, 0 to 1.
            last: probability on the receiver's own link, 0 to 1.
        """
        self.first[row] = first
        self.last[row] = last
        self._note_chances()

    def _note_chances(self) -> None:
        self.may_lose = bool(self.first.any() or self.last.any())

    def draws(self) -> LossDraws:
        """Return a new source of the random draws by which packets are lost in one time step.

        Draws from it change nothing in this object. The caller stores their counts by ``use`` once
        the step has been carried out.
        """
        on_links = self._on_links.copy()
        return LossDraws(self._keys, on_links, self._in_queues.copy(), self._packet)

    def use(self, on_links: Ints, in_queues: Ints) -> None:
        """Store how many draws each flow has used, after a step that was carried out.

        Args:
            on_links: count of all draws so far for the flow's links, int64 [flows].
            in_queues: count of all draws so far for queues, int64 [flows].
        """
        self._on_links = on_links
        self._in_queues = in_queues

    def lose(
        self, chance: Floats, passing: Floats, before: Floats, draws: LossDraws
    ) -> tuple[Floats, Floats]:
        """Compute which part of the bytes that pass a link in a step is lost.

        Args:
            chance: probability that a packet of each flow is lost, 0 to 1, [flows].
            passing: bytes of each flow that pass the link, [flows].
            before: expected loss left until the next lost packet (bytes), [flows].
            draws: draws of the step.

        Returns:
            Lost bytes, in whole packets but at most ``passing``, and ``before`` after the step;
            float64 [flows] each.
        """
        after = before - chance * passing
        lost = np.zeros(len(passing))
        for row in np.flatnonzero(after <= 0).tolist():
            while after[row] <= 0:
                lost[row] += self._packet
                after[row] += draws.draw_on_link(row)
        return np.minimum(lost, passing), after
