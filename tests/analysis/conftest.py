"""Runs to draw: with losses and late tasks, without learning, and cut off in the middle."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.records.reading import RunFolder


@pytest.fixture
def small(small: dict[str, Any]) -> dict[str, Any]:
    """With a deadline that some devices miss."""
    small["strategy"]["deadline"] = "14 s"
    return small


@pytest.fixture
def run(tiny_run: Path) -> RunFolder:
    folder = RunFolder(tiny_run)
    outcomes = {event["outcome"] for event in folder.events if event["kind"] == "task-end"}
    assert {"done", "late", "lost"} <= outcomes  # else the tests here would show little
    return folder


@pytest.fixture
def unlearned(small: dict[str, Any], tmp_path: Path) -> RunFolder:
    folder = tmp_path / "unlearned"
    fedsim.run(fedsim.Scenario(**small | {"learning": "off"}), folder, executor="inline")
    return RunFolder(folder)


@pytest.fixture
def cut_off(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A run whose events end in the middle of steps, as a crash would leave them."""
    folder = tmp_path / "cut-off"
    shutil.copytree(run.path, folder)
    events = pq.read_table(folder / "events.parquet")
    pq.write_table(events.slice(0, events.num_rows // 2), folder / "events.parquet")
    return RunFolder(folder)


@pytest.fixture
def renamed(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A run under a folder name that tries its best to break a picture."""
    folder = tmp_path / "_$x_{$ \\frac{ & <b> \u202e円\n🙂 and a tail that is far longer than any legend has room for"
    shutil.copytree(run.path, folder)
    return RunFolder(folder)
