"""Random losses of packets: on the devices' own links, and in full queues."""

import math

import numpy as np

from fedsim.common.arrays import Flags, Floats, Ints
from fedsim.common.saved import saved
from fedsim.common.streams import Streams
from fedsim.world.network.queues.congestion import append_row


class LossDraws:
    """Random draws for one time step that decide which packets of flows are lost.

    Each passing byte adds its loss probability to the flow's expected loss. A flow loses a packet
    when its expected loss since the last lost packet reaches a drawn value, which is exponential
    (bytes). The draw is a function of the flow's seed and of the count of its earlier draws, so a
    step that is computed twice draws equal values. ``RandomLosses.use`` stores the counts of a step
    that is carried out.

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
        """Draw the threshold (bytes) at which a flow loses its next packet on its links.

        The expected loss of a flow is its count of bytes times the probability of a loss. When the
        expected loss since the last lost packet reaches the threshold, the flow loses a packet.

        Args:
            row: index of the flow.
        """
        return self._draw("loss", self.on_links, row)

    def draw_in_queue(self, row: int) -> float:
        """Draw by how much a lost packet lowers a flow's credit (bytes), for ``choose_drops``.

        The credit of a flow grows by the flow's expected loss at full queues. The flow with the
        highest credit loses the next packet.

        Args:
            row: index of the flow.
        """
        return self._draw("drop", self.in_queues, row)

    def _draw(self, purpose: str, counts: Ints, row: int) -> float:
        count = counts.item(row)
        counts[row] += 1
        return -math.log(Streams(self._keys[row]).uniform(purpose, count)) * self._packet


@saved()
class RandomLosses:
    """Packet losses of flows: their probabilities, and how far each flow is from its next loss.

    Packets are lost independently of each other. So the expected loss (probability times bytes)
    between two lost packets is an exponential random variable, whose mean is the size of a packet.
    Its value is drawn in advance for each flow. The flow loses a packet when its expected loss
    reaches the drawn value.

    Args:
        packet: size of a packet (bytes).
    """

    def __init__(self, packet: float) -> None:
        self._packet = packet
        self._keys: list[int] = []  # seed of each flow's draws
        self._on_links = np.empty(0, dtype=np.int64)  # count of each flow's draws for its links
        self._in_queues = np.empty(0, dtype=np.int64)  # count of each flow's draws for queues
        self.may_lose = False  # whether any flow may lose packets on a link
        self.at_sender = np.empty(0)  # probability on the sender's own link, [flows]
        self.at_receiver = np.empty(0)  # probability on the receiver's own link, [flows]
        # Countdown to each flow's next lost packet (bytes), [flows]: a drawn threshold, less the
        # bytes sent times their loss probability.
        self.until_loss = np.empty(0)

    def append(self, key: int) -> float:
        """Add a flow, at first with loss probability 0 on its links.

        Args:
            key: seed of the flow's draws.

        Returns:
            A drawn amount (bytes). The caller sets the flow's first credit to minus this amount;
            ``choose_drops`` explains credits.
        """
        self._keys.append(key)
        self._on_links = append_row(self._on_links, 0)
        self._in_queues = append_row(self._in_queues, 0)
        self.at_sender = append_row(self.at_sender, 0.0)
        self.at_receiver = append_row(self.at_receiver, 0.0)
        row = len(self._keys) - 1
        draws = self.draws()
        self.until_loss = append_row(self.until_loss, draws.draw_on_link(row))
        credit_loss = draws.draw_in_queue(row)
        self.use(draws.on_links, draws.in_queues)  # counts the two draws as used
        return credit_loss

    def select(self, flows: Flags) -> None:
        """Keep some flows, and remove all others.

        Args:
            flows: whether each flow is kept, bool [flows].
        """
        self._keys = [self._keys[row] for row in flows.nonzero()[0].tolist()]
        self._on_links = self._on_links[flows]
        self._in_queues = self._in_queues[flows]
        self.at_sender = self.at_sender[flows]
        self.at_receiver = self.at_receiver[flows]
        self.until_loss = self.until_loss[flows]
        if self.may_lose:  # perhaps only the removed flows could lose packets
            self._update_may_lose()

    def join(self, others: "RandomLosses") -> None:
        """Append other flows, with their loss probabilities and counts of draws.

        Args:
            others: the object of the other flows.
        """
        self._keys += others._keys
        self._on_links = np.concatenate((self._on_links, others._on_links))
        self._in_queues = np.concatenate((self._in_queues, others._in_queues))
        self.at_sender = np.concatenate((self.at_sender, others.at_sender))
        self.at_receiver = np.concatenate((self.at_receiver, others.at_receiver))
        self.until_loss = np.concatenate((self.until_loss, others.until_loss))
        self._update_may_lose()

    def has_probabilities(self, row: int, at_sender: float, at_receiver: float) -> bool:
        """Return whether a flow's packets are lost with exactly the given probabilities.

        Args:
            row: index of the flow.
            at_sender: probability on the sender's own link, 0 to 1.
            at_receiver: probability on the receiver's own link, 0 to 1.
        """
        return bool(self.at_sender[row] == at_sender and self.at_receiver[row] == at_receiver)

    def set_probabilities(self, row: int, at_sender: float, at_receiver: float) -> None:
        """Change the probabilities with which a flow's packets are lost.

        Args:
            row: index of the flow.
            at_sender: probability on the sender's own link, 0 to 1.
            at_receiver: probability on the receiver's own link, 0 to 1.
        """
        self.at_sender[row] = at_sender
        self.at_receiver[row] = at_receiver
        self._update_may_lose()

    def _update_may_lose(self) -> None:
        self.may_lose = bool(self.at_sender.any() or self.at_receiver.any())

    def draws(self) -> LossDraws:
        """Return a new source of the random draws by which packets are lost in one time step.

        The network plans a step before it carries the step out, and may give the plan up. So draws
        do not change this object, and a step that is planned again draws the same values. Once the
        step is carried out, the caller passes the new counts of draws to ``use``.
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
        self, probability: Floats, passing: Floats, until_loss: Floats, draws: LossDraws
    ) -> tuple[Floats, Floats]:
        """Compute how many of the bytes that pass devices' own links in a step are lost.

        Args:
            probability: probability that a packet of each flow is lost, 0 to 1, [flows].
            passing: bytes of each flow that pass the link, [flows].
            until_loss: expected loss remaining until each flow's next lost packet (bytes), [flows].
            draws: draws of the step.

        Returns:
            Lost bytes, in whole packets but at most ``passing``, and ``until_loss`` after the step;
            float64 [flows] each.
        """
        until_next = until_loss - probability * passing
        lost = np.zeros(len(passing))
        for row in np.flatnonzero(until_next <= 0).tolist():
            while until_next[row] <= 0:  # each pass loses one packet
                lost[row] += self._packet
                until_next[row] += draws.draw_on_link(row)
        return np.minimum(lost, passing), until_next
