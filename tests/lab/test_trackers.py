"""Exports to TensorBoard, MLflow and W&B, read back as each of them reads."""

import importlib.util
import json
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsim.common.errors import RunFolderError
from fedsim.lab.reading.study_folder import IndexedRun, IndexedVariant, StudyIndex, write_index
from fedsim.lab.trackers.exports import exports, write_tensorboard
from fedsim.records.reading import RunFolder
from tests.calls import call

PACKAGES = {
    "tensorboard": "tensorboard>=2.15",
    "mlflow": "mlflow-skinny>=2.10",
    "wandb": "wandb>=0.18",
}


def needs(name: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(
        missing, reason=f"{name} is not installed: pip install {PACKAGES[name]!r}"
    )


pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages, which are not ours
each_tracker = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in PACKAGES]
)


def written(*words: object) -> list[str]:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return [
        line.removeprefix("written ")
        for line in result.output.splitlines()
        if line.startswith("written ")
    ]


def study_of(run: Path, folder: Path, done: int = 2) -> Path:
    """The folder of a study of two variants, of which so many are done: copies of a run."""
    variants = []
    for place, name in enumerate(("a", "b")):
        there = f"runs/{name}/seed-1"
        if place < done:
            shutil.copytree(run, folder / there)
        runs = (IndexedRun(seed=1, folder=there),)
        variants.append(
            IndexedVariant(name=name, label=name, point={}, changes={}, reference=False, runs=runs)
        )
    folder.mkdir(exist_ok=True)
    write_index(
        folder,
        StudyIndex(
            format=1, name="two", baseline=None, targets=(), seeds=(1,), variants=tuple(variants)
        ),
    )
    return folder


def test_studies_stand_for_their_runs_that_are_done(tiny_run: Path, tmp_path: Path) -> None:
    study = study_of(tiny_run, tmp_path / "study", done=1)
    found = exports([tiny_run, study])
    assert [(one.name, one.study) for one in found] == [("run", ""), ("study/a/seed-1", "study")]
    assert len({one.key for one in found}) == 2
    assert [one.key for one in exports([study])] == [found[1].key]
    summary = RunFolder(tiny_run).summary
    assert found[0].figures["accuracy/best"] == summary["accuracy"]["best"]
    assert found[0].figures["bytes/up"] == summary["bytes"]["up"]
    with pytest.raises(RunFolderError, match="has no run that is done"):
        exports([study_of(tiny_run, tmp_path / "none", done=0)])
    with pytest.raises(RunFolderError, match="is not a run folder"):
        exports([tmp_path])


@pytest.mark.parametrize("name", PACKAGES)
def test_without_the_package_it_says_what_to_install(
    name: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, f"{name}.exceptions", f"{name}.tracking"):
        monkeypatch.setitem(sys.modules, module, None)  # as Python marks what cannot be imported
    result = call(name, tiny_run, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert f"pip install '{PACKAGES[name]}'" in result.output
    assert not (tmp_path / "out").exists()


@each_tracker
def test_what_cannot_be_written_is_said(name: str, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", *(["nosuch://store"] if name == "mlflow" else [])):
        result = call(name, tiny_run, "--out", out)
        assert result.exit_code == 2
        assert "cannot be written" in result.output
        assert str(out) in result.output


# TensorBoard.


@needs("tensorboard")
def test_tensorboard_reads_what_the_rounds_say(tiny_run: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written("tensorboard", tiny_run, "--out", tmp_path / "board")
    read = EventAccumulator(str(tmp_path / "board" / "run"))
    read.Reload()
    rounds = RunFolder(tiny_run).rounds
    tags = read.Tags()["scalars"]
    assert {
        "model/accuracy",
        "model/loss",
        "clients/selected",
        "clients/disconnected",
        "traffic/so far, bytes",
    } <= set(tags)
    assert "groups/purity" not in tags
    for tag, name in (
        ("model/accuracy", "accuracy"),
        ("clients/valid", "valid"),
        ("traffic/up, bytes", "bytes_up"),
    ):
        found = read.Scalars(tag)
        assert [(scalar.step, scalar.wall_time) for scalar in found] == [
            (row["round"], row["time"]) for row in rounds
        ]
        assert [scalar.value for scalar in found] == pytest.approx(
            [row[name] for row in rounds], rel=1e-6
        )
    total = RunFolder(tiny_run).summary["bytes"]
    assert read.Scalars("traffic/so far, bytes")[-1].value == pytest.approx(
        total["down"] + total["up"]
    )
    assert read.FirstEventTimestamp() == 0.0


@needs("tensorboard")
def test_runs_are_told_apart_and_written_again(tiny_run: Path, tmp_path: Path) -> None:
    runs = [Path(shutil.copytree(tiny_run, tmp_path / name / "seed-1")) for name in ("a", "b")]
    files = write_tensorboard(runs, tmp_path / "board")
    assert [path.parent.relative_to(tmp_path / "board").as_posix() for path in files] == [
        "a/seed-1",
        "b/seed-1",
    ]
    before = [path.read_bytes() for path in files]
    assert before[0] == before[1]
    assert [path.read_bytes() for path in write_tensorboard(runs, tmp_path / "board")] == before
    assert len([path for path in (tmp_path / "board").rglob("*") if path.is_file()]) == 2
    same = write_tensorboard([tiny_run, tiny_run], tmp_path / "twice")
    assert [path.parent.name for path in same] == ["1-run", "2-run"]


# MLflow.


def experiment(out: Path, name: str) -> tuple[Any, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(out.as_uri())
    return client, list(client.search_runs([client.get_experiment_by_name(name).experiment_id]))


@needs("mlflow")
def test_mlflow_reads_what_the_rounds_say(tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    assert (
        written("mlflow", tiny_run, "--out", out)
        == written("mlflow", tiny_run, "--out", out)
        == ["run"]
    )
    client, (run,) = experiment(out, "fedsim")  # one: the second export has taken the first's place
    rounds, summary = RunFolder(tiny_run).rounds, RunFolder(tiny_run).summary
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.info.end_time == round(summary["simulated_s"] * 1000)
    for tag, name in (
        ("model/accuracy", "accuracy"),
        ("clients/valid", "valid"),
        ("traffic/up bytes", "bytes_up"),
    ):
        history = sorted(
            client.get_metric_history(run.info.run_id, tag), key=lambda metric: metric.step
        )
        due = [(row["round"], round(row["time"] * 1000)) for row in rounds]
        assert [(metric.step, metric.timestamp) for metric in history] == due
        assert [metric.value for metric in history] == pytest.approx([row[name] for row in rounds])
    assert (run.data.params["strategy.kind"], run.data.params["population.devices"]) == (
        "fedavg",
        "20",
    )
    assert run.data.metrics["summary/accuracy/best"] == summary["accuracy"]["best"]
    assert run.data.tags["events_sha256"] == summary["events_sha256"]


@needs("mlflow")
def test_a_study_is_an_experiment(tiny_run: Path, tmp_path: Path) -> None:
    written("mlflow", study_of(tiny_run, tmp_path / "study"), "--out", tmp_path / "store")
    _, runs = experiment(tmp_path / "store", "study")
    assert sorted(run.info.run_name for run in runs) == ["study/a/seed-1", "study/b/seed-1"]


# W&B.


def records(path: Path) -> Iterator[bytes]:
    """What an offline file holds: after seven bytes a log as LevelDB's, in blocks of 32 KiB."""
    data, at, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


def read(folder: str) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The run, its history, and its summary."""
    from wandb.proto import wandb_internal_pb2

    def told(items: Any) -> dict[str, Any]:
        return {
            item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items
        }

    (path,) = Path(folder).glob("*.wandb")
    run, history, summary = None, [], dict[str, Any]()
    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        match record.WhichOneof("record_type"):
            case "run":
                run = record.run
            case "history":
                history.append(told(record.history.item))
            case "summary":
                summary |= told(record.summary.update)
    return run, history, summary


@needs("wandb")
def test_wandb_reads_what_the_rounds_say(tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written("wandb", tiny_run, "--out", out)
    (folder,) = written("wandb", tiny_run, "--out", out, "--project", "mine")
    # the first is gone
    assert [str(path) for path in (out / "wandb").glob("offline-run-*") if path.is_dir()] == [
        folder
    ]
    run, history, summary = read(folder)
    rounds = RunFolder(tiny_run).rounds
    assert (run.display_name, run.project, run.run_group) == ("run", "mine", "")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["strategy.kind"], config["population.devices"]) == ("fedavg", 20)
    tags = {
        "_step": "round",
        "model/accuracy": "accuracy",
        "traffic/up, bytes": "bytes_up",
        "simulated time, s": "time",
    }
    for tag, name in tags.items():
        assert [row[tag] for row in history] == pytest.approx([row[name] for row in rounds])
    assert summary["summary/accuracy/best"] == RunFolder(tiny_run).summary["accuracy"]["best"]


@needs("wandb")
def test_a_study_is_a_group(tiny_run: Path, tmp_path: Path) -> None:
    folders = written("wandb", study_of(tiny_run, tmp_path / "study"), "--out", tmp_path / "out")
    runs = [read(folder)[0] for folder in folders]
    assert [(run.display_name, run.run_group) for run in runs] == [
        (f"study/{name}/seed-1", "study") for name in "ab"
    ]
