"""Figures of runs, against the same from the tables by other means."""

from pathlib import Path

import numpy as np
import pytest

import fedsim
from fedsim.lab.compare.measures import measure, measures, read_work
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world


@pytest.mark.parametrize("name", ["fedavg", "flexcfl"])
def test_compute_and_waste_by_another_way(runs: dict[str, Path], name: str) -> None:
    """Pandas adds up each task's training: all of it is waste where the task was not done, else what no epoch came of."""
    events = fedsim.load_run(runs[name]).events
    events = events[events["step"] == "train"].merge(
        events[events["kind"] == "task-end"][["task", "outcome"]], on="task", suffixes=("", "_of_task")
    )
    steps = events[events["kind"] == "step-start"].merge(events[events["kind"] == "step-end"], on="task", suffixes=("", "_end"))
    assert len(steps) == steps["task"].nunique()
    spent = steps["time_end"] - steps["time"]
    counted = [
        (facts["epoch_ends"][-1] - begin if facts["epochs"] else 0.0) if outcome == "done" else 0.0
        for facts, begin, outcome in zip(steps["data_end"], steps["time"], steps["outcome_of_task"], strict=True)
    ]
    work = read_work(RunFolder(runs[name]))
    assert work["compute"] == pytest.approx(spent.sum())
    assert work["wasted compute"] == pytest.approx(spent.sum() - sum(counted))
    assert 0 < sum(counted) < spent.sum()


def test_moves_are_those_from_group_to_group(runs: dict[str, Path]) -> None:
    events = fedsim.load_run(runs["flexcfl"]).events
    assigned = events[events["kind"] == "assign"]
    moves = sum(facts["why"] == "migration" for facts in assigned["data"])
    assert 0 < moves < len(assigned)
    assert read_work(RunFolder(runs["flexcfl"]))["migrations"] == moves
    assert read_work(RunFolder(runs["fedavg"]))["migrations"] is None


def test_what_a_run_has(runs: dict[str, Path]) -> None:
    run = fedsim.load_run(runs["flexcfl"])
    values = measure(RunFolder(run.path), [0.2, 1.0])
    assert set(values) == {one.name for one in measures([0.2, 1.0])}
    rounds, devices = run.rounds, run.devices
    assert values["final accuracy"] == rounds["accuracy"].iloc[-1]
    assert values["best accuracy"] == rounds["accuracy"].max()
    lowest = np.sort(devices["accuracy"].dropna())[: int(np.ceil(devices["accuracy"].count() / 10))]
    assert values["worst-decile accuracy"] == pytest.approx(lowest.mean())
    selected = devices["selected"].to_numpy(float)
    assert values["Jain's index of selections"] == pytest.approx(selected.sum() ** 2 / (len(selected) * (selected**2).sum()))
    assert values["traffic"] == pytest.approx(run.transfers["delivered"].sum())
    assert values["mean purity of groups"] == pytest.approx(rounds["purity"].mean())
    assert values["last purity of groups"] == rounds["purity"].iloc[-1]
    first = int(np.argmax(rounds["accuracy"] >= 0.2))
    assert values["rounds to target 0.2"] == first + 1
    assert values["time to target 0.2"] == rounds["time"][first]
    assert values["traffic to target 0.2"] == pytest.approx(
        float((rounds["bytes_down"] + rounds["bytes_up"])[: first + 1].sum())
    )
    assert values["time to target 1"] is values["rounds to target 1"] is values["traffic to target 1"] is None
    assert measure(RunFolder(run.path), ledger="paper")["traffic"] == run.summary["bytes"]["paper"] < values["traffic"]  # type: ignore[operator]


def test_what_a_run_does_not_have_is_nothing(runs: dict[str, Path]) -> None:
    off = measure(RunFolder(runs["off"]), [0.5])
    nothing = {name for name, value in off.items() if value is None}
    assert {"final accuracy", "best accuracy", "worst-decile accuracy", "migrations", "rounds to target 0.5"} <= nothing
    assert {"rounds", "simulated time", "traffic", "compute", "wasted compute"}.isdisjoint(nothing)
    pooled = measure(RunFolder(runs["pooled"]), [0.2])
    assert {name for name, value in pooled.items() if value is not None} == {
        "rounds", "final accuracy", "best accuracy", "rounds to target 0.2"
    }  # fmt: skip


def test_energy_and_carbon_to_a_target(tmp_path: Path) -> None:
    """With a constant intensity the grams are the joules', to the target and in all."""
    strategy = {"kind": "fedavg", "clients_per_round": 6, "local_epochs": 2}
    sections = quiet_world(strategy, rounds=4) | {"energy": {"preset": "laptop", "carbon": "360 g/kWh"}}
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    reached = max(row["accuracy"] for row in run.rounds[:2])
    values = measure(run, [reached, 1.0])
    last = values[f"rounds to target {reached:g}"]
    assert isinstance(last, int)
    joules = sum(row["joules"] for row in run.rounds[:last])
    assert values[f"energy to target {reached:g}"] == pytest.approx(joules)
    assert values[f"carbon to target {reached:g}"] == pytest.approx(joules * 1e-4)
    assert values["carbon"] == pytest.approx(values["energy"] * 1e-4)
    assert values["energy to target 1"] is None


def test_batteries(tmp_path: Path) -> None:
    """Of a run: the share that each drew on the mean, and the devices that ran flat."""
    energy = {"compute": "5 W", "battery": {"capacity": "100 J", "initial": 0.6}}
    tables = {"learning": "off", "population": {"devices": 2, "samples": [20, 200], "speed": "10 samples/s"}, "energy": energy}
    tables |= {"strategy": {"kind": "fedavg", "clients_per_round": 2}, "stop": {"rounds": 1}}
    fedsim.run(fedsim.Scenario(**tables), tmp_path / "run", executor="inline")
    values = measure(RunFolder(tmp_path / "run"))
    assert (values["battery"], values["flat devices"]) == (pytest.approx(35.0), 1)  # 10 J of 2 s, and all of 60 J
