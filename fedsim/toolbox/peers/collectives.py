"""All-reduces as a program for each node, which timing (``AllReduce``) and learning (``diloco``)
both run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import simpy

from fedsim.clock.environment import ProcessGenerator
from fedsim.common.errors import SimulationError, nearest
from fedsim.common.units import Bytes
from fedsim.world.processes.world import World, quantity

CollectiveKind = Literal["ring", "tree", "butterfly", "server"]


class CollectiveStep(NamedTuple):
    """A step of a node: wait for one message from each of ``receive``, then send one to each of
    ``send``; nodes by rank.
    """

    receive: tuple[int, ...]
    send: tuple[int, ...]


class Collective(NamedTuple):
    """An all-reduce: the steps of each node, the last of which may be a server, and the vector's
    part in each message.
    """

    programs: tuple[tuple[CollectiveStep, ...], ...]
    share: float


def _ring(n: int) -> Collective:
    """Each node sends 1/n to the next, 2 (n - 1) times: sums are complete half-way, then they go
    round.
    """

    def program(node: int) -> tuple[CollectiveStep, ...]:
        before = ((node - 1) % n,)
        after = ((node + 1) % n,)
        return (
            CollectiveStep((), after),
            *[CollectiveStep(before, after)] * (2 * n - 3),
            CollectiveStep(before, ()),
        )

    return Collective(tuple(map(program, range(n))), 1 / n)


def _tree(n: int) -> Collective:
    """Sums go up a binary tree, node 0 its root, children 2 i + 1 and 2 i + 2; the result comes
    down.
    """

    def program(node: int) -> tuple[CollectiveStep, ...]:
        children = tuple(child for child in (2 * node + 1, 2 * node + 2) if child < n)
        parent = ((node - 1) // 2,)
        down = CollectiveStep(parent if node else children, children)
        return (CollectiveStep(children, parent), down) if node else (down,)

    return Collective(tuple(map(program, range(n))), 1.0)


def _butterfly(n: int) -> Collective:
    """Each node owns 1/n: all others send it that part, and get the sum back, each over a
    connection of its own (hivemind).
    """

    def program(node: int) -> tuple[CollectiveStep, ...]:
        others = tuple(other for other in range(n) if other != node)
        return (
            CollectiveStep((), others),
            CollectiveStep(others, others),
            CollectiveStep(others, ()),
        )

    return Collective(tuple(map(program, range(n))), 1 / n)


def _server(n: int) -> Collective:
    """Each node sends its vector to a server, of rank n, which sends the sum back when all are
    there.
    """
    nodes = tuple(range(n))
    node = (CollectiveStep((), (n,)), CollectiveStep((n,), ()))
    return Collective((*[node] * n, (CollectiveStep(nodes, nodes),)), 1.0)


_KINDS: Mapping[str, Callable[[int], Collective]] = {
    "ring": _ring,
    "tree": _tree,
    "butterfly": _butterfly,
    "server": _server,
}


def collective(kind: str, nodes: int) -> Collective:
    """The all-reduce of a kind among so many nodes; ``SimulationError``: an unknown kind, or
    less than 2 nodes.
    """
    if kind not in _KINDS:
        raise SimulationError(
            f"there is no all-reduce {kind!r}; allowed are "
            f"{', '.join(_KINDS)}{nearest(kind, _KINDS)}"
        )
    if nodes < 2:
        raise SimulationError(f"an all-reduce among {nodes} nodes; allowed are 2 or more")
    return _KINDS[kind](nodes)


class AllReduce:
    """Successive all-reduces of one group of nodes, which wait for one another. A process that
    uses it cannot be saved.

    Args:
        world: where the messages move.
        nodes: endpoints, by rank.
        size: bytes of the vector that each node holds (``"100 MB"``).
        kind: ``ring``, ``tree``, ``butterfly`` or ``server``.
        pieces: parts of the vector, each an all-reduce of its own, so that their hops overlap.
        connections: messages of a pair under way at a time in each direction; others queue in
            order.
    """

    def __init__(
        self,
        world: World,
        nodes: Sequence[int | str],
        size: float | str,
        kind: CollectiveKind = "ring",
        pieces: int = 1,
        connections: int = 1,
    ) -> None:
        for name, value in (("pieces", pieces), ("connections", connections)):
            if value < 1:
                raise SimulationError(f"{name} of an all-reduce is {value}; allowed are 1 or more")
        found = collective(kind, len(nodes))
        self._world = world
        self._programs = found.programs
        self._pieces = pieces
        self._connections = connections
        self._nodes = [*nodes, "server"][: len(found.programs)]
        self._bytes = quantity(size, Bytes, "the vector of an all-reduce") * found.share / pieces
        # piece, from, to: messages that have come
        self._here: dict[tuple[int, int, int], simpy.Store] = {}
        self._pairs: dict[tuple[int, int], simpy.Resource] = {}
        self._begun = [0] * len(self._programs)

    def join(self, rank: int) -> simpy.Event:
        """A node takes part in its next all-reduce.

        The event fires when it holds the whole result.
        """
        last = len(self._nodes) - 1
        if not 0 <= rank <= last:
            raise SimulationError(
                f"there is no node of rank {rank} in the all-reduce; allowed are 0 to {last}"
            )
        self._begun[rank] += 1
        if self._nodes[last] == "server" and self._begun[last] < self._begun[rank]:
            self.join(last)
        env = self._world.env
        return env.all_of([env.process(self._play(rank, piece)) for piece in range(self._pieces)])

    def _play(self, rank: int, piece: int) -> ProcessGenerator:
        sent = []
        for step in self._programs[rank]:
            for other in step.receive:
                yield self._store(piece, other, rank).get()
            sent += [self._world.env.process(self._send(piece, rank, other)) for other in step.send]
        yield self._world.env.all_of(sent)

    def _send(self, piece: int, source: int, destination: int) -> ProcessGenerator:
        """Send a message when the pair has a connection free; one that is lost is taken up where
        it stopped.
        """
        world = self._world
        ends = (self._nodes[source], self._nodes[destination])
        left = self._bytes
        pair = self._pairs.setdefault(
            (source, destination), simpy.Resource(world.env, self._connections)
        )
        queued = world.now
        with pair.request() as turn:
            yield turn
            waited = world.now - queued
            while (sent := (yield world.send(*ends, left, "all-reduce", waited))).outcome != "done":
                left = sent.left
                waited = 0.0
                for end in ends:
                    if end != "server":
                        yield world.until_available(end)
        self._store(piece, source, destination).put(None)

    def _store(self, piece: int, source: int, destination: int) -> simpy.Store:
        return self._here.setdefault((piece, source, destination), simpy.Store(self._world.env))
