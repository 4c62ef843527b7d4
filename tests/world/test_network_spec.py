"""The network's section of a scenario: what it builds, what it refuses, and with which words."""

import json
import math
from pathlib import Path
from typing import Any

import networkx
import pytest
from pydantic import TypeAdapter

from fedsim.errors import ScenarioError
from fedsim.simulation import Simulation, on_grid
from fedsim.streams import Streams
from fedsim.world.network import SERVER, Network, NetworkSpec, ends

SPEC: TypeAdapter[Any] = TypeAdapter(NetworkSpec)


def build(section: dict[str, Any], devices: int = 4, seed: int = 1, **how: Any) -> Network:
    network: Network = SPEC.validate_python(section).build(Simulation(), Streams(seed), devices, **how)
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
        (STAR, {(SERVER, 0): [("server down", 125e6)], (0, SERVER): [("server up", 25e6)], (0, 1): []}),
        (TREE, {(4, SERVER): [("cell 1 up", 1e6), ("server up", math.inf)]}),
        (TREE, {(SERVER, 3): [("server down", 5e6), ("cell 0 down", math.inf)]}),
    ],
)
def test_links_between_endpoints(section: dict[str, Any], links: dict[tuple[int, int], Any]) -> None:
    network = build(section, 5)
    assert {way: network.links_between(*way) for way in links} == links


def test_devices_own_links_are_said_or_drawn_from_streams_of_their_own() -> None:
    network = build(STAR)
    assert (network.own_links(3, SERVER), network.own_links(SERVER, 3)) == ([("device 3 up", 1.25e6)], [("device 3 down", 5e6)])
    assert network.latency_s(0, SERVER) == on_grid(0.04)
    section = {"device": {name: {"kind": "lognormal", "median": "1 MB/s", "spread": 2.0} for name in ("down", "up")}}
    networks = [build({"kind": "star", **section}, seed=seed) for seed in (1, 1, 2)]
    rates = [network.access[way].tolist() for network in networks for way in ("down", "up")]
    assert rates[:2] == rates[2:4] != rates[4:]
    assert rates[0] != rates[1]
    drawn = Streams(1).generator("world/link-down").standard_normal(4)
    assert rates[0] == pytest.approx((1e6 * 2.0**drawn).tolist())


class TestGraph:
    @pytest.mark.parametrize("key", ["edges", "links"])
    def test_from_a_file_as_networkx_writes_it_sought_from_the_root(self, tmp_path: Path, key: str) -> None:
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
        "text", ["not json", "[]", '{"nodes": []}', '{"nodes": [1], "edges": []}', '{"nodes": [], "edges": [{}]}']
    )
    def test_another_file(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ScenarioError, match="is not node-link JSON"):
            build(graph_section(write(tmp_path, text)))
        with pytest.raises(ScenarioError, match=r"nowhere\.json' cannot be read: No such file"):
            build(graph_section(str(tmp_path / "nowhere.json")))

    @pytest.mark.parametrize(
        ("edges", "changes", "message"),
        [
            ([("hub", "north", None)], {}, "edge 'hub' - 'north' has no 'capacity', such as '1 Gbit/s'"),
            ([("hub", "north", 5)], {}, "has the capacity 5: a data rate needs its unit"),
            ([("hub", "north", "0 B/s")], {}, "has the capacity '0 B/s': a data rate here must be above 0"),
            ([("hub", "nort", "1 B/s")], {}, r"has the unknown node 'nort' \(did you mean 'north'\?\)"),
            ([("hub", "north", "1 B/s"), ("north", "hub", "1 B/s")], {}, "edge 'north' - 'hub' is there twice"),
            ([], {"server": "hup"}, r"network.server is 'hup', which is no node of .* \(did you mean 'hub'\?\)"),
            ([], {"attach": ["north", "soth"]}, r"network\.attach\.1 is 'soth'"),
            ([("hub", "south", "1 B/s")], {"attach": ["north"]}, "no way from the server 'hub' for node 'north'"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, edges: list[tuple[Any, ...]], changes: dict[str, Any], message: str) -> None:
        told = [dict(zip(("source", "target", "capacity"), edge, strict=True)) for edge in edges]
        file = write(tmp_path, metro() | {"edges": told})
        with pytest.raises(ScenarioError, match=message):
            build(graph_section(file, **changes))


@pytest.mark.parametrize("kind", ["star", "tree", "graph"])
def test_columns_say_what_is_said_of_each_device(kind: str, tmp_path: Path) -> None:
    device = {"down": {"kind": "lognormal", "median": "4 MB/s", "spread": 3.0}, "up": "inf B/s", "latency": "33 ms"}
    section = {
        "star": {"kind": "star", "server": {"down": "5 MB/s"}},
        "tree": {"kind": "tree", "cells": 3, "cell": {"down": "5 MB/s", "up": "2 MB/s"}, "server": {"up": "3 MB/s"}},
        "graph": graph_section(write(tmp_path, metro())),
    }[kind]
    network = build(section | {"device": device}, devices=10)
    devices = range(10)
    for way in ("down", "up"):
        links = [network.links_between(*ends(device, way)) + network.own_links(*ends(device, way)) for device in devices]
        assert network.lone_rates(way).tolist() == [min(rate for _, rate in found) for found in links]
    assert network.latencies.tolist() == [network.latency_s(device, SERVER) for device in devices] == [on_grid(0.033)] * 10
