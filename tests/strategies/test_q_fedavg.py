"""q-FedAvg against its paper's formulas, written out."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.toolbox.strategies.q_fedavg import fair_weights
from tests.strategies.runs import model_after, model_of, moved, of_kind, played, ran, told
from tests.strategies.worlds import CENTER, STRENGTH, curved


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
def test_three_rounds_by_hand(q: float, tmp_path: Path) -> None:
    """Algorithm 2 of Li et al., with L = 1 / 0.1."""
    run, records = played(curved(tmp_path, {"kind": "q-fedavg", "q": q}, rounds=3, epochs=2))
    device_of = {
        record.fields["task"]: record.fields["device"]
        for record in records
        if record.kind == "task-start"
    }
    lipschitz = 10.0
    w = 5.0
    for aggregate in told(records, "aggregate"):
        losses = STRENGTH * (w - CENTER) ** 2 / 2
        ends = np.full(4, w)
        for _ in range(2):
            ends -= 0.1 * STRENGTH * (ends - CENTER)
        gaps = lipschitz * (w - ends)
        moves = losses**q * gaps
        steps = q * losses ** (q - 1) * gaps**2 + lipschitz * losses**q
        factors = lipschitz * losses**q / steps.sum()
        devices = [device_of[task] for task in aggregate["tasks"]]
        assert aggregate["weights"] == pytest.approx(factors[devices].tolist())
        w -= moves.sum() / steps.sum()
    assert model_of(run)[0] == pytest.approx(w, abs=1e-5)


def test_with_q_0_it_is_fedavg_with_equal_weights(tmp_path: Path) -> None:
    fair = model_after(curved(tmp_path, {"kind": "q-fedavg", "q": 0.0}, 4, 2))
    mean = model_after(curved(tmp_path, {"kind": "fedavg", "aggregation": "mean"}, 4, 2))
    assert fair == pytest.approx(mean, abs=1e-6)


def test_losses_at_the_ends_of_their_range() -> None:
    norms = np.array([1.0, 2.0])
    assert fair_weights(np.zeros(2), norms, 1.0, 10.0).tolist() == [0.0, 0.0]
    assert fair_weights(np.array([0.0, 1.0]), norms, 0.5, 10.0)[0] == 0.0
    with_a_loss_of_0 = fair_weights(np.array([0.0, 1.0]), np.array([3.0, 4.0]), 1.0, 10.0)
    assert with_a_loss_of_0.tolist() == [0.0, 10.0 / (30.0**2 + 40.0**2 + 10.0)]
    huge = fair_weights(np.array([1e300, 1e299]), norms, 100.0, 10.0)
    assert np.isfinite(huge).all()
    assert huge[0] > huge[1]


def test_a_larger_q_brings_the_worst_client_nearer(tmp_path: Path) -> None:
    worst = []
    for q in (0.0, 5.0):
        w = model_after(curved(tmp_path, {"kind": "q-fedavg", "q": q}, 60, 1))[0]
        worst.append(float((STRENGTH * (w - CENTER) ** 2 / 2).max()))
    assert worst[1] < worst[0]


def test_the_loss_costs_a_pass_and_four_bytes(tmp_path: Path) -> None:
    run = ran(curved(tmp_path, {"kind": "q-fedavg"}, 1, 2), tmp_path / "run")
    steps = [event["step"] for event in of_kind(run, "step-end")]
    assert steps.count("evaluate") == steps.count("train") == 4
    assert moved(run) == {"model": 16.0, "update": 16.0, "loss": 16.0}
