"""HierFAVG on edge servers against FedAvg, and against rounds and losses of edge servers worked
out by hand.
"""

import copy
import json
from pathlib import Path
from typing import Any, ClassVar

import networkx
import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.lab.audit import audit
from fedsim.records.reading import RunFolder
from fedsim.testing import ScenarioTables, StrategyContract, quiet_world, run
from tests.strategies.runs import of_kind, ran

DEVICE = {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"}
TREE = {
    "kind": "tree",
    "cells": 3,
    "cell": {"down": "400 kbit/s", "up": "200 kbit/s"},
    "server": {"down": "600 kbit/s", "up": "300 kbit/s"},
    "edge": {"receive": "2 Mbit/s", "send": "3 Mbit/s", "latency": "30 ms"},
    "device": DEVICE,
}
CRASHES = [{"kind": "edge-outage", "edge": 1, "every": "40 s", "lasts": "10 s"}]
HIERFAVG = {"kind": "hierfavg", "clients_per_round": 9, "kappa2": 2, "deadline": "40 s"}


class TestContract(StrategyContract):
    strategy = HIERFAVG
    sections: ClassVar[ScenarioTables] = {"network": TREE, "world": {"processes": CRASHES}}


def with_cells(cells: int, strategy: dict[str, Any], rounds: int = 4) -> ScenarioTables:
    network = copy.deepcopy(TREE) | {"cells": cells}
    return quiet_world({"clients_per_round": 6} | strategy, rounds=rounds) | {"network": network}


def model(sections: ScenarioTables, folder: Path) -> NDArray[np.float32]:
    """The global model of a run that passes its audit, [d]."""
    return np.concatenate(
        [values.ravel() for values in ran(sections, folder).models()["global"].values()]
    )


@pytest.mark.parametrize("cells", [24, 3, 1])
@pytest.mark.parametrize("server", [None, {"kind": "yogi", "lr": 0.05}], ids=["plain", "yogi"])
def test_with_one_edge_round_it_is_fedavg(
    cells: int, server: dict[str, Any] | None, tmp_path: Path
) -> None:
    """But for rounding: edge servers sum their clients, and the server sums edge servers.

    With two edge rounds it is not.
    """
    runs = {"fedavg": {"kind": "fedavg"}} | {
        str(kappa2): {"kind": "hierfavg", "kappa2": kappa2} for kappa2 in (1, 2)
    }
    fedavg, one, two = (
        model(with_cells(cells, strategy | {"server": server}), tmp_path / at)
        for at, strategy in runs.items()
    )
    assert one == pytest.approx(fedavg, abs=1e-5)
    assert np.abs(two - fedavg).max() > 1e-2


@pytest.mark.parametrize("kappa2", [1, 2, 4])
def test_so_many_edge_rounds_take_a_share_of_the_bytes_to_the_server(kappa2: int) -> None:
    fedavg = run(with_cells(24, {"kind": "fedavg"}))["bytes"]["by_purpose"]
    found = run(with_cells(24, {"kind": "hierfavg", "kappa2": kappa2}, rounds=4 // kappa2))[
        "bytes"
    ]["by_purpose"]
    for name in ("update", "model"):
        assert (found[name], found[f"edge-{name}"]) == (fedavg[name], fedavg[name] / kappa2)


# Two devices of 20 samples at 10 samples/s, each at an edge server of its own; models of 1000
# bytes.


def by_hand(
    strategy: dict[str, Any] | None = None, rounds: int = 1, **others: Any
) -> ScenarioTables:
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "1000 B"},
        "population": {"devices": 2, "samples": [20, 20], "speed": "10 samples/s"},
        "network": {
            "kind": "tree",
            "cells": 2,
            "cell": {"down": "2000 B/s", "up": "1000 B/s"},
            "server": {"down": "1000 B/s"},
            "edge": {"latency": "250 ms"},
            "device": {"down": "1000 B/s", "up": "500 B/s", "latency": "100 ms"},
        },
        "strategy": {"kind": "hierfavg", "clients_per_round": 2, "kappa2": 2} | (strategy or {}),
        "stop": {"rounds": rounds},
    } | others


def outage(every: float, lasts: float, work: str = "wasted") -> dict[str, Any]:
    how = {"every": f"{every} s", "lasts": f"{lasts} s", "random": False, "work": work}
    return {"world": {"processes": [{"kind": "edge-outage", "edge": 0} | how]}}


def edge_transfers(folder: RunFolder) -> list[tuple[str, str, float, float, str, float]]:
    rows = [row for row in folder.transfers if row["device"] is None]
    return [
        (row["sender"], row["receiver"], row["start"], row["end"], row["outcome"], row["delivered"])
        for row in rows
    ]


def updates_lost(folder: RunFolder) -> list[list[int]]:
    return [event["data"]["tasks"] for event in of_kind(folder, "updates-lost")]


def tasks_of(folder: RunFolder, device: int) -> list[int]:
    return [event["task"] for event in of_kind(folder, "task-start") if event["device"] == device]


def test_the_times_of_a_round_by_hand(tmp_path: Path) -> None:
    """Both models go down at 500 B/s after 0.25 s.

    An edge round takes 1.1 + 2 + 2.1 s; 0.25 + 1 s up over the cell's link.
    """
    folder = ran(by_hand(), tmp_path / "run")
    down, up, end = pytest.approx(2.25), pytest.approx(2.25 + 2 * 5.2), pytest.approx(13.9)
    told = edge_transfers(folder)
    assert sorted(told[:2]) == [
        ("server", f"edge {edge}", 0.0, down, "done", 1000) for edge in (0, 1)
    ]
    assert sorted(told[2:]) == [
        (f"edge {edge}", "server", up, end, "done", 1000) for edge in (0, 1)
    ]
    (row,) = folder.rounds
    assert (row["time"], row["selected"], row["valid"]) == (end, 2, 2)
    assert (row["bytes_down"], row["bytes_up"]) == (2000 + 4000, 4000 + 2000)
    assert [row["selected"] for row in folder.devices] == [1, 1]
    assert [row["latency"] for row in folder.devices] == [pytest.approx(0.35)] * 2
    near = [
        (row["device"], row["sender"], row["receiver"])
        for row in folder.transfers
        if row["device"] is not None
    ]
    ways = [
        (device, *ends)
        for device in (0, 1)
        for ends in ((f"edge {device}", None), (None, f"edge {device}"))
    ]
    assert sorted(near, key=str) == sorted(2 * ways, key=str)


def test_an_edge_server_that_crashes_during_an_upload(tmp_path: Path) -> None:
    """From 6 s on: device 0 has sent from 5.45 s on.

    The other one's round goes on, and is not longer for it.
    """
    folder = ran(by_hand(**outage(6, 4)), tmp_path / "run")
    (row,) = folder.rounds
    assert (row["time"], row["selected"], row["valid"], row["disconnected"]) == (
        pytest.approx(13.9),
        2,
        1,
        1,
    )
    assert folder.summary["bytes"]["wasted"] == pytest.approx(1000 + 0.55 * 500)
    assert updates_lost(folder) == []
    assert [event["data"]["edges"] for event in of_kind(folder, "edges-combined")] == [[1]]


def test_a_crash_takes_what_the_edge_server_had(tmp_path: Path) -> None:
    """At 9 s the first edge round is in its model, and its device trains again: all of the round
    is wasted there.
    """
    energy = {"compute": "1 W", "idle": "2 W", "tail": "1 W", "tail_lasts": "1 s"}
    folder = ran(by_hand(**outage(9, 4), energy=energy), tmp_path / "run")
    assert updates_lost(folder) == [tasks_of(folder, 0)[:1]]
    assert folder.summary["bytes"]["wasted"] == pytest.approx(2000 + 1000)
    # From 2.25 s to 9 s idle; it trained for 2 + 0.45 s; its radio was awake for 1 s after each
    # download.
    assert folder.summary["energy"]["wasted"] == pytest.approx(2 * 6.75 + 2.45 + 2 * 1)
    assert folder.rounds[0]["valid"] == 1


def test_a_crash_on_the_way_to_the_server_and_a_return(tmp_path: Path) -> None:
    """At 13 s the edge's model is on its way; it is back at 23 s, but the next round has begun
    with the other device alone.
    """
    folder = ran(by_hand(**outage(13, 10), rounds=3), tmp_path / "run")
    assert (
        "edge 0",
        "server",
        pytest.approx(12.65),
        13.0,
        "lost",
        pytest.approx(100),
    ) in edge_transfers(folder)
    assert [row["valid"] for row in folder.rounds] == [2, 1, 1]  # at 36 s it is lost again
    assert [row["selected"] for row in folder.rounds] == [2, 1, 2]
    # Alone the second model comes down at 1000 B/s.
    assert folder.rounds[1]["time"] == pytest.approx(13.9 + 1.25 + 10.4 + 1.25)
    assert updates_lost(folder)[0] == tasks_of(folder, 0)[:2]


def test_with_all_edge_servers_lost_the_next_round_waits(tmp_path: Path) -> None:
    """Both are lost from 1 to 11 s and from 12 s on, before they have the model; every 5 s the
    server looks for clients.
    """
    (process,) = outage(1, 10)["world"]["processes"]
    both = {"world": {"processes": [process | {"edge": edge} for edge in (0, 1)]}}
    sections = by_hand({"retry": "5 s", "kappa2": 1}, rounds=3, **both)
    sections["stop"]["simulated_time"] = "20 s"
    folder = ran(sections, tmp_path / "run")
    assert [(row["time"], row["selected"]) for row in folder.rounds] == [(1.0, 0), (12.0, 0)]
    assert [event["time"] for event in of_kind(folder, "round-start")] == [0.0, 11.0]


def test_work_waits_for_an_edge_server_that_is_cut_off(tmp_path: Path) -> None:
    """From 6 to 10 s and from 16 to 20 s nothing comes to it: both uploads stand still so long,
    and nothing is lost.
    """
    folder = ran(by_hand(**outage(6, 4, "waits")), tmp_path / "run")
    ends = [
        row["end"] for row in folder.transfers if row["device"] == 0 and row["direction"] == "up"
    ]
    assert ends == [pytest.approx(7.45 + 4), pytest.approx(7.45 + 4 + 5.2 + 4)]
    assert folder.summary["simulated_s"] == pytest.approx(7.45 + 4 + 5.2 + 4 + 1.25)
    assert folder.summary["bytes"]["wasted"] == 0


def test_at_the_deadline_edge_servers_send_what_they_have(tmp_path: Path) -> None:
    """At 10 s the second edge round is open: the model of the first goes up."""
    (row,) = ran(by_hand({"deadline": "10 s"}), tmp_path / "run").rounds
    assert (row["time"], row["valid"], row["slow"]) == (pytest.approx(11.25), 0, 2)


def test_what_edge_servers_draw(tmp_path: Path) -> None:
    """8 messages of devices and 4 of edge servers pass these, the latter the server too; 4
    updates are combined there.
    """
    energy = {
        "edge": {"idle": "1 W", "byte": "1 J/B", "update": "5 J"},
        "server": {"byte": "1 J/B", "update": "7 J"},
    }
    drawn = ran(by_hand(energy=energy), tmp_path / "run").summary["energy"]["by_phase"]
    assert (drawn["edge"], drawn["server"]) == pytest.approx((2 * 13.9 + 12_000 + 4 * 5, 4000))


def test_edge_servers_within_a_graph(tmp_path: Path) -> None:
    """Two places behind one edge server: what is below it and above it has links of its own."""
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_edge("s", "m", capacity="1000 B/s")
    graph.add_edges_from([("m", "a"), ("m", "b")], capacity="250 B/s")
    (tmp_path / "net.json").write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
    network = {
        "kind": "graph",
        "file": "net.json",
        "server": "s",
        "attach": ["a", "b"],
        "edge": {"nodes": ["m"]},
    }
    sections = by_hand({"kappa2": 1}, network=network) | {"data": {"root": str(tmp_path)}}
    folder = ran(sections, tmp_path / "run")
    assert folder.rounds[0]["time"] == pytest.approx(1 + 4 + 2 + 4 + 1)
    layout = json.loads((tmp_path / "run" / "network.json").read_text())["edges"]
    assert layout["of"] == [0, 0]
    assert layout["below"]["up"] == [["a -> m", "edge 0 receive"], ["b -> m", "edge 0 receive"]]
    assert layout["above"] == {
        "down": [["s -> m", "edge 0 receive"]],
        "up": [["edge 0 send", "m -> s"]],
    }


def test_latencies_of_links_are_paid_below_and_above_an_edge_server(tmp_path: Path) -> None:
    """As above, and each of four messages that follow one another waits for its links."""
    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_edge("s", "m", capacity="1000 B/s", latency="500 ms")
    graph.add_edges_from([("m", "a"), ("m", "b")], capacity="250 B/s", delay="250 ms")
    (tmp_path / "net.json").write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
    network = {
        "kind": "graph",
        "file": "net.json",
        "server": "s",
        "attach": ["a", "b"],
        "edge": {"nodes": ["m"]},
    }
    sections = by_hand({"kappa2": 1}, network=network) | {"data": {"root": str(tmp_path)}}
    folder = ran(sections, tmp_path / "run")
    assert folder.rounds[0]["time"] == pytest.approx(12 + 2 * 0.5 + 2 * 0.25)
    assert not any(audit(tmp_path / "run").values())
    told = json.loads((tmp_path / "run" / "network.json").read_text())
    assert told["delays"] == {"places": [0.75, 0.75], "edges": [0.5]}


def test_latencies_of_a_graph_without_edge_servers_pass_the_audit(tmp_path: Path) -> None:
    graph: networkx.Graph[str] = networkx.Graph()
    for place, milliseconds in enumerate((500, 250, 125)):
        graph.add_edge("s", f"p{place}", capacity="1000 B/s", latency=f"{milliseconds} ms")
    (tmp_path / "net.json").write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
    network = {"kind": "graph", "file": "net.json", "server": "s", "attach": ["p0", "p1", "p2"]}
    network |= {"device": {"latency": "100 ms"}}
    sections = by_hand({"kind": "fedavg"}, network=network) | {"data": {"root": str(tmp_path)}}
    del sections["strategy"]["kappa2"]
    folder = ran(sections, tmp_path / "run")
    assert [row["latency"] for row in folder.devices] == pytest.approx([0.6, 0.35])
    assert not any(audit(tmp_path / "run").values())


def test_a_cell_without_devices_has_its_own_route(tmp_path: Path) -> None:
    """Two devices in a tree of five cells, each with an edge server."""
    sections = by_hand()
    sections["network"] = {**sections["network"], "cells": 5}
    run(sections, tmp_path / "run")
    assert not any(audit(tmp_path / "run").values())
    layout = json.loads((tmp_path / "run" / "network.json").read_text())
    assert layout["edges"]["of"] == list(range(5))
    assert layout["edges"]["below"] == {
        "down": [[f"edge {cell} send"] for cell in range(5)],
        "up": [[f"edge {cell} receive"] for cell in range(5)],
    }
    assert layout["routes"]["up"] == [[f"cell {cell} up", "server up"] for cell in range(5)]


def test_the_audit_sees_more_than_an_edge_server_can_send(tmp_path: Path) -> None:
    run(by_hand(), tmp_path / "run")
    path = tmp_path / "run" / "network.json"
    told = json.loads(path.read_text())
    told["links"]["edge 0 send"] = 300.0
    path.write_text(json.dumps(told))
    (found,) = audit(tmp_path / "run")["no link carried more than it can"]
    assert found.startswith("the link 'edge 0 send' of 300 B/s carried 1000 bytes")


@pytest.mark.parametrize(
    ("sections", "seconds"),
    [
        # Eight samples a batch: four steps are a pass over all 20, and 8 more.
        (
            {"strategy": {"kind": "hierfavg", "kappa1": 4}, "training": {"batch_size": 8}},
            2.25 + 2 * (1.1 + 2.8 + 2.1) + 1.25,
        ),
        # FedAvg in the same network: the models share 1000 B/s down, and go up at 500 B/s.
        ({"strategy": {"kind": "fedavg"}}, 0.35 + 2 + 2 + 0.35 + 2),
    ],
    ids=["steps", "fedavg"],
)
def test_a_step_count_stands_for_epochs_and_the_server_is_farther(
    sections: dict[str, Any], seconds: float
) -> None:
    strategy = (
        {"clients_per_round": 2}
        | ({"kappa2": 2} if "training" in sections else {})
        | sections["strategy"]
    )
    assert run(by_hand() | sections | {"strategy": strategy})["simulated_s"] == pytest.approx(
        seconds
    )


def test_a_codec_at_an_edge_server_passes_on_what_a_client_sent(tmp_path: Path) -> None:
    """Of top-k the largest changes alone arrive: with one client an edge server they are the
    same once more.
    """
    sections = with_cells(24, {"kind": "hierfavg", "kappa2": 1}, rounds=1)
    sections["messages"] = {"up": {"kind": "top-k", "share": 0.1}}
    fedavg = model(
        sections | {"strategy": {"kind": "fedavg", "clients_per_round": 6}}, tmp_path / "fedavg"
    )
    assert model(sections, tmp_path / "edges") == pytest.approx(fedavg, abs=1e-6)
