"""The audit's look at links: exact for one link, and it knows the links that devices share
inside any network.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsim
from fedsim.clock.simulation import TICK_S
from fedsim.lab.audit import audit
from fedsim.lab.audit.capacity import Rate, Stretch, time_tolerance_s
from fedsim.lab.audit.frames import grain_s
from fedsim.records import folder as files
from fedsim.records.schema import TRANSFERS
from tests.calls import done
from tests.lab.test_audit import Rows, edit, events, found, read, reseal

Made = Callable[[dict[str, Any], Path], Path]
HELD = "no link carried more than it can"


def overfull(begin: Any, end: Any, size: Any, rate: float) -> Stretch | None:
    return Rate(np.zeros(1), np.array([rate])).overfull(begin, end, size)


@given(
    rates=st.lists(st.sampled_from([0.0, 1.0, 4.0, math.inf]), min_size=1, max_size=5),
    messages=st.lists(
        st.tuples(st.integers(0, 11), st.integers(1, 6), st.integers(1, 20)), min_size=1, max_size=6
    ),
)
def test_a_stretch_is_found_if_and_only_if_there_is_one(
    rates: list[float], messages: list[tuple[int, int, int]]
) -> None:
    """By trying all stretches between a begin and an end: what lies wholly within must fit the
    rate, which changes.
    """
    begin = np.array([float(start) for start, _, _ in messages])
    end = begin + np.array([float(length) for _, length, _ in messages])
    size = np.array([float(bytes_) for *_, bytes_ in messages])
    found = Rate(np.arange(len(rates)) * 3.0, np.array(rates)).overfull(begin, end, size)
    edges = np.arange(len(rates) + 10) * 3.0
    carried = np.append(0.0, np.cumsum(3.0 * np.minimum([*rates, *[rates[-1]] * 9], 1e9)))

    def excess(low: float, high: float) -> float:
        room = np.interp(high + 1e-6, edges, carried) - np.interp(low, edges, carried)
        return float(size[(begin >= low) & (end <= high)].sum() - room)

    worst = max(excess(low, high) for low in begin.tolist() for high in end.tolist() if low < high)
    if abs(worst) > 0.1:
        assert (found is not None) == (worst > 0)
    if found is not None and math.inf not in rates:
        within = (begin >= found.begin) & (end <= found.end + time_tolerance_s(end))
        assert found.carried == size[within].sum()


def test_rounding_is_no_finding_late_in_a_long_run() -> None:
    """Back to back at full rate for a year's worth of sums: the last bits of times are all that
    could be wrong.
    """
    rate = 1e6 / 3
    end = 1e7 + np.arange(1, 20_001) / 7
    begin = np.concatenate([[1e7], end[:-1]])
    size = np.full(len(end), rate / 7)
    assert overfull(begin, end, size, rate) is None
    assert overfull(np.full(len(end), 1e7), end, size, rate) is None
    assert overfull(begin, end, size, rate * 0.999) is not None


def world(small: dict[str, Any], network: dict[str, Any]) -> dict[str, Any]:
    """Many at a time, with links of their own that are no limit: what is shared inside is."""
    small["population"] |= {"availability": {"kind": "always"}}
    small["network"] = network | {
        "device": {"down": "100 Mbit/s", "up": "100 Mbit/s", "latency": "50 ms"}
    }
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 10, "local_epochs": 1}
    return small | {"learning": "off", "stop": {"rounds": 3}}


@pytest.fixture
def tree(small: dict[str, Any], tmp_path: Path, made: Made) -> Path:
    """A run in cells: their links are the bottleneck."""
    network = {
        "kind": "tree",
        "cells": 3,
        "cell": {"down": "40 kbit/s", "up": "30 kbit/s"},
        "server": {"down": "1 Mbit/s", "up": "1 Mbit/s"},
    }
    return made(world(small, network), tmp_path / "run")


@pytest.fixture
def graph(
    small: dict[str, Any], tmp_path: Path, made: Made, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run in a network from a file: the link between the hub and the south, which two sites
    share, is the bottleneck.
    """
    net = networkx.Graph()
    net.add_edge("server", "hub", capacity="1 Mbit/s")
    net.add_edge("hub", "north", capacity="inf B/s")
    net.add_edge("hub", "south", capacity="40 kbit/s")
    net.add_edge("south", "far", capacity="1 Mbit/s")
    root = tmp_path_factory.getbasetemp()
    (root / "city.json").write_text(json.dumps(networkx.node_link_data(net, edges="edges")))
    small["data"] |= {"root": str(root)}
    network = {
        "kind": "graph",
        "file": "city.json",
        "server": "server",
        "attach": ["north", "south", "far"],
    }
    return made(world(small, network), tmp_path / "run")


def hastened(place: Callable[[int], bool]) -> Callable[[Path], None]:
    """All messages down to some devices in the first round took half as long as they did: no
    device's own link minds.
    """

    def change(rows: Rows) -> None:
        for row in rows:
            if row["direction"] == "down" and row["round"] == 0 and place(row["device"]):
                row["end"] = (row["start"] + row["end"]) / 2

    return edit(files.TRANSFERS, TRANSFERS, change)


@pytest.mark.parametrize(
    ("network", "place", "link"),
    [("tree", 1, "the down link of cell 1"), ("graph", 2, "the link 'hub -> south'")],
)
def test_an_honest_run_passes_and_an_overfull_link_is_found(
    network: str, place: int, link: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(network)
    assert found(folder) == set()
    hastened(lambda device: device % 3 == place)(folder)
    (finding,) = audit(folder)[HELD]
    assert finding.startswith(f"{link} of 5000 B/s carried ")


def test_a_forged_capacity_is_found(graph: Path) -> None:
    told = json.loads((graph / files.NETWORK).read_text())
    assert told["links"]["hub -> south"] == 5000.0
    assert told["links"]["hub -> north"] is None
    told["links"]["south -> hub"] = 4500.0
    (graph / files.NETWORK).write_text(json.dumps(told))
    assert found(graph) == {"every file is there, whole and as it was sealed", HELD}
    reseal(graph)
    assert found(graph) == {HELD}


@pytest.mark.parametrize(
    "text", [None, "", "{}", '{"links": {}, "routes": {"down": [["a"]], "up": [["a"]]}}']
)
def test_a_network_without_its_links_cannot_be_vouched_for(graph: Path, text: str | None) -> None:
    if text is None:
        (graph / files.NETWORK).unlink()
    else:
        (graph / files.NETWORK).write_text(text)
    reseal(graph)
    (finding,) = audit(graph)[HELD]
    assert ("network.json" in finding, "missing or damaged" in finding) == (True, True)


@pytest.mark.parametrize("share", [0.98, 0.5])
def test_a_busy_server_s_link_is_known_exactly(
    small: dict[str, Any], tmp_path: Path, share: float
) -> None:
    """A link that has been full for a while could not have done it with a fiftieth less."""
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] |= {"clients_per_round": 20, "deadline": None}
    small["network"]["server"] = {"down": "400 kbit/s", "up": "50 kbit/s"}
    small["network"]["device"] = {"down": "200 kbit/s", "up": "200 kbit/s"}
    folder = tmp_path / "run"
    fedsim.run(
        fedsim.Scenario(**small | {"learning": "off", "stop": {"rounds": 2}}),
        folder,
        executor="inline",
    )
    assert found(folder) == set()
    text = (folder / files.SCENARIO).read_text()
    assert text.count('up = "50 kbit/s"') == 1
    (folder / files.SCENARIO).write_text(
        text.replace('up = "50 kbit/s"', f'up = "{50 * share:g} kbit/s"')
    )
    reseal(folder)
    assert found(folder) == {HELD}


def test_headers_are_on_the_wire_and_in_no_other_book(
    small: dict[str, Any], tmp_path: Path
) -> None:
    network = small["network"] | {"protocol": {"kind": "tcp"}}
    summary = fedsim.run(fedsim.Scenario(**small | {"network": network}), tmp_path / "run").summary
    rows = pq.read_table(tmp_path / "run" / files.TRANSFERS).to_pylist()
    assert sum(row["delivered"] for row in rows) == pytest.approx(
        summary["bytes"]["down"] + summary["bytes"]["up"], rel=1e-12
    )
    assert [row["wire_bytes"] for row in rows] == pytest.approx(
        [row["delivered"] * 1514 / 1448 for row in rows], rel=1e-15
    )

    def without_headers(rows: Rows) -> None:
        rows[3]["wire_bytes"] = rows[3]["delivered"]

    assert not found(tmp_path / "run")
    edit(files.TRANSFERS, TRANSFERS, without_headers)(tmp_path / "run")
    reseal(tmp_path / "run")
    assert found(tmp_path / "run") == {
        "headers were counted as the protocol says",
        "transfers agree with the records",
    }


# The audit of runs so long that the clock's float64 is coarser than a tick: no false alarm, and no
# true one missed.


DAYS = (90, 200, 2_000)
RATE = {"down": "1 Gbit/s", "up": "1 Gbit/s"}
NETWORKS: dict[str, dict[str, Any]] = {
    "star": {"kind": "star"},
    "tree": {"kind": "tree", "cells": 3, "cell": RATE},
}
STRATEGIES: list[dict[str, Any]] = [
    {
        "kind": "cata-fed",
        "clients_per_round": 6,
        "deadline": {"kind": "relative", "times": 0.3},
        "smallest_part": 5,
        "clusters": 2,
        "rejoin": True,
        "upload_time": "ignored",
    },
    {
        "kind": "flexcfl",
        "clients_per_round": 6,
        "groups": 2,
        "moment": {"devices": 3},
        "deadline": "7 s",
    },
    {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "7777 ms"},
]


@pytest.fixture
def long_run(
    small: dict[str, Any], tmp_path: Path, made: Callable[[dict[str, Any], Path], Path]
) -> Callable[..., Path]:
    """``long_run(days, network, strategy)``: so long nobody is there, and then there are twenty
    rounds.
    """

    def run(days: int, network: str = "star", strategy: dict[str, Any] = STRATEGIES[0]) -> Path:
        wait = {"retry": f"{days} day"}
        arrivals = {
            "kind": "schedule",
            "times": [f"{days - 1} day"] * 20,
            "devices": list(range(20)),
        }
        population = {
            name: small["population"][name] for name in ("devices", "speed", "jitter")
        } | {"arrivals": arrivals}
        changes: dict[str, Any] = {
            "learning": "off",
            "population": population,
            "strategy": strategy | wait,
        }
        changes["network"] = NETWORKS[network] | {
            "server": RATE,
            "device": small["network"]["device"],
        }
        return made(
            small | changes | {"stop": {"rounds": 20}},
            tmp_path / f"{days}-{network}-{strategy['kind']}",
        )

    return run


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("network", NETWORKS)
def test_an_honest_run_passes(long_run: Callable[..., Path], place: int, network: str) -> None:
    """Each strategy and each length in each network; times are as fine as the clock, or its
    numbers.
    """
    fine, coarse, coarser = (grain_s(np.array([each * 86_400.0])).item() for each in DAYS)
    assert fine == TICK_S < coarse < coarser < 1e-6
    days = DAYS[place if network == "star" else place - 1]
    assert found(long_run(days, network, STRATEGIES[place])) == set()


def test_a_training_ten_times_the_tolerance_too_long_is_found(
    long_run: Callable[..., Path],
) -> None:
    def end_late(rows: Rows) -> None:
        said = {
            row["round"]: json.loads(row["data"]) for row in rows if row["kind"] == "round-start"
        }
        begun = {
            row["task"]: row["time"]
            for row in rows
            if row["kind"] == "step-start" and row["step"] == "train"
        }
        for row in (row for row in rows if row["kind"] == "step-end" and row["step"] == "train"):
            grain = grain_s(np.array([row["time"]])).item()
            if (
                row["time"] - begun[row["task"]]
                >= said[row["round"]].get("training_limit", np.inf) - grain
            ):
                row["time"] += 10 * grain
                return
        raise AssertionError("nobody trained to the limit")

    folder = long_run(2_000)
    events(end_late)(folder)
    assert "deadlines held" in found(folder)


def test_a_message_slower_than_its_trace_is_named(
    small: dict[str, Any], tmp_path: Path, made: Made
) -> None:
    """Over a device's own link that follows a trace, with nothing else in the way."""
    (tmp_path / "rates.csv").write_text("time,rate\n0,2000\n5,8000\n10,4000\n")
    down = {"kind": "trace", "file": str(tmp_path / "rates.csv"), "rate": "B/s"}
    small["network"] = {"kind": "star", "device": {"down": down, "up": "1 Mbit/s"}}
    small["population"] |= {"availability": {"kind": "always"}}
    folder = made(small | {"learning": "off", "stop": {"rounds": 2}}, tmp_path / "run")
    assert found(folder) == set()

    def end_late(rows: Rows) -> None:
        row = next(row for row in rows if row["direction"] == "down")
        assert row["outcome"] == "done"
        row["end"] += 3.0

    edit(files.TRANSFERS, TRANSFERS, end_late)(folder)
    (finding,) = audit(folder)["no message took longer than its links explain"]
    assert finding.startswith("transfer 0 brought ")


def test_a_message_too_fast_by_ten_times_the_tolerance_is_found(
    long_run: Callable[..., Path],
) -> None:
    """Each has its device's link for itself."""

    def end_early(rows: Rows) -> None:
        row = next(row for row in rows if row["outcome"] == "done")
        row["end"] -= 10 * time_tolerance_s(np.array([row["end"]])).item()

    folder = long_run(2_000)
    edit(files.TRANSFERS, TRANSFERS, end_early)(folder)
    assert "no link carried more than it can" in found(folder)


def test_verbs_on_a_long_run(long_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = long_run(2_000, strategy=STRATEGIES[1])
    done("compare", folder, "--csv")
    done("trace", folder, "--out", tmp_path / "trace.json")
    begun = [row["time"] for row in read(folder, files.EVENTS) if row["kind"] == "step-start"]
    shown = [
        entry
        for entry in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if entry["ph"] == "X"
    ]
    assert min(entry["dur"] for entry in shown) >= 0
    assert min(entry["ts"] for entry in shown) == pytest.approx(min(begun) * 1e6, abs=0.1)
