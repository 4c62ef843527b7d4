"""Figures of runs, against the same from the tables by other means; and runs and studies in a notebook."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

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


def test_a_run_is_frames(runs: dict[str, Path]) -> None:
    run = fedsim.load_run(runs["flexcfl"])
    folder = RunFolder(runs["flexcfl"])
    for name in ("rounds", "devices", "events", "transfers"):
        frame, rows = getattr(run, name), getattr(folder, name)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) == len(rows)
        assert list(frame.columns) == list(rows[0])
        assert getattr(run, name) is frame  # read once
    assert run.availability.to_dict("records") == folder.rows("availability.parquet")
    assert run.events["data"].tolist() == [row["data"] for row in folder.events]
    assert run.events["device"].dtype == "Int32"  # whole, though some records have none
    assert run.events["device"].isna().any()
    assert run.transfers["payloads"][0] == folder.transfers[0]["payloads"]
    assert run.summary == folder.summary
    assert run.scenario.strategy.kind == "flexcfl"
    assert isinstance(next(iter(run.models()["group"].values())), np.ndarray)
    assert fedsim.run(run.scenario, executor="inline").summary["events_sha256"] == run.summary["events_sha256"]


def test_figures(runs: dict[str, Path], study: Path) -> None:
    run = fedsim.load_run(runs["flexcfl"])
    assert isinstance(run.figure("timeline", devices=3), Figure)
    with pytest.raises(fedsim.FedsimError, match=r"no figure 'timelin'.*did you mean 'timeline'"):
        run.figure("timelin")
    assert isinstance(fedsim.load_study(study).figure("costs"), Figure)
    with pytest.raises(fedsim.FedsimError, match="allowed are costs, accuracy, fairness"):
        fedsim.load_study(study).figure("timeline")


def test_a_notebook_shows_escaped_text(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["off"], tmp_path / "<i>run")
    path = tmp_path / "<i>run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"name": "<script>alert(1)</script>", "strategy": "x" * 10_000, "status": "\x1b[31m"}))
    text = fedsim.load_run(tmp_path / "<i>run")._repr_html_()
    assert "<script>" not in text
    assert "<i>" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert len(text) < 5000
    assert "fedavg" in repr(fedsim.load_run(runs["off"]))


def test_a_study_is_frames(study: Path) -> None:
    loaded = fedsim.load_study(study)
    assert loaded.variants[1] == "flexcfl, share=0.0"
    assert len(loaded.runs) == 18
    assert loaded.table["runs"].tolist() == [3] * 6
    assert loaded.table["final accuracy (0-1)"].dtype == float
    assert loaded.table["time to target 1 (s)"].isna().all()
    assert loaded.paired["low"].dtype == float
    run = loaded.run("flexcfl, share=0.5", 2)
    assert run.summary["seed"] == run.scenario.seed == 2
    assert run.scenario.population.stragglers is not None
    assert "18 of 18" in loaded._repr_html_()
    assert "&lt;b&gt;" in loaded._repr_html_()
    assert "18 runs" in repr(loaded)


def test_what_is_not_there(runs: dict[str, Path], study: Path, tmp_path: Path) -> None:
    with pytest.raises(fedsim.RunFolderError, match="is not a run folder"):
        fedsim.load_run(tmp_path)
    with pytest.raises(fedsim.RunFolderError, match="is not the folder of a study"):
        fedsim.load_study(runs["off"])
    with pytest.raises(fedsim.RunFolderError, match=r"no variant 'flexcf, share=0.0'.*did you mean"):
        fedsim.load_study(study).run("flexcf, share=0.0")
    with pytest.raises(fedsim.RunFolderError, match=r"no seed 9; allowed are \[1, 2, 3\]"):
        fedsim.load_study(study).run("flexcfl, share=0.0", 9)
    shutil.copytree(study, tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "runs" / "flexcfl,share=0.0" / "seed-2")
    part = fedsim.load_study(tmp_path / "part")
    assert len(part.runs) == 17
    assert part.table["runs"].tolist() == [3, 2, 3, 3, 3, 3]
    with pytest.raises(fedsim.RunFolderError, match="seed-2' does not exist"):
        part.run("flexcfl, share=0.0", 2)
