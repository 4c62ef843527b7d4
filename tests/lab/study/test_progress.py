"""What is shown of a study under way."""

import io
from pathlib import Path

import pytest

from fedsim.lab.study.progress import Ended, RunOrder, StudyProgress
from fedsim.output.terminal import Console


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_it_is(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("fedsim.lab.study.progress.time.perf_counter", lambda: clock[0])
    shown = io.StringIO()
    progress = StudyProgress(Console(file=shown, force_terminal=terminal, width=200))
    orders = [
        RunOrder("one [red]x[/red]\x1b[31m, seed 1", "", Path("one"), "new"),
        RunOrder("two", "", Path("two"), "resume"),
        RunOrder("three", "", Path("three"), "new"),
    ]
    progress.begin(orders, 4)
    progress.take(
        1, {"event": "progress", "share": 0.5}
    )  # resumed in the middle: what was done before tells nothing of how long the rest takes
    clock[0] += 10
    progress.take(1, {"event": "progress", "share": 0.75})
    progress.take(0, {"event": "note", "text": "begins anew"})
    progress.ended(0, Ended(orders[0], "done", accuracy=0.5, wall_s=10.0))
    progress.ended(2, Ended(orders[2], "failed", "on purpose"))
    progress.ended(1, Ended(orders[1], "interrupted"))
    progress.close()
    text = shown.getvalue()
    assert "3 runs to do, 4 are there" in text
    assert "begins anew" in text
    assert "1/3, about 10 s left: one [red]x[/red]" in text  # 1.25 runs took 10 s, and 1.25 are left
    assert "2/3, about 1.11 s left: three: failed: on purpose" in text
    assert "two: interrupted, to be gone on with" in text
    assert "\x1b[31m" not in text
    assert ("\x1b" in text) is terminal
