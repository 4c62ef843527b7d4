"""The network's section of a scenario: what it builds, what it refuses, and with which words."""

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
from pydantic import TypeAdapter

from fedsim.clock.simulation import Simulation, on_grid
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.toolbox.worlds.graph_files import LABELS, PLACES
from fedsim.world.network import SERVER, Network, NetworkSpec, ends

SPEC: TypeAdapter[Any] = TypeAdapter(NetworkSpec)


def build(section: dict[str, Any], devices: int = 4, seed: int = 1, **how: Any) -> Network:
    network: Network = SPEC.validate_python(section).build(
        Simulation(), Streams(seed), devices, **how
    )
    return network


def write(folder: Path, data: Any) -> str:
    path = folder / "net.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def metro() -> dict[str, Any]:
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_edge("hub", "north", capacity="1 Gbit/s")
    graph.add_edge("hub", "south", capacity="80 Mbit/s")
    return networkx.node_link_data(graph, edges="edges")


def graph_section(file: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "graph", "file": file, "server": "hub", "attach": ["north", "south"], **changes}


STAR = {
    "kind": "star",
    "server": {"down": "1 Gbit/s", "up": "200 Mbit/s"},
    "device": {"down": "40 Mbit/s", "up": "10 Mbit/s", "latency": "40 ms"},
}
TREE = {"kind": "tree", "cells": 3, "cell": {"up": "1 MB/s"}, "server": {"down": "5 MB/s"}}


@pytest.mark.parametrize(
    ("section", "links"),
    [
        (
            STAR,
            {(SERVER, 0): [("server down", 125e6)], (0, SERVER): [("server up", 25e6)], (0, 1): []},
        ),
        (TREE, {(4, SERVER): [("cell 1 up", 1e6), ("server up", math.inf)]}),
        (TREE, {(SERVER, 3): [("server down", 5e6), ("cell 0 down", math.inf)]}),
    ],
)
def test_links_between_endpoints(
    section: dict[str, Any], links: dict[tuple[int, int], Any]
) -> None:
    network = build(section, 5)
    assert {way: network.links_between(*way) for way in links} == links


def test_devices_own_links_are_said_or_drawn_from_streams_of_their_own() -> None:
    network = build(STAR)
    assert (network.own_links(3, SERVER), network.own_links(SERVER, 3)) == (
        [("device 3 up", 1.25e6)],
        [("device 3 down", 5e6)],
    )
    assert network.latency_s(0, SERVER) == on_grid(0.04)
    section = {
        "device": {
            name: {"kind": "lognormal", "median": "1 MB/s", "spread": 2.0}
            for name in ("down", "up")
        }
    }
    networks = [build({"kind": "star", **section}, seed=seed) for seed in (1, 1, 2)]
    rates = [network.access[way].tolist() for network in networks for way in ("down", "up")]
    assert rates[:2] == rates[2:4] != rates[4:]
    assert rates[0] != rates[1]
    drawn = Streams(1).generator("world/link-down").standard_normal(4)
    assert rates[0] == pytest.approx((1e6 * 2.0**drawn).tolist())


class TestGraph:
    @pytest.mark.parametrize("key", ["edges", "links"])
    def test_from_a_file_as_networkx_writes_it_sought_from_the_root(
        self, tmp_path: Path, key: str
    ) -> None:
        data = metro()
        data[key] = data.pop("edges")
        write(tmp_path, data)
        network = build(graph_section("net.json"), root=tmp_path)
        assert network.links_between(SERVER, 0) == [("hub -> north", 125e6)]
        assert network.links_between(3, SERVER) == [("south -> hub", 1e7)]

    def test_numbers_as_nodes_are_named_by_text(self, tmp_path: Path) -> None:
        graph = networkx.DiGraph([(0, 1, {"capacity": "1 MB/s"}), (1, 0, {"capacity": "2 MB/s"})])
        file = write(tmp_path, networkx.node_link_data(graph, edges="edges"))
        network = build({"kind": "graph", "file": file, "server": "0", "attach": ["1"]})
        assert [network.lone_rates(way)[0] for way in ("down", "up")] == [1e6, 2e6]

    @pytest.mark.parametrize(
        "text",
        [
            "not json",
            "[]",
            '{"nodes": []}',
            '{"nodes": [1], "edges": []}',
            '{"nodes": [], "edges": [{}]}',
        ],
    )
    def test_another_file(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ScenarioError, match="is not node-link JSON"):
            build(graph_section(write(tmp_path, text)))
        with pytest.raises(ScenarioError, match=r"nowhere\.json' cannot be read: No such file"):
            build(graph_section(str(tmp_path / "nowhere.json")))

    @pytest.mark.parametrize(
        ("edges", "changes", "message"),
        [
            (
                [("hub", "north", None)],
                {},
                "edge 'hub' - 'north' has no 'capacity', such as '1 Gbit/s'",
            ),
            ([("hub", "north", 5)], {}, "has the capacity 5: a data rate needs its unit"),
            (
                [("hub", "north", "0 B/s")],
                {},
                "has the capacity '0 B/s': a data rate here must be above 0",
            ),
            (
                [("hub", "nort", "1 B/s")],
                {},
                r"has the unknown node 'nort' \(did you mean 'north'\?\)",
            ),
            (
                [("hub", "north", "1 B/s"), ("north", "hub", "1 B/s")],
                {},
                "edge 'north' - 'hub' is there twice",
            ),
            (
                [],
                {"server": "hup"},
                r"network.server is 'hup', which is no node of .* \(did you mean 'hub'\?\)",
            ),
            ([], {"attach": ["north", "soth"]}, r"network\.attach\.1 is 'soth'"),
            (
                [("hub", "south", "1 B/s")],
                {"attach": ["north"]},
                "no way from the server 'hub' for node 'north'",
            ),
        ],
    )
    def test_mistakes(
        self, tmp_path: Path, edges: list[tuple[Any, ...]], changes: dict[str, Any], message: str
    ) -> None:
        told = [dict(zip(("source", "target", "capacity"), edge, strict=True)) for edge in edges]
        file = write(tmp_path, metro() | {"edges": told})
        with pytest.raises(ScenarioError, match=message):
            build(graph_section(file, **changes))


def random_tree(seed: int, *, is_directed: bool = False) -> "networkx.Graph[str]":
    """Eight nodes, of which ``hub`` is the server; between two there is one way, whose latencies
    differ from link to link.
    """
    draw = random.Random(seed)
    names = ["hub", *(f"n{number}" for number in range(1, 8))]
    graph: networkx.Graph[str] = networkx.Graph()
    for place, name in enumerate(names[1:], 1):
        milliseconds = draw.choice([0, 1, 7, 40, 250])
        graph.add_edge(
            name, draw.choice(names[:place]), capacity="8 Mbit/s", latency=f"{milliseconds} ms"
        )
    return graph.to_directed() if is_directed else graph


def way_s(graph: "networkx.Graph[str]", tail: str, head: str) -> float:
    """The sum of the latencies of the one way between two nodes."""
    path = networkx.shortest_path(graph, tail, head)
    return (
        sum(int(graph.edges[link]["latency"].removesuffix(" ms")) for link in pairwise(path)) / 1000
    )


class TestLatencies:
    @pytest.mark.parametrize("seed", range(12))
    def test_latencies_of_links_add_up_along_every_way(self, tmp_path: Path, seed: int) -> None:
        graph = random_tree(seed, is_directed=seed % 2 == 0)
        file = write(tmp_path, networkx.node_link_data(graph, edges="edges"))
        places = ["n3", "n5", "n7"]
        section = {
            "kind": "graph",
            "file": file,
            "server": "hub",
            "attach": places,
            "hosts": ["n4"],
        }
        own_s = 0.003
        network = build(section | {"device": {"latency": "3 ms"}}, devices=6)
        nodes = {SERVER: "hub", network.hosts["n4"]: "n4"} | {
            device: places[device % 3] for device in range(6)
        }
        for source, tail in nodes.items():
            for destination, head in nodes.items():
                if source != destination:
                    ends_s = own_s * sum(0 <= end < 6 for end in (source, destination))
                    expected = way_s(graph, tail, head) + ends_s
                    assert network.latency_s(source, destination) == pytest.approx(
                        expected, abs=2e-9
                    )
        assert network.latencies.tolist() == [
            network.latency_s(device, SERVER) for device in range(6)
        ]
        alone = network.all_alone_s("up", 1e6)
        assert alone.tolist() == pytest.approx((network.latencies + 1.0).tolist())

    def test_edge_servers_split_the_way(self, tmp_path: Path) -> None:
        links = {("hub", "metro"): 40, ("metro", "north"): 3, ("metro", "south"): 5}
        graph: networkx.Graph[str] = networkx.Graph()
        for link, milliseconds in links.items():
            graph.add_edge(*link, capacity="1 Gbit/s", latency=f"{milliseconds} ms")
        file = write(tmp_path, networkx.node_link_data(graph, edges="edges"))
        edge = {"nodes": ["metro"], "latency": "2 ms"}
        network = build(graph_section(file, edge=edge, device={"latency": "1 ms"}), devices=4)
        near = [network.latency_s(device, 4) for device in range(4)]
        assert near == pytest.approx([0.004, 0.006] * 2, abs=2e-9)
        assert near == network.near_latencies().tolist()
        assert network.latency_s(4, SERVER) == pytest.approx(0.042, abs=2e-9)
        assert network.latencies == pytest.approx([0.046, 0.048] * 2, abs=2e-9)
        layout = network.layout()
        assert layout is not None
        assert layout["delays"] == {
            "places": pytest.approx([0.043, 0.045]),
            "edges": pytest.approx([0.04]),
        }

    def test_places_without_devices_change_nothing(self, tmp_path: Path) -> None:
        graph = random_tree(5, is_directed=False)
        file = write(tmp_path, networkx.node_link_data(graph, edges="edges"))
        places = [f"n{number}" for number in range(1, 8)]
        section = {"kind": "graph", "file": file, "server": "hub", "hosts": ["n4"]}
        section |= {"edge": {"nodes": places}, "device": {"latency": "3 ms"}}
        network = build(section | {"attach": places}, devices=3)
        used = build(section | {"attach": places[:3]}, devices=3)
        assert network.latencies.tolist() == used.latencies.tolist()
        assert network.near_latencies().tolist() == used.near_latencies().tolist()
        whole = network.layout()
        part = used.layout()
        assert whole is not None
        assert part is not None
        assert whole["routes"]["up"][:3] == part["routes"]["up"]
        assert whole["edges"]["below"]["down"][:3] == part["edges"]["below"]["down"]
        assert whole["delays"]["places"] == pytest.approx(
            [way_s(graph, place, "hub") for place in places], abs=2e-9
        )

    def test_without_latencies_nothing_changes(self, tmp_path: Path) -> None:
        network = build(graph_section(write(tmp_path, metro())))
        assert "delays" not in (network.layout() or {})
        assert network.latencies.tolist() == [0.0] * 4

    def test_other_latencies_on_the_way_back_are_refused(self, tmp_path: Path) -> None:
        graph = random_tree(3, is_directed=True)
        graph.edges["hub", next(iter(graph["hub"]))]["latency"] = "99 ms"
        file = write(tmp_path, networkx.node_link_data(graph, edges="edges"))
        section = {
            "kind": "graph",
            "file": file,
            "server": "hub",
            "attach": [f"n{number}" for number in range(1, 8)],
        }
        with pytest.raises(
            ScenarioError,
            match=r"links take .* and back .*; allowed are the same latencies both ways",
        ):
            build(section)


UNUSED_OF_EDGES = {
    "weight": 3, "cost": 1, "loss": 0.01, "jitter": "5 ms", "rtt": "80 ms", "bandwidth": "1 Gbit/s", "rate": "1 Mbit/s",
    "propagation_delay": "4 ms", "distance": 3, "length": 3, "km": 12, "type": "fiber", "queue": 100, "mtu": 1500,
    "latancy": "4 ms",
    "Latency": "4 ms", "capacity_up": "1 Mbit/s", "up": "1 Mbit/s", "cap": 3, "bidirectional": False, "duplex": "half", "id": 3,
}  # fmt: skip
UNUSED_OF_NODES = {
    "capacity": "1 Gbit/s",
    "delay": "4 ms",
    "speed": 3,
    "role": "server",
    "devices": 40,
    "type": "edge",
    "group": 2,
}


class TestAttributes:
    def refusal(self, folder: Path, data: Any) -> str:
        with pytest.raises(ScenarioError) as caught:
            build(graph_section(write(folder, data)))
        return str(caught.value)

    @pytest.mark.parametrize("name", UNUSED_OF_EDGES)
    def test_of_an_edge_that_nothing_uses(self, tmp_path: Path, name: str) -> None:
        data = metro()
        data["edges"][1][name] = UNUSED_OF_EDGES[name]
        message = self.refusal(tmp_path, data)
        assert f"the edge 'hub' - 'south' has {name!r}, which nothing uses" in message

    @pytest.mark.parametrize("name", UNUSED_OF_NODES)
    def test_of_a_node_that_nothing_uses(self, tmp_path: Path, name: str) -> None:
        data = metro()
        data["nodes"][0][name] = UNUSED_OF_NODES[name]
        assert (
            f"the node 'hub' has {name!r}, which nothing uses; used are id, and labels"
            in self.refusal(tmp_path, data)
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"graph": {"edge_default": {"latency": "4 ms"}}},
                "'graph' has 'edge_default', which nothing uses",
            ),
            ({"graph": [1]}, "'graph' is [1]; it must be an object"),
            ({"routes": []}, "has 'routes', which nothing uses"),
            ({"links": []}, "has 'edges' and 'links'"),
            ({"directed": "no"}, "'directed' is 'no'; it must be true or false"),
            (
                {"nodes": [{"id": "hub"}, {"id": "north"}, {"id": "south"}, {"id": "hub"}]},
                "the node 'hub' is there twice",
            ),
            ({"nodes": [{"id": 1}, {"id": "1"}]}, "the node '1' is there twice"),
            (
                {"edges": [{"source": "hub", "target": "hub", "capacity": "1 MB/s"}]},
                "leads back to its own node",
            ),
        ],
    )
    def test_of_the_file(self, tmp_path: Path, change: dict[str, Any], message: str) -> None:
        assert message in self.refusal(tmp_path, metro() | change)

    @pytest.mark.parametrize("text", ["40", 40, 0.04, "40 mss", "-3 ms", "fast", None, "40 MB"])
    def test_latencies_need_a_unit(self, tmp_path: Path, text: Any) -> None:
        for name in ("latency", "delay"):
            data = metro()
            data["edges"][0][name] = text
            assert "has the latency" in self.refusal(tmp_path, data)

    def test_latency_is_said_once(self, tmp_path: Path) -> None:
        data = metro()
        data["edges"][0] |= {"latency": "4 ms", "delay": "4 ms"}
        assert "has 'delay', which nothing uses; name it 'latency'" in self.refusal(tmp_path, data)

    def test_keys_that_are_there_twice(self, tmp_path: Path) -> None:
        text = json.dumps(metro()).replace('"capacity"', '"capacity": "1 MB/s", "capacity"', 1)
        assert "has the key 'capacity' twice" in self.refusal(tmp_path, text)

    def test_labels_and_orders_change_nothing(self, tmp_path: Path) -> None:
        plain = metro()
        labelled = metro() | {"graph": {"name": "a city"}, "multigraph": False}
        for place, node in enumerate(labelled["nodes"]):
            node |= dict.fromkeys((*LABELS, *PLACES), place)
        for edge in labelled["edges"]:
            edge |= {"label": "fibre", "color": "red", "key": 0}
        turned = metro() | {"nodes": metro()["nodes"][::-1], "edges": metro()["edges"][::-1]}
        for edge in turned["edges"]:
            edge["source"], edge["target"] = edge["target"], edge["source"]
        layouts = [
            build(graph_section(write(tmp_path, data))).layout()
            for data in (plain, labelled, turned)
        ]
        assert layouts[0] is not None
        for layout in layouts[1:]:
            assert layout == layouts[0]


@pytest.mark.parametrize("kind", ["star", "tree", "graph"])
def test_columns_say_what_is_said_of_each_device(kind: str, tmp_path: Path) -> None:
    device = {
        "down": {"kind": "lognormal", "median": "4 MB/s", "spread": 3.0},
        "up": "inf B/s",
        "latency": "33 ms",
    }
    section = {
        "star": {"kind": "star", "server": {"down": "5 MB/s"}},
        "tree": {
            "kind": "tree",
            "cells": 3,
            "cell": {"down": "5 MB/s", "up": "2 MB/s"},
            "server": {"up": "3 MB/s"},
        },
        "graph": graph_section(write(tmp_path, metro())),
    }[kind]
    network = build(section | {"device": device}, devices=10)
    devices = range(10)
    for way in ("down", "up"):
        links = [
            network.links_between(*ends(device, way)) + network.own_links(*ends(device, way))
            for device in devices
        ]
        assert network.lone_rates(way).tolist() == [
            min(rate for _, rate in found) for found in links
        ]
    assert (
        network.latencies.tolist()
        == [network.latency_s(device, SERVER) for device in devices]
        == [on_grid(0.033)] * 10
    )
