"""FedDyn against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.strategies.clustered import played, ran, weights
from tests.strategies.curved import OPTIMUM, PULLS, curved, model_after

UNEQUAL = (1, 2, 3, 4)
FEDDYN: dict[str, Any] = {"kind": "feddyn", "alpha": 0.5}


def test_it_reaches_the_optimum_of_all_with_unequal_steps_where_fedavg_stays_away(tmp_path: Path) -> None:
    feddyn = model_after(curved(tmp_path, FEDDYN, 100, 2, UNEQUAL))
    fedavg = model_after(curved(tmp_path, {"kind": "fedavg", "aggregation": "mean"}, 100, 2, UNEQUAL))
    assert feddyn[0] == pytest.approx(OPTIMUM, abs=1e-6)
    assert abs(fedavg[0] - OPTIMUM) > 0.01


def test_it_reaches_it_with_partial_participation(tmp_path: Path) -> None:
    found = model_after(curved(tmp_path, FEDDYN | {"clients_per_round": 2}, 300, 2, UNEQUAL))
    assert found[0] == pytest.approx(OPTIMUM, abs=1e-6)


def test_with_alpha_by_samples_it_reaches_the_optimum_of_the_weighted_losses(tmp_path: Path) -> None:
    found = model_after(curved(tmp_path, FEDDYN | {"alpha_samples": 25}, 100, 2, UNEQUAL))
    share = np.array(UNEQUAL) * PULLS[:, 1]
    assert found[0] == pytest.approx((share * PULLS[:, 0]).sum() / share.sum(), abs=1e-6)


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """As in the paper: with the gradients of all devices, and h."""
    run, _ = played(curved(tmp_path, FEDDYN, 2, epochs=3))
    model, lr, alpha, count = 5.0, 0.1, 0.5, len(PULLS)
    h, gradients = 0.0, np.zeros(count)
    for _ in range(2):
        ends = np.full(count, model)
        for _ in range(3):
            ends -= lr * (PULLS[:, 1] * (ends - PULLS[:, 0]) - gradients + alpha * (ends - model))
        gradients -= alpha * (ends - model)
        h -= alpha * (ends - model).sum() / count
        model = float(ends.mean() - h / alpha)
    found = weights(run, [run.strategy.state["model"], run.strategy.state["moved"]])
    assert found[0][0] == pytest.approx(model, abs=1e-6)
    assert found[1][0] == pytest.approx(-h / alpha, abs=1e-6)


def digits(**others: Any) -> dict[str, Any]:
    return {
        "seed": 2,
        "population": {"devices": 8, "speed": "100 samples/s"},
        "strategy": {"kind": "feddyn", "clients_per_round": 3, "local_epochs": 2},
        "stop": {"rounds": 3},
    } | others


def test_it_sends_what_fedavg_sends(tmp_path: Path) -> None:
    assert ran(digits(), tmp_path / "run").summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 9 * 650 * 4)


def test_a_cut_off_answer_changes_neither_side() -> None:
    network = {"kind": "star", "device": {"up": "10 kbit/s"}}
    run, records = played(digits(network=network, strategy=digits()["strategy"] | {"deadline": "3 s"}))
    assert {record.fields["outcome"] for record in records if record.kind == "task-end"} == {"late"}
    assert all(not state for state in run.dispatch.devices.states.values())
    assert not weights(run, [run.strategy.state["moved"]])[0].any()
