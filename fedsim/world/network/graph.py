"""Any network: links with capacities, and a route through them between the server and each place where devices are."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError, nearest
from fedsim.simulation import Simulation
from fedsim.world.network.base import Network
from fedsim.world.network.filling import Filling
from fedsim.world.network.flow import Direction, Flow
from fedsim.world.network.protocol import PLAIN, Transport

if TYPE_CHECKING:
    import networkx

Routes = Mapping[Direction, Sequence[Sequence[str]]]
"""For each direction the route of each site: names of links."""


@dataclass(frozen=True)
class EdgeServers:
    """The edge servers of a network, and the ways to and from them.

    Attributes:
        of: which is each site's; int64 [sites].
        below: for each direction the route of each site between its devices and its edge server: names of links.
        above: for each direction the route of each edge server between it and the server.
        latency: what passes before the first byte between an edge server and the server (s).
    """

    of: NDArray[np.int64]
    below: Routes
    above: Routes
    latency: float


class Graph(Network):
    """Devices at sites, and from each site a fixed route of shared links to the server and back.

    Args:
        simulation: the clock.
        down, up: rates of the devices' own links, bytes/s, infinity allowed; float64 [devices].
        latency: of each device, s; float64 [devices].
        links: name -> capacity of each shared link, bytes/s, infinity allowed.
        routes: for each direction the route of each site; a link may be on routes of both directions.
        sites: the site of each device; int64 [devices].
        transport: the protocol.
        edges: the edge servers, if there are any.

    Raises:
        SimulationError: a rate is not above 0, a latency is negative or not finite, or a route has an unknown link.
    """

    def __init__(
        self,
        simulation: Simulation,
        down: NDArray[np.float64],
        up: NDArray[np.float64],
        latency: NDArray[np.float64],
        links: Mapping[str, float],
        routes: Routes,
        sites: NDArray[np.int64],
        transport: Transport = PLAIN,
        edges: EdgeServers | None = None,
    ) -> None:
        for name, capacity in links.items():
            if not capacity > 0:
                raise SimulationError(f"the link {name!r} carries {capacity} B/s; a capacity must be above 0")
        # Each way: between each site and the server, then each site and its edge server, then each of these and the server.
        ways = {direction: [*way, *_of_edges(edges, direction)] for direction, way in routes.items()}
        hops = max((len(route) for way in ways.values() for route in way), default=0) or 1
        self._filling = Filling(np.array(list(links.values()), dtype=np.float64), hops)
        sharing: dict[Direction, Filling] = {"down": self._filling, "up": self._filling}
        latencies = None if edges is None else np.full(len(edges.above["down"]), edges.latency)
        of = None if edges is None else edges.of[sites]
        super().__init__(simulation, down, up, latency, sharing, links, transport, latencies, of)
        if len(sites) != len(down):
            raise SimulationError(f"{len(sites)} sites for {len(down)} devices; each device is at one")
        self._sites = sites
        self._places = len(routes["down"])
        self._numbers = {direction: _numbers(way, links, hops) for direction, way in ways.items()}
        self._named = {direction: [tuple((link, links[link]) for link in r) for r in way] for direction, way in ways.items()}
        self._layout = None if edges is None else _layout(links, routes, edges)

    @classmethod
    def between(
        cls,
        simulation: Simulation,
        down: NDArray[np.float64],
        up: NDArray[np.float64],
        latency: NDArray[np.float64],
        graph: "networkx.Graph[Any]",
        server: Hashable,
        attach: Sequence[Hashable],
        transport: Transport = PLAIN,
        edges: "EdgeNodes | None" = None,
    ) -> "Graph":
        """The network of a networkx graph: device i sits at node ``attach[i mod len(attach)]``.

        Routes have the fewest hops; among equals the one through the nodes that come first by name. An undirected edge carries
        its capacity each way at the same time.

        Args:
            simulation, down, up, latency: as above.
            graph: a ``Graph`` or ``DiGraph`` whose edges have a ``capacity`` in bytes/s.
            server: the server's node.
            attach: the nodes that devices are dealt over in turn.
            transport: the protocol.
            edges: the edge servers, if there are any.

        Raises:
            SimulationError: an unknown node, an edge without capacity, parallel edges, or no way between a node and the server
                or its edge server.
        """
        if graph.is_multigraph():
            raise SimulationError("the network has parallel edges; give one edge with the capacity of all")
        for node in (server, *attach):
            if node not in graph:
                raise SimulationError(f"the network has no node {node!r}{nearest(str(node), map(str, graph))}")
        both_ways = graph.to_directed()
        links: dict[str, float] = {}
        for tail, head, data in both_ways.edges(data=True):
            if "capacity" not in data:
                raise SimulationError(f"the edge {tail!r} - {head!r} has no 'capacity' (bytes/s)")
            links[_link(tail, head)] = data["capacity"]
        towards, back = _steps(both_ways, server), _steps(both_ways.reverse(copy=False), server)
        walks: dict[Direction, list[list[Hashable]]] = {
            "down": [[node, *(end for _, end in _walk(node, server, towards, "from"))] for node in attach],
            "up": [[node, *(end for _, end in _walk(node, server, back, "to"))] for node in attach],
        }
        routes: Routes = {direction: [_along(walk, direction) for walk in found] for direction, found in walks.items()}
        built = None if edges is None else _at_nodes(edges, walks, links)
        network = cls(simulation, down, up, latency, links, routes, np.arange(len(down)) % len(attach), transport, built)
        network._layout = _layout(links, routes, built)
        return network

    def layout(self) -> dict[str, Any] | None:
        """Of a network that ``between`` made, or with edge servers: ``links``, name -> capacity (bytes/s, None if infinite),
        ``routes``: for each direction the names of the links on the way of each place, over which devices are dealt in turn.
        With edge servers ``edges``: ``of``, ``below``, ``above`` and ``latency`` of ``EdgeServers``.
        """
        return self._layout

    def _row(self, flow: Flow) -> int:
        """Which of the ways a flow takes."""
        if flow.device >= self.devices:
            return 2 * self._places + flow.device - self.devices
        return self._sites.item(flow.device) + (self._places if flow.near else 0)

    def _way(self, flow: Flow) -> tuple[tuple[str, float], ...]:
        return self._named[flow.direction][self._row(flow)]

    def route(self, device: int, direction: Direction) -> tuple[tuple[str, float], ...]:
        """The shared links between the server and a device: the name and the capacity (bytes/s) of each."""
        return self._named[direction][self._sites.item(device)]

    def _narrowest(self, direction: Direction, devices: slice) -> NDArray[np.float64]:
        named = self._named[direction][: self._places]
        of_sites = [min((capacity for _, capacity in route), default=math.inf) for route in named]
        return np.array(of_sites)[self._sites[devices]]

    def _enter(self, flow: Flow, cap: float, now: float) -> None:
        route = self._numbers[flow.direction][self._row(flow)]
        self._filling.enter(flow.id, flow.wire, cap, route, flow.weight)

    def _set_capacity(self, link: str, capacity: float, now: float) -> None:
        self._filling.set_capacity(list(self._shared).index(link), capacity)

    def devices_at(self, place: int) -> list[int]:
        """The devices of a cell, or of the place of that number in ``attach``."""
        if not 0 <= place < self._places:
            raise SimulationError(f"there is no cell {place}; allowed are 0 to {self._places - 1}")
        found: list[int] = np.flatnonzero(self._sites == place).tolist()
        return found


class EdgeNodes(NamedTuple):
    """Edge servers at nodes of a graph.

    Attributes:
        nodes: where they stand; that of a place is the first on the way from there to the server.
        receive, send: rates of their own links (bytes/s).
        latency: between them and the server (s).
    """

    nodes: Sequence[Hashable]
    receive: float
    send: float
    latency: float


def edge_links(edge: int, receive: float, send: float) -> dict[str, float]:
    """The links of an edge server's own, by name (bytes/s): all that comes to it takes one, all that leaves it the other."""
    return {f"edge {edge} receive": receive, f"edge {edge} send": send}


def _at_nodes(edges: EdgeNodes, walks: Mapping[Direction, list[list[Hashable]]], links: dict[str, float]) -> EdgeServers:
    """Cut the ways between places and the server at the edge servers; adds their own links to ``links``."""
    number = {node: edge for edge, node in enumerate(edges.nodes)}
    for edge in number.values():
        links |= edge_links(edge, edges.receive, edges.send)
    of = []
    below: dict[Direction, list[list[str]]] = {"down": [], "up": []}
    above: dict[Direction, list[list[str]]] = {"down": [[] for _ in number], "up": [[] for _ in number]}
    for up, down in zip(walks["up"], walks["down"], strict=True):
        found = next((node for node in up[:-1] if node in number), None)
        if found is None:
            raise SimulationError(f"no edge server is on the way from node {up[0]!r} to the server {up[-1]!r}")
        if found not in down:
            raise SimulationError(
                f"what the server {up[-1]!r} sends to node {up[0]!r} does not come by its edge server {found!r}"
            )
        edge = number[found]
        of.append(edge)
        receive, send = edge_links(edge, edges.receive, edges.send)
        at, back = up.index(found), down.index(found)
        below["up"].append([*_along(up[: at + 1], "up"), receive])
        below["down"].append([send, *_along(down[: back + 1], "down")])
        above["up"][edge] = [send, *_along(up[at:], "up")]
        above["down"][edge] = [*_along(down[back:], "down"), receive]
    return EdgeServers(np.array(of, dtype=np.int64), below, above, edges.latency)


def _along(walk: Sequence[Hashable], direction: Direction) -> list[str]:
    """The links along nodes on the way to the server, or back."""
    return [_link(tail, head) for tail, head in pairwise(walk if direction == "up" else walk[::-1])]


def _of_edges(edges: EdgeServers | None, direction: Direction) -> list[Sequence[str]]:
    return [] if edges is None else [*edges.below[direction], *edges.above[direction]]


def _layout(links: Mapping[str, float], routes: Routes, edges: EdgeServers | None) -> dict[str, Any]:
    finite = {name: None if math.isinf(capacity) else capacity for name, capacity in links.items()}
    told: dict[str, Any] = {"links": finite, "routes": routes}
    if edges is not None:
        ways = {"below": edges.below, "above": edges.above}
        told["edges"] = {"of": edges.of.tolist(), "latency": edges.latency, **ways}
    return told


def _numbers(routes: Sequence[Sequence[str]], links: Mapping[str, float], hops: int) -> NDArray[np.int64]:
    """Routes as numbers of links, padded with the number of links; int64 [sites, hops]."""
    number = {name: index for index, name in enumerate(links)}
    table = np.full((len(routes), hops), len(links), dtype=np.int64)
    for site, route in enumerate(routes):
        for hop, name in enumerate(route):
            if name not in number:
                raise SimulationError(f"the route of site {site} has the unknown link {name!r}{nearest(name, links)}")
            table[site, hop] = number[name]
    return table


def _link(tail: Hashable, head: Hashable) -> str:
    return f"{tail} -> {head}"


def _steps(graph: "networkx.Graph[Any]", server: Hashable) -> dict[Hashable, Hashable]:
    """From each node that can be reached the next one on the way back to the server."""
    import networkx

    return dict(networkx.bfs_predecessors(graph, server, sort_neighbors=lambda nodes: sorted(nodes, key=str)))


def _walk(node: Hashable, server: Hashable, step: Mapping[Hashable, Hashable], way: str) -> list[tuple[Hashable, Hashable]]:
    pairs = []
    while node != server:
        if node not in step:
            raise SimulationError(f"the network has no way {way} the server {server!r} for node {node!r}")
        pairs.append((node, step[node]))
        node = step[node]
    return pairs
