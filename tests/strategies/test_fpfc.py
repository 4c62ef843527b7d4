"""FPFC against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsim
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_sound
from fedsim.toolbox.strategies.fpfc import fused, shrunk
from tests.strategies.clustered import file_data, groups_of, played, ran, weights
from tests.strategies.curved import curved

CENTERS = np.array([1.0, 1.2, 8.0, 8.4])
"""Where each device's loss (w - c)^2 / 2 is least: two groups, within 0.4 and 6.8 apart."""


def scad(t: np.ndarray[Any, Any], lam: float, a: float, xi: float) -> np.ndarray[Any, Any]:
    """The penalty itself, summed up from its pieces (with xi below lam)."""
    first = lam / (2 * xi) * np.minimum(t, xi) ** 2
    second = lam * (np.clip(t, xi, lam) - xi)
    between = np.clip(t, lam, a * lam)
    third = (a * lam * (between - lam) - (between**2 - lam**2) / 2) / (a - 1)
    return first + second + third


@pytest.mark.parametrize(("lam", "rho", "a", "xi"), [(1.0, 1.0, 3.7, 1e-2), (0.5, 2.0, 2.5, 0.1), (2.0, 0.5, 4.0, 0.3)])
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
    return sections | {"data": file_data(folder, shards) | {"normalise": "none"}}


def own_models(done: Any) -> np.ndarray[Any, Any]:
    own = done.strategy.state["own"]
    return np.array(weights(done, [own[device] for device in sorted(own)]))[:, 0]


def test_three_rounds_by_hand_with_two_of_the_devices_each(tmp_path: Path) -> None:
    done, records = played(pulled(tmp_path, {"lam": 1.0, "rho": 0.8, "clients_per_round": 2}, 3, 2))
    asked: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for record in records:
        if record.kind == "task-start":
            asked[record.fields["round"]].append(record.fields["device"])
    w: dict[int, float] = {}
    theta, v = np.zeros((4, 4)), np.zeros((4, 4))
    for cohort in asked.values():
        sent = {i: np.mean([w[j] + theta[i, j] - v[i, j] / 0.8 for j in w]) if i in w else 5.0 for i in cohort}
        for i in cohort:
            x = w.get(i, 5.0)
            for _ in range(2):
                x -= 0.1 * ((x - CENTERS[i]) + 0.8 * (x - sent[i]))
            w[i] = x
        for i in w:
            for j in w:
                if i != j and (i in cohort or j in cohort):
                    delta = w[i] - w[j] + v[i, j] / 0.8
                    theta[i, j] = np.sign(delta) * shrunk(abs(delta), 1.0, 0.8, 3.7, 1e-4)
                    v[i, j] = 0.8 * (delta - theta[i, j])
    assert own_models(done) == pytest.approx([w[i] for i in sorted(w)], abs=1e-5)
    assert np.abs(theta).max() > 0.1
    pairs = done.strategy.state["pairs"]
    for (i, j), (found, dual) in zip(pairs, weights(done, list(pairs.values())), strict=True):
        assert (found, dual) == pytest.approx((theta[i, j], v[i, j]), abs=1e-5)


def test_it_finds_two_groups_and_the_optimum_of_each(tmp_path: Path) -> None:
    """A pair is fused where lambda / m is above the force by which both pull apart; beyond a lambda nothing is drawn."""
    sections = pulled(tmp_path, {"lam": 1.0}, 40, 10)
    found = ran(sections, tmp_path / "run")
    assert groups_of(found) == [0, 0, 2, 2]
    models = [float(value[0]) for value in found.models()["group"].values()]
    assert models == pytest.approx([1.1, 8.2], abs=1e-3)
    assert found.summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 40 * 4 * 4)


class TwoLayers(torch.nn.Module):
    """The loss of a sample (a, b) is ((v - a)^2 + (w - b)^2) / 2, with v in the first layer and w in the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(1, 1, bias=False)
        self.last = torch.nn.Linear(1, 1, bias=False)
        for layer in (self.first, self.last):
            torch.nn.init.constant_(layer.weight, 5.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first.weight.expand(len(x), 1), self.last.weight.expand(len(x), 1)], dim=1) - x

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return outputs.square().sum(dim=1) / 2


@pytest.mark.parametrize(("layers", "groups"), [("all", [0, 1, 2, 3]), ("last", [0, 0, 2, 2])])
def test_by_the_last_layer_alone_it_finds_what_whole_models_hide(tmp_path: Path, layers: str, groups: list[int]) -> None:
    shards = [(np.repeat([[50.0 * at, center]], 10, axis=0), [0, 1] * 5) for at, center in enumerate(CENTERS)]
    sections = curved(tmp_path, {"kind": "fpfc", "layers": layers}, 40, 10)
    sections |= {
        "model": {"kind": "module", "factory": f"{__name__}:TwoLayers"},
        "training": sections["training"] | {"init": "torch"},
    }
    assert groups_of(ran(sections | {"data": file_data(tmp_path, shards) | {"normalise": "none"}}, tmp_path / "run")) == groups


def test_the_step_of_a_pair_by_hand() -> None:
    """The last layer is 3 apart: it shrinks to 2.588..., and the first by the same share."""
    models = [np.array([9.0, 3.0], np.float32), np.array([1.0, 0.0], np.float32)]
    share = shrunk(3.0, 1.0, 1.0, 3.7, 1e-4) / 3.0
    assert fused(models, 1, 1.0, 1.0, 3.7, 1e-4) == pytest.approx([8 * share, 3 * share, 8 * (1 - share), 3 * (1 - share)])


def test_who_is_cut_off_has_no_part(tmp_path: Path) -> None:
    sections = pulled(tmp_path, {"deadline": "100 ms"}, 2, 5)
    fedsim.run(fedsim.Scenario(**sections), tmp_path / "run", executor="inline")
    assert_sound(tmp_path / "run")
    assert groups_of(RunFolder(tmp_path / "run")) == [None] * 4
