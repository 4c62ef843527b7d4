"""FPFC against known answers: the proximal step, the rounds of its ADMM, and the groups that it
finds.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.toolbox.strategies.fpfc import fused, shrunk
from tests.strategies.runs import groups_of, moved, played, ran, told, weights
from tests.strategies.worlds import Centre, curved, file_data, module

Matrix = np.ndarray[Any, Any]
CENTERS = np.array([1.0, 1.2, 8.0, 8.4])
"""Where each device's loss (w - c)^2 / 2 is least: two groups, within 0.4 and 6.8 apart."""


def scad(t: Matrix, lam: float, a: float, xi: float) -> Matrix:
    """The penalty itself, summed up from its pieces (with xi below lam)."""
    first = lam / (2 * xi) * np.minimum(t, xi) ** 2
    second = lam * (np.clip(t, xi, lam) - xi)
    between = np.clip(t, lam, a * lam)
    third = (a * lam * (between - lam) - (between**2 - lam**2) / 2) / (a - 1)
    return first + second + third


@pytest.mark.parametrize(
    ("lam", "rho", "a", "xi"), [(1.0, 1.0, 3.7, 1e-2), (0.5, 2.0, 2.5, 0.1), (2.0, 0.5, 4.0, 0.3)]
)
def test_the_proximal_step_by_brute_force(lam: float, rho: float, a: float, xi: float) -> None:
    grid = np.linspace(0, 2 * a * lam, 200_001)
    penalty = scad(grid, lam, a, xi)
    for length in np.linspace(0, 1.5 * a * lam, 40):
        least = grid[np.argmin(penalty + rho / 2 * (grid - length) ** 2)]
        assert shrunk(length, lam, rho, a, xi) == pytest.approx(least, abs=1e-4 * lam * a)


def pulled(folder: Path, strategy: dict[str, Any], rounds: int, epochs: int) -> dict[str, Any]:
    """Four devices with ``CENTERS``."""
    shards = [(np.repeat([[center, 1.0]], 10, axis=0), [0, 1] * 5) for center in CENTERS]
    sections = curved(folder, {"kind": "fpfc"} | strategy, rounds, epochs)
    return sections | {"data": file_data(folder, shards) | {"normalize": "none"}}


RHO = 0.8


def step_by_hand(w: dict[int, float], theta: Matrix, v: Matrix, cohort: list[int]) -> None:
    """A round of the ADMM with the devices of a cohort: new models, then new thetas and duals."""
    anchors = {
        i: np.mean([w[j] + theta[i, j] - v[i, j] / RHO for j in w]) for i in cohort if i in w
    }
    for i in cohort:
        x = w.get(i, 5.0)
        for _ in range(2):
            x -= 0.1 * ((x - CENTERS[i]) + RHO * (x - anchors.get(i, 5.0)))
        w[i] = x
    for i, j in [(i, j) for i in w for j in w if i != j]:
        if i in cohort or j in cohort:
            delta = w[i] - w[j] + v[i, j] / RHO
            theta[i, j] = np.sign(delta) * shrunk(abs(delta), 1.0, RHO, 3.7, 1e-4)
            v[i, j] = RHO * (delta - theta[i, j])


def test_three_rounds_by_hand_with_two_of_the_devices_each(tmp_path: Path) -> None:
    run, records = played(pulled(tmp_path, {"lam": 1.0, "rho": RHO, "clients_per_round": 2}, 3, 2))
    cohorts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for task in told(records, "task-start"):
        cohorts[task["round"]].append(task["device"])
    w: dict[int, float] = {}
    theta, v = np.zeros((2, 4, 4))
    for cohort in cohorts.values():
        step_by_hand(w, theta, v, cohort)
    state = run.strategy.state
    models = weights(run, [state["own"][device] for device in sorted(w)])
    assert np.array(models)[:, 0] == pytest.approx([w[i] for i in sorted(w)], abs=1e-5)
    assert np.abs(theta).max() > 0.1
    for (i, j), pair in zip(state["pairs"], weights(run, [*state["pairs"].values()]), strict=True):
        assert pair == pytest.approx([theta[i, j], v[i, j]], abs=1e-5)


def test_it_finds_two_groups_and_the_optimum_of_each(tmp_path: Path) -> None:
    """A pair is fused where lambda / m is above the force by which both pull apart; beyond a
    lambda nothing is drawn.
    """
    sections = pulled(tmp_path, {"lam": 1.0}, 40, 10)
    run = ran(sections, tmp_path / "run")
    assert groups_of(run) == [0, 0, 2, 2]
    models = [float(value[0]) for value in run.models()["group"].values()]
    assert models == pytest.approx([1.1, 8.2], abs=1e-3)
    assert moved(run) == dict.fromkeys(["model", "update"], 40 * 4 * 4)


class TwoLayers(Centre):
    """The loss of a sample (a, b) is ((v - a)^2 + (w - b)^2) / 2, with v in the first layer and
    w in the last.
    """

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.first = Centre([5.0])
        self.last = Centre([5.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x[:, :1]), self.last(x[:, 1:])], dim=1)


@pytest.mark.parametrize(("layers", "groups"), [("all", [0, 1, 2, 3]), ("last", [0, 0, 2, 2])])
def test_by_the_last_layer_alone_it_finds_what_whole_models_hide(
    tmp_path: Path, layers: str, groups: list[int]
) -> None:
    shards = [
        (np.repeat([[50.0 * at, center]], 10, axis=0), [0, 1] * 5)
        for at, center in enumerate(CENTERS)
    ]
    sections = curved(tmp_path, {"kind": "fpfc", "layers": layers}, 40, 10)
    sections |= {
        "model": module(TwoLayers),
        "data": file_data(tmp_path, shards) | {"normalize": "none"},
    }
    assert groups_of(ran(sections, tmp_path / "run")) == groups


def test_the_step_of_a_pair_by_hand() -> None:
    """The last layers are 3 apart: their difference shrinks to 2.588..., and the first by the
    same share.
    """
    models = [np.array([9.0, 3.0], np.float32), np.array([1.0, 0.0], np.float32)]
    share = shrunk(3.0, 1.0, 1.0, 3.7, 1e-4) / 3.0
    assert fused(models, 1, 1.0, 1.0, 3.7, 1e-4) == pytest.approx(
        [8 * share, 3 * share, 8 * (1 - share), 3 * (1 - share)]
    )


def test_without_a_penalty_it_is_local_training_towards_the_mean_of_all(tmp_path: Path) -> None:
    """theta is then w_i - w_j, and v 0: a device is held to its own last model alone."""
    run, _ = played(pulled(tmp_path, {"lam": 0.0}, 40, 10))
    models = np.array(weights(run, [run.strategy.state["own"][device] for device in range(4)]))
    assert models[:, 0] == pytest.approx(CENTERS, abs=1e-3)


def test_a_device_that_is_cut_off_is_in_no_group(tmp_path: Path) -> None:
    sections = pulled(tmp_path, {"deadline": "100 ms"}, 2, 5)
    assert groups_of(ran(sections, tmp_path / "run")) == [None] * 4
