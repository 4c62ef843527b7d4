"""Reference lines, run by the same engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.data.spec import DataSpec
from fedsim.lab.study.plan import read_study
from fedsim.streams import Streams
from tests.lab.study.conftest import write


def test_they_are_made_of_the_base(tables: dict[str, Any], tmp_path: Path) -> None:
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
