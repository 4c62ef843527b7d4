"""Any network: links with capacities, and a route through them between the server and each place where devices are."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError, nearest
from fedsim.simulation import Simulation
from fedsim.world.network.base import Direction, Flow, Network
from fedsim.world.network.filling import Filling
from fedsim.world.network.protocol import PLAIN, Transport

if TYPE_CHECKING:
    import networkx

Routes = Mapping[Direction, Sequence[Sequence[str]]]
"""For each direction the route of each site: names of links."""


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
    ) -> None:
        for name, capacity in links.items():
            if not capacity > 0:
                raise SimulationError(f"the link {name!r} carries {capacity} B/s; a capacity must be above 0")
        hops = max((len(route) for way in routes.values() for route in way), default=0) or 1
        self._filling = Filling(np.array(list(links.values()), dtype=np.float64), hops)
        super().__init__(simulation, down, up, latency, {"down": self._filling, "up": self._filling}, links, transport)
        if len(sites) != len(down):
            raise SimulationError(f"{len(sites)} sites for {len(down)} devices; each device is at one")
        self._sites = sites
        self._layout: dict[str, Any] | None = None
        self._numbers = {direction: _numbers(way, links, hops) for direction, way in routes.items()}
        self._named = {direction: [tuple((link, links[link]) for link in r) for r in way] for direction, way in routes.items()}

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

        Raises:
            SimulationError: an unknown node, an edge without capacity, parallel edges, or no way between a node and the server.
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
        routes: Routes = {
            "down": [[_link(tail, head) for head, tail in _walk(node, server, towards, "from")][::-1] for node in attach],
            "up": [[_link(tail, head) for tail, head in _walk(node, server, back, "to")] for node in attach],
        }
        network = cls(simulation, down, up, latency, links, routes, np.arange(len(down)) % len(attach), transport)
        finite = {name: None if math.isinf(capacity) else capacity for name, capacity in links.items()}
        network._layout = {"links": finite, "routes": routes}
        return network

    def layout(self) -> dict[str, Any] | None:
        """Of a network that ``between`` made: ``links``, name -> capacity (bytes/s, None if infinite), and ``routes``: for each
        direction the names of the links on the way of each node of ``attach``, over which devices are dealt in turn.
        """
        return self._layout

    def route(self, device: int, direction: Direction) -> tuple[tuple[str, float], ...]:
        """The shared links between the server and a device: the name and the capacity (bytes/s) of each."""
        return self._named[direction][self._sites.item(device)]

    def _narrowest(self, direction: Direction) -> NDArray[np.float64]:
        of_sites = [min((capacity for _, capacity in route), default=math.inf) for route in self._named[direction]]
        return np.array(of_sites)[self._sites]

    def _enter(self, flow: Flow, now: float) -> None:
        route = self._numbers[flow.direction][self._sites.item(flow.device)]
        self._filling.enter(flow.id, flow.wire, self._cap(flow), route, flow.weight)

    def _set_capacity(self, link: str, capacity: float, now: float) -> None:
        self._filling.set_capacity(list(self._shared).index(link), capacity)

    def devices_at(self, place: int) -> list[int]:
        """The devices of a cell, or of the place of that number in ``attach``."""
        places = len(self._named["down"])
        if not 0 <= place < places:
            raise SimulationError(f"there is no cell {place}; allowed are 0 to {places - 1}")
        found: list[int] = np.flatnonzero(self._sites == place).tolist()
        return found


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
