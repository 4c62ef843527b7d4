"""What a study says of its runs, the reference lines that it adds, and figures that are no accuracy."""

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.analysis.accuracy import draw_accuracy, draw_costs
from fedsim.data.spec import DataSpec
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import read_index
from fedsim.lab.study.folder import index_of, write_study
from fedsim.lab.study.plan import Study, Variant, read_study, searched
from fedsim.lab.study.search import METRICS
from fedsim.lab.study.spec import StudySpec
from fedsim.records.reading import RunFolder
from fedsim.streams import Streams
from tests.lab.conftest import finish, write


def test_the_index_says_what_the_file_says(tables: dict[str, Any], tmp_path: Path) -> None:
    tables |= {"grid": {"population.jitter": [0.0, 0.2]}, "references": ["local"], "target": 0.3}
    study = read_study(write(tmp_path / "s.toml", tables))
    index = index_of(study)
    assert (index.name, index.baseline, index.targets, index.seeds) == ("small", "fedavg", (0.3,), (1, 2))
    assert [(one.label, one.reference) for one in index.variants] == [
        (f"{name}, jitter={jitter}", name == "local") for jitter in (0.0, 0.2) for name in ("fedavg", "fedprox", "local")
    ]
    fedprox = index.variants[4]
    assert (fedprox.name, fedprox.point) == ("fedprox", {"population.jitter": 0.2})
    assert fedprox.changes == {"strategy.kind": "fedprox", "strategy.mu": 0.1}
    assert [(run.seed, run.folder) for run in fedprox.runs] == [
        (seed, f"runs/fedprox,jitter=0.2/seed-{seed}") for seed in (1, 2)
    ]
    assert {run.folder for one in index.variants for run in one.runs} == {run.folder.as_posix() for run in study.runs}


def test_the_index_is_read_as_it_was_written(tables: dict[str, Any], tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "s.toml", tables | {"grid": {"training": [{"lr": 0.1}, {"lr": 0.2}]}}))
    write_study(tmp_path, study)
    assert read_index(tmp_path) == index_of(study)
    assert {path.name for path in tmp_path.iterdir()} == {"s.toml", "study.toml", "index.json"}


def test_values_that_only_toml_has_are_texts(tables: dict[str, Any]) -> None:
    """Without them the file would be no JSON to other readers."""
    changes = {"a": [math.inf, {"b": datetime.date(2026, 1, 2)}], "c": {"d": math.nan}, "e": [1, 0.5, True, "x"]}
    spec = StudySpec(**tables | {"variants": {"odd": changes}, "baseline": None})
    variant = Variant("odd", (("f", -math.inf),), changes)
    study = Study(spec)
    study.variants, study.runs_of = [variant], {variant.folder: []}
    (odd,) = index_of(study).variants
    assert odd.changes == {"a": ["inf", {"b": "2026-01-02"}], "c.d": "nan", "e": [1, 0.5, True, "x"]}
    assert odd.point == {"f": "-inf"}
    json.dumps(odd.model_dump(), allow_nan=False)


def test_references_are_made_of_the_base(tables: dict[str, Any], tmp_path: Path) -> None:
    study = read_study(write(tmp_path / "s.toml", tables | {"references": ["centralised", "local"]}))
    found = {run.variant.name: run.scenario for run in study.runs if run.scenario.seed == 1}
    base, local, centralised = found["fedavg"], found["local"], found["centralised"]
    assert local.population == base.population
    assert local.network == base.network
    assert (local.strategy.kind, local.strategy.clients_per_round, local.strategy.deadline) == ("local", 6, 30.0)  # type: ignore[attr-defined]
    assert local.evaluation.score == centralised.evaluation.score == "pooled"  # as FedAvg's is
    assert centralised.population.devices == 1
    assert centralised.data.pooled_from == 12
    assert (centralised.strategy.kind, centralised.strategy.local_epochs) == ("local", 2)  # type: ignore[attr-defined]
    assert centralised.stop == base.stop


def test_centralised_training_is_better_than_what_it_is_compared_with(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["base"]["stop"]["rounds"] = 6
    study = read_study(write(tmp_path / "s.toml", tables | {"references": ["centralised", "local"], "seeds": [1]}))
    best = {}
    for run in study.runs:
        result = fedsim.run(run.scenario, executor="inline")
        best[run.variant.name] = result.summary["accuracy"]["best"]
        if run.variant.name in ("local", "centralised"):
            assert result.summary["bytes"]["down"] == result.summary["bytes"]["up"] == 0
    assert best["centralised"] > max(best["fedavg"], best["local"]) + 0.05


def test_pooling_keeps_every_sample_as_its_device_saw_it() -> None:
    for spec in (
        DataSpec(source="digits", partition={"kind": "dirichlet", "alpha": 0.5}),  # type: ignore[arg-type]
        DataSpec(source="digits", partition={"kind": "rotations", "degrees": [0, 90]}),  # type: ignore[arg-type]
        DataSpec(source="digits", partition={"kind": "permutations"}),  # type: ignore[arg-type]
        DataSpec(source={"kind": "synthetic"}),  # type: ignore[arg-type]
    ):
        dealt = spec.build(8, Streams(3))
        (alone,) = dealt.on_one_device().shards
        pooled = dealt.on_one_device()
        for of_one, of_all in ((dealt.train_samples, pooled.train_samples), (dealt.test_samples, pooled.test_samples)):
            parts = [of_one(shard) for shard in dealt.shards]
            x, y = of_all(alone)
            np.testing.assert_array_equal(x, np.concatenate([part for part, _ in parts]))
            np.testing.assert_array_equal(y, np.concatenate([part for _, part in parts]))


def test_pooled_data_are_on_one_device_or_refused() -> None:
    data = DataSpec(pooled_from=20).build(1, Streams(1))
    assert len(data.shards) == 1
    with pytest.raises(fedsim.ScenarioError, match=r"population\.devices is 2"):
        DataSpec(pooled_from=20).build(2, Streams(1))


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
