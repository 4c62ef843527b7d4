"""What is shown of a run under way."""

import io

import pytest
from rich.console import Console

from fedsim.language.stop import StopSpec
from fedsim.output.progress import RunProgress
from fedsim.simulation import Record


def test_on_thirty_columns_the_round_can_be_read() -> None:
    shown = io.StringIO()
    progress = RunProgress(StopSpec(rounds=100), Console(file=shown, force_terminal=True, width=30))
    progress.take(Record(760.0, "round", {"round": 41, "accuracy": 0.9465}))
    progress.close()
    assert "42% round 42, 12 min 40 s" in shown.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_it_says_what_is_saved(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("fedsim.output.progress.time.perf_counter", lambda: clock[0])
    shown = io.StringIO()
    progress = RunProgress(StopSpec(rounds=100), Console(file=shown, force_terminal=terminal, width=200))
    for rounds in (5, 10, 15):
        progress.saved(rounds, 2.5 * rounds)
        clock[0] += 0.6
        progress.take(Record(2.5 * rounds + 1, "round", {"round": rounds, "accuracy": None}))
    progress.close()
    text = shown.getvalue()
    said = ["saved at round 15 (37.5 s)"] if terminal else ["saved at round 5 (12.5 s)", "saved at round 15 (37.5 s)"]
    assert all(line in text for line in said), text
    if not terminal:
        assert [line for line in text.splitlines() if line.startswith("saved")] == said
