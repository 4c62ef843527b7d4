"""What a run takes here, told from its beginning: counts and sizes, which do not depend on this machine."""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.executors.inline import Inline
from fedsim.lab.forecast import Forecast, forecast, forecast_lines
from fedsim.lab.forecast.trial import Beginning
from tests.test_runs import STRATEGIES


def told(scenario: fedsim.Scenario, rounds: int | None = None) -> tuple[Forecast, Beginning]:
    """The forecast from a trial of so many rounds, or of the whole run, however slow this machine is."""
    trial = Beginning.built(scenario, Inline())
    if rounds is not None:
        simulation = trial.run.simulation
        simulation.listen(lambda record: simulation.interrupt() if trial.rounds >= rounds else None)
    return forecast(trial, 1e9), trial


def test_a_whole_trial_counts_what_the_run_does(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**small)
    found, trial = told(scenario)
    result = fedsim.run(scenario, tmp_path / "run")
    assert trial.share == 1
    assert found.events == result.summary["events"]
    assert found.tests == len(result.rows)
    assert trial.simulated_s == result.summary["simulated_s"]
    written = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.parquet"))
    models = sum(path.stat().st_size for path in (tmp_path / "run" / "models").iterdir())
    assert 0.5 < found.disk_bytes / (written + models) < 2


def test_the_steps_are_those_of_the_updates_that_came(small: dict[str, Any]) -> None:
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] = {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 3}
    small["stop"] = {"rounds": 5}
    scenario = fedsim.Scenario(**small)
    found, trial = told(scenario)
    size = scenario.training.batch_size
    asked = [each.device for each in trial.tally.trainings]
    assert len(asked) == 20
    assert found.trained_steps == sum(3 * -(-int(trial.run.samples[device]) // size) for device in asked)


def test_a_part_tells_the_whole(small: dict[str, Any], tmp_path: Path) -> None:
    scenario = fedsim.Scenario(**small | {"stop": {"rounds": 200}, "learning": "off"})
    part, trial = told(scenario, rounds=50)
    whole, _ = told(scenario)
    assert 0.2 < trial.share < 0.3
    assert part.events == pytest.approx(whole.events, rel=0.2)
    assert part.disk_bytes == pytest.approx(whole.disk_bytes, rel=0.5)


def test_tests_are_counted_that_come_after_the_trial(small: dict[str, Any]) -> None:
    scenario = fedsim.Scenario(**small | {"stop": {"rounds": 200}, "learning": "off", "evaluation": {"every": 100}})
    found, trial = told(scenario, rounds=10)
    assert (trial.tally.tests, found.tests) == (0, 2)


KINDS = ("fedavg", "fedasync", "cata-fed", "lcfl", "fedat", "gossip")  # a family of strategies each


@pytest.mark.parametrize("strategy", [one for one in STRATEGIES if one["kind"] in KINDS], ids=lambda one: str(one["kind"]))
def test_a_strategy_of_each_family_can_be_told(small: dict[str, Any], strategy: dict[str, Any]) -> None:
    lines = forecast_lines(fedsim.Scenario(**small | {"strategy": strategy}), Inline(), 0.05)
    assert any(line.startswith(("here a run takes", "what a run takes here cannot be told")) for line in lines)


def test_without_learning_nothing_is_trained(small: dict[str, Any]) -> None:
    lines = forecast_lines(fedsim.Scenario(**small | {"learning": "off"}), Inline(), 0.2)
    assert "SGD" not in lines[-2]
    assert lines[-2].startswith("here a run takes")


def test_a_run_without_a_single_round_is_told(small: dict[str, Any]) -> None:
    hopeless = {"kind": "flexcfl", "groups": 2, "clients_per_round": 4, "deadline": "0.2 s"}
    scenario = fedsim.Scenario(**small | {"strategy": hopeless})
    found, trial = told(scenario)
    assert found.futile == trial.stopped == fedsim.run(scenario).summary["stopped"]
    last = forecast_lines(scenario, Inline(), 60.0)[-1]
    assert last.startswith(f"it makes not one round ({found.futile})")
    assert told(fedsim.Scenario(**small))[0].futile is None


def test_no_patience_no_trial(small: dict[str, Any]) -> None:
    assert not any("here" in line for line in forecast_lines(fedsim.Scenario(**small), Inline(), 0.0))
