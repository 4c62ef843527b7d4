"""Energy and batteries in whole runs: nothing changes without them, and with them a run is still resumed to the bit."""

import copy
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.meters.energy import TABLE
from fedsim.records.reading import RunFolder
from fedsim.testing import StrategyContract, assert_sound, eventful_world, quiet_world, run, run_until
from tests.benchmarks.hashes import STRATEGIES

FEDAVG = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"}
BATTERY = {
    "capacity": {"kind": "uniform", "low": "20 J", "high": "150 J"},
    "initial": {"kind": "uniform", "low": 0.1, "high": 1.0},
}
CHARGED = {"charge": "3 W", "charging": {"kind": "renewal", "mean_on": "30 s", "mean_off": "30 s"}, "restart": 0.3}
ENERGY: dict[str, Any] = {"preset": "smartphone-4g", "receive_byte": "1 J/kB", "send_byte": "2 J/kB", "tail_lasts": "4 s"}
ENERGY |= {"carbon": "400 g/kWh", "server": {"idle": "50 W"}}


def test_nothing_happens_otherwise_when_energy_is_counted_or_batteries_are_never_flat(tmp_path: Path) -> None:
    sections = eventful_world(FEDAVG, seed=4, rounds=6) | {"learning": "off"}
    without = run(sections)
    assert "energy" not in without
    for name, energy in {"counted": ENERGY, "endless": ENERGY | {"battery": {"capacity": "inf J"} | CHARGED}}.items():
        summary = run(sections | {"energy": energy}, tmp_path / name)
        assert summary["events_sha256"] == without["events_sha256"]
        assert_sound(tmp_path / name)


def test_two_strategies_have_the_same_batteries() -> None:
    """What is drawn by lot is the same; levels differ by what is asked."""
    sections = quiet_world(FEDAVG) | {"energy": ENERGY | {"battery": BATTERY | CHARGED}, "learning": "off"}
    other = copy.deepcopy(sections) | {"strategy": {"kind": "fedbuff", "concurrency": 7, "buffer": 3}}
    runs = [fedsim.Simulation(fedsim.Scenario(**each)).installed for each in (sections, other)]
    for name, column in runs[0].meters.of_sections["energy"].columns.items():
        assert (column == runs[1].meters.of_sections["energy"].columns[name]).all(), name


@pytest.mark.parametrize(
    ("kind", "idle_while"),
    [("flexcfl", "working"), ("cata-fed", "working"), ("fedbuff", "there")],
)
def test_batteries_run_flat_at_any_instant(kind: str, idle_while: str, tmp_path: Path) -> None:
    """No run hangs, all books balance, and some tasks end for that; stopped on the way the run is the same."""
    contract = StrategyContract()
    contract.strategy = {"kind": kind} | STRATEGIES[kind]
    energy = ENERGY | {"battery": BATTERY | CHARGED, "idle_while": idle_while}
    contract.sections = {"energy": energy, "learning": "off"}
    contract.test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)
    assert (tmp_path / "cut" / TABLE).read_bytes() == (tmp_path / "whole" / TABLE).read_bytes()
    assert RunFolder(tmp_path / "cut").summary["energy"] == RunFolder(tmp_path / "whole").summary["energy"]
    folder = assert_sound(tmp_path / "whole")
    outcomes = [event["outcome"] for event in folder.events if event["kind"] == "task-end"]
    assert {"battery", "done"} <= {*outcomes}
    assert folder.summary["energy"]["wasted"] > 0


def test_a_population_that_is_flat_for_good_ends_the_run(tmp_path: Path) -> None:
    sections = quiet_world(FEDAVG, rounds=10_000) | {"learning": "off"}
    summary = run(sections | {"energy": ENERGY | {"battery": {"capacity": "100 J"}}}, tmp_path / "run")
    assert summary["stopped"] == "no device will ever be there again"
    assert summary["simulated_s"] < 3600
    folder = assert_sound(tmp_path / "run")
    drawn = sum(row["joules"] for row in folder.devices)
    assert 0 < drawn <= 24 * 100 + 1e-6


def test_an_interrupted_run_balances_too(tmp_path: Path) -> None:
    sections = quiet_world(FEDAVG) | {"learning": "off", "energy": ENERGY | {"battery": BATTERY | CHARGED}}
    assert run_until(sections, tmp_path / "run", 80) == "interrupted"
    assert_sound(tmp_path / "run")
