"""All-reduces, as a program of steps for each node, for ``AllReduce`` and ``diloco``."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import simpy

from fedsim.clock.environment import ProcessGenerator
from fedsim.common.errors import SimulationError, nearest
from fedsim.common.units import Bytes
from fedsim.world.processes.values import parse_quantity
from fedsim.world.processes.world import World

CollectiveKind = Literal["ring", "tree", "butterfly", "server"]


class CollectiveStep(NamedTuple):
    """One step of a node in an all-reduce: it waits for messages, and then sends messages.

    Attributes:
        receive: ranks (node numbers) from which a message must arrive first.
        send: ranks to which a message is sent then.
    """

    receive: tuple[int, ...]
    send: tuple[int, ...]


class AllReducePlan(NamedTuple):
    """Plan of an all-reduce, which sums a vector over all nodes and gives each node the sum.

    Attributes:
        steps_by_rank: for each rank (node number) the steps of the node, in order. With the kind
            ``server`` the last entry has the steps of the server.
        message_share: share of the vector's bytes that each message has, 0 to 1.
    """

    steps_by_rank: tuple[tuple[CollectiveStep, ...], ...]
    message_share: float


def _ring(n: int) -> AllReducePlan:
    """Return the plan of a ring all-reduce of n nodes.

    Each node sends 2 (n - 1) messages to the next node, each with 1/n of the vector. After half of
    the messages the sums are complete.
    """

    def program(node: int) -> tuple[CollectiveStep, ...]:
        previous = ((node - 1) % n,)
        following = ((node + 1) % n,)
        # 2 (n - 1) messages are sent: the first one at once, all others when a message has arrived
        return (
            CollectiveStep((), following),
            *[CollectiveStep(previous, following)] * (2 * n - 3),
            CollectiveStep(previous, ()),
        )

    return AllReducePlan(tuple(map(program, range(n))), 1 / n)


def _tree(n: int) -> AllReducePlan:
    """Return the plan of a tree all-reduce of n nodes.

    Sums go up a binary tree to its root, node 0, and the result comes down. Nodes 2 i + 1 and 2 i +
    2 are the children of node i. A message carries the whole vector.
    """

    def program(node: int) -> tuple[CollectiveStep, ...]:
        children = tuple(child for child in (2 * node + 1, 2 * node + 2) if child < n)
        if node == 0:
            return (CollectiveStep(children, children),)
        parent = ((node - 1) // 2,)
        return (CollectiveStep(children, parent), CollectiveStep(parent, children))

    return AllReducePlan(tuple(map(program, range(n))), 1.0)


def _butterfly(n: int) -> AllReducePlan:
    """Return the plan of a butterfly all-reduce of n nodes.

    Each node receives 1/n of the vector from every other node, sums it, and sends the sum to every
    other node, as in the library hivemind.
    """

    def program(node: int) -> tuple[CollectiveStep, ...]:
        peers = tuple(peer for peer in range(n) if peer != node)
        return (
            CollectiveStep((), peers),
            CollectiveStep(peers, peers),
            CollectiveStep(peers, ()),
        )

    return AllReducePlan(tuple(map(program, range(n))), 1 / n)


def _server(n: int) -> AllReducePlan:
    """Return the plan of an all-reduce in which a server sums the vectors of n nodes.

    Each node sends its vector to the server, which sends the sum back. The server has rank (node
    number) n.
    """
    nodes = tuple(range(n))
    steps_of_node = (CollectiveStep((), (n,)), CollectiveStep((n,), ()))
    steps_of_server = (CollectiveStep(nodes, nodes),)
    return AllReducePlan((*[steps_of_node] * n, steps_of_server), 1.0)


_KINDS: Mapping[str, Callable[[int], AllReducePlan]] = {
    "ring": _ring,
    "tree": _tree,
    "butterfly": _butterfly,
    "server": _server,
}


def plan_all_reduce(kind: str, nodes: int) -> AllReducePlan:
    """Return the plan of an all-reduce: the messages that each node receives and sends, in order.

    Args:
        kind: ``ring``, ``tree``, ``butterfly`` or ``server``.
        nodes: the count of nodes, not counting a server.

    Raises:
        SimulationError: the kind is unknown, or there are fewer than 2 nodes.
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
    """Successive all-reduces among one group of nodes, carried out as messages in a world.

    An all-reduce sums a vector over all nodes, and gives each node the sum; here only the bytes of
    messages and their times are simulated. Each node calls ``join`` once for each all-reduce, and
    waits for the other nodes' messages. A run in which a process uses it cannot be saved and
    resumed.

    Args:
        world: the world whose links carry the messages.
        nodes: endpoints of the network, such as device IDs; a node's rank is its position here.
        size: bytes of the vector that each node holds (``"100 MB"``).
        kind: ``ring``, ``tree``, ``butterfly`` or ``server``.
        pieces: count of equal parts of the vector, each summed by a separate all-reduce; all start
            at the same time. Messages from one node to another are sent one after the other. The
            latency of a message elapses while the message waits for earlier messages.
        connections: count of parallel transfers into which each message is divided. On a link that
            other messages use too, the message gets this count of equal shares of the bandwidth.

    Example:
        >>> import fedsim
        >>> from fedsim.plugin import AllReduce
        >>> network = {"kind": "star", "device": {"down": "1 MB/s", "up": "1 MB/s"}}
        >>> world = fedsim.build_world({"devices": 4}, network)
        >>> ring = AllReduce(world, nodes=[0, 1, 2, 3], size="8 MB")
        >>> def work(rank):
        ...     yield ring.join(rank)
        >>> workers = [world.env.process(work(rank)) for rank in range(4)]
        >>> done = world.env.run(until=world.env.all_of(workers))
        >>> world.now
        12.0
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
        plan = plan_all_reduce(kind, len(nodes))
        vector_bytes = parse_quantity(size, Bytes, "the vector of an all-reduce")
        self._world = world
        # endpoint in the network of each rank, the position of a node; the server is the last one
        self._nodes = [*nodes, "server"] if kind == "server" else [*nodes]
        # for each rank the messages that it waits for and sends, in order
        self._steps_by_rank = plan.steps_by_rank
        # count of equal parts of the vector, each of which is summed by a separate all-reduce
        self._pieces = pieces
        # A message has a share of the piece (``ring``: 1/n), or the whole piece (``tree``).
        self._message_bytes = vector_bytes * plan.message_share / pieces
        # count of parallel transfers into which each message is divided
        self._connections = connections
        # (piece, rank of sender, rank of receiver) -> messages that have arrived
        self._arrived: dict[tuple[int, int, int], simpy.Store] = {}
        # (rank of sender, rank of receiver) -> lets one message through at a time
        self._pair_queues: dict[tuple[int, int], simpy.Resource] = {}
        # count of all-reduces that each rank has joined
        self._joined_counts = [0] * len(self._steps_by_rank)

    def join(self, rank: int) -> simpy.Event:
        """Start the next all-reduce on one node; each node of the group must call it.

        The server, if there is one, starts with the first node.

        Args:
            rank: rank of the node, its position in ``nodes``.

        Returns:
            SimPy event that fires when the node has received the whole result, and sent all its
            messages.

        Raises:
            SimulationError: there is no node of this rank.
        """
        last = len(self._nodes) - 1
        if not 0 <= rank <= last:
            raise SimulationError(
                f"there is no node of rank {rank} in the all-reduce; allowed are 0 to {last}"
            )
        counts = self._joined_counts  # count of all-reduces that each node has joined
        counts[rank] += 1
        has_server = self._nodes[last] == "server"
        if has_server and counts[last] < counts[rank]:
            self.join(last)  # the calling node is the first one in this all-reduce
        env = self._world.env
        return env.all_of(
            [env.process(self._follow_plan(rank, piece)) for piece in range(self._pieces)]
        )

    def _follow_plan(self, rank: int, piece: int) -> ProcessGenerator:
        """SimPy process of a node in the all-reduce of a piece of the vector.

        It ends when the node has received all messages, and when all its messages have arrived.
        """
        sent = []
        for step in self._steps_by_rank[rank]:
            for sender in step.receive:
                yield self._store(piece, sender, rank).get()
            for receiver in step.send:
                sent.append(self._world.env.process(self._send(piece, rank, receiver)))
        yield self._world.env.all_of(sent)

    def _send(self, piece: int, source: int, destination: int) -> ProcessGenerator:
        """SimPy process that sends a message of an all-reduce from one node to another.

        It waits until earlier messages of this pair of nodes have arrived. At the end it adds the
        message to the receiver's store.

        Args:
            piece: index of the piece of the vector that the message belongs to.
            source: rank of the sender.
            destination: rank of the receiver.
        """
        world = self._world
        queued = world.now
        queue = self._pair_queues.setdefault((source, destination), simpy.Resource(world.env))
        with queue.request() as turn:
            yield turn
            waited = world.now - queued
            ends = (self._nodes[source], self._nodes[destination])
            transfers = [
                world.env.process(self._transfer(ends, waited)) for _ in range(self._connections)
            ]
            yield world.env.all_of(transfers)
        self._store(piece, source, destination).put(None)

    def _transfer(self, ends: tuple[int | str, int | str], waited: float) -> ProcessGenerator:
        """SimPy process of one of the ``connections`` parallel transfers that carry a message.

        If the transfer fails, the remaining bytes are sent when both nodes are available again.

        Args:
            ends: endpoints of the sender and the receiver.
            waited: time that the message has waited for earlier messages (s), which is subtracted
                from its delay.
        """
        world = self._world
        remaining = self._message_bytes / self._connections
        while True:
            message = yield world.send(*ends, remaining, "all-reduce", waited)
            if message.outcome == "done":
                return
            remaining = message.left
            waited = 0.0  # the remaining bytes have the whole delay again
            for end in ends:
                if end != "server":
                    yield world.until_available(end)

    def _store(self, piece: int, source: int, destination: int) -> simpy.Store:
        return self._arrived.setdefault((piece, source, destination), simpy.Store(self._world.env))
