"""Movement of bytes through links and their queues in one step.

A step has stages: senders put bytes on their routes; the groups of links serve their queues one
after the other, and drop the bytes that do not fit; receivers get the bytes that arrive.
"""

from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Floats, Ints
from fedsim.world.network.queues.batches import serve_in_order, sum_by_link
from fedsim.world.network.queues.links import QueuedLinks
from fedsim.world.network.queues.losses import LossDraws, RandomLosses
from fedsim.world.network.queues.step_plan import Level, choose_drops


@dataclass(slots=True)
class MovedBytes:
    """Bytes of each flow by place (queue, link, receiver), as ``Movement`` moves them in a time step.

    Arrays are float64 [flows] if no shape is given. A hop is one of the links on a flow's route, so
    arrays [flows, hops] have an entry for each link of each route.

    Attributes:
        dropped: bytes that were lost in the step.
        delivered: bytes that have passed the last link in the step.
        credit: change of each flow's credit (bytes), by which ``choose_drops`` chooses whose packet is
            dropped from a full queue.
        until_loss: expected loss remaining until the next lost packet on links (bytes).
        batches: bytes in queues by the step in which they came, oldest first, float64
            [flows, hops, batches].
        waiting: bytes in queues, float64 [flows, hops].
        arriving: bytes on their way from one link to the next, float64 [flows, hops].
    """

    dropped: Floats
    delivered: Floats
    credit: Floats
    until_loss: Floats
    batches: Floats
    waiting: Floats
    arriving: Floats


class Movement:
    """Computation of how the bytes of flows move along their links in one time step.

    The methods are called in order: ``send``, ``pass_level`` for each group of links, and
    ``receive``. An object computes one step only.

    Args:
        links: the links.
        step_s: length of the step (s).
        packet: size of a packet (bytes).
        losses: probabilities of losses on links.
        draws: random draws that decide which packets are lost.
        amounts: bytes at the begin of the step, with an empty batch for the bytes that come into
            queues in the step (``open_batch``). The methods change the object.

    Attributes:
        bytes: the object ``amounts``; after ``receive``, it has the bytes at the end of the step.
    """

    def __init__(
        self,
        links: QueuedLinks,
        step_s: float,
        packet: float,
        losses: RandomLosses,
        draws: LossDraws,
        amounts: MovedBytes,
    ) -> None:
        self._links = links
        self._sendable = links.capacity * step_s  # bytes that each link can send, [links]
        # part of the step in which each sender sends, [flows]; set by ``send``
        self._busy = np.empty(0)
        # each group of links that was served, with the bytes at each link, float64 [links]
        self._loads: list[tuple[Level, Floats]] = []
        self._packet = packet
        self._losses = losses
        self._draws = draws
        self.bytes = amounts

    def send(self, sent: Floats, busy: Floats) -> None:
        """Put the bytes that senders send on their routes, less the losses on senders' own links.

        Args:
            sent: bytes that each sender sends, float64 [flows].
            busy: part of the step in which the sender sends at its pacing rate, 0 to 1, float64
                [flows].
        """
        self._busy = busy
        amounts = self.bytes
        entering = sent
        if self._losses.may_lose:
            lost = self._lose(self._losses.at_sender, sent)
            entering = sent - lost
        amounts.arriving[:, 0] += entering  # bytes arrive at the first link of each route

    def pass_level(self, level: Level, credit: Floats) -> None:
        """Let a group of links send the bytes in their queues and the bytes that arrive there.

        Bytes that do not fit into a queue are dropped.

        Args:
            level: the links, with the flows on them.
            credit: credit of each flow at the begin of the step (bytes); the flow with the highest
                credit loses the next packet, float64 [flows].
        """
        amounts = self.bytes
        # flat views [flows x hops], in which ``cells`` are the entries of the level's links
        waiting = amounts.waiting.reshape(-1)
        arriving = amounts.arriving.reshape(-1)
        cells = level.cells
        links = level.links
        arrived = arriving.take(cells)
        present = waiting.take(cells) + arrived
        loads = np.bincount(links, weights=present, minlength=len(self._sendable))
        load = np.asarray(loads, dtype=np.float64)
        is_overloaded = (load > self._sendable).take(links)
        # all bytes leave a link that is not overloaded
        leaving = present
        staying = np.zeros(len(cells))
        # indices in the arrays of ``level`` of the flows on overloaded links
        rows = is_overloaded.nonzero()[0]
        if len(rows):
            leaving, staying = self._serve_full(level, rows, present, arrived, load, credit)
        else:
            queues = amounts.batches.reshape(-1, amounts.batches.shape[2])
            queues[cells] = 0.0
        waiting[cells] = staying
        arriving[cells] = 0.0
        is_last = level.is_last
        amounts.delivered[level.flows[is_last]] = leaving[is_last]
        goes_on = ~is_last
        # the next cell is the next link on the route of the same flow
        arriving[cells[goes_on] + 1] += leaving[goes_on]
        self._loads.append((level, load))  # ``busy`` needs the loads

    def _serve_full(
        self,
        level: Level,
        rows: Ints,
        present: Floats,
        arrived: Floats,
        load: Floats,
        credit: Floats,
    ) -> tuple[Floats, Floats]:
        """Let overloaded links, which cannot send all bytes in the step, send the oldest ones.

        Args:
            level: a group of links, with the flows on them.
            rows: indices in the arrays of ``level`` of the flows on overloaded links, int64 [n].
            present: bytes of each flow that wait or arrive, float64 [flows on links].
            arrived: bytes of each flow that arrive, a part of ``present``, float64 [flows on links].
            load: bytes that wait or arrive at each link, float64 [links].
            credit: credit of each flow at the begin of the step (bytes); the flow with the highest
                credit loses the next packet, float64 [flows].

        Returns:
            Bytes that leave, and bytes that stay; float64 [flows on links] each.
        """
        amounts = self.bytes
        queues = amounts.batches.reshape(-1, amounts.batches.shape[2])
        links = level.links[rows]
        # bytes by batch: a batch came in one time step, the last batch in this step
        queued = queues.take(level.cells[rows], axis=0)
        queued[:, -1] += arrived[rows]
        totals = sum_by_link(queued, links, len(load))
        sent = queued * serve_in_order(totals, self._sendable).take(links, axis=0)
        staying = queued - sent
        excess = np.maximum(load - self._sendable - self._links.length, 0.0)
        excess[self._links.never_full] = 0.0  # these links make senders wait instead
        if np.count_nonzero(excess):
            self._drop(level, rows, staying, arrived[rows], excess, credit)
        # links of the level that are not overloaded send all bytes
        queues[level.cells] = 0.0
        queues[level.cells[rows]] = staying
        leaving = present.copy()
        leaving[rows] = sent.sum(axis=1)
        remaining = np.zeros(len(present))
        remaining[rows] = staying.sum(axis=1)
        return leaving, remaining

    def _drop(
        self,
        level: Level,
        rows: Ints,
        staying: Floats,
        arrived: Floats,
        excess: Floats,
        credit: Floats,
    ) -> None:
        """Drop the bytes that do not fit into queues, out of the bytes that have just arrived.

        Args:
            level: a group of links, with the flows on them.
            rows: indices in the arrays of ``level`` of the flows on overloaded links, int64 [n].
            staying: bytes that stay, by the step in which they came, the newest last, float64
                [n, batches]; the dropped bytes are subtracted from it.
            arrived: bytes of each of these flows that arrive, float64 [n].
            excess: bytes that do not fit at each link, float64 [links].
            credit: credit of each flow at the begin of the step (bytes); the flow with the highest
                credit loses the next packet, float64 [flows].
        """
        amounts = self.bytes
        flows = level.flows[rows]
        # the newest batch, ``staying[:, -1]``, has the bytes that came in this step and stay
        dropped, credit_change = choose_drops(
            excess=excess,
            unsent=np.minimum(staying[:, -1], arrived),
            credit_before=(credit + amounts.credit)[flows],
            links=level.links[rows],
            flows=flows,
            packet=self._packet,
            draw=self._draws.draw_in_queue,
        )
        np.add.at(amounts.dropped, flows, dropped)
        np.add.at(amounts.credit, flows, credit_change)
        staying[:, -1] = np.maximum(staying[:, -1] - dropped, 0.0)

    def busy(self) -> Floats:
        """Return how busy each flow's route is in the step, 0 to 1, float64 [flows].

        The sender and each link of the route send in a part of the step only. The result is the
        greatest of these parts.
        """
        busy = self._busy.copy()
        divisor = np.where(self._sendable > 0, self._sendable, 1.0)  # no division by 0
        for level, load in self._loads:
            part_used = np.minimum(load / divisor, 1.0)
            np.maximum.at(busy, level.flows, part_used.take(level.links))
        return busy

    def receive(self) -> None:
        """Subtract the bytes that are lost on receivers' own links from the delivered bytes."""
        if self._losses.may_lose:
            lost = self._lose(self._losses.at_receiver, self.bytes.delivered)
            self.bytes.delivered -= lost

    def _lose(self, probability: Floats, passing: Floats) -> Floats:
        """Draw how many of the passing bytes are lost, and add them to the dropped bytes.

        Args:
            probability: probability that a packet is lost, float64 [flows].
            passing: bytes that pass the link, float64 [flows].

        Returns:
            Lost bytes, float64 [flows].
        """
        amounts = self.bytes
        lost, until_loss = self._losses.lose(probability, passing, amounts.until_loss, self._draws)
        amounts.until_loss = until_loss
        amounts.dropped += lost
        return lost
