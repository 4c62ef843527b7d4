"""Deadlines relative to a population's mean training time, as in the CATA-Fed paper's section 5; tentative stragglers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.simulation import Simulation
from tests.strategies.clustered import file_data, of_kind, ran

SIZES = {"low": 100, "high": 3000}


def population(devices: int, **more: Any) -> dict[str, Any]:
    return {"devices": devices, "samples": SIZES, "speed": "64 samples/s"} | more


def everybody_once(people: dict[str, Any], folder: Path, **strategy: Any) -> RunFolder:
    """One round in which all are asked, 5 epochs each, without network time or learning."""
    strategy = {"kind": "fedavg", "clients_per_round": people["devices"], "local_epochs": 5} | strategy
    scenario = {"learning": "off", "population": people, "strategy": strategy, "stop": {"rounds": 1}}
    return ran(scenario, folder)


def epochs_of(run: RunFolder) -> dict[int, int]:
    trainings = [event for event in of_kind(run, "step-end") if event["step"] == "train"]
    return {event["device"]: event["data"]["epochs"] for event in trainings}


@pytest.mark.parametrize(("t", "dropped"), [(1.0, 0.50), (0.5, 0.77), (None, 0.0)])
def test_the_share_that_fedavg_drops(t: float | None, dropped: float, tmp_path: Path) -> None:
    run = everybody_once(population(4000), tmp_path / "run", deadline=t and {"kind": "relative", "times": t})
    (row,) = run.rounds
    assert row["selected"] == 4000
    assert row["slow"] / 4000 == pytest.approx(dropped, abs=0.02)
    sizes = np.array([device["samples"] for device in run.devices])
    survivors = {event["device"] for event in of_kind(run, "task-end") if event["outcome"] == "done"}
    assert survivors == set(np.flatnonzero(sizes <= (t or np.inf) * sizes.mean()).tolist())


@pytest.mark.parametrize("t", [1.0, 0.5, 0.1])
def test_fedprox_does_as_many_epochs_as_fit_and_drops_only_whom_none_fits(t: float, tmp_path: Path) -> None:
    run = everybody_once(population(1000), tmp_path / "run", kind="fedprox", deadline={"kind": "relative", "times": t})
    sizes = np.array([device["samples"] for device in run.devices])
    fitting = np.minimum(5, np.floor(5 * t * sizes.mean() / sizes)).astype(int)
    epochs = epochs_of(run)
    assert [epochs[device] for device in range(1000)] == fitting.tolist()
    (row,) = run.rounds
    assert row["slow"] == (fitting == 0).sum()


def budget_run(sizes: list[int], folder: Path, population: dict[str, Any] | None = None, **strategy: Any) -> RunFolder:
    """One round of devices with given sizes, 10 samples/s, real learning on random data."""
    draw = np.random.default_rng(1)
    scenario = {
        "data": file_data(folder, [(draw.normal(size=(size, 3)), np.arange(size) % 2) for size in sizes]),
        "population": {"devices": len(sizes), "speed": "10 samples/s"} | (population or {}),
        "strategy": {"kind": "fedavg", "clients_per_round": len(sizes), "local_epochs": 5} | strategy,
        "stop": {"rounds": 1},
    }
    return ran(scenario, folder / "run")


def outcomes(run: RunFolder) -> list[str]:
    ends = of_kind(run, "task-end")
    return [event["outcome"] for event in sorted(ends, key=lambda event: event["device"])]


def test_exactly_at_the_budget_survives_and_a_nanosecond_late_does_not(tmp_path: Path) -> None:
    """Mean size 40: T = 1 is 200 sample-passes, 20 s; the device of 40 samples needs exactly that."""
    just: list[tuple[list[int], dict[str, Any], str]] = [
        ([30, 40, 50], {"deadline": {"kind": "relative", "times": 1.0}}, "done"),
        ([30, 40, 50], {"deadline": {"kind": "relative", "times": 1.0 - 5e-11}}, "late"),
        ([31, 42, 47], {"deadline": {"kind": "relative", "times": 1.05}}, "done"),
        ([30, 40, 50], {"deadline": {"kind": "fixed", "time": "20 s", "since": "download"}}, "done"),
        ([30, 40, 50], {"deadline": "20 s"}, "done"),
        ([30, 40, 50], {"deadline": "19.999999999 s"}, "late"),
    ]
    for number, (sizes, keys, outcome) in enumerate(just):
        assert outcomes(budget_run(sizes, tmp_path / str(number), **keys)) == ["done", outcome, "late"]


def test_the_mean_need_not_be_a_round_number(tmp_path: Path) -> None:
    """All of one size: everybody is exactly at T = 1, at whatever speed."""
    for speed in ("7 samples/s", "0.3 samples/s", "333 samples/s"):
        run = budget_run([13, 13, 13], tmp_path / speed[:3], {"speed": speed}, deadline={"kind": "relative", "times": 1.0})
        assert outcomes(run) == ["done"] * 3


def built(scenario: dict[str, Any]) -> Run:
    run: Run = Simulation(fedsim.Scenario(**scenario)).installed
    return run


def test_tentative_stragglers_are_a_share_at_a_factor_of_their_speed() -> None:
    scenario = {"learning": "off", "population": population(1000)}
    plain = built(scenario).population
    slowed = {}
    for share in (0.1, 0.2):
        scenario["population"] = population(1000, stragglers={"share": share, "factor": 0.5})
        run = built(scenario)
        slow = np.flatnonzero(run.population.speed == plain.speed / 2)
        assert len(slow) == share * 1000
        assert (np.delete(run.population.speed, slow) == np.delete(plain.speed, slow)).all()
        assert list(run.device_columns()["speed"]) == run.population.speed.tolist()
        slowed[share] = set(slow.tolist())
    assert slowed[0.1] < slowed[0.2]  # a larger share slows the same ones and more


def test_stragglers_do_not_move_the_unit_of_time_unless_asked(tmp_path: Path) -> None:
    """7.6: at lambda = .2, FedAvg(1) drops 55.3 % of the devices, but 45.7 % if the mean were taken over all of them."""
    people = population(4000, stragglers={"share": 0.2})
    dropped = {}
    for base in ("unslowed", "all"):
        run = everybody_once(people, tmp_path / base, deadline={"kind": "relative", "devices": base})
        dropped[base] = run.rounds[0]["slow"] / 4000
    assert dropped["unslowed"] == pytest.approx(0.553, abs=0.02)
    assert dropped["all"] == pytest.approx(0.457, abs=0.02)
    means = []
    for base in ("unslowed", "all"):
        strategy = {"kind": "fedavg", "deadline": {"kind": "relative", "devices": base}}
        means.append(built({"learning": "off", "population": people, "strategy": strategy}).server.setting.mean_epoch_s)
    assert means[1] / means[0] == pytest.approx(1.2, abs=0.01)
