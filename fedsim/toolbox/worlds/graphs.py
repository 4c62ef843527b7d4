"""Networks of shared links between nodes: a tree of cells, or any graph.

Routes have the fewest hops.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ScenarioError, SimulationError, nearest
from fedsim.common.files import find_file
from fedsim.common.spec import Spec
from fedsim.common.units import Seconds
from fedsim.toolbox.worlds.graph_files import read_graph
from fedsim.toolbox.worlds.graph_walks import Walks
from fedsim.world.columns import ALL
from fedsim.world.network.endpoints import SERVER, in_ticks
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import PLAIN, Transport
from fedsim.world.network.spec import (
    AccessColumns,
    NetworkInputs,
    NetworkModel,
    SharedLink,
    SharedLinks,
    server_links,
)
from fedsim.world.network.traced import SharedRate

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class EdgeServers:
    """Edge servers of a network: their nodes and links, and which devices each serves.

    A place is a node to which devices are attached.

    Attributes:
        nodes: the node of each edge server.
        receive: rate of each edge server's own link for messages to it (bytes/s), [edge servers].
        send: rate of each edge server's own link for its messages (bytes/s), [edge servers].
        latency: latency between an edge server and the server (s).
        of: index in ``nodes`` of each place's edge server, int64 [places].
    """

    nodes: Sequence[Hashable]
    receive: Sequence[float]
    send: Sequence[float]
    latency: float
    of: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))


class _RouteEnd(NamedTuple):
    """End of a route: a node of the graph, and the index of the edge server there.

    The index is None if the route ends at a device, a host or the server.
    """

    node: Hashable
    edge: int | None = None


class Graph(Network):
    """Network of shared links, whose server, devices and edge servers are at the nodes of a graph.

    Args:
        simulation: the simulation.
        columns: rates (bytes/s) and latencies (s) of the devices' access links.
        links: name of a shared link -> its capacity (bytes/s).
        path: returns the names of the shared links on the route from one node to another.
        places: nodes to which devices are attached; device i is at ``places[i % len(places)]``.
        server: the node of the server.
        transport: the protocol of transfers.
        edges: the edge servers; None for no edge servers.
        hosts: the nodes of additional endpoints, which send and receive, such as a cache.
        delay_s: returns the latency of the route from one node to another (s), which is added to
            the latencies of the endpoints; None if routes have no latency.
    """

    def __init__(
        self,
        simulation: Simulation,
        columns: AccessColumns,
        links: Mapping[str, float],
        path: Callable[[Any, Any], Sequence[str]],  # the type of nodes depends on the graph
        places: Sequence[Hashable],
        server: Hashable = SERVER,
        transport: Transport = PLAIN,
        edges: EdgeServers | None = None,
        hosts: Sequence[Hashable] = (),
        delay_s: Callable[[Hashable, Hashable], float] | None = None,
    ) -> None:
        """Build the network of the class's arguments.

        ``path`` returns the names of the links between two nodes, and ``delay_s`` their latency.
        ``places`` are the nodes to which devices are attached, in turn. The own links of edge
        servers are added to ``links``.
        """
        down, up, latency = columns
        self._path = path
        self._places = places
        self._server = server
        self._edges = edges
        self._delay_s = delay_s
        # nodes of the endpoints that follow the devices: edge servers, then hosts
        self._further_nodes: list[Hashable] = [*hosts]
        self.repeats = len(places)  # period with which devices have equal routes
        self.has_layout = edges is not None
        all_links = dict(links)
        edge_latency = None
        edge_of_devices = None
        if edges is not None:
            self._further_nodes = [*edges.nodes, *hosts]
            for edge in range(len(edges.nodes)):
                all_links[f"edge {edge} receive"] = edges.receive[edge]
                all_links[f"edge {edge} send"] = edges.send[edge]
            edge_latency = np.full(len(edges.nodes), edges.latency)
            place_of_devices = np.arange(len(down)) % len(places)
            edge_of_devices = edges.of[place_of_devices]
        super().__init__(
            simulation,
            all_links,
            down,
            up,
            latency,
            transport,
            edge_latency=edge_latency,
            edges=edge_of_devices,
            hosts=[str(node) for node in hosts],
        )
        if delay_s is not None:  # the base class has only added the latencies of the endpoints
            latencies = self._own_latency
            if edges is not None:
                latencies = latencies + self._edge_latency[edge_of_devices]
            delays_to_server = self._delays(delay_s, [server] * len(places))
            self.latencies = in_ticks(latencies + delays_to_server)

    def _delays(
        self, delay_s: Callable[[Hashable, Hashable], float], nodes: Sequence[Hashable]
    ) -> Floats:
        """Return the latency of a route from each device (s), float64 [devices].

        Args:
            delay_s: returns the latency of the route from one node to another (s).
            nodes: the other end of the route, for each node to which devices are attached.
        """
        delays = [delay_s(place, node) for place, node in zip(self._places, nodes, strict=True)]
        place_of_device = np.arange(self.devices) % len(delays)
        return np.array(delays)[place_of_device]

    def near_latencies(self, devices: slice = ALL) -> Floats:
        if self._delay_s is None or self._edges is None:
            return super().near_latencies(devices)
        edge_nodes = [self._edges.nodes[edge] for edge in self._edges.of.tolist()]
        delays = self._delays(self._delay_s, edge_nodes)
        return in_ticks((self._own_latency + delays)[devices])

    def _route_s(self, source: int, destination: int) -> float:
        """Return the latency of the links between two endpoints' nodes (s).

        The latencies of the endpoints themselves, such as a device's access link, are not included.
        """
        if self._delay_s is None:
            return 0.0
        return self._delay_s(self._node(source), self._node(destination))

    def _exact_latency_s(self, source: int, destination: int) -> float:
        return super()._exact_latency_s(source, destination) + self._route_s(source, destination)

    def layout(self) -> dict[str, Any] | None:
        """Return the links and routes of the network as a value for JSON.

        A place is a node to which devices are attached.

        Returns:
            None for a tree without edge servers. Otherwise a dict with two to four keys:

            - ``links``: name of a link -> capacity (bytes/s; None if infinite).
            - ``routes``: ``down`` and ``up`` -> for each place the names of the links on the route
              from or to the server.
            - ``edges``, if there are edge servers: ``of`` (index of the edge server of each place),
              ``latency`` (s), and two entries in the form of ``routes``: ``below`` (between each
              place and its edge server) and ``above`` (between each edge server and the server).
            - ``delays``, if links have latencies: ``places`` and ``edges`` (the edge servers) ->
              the latency of the route from each of them to the server (s).
        """
        if not self.has_layout:
            return None
        capacities: dict[str, float | None] = {}
        for name, capacity in self.links.items():
            capacities[name] = None if math.isinf(capacity) else capacity
        server = _RouteEnd(self._server)
        places = [_RouteEnd(node) for node in self._places]
        layout: dict[str, Any] = {
            "links": capacities,
            "routes": self._routes((place, server) for place in places),
        }
        edge_servers: list[_RouteEnd] = []
        if self._edges is not None:
            edge_servers = [_RouteEnd(node, edge) for edge, node in enumerate(self._edges.nodes)]
            edge_of: list[int] = self._edges.of.tolist()
            below = [
                (place, edge_servers[edge]) for place, edge in zip(places, edge_of, strict=True)
            ]
            layout["edges"] = {
                "of": edge_of,
                "latency": self._edges.latency,
                "below": self._routes(below),
                "above": self._routes((edge_server, server) for edge_server in edge_servers),
            }
        if self._delay_s is not None:
            layout["delays"] = {
                "places": [self._delay_s(place.node, self._server) for place in places],
                "edges": [self._delay_s(edge.node, self._server) for edge in edge_servers],
            }
        return layout

    def _routes(self, pairs: Iterable[tuple[_RouteEnd, _RouteEnd]]) -> dict[str, list[list[str]]]:
        """Return the names of the links on routes, by direction.

        Args:
            pairs: (end farther from the server, end nearer to the server) of each route.

        Returns:
            ``down``: for each pair the links to the farther end; ``up``: the links from it.
        """
        down = []
        up = []
        for far, near in pairs:
            down.append(self._links_between(near, far))
            up.append(self._links_between(far, near))
        return {"down": down, "up": up}

    def route(self, source: int, destination: int) -> list[str]:
        sender = _RouteEnd(self._node(source), self.edge_at(source))
        receiver = _RouteEnd(self._node(destination), self.edge_at(destination))
        return self._links_between(sender, receiver)

    def _links_between(self, sender: _RouteEnd, receiver: _RouteEnd) -> list[str]:
        links = list(self._path(sender.node, receiver.node))
        if sender.edge is not None:
            links.insert(0, f"edge {sender.edge} send")
        if receiver.edge is not None:
            links.append(f"edge {receiver.edge} receive")
        return links

    def _node(self, endpoint: int) -> Hashable:
        if endpoint >= self.devices:
            return self._further_nodes[endpoint - self.devices]
        if endpoint == SERVER:
            return self._server
        return self._places[endpoint % len(self._places)]

    def devices_at(self, place: int) -> list[int]:
        if not 0 <= place < len(self._places):
            raise SimulationError(
                f"there is no cell {place}; allowed are 0 to {len(self._places) - 1}"
            )
        return list(range(place, self.devices, len(self._places)))


class EdgeLinks(Spec):
    """``network.edge`` of a tree: an edge server at each cell, which can combine devices' messages.

    A cell is a set of devices that share a link to the server.

    Attributes:
        receive, send: rates of each edge server's own links, which carry its messages from and to
            both its devices and the server.
        latency: latency between an edge server and the server. It is added to the device's latency
            for a message between a device and the server.
    """

    receive: SharedRate = math.inf
    send: SharedRate = math.inf
    latency: Seconds = 0.0

    def links(self, count: int) -> list[SharedLinks]:
        """Return the links of edge servers, with their names and rates.

        Args:
            count: count of the edge servers.

        Returns:
            Two groups of links: the links by which edge servers receive (``edge 0 receive`` and so
            on), and the links by which they send (``edge 0 send`` and so on).
        """
        receive = [f"edge {edge} receive" for edge in range(count)]
        send = [f"edge {edge} send" for edge in range(count)]
        return [
            SharedLinks("network.edge.receive", receive, self.receive),
            SharedLinks("network.edge.send", send, self.send),
        ]

    def build(
        self, nodes: Sequence[Hashable], rates: Mapping[str, float], of: Ints | None = None
    ) -> EdgeServers:
        """Build the edge servers of a network, with the latency of this spec.

        Args:
            nodes: the node of each edge server.
            rates: name of an edge server's link, such as ``edge 0 send`` -> its rate (bytes/s).
            of: index of the edge server of each node with devices, int64 [places]; None if the
                caller sets it later.
        """
        return EdgeServers(
            nodes,
            [rates[f"edge {edge} receive"] for edge in range(len(nodes))],
            [rates[f"edge {edge} send"] for edge in range(len(nodes))],
            self.latency,
            np.empty(0, dtype=np.int64) if of is None else of,
        )


def build_graph_network(
    simulation: Simulation,
    columns: AccessColumns,
    graph: "networkx.Graph[Any]",
    server: Hashable,
    attach: Sequence[Hashable],
    transport: Transport = PLAIN,
    edges: EdgeServers | None = None,
    hosts: Sequence[Hashable] = (),
) -> Graph:
    """Build the network of a networkx graph.

    Each edge has a ``capacity`` (bytes/s), and perhaps a ``latency`` (s). Latencies add up along
    a route. An undirected edge carries its capacity in each direction at the same time.

    Routes have the fewest hops. Of several routes between the server and a node with equally many
    hops, the chosen one has, from the server outwards, the nodes that come first by name. A route
    between two nodes A and B other than the server is a part of A's route to the server if this
    route leads through B, or of the server's route to B if this route leads through A. Otherwise
    the rule for the server is used with A or B in its place, whichever comes first by name.

    Args:
        simulation: the simulation.
        columns: rates (bytes/s) and latencies (s) of the devices' access links.
        graph: the graph.
        server: the node of the server.
        attach: nodes to which devices are attached; device i is at ``attach[i % len(attach)]``.
        transport: the protocol of transfers.
        edges: the edge servers; which edge server each node has (``of``) is computed here. None for
            no edge servers.
        hosts: the nodes of additional endpoints, which send and receive, such as a cache.

    Returns:
        The network.

    Raises:
        SimulationError: a node has no route to or from the server or its edge server, or the
            latencies of the two directions differ.
    """
    walks = Walks(graph, server)
    links = {}
    for tail, head, data in walks.graph.edges(data=True):
        links[f"{tail} -> {head}"] = data["capacity"]
    for node in (*attach, *hosts):  # raises an error if a node has no route
        walks.between(server, node)
        walks.between(node, server)
    ends = [*attach, *hosts]
    if edges is not None:
        edges = replace(edges, of=walks.edge_servers_of(edges.nodes, attach))
        ends += edges.nodes
    delay_s = walks.delay_s if walks.has_delays else None
    if delay_s is not None:
        for node in ends:
            _refuse_unequal_latencies(delay_s, server, node)
    network = Graph(
        simulation,
        columns,
        links,
        walks.links,
        attach,
        server,
        transport,
        edges,
        hosts,
        delay_s,
    )
    network.has_layout = True
    return network


def _refuse_unequal_latencies(
    delay_s: Callable[[Hashable, Hashable], float], server: Hashable, node: Hashable
) -> None:
    down_s = delay_s(server, node)
    up_s = delay_s(node, server)
    if down_s != up_s:
        raise SimulationError(
            f"from the server {server!r} to node {node!r} links take {down_s:g} s, and back "
            f"{up_s:g} s; allowed are the same latencies both ways"
        )


class EdgeNodesSpec(EdgeLinks):
    """Edge servers at nodes of a graph.

    A device uses the first edge server on its route to the server.

    Attributes:
        nodes: nodes of the edge servers; None: each node to which devices are attached.
    """

    nodes: list[str] | None = Field(default=None, min_length=1)


class GraphSpec(NetworkModel):
    """Any network, from a JSON node-link file as networkx writes it.

    Each edge has a ``capacity`` ("1 Gbit/s") in each direction, and perhaps a ``latency`` ("40 ms";
    also as ``delay``). Latencies add up along a route, and pass before the first byte is sent.
    Attributes such as names, positions and colours are ignored; any other attribute is refused.

    Attributes:
        file: the file; a relative path starts from ``data.root``, else the working directory, else
            ``$FEDSIM_DATA``.
        server: name of the server's node.
        attach: names of the nodes to which devices are attached; device i is at the node at
            position i modulo the count of names.
        edge: edge servers at nodes of the graph; None for no edge servers.
        hosts: names of the nodes of additional endpoints that send and receive, such as a cache.
    """

    kind: Literal["graph"] = "graph"
    file: str
    server: str
    attach: list[str] = Field(min_length=1)
    edge: EdgeNodesSpec | None = None
    hosts: list[str] = Field(default_factory=list)

    @property
    def places(self) -> int:
        return len(set(self.attach))

    @property
    def edge_nodes(self) -> list[str]:
        if self.edge is None:
            return []
        nodes = self.edge.nodes or self.attach
        return list(dict.fromkeys(nodes))

    @property
    def edge_servers(self) -> int:
        return len(self.edge_nodes)

    @property
    def shared_links(self) -> list[SharedLinks]:
        return [] if self.edge is None else self.edge.links(self.edge_servers)

    def _connect(self, inputs: NetworkInputs) -> Network:
        """Read the graph of the file, and build its network, with edge servers if there are any."""
        graph = read_graph(find_file(self.file, inputs.root))
        self._refuse_unknown_nodes(graph)
        edges = None
        if self.edge is not None:
            rates = self.shared_rates(inputs.transport.streams, inputs.root)
            edges = self.edge.build(self.edge_nodes, rates)
        try:
            return build_graph_network(
                inputs.simulation,
                inputs.columns,
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
        names_by_key = {"attach": self.attach, "edge.nodes": self.edge_nodes, "hosts": self.hosts}
        for key, names in names_by_key.items():
            nodes |= {f"{key}.{index}": name for index, name in enumerate(names)}
        for key, node in nodes.items():
            if node not in graph:
                raise ScenarioError(
                    f"network.{key} is {node!r}, which is no node of "
                    f"{self.file!r}{nearest(node, graph)}"
                )


class TreeSpec(NetworkModel):
    """Tree network of cells: each cell has a link to the server, which its devices share.

    Device i is in cell i mod ``cells``.

    Attributes:
        cells: count of cells.
        cell: rates of the link between each cell and the server.
        server: rates of the server's link.
        edge: edge servers, one at each cell; None for no edge servers.
    """

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

    @property
    def shared_links(self) -> list[SharedLinks]:
        down = [f"cell {cell} down" for cell in range(self.cells)]
        up = [f"cell {cell} up" for cell in range(self.cells)]
        links = [
            *server_links(self.server),
            SharedLinks("network.cell.down", down, self.cell.down),
            SharedLinks("network.cell.up", up, self.cell.up),
        ]
        if self.edge is not None:
            links += self.edge.links(self.cells)
        return links

    def _connect(self, inputs: NetworkInputs) -> Network:
        """Build the network: the server and each cell have a shared link in each direction."""
        cells = range(self.cells)
        rates = self.shared_rates(inputs.transport.streams, inputs.root)
        links = {"server down": rates["server down"], "server up": rates["server up"]}
        for cell in cells:
            for link in (f"cell {cell} down", f"cell {cell} up"):
                links[link] = rates[link]
        edges = None
        if self.edge is not None:
            edges = self.edge.build(cells, rates, np.arange(self.cells))
        return Graph(
            inputs.simulation,
            inputs.columns,
            links,
            _tree_route,
            cells,
            SERVER,
            inputs.transport,
            edges,
        )


def _tree_route(tail: int, head: int) -> list[str]:
    """Return the names of the links from one endpoint of a tree to another.

    Args:
        tail: number of the sending cell, or ``SERVER``.
        head: number of the receiving cell, or ``SERVER``.

    Returns:
        The sender's link, such as ``cell 3 up`` or ``server down``, then the receiver's. Empty if
        both are the same cell, as between a device and the edge server of its cell.
    """
    if tail == head:
        return []
    return [
        "server down" if tail == SERVER else f"cell {tail} up",
        "server up" if head == SERVER else f"cell {head} down",
    ]
