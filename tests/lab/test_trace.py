"""The Chrome trace: valid, complete, and as the records have it."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.common.errors import RunFolderError
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.history import History
from fedsim.lab.trackers.link_load import Curve, interval_means, link_load, running_sum, thin_out
from fedsim.lab.trackers.trace import write_trace
from fedsim.plugin import World
from fedsim.records.reading import RunFolder
from fedsim.testing import eventful_world
from fedsim.testing import run as finish

Entries = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Groups, newcomers, leavers, shifts, disconnections and deadlines, all in one."""
    strategy = {
        "kind": "ifca",
        "groups": 2,
        "clients_per_round": 6,
        "local_epochs": 2,
        "deadline": "15 s",
    }
    sections = eventful_world(strategy, seed=3)
    sections["population"] |= {
        "availability": {"kind": "renewal", "mean_on": "40 s", "mean_off": "10 s"},
        "arrivals": {"kind": "poisson", "rate": "0.1 /s", "newcomers": 5},
        "departures": {"kind": "exponential", "mean_stay": "60 s", "share": 0.3},
    }
    sections["drift"] = {"kind": "swap-all", "probability": 0.6, "at": {"every_rounds": 3}}
    folder = tmp_path_factory.mktemp("trace") / "run"
    finish(sections, folder)
    run = RunFolder(folder)
    assert {"arrival", "departure", "shift", "assign"} <= {event["kind"] for event in run.events}
    assert {"late", "lost", "left"} <= {
        event["outcome"] for event in run.events if event["kind"] == "task-end"
    }
    return run


@pytest.fixture(scope="module")
def entries(run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Entries:
    """Its trace."""
    return written(run, tmp_path_factory.mktemp("trace") / "t.json")


def written(run: RunFolder, path: Path) -> Entries:
    count = write_trace(run, path)
    text = path.read_text(encoding="utf-8")
    # numbers that only Python reads
    entries: Entries = json.loads(text, parse_constant=pytest.fail)["traceEvents"]
    assert len(entries) == count
    assert not path.with_name(path.name + ".writing").exists()
    return entries


def of(entries: Entries, phase: str, name: str = "") -> Entries:
    return [entry for entry in entries if entry["ph"] == phase and entry["name"].startswith(name)]


def test_every_entry_is_what_the_format_asks_for(entries: Entries) -> None:
    """And slices of a lane do not overlap."""
    ends: dict[tuple[int, int], float] = {}
    for entry in sorted(of(entries, "X"), key=lambda entry: float(entry["ts"])):
        lane = (entry["pid"], entry["tid"])
        assert entry["ts"] >= ends.get(lane, 0.0) - 1e-2
        ends[lane] = entry["ts"] + entry["dur"]
    assert all({"name", "ph", "pid", "tid", "args"} <= set(entry) for entry in entries)
    assert {entry["name"] for entry in of(entries, "M")} == {
        "process_name",
        "thread_name",
        "thread_sort_index",
    }
    assert all(
        entry["ph"] in "XiC" and entry["ts"] >= 0 <= entry.get("dur", 0)
        for entry in entries
        if entry["ph"] != "M"
    )
    assert all(
        math.isfinite(value) for entry in of(entries, "C") for value in entry["args"].values()
    )


def test_every_step_is_a_slice_on_its_lane(run: RunFolder, entries: Entries) -> None:
    slices = [entry for entry in of(entries, "X") if entry["pid"] == 2 and "task" in entry["args"]]
    slices.sort(key=lambda entry: (entry["args"]["task"], entry["ts"]))
    for entry, (_, step) in zip(
        slices, History(run).steps.sort_values(["task", "start"]).iterrows(), strict=True
    ):
        name = step["step"] if step["ended"] == "done" else f"{step['step']} ({step['ended']})"
        assert (entry["tid"], entry["name"], entry["args"]["task"]) == (
            step["device"],
            name,
            step["task"],
        )
        assert entry["ts"] == pytest.approx(step["start"] * 1e6, abs=1e-2)
        assert entry["ts"] + entry["dur"] == pytest.approx(step["end"] * 1e6, abs=1e-2)


def test_what_happens_to_devices_are_instants_on_their_lanes(
    run: RunFolder, entries: Entries
) -> None:
    outcomes = Counter(event["outcome"] for event in run.events if event["kind"] == "task-end")
    kinds = Counter(event["kind"] for event in run.events)
    found = Counter(entry["name"] for entry in of(entries, "i") if entry["pid"] == 2)
    assert found["task lost"] == outcomes["lost"]
    assert found["arrives"] == kinds["arrival"]
    assert found["data shift (swap-all)"] == kinds["shift"]
    assert found["leaves for good"] == kinds["departure"]
    assert found["left for good"] == outcomes["left"]
    assert found["into group 0"] + found["into group 1"] == kinds["assign"]
    named = {entry["tid"] for entry in of(entries, "M", "thread_name")}
    assert {entry["tid"] for entry in entries if entry["pid"] == 2 and entry["ph"] != "M"} <= named


def test_rounds_and_deadlines_are_the_servers(run: RunFolder, entries: Entries) -> None:
    rounds = [entry for entry in of(entries, "X") if entry["pid"] == 1]
    assert [entry["name"] for entry in rounds] == [f"round {row['round']}" for row in run.rounds]
    assert [entry["args"]["valid"] for entry in rounds] == [row["valid"] for row in run.rounds]
    starts = {
        event["round"]: event["data"]["deadline"]
        for event in run.events
        if event["kind"] == "round-start"
    }
    reached = [starts[row["round"]] for row in run.rounds if starts[row["round"]] <= row["time"]]
    assert 0 < len(reached) < len(run.rounds)
    assert [entry["ts"] for entry in of(entries, "i", "deadline")] == pytest.approx(
        [time * 1e6 for time in reached]
    )
    assert [entry["args"]["accuracy"] for entry in of(entries, "C", "accuracy")] == [
        row["accuracy"] for row in run.rounds
    ]


def test_the_counter_of_devices_at_work(run: RunFolder, entries: Entries) -> None:
    """Its last value at each time is how many tasks are open then."""
    working, expected = 0, dict[float, int]()
    for event in run.events:
        working += {"task-start": 1, "task-end": -1}.get(event["kind"], 0)
        expected[event["time"]] = working
    counted = {
        round(entry["ts"] / 1e6, 6): entry["args"]["devices at work"]
        for entry in of(entries, "C", "dev")
    }
    assert [*counted] == sorted(counted)
    for time, value in expected.items():
        assert next((counted[at] for at in reversed(counted) if at <= time + 1e-6), 0) == value


def test_strategies_without_rounds_have_versions(small: dict[str, Any], tmp_path: Path) -> None:
    changes = {
        "strategy": {"kind": "fedasync", "concurrency": 4},
        "stop": {"rounds": 9},
        "learning": "off",
    }
    finish(small | changes, tmp_path / "r")
    entries = written(RunFolder(tmp_path / "r"), tmp_path / "t.json")
    assert [entry["name"] for entry in of(entries, "i", "version")] == [
        f"version {number}" for number in range(9)
    ]
    assert not [entry for entry in of(entries, "X") if entry["pid"] == 1]


def test_a_run_that_was_cut_off_and_one_that_diverged(run: RunFolder, tmp_path: Path) -> None:
    folder = shutil.copytree(run.path, tmp_path / "run")
    table = pq.read_table(run.path / "events.parquet")
    last = max(place for place, event in enumerate(run.events) if event["kind"] == "step-end")
    texts = table.column("data").to_pylist()
    place = next(place for place, event in enumerate(run.events) if event["kind"] == "round")
    texts[place] = (
        texts[place]
        .replace('"accuracy":', '"accuracy":NaN,"was":')
        .replace('"loss":', '"loss":Infinity,"were":')
    )
    broken = table.set_column(table.column_names.index("data"), "data", pa.array(texts)).slice(
        0, last
    )
    pq.write_table(broken, folder / "events.parquet")
    entries = written(RunFolder(folder), tmp_path / "t.json")
    assert (
        of(entries, "X", "upload (stopped)")
        or of(entries, "X", "train (stopped)")
        or of(entries, "X", "download (stopped)")
    )
    assert len(of(entries, "C", "accuracy")) == len(of(entries, "X", "round")) - 1


def test_what_cannot_be_read_or_written_is_said(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_trace(run, tmp_path / "file" / "t.json")
    path, folder = tmp_path / "t.json", shutil.copytree(run.path, tmp_path / "run")
    write_trace(run, path)
    before = path.read_bytes()
    (folder / "events.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(RunFolderError, match=r"events\.parquet"):
        write_trace(RunFolder(folder), path)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "run", "t.json"]


# The load of the server's link.


@pytest.mark.parametrize("way", ["down", "up"])
def test_the_loads_area_is_what_was_delivered(run: RunFolder, way: Any) -> None:
    curve = link_load(run, way)
    area = float(np.sum(curve.values[:-1] * np.diff(curve.times)))
    assert area == pytest.approx(run.summary["bytes"][way], rel=1e-9)
    assert curve.values[-1] == 0
    assert (np.diff(curve.times) > 0).all()
    assert (curve.values >= 0).all()


def test_alone_on_its_link_a_device_has_its_rate(small: dict[str, Any], tmp_path: Path) -> None:
    """One device: the load while it uploads is its own link's rate, after the latency."""
    small["population"] = {"devices": 1, "speed": "10 samples/s"}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 1}
    finish(small | {"learning": "off", "stop": {"rounds": 3}}, tmp_path / "r")
    run = RunFolder(tmp_path / "r")
    for way, rate in (("down", 200e3 / 8), ("up", 20e3 / 8)):
        curve = link_load(run, "down" if way == "down" else "up")
        assert np.allclose(curve.values, [rate, 0.0] * 3, rtol=1e-6)
        starts = [row["start"] + 0.05 for row in run.transfers if row["direction"] == way]
        assert curve.times[::2] == pytest.approx(starts, abs=1e-6)


def test_a_thinned_curve_has_the_same_area() -> None:
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(0, 100, 3000))
    curve = Curve(times, np.append(rng.uniform(0, 9, 2999), 0.0))
    thin = thin_out(curve, 50)
    assert len(thin.times) == 50
    areas = [float(np.sum(one.values[:-1] * np.diff(one.times))) for one in (curve, thin)]
    assert areas[1] == pytest.approx(areas[0])
    assert thin_out(curve, 3000) is curve


def test_sums_of_changes_in_any_order_and_their_means() -> None:
    curve = running_sum(np.array([3.0, 1.0, 2.0, 1.0]), np.array([-5.0, 2.0, 1.0, 2.0]))
    assert (curve.times.tolist(), curve.values.tolist()) == ([1.0, 2.0, 3.0], [4.0, 5.0, 0.0])
    assert interval_means(curve, np.array([0.0, 2.0, 2.5, 7.0])) == pytest.approx(
        [2.0, 5.0, 2.5 / 4.5]
    )
    nothing = running_sum(np.zeros(0), np.zeros(0))
    assert (len(nothing.times), interval_means(nothing, np.arange(3.0)).tolist()) == (0, [0.0, 0.0])


STAR = {"kind": "star", "device": {"down": "2 Mbit/s", "up": "1 Mbit/s", "latency": "20 ms"}}
WITH_MESSAGES: dict[str, dict[str, Any]] = {
    "gossip": {"strategy": {"kind": "gossip"}},
    "gossip with absences": {
        "strategy": {"kind": "gossip", "deadline": "10 s"},
        "population": {"availability": {"kind": "renewal", "mean_on": "4 s", "mean_off": "4 s"}},
    },
    "collectives": {"strategy": {"kind": "diloco", "local_steps": 2}},
    "hosts": {
        "strategy": {"kind": "fedavg", "clients_per_round": 3},
        "population": {"host": {"number": 2, "cores": 2, "workers": 1}},
        "world": {"processes": [{"kind": f"{__name__}:backup"}]},
    },
    "hosts of the network": {
        "strategy": {"kind": "fedavg", "clients_per_round": 3},
        "network": {"kind": "graph", "server": "hub", "attach": ["cell"], "hosts": ["cache a"]},
        "world": {"processes": [{"kind": f"{__name__}:fetch"}]},
    },
}


def backup(world: World) -> Iterator[object]:
    """A device saves its data on the server, and then on another device."""
    yield world.send("device 1", "server", "2 kB")
    yield world.send("device 1", "device 2", "1 kB")


def fetch(world: World) -> Iterator[object]:
    """A device gets data from a host of the network, which tells the server."""
    yield world.send("cache a", "device 1", "2 kB")
    yield world.send("cache a", "server", "1 kB")


@pytest.mark.parametrize("family", WITH_MESSAGES)
def test_messages_are_in_the_lanes_of_both_ends(family: str, tmp_path: Path) -> None:
    """As in the table of transfers; what did not arrive is in the sender's lane alone."""
    sections = WITH_MESSAGES[family]
    population = {"devices": 6, "speed": "20 samples/s"} | sections.get("population", {})
    sections = {"learning": "off", "network": STAR, "stop": {"rounds": 3}} | sections
    if sections["network"]["kind"] == "graph":
        link = {"capacity": "8 Mbit/s", "latency": "10 ms"}
        graph = networkx.Graph([("hub", "cell", link), ("hub", "cache a", link)])
        file = tmp_path / "graph.json"
        file.write_text(json.dumps(networkx.node_link_data(graph, edges="edges")))
        sections["network"] = sections["network"] | {"file": str(file)}
    fedsim.run(fedsim.Scenario(**sections | {"population": population}), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    entries = written(run, tmp_path / "t.json")
    lanes = {
        (entry["pid"], entry["tid"]): entry["args"]["name"]
        for entry in of(entries, "M", "thread_name")
    }
    begins = {entry["id"]: entry for entry in of(entries, "b")}
    ends = {entry["id"]: entry for entry in of(entries, "e")}
    assert begins.keys() == ends.keys()
    assert len(begins) == len(of(entries, "b")) > 0
    shown = []
    for number, begin in begins.items():
        end = ends[number]
        assert (begin["pid"], begin["tid"]) == (end["pid"], end["tid"])
        lane = lanes.get((begin["pid"], begin["tid"]), "server")
        shown.append((lane, begin["name"].partition(" (")[0], begin["ts"], end["ts"]))
    due = []
    for row in run.table("transfers.parquet").to_pylist():
        if row["task"] is not None:
            continue
        span = (round(row["start"] * 1e6, 3), round(row["end"] * 1e6, 3))
        due.append((row["sender"], f"to {row['receiver']}", *span))
        if row["delivered"]:
            due.append((row["receiver"], f"from {row['sender']}", *span))
    assert Counter(shown) == Counter(due)
    arrived = Activities(History(run)).message_ends
    is_of_device = [lane.startswith("device ") for lane, name, *_ in shown]
    failed = sum(row["delivered"] == 0 for row in run.table("transfers.parquet").to_pylist())
    assert sum(is_of_device) == len(arrived) + failed
    assert bool(failed) == (family == "gossip with absences")
