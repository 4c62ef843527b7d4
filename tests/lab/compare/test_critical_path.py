"""Critical paths worked out by hand, and their sums in every kind of network and strategy."""

import json
import math
from pathlib import Path
from typing import Any

import networkx
import pytest

import fedsim
from fedsim.common.errors import RunFolderError
from fedsim.lab.compare.critical_path import AFTER, AT_HOST, QUEUE, SHARED, CriticalPaths
from fedsim.lab.compare.critical_words import (
    path_table,
    round_in_words,
    run_in_words,
    totals_table,
)
from fedsim.records.reading import RunFolder
from tests.calls import call, done

# Two devices at 10 samples/s. A download of the model (1000 B) takes 1.1 s, an upload 2.1 s, where
# nothing is shared.
DEVICE = {"down": "1000 B/s", "up": "500 B/s", "latency": "100 ms"}
STAR = {"kind": "star", "device": DEVICE}
FEDAVG = {"kind": "fedavg", "clients_per_round": 2}
TREE = {
    "kind": "tree",
    "cells": 2,
    "cell": {"down": "2000 B/s", "up": "1000 B/s"},
    "server": {"down": "1000 B/s"},
    "edge": {"latency": "250 ms"},
    "device": DEVICE,
}


def paths(folder: Path, samples: list[int], rounds: int = 1, **sections: Any) -> CriticalPaths:
    tables = {
        "learning": "off",
        "model": {"kind": "size", "bytes": "1000 B"},
        "population": {"devices": len(samples), "samples": samples, "speed": "10 samples/s"},
        "network": STAR,
        "strategy": FEDAVG,
        "stop": {"rounds": rounds},
    }
    fedsim.run(fedsim.Scenario(**tables | sections), folder, executor="inline")
    return CriticalPaths(RunFolder(folder))


SLOW = [("download", 1.1), ("train", 4.0), ("upload", 2.1)]


@pytest.mark.parametrize(
    ("samples", "rounds", "sections", "expected", "sooner"),
    [
        pytest.param([20, 40], 1, {}, SLOW, 2.0, id="the slower device"),
        pytest.param(
            [20, 40],
            1,
            {"strategy": FEDAVG | {"deadline": "6 s"}},
            [*SLOW[:2], ("upload", 0.9)],
            0.8,
            id="a deadline",
        ),
        pytest.param(
            [20, 20],
            1,
            {"world": {"processes": [{"kind": "upload-slots", "slots": 1}]}},
            [("download", 1.1), ("train", 2.0), ("queue", 2.1), ("upload", 2.1)],
            2.1,
            id="a queue",
        ),
        pytest.param(
            [20, 40],
            2,
            {"strategy": FEDAVG | {"every": "10 s"}},
            [("wait", 2.8), *SLOW],
            2.0,
            id="a schedule",
        ),
        pytest.param(
            [20, 40],
            2,
            {"strategy": {"kind": "fedbuff", "concurrency": 2, "buffer": 2}},
            SLOW,
            0.0,
            id="a buffer",
        ),
        pytest.param(
            [20, 40],
            2,
            {"strategy": {"kind": "fedasync", "concurrency": 2}},
            [("upload", 2.0)],
            0.0,
            id="a version",
        ),
    ],
)
def test_by_hand(
    samples: list[int],
    rounds: int,
    sections: dict[str, Any],
    expected: list[tuple[str, float]],
    sooner: float,
    tmp_path: Path,
) -> None:
    found = paths(tmp_path / "run", samples, rounds, **sections)
    last = found.round(rounds - 1)
    assert [(one.step, round(one.seconds, 6)) for one in last.steps] == expected
    assert last.saved_s == pytest.approx(sooner)
    assert samples[0] == samples[1] or last.device == 1
    assert math.fsum(found.totals.values()) == found.end


def test_what_a_shared_link_takes(tmp_path: Path) -> None:
    """Both upload at 250 B/s from 3.1 s on, each over a link of 500 B/s."""
    found = paths(tmp_path / "run", [20, 20], network=STAR | {"server": {"up": "500 B/s"}})
    assert [round(seconds, 6) for seconds in found.totals.values()] == [2.1, 2.0, 2.0, 1.1]
    assert found.totals[SHARED] == pytest.approx(2.0)


def test_over_edge_servers(tmp_path: Path) -> None:
    """2.25 s from the server, two edge rounds of 5.2 s, 1.25 s to the server."""
    found = paths(
        tmp_path / "run",
        [20, 20],
        network=TREE,
        strategy=FEDAVG | {"kind": "hierfavg", "kappa2": 2},
    )
    steps = found.round(0).steps
    assert [one.step for one in steps] == [
        "edge-transfer",
        *["download", "train", "upload"] * 2,
        "edge-transfer",
    ]
    assert [round(one.seconds, 6) for one in steps] == [2.25, *[1.1, 2.0, 2.1] * 2, 1.25]
    assert steps[-1].label.endswith("to the server")


@pytest.mark.parametrize(
    "sections",
    [
        {"strategy": FEDAVG | {"secure_aggregation": {"mask_rate": "1 kB/s"}, "deadline": "8 s"}},
        {"strategy": {"kind": "fedavg", "clients_per_round": 3, "over_selection": 1.3}},
        {
            "strategy": FEDAVG | {"deadline": "9 s"},
            "population": {"availability": {"mean_on": "20 s", "mean_off": "8 s"}},
        },
        {"network": TREE},
        {"network": {"kind": "graph", "server": "hub", "attach": ["north"]}},
        {"network": TREE, "strategy": FEDAVG | {"kind": "hierfavg", "deadline": "15 s"}},
        {"strategy": {"kind": "gossip"}},
        {"strategy": {"kind": "fedat", "tiers": 2, "clients_per_round": 2}},
        {"strategy": {"kind": "refl", "clients_per_round": 3, "deadline": "6 s"}},
    ],
)
def test_a_path_has_no_gaps_and_sums_exactly(sections: dict[str, Any], tmp_path: Path) -> None:
    availability = sections.get("population", {}).get("availability")
    speed = {"kind": "lognormal", "median": "9 samples/s", "spread": 1.7}
    population: dict[str, Any] = {
        "devices": 6,
        "samples": [20, 30, 40, 10, 50, 20],
        "speed": speed,
        "jitter": 0.2,
    }
    population |= {"availability": {"kind": "renewal"} | availability} if availability else {}
    if (network := sections.get("network", {})).get("kind") == "graph":
        graph: networkx.Graph[str] = networkx.Graph()
        graph.add_edge("hub", "north", capacity="600 B/s")
        (tmp_path / "net.json").write_text(
            json.dumps(networkx.node_link_data(graph, edges="edges"))
        )
        sections = sections | {"network": network | {"file": str(tmp_path / "net.json")}}
    found = paths(tmp_path / "run", [], 4, **sections | {"population": population})
    assert len(found.rounds) == 4
    for one in found.rounds:
        assert (one.steps[0].start, one.steps[-1].end) == (one.start, one.end)
        assert all(
            step.end == after.start for step, after in zip(one.steps, one.steps[1:], strict=False)
        )
        assert all(0 <= step.shared <= step.seconds for step in one.steps)
        assert (
            math.fsum(step.seconds for step in one.steps)
            == math.fsum(one.totals.values())
            == one.seconds
        )
    assert math.fsum(found.totals.values()) == found.end
    assert found.totals.get(AFTER, 0.0) == found.end - found.rounds[-1].end


def test_a_round_that_its_deadline_ended_in_words(tmp_path: Path) -> None:
    found = paths(tmp_path / "run", [20, 40], 2, strategy=FEDAVG | {"deadline": "6 s"})
    assert round_in_words(found, 1) == [
        "Round 1 took 6 s, as long as the median: from 6 s to 12 s of simulated time.",
        "Its deadline ended it: 1 of 2 clients was late (device 1).",
        "It waited longest for device 1 (train): 4 s, 67%.",
        "Without the late client it would have ended 0.8 s sooner.",
        "With twice the rate there, 0.8 s sooner; then another client is the last.",
    ]
    assert run_in_words(found)[2:] == [
        "The deadline ended 2 of 2 rounds.",
        "Waited for most often: device 1 (2 rounds).",
    ]
    steps, of, after, took, *_ = (column.cells for column in path_table(found.round(1)).columns)
    assert list(zip(steps, of, after, took, strict=True))[-1] == (
        "upload (late)",
        "device 1",
        "5.1 s",
        "0.9 s",
    )
    with pytest.raises(RunFolderError, match=r"--round is 7, .* allowed are 0 to 1"):
        found.round(7)


def test_rounds_of_one_length_have_no_longest(tmp_path: Path) -> None:
    single = paths(tmp_path / "single", [20, 20], 1)
    assert run_in_words(single)[0] == "1 round in 5.2 s."
    equal = paths(tmp_path / "equal", [20, 20], 3)
    assert run_in_words(equal)[0] == "3 rounds in 15.6 s: 5.2 s in the median and at most."


def test_what_if_twice_the_deadline(tmp_path: Path) -> None:
    """The device of 40 samples, cut off after 6 s, is done after 7.2 s: 1.2 s more for its own
    upload.
    """
    run = tmp_path / "run"
    paths(run, [20, 40], strategy=FEDAVG | {"deadline": "6 s"})
    told = [
        line.split()
        for line in done("whatif", run, "--set", "strategy.deadline=12 s").splitlines()
        if "own link" in line
    ]
    assert [line[6:9] for line in told[2:]] == [["run", "0.9", "s"], ["run.whatif", "2.1", "s"]]
    assert (tmp_path / "run.whatif.report.html").is_file()
    assert "1 round in 7.2 s." in done("why", tmp_path / "run.whatif")
    assert call("why", run, "--round", 4).exit_code == 2
    assert totals_table({}).columns[0].cells == ()


def test_a_queue_is_where_the_task_waits(tmp_path: Path) -> None:
    """A host with a worker for two devices, and a server with one slot for uploads."""
    population = {
        "devices": 2,
        "samples": [20, 20],
        "speed": "10 samples/s",
        "host": {"number": 1, "cores": 1, "workers": 1},
    }
    found = paths(tmp_path / "host", [20, 20], population=population)
    assert found.totals[AT_HOST] == pytest.approx(1.1 + 2.0 + 2.1)
    assert QUEUE not in found.totals
    words = " ".join(round_in_words(found, 0))
    assert "workers of the hosts" in words
    assert "faster server" not in words
    slots = {"processes": [{"kind": "upload-slots", "slots": 1}]}
    found = paths(tmp_path / "slots", [20, 20], world=slots)
    assert found.totals[QUEUE] == pytest.approx(2.1)
    assert AT_HOST not in found.totals
    assert "a faster server saves" in " ".join(round_in_words(found, 0))


def test_the_table_has_a_column_of_shared_links_only_with_such_times(tmp_path: Path) -> None:
    shared = STAR | {"server": {"up": "500 B/s"}}
    for name, network, columns in (("own", STAR, 5), ("shared", shared, 6)):
        found = paths(tmp_path / name, [20, 20], network=network)
        assert len(path_table(found.round(0)).columns) == columns
