"""Columns that take little room: of what all share, and of the devices that were asked alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim import Simulation
from fedsim.analysis.clusters import read_groupings
from fedsim.analysis.fairness import draw_fairness
from fedsim.analysis.style import NothingToDrawError
from fedsim.common.errors import SimulationError
from fedsim.common.streams import Streams
from fedsim.federation import clients
from fedsim.lab import forecast
from fedsim.lab.audit import audit
from fedsim.lab.forecast import nominal_lines
from fedsim.lab.reading.fairness import jain_index, jain_over_time
from fedsim.lab.trackers.link_load import link_load
from fedsim.records.reading import RunFolder
from fedsim.world import columns
from fedsim.world.phases import Phases

DEVICES = 60


def test_paths_are_the_same_when_only_those_who_were_looked_at_have_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = Phases(Streams(3), "p", 1200.0, 300.0, DEVICES)
    monkeypatch.setattr(columns, "MANY", DEVICES - 1)
    monkeypatch.setattr(columns, "_FIRST_LENGTH", 2)  # it has to grow, many times
    few = Phases(Streams(3), "p", 1200.0, 300.0, DEVICES)
    for time, devices in (
        (0.0, [7, 3]),
        (9e4, [3, 50, 2, 1]),
        (5e3, [59]),
        (2e5, list(range(20, 40))),
    ):
        asked = np.array(devices)
        assert few.on(asked, time).tolist() == every.on(asked, time).tolist()
        assert [few.span(device, time + 50.0) for device in devices] == [
            every.span(device, time + 50.0) for device in devices
        ]
    assert len(few._end) == 32 >= 26 > 16  # rows for the 26 that were asked


def sections() -> dict[str, Any]:
    links = {
        "device": {
            "down": {"kind": "lognormal", "median": "1 Mbit/s", "spread": 2.0},
            "latency": "50 ms",
        }
    }
    population = {
        "devices": DEVICES,
        "speed": {"kind": "lognormal", "median": "9 samples/s", "spread": 2.0},
    }
    population |= {"samples": {"low": 5, "high": 50}}
    population |= {"availability": {"kind": "renewal", "mean_on": "90 s", "mean_off": "90 s"}}
    found: dict[str, Any] = {
        "learning": "off",
        "model": {"kind": "size", "bytes": "1 MB"},
        "population": population,
    }
    found |= {
        "stop": {"rounds": 6},
        "network": {"kind": "star", "server": {"down": "4 Mbit/s"}} | links,
    }
    strategy = {"kind": "fedavg", "clients_per_round": 3, "deadline": "60 s"}
    return found | {"strategy": strategy, "energy": {"preset": "smartphone-wifi"}}


def run(folder: Path) -> RunFolder:
    fedsim.run(fedsim.Scenario(**sections()), folder)
    return RunFolder(folder)


def test_a_run_is_the_same_when_only_those_who_were_asked_have_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = run(tmp_path / "every")
    monkeypatch.setattr(columns, "MANY", DEVICES - 1)
    asked = run(tmp_path / "asked")
    assert asked.summary["events_sha256"] == every.summary["events_sha256"]
    assert (every.has_all_devices, asked.has_all_devices) == (True, False)
    assert (len(every.devices), every.population, asked.population) == (DEVICES, DEVICES, DEVICES)
    assert asked.devices == [row for row in every.devices if row["selected"]]
    assert 0 < len(asked.devices) < DEVICES
    assert not [
        finding for one in (every, asked) for found in audit(one.path).values() for finding in found
    ]
    assert all(map(np.array_equal, jain_over_time(asked), jain_over_time(every)))
    assert (
        jain_index((row["selected"] for row in asked.devices), DEVICES)
        == jain_over_time(every)[1][-1]
    )
    assert read_groupings(asked) == []
    with pytest.raises(NothingToDrawError, match="only asked devices have rows"):
        draw_fairness([asked])
    assert link_load(asked, "down").values.tolist() == link_load(every, "down").values.tolist()


def test_who_looks_at_all_of_too_many_is_told_what_that_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = fedsim.Scenario(
        **sections() | {"strategy": {"kind": "refl", "clients_per_round": 3}}
    )
    built = Simulation(scenario).installed
    assert len(built.server.clients.idle_devices()) > 1
    monkeypatch.setattr(clients, "usable_memory", lambda: DEVICES * 200 - 1)
    with pytest.raises(
        SimulationError,
        match=r"all 60 devices at once, .* allowed are 59 devices, or a strategy that draws",
    ):
        built.server.clients.idle_devices()
    assert len(built.server.clients.sample(3, "sample")) == 3


def test_a_forecast_looks_at_some_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    every = nominal_lines(Simulation(fedsim.Scenario(**sections())).installed)
    monkeypatch.setattr(columns, "MANY", DEVICES - 1)
    monkeypatch.setattr(forecast, "_SAMPLED", 20)
    some = nominal_lines(Simulation(fedsim.Scenario(**sections())).installed)
    assert "of these 20 were looked at for the times below" in some
    # what they hold in all is still exact
    assert some[0].split("median")[0] == every[0].split("median")[0]
    assert len(some) == len(every) + 1


@pytest.mark.parametrize("devices", [1, 7, 500, 4_096, 10_007])
def test_a_mean_by_pieces_is_that_of_the_whole_to_the_bit(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_PIECE", 200)
    column = np.random.default_rng(devices).lognormal(sigma=3.0, size=devices)
    asked: list[slice] = []
    assert columns.mean(lambda piece: (asked.append(piece), column[piece])[1], devices) == float(
        np.mean(column)
    )
    sizes = [len(column[piece]) for piece in asked]
    assert (sum(sizes), max(sizes) < 800) == (devices, True)
    assert sum(len(column[piece]) for piece in columns.pieces(devices)) == devices
