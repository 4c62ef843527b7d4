"""The export, read back as MLflow reads it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.records.reading import RunFolder
from tests.records.test_exports import study_of

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="MLflow is not installed: pip install 'mlflow-skinny>=2.10'"
)


def export(*words: object) -> str:
    result = CliRunner().invoke(main, ["mlflow", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def experiment(out: Path, name: str) -> tuple[Any, list[Any]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(out.as_uri())
    return client, list(client.search_runs([client.get_experiment_by_name(name).experiment_id]))


@needs_mlflow
@pytest.mark.filterwarnings("ignore")  # of MLflow, which is not ours
def test_mlflow_reads_what_the_rounds_say(tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    assert export(tiny_run, "--out", out) == export(tiny_run, "--out", out) == "written run\n"
    client, (run,) = experiment(out, "fedsim")  # one: the second export has taken the first's place
    rounds, summary = RunFolder(tiny_run).rounds, RunFolder(tiny_run).summary
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.info.end_time == round(summary["simulated_s"] * 1000)
    for tag, name in (("model/accuracy", "accuracy"), ("clients/valid", "valid"), ("traffic/up bytes", "bytes_up")):
        history = sorted(client.get_metric_history(run.info.run_id, tag), key=lambda metric: metric.step)
        assert [(metric.step, metric.timestamp) for metric in history] == [
            (row["round"], round(row["time"] * 1000)) for row in rounds
        ]
        assert [metric.value for metric in history] == pytest.approx([row[name] for row in rounds])
    assert run.data.params["strategy.kind"] == "fedavg"
    assert run.data.params["population.devices"] == "20"
    assert run.data.metrics["summary/accuracy/best"] == summary["accuracy"]["best"]
    assert run.data.tags["events_sha256"] == summary["events_sha256"]


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_a_study_is_an_experiment(tiny_run: Path, tmp_path: Path) -> None:
    export(study_of(tiny_run, tmp_path / "study"), "--out", tmp_path / "store")
    _, runs = experiment(tmp_path / "store", "study")
    assert sorted(run.info.run_name for run in runs) == ["study/a/seed-1", "study/b/seed-1"]


@needs_mlflow
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_written_is_said(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", "nosuch://store"):
        result = CliRunner().invoke(main, ["mlflow", str(tiny_run), "--out", str(out)])
        assert result.exit_code == 2
        assert f"--out {str(out)!r} cannot be written" in result.output


def test_without_the_package_it_says_what_to_install(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlflow", "mlflow.exceptions", "mlflow.tracking"):
        monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(main, ["mlflow", str(tiny_run), "--out", str(tmp_path / "store")])
    assert result.exit_code == 2
    assert "pip install 'mlflow-skinny>=2.10'" in result.output
    assert not (tmp_path / "store").exists()
