"""The export, read back as W&B reads it: record by record off its offline files."""

import importlib.util
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedsim.cli import main
from fedsim.records.reading import RunFolder
from tests.records.test_exports import study_of

needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="W&B is not installed: pip install 'wandb>=0.18'"
)


def export(*words: object) -> list[Path]:
    result = CliRunner().invoke(main, ["wandb", *map(str, words)])
    assert result.exit_code == 0, result.output
    return [Path(line.removeprefix("written ")) for line in result.output.splitlines() if line.startswith("written ")]


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


def read(folder: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The run, its history, and its summary."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    run, history, summary = None, [], dict[str, Any]()
    for data in records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        which = record.WhichOneof("record_type")
        if which == "run":
            run = record.run
        elif which == "history":
            items = record.history.item
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
        elif which == "summary":
            summary |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.summary.update}
    return run, history, summary


@needs_wandb
@pytest.mark.filterwarnings("ignore")  # of W&B, which is not ours
def test_wandb_reads_what_the_rounds_say(tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(tiny_run, "--out", out)
    (folder,) = export(tiny_run, "--out", out, "--project", "mine")
    assert [path for path in (out / "wandb").glob("offline-run-*") if path.is_dir()] == [folder]  # the first is gone
    run, history, summary = read(folder)
    rounds = RunFolder(tiny_run).rounds
    assert (run.display_name, run.project, run.run_group) == ("run", "mine", "")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (config["strategy.kind"], config["population.devices"]) == ("fedavg", 20)
    assert [row["_step"] for row in history] == [row["round"] for row in rounds]
    tags = {"model/accuracy": "accuracy", "traffic/up, bytes": "bytes_up", "simulated time, s": "time"}
    for tag, name in tags.items():
        assert [row[tag] for row in history] == pytest.approx([row[name] for row in rounds])
    assert summary["summary/accuracy/best"] == RunFolder(tiny_run).summary["accuracy"]["best"]


@needs_wandb
@pytest.mark.filterwarnings("ignore")
def test_a_study_is_a_group(tiny_run: Path, tmp_path: Path) -> None:
    folders = export(study_of(tiny_run, tmp_path / "study"), "--out", tmp_path / "out")
    runs = [read(folder)[0] for folder in folders]
    assert [(run.display_name, run.run_group) for run in runs] == [
        ("study/a/seed-1", "study"),
        ("study/b/seed-1", "study"),
    ]


@needs_wandb
def test_what_cannot_be_written_is_said(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(main, ["wandb", str(tiny_run), "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "file' cannot be written" in result.output


def test_without_the_package_it_says_what_to_install(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = CliRunner().invoke(main, ["wandb", str(tiny_run), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "pip install 'wandb>=0.18'" in result.output
    assert not (tmp_path / "out").exists()
