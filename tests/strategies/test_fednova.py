"""FedNova against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.strategies.fedprox import reach
from tests.strategies.clustered import ROTATED, played, weights, world
from tests.strategies.curved import OPTIMUM, PULLS, curved, model_after

STEPS = (1, 2, 3, 4)
FEDNOVA: dict[str, Any] = {"kind": "fednova", "aggregation": "mean"}
FEDAVG: dict[str, Any] = {"kind": "fedavg", "aggregation": "mean"}


def test_reach_is_the_papers_norm() -> None:
    assert reach(7) == 7
    rho, pull, tau = 0.9, 0.05, 6
    assert reach(tau, rho) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))  # its section 4.1
    assert reach(tau, 0.0, pull) == pytest.approx((1 - (1 - pull) ** tau) / pull)


def steady(lr: float, kind: str, folder: Path) -> float:
    """Where a strategy comes to rest with a learning rate."""
    strategy = {"fednova": FEDNOVA, "fedavg": FEDAVG}[kind]
    rounds = round(10 / lr)
    return float(model_after(curved(folder, strategy, rounds, 1, STEPS, training={"lr": lr, "batch_size": 10}))[0])


def test_its_distance_from_the_optimum_falls_with_the_learning_rate_where_fedavg_keeps_its_bias(tmp_path: Path) -> None:
    rates = (0.08, 0.04)
    nova = [abs(steady(lr, "fednova", tmp_path) - OPTIMUM) for lr in rates]
    assert nova[0] / nova[1] == pytest.approx(2, rel=0.15)
    share = np.array(STEPS) * PULLS[:, 1]
    biased = (share * PULLS[:, 0]).sum() / share.sum()  # the optimum of the losses weighted by steps: Theorem 1 of the paper
    avg = [abs(steady(lr, "fedavg", tmp_path) - biased) for lr in rates]
    assert avg[0] / avg[1] == pytest.approx(2, rel=0.15)
    assert abs(biased - OPTIMUM) > 5 * nova[0]


@pytest.mark.parametrize("effective", ["reach", "steps"])
def test_a_round_by_hand_with_momentum_and_a_proximal_term(effective: str, tmp_path: Path) -> None:
    training = {"lr": 0.1, "batch_size": 10, "momentum": 0.5}
    fednova = {"kind": "fednova", "mu": 0.3, "effective": effective}
    found = model_after(curved(tmp_path, fednova, 1, 2, STEPS, training=training))
    ends, norms = [], []
    for (center, strength), an_epoch in zip(PULLS, STEPS, strict=True):
        here, velocity, gone, speed = 5.0, 0.0, 0.0, 0.0
        for _ in range(2 * an_epoch):
            velocity = 0.5 * velocity + strength * (here - center) + 0.3 * (here - 5.0)
            here -= 0.1 * velocity
            speed = 0.5 * speed + 1 - 0.1 * 0.3 * gone
            gone += speed
        ends.append(here)
        norms.append(gone)
    share = np.array(STEPS) / sum(STEPS)  # of the samples
    tau = share @ norms if effective == "reach" else share @ np.array(STEPS) * 2
    step = tau * (share * (np.array(ends) - 5.0) / norms).sum()
    assert found[0] == pytest.approx(5.0 + step, abs=1e-5)


def test_partial_work_counts_by_its_own_steps(tmp_path: Path) -> None:
    unequal = {"devices": 4, "speed": {"kind": "lognormal", "median": "30 samples/s", "spread": 2.0}}
    run, records = played(curved(tmp_path, FEDNOVA | {"deadline": "1 s"}, 1, 4, population=unequal))
    told = [record.fields for record in records if record.kind == "step-end" and record.fields["step"] == "train"]
    taken = np.array([fields["epochs"] for fields in sorted(told, key=lambda fields: fields["device"])])
    assert min(taken) > 0
    assert len(set(taken)) > 2
    moved = (PULLS[:, 0] - 5) * (1 - (1 - 0.1 * PULLS[:, 1]) ** taken)
    assert weights(run, [run.strategy.state["model"]])[0][0] == pytest.approx(
        5 + taken.mean() * (moved / taken).mean(), abs=1e-5
    )


def test_with_equal_steps_it_is_fedavg(tmp_path: Path) -> None:
    assert model_after(curved(tmp_path, FEDNOVA, 3)) == pytest.approx(model_after(curved(tmp_path, FEDAVG, 3)), abs=1e-6)


def test_a_proximal_term_whose_steps_cannot_be_counted_is_refused() -> None:
    scenario = fedsim.Scenario(**world(ROTATED, 4, {"kind": "fednova", "clients_per_round": 2, "mu": 20}, 1))
    with pytest.raises(fedsim.ScenarioError, match=r"strategy\.mu is 20.*allowed is less than 10"):
        fedsim.run(scenario)
