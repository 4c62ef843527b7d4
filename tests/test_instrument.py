"""Fine-tuning: what each device would have if it trained its model further on its own data."""

from pathlib import Path
from typing import Any

import pytest

import fedsim


def skewed(small: dict[str, Any], **evaluation: Any) -> fedsim.Scenario:
    """Devices that hold two digits each, so that a model of their own is better than one for all."""
    small["data"] = {"source": "digits", "partition": {"kind": "power-law", "classes_per_device": 2, "minimum_per_class": 5}}
    return fedsim.Scenario(**small | {"evaluation": evaluation})


def test_it_is_measured_when_all_is_done_and_changes_nothing(small: dict[str, Any], tmp_path: Path) -> None:
    plain = fedsim.run(skewed(small)).summary
    tuned = fedsim.run(skewed(small, fine_tune_epochs=2), tmp_path / "run").summary
    assert "fine_tuned" not in plain["accuracy"]
    assert tuned["accuracy"]["fine_tuned"] > plain["accuracy"]["final"] + 0.05
    for key in ("events_sha256", "models_sha256", "rounds"):
        assert tuned[key] == plain[key]


@pytest.mark.parametrize("kind", ["local", "ifca"])
def test_devices_train_the_model_of_their_own_group(small: dict[str, Any], kind: str) -> None:
    small["strategy"] = {"kind": kind, "local_epochs": 2}
    accuracy = fedsim.run(skewed(small, fine_tune_epochs=3)).summary["accuracy"]
    assert 0.7 < accuracy["fine_tuned"] <= 1
    assert accuracy["fine_tuned"] >= accuracy["final"]


def test_without_learning_there_is_none(small: dict[str, Any]) -> None:
    small["learning"] = "off"
    assert fedsim.run(skewed(small, fine_tune_epochs=1)).summary["accuracy"]["fine_tuned"] is None
