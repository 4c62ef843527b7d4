"""Devices and other endpoints at nodes, and between any two nodes a path of shared links: a tree of cells, or any graph."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.arrays import Floats, Ints
from fedsim.errors import SimulationError
from fedsim.simulation import Simulation
from fedsim.world.columns import ALL
from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.network.machine import Network
from fedsim.world.network.protocol import PLAIN, Transport

if TYPE_CHECKING:
    pass

Path = Callable[[Any, Any], Sequence[str]]
"""The names of the shared links from one node to another."""


@dataclass(frozen=True)
class EdgeServers:
    """The edge servers of a network: the ``nodes`` at which they are, and their own links.

    Attributes:
        receive, send: bytes/s: all that comes to one takes the first, all that leaves it the other.
        latency: what passes before the first byte between an edge server and the server (s).
        of: which is each place's, int64 [places]; None: the first on the way from there to the server.
    """

    nodes: Sequence[Hashable]
    receive: float
    send: float
    latency: float
    of: Ints | None = None


class Graph(Network):
    """Endpoints at nodes. Device i is at place i modulo the number of places; each place is a node.

    ``path`` says the shared links between two nodes; ``places``, ``server`` and ``hosts`` are nodes.
    """

    def __init__(
        self,
        simulation: Simulation,
        down: Floats,
        up: Floats,
        latency: Floats,
        links: Mapping[str, float],
        path: Path,
        places: Sequence[Hashable],
        server: Hashable = SERVER,
        transport: Transport = PLAIN,
        edges: EdgeServers | None = None,
        hosts: Sequence[Hashable] = (),
    ) -> None:
        self._path, self._places, self._server, self._edges = path, places, server, edges
        self._others = [*(() if edges is None else edges.nodes), *hosts]
        self.has_layout = edges is not None
        kept: dict[str, Any] = {"hosts": [str(node) for node in hosts]}
        if edges is not None:
            own = {"receive": edges.receive, "send": edges.send}
            links = {**links, **{f"edge {edge} {way}": own[way] for edge in range(len(edges.nodes)) for way in own}}
            kept["edge_latency"] = np.full(len(edges.nodes), edges.latency)
            assert edges.of is not None
            kept["edges"] = edges.of[self._place_of(len(down), ALL)]
        super().__init__(simulation, links, down, up, latency, transport, **kept)

    def layout(self) -> dict[str, Any] | None:
        """Of any graph, or of a tree with edge servers: ``links``, name -> capacity (bytes/s, None if infinite),
        ``routes``: for each direction the names of the links on the way of each place, over which devices are dealt in turn.
        With edge servers ``edges``: ``of``, which is each place's; ``below``, the routes between each place and its edge
        server; ``above``, those between each edge server and the server; and ``latency``.
        """
        if not self.has_layout:
            return None

        def told(pairs: Sequence[tuple[int, int]]) -> dict[str, list[list[str]]]:
            ways: tuple[Direction, ...] = ("down", "up")
            return {way: [self.route(*ends(near, way, far)) for near, far in pairs] for way in ways}

        finite = {name: None if math.isinf(capacity) else capacity for name, capacity in self.links.items()}
        layout: dict[str, Any] = {"links": finite, "routes": told([(place, SERVER) for place in range(len(self._places))])}
        if self._edges is not None and self._edges.of is not None:
            of = self._edges.of.tolist()
            below = told([(place, self.devices + edge) for place, edge in enumerate(of)])
            above = told([(self.devices + edge, SERVER) for edge in range(len(self._edges.nodes))])
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

    def lone_rates(self, direction: Direction, devices: slice = ALL) -> Floats:
        routes = [self.route(*ends(place, direction)) for place in range(min(len(self._places), self.devices))]
        narrowest = np.array([min((self.links[name] for name in route), default=math.inf) for route in routes])
        narrowest_of: Floats = narrowest[self._place_of(self.devices, devices)]
        return np.minimum(self.access_rates(direction)[devices], narrowest_of)

    def _place_of(self, count: int, devices: slice) -> Ints:
        places: Ints = np.arange(*devices.indices(count)) % len(self._places)
        return places

    def devices_at(self, place: int) -> list[int]:
        if not 0 <= place < len(self._places):
            raise SimulationError(f"there is no cell {place}; allowed are 0 to {len(self._places) - 1}")
        return list(range(place, self.devices, len(self._places)))
