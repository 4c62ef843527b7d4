"""FedDR against known answers."""

from pathlib import Path

import numpy as np
import pytest

from tests.strategies.clustered import played, ran, weights
from tests.strategies.curved import OPTIMUM, PULLS, curved, model_after

CENTER, STRENGTH = PULLS.T


@pytest.mark.parametrize("start", ["center", "own"])
def test_three_rounds_by_hand(start: str, tmp_path: Path) -> None:
    run, _ = played(curved(tmp_path, {"kind": "feddr", "eta": 2.0, "alpha": 1.5, "start": start}, 3, 4))
    w, x, y, reflected = 5.0, np.full(4, 5.0), np.full(4, 5.0), np.full(4, 5.0)
    for _ in range(3):
        y = y + 1.5 * (w - x)
        x = y.copy() if start == "center" else x
        for _ in range(4):
            x = x - 0.1 * (STRENGTH * (x - CENTER) + (x - y) / 2.0)
        w += float((2 * x - y - reflected).mean())
        reflected = 2 * x - y
    assert weights(run, [run.strategy.state["model"]])[0][0] == pytest.approx(w, abs=1e-5)
    own = weights(run, [run.dispatch.devices.states[device]["x"] for device in range(4)])
    assert np.array(own)[:, 0] == pytest.approx(x, abs=1e-5)


def test_it_comes_to_the_optimum_of_all_with_part_of_the_devices_and_unequal_steps(tmp_path: Path) -> None:
    """Where the proximal points are found (many steps), its only resting point is the optimum; FedAvg's is elsewhere."""
    feddr = {"kind": "feddr", "clients_per_round": 2, "eta": 1.0}
    assert model_after(curved(tmp_path, feddr, 50, 25, (1, 2, 1, 2)))[0] == pytest.approx(OPTIMUM, abs=0.03)
    fedavg = {"kind": "fedavg", "aggregation": "mean"}
    assert abs(model_after(curved(tmp_path, fedavg, 10, 25))[0] - OPTIMUM) > 0.05


def test_it_sends_what_fedavg_sends_and_who_is_cut_off_moves_nothing(tmp_path: Path) -> None:
    run = ran(curved(tmp_path, {"kind": "feddr", "clients_per_round": 3}, 2), tmp_path / "run")
    assert run.summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 2 * 3 * 4)
    cut, _ = played(curved(tmp_path, {"kind": "feddr", "deadline": "100 ms"}, 1))
    assert weights(cut, [cut.strategy.state["model"]])[0][0] == 5.0
    assert all(not state for state in cut.dispatch.devices.states.values())
