"""Quantities in tables of the user: read from CSV and Parquet, put into the order of devices,
refused by row and value.
"""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import DataError, ScenarioError
from fedsim.common.units import BytesPerSecond, SamplesPerSecond
from fedsim.running.assembly import Run
from fedsim.world.device_table import DeviceTable


def table(folder: Path, text: str, *columns: str) -> DeviceTable:
    (folder / "d.csv").write_bytes(text.encode())
    return DeviceTable("population.speed", folder / "d.csv", columns or ("speed",), ("device",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("note,speed\na,3 samples/s\nb, 30 samples/min \n", [3.0, 0.5]),  # in order of devices
        ("device,speed\n2,5\n0,3\n1,4\n", [3.0, 4.0, 5.0]),  # as the column says
        ('\ufeffspeed,"a, b"\r\n"3",x\r\n4,"y\nz"\r\n', [3.0, 4.0]),  # as spreadsheets write
    ],
)
def test_rows_are_those_of_the_devices(tmp_path: Path, text: str, expected: list[float]) -> None:
    assert (
        table(tmp_path, text).by_device("speed", len(expected), SamplesPerSecond, "samples/s")
        == expected
    )


@pytest.mark.parametrize(
    "cells", [[8.0, 40.0], [8, 40], ["8", "40"], ["8 Mbit/s", "40"], ["8.0e0", "40000 kbit/s"]]
)
def test_parquet_is_read_alike(tmp_path: Path, cells: list[Any]) -> None:
    pd.DataFrame({"device": [1, 0], "down": cells}).to_parquet(tmp_path / "d.parquet")
    read = DeviceTable("k", tmp_path / "d.parquet", ("down",), ("device",))
    assert read.by_device("down", 2, BytesPerSecond, "Mbit/s") == [5e6, 1e6]


def test_an_empty_cell_may_mean_something(tmp_path: Path) -> None:
    assert table(tmp_path, "device,speed\n0,\n1,7\n").values("speed", float, empty=-1.0) == [
        -1.0,
        7.0,
    ]
    pd.DataFrame({"speed": [None, 7.0]}).to_parquet(tmp_path / "d.parquet")
    assert DeviceTable("k", tmp_path / "d.parquet", ("speed",)).values(
        "speed", float, empty=-1.0
    ) == [-1.0, 7.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "device,sped\n0,1\n",
            r"'.*d\.csv' has no column 'speed'; it has device, sped \(did you mean 'sped'\?\)",
        ),
        ("speed\n", r"'.*d\.csv' has no rows"),
        ("", r"'.*d\.csv' cannot be read"),
        ("speed\n1\n2\n", r"'.*d\.csv' has 2 rows for 3 devices; allowed is one a device"),
        (
            "device,speed\n0,1\n2,1\n",
            r"'.*d\.csv' has no row for device 1; allowed is one for each of 0 to 2",
        ),
        (
            "device,speed\n0,1\n0,1\n1,2\n",
            r"row 2 of '.*d\.csv': device is '0': row 1 is of the same device",
        ),
        (
            "device,speed\n0,1\nx,1\n1,2\n",
            r"row 2 of '.*d\.csv': device is 'x': allowed are 0 to 2, or names of exactly 3 devices",
        ),
        (
            "device,speed\n0,1\n1,\n2,2\n",
            r"row 2 of '.*d\.csv': speed is None: every row needs a value",
        ),
        (
            "device,speed\n0,1\n1,3 MB\n2,2\n",
            r"row 2 of '.*d\.csv': speed is '3 MB': a speed is a number and a unit",
        ),
        (
            "device,speed\n0,1\n1,2,3\n",
            r"'.*d\.csv' cannot be read: CSV parse error: Row #3: Expected 2 columns, got 3",
        ),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"^population\.speed: {message}"):
        table(tmp_path, text).by_device("speed", 3, SamplesPerSecond, "samples/s")


def test_a_bare_number_needs_a_unit(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"row 1 of '.*': speed is '5': a speed is .*, or give the 'unit' of all"
    ):
        table(tmp_path, "speed\n5\n").by_device("speed", 1, SamplesPerSecond)


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_what_is_no_table(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"k: there is no file '.*d\."):
        DeviceTable("k", tmp_path / name, ("speed",))
    (tmp_path / name).write_bytes(b"\x00\xff\xfe speed")
    with pytest.raises(DataError, match=r"k: '.*d\..*' cannot be read"):
        DeviceTable("k", tmp_path / name, ("speed",))
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="it is a folder"):
        DeviceTable("k", tmp_path / name, ("speed",))


TABLE = """device,speed,samples,jitter,slow,down,up,latency,joins,leaves
1,20 samples/s,200,0.2,0.5,2 Mbit/s,3,500,7 s,1 h
0,10 samples/s,100,0,1,1 Mbit/s,2,250,,
2,0.5 samples/min,300,0.1,1,inf B/s,4,750,0 s,90 s
"""


def built(population: dict[str, Any], device: dict[str, Any] | None = None) -> Run:
    sections = {
        "learning": "off",
        "population": {"devices": 3} | population,
        "strategy": {"clients_per_round": 3},
    }
    return Run(
        fedsim.Scenario(**sections, network={"kind": "star", "device": device or {}}), Simulation()
    )


def columns(run: Run) -> dict[str, list[Any]]:
    names = ("speed", "samples", "link_down", "link_up", "latency", "arrival", "departure")
    return {name: np.asarray(run.device_columns()[name]).tolist() for name in names}


def column(folder: Path, name: str, unit: str | None = None) -> dict[str, Any]:
    (folder / "d.csv").write_text(TABLE)
    return {"file": str(folder / "d.csv"), "column": name} | (
        {} if unit is None else {"unit": unit}
    )


def test_all_columns_of_a_file(tmp_path: Path) -> None:
    population = {name: column(tmp_path, name) for name in ("speed", "samples", "jitter")}
    population["stragglers"] = {"share": 1.0, "factor": column(tmp_path, "slow")}
    population["arrivals"] = {"kind": "file"} | column(tmp_path, "joins")
    population["departures"] = {"kind": "file"} | column(tmp_path, "leaves")
    units = {"down": None, "up": "Mbit/s", "latency": "ms"}
    run = built(population, {name: column(tmp_path, name, unit) for name, unit in units.items()})
    assert columns(run) == {
        "speed": [10.0, 10.0, 0.5 / 60],  # the second is slowed by half
        "samples": [100, 200, 300],
        "link_down": [125e3, 250e3, np.inf],
        "link_up": [250e3, 375e3, 500e3],
        "latency": [0.25, 0.5, 0.75],
        "arrival": [0.0, 7.0, 0.0],
        "departure": [np.inf, 3600.0, 90.0],
    }
    ends = [run.tasks.compute.epoch_ends(device, 0.0, 1.0, 1, np.inf)[0] for device in range(3)]
    assert ends[0] == 1.0
    assert 1.0 not in ends[1:]


def test_all_columns_of_a_list() -> None:
    """And a scenario that is written out says the same."""
    run = built(
        {
            "speed": ["1 samples/s", "2 samples/s", "3 samples/s"],
            "samples": [5, 6, 7],
            "jitter": [0.0, 0.1, 0.2],
        },
        {
            "down": ["8 bit/s", "16 bit/s", "24 bit/s"],
            "up": ["1 B/s"] * 3,
            "latency": ["1 s", "2 s", "0 s"],
        },
    )
    found = columns(run)
    assert (found["speed"], found["samples"], found["latency"]) == (
        [1.0, 2.0, 3.0],
        [5, 6, 7],
        [1.0, 2.0, 0.0],
    )
    assert (found["link_down"], found["link_up"]) == ([1.0, 2.0, 3.0], [1.0] * 3)
    assert (found["arrival"], found["departure"]) == ([0.0] * 3, [np.inf] * 3)
    assert fedsim.Scenario(**tomllib.loads(run.scenario.to_toml())) == run.scenario


@pytest.mark.parametrize(
    ("population", "device", "message"),
    [
        (
            {"speed": ["1 samples/s"] * 2},
            {},
            "population.speed lists 2 values for 3 devices; allowed is one a device",
        ),
        ({}, {"up": ["1 B/s", "0 B/s", "1 B/s"]}, "a data rate here must be above 0"),
        ({"samples": [1, 0, 3]}, {}, "population.samples.1 is 0"),
    ],
)
def test_bad_lists(population: dict[str, Any], device: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        built(population, device)
