"""Ditto against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from tests.strategies.clustered import ROTATED, played, ran, weights, world
from tests.strategies.curved import PULLS, curved, model_after

DITTO: dict[str, Any] = {"kind": "ditto", "clients_per_round": 12, "local_epochs": 2}


def own_models(sections: dict[str, Any]) -> np.ndarray[Any, Any]:
    run, _ = played(sections)
    own = run.strategy.state["own"]
    return np.array(weights(run, [own[device] for device in range(len(own))]))


def test_with_lambda_0_it_is_local_training_bit_for_bit() -> None:
    local = {"kind": "local", "local_epochs": 2}
    assert (own_models(world(ROTATED, 12, DITTO | {"lam": 0}, 4)) == own_models(world(ROTATED, 12, local, 4))).all()


def test_with_a_large_lambda_own_models_are_the_global_one(tmp_path: Path) -> None:
    """The end of one round by hand: w - grad / lambda around the received model."""
    lam, lr, epochs = 1e4, 1e-4, 50
    sections = curved(tmp_path, {"kind": "ditto", "lam": lam}, 1, epochs, training={"lr": lr, "batch_size": 10})
    center, strength = PULLS.T
    assert own_models(sections)[:, 0] == pytest.approx((strength * center + lam * 5.0) / (strength + lam), abs=1e-5)
    assert np.abs(own_models(sections)[:, 0] - 5.0).max() < 0.002


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    run, _ = played(curved(tmp_path, {"kind": "ditto", "lam": 0.5, "personal_epochs": 4, "aggregation": "mean"}, 2, 3))
    center, strength = PULLS.T
    model, own = 5.0, np.full(4, 5.0)
    for _ in range(2):
        for _ in range(4):
            own = own - 0.1 * (strength * (own - center) + 0.5 * (own - model))
        model = float((model + (center - model) * (1 - (1 - 0.1 * strength) ** 3)).mean())
    found = run.strategy.state["own"]
    assert np.array(weights(run, [found[device] for device in range(4)]))[:, 0] == pytest.approx(own, abs=1e-5)
    assert weights(run, [run.strategy.state["model"]])[0][0] == pytest.approx(model, abs=1e-5)


def test_its_global_model_is_fedavgs(tmp_path: Path) -> None:
    assert model_after(curved(tmp_path, {"kind": "ditto"}, 3)) == model_after(curved(tmp_path, {"kind": "fedavg"}, 3))


def test_only_who_was_ever_asked_has_a_model_and_others_are_served_by_the_global_one(tmp_path: Path) -> None:
    sections = world(ROTATED, 12, DITTO | {"clients_per_round": 3}, 2)
    run, _ = played(sections)
    models, asked = run.strategy.models(), {device for device in range(12) if run.tasks.times_selected[device]}
    assert set(models) == {"global", *(f"device/{device}" for device in asked)}
    assert models["global"][1] == [device for device in range(12) if device not in asked]
    assert {device for device, state in run.dispatch.devices.states.items() if state} == asked
    folder = ran(sections, tmp_path / "run")
    accuracies = [row["accuracy"] for row in folder.devices if row["accuracy"] is not None]
    assert len(accuracies) == 12
    assert folder.summary["accuracy"]["final"] == pytest.approx(np.mean(accuracies))


def test_own_models_cost_time_and_no_bytes(tmp_path: Path) -> None:
    sections = world(ROTATED, 12, DITTO | {"personal_epochs": 3}, 1, population={"speed": "100 samples/s"})
    run = ran(sections, tmp_path / "run")
    ends = {event["device"]: event["time"] for event in run.events if event["kind"] == "task-end"}
    assert [ends[row["device"]] for row in run.devices] == pytest.approx([5 * row["samples"] / 100 for row in run.devices])
    assert run.summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 12 * 650 * 4)


def test_a_deadline_for_one_training_is_refused() -> None:
    with pytest.raises(fedsim.ScenarioError, match=r"'deadline_from' is 'download'.*trains its own model too"):
        fedsim.Scenario(strategy={"kind": "ditto", "deadline": "9 s", "deadline_from": "download"})
