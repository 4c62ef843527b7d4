"""Routes between the nodes of a graph, with the fewest hops."""

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import SimulationError

if TYPE_CHECKING:
    import networkx


class Walks:
    """Finder of the routes with the fewest hops between the nodes of a graph network.

    If several routes to or from the server have equally many hops, the chosen one has, from the
    server outwards, the nodes that come first by name. Routes are cached.

    Args:
        graph: graph whose edges may have a ``latency`` (s).
        server: the node of the server.

    Attributes:
        graph: the graph as a directed graph.
        has_delays: whether any edge has a latency above 0.
    """

    def __init__(self, graph: "networkx.Graph[Any]", server: Hashable) -> None:
        self.graph = graph.to_directed()
        self._server = server
        # (root of a search, is_from) -> node -> next node towards the root
        self._predecessors: dict[tuple[Hashable, bool], dict[Hashable, Hashable]] = {}
        self.has_delays = any(data.get("latency") for _, _, data in graph.edges(data=True))

    def delay_s(self, tail: Hashable, head: Hashable) -> float:
        """Return the latency of the route from ``tail`` to ``head`` (s), summed over its links."""
        links = pairwise(self.between(tail, head))
        return math.fsum(self.graph.edges[link].get("latency", 0.0) for link in links)

    def links(self, tail: Hashable, head: Hashable) -> list[str]:
        """Return the names (``a -> b``) of the links on the route from ``tail`` to ``head``."""
        return [f"{start} -> {end}" for start, end in pairwise(self.between(tail, head))]

    def between(self, tail: Hashable, head: Hashable) -> list[Hashable]:
        """Return the nodes on the route from ``tail`` to ``head``, both included.

        Raises:
            SimulationError: there is no route.
        """
        to_server = self._walk(self._server, tail, is_from=False)
        from_server = self._walk(self._server, head, is_from=True)
        # if one node is on the other's route to or from the server, a part of that route is used
        if head in to_server:
            return to_server[: to_server.index(head) + 1]
        if tail in from_server:
            return from_server[from_server.index(tail) :]
        if str(tail) <= str(head):
            return self._walk(tail, head, is_from=True)
        return self._walk(head, tail, is_from=False)

    def _walk(self, root: Hashable, node: Hashable, *, is_from: bool) -> list[Hashable]:
        """Return the nodes of a route that a breadth-first search from ``root`` finds.

        Args:
            root: the node at which the search begins.
            node: the node at the far end of the route.
            is_from: whether the route leads from ``root`` to ``node``; else from ``node`` to
                ``root``.

        Returns:
            The nodes in the direction of travel, both ends included.

        Raises:
            SimulationError: there is no route.
        """
        import networkx

        # a route to ``root`` is a route from ``root`` in the reversed graph
        if (root, is_from) not in self._predecessors:
            graph = self.graph if is_from else self.graph.reverse(copy=False)
            search = networkx.bfs_predecessors(
                graph, root, sort_neighbors=lambda nodes: sorted(nodes, key=str)
            )
            self._predecessors[root, is_from] = dict(search)
        predecessors = self._predecessors[root, is_from]
        walk = [node]  # nodes from ``node`` back to ``root``
        while node != root:
            if node not in predecessors:
                direction = "from" if is_from else "to"
                raise SimulationError(
                    f"the network has no way {direction} the server {root!r} for node {node!r}"
                )
            node = predecessors[node]
            walk.append(node)
        return walk[::-1] if is_from else walk

    def edge_servers_of(self, nodes: Sequence[Hashable], places: Sequence[Hashable]) -> Ints:
        """Return which edge server serves each node to which devices are attached.

        The edge server of a node is the first edge server on the node's route to the server.

        Args:
            nodes: the node of each edge server.
            places: nodes to which devices are attached.

        Returns:
            Index of the edge server in ``nodes`` for each place, int64 [places].

        Raises:
            SimulationError: a place has no edge server on its route to the server, or its edge
                server is not on the route back.
        """
        return np.array(
            [nodes.index(self._edge_server_of(nodes, place)) for place in places], np.int64
        )

    def _edge_server_of(self, nodes: Sequence[Hashable], place: Hashable) -> Hashable:
        """Return the first node with an edge server on the route from a node to the server.

        Args:
            nodes: the node of each edge server.
            place: node to which devices are attached.

        Raises:
            SimulationError: the route has no edge server, or its first edge server is not on the
                route from the server to ``place``.
        """
        server = self._server
        on_route = [node for node in self.between(place, server)[:-1] if node in nodes]
        if not on_route:
            raise SimulationError(
                f"no edge server is on the way from node {place!r} to the server {server!r}"
            )
        edge_server = on_route[0]
        if edge_server not in self.between(server, place):
            raise SimulationError(
                f"the way from the server {server!r} to node {place!r} misses its edge "
                f"server {edge_server!r}"
            )
        return edge_server
