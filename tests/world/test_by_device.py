"""Every quantity of a population, device by device, from a list or a file: what a run has of it is what was written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.errors import DataError, ScenarioError
from fedsim.language.imports import from_file
from fedsim.running.assembly import Run
from fedsim.scenario import load
from fedsim.simulation import Simulation

TABLE = """device,speed,samples,jitter,slow,down,up,latency,joins,leaves
1,20 samples/s,200,0.2,0.5,2 Mbit/s,3,500,7 s,1 h
0,10 samples/s,100,0,1,1 Mbit/s,2,250,,
2,0.5 samples/min,300,0.1,1,inf B/s,4,750,0 s,90 s
"""


def built(population: dict[str, Any], device: dict[str, Any] | None = None) -> Run:
    sections = {"learning": "off", "population": {"devices": 3} | population, "strategy": {"clients_per_round": 3}}
    return Run(fedsim.Scenario(**sections, network={"kind": "star", "device": device or {}}), Simulation())


def columns(run: Run) -> dict[str, list[Any]]:
    names = ("speed", "samples", "link_down", "link_up", "latency", "arrival", "departure")
    return {name: np.asarray(run.device_columns()[name]).tolist() for name in names}


def column(folder: Path, name: str, unit: str | None = None) -> dict[str, Any]:
    (folder / "d.csv").write_text(TABLE)
    return {"file": str(folder / "d.csv"), "column": name} | ({} if unit is None else {"unit": unit})


def test_all_columns_of_a_file(tmp_path: Path) -> None:
    run = built(
        {
            "speed": column(tmp_path, "speed"),
            "samples": column(tmp_path, "samples"),
            "jitter": column(tmp_path, "jitter"),
            "stragglers": {"share": 1.0, "factor": column(tmp_path, "slow")},
            "arrivals": {"kind": "file"} | column(tmp_path, "joins"),
            "departures": {"kind": "file"} | column(tmp_path, "leaves"),
        },
        {
            "down": column(tmp_path, "down"),
            "up": column(tmp_path, "up", "Mbit/s"),
            "latency": column(tmp_path, "latency", "ms"),
        },
    )
    assert columns(run) == {
        "speed": [10.0, 10.0, 0.5 / 60],  # the second is slowed by half
        "samples": [100, 200, 300],
        "link_down": [125e3, 250e3, np.inf],
        "link_up": [250e3, 375e3, 500e3],
        "latency": [0.25, 0.5, 0.75],
        "arrival": [0.0, 7.0, 0.0],
        "departure": [np.inf, 3600.0, 90.0],
    }
    ends = [run.tasks._compute.epoch_ends(device, 0.0, 1.0, 1, np.inf)[0] for device in range(3)]
    assert ends[0] == 1.0
    assert 1.0 not in ends[1:]


def test_all_columns_of_a_list() -> None:
    run = built(
        {"speed": ["1 samples/s", "2 samples/s", "3 samples/s"], "samples": [5, 6, 7]},
        {"down": ["8 bit/s", "16 bit/s", "24 bit/s"], "up": ["1 B/s"] * 3, "latency": ["1 s", "2 s", "0 s"]},
    )
    assert columns(run) == {
        "speed": [1.0, 2.0, 3.0],
        "samples": [5, 6, 7],
        "link_down": [1.0, 2.0, 3.0],
        "link_up": [1.0] * 3,
        "latency": [1.0, 2.0, 0.0],
        "arrival": [0.0] * 3,
        "departure": [np.inf] * 3,
    }


def test_a_written_scenario_says_the_same(tmp_path: Path) -> None:
    scenario = built(
        {"speed": ["1 samples/s"] * 3, "jitter": [0.0, 0.1, 0.2]}, {"up": column(tmp_path, "up", "Mbit/s")}
    ).scenario
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    with from_file(False):
        assert load(tmp_path / "s.toml").to_toml() == scenario.to_toml()


@pytest.mark.parametrize(
    ("population", "device", "message"),
    [
        ({"speed": ["1 samples/s"] * 2}, {}, "population.speed lists 2 values for 3 devices; allowed is one a device"),
        ({"jitter": [0.1] * 4}, {}, "population.jitter lists 4 values for 3 devices"),
        ({}, {"up": ["1 B/s", "0 B/s", "1 B/s"]}, "a link must carry something"),
        ({"jitter": [0.1, -1.0, 0.2]}, {}, "population.jitter.1 is -1.0"),
        ({"samples": [1, 0, 3]}, {}, "population.samples.1 is 0"),
        ({"jitter": -1.0}, {}, "population.jitter is -1.0"),
    ],
)
def test_bad_lists(population: dict[str, Any], device: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        built(population, device)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("down\n1\n0\n3\n", r"network\.device\.down: row 2 of '.*': down is '0': a link must carry something"),
        ("down\n1\n-3\n3\n", r"network\.device\.down: row 2 of '.*': down is '-3': a data rate cannot be negative"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        built({}, {"down": {"file": str(tmp_path / "d.csv"), "column": "down", "unit": "MB/s"}})


def test_who_leaves_before_it_comes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("joins,leaves\n0,\n9,9\n,\n")
    times = {"kind": "file", "file": str(tmp_path / "d.csv"), "unit": "s"}
    with pytest.raises(ScenarioError, match="device 1 leaves at 9 s but arrives at 9 s"):
        built({"arrivals": times | {"column": "joins"}, "departures": times | {"column": "leaves"}})
