"""Studies of figures that are no accuracy: targets, goals, searches and pictures go by them."""

from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.accuracy import draw_accuracy, draw_costs
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.table import Comparison
from fedsim.lab.study.plan import read_study, searched
from fedsim.lab.study.search import METRICS
from fedsim.records.reading import RunFolder
from tests.lab.study.conftest import finish, write

LINEAR: dict[str, Any] = {
    "data": {"source": "linear"},
    "objective": {"kind": "regression", "metrics": ["mse", "rmse"]},
    "training": {"lr": 0.001},
    "population": {"devices": 4, "speed": "50 samples/s"},
    "strategy": {"kind": "fedavg", "clients_per_round": 2},
    "stop": {"rounds": 3},
}
STUDY: dict[str, Any] = {"base": LINEAR, "seeds": [1, 2], "variants": {"slow": {}, "fast": {"training": {"lr": 0.01}}}}


def test_a_study_of_a_regression_is_ranked_and_drawn(tmp_path: Path) -> None:
    tables = STUDY | {"target": ["mse=3.5", "mse=0.01", "mse=2.5"], "goal": "mse"}
    out = finish(write(tmp_path / "study.toml", tables), tmp_path / "out")
    (answer,) = Comparison(read_lines([out])).answers()
    assert f"{answer.target:g}" == "mse 2.5"
    assert "fast ends with the lowest mse" in answer.words[0]
    assert "time to target mse 2.5" in [one.measure.name for one in answer.rankings]
    runs = [RunFolder(path.parent) for path in sorted(out.glob("runs/**/summary.json"))]
    assert draw_accuracy(runs[:1]).axes[0].get_ylabel().startswith("test mse")
    assert draw_costs(runs).axes[0].get_ylabel() == "test mse"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "perplexty=8"}, "'perplexty=8' is of no metric; allowed are perplexity, mse"),
        ({"target": "accuracy=8"}, "allowed is an accuracy from 0 to 1"),
        ({"goal": "msee"}, "msee"),
        (
            {"search": {"kind": "random", "metric": "f1", "space": {"training.lr": [0.1, 0.2]}}},
            r"search.metric is 'final_f1', which needs objective.metrics = \['f1'\]",
        ),
    ],
)
def test_a_metric_that_is_not_there_is_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(fedsim.ScenarioError, match=says):
        searched(read_study(write(tmp_path / "study.toml", STUDY | change)).spec)


def test_a_search_has_the_target_of_a_metric() -> None:
    assert METRICS["final_mse"].of([0.3]) == "final mse"
    assert METRICS["time_to_accuracy"].of(["mse=2", "mse=1"]) == "time to target mse 1"
    assert METRICS["time_to_accuracy"].of([0.5, 0.7, "mse=1"]) == "time to target 0.7"
