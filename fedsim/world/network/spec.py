"""The table ``[network]``: a star, a tree of cells, or any graph from a file."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from fedsim.arrays import Floats
from fedsim.errors import ScenarioError, SimulationError, nearest, shown
from fedsim.files import read_json, sought
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import BytesPerSecond, Seconds
from fedsim.simulation import Simulation
from fedsim.streams import Streams
from fedsim.world.distributions import Constant, LinkRate, RateDistribution, TimeDistribution
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.graph import EdgeServers, Graph
from fedsim.world.network.machine import Network
from fedsim.world.network.protocol import Fluid, ProtocolSpec, Transport
from fedsim.world.network.star import Star

if TYPE_CHECKING:
    import networkx

OwnRates = tuple[Floats, ...] | None
AccessColumns = tuple[Floats, Floats, Floats]


class SharedLink(Spec):
    """A link of the server, or of a cell to the server: ``down`` to the devices, ``up`` from them."""

    down: LinkRate = math.inf
    up: LinkRate = math.inf


class EdgeLinks(Spec):
    """Edge servers, at which what devices send can be combined: one at each cell.

    Attributes:
        receive, send: what each of them takes in and gives out, from and to its devices and the server together.
        latency: what passes before the first byte between an edge server and the server. What a device sends to the server
            itself, or gets from it, pays that too, besides the device's own latency.
    """

    receive: LinkRate = math.inf
    send: LinkRate = math.inf
    latency: Seconds = 0.0


class EdgeNodesSpec(EdgeLinks):
    """Edge servers at nodes of a graph; that of a device is the first on the way from it to the server.

    Attributes:
        nodes: where they stand; None: at each node to which devices are attached.
    """

    nodes: list[str] | None = Field(default=None, min_length=1)


class DeviceLinks(Spec):
    """The devices' own links, and the latency that each transfer pays before its first byte."""

    down: RateDistribution = Constant[BytesPerSecond].model_validate({"value": "inf B/s"})
    up: RateDistribution = Constant[BytesPerSecond].model_validate({"value": "inf B/s"})
    latency: TimeDistribution = Constant[Seconds].model_validate({"value": "0 s"})

    @model_validator(mode="after")
    def _possible(self) -> "DeviceLinks":
        for name, rate in (("down", self.down), ("up", self.up)):
            least = [getattr(rate, key, None) for key in ("value", "low", "median")]
            if 0 in (*least, *getattr(rate, "values", ())):
                raise ValueError(f"{name!r} may draw a rate of 0 B/s; a link must carry something")
        return self


class NetworkModel(Spec):
    """The base of every network: devices with links of their own, a protocol, and ``build``.

    A network of your own is built with ``Transport(self.protocol, streams)``; without, it is fluid whatever a scenario says.
    """

    kind: str
    device: DeviceLinks = DeviceLinks()
    protocol: ProtocolSpec = Fluid()

    @property
    def has_device_rates(self) -> bool:
        """Whether this section says how fast the devices' own links are."""
        rates = (self.device.down, self.device.up)
        return not all(isinstance(rate, Constant) and rate.value == math.inf for rate in rates)

    @property
    def places(self) -> int | None:
        """Number of cells, or of nodes to which devices are attached; None where there are none."""
        return None

    @property
    def edge_servers(self) -> int:
        """Number of edge servers."""
        return 0

    def build(
        self, simulation: Simulation, streams: Streams, devices: int, rates: OwnRates = None, root: Path | None = None
    ) -> Network:
        """The network of ``devices`` devices; ``rates``, if given, instead of those of ``device``: down and up (bytes/s) and
        perhaps latencies (s), which hold where ``device`` says none.

        ``ScenarioError``: a file is missing or malformed, or a node is unknown or cannot be reached.
        """
        columns = self.columns(streams, devices, rates, root)
        return self._connect(simulation, columns, Transport(self.protocol, streams), root)

    def _connect(self, simulation: Simulation, columns: AccessColumns, transport: Transport, root: Path | None) -> Network:
        raise NotImplementedError

    def columns(self, streams: Streams, devices: int, rates: OwnRates, root: Path | None) -> AccessColumns:
        """Rates down and up (bytes/s) and latency (s) of all devices; each float64 [devices]."""

        def column(name: Literal["down", "up", "latency"], purpose: str) -> Floats:
            distribution = getattr(self.device, name)
            return distribution.by_device(f"network.device.{name}", streams.generator(purpose), devices, root)  # type: ignore[no-any-return]

        if rates is None:
            rates = column("down", "world/link-down"), column("up", "world/link-up")
        down, up, *latency = rates
        said = not (isinstance(self.device.latency, Constant) and self.device.latency.value == 0)
        return down, up, latency[0] if latency and not said else column("latency", "world/latency")


class StarSpec(NetworkModel):
    """One server link each way, and each device behind its own. Nothing said: transfers take no time."""

    kind: Literal["star"] = "star"
    server: SharedLink = SharedLink()

    def _connect(self, simulation: Simulation, columns: AccessColumns, transport: Transport, root: Path | None) -> Network:
        return Star(simulation, *columns, self.server.down, self.server.up, transport)


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


class GraphSpec(NetworkModel):
    """Any network, from a JSON node-link file as networkx writes it; each edge has a ``capacity`` such as "1 Gbit/s".

    Routes have the fewest hops. An undirected edge carries its capacity each way at the same time.

    Attributes:
        file: the file; a relative path starts from ``data.root``, else the working directory, else ``$FEDSIM_DATA``.
        server: the server's node.
        attach: the nodes that devices are dealt over in turn.
        hosts: nodes that send and receive besides, such as a cache; they are endpoints after the devices and edge servers.
    """

    kind: Literal["graph"] = "graph"
    file: str
    server: str
    attach: list[str] = Field(min_length=1)
    edge: EdgeNodesSpec | None = None
    hosts: list[str] | None = Field(default=None, min_length=1)

    @property
    def places(self) -> int:
        return len(set(self.attach))

    @property
    def edge_nodes(self) -> list[str]:
        """Nodes at which edge servers are."""
        return [] if self.edge is None else list(dict.fromkeys(self.edge.nodes or self.attach))

    @property
    def edge_servers(self) -> int:
        return len(self.edge_nodes)

    def _connect(self, simulation: Simulation, columns: AccessColumns, transport: Transport, root: Path | None) -> Network:
        graph = read_graph(sought(self.file, root))
        named = [("server", self.server), *((f"attach.{place}", name) for place, name in enumerate(self.attach))]
        named += [(f"edge.nodes.{place}", name) for place, name in enumerate(self.edge_nodes)]
        named += [(f"hosts.{place}", name) for place, name in enumerate(self.hosts or ())]
        for key, node in named:
            if node not in graph:
                raise ScenarioError(f"network.{key} is {node!r}, which is no node of {self.file!r}{nearest(node, graph)}")
        edge = self.edge
        edges = None if edge is None else EdgeServers(self.edge_nodes, edge.receive, edge.send, edge.latency)
        try:
            return Graph.between(simulation, *columns, graph, self.server, self.attach, transport, edges, self.hosts or ())
        except SimulationError as error:
            raise ScenarioError(f"network.file {self.file!r}: {error}") from None


def read_graph(path: Path) -> "networkx.Graph[str]":
    """A network from a JSON node-link file; nodes are named by text, edges have their ``capacity`` in bytes/s.

    ``ScenarioError``: the file is missing, is no node-link JSON, or an edge's capacity is missing, no data rate, or 0.
    """
    import networkx

    where = f"network.file {str(path)!r}"
    try:
        data = read_json(path)
        edges = data["edges"] if "edges" in data else data["links"]  # "links" is what networkx before 3.4 wrote
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
        graph.add_edge(tail, head, capacity=_capacity(text, edge))
    return graph


def _capacity(text: object, edge: str) -> float:
    if text is None:
        raise ScenarioError(f"{edge} has no 'capacity', such as '1 Gbit/s'")
    try:
        return TypeAdapter[float](LinkRate).validate_python(text)
    except ValidationError as error:
        message = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ScenarioError(f"{edge} has the capacity {shown(text)}: {message}") from None


_REGIONS = "Devices and a server in regions of clouds, over TCP connections that were measured."
_KNOWN = Registry.of("network", StarSpec, TreeSpec, GraphSpec).known
_KNOWN = {**_KNOWN, "regions": ("fedsim.toolbox.worlds.regions:RegionsSpec", _REGIONS)}
NETWORKS = Registry("network", "fedsim.world.network.spec:NetworkModel", _KNOWN)
NetworkSpec = Annotated[NetworkModel, NETWORKS]
