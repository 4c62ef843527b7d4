"""Networks of shared links between nodes: a tree of cells, or any graph, on which routes have the fewest hops."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from fedsim.arrays import Floats, Ints
from fedsim.errors import ScenarioError, SimulationError, nearest, shown
from fedsim.files import read_json, sought
from fedsim.language.spec import Spec
from fedsim.language.units import LinkRate, Seconds
from fedsim.simulation import Simulation
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import PLAIN, Transport
from fedsim.world.network.spec import AccessColumns, NetworkModel, SharedLink

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class EdgeServers:
    """Edge servers at ``nodes``: links (bytes/s), ``latency`` to the server (s), and each place's in ``of``, int64 [places]."""

    nodes: Sequence[Hashable]
    receive: float
    send: float
    latency: float
    of: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class Graph(Network):
    """Endpoints at nodes, device i at place i mod their number; ``path`` gives the shared links between two nodes."""

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
    ) -> None:
        self._path, self._places, self._server, self._edges = path, places, server, edges
        self._others = [*(() if edges is None else edges.nodes), *hosts]
        self.repeats, self.has_layout = len(places), edges is not None
        kept: dict[str, Any] = {"hosts": [str(node) for node in hosts]}
        if edges is not None:
            own = {"receive": edges.receive, "send": edges.send}
            links = {**links, **{f"edge {edge} {way}": own[way] for edge in range(len(edges.nodes)) for way in own}}
            kept["edge_latency"] = np.full(len(edges.nodes), edges.latency)
            kept["edges"] = edges.of[np.arange(len(down)) % len(places)]
        super().__init__(simulation, links, down, up, latency, transport, **kept)

    def layout(self) -> dict[str, Any] | None:
        """Layout of a graph, or of a tree with edge servers: ``links``, name -> capacity (bytes/s, None if infinite), and
        ``routes`` by direction, the links between each place and the server. ``edges`` has, where there are edge servers,
        ``of`` (each place's), ``latency``, and the routes ``below`` (place, edge server) and ``above`` (edge server, server).
        """
        if not self.has_layout:
            return None

        def routes(pairs: Iterable[tuple[int, int]]) -> dict[str, list[list[str]]]:
            down_and_up = [(self.route(far, near), self.route(near, far)) for near, far in pairs]
            return {"down": [down for down, _ in down_and_up], "up": [up for _, up in down_and_up]}

        finite = {name: None if math.isinf(capacity) else capacity for name, capacity in self.links.items()}
        layout: dict[str, Any] = {"links": finite, "routes": routes((place, SERVER) for place in range(len(self._places)))}
        if self._edges is not None:
            of = self._edges.of.tolist()
            below = routes((place, self.devices + edge) for place, edge in enumerate(of))
            above = routes((self.devices + edge, SERVER) for edge in range(len(self._edges.nodes)))
            layout["edges"] = {"of": of, "latency": self._edges.latency, "below": below, "above": above}
        return layout

    def route(self, source: int, destination: int) -> list[str]:
        found = list(self._path(self._node(source), self._node(destination)))
        sender, receiver = self.edge_at(source), self.edge_at(destination)
        return [f"edge {sender} send"] * (sender is not None) + found + [f"edge {receiver} receive"] * (receiver is not None)

    def _node(self, endpoint: int) -> Hashable:
        if endpoint >= self.devices:
            return self._others[endpoint - self.devices]
        return self._server if endpoint == SERVER else self._places[endpoint % len(self._places)]

    def devices_at(self, place: int) -> list[int]:
        if not 0 <= place < len(self._places):
            raise SimulationError(f"there is no cell {place}; allowed are 0 to {len(self._places) - 1}")
        return list(range(place, self.devices, len(self._places)))


class EdgeLinks(Spec):
    """Edge servers, which can combine devices' messages: one at each cell.

    Attributes:
        receive, send: rates of each edge server's links, shared by its devices and the server.
        latency: between an edge server and the server; also paid, beside its own, by a device that talks to the server.
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
    """The network of a networkx graph, each edge with a ``capacity`` in bytes/s; ``attach`` has the nodes of the places.

    Routes have the fewest hops; among equals a route to or from the server takes the nodes that come first by name, seen from
    the server. If one of two other nodes lies on the other's way to or from the server, their route is that part of the way.
    Otherwise it is found as if the node that comes first by name were the server. An undirected edge carries its capacity
    each way at the same time. ``SimulationError``: no way between a node and the server or its edge server.
    """
    walks = _Walks(graph, server)
    links = {f"{tail} -> {head}": data["capacity"] for tail, head, data in walks.graph.edges(data=True)}
    for node in (*attach, *hosts):
        walks.between(server, node)
        walks.between(node, server)
    built = None if edges is None else replace(edges, of=walks.edges_of(edges.nodes, attach))
    network = Graph(simulation, down, up, latency, links, walks.links, attach, server, transport, built, hosts)
    network.has_layout = True
    return network


class _Walks:
    """The shortest walks of a graph; ``server`` comes before all other nodes."""

    def __init__(self, graph: "networkx.Graph[Any]", server: Hashable) -> None:
        self.graph = graph.to_directed()
        self._server = server
        self._steps: dict[tuple[Hashable, bool], dict[Hashable, Hashable]] = {}

    def links(self, tail: Hashable, head: Hashable) -> list[str]:
        return [f"{one} -> {next_}" for one, next_ in pairwise(self.between(tail, head))]

    def between(self, tail: Hashable, head: Hashable) -> list[Hashable]:
        """Nodes of the route, both ends included."""
        up, down = self._walk(self._server, tail, is_from=False), self._walk(self._server, head, is_from=True)
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
            found = networkx.bfs_predecessors(graph, root, sort_neighbors=lambda nodes: sorted(nodes, key=str))
            self._steps[root, is_from] = dict(found)
        steps, walk = self._steps[root, is_from], [node]
        while node != root:
            if node not in steps:
                way = "from" if is_from else "to"
                raise SimulationError(f"the network has no way {way} the server {root!r} for node {node!r}")
            node = steps[node]
            walk.append(node)
        return walk[::-1] if is_from else walk

    def edges_of(self, nodes: Sequence[Hashable], places: Sequence[Hashable]) -> Ints:
        """The edge server of each place; int64 [places]."""
        of, server = [], self._server
        for place in places:
            found = next((node for node in self.between(place, server)[:-1] if node in nodes), None)
            if found is None:
                raise SimulationError(f"no edge server is on the way from node {place!r} to the server {server!r}")
            if found not in self.between(server, place):
                raise SimulationError(f"the way from the server {server!r} to node {place!r} misses its edge server {found!r}")
            of.append(nodes.index(found))
        return np.array(of, dtype=np.int64)


class EdgeNodesSpec(EdgeLinks):
    """Edge servers at nodes of a graph; that of a device is the first on the way from it to the server."""

    nodes: list[str] | None = Field(default=None, min_length=1)
    """their nodes; None: each node to which devices are attached."""


class GraphSpec(NetworkModel):
    """Any network, from a JSON node-link file as networkx writes it; each edge has a ``capacity`` ("1 Gbit/s") each way."""

    kind: Literal["graph"] = "graph"
    file: str
    """the file; a relative path starts from ``data.root``, else the working directory, else ``$FEDSIM_DATA``."""
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

    def _connect(self, simulation: Simulation, columns: AccessColumns, transport: Transport, root: Path | None) -> Network:
        graph = read_graph(sought(self.file, root))
        named = {"server": [self.server], "attach": self.attach, "edge.nodes": self.edge_nodes, "hosts": self.hosts}
        for key, nodes in named.items():
            for place, node in enumerate(nodes):
                if node not in graph:
                    where = key if key == "server" else f"{key}.{place}"
                    raise ScenarioError(f"network.{where} is {node!r}, which is no node of {self.file!r}{nearest(node, graph)}")
        edge = self.edge
        edges = None if edge is None else EdgeServers(self.edge_nodes, edge.receive, edge.send, edge.latency)
        try:
            return between(simulation, *columns, graph, self.server, self.attach, transport, edges, self.hosts)
        except SimulationError as error:
            raise ScenarioError(f"network.file {self.file!r}: {error}") from None


def read_graph(path: Path) -> "networkx.Graph[str]":
    """The graph of a node-link file, with ``capacity`` in bytes/s; ``ScenarioError``: it is missing or malformed."""
    import networkx

    where = f"network.file {str(path)!r}"
    try:
        data = read_json(path)
        edges = data["edges"] if "edges" in data else data["links"]  # "links" was written by networkx before 3.4
        graph: networkx.Graph[str] = networkx.DiGraph() if data.get("directed", False) else networkx.Graph()
        graph.add_nodes_from(str(node["id"]) for node in data["nodes"])
        ends = [(str(edge["source"]), str(edge["target"]), edge.get("capacity")) for edge in edges]
    except OSError as error:
        raise ScenarioError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ScenarioError(f"{where} is not node-link JSON: 'nodes' with 'id', 'edges' with 'source' and 'target'") from None
    for tail, head, text in ends:
        edge = f"{where}: the edge {tail!r} - {head!r}"
        for node in (tail, head):
            if node not in graph:
                raise ScenarioError(f"{edge} has the unknown node {node!r}{nearest(node, graph)}")
        if graph.has_edge(tail, head):
            raise ScenarioError(f"{edge} is there twice; give it once with the capacity of both")
        if text is None:
            raise ScenarioError(f"{edge} has no 'capacity', such as '1 Gbit/s'")
        try:
            capacity = TypeAdapter[float](LinkRate).validate_python(text)
        except ValidationError as error:
            message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise ScenarioError(f"{edge} has the capacity {shown(text)}: {message}") from None
        graph.add_edge(tail, head, capacity=capacity)
    return graph


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

    def _connect(self, simulation: Simulation, columns: AccessColumns, transport: Transport, root: Path | None) -> Network:
        cells, own = range(self.cells), self.edge
        links = {"server down": self.server.down, "server up": self.server.up}
        links |= {f"cell {cell} {way}": getattr(self.cell, way) for cell in cells for way in ("down", "up")}
        edges = None if own is None else EdgeServers(cells, own.receive, own.send, own.latency, np.arange(self.cells))
        return Graph(simulation, *columns, links, _between_cells, cells, SERVER, transport, edges)


def _between_cells(tail: int, head: int) -> list[str]:
    """The links between two cells, or a cell and the server. An edge server is on its own side of its cell's link."""
    if tail == head:
        return []
    return ["server down" if tail == SERVER else f"cell {tail} up", "server up" if head == SERVER else f"cell {head} down"]
