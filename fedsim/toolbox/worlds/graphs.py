"""Networks of shared links between nodes: a tree of cells, or any graph, on which routes have
the fewest hops.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError, SimulationError, nearest
from fedsim.common.files import sought
from fedsim.common.spec import Spec
from fedsim.common.units import LinkRate, Seconds
from fedsim.toolbox.worlds.graph_files import read_graph
from fedsim.world.columns import ALL
from fedsim.world.network.endpoints import SERVER, in_ticks
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import PLAIN, Transport
from fedsim.world.network.spec import NetworkInputs, NetworkModel, SharedLink

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class EdgeServers:
    """Edge servers at ``nodes``: links (bytes/s), ``latency`` to the server (s), and each
    place's in ``of``, int64 [places].
    """

    nodes: Sequence[Hashable]
    receive: float
    send: float
    latency: float
    of: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class Graph(Network):
    """Endpoints at nodes, device i at place i mod their number; ``path`` gives the shared links
    between two nodes.

    ``delay_s`` gives the latency of the way between two nodes (s), paid beside the endpoints'
    own; None: no way has one.
    """

    def __init__(
        self,
        simulation: Simulation,
        down: Floats,
        up: Floats,
        latency: Floats,
        links: Mapping[str, float],
        path: Callable[[Any, Any], Sequence[str]],
        places: Sequence[Hashable],
        server: Hashable = SERVER,
        transport: Transport = PLAIN,
        edges: EdgeServers | None = None,
        hosts: Sequence[Hashable] = (),
        delay_s: Callable[[Any, Any], float] | None = None,
    ) -> None:
        self._path = path
        self._places = places
        self._server = server
        self._edges = edges
        self._delay_s = delay_s
        self._others = [*(() if edges is None else edges.nodes), *hosts]
        self.repeats = len(places)
        self.has_layout = edges is not None
        kept: dict[str, Any] = {"hosts": [str(node) for node in hosts]}
        if edges is not None:
            own = {"receive": edges.receive, "send": edges.send}
            links = {
                **links,
                **{
                    f"edge {edge} {way}": own[way]
                    for edge in range(len(edges.nodes))
                    for way in own
                },
            }
            kept["edge_latency"] = np.full(len(edges.nodes), edges.latency)
            kept["edges"] = edges.of[np.arange(len(down)) % len(places)]
        super().__init__(simulation, links, down, up, latency, transport, **kept)
        if delay_s is not None:
            whole = (
                self._own_latency
                if edges is None
                else self._own_latency + self._edge_latency[self.edges]
            )
            self.latencies = in_ticks(whole + self._delays(whole, lambda place: SERVER))

    def _delays(self, column: Floats, end: Callable[[int], int]) -> Floats:
        """Latency of the way between each device's place and an endpoint (s), float64 as long as
        ``column``.
        """
        delays = np.array([self._way_s(place, end(place)) for place in range(len(self._places))])
        return delays[np.arange(len(column)) % len(delays)]

    def near_latencies(self, devices: slice = ALL) -> Floats:
        if self._delay_s is None or self._edges is None:
            return super().near_latencies(devices)
        of = self._edges.of
        delays = self._delays(self._own_latency, lambda place: self.devices + of.item(place))
        return in_ticks((self._own_latency + delays)[devices])

    def _way_s(self, source: int, destination: int) -> float:
        """Latency of the links between two endpoints (s)."""
        return (
            0.0
            if self._delay_s is None
            else self._delay_s(self._node(source), self._node(destination))
        )

    def _exact_latency_s(self, source: int, destination: int) -> float:
        return super()._exact_latency_s(source, destination) + self._way_s(source, destination)

    def layout(self) -> dict[str, Any] | None:
        """Layout of a graph, or of a tree with edge servers: ``links``, name -> capacity (bytes/s,
        None if infinite), and ``routes`` by direction, the links between each place and the server.
        ``edges`` has, where there are edge servers, ``of`` (each place's), ``latency``, and the
        routes ``below`` (place, edge server) and ``above`` (edge server, server). ``delays``, where
        links have latencies, has those of the ways to the server of ``places`` and ``edges`` (s).
        """
        if not self.has_layout:
            return None

        def routes(pairs: Iterable[tuple[int, int]]) -> dict[str, list[list[str]]]:
            down_and_up = [(self.route(far, near), self.route(near, far)) for near, far in pairs]
            return {"down": [down for down, _ in down_and_up], "up": [up for _, up in down_and_up]}

        finite = {
            name: None if math.isinf(capacity) else capacity
            for name, capacity in self.links.items()
        }
        layout: dict[str, Any] = {
            "links": finite,
            "routes": routes((place, SERVER) for place in range(len(self._places))),
        }
        if self._edges is not None:
            of = self._edges.of.tolist()
            below = routes((place, self.devices + edge) for place, edge in enumerate(of))
            above = routes((self.devices + edge, SERVER) for edge in range(len(self._edges.nodes)))
            layout["edges"] = {
                "of": of,
                "latency": self._edges.latency,
                "below": below,
                "above": above,
            }
        if self._delay_s is not None:
            servers = range(self.devices, self.devices + len(self._edge_latency))
            ends = {"places": range(len(self._places)), "edges": servers}
            layout["delays"] = {
                name: [self._way_s(each, SERVER) for each in numbers]
                for name, numbers in ends.items()
            }
        return layout

    def route(self, source: int, destination: int) -> list[str]:
        found = list(self._path(self._node(source), self._node(destination)))
        sender = self.edge_at(source)
        receiver = self.edge_at(destination)
        return (
            [f"edge {sender} send"] * (sender is not None)
            + found
            + [f"edge {receiver} receive"] * (receiver is not None)
        )

    def _node(self, endpoint: int) -> Hashable:
        if endpoint >= self.devices:
            return self._others[endpoint - self.devices]
        return self._server if endpoint == SERVER else self._places[endpoint % len(self._places)]

    def devices_at(self, place: int) -> list[int]:
        if not 0 <= place < len(self._places):
            raise SimulationError(
                f"there is no cell {place}; allowed are 0 to {len(self._places) - 1}"
            )
        return list(range(place, self.devices, len(self._places)))


class EdgeLinks(Spec):
    """Edge servers, which can combine devices' messages: one at each cell.

    Attributes:
        receive, send: rates of each edge server's links, shared by its devices and the server.
        latency: between an edge server and the server; also paid, beside its own, by a device
            that talks to the server.
    """

    receive: LinkRate = math.inf
    send: LinkRate = math.inf
    latency: Seconds = 0.0


def between(
    simulation: Simulation,
    down: Floats,
    up: Floats,
    latency: Floats,
    graph: "networkx.Graph[Any]",
    server: Hashable,
    attach: Sequence[Hashable],
    transport: Transport = PLAIN,
    edges: EdgeServers | None = None,
    hosts: Sequence[Hashable] = (),
) -> Graph:
    """The network of a networkx graph; ``attach`` has the nodes of the places.

    Each edge has a ``capacity`` (bytes/s), and perhaps a ``latency`` (s). Latencies add up along
    a route.

    Routes have the fewest hops; among equals a route to or from the server takes the nodes that
    come first by name, seen from the server. If one of two other nodes lies on the other's way to
    or from the server, their route is that part of the way. Otherwise it is found as if the node
    that comes first by name were the server. An undirected edge carries its capacity each way at
    the same time. ``SimulationError``: no way between a node and the server or its edge server, or
    one whose latency differs from that of the way back.
    """
    walks = _Walks(graph, server)
    links = {
        f"{tail} -> {head}": data["capacity"] for tail, head, data in walks.graph.edges(data=True)
    }
    for node in (*attach, *hosts):
        walks.between(server, node)
        walks.between(node, server)
    built = None if edges is None else replace(edges, of=walks.edges_of(edges.nodes, attach))
    delay_s = walks.delay_s if walks.has_delays else None
    if delay_s is not None:
        for node in (*attach, *hosts, *([] if edges is None else edges.nodes)):
            _refuse_other_way_back(delay_s, server, node)
    network = Graph(
        simulation,
        down,
        up,
        latency,
        links,
        walks.links,
        attach,
        server,
        transport,
        built,
        hosts,
        delay_s,
    )
    network.has_layout = True
    return network


def _refuse_other_way_back(
    delay_s: Callable[[Any, Any], float], server: Hashable, node: Hashable
) -> None:
    there_s = delay_s(server, node)
    back_s = delay_s(node, server)
    if there_s != back_s:
        ways = (
            f"from the server {server!r} to node {node!r} links take {there_s:g} s, and back "
            f"{back_s:g} s"
        )
        raise SimulationError(f"{ways}; allowed are the same latencies both ways")


class _Walks:
    """The shortest walks of a graph; ``server`` comes before all other nodes."""

    def __init__(self, graph: "networkx.Graph[Any]", server: Hashable) -> None:
        self.graph = graph.to_directed()
        self._server = server
        self._steps: dict[tuple[Hashable, bool], dict[Hashable, Hashable]] = {}
        self.has_delays = any(data.get("latency") for _, _, data in graph.edges(data=True))

    def delay_s(self, tail: Hashable, head: Hashable) -> float:
        """Latency of the route between two nodes (s): the sum of those of its links."""
        return math.fsum(
            self.graph.edges[link].get("latency", 0.0)
            for link in pairwise(self.between(tail, head))
        )

    def links(self, tail: Hashable, head: Hashable) -> list[str]:
        return [f"{one} -> {next_}" for one, next_ in pairwise(self.between(tail, head))]

    def between(self, tail: Hashable, head: Hashable) -> list[Hashable]:
        """Nodes of the route, both ends included."""
        up = self._walk(self._server, tail, is_from=False)
        down = self._walk(self._server, head, is_from=True)
        if head in up:
            return up[: up.index(head) + 1]
        if tail in down:
            return down[down.index(tail) :]
        comes_first = str(tail) <= str(head)
        return self._walk(*((tail, head) if comes_first else (head, tail)), is_from=comes_first)

    def _walk(self, root: Hashable, node: Hashable, *, is_from: bool) -> list[Hashable]:
        """Nodes from the root of the search to ``node``, or from ``node`` to the root."""
        import networkx

        if (root, is_from) not in self._steps:
            graph = self.graph if is_from else self.graph.reverse(copy=False)
            found = networkx.bfs_predecessors(
                graph, root, sort_neighbors=lambda nodes: sorted(nodes, key=str)
            )
            self._steps[root, is_from] = dict(found)
        steps = self._steps[root, is_from]
        walk = [node]
        while node != root:
            if node not in steps:
                way = "from" if is_from else "to"
                raise SimulationError(
                    f"the network has no way {way} the server {root!r} for node {node!r}"
                )
            node = steps[node]
            walk.append(node)
        return walk[::-1] if is_from else walk

    def edges_of(self, nodes: Sequence[Hashable], places: Sequence[Hashable]) -> Ints:
        """The edge server of each place; int64 [places]."""
        of = []
        server = self._server
        for place in places:
            found = next((node for node in self.between(place, server)[:-1] if node in nodes), None)
            if found is None:
                raise SimulationError(
                    f"no edge server is on the way from node {place!r} to the server {server!r}"
                )
            if found not in self.between(server, place):
                raise SimulationError(
                    f"the way from the server {server!r} to node {place!r} misses its edge "
                    f"server {found!r}"
                )
            of.append(nodes.index(found))
        return np.array(of, dtype=np.int64)


class EdgeNodesSpec(EdgeLinks):
    """Edge servers at nodes of a graph; that of a device is the first on the way from it to the
    server.
    """

    nodes: list[str] | None = Field(default=None, min_length=1)
    """their nodes; None: each node to which devices are attached."""


class GraphSpec(NetworkModel):
    """Any network, from a JSON node-link file as networkx writes it.

    Each edge has a ``capacity`` ("1 Gbit/s") each way, and perhaps a ``latency`` ("40 ms"; also as
    ``delay``), which adds up along the way and is paid before the first byte leaves. Labels for
    people and pictures change nothing; any other attribute is refused.
    """

    kind: Literal["graph"] = "graph"
    file: str
    """the file; a relative path starts from ``data.root``, else the working directory, else
    ``$FEDSIM_DATA``.
    """
    server: str
    """the server's node."""
    attach: list[str] = Field(min_length=1)
    """the nodes that devices are dealt over in turn."""
    edge: EdgeNodesSpec | None = None
    hosts: list[str] = Field(default_factory=list)
    """further nodes that send and receive, such as a cache."""

    @property
    def places(self) -> int:
        return len(set(self.attach))

    @property
    def edge_nodes(self) -> list[str]:
        return [] if self.edge is None else list(dict.fromkeys(self.edge.nodes or self.attach))

    @property
    def edge_servers(self) -> int:
        return len(self.edge_nodes)

    def _connect(self, inputs: NetworkInputs) -> Network:
        graph = read_graph(sought(self.file, inputs.root))
        self._refuse_unknown_nodes(graph)
        edge = self.edge
        edges = None
        if edge is not None:
            edges = EdgeServers(self.edge_nodes, edge.receive, edge.send, edge.latency)
        try:
            return between(
                inputs.simulation,
                *inputs.columns,
                graph,
                self.server,
                self.attach,
                inputs.transport,
                edges,
                self.hosts,
            )
        except SimulationError as error:
            raise ScenarioError(f"network.file {self.file!r}: {error}") from None

    def _refuse_unknown_nodes(self, graph: "networkx.Graph[Any]") -> None:
        nodes = {"server": self.server}
        lists = {"attach": self.attach, "edge.nodes": self.edge_nodes, "hosts": self.hosts}
        for key, names in lists.items():
            nodes |= {f"{key}.{place}": name for place, name in enumerate(names)}
        for key, node in nodes.items():
            if node not in graph:
                raise ScenarioError(
                    f"network.{key} is {node!r}, which is no node of "
                    f"{self.file!r}{nearest(node, graph)}"
                )


class TreeSpec(NetworkModel):
    """Cells with a link each to the server; device i is in cell i mod ``cells``."""

    kind: Literal["tree"] = "tree"
    cells: int = Field(ge=1, le=100_000)
    cell: SharedLink = SharedLink()
    server: SharedLink = SharedLink()
    edge: EdgeLinks | None = None

    @property
    def places(self) -> int:
        return self.cells

    @property
    def edge_servers(self) -> int:
        return 0 if self.edge is None else self.cells

    def _connect(self, inputs: NetworkInputs) -> Network:
        cells = range(self.cells)
        links = {"server down": self.server.down, "server up": self.server.up}
        for cell in cells:
            links[f"cell {cell} down"] = self.cell.down
            links[f"cell {cell} up"] = self.cell.up
        edge = self.edge
        edges = None
        if edge is not None:
            edge_of_cell = np.arange(self.cells)
            edges = EdgeServers(cells, edge.receive, edge.send, edge.latency, edge_of_cell)
        return Graph(
            inputs.simulation,
            *inputs.columns,
            links,
            _between_cells,
            cells,
            SERVER,
            inputs.transport,
            edges,
        )


def _between_cells(tail: int, head: int) -> list[str]:
    """The links between two cells, or a cell and the server.

    An edge server is on its own side of its cell's link.
    """
    if tail == head:
        return []
    return [
        "server down" if tail == SERVER else f"cell {tail} up",
        "server up" if head == SERVER else f"cell {head} down",
    ]
