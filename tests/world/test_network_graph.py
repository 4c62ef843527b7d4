"""Routes through a graph: which way, which links, what is refused."""

import networkx
import numpy as np
import pytest

from fedsim.errors import SimulationError
from fedsim.simulation import Simulation
from fedsim.world.network import SERVER, Graph
from tests.world.network_plays import Listed


class TestGraph:
    def build(self, graph: "networkx.Graph[str]", attach: list[str], devices: int = 2) -> Graph:
        free = np.full(devices, np.inf)
        return Graph.between(Simulation(), free, free, np.zeros(devices), graph, "s", attach)

    def test_the_fewest_hops_and_among_these_the_first_by_name(self) -> None:
        edges = [("s", "b"), ("b", "z"), ("s", "a"), ("a", "z"), ("s", "c"), ("c", "d"), ("d", "z")]
        routes = set()
        for order in (edges, edges[::-1]):
            graph: networkx.Graph[str] = networkx.Graph()
            graph.add_edges_from(order, capacity=5.0)
            network = self.build(graph, ["z", "d"])
            routes.add(tuple(tuple(network.links_between(*pair)) for pair in ((SERVER, 0), (0, SERVER), (1, SERVER))))
        down, up = (("s -> a", 5.0), ("a -> z", 5.0)), (("z -> a", 5.0), ("a -> s", 5.0))
        assert routes == {(down, up, (("d -> c", 5.0), ("c -> s", 5.0)))}

    def test_a_directed_edge_goes_one_way(self) -> None:
        graph: networkx.Graph[str] = networkx.DiGraph()
        graph.add_edge("s", "z", capacity=3.0)
        graph.add_edge("z", "m", capacity=2.0)
        graph.add_edge("m", "s", capacity=1.0)
        network = self.build(graph, ["z"])
        assert network.links_between(SERVER, 1) == [("s -> z", 3.0)]
        assert network.links_between(1, SERVER) == [("z -> m", 2.0), ("m -> s", 1.0)]
        assert (network.lone_rate(SERVER, 0), network.lone_rate(0, SERVER)) == (3.0, 1.0)

    def test_refused(self) -> None:
        graph: networkx.Graph[str] = networkx.Graph()
        graph.add_edge("s", "north", capacity=1.0)
        graph.add_node("island")
        with pytest.raises(SimulationError, match=r"no node 'nort' \(did you mean 'north'\?\)"):
            self.build(graph, ["nort"])
        with pytest.raises(SimulationError, match="no way from the server 's' for node 'island'"):
            self.build(graph, ["island"])
        graph.add_edge("s", "island")
        with pytest.raises(SimulationError, match="'s' - 'island' has no 'capacity'"):
            self.build(graph, ["north"])
        with pytest.raises(SimulationError, match="parallel edges"):
            self.build(networkx.MultiGraph(graph), ["north"])
        network = Listed(Simulation(), {"a": 1.0}, *[np.ones(1)] * 3, routes={"down": [["a"]], "up": [["b"]]})
        with pytest.raises(SimulationError, match="the route from 0 to -1 has the unknown link 'b'"):
            network.links_between(0, SERVER)
