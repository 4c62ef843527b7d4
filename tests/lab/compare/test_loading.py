"""Runs and studies in a notebook."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import fedsim
from fedsim.records.reading import RunFolder


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


@pytest.mark.long
def test_figures(runs: dict[str, Path], study: Path) -> None:
    run = fedsim.load_run(runs["flexcfl"])
    for kind in ("accuracy", "timeline", "membership", "fairness", "traffic"):
        assert isinstance(run.figure(kind), Figure)
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
