"""How long devices compute where time goes by samples."""

import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import fedsim
from fedsim.flower.params import SamplesTime
from fedsim.output.progress import RunProgress
from fedsim.output.terminal import Console
from fedsim.simulation import Record
from fedsim.testing import assert_sound
from tests.flower.runs import execute, scenario
from tests.flower.test_odd_apps import odd


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.1}, 1.0),
        ({"local-epochs": 3}, 3.0),
        ({"algorithm.local_epochs": 2, "epochs": 9}, 2.0),
        ({"local-epochs": "many", "head.epochs": True, "epochs": 4}, 4.0),
    ],
)
def test_passes_are_what_a_key_says_in_whichever_table(config: dict[str, Any], expected: float) -> None:
    assert SamplesTime().passes_over(config) == expected
    assert SamplesTime(passes=5).passes_over(config) == 5.0


def test_replies_that_say_no_number_are_warned_of() -> None:
    warnings = execute(odd("polls", "says-no-number")).summary["warnings"]
    assert [warning.partition(":")[0] for warning in warnings] == [
        f"replies to {kind!r} messages give no num-examples" for kind in ("train", "evaluate")
    ]


@pytest.mark.parametrize("planned", [4, None])
def test_time_left_goes_by_the_app_s_rounds_and_is_not_told_without(planned: int | None, tmp_path: Path) -> None:
    named = "" if planned is None else f"[tool.flwr.app.config]\nserver.num_rounds = {planned}\n"
    components = '[tool.flwr.app.components]\nserverapp = "a:app"\nclientapp = "a:app"\n'
    (tmp_path / "pyproject.toml").write_text(components + named)
    (tmp_path / "a.py").touch()
    app, shown = fedsim.Scenario(**scenario(str(tmp_path))), io.StringIO()
    progress = RunProgress(app.strategy.horizon(app.stop), Console(file=shown))
    progress.take(Record(10.0, "round", {"round": 1, "accuracy": None}))
    assert (" left" in shown.getvalue()) == (planned is not None)


def test_a_client_s_sleep_counts_and_so_does_the_server_s_polling(tmp_path: Path) -> None:
    """Devices sleep 2.5, 3.5 and 4.5 s, and compute 1, 2 and 2.5 s; the server looks every 3 s."""
    execute(odd("polls", "sleeps"), tmp_path / "run")
    events = assert_sound(tmp_path / "run").events
    steps = [event for event in events if event["kind"] == "step-end" and event["time"] < 12]
    ends = {step: [event["time"] for event in steps if event["step"] == step] for step in ("sleep", "compute")}
    assert ends == {"sleep": [2.5, 3.5, 4.5], "compute": [3.5, 5.5, 7.0]}
    assert min(event["time"] for event in events if event["kind"] == "task-start" and event["round"] == 1) == 12.0
