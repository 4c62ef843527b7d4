"""How long devices compute where time goes by samples: what is taken, and what is said of it."""

import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import fedsim
from fedsim.flower.params import SamplesTime
from fedsim.output.terminal import Console, RunProgress
from fedsim.simulation import Record
from fedsim.testing import assert_sound
from tests.calls import done
from tests.flower.runs import execute, scenario
from tests.flower.test_odd_apps import odd


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.1}, (1.0, "no key local-epochs")),
        ({"local-epochs": 3}, (3.0, "local-epochs")),
        ({"algorithm.local_epochs": 2, "epochs": 9}, (2.0, "algorithm.local_epochs")),
        ({"local-epochs": "many", "head.epochs": True, "epochs": 4}, (4.0, "epochs")),
    ],
)
def test_passes_are_what_a_key_says_in_whichever_table(config: dict[str, Any], expected: tuple[float, str]) -> None:
    assert SamplesTime().passes_over(config) == expected
    assert SamplesTime(passes=5).passes_over(config) == (5.0, "strategy.time.passes")


def played(sections: dict[str, Any], folder: Path) -> str:
    (folder / "app.toml").write_text(fedsim.Scenario(**sections).to_toml())
    return done("run", folder / "app.toml", "--out", folder / "run", "--workers", "1", "--allow-code")


def test_what_was_taken_is_printed_and_an_app_that_replies_batches_is_warned_of(tmp_path: Path) -> None:
    """Two passes over twenty batches of 32 are 1,280 samples; the key says two passes, the reply 20."""
    sections = odd("polls", "counts-batches")
    sections["strategy"]["run_config"]["algorithm.local-epochs"] = 2
    output = played(sections, tmp_path).splitlines()
    assert [line for line in output if line.startswith("warning: ")] == [
        "warning: a 'train' message counts as 40 samples, but the ClientApp's model was given 1280: its time is 32 times too "
        "short (is num-examples a count of samples?); strategy.time.passes = 64 would fit"
    ]
    assert "time by samples: a 'train' message took num-examples (20) x 2 (algorithm.local-epochs)" in output
    assert "time by samples: a 'evaluate' message took num-examples (20) / 3 (no training)" in output
    assert output[0].endswith("FLWR_LOG_LEVEL=INFO shows the rest")


def test_passes_of_the_scenario_or_of_the_app_that_fit_give_no_warning() -> None:
    stated = odd("polls", "counts-batches", time={"kind": "samples", "passes": 32.0})
    for sections in (stated, scenario("torch_app", run_config={"local-epochs": 2})):
        summary = execute(sections).summary
        assert "warnings" not in summary
        assert summary["notes"]


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
