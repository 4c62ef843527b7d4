"""Random losses of packets: on the devices' own links, and in full queues."""

import math

import numpy as np

from fedsim.common.arrays import Flags, Floats
from fedsim.common.streams import Streams
from fedsim.world.network.congestion import append_row


class RandomLosses:
    """Losses of flows: the chance of each flow's packets, and its distance to the next loss.

    Packets are lost independently. So the expected loss, chance times bytes, that adds up between
    two lost packets is exponential, with a mean of a packet. For each flow it is drawn in advance,
    and a packet is lost when the flow has used it up.

    Args:
        packet: bytes of a packet.
    """

    def __init__(self, packet: float) -> None:
        self._packet = packet
        self._key: list[int] = []  # seed of each flow's draws
        self._count: list[int] = []  # count of each flow's draws for its links
        self._drops: list[int] = []  # count of each flow's draws for queues
        self.may_lose = False  # whether any flow has a chance
        self.first = np.empty(0)  # chance on the sender's own link, [flows]
        self.last = np.empty(0)  # chance on the receiver's own link, [flows]
        self.before = np.empty(0)  # expected loss left until the next lost packet (bytes), [flows]

    def append(self, key: int) -> None:
        """Add a flow without losses.

        Args:
            key: seed of its draws.
        """
        self._key.append(key)
        self._count.append(0)
        self._drops.append(0)
        self.first = append_row(self.first, 0.0)
        self.last = append_row(self.last, 0.0)
        self.before = append_row(self.before, self._draw(len(self._key) - 1))

    def select(self, flows: Flags) -> None:
        """Keep only some flows."""
        rows = flows.nonzero()[0].tolist()
        self._key = [self._key[row] for row in rows]
        self._count = [self._count[row] for row in rows]
        self._drops = [self._drops[row] for row in rows]
        self.first = self.first[flows]
        self.last = self.last[flows]
        self.before = self.before[flows]
        if self.may_lose:
            self._note_chances()

    def set_chances(self, flows: Flags, first: float, last: float) -> None:
        """Change the chances of some flows on the sender's and on the receiver's own link."""
        self.first[flows] = first
        self.last[flows] = last
        self._note_chances()

    def _note_chances(self) -> None:
        self.may_lose = bool(self.first.any() or self.last.any())

    def lose(self, chance: Floats, passing: Floats, before: Floats) -> tuple[Floats, Floats]:
        """Compute which part of the bytes that pass a link in a step is lost.

        Args:
            chance: chance of each flow's packets, [flows].
            passing: bytes of each flow that pass, [flows].
            before: expected loss left until the next lost packet (bytes), [flows].

        Returns:
            Lost bytes, in whole packets but at most ``passing``, and ``before`` after the step;
            float64 [flows] each.
        """
        after = before - chance * passing
        lost = np.zeros(len(passing))
        for row in np.flatnonzero(after <= 0).tolist():
            while after[row] <= 0:
                lost[row] += self._packet
                after[row] += self._draw(row)
        return np.minimum(lost, passing), after

    def draw_drop(self, row: int) -> float:
        """Draw the expected loss of a flow until its next packet is lost in a queue (bytes)."""
        count = self._drops[row]
        self._drops[row] += 1
        return -math.log(Streams(self._key[row]).uniform("drop", count)) * self._packet

    def _draw(self, row: int) -> float:
        count = self._count[row]
        self._count[row] += 1
        return -math.log(Streams(self._key[row]).uniform("loss", count)) * self._packet
