"""Progress of active runs in a file of the study's folder, and output of far runs."""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fedsim.analysis.watch import Growing
from fedsim.lab.reading import study_progress
from fedsim.lab.reading.study_progress import ProgressFile, progress_lines
from fedsim.lab.study.far import _MOST_LINES, _Output
from fedsim.lab.study.pool import Ended, RunOrder, StudyProgress
from fedsim.lab.terminal import Console


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_progress, "_WRITE_INTERVAL_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_page_shows_where_runs_are_and_which_have_failed(tmp_path: Path) -> None:
    orders = [RunOrder(f"fedavg, seed {seed}", "", tmp_path / str(seed)) for seed in (1, 2, 3)]
    progress = StudyProgress(Console(file=io.StringIO()))
    progress.keep_in(tmp_path)
    progress.begin(orders, 0)
    page = Growing([tmp_path])
    page.look()
    assert "runs" not in page.state
    progress.take(0, {"event": "note", "text": "begins on the node far, 10.0.0.2\x1b[31m"})
    progress.take(0, {"event": "progress", "share": 0.25, "rounds": 1})
    progress.take(1, {"event": "progress", "share": 0.5, "rounds": 2})
    page.look()
    first, second = page.state["runs"]
    assert first.startswith("fedavg, seed 1: 25%, begins on the node far, 10.0.0.2")
    assert "\x1b" not in first
    assert second == "fedavg, seed 2: 50%"
    progress.ended(0, Ended(orders[0], "done", accuracy=0.5))
    progress.ended(1, Ended(orders[1], "failed", "ValueError: on purpose (on the node far)"))
    progress.close()
    page.look()
    failed = ["fedavg, seed 2: failed: ValueError: on purpose (on the node far)"]
    assert page.state["runs"] == failed
    ProgressFile(tmp_path).close()  # the next call of the study
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("at_once")
def test_a_process_that_was_killed_is_forgotten_and_damage_is_no_error(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path)
    file.take_share("fedavg, seed 1", 0.5)
    (path,) = tmp_path.iterdir()
    assert progress_lines(tmp_path) == ["fedavg, seed 1: 50%"]
    old = time.time() - 1000.0
    os.utime(path, (old, old))
    assert progress_lines(tmp_path) == []
    for text in ("{", "[]", json.dumps({"a": {"share": 1, "beside": 2}})):
        path.write_text(text)
        assert progress_lines(tmp_path) == []


def test_the_first_lines_of_a_far_runs_output_are_told_and_all_are_logged() -> None:
    told: list[dict[str, Any]] = []
    log = io.StringIO()
    output = _Output(log, lambda **news: told.append(news))
    print("one", "line", file=output)
    output.write("a half ")
    assert [news["text"] for news in told] == ["one line"]
    output.write("and the rest")
    output.end()
    assert told[-1] == {"event": "note", "text": "a half and the rest"}
    for number in range(_MOST_LINES + 10):
        print(number, file=output)
    assert len(told) == _MOST_LINES + 1
    assert "Ray's log of the node" in told[-1]["text"]
    assert log.getvalue().endswith(f"{_MOST_LINES + 9}\n")
