"""The best model, and the end of a run without progress, against what the tests say."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.common.stop import StopSpec
from fedsim.federation.stop_rules import StopRules
from fedsim.lab.audit import audit
from fedsim.testing import assert_same_run, eventful_world, go_on, run, run_until
from tests.lab.test_audit import reseal

# measures by round, patience, least difference -> round of the best, round of the end
CASES: list[tuple[list[float | None], int, float, int | None, int | None]] = [
    ([0.1, 0.2, 0.2, 0.2], 2, 0.0, 1, 3),
    ([0.1, 0.2, 0.15, 0.3, 0.1, 0.3], 2, 0.0, 3, 5),
    ([0.1, None, None, 0.1, None], 2, 0.0, 0, 3),  # only a test ends a run
    ([0.1, 0.15, 0.19, 0.1], 2, 0.1, 2, 2),  # the best need not be progress
    ([0.1, 0.3, 0.2, 0.4], 3, 0.1, 3, None),
    ([None, math.nan, math.nan, math.nan], 2, 0.0, None, 3),
    ([math.nan, 0.1, 0.1], 2, 0.0, 1, None),
    ([0.1] * 4, 5, 0.0, 0, None),
]


@pytest.mark.parametrize(("values", "patience", "least", "best", "end"), CASES)
@pytest.mark.parametrize("monitor", ["accuracy", "loss"])
def test_progress_of_known_tests(
    monitor: str,
    values: list[float | None],
    patience: int,
    least: float,
    best: int | None,
    end: int | None,
) -> None:
    """The loss is the accuracy upside down."""
    sign = 1.0 if monitor == "accuracy" else -1.0
    stop = StopSpec(rounds=100, patience=patience, monitor=monitor, min_delta=least)
    ending = StopRules(stop)
    ended = None
    for number, value in enumerate(values):
        figures = {monitor: None if value is None else sign * value}
        ending.note(number, figures, {})
        if ending.reason(number, figures) is not None and ended is None:
            ended = number
    assert ended == end
    assert ending.progress.best_round == best


def test_the_last_round_and_goals_come_first() -> None:
    ending = StopRules(StopSpec(rounds=3, accuracy=0.9, patience=1))
    ending.note(0, {"accuracy": 0.5}, {})
    assert ending.reason(0, {"accuracy": 0.5}) is None
    assert ending.reason(2, {"accuracy": 0.5}) == "3 rounds"
    assert ending.reason(2, {"accuracy": 0.95}) == "accuracy 0.9500 reached"
    assert ending.reason(1, {"accuracy": 0.5}) == "no progress of accuracy in 1 rounds"


def world(strategy: dict[str, Any], **stop: Any) -> dict[str, Any]:
    sections = eventful_world(strategy, rounds=12)
    training = {"lr": 1.0, "batch_size": 10}  # so high that accuracies rise and fall
    stop = {"rounds": 12} | stop
    return sections | {"evaluation": {"keep_best": True}, "training": training, "stop": stop}


@pytest.mark.parametrize("kind", ["fedavg", "fedbuff", "ditto"])
def test_the_best_models_are_those_of_a_run_that_ends_there(kind: str, tmp_path: Path) -> None:
    """A run whose last planned round is the best one leaves the same models as its last."""
    sections = world({"kind": kind})
    best = run(sections, tmp_path / "whole")["best"]
    assert best["round"] < 11  # or there is nothing to see
    shorter = run(sections | {"stop": {"rounds": best["round"] + 1}}, tmp_path / "shorter")
    assert shorter["accuracy"]["final"] == best["value"]
    kept = fedsim.load_run(tmp_path / "whole").models(best=True)
    last = fedsim.load_run(tmp_path / "shorter").models()
    assert kept.keys() == last.keys()
    for name, tensors in kept.items():
        for key, values in tensors.items():
            np.testing.assert_array_equal(values, last[name][key])
    for place in ("whole", "shorter"):
        assert not any(audit(tmp_path / place).values())


def test_a_killed_run_ends_by_the_same_test(tmp_path: Path) -> None:
    sections = world({"kind": "fedavg"}, patience=2, min_delta=0.01)
    whole = run(sections, tmp_path / "whole")
    assert whole["stopped"].startswith("no progress of accuracy in ")
    assert run_until(sections, tmp_path / "cut", whole["events"] // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert not any(audit(tmp_path / "cut").values())
    assert fedsim.load_run(tmp_path / "cut").summary["best"] == whole["best"]


def test_the_audit_finds_another_best_round(tmp_path: Path) -> None:
    sections = world({"kind": "fedavg"}, patience=2)
    summary = run(sections, tmp_path / "run")
    title = "the best round and its models are those of the tests"
    for change in ({"round": 0}, {"value": 0.99}, {"monitor": "loss"}):
        state_best(tmp_path / "run", summary["best"] | change)
        assert audit(tmp_path / "run")[title]
    state_best(tmp_path / "run", summary["best"])
    assert not audit(tmp_path / "run")[title]
    (tmp_path / "run" / "best" / "global.safetensors").unlink()
    reseal(tmp_path / "run")
    assert audit(tmp_path / "run")[title]


def state_best(folder: Path, best: dict[str, Any]) -> None:
    """Forge the summary's entry ``best``, and seal the folder again."""
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"best": best}))
    reseal(folder)


REFUSED = [
    ({"stop": {"rounds": 3, "patience": 2}, "learning": "off"}, "no model is tested"),
    ({"evaluation": {"keep_best": True}, "learning": "off"}, "no model is tested"),
    ({"stop": {"rounds": 3, "patience": 2, "monitor": "acuracy"}}, "did you mean 'accuracy'"),
    ({"stop": {"rounds": 3, "monitor": "loss"}}, "nothing compares them"),
    ({"stop": {"rounds": 3, "patience": 0}}, "must be 1 or more"),
    ({"stop": {"patience": 3}}, "a run needs an end"),
]


@pytest.mark.parametrize(("sections", "reason"), REFUSED)
def test_what_is_refused(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        fedsim.Scenario(population={"devices": 12}, **sections)
