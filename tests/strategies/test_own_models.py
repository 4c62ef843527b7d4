"""Ditto, pFedMe and MOON against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedsim
from fedsim.testing import run
from tests.strategies.clustered import ROTATED, Weights, file_data, of_kind, played, ran, weights, world
from tests.strategies.curved import PULLS, all_after, curved, model_after

CENTER, STRENGTH = PULLS.T
DITTO: dict[str, Any] = {"kind": "ditto", "clients_per_round": 12, "local_epochs": 2}


def own_models(sections: dict[str, Any]) -> np.ndarray[Any, Any]:
    run, _ = played(sections)
    own = run.strategy.state["own"]
    return np.array(weights(run, [own[device] for device in range(len(own))]))


def test_with_lambda_0_ditto_is_local_training_bit_for_bit() -> None:
    local = {"kind": "local", "local_epochs": 2}
    assert (own_models(world(ROTATED, 12, DITTO | {"lam": 0}, 4)) == own_models(world(ROTATED, 12, local, 4))).all()


def test_two_rounds_of_ditto_by_hand(tmp_path: Path) -> None:
    """Its global model is FedAvg's."""
    ditto = {"kind": "ditto", "lam": 0.5, "personal_epochs": 4, "aggregation": "mean"}
    model, own = 5.0, np.full(4, 5.0)
    for _ in range(2):
        for _ in range(4):
            own = own - 0.1 * (STRENGTH * (own - CENTER) + 0.5 * (own - model))
        model = float((model + (CENTER - model) * (1 - (1 - 0.1 * STRENGTH) ** 3)).mean())
    shared, owns = all_after(curved(tmp_path, ditto, 2, 3))
    assert owns[:, 0] == pytest.approx(own, abs=1e-5)
    assert shared[0] == pytest.approx(model, abs=1e-5)
    assert shared == model_after(curved(tmp_path, {"kind": "fedavg", "aggregation": "mean"}, 2, 3))


@pytest.mark.parametrize("kind", ["ditto", "fedper"])
def test_only_who_was_ever_asked_has_a_model_and_others_are_served_by_the_global_one(kind: str, tmp_path: Path) -> None:
    sections = world(ROTATED, 12, {"kind": kind, "clients_per_round": 3}, 2, model={"kind": "mlp", "hidden": [13]})
    run, _ = played(sections)
    models, asked = run.strategy.models(), {device for device in range(12) if run.tasks.times_selected[device]}
    assert set(models) == {"global", *(f"device/{device}" for device in asked)}
    assert models["global"][1] == [device for device in range(12) if device not in asked]
    states = {device: state for device, state in run.dispatch.devices.states.items() if state}
    assert set(states) == asked
    (kept,) = {tuple(state) for state in states.values()}
    numbers = 64 * 13 + 13 + 140 if kind == "ditto" else 140
    assert {len(weights(run, [state[kept[0]]])[0]) for state in states.values()} == {numbers}
    folder = ran(sections, tmp_path / "run")
    accuracies = [row["accuracy"] for row in folder.devices if row["accuracy"] is not None]
    assert len(accuracies) == 12
    assert folder.summary["accuracy"]["final"] == pytest.approx(np.mean(accuracies))


def test_own_models_cost_time_and_no_bytes(tmp_path: Path) -> None:
    sections = world(ROTATED, 12, DITTO | {"personal_epochs": 3}, 1, population={"speed": "100 samples/s"})
    run = ran(sections, tmp_path / "run")
    ends = {event["device"]: event["time"] for event in of_kind(run, "task-end")}
    assert [ends[row["device"]] for row in run.devices] == pytest.approx([5 * row["samples"] / 100 for row in run.devices])
    assert run.summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 12 * 650 * 4)


def moreau(rounds: int, local: int, steps: int, lam: float, eta: float) -> tuple[float, np.ndarray]:
    """w and the thetas of pFedMe by hand."""
    w = 5.0
    for _ in range(rounds):
        here, theta = np.full(4, w), np.full(4, w)
        for _ in range(local):
            for _ in range(steps):
                theta = theta - 0.1 * (STRENGTH * (theta - CENTER) + lam * (theta - here))
            here = here - eta * lam * (here - theta)
        w = float(here.mean())
    return w, theta


def test_three_rounds_of_pfedme_by_hand(tmp_path: Path) -> None:
    pfedme = {"kind": "pfedme", "local_rounds": 3, "steps": 4, "lam": 2.0, "eta": 0.05}
    model, own = all_after(curved(tmp_path, pfedme, 3, 1))
    w, theta = moreau(3, 3, 4, 2.0, 0.05)
    assert model[0] == pytest.approx(w, abs=1e-5)
    assert own[:, 0] == pytest.approx(theta, abs=1e-5)


def test_a_local_round_of_pfedme_is_so_many_steps_on_one_batch(tmp_path: Path) -> None:
    pfedme = {"kind": "pfedme", "clients_per_round": 8, "local_rounds": 3, "steps": 4}
    run = ran(world(ROTATED, 8, pfedme, 1, population={"speed": "100 samples/s"}), tmp_path / "run")
    assert [event["time"] for event in of_kind(run, "task-end")] == pytest.approx([3 * 4 * 10 / 100] * 8)


# MOON.

MU, TAU, LR = 3.0, 0.25, 0.2


def two_devices(folder: Path, strategy: dict[str, Any], rounds: int, **others: Any) -> dict[str, Any]:
    """Two devices that differ, each of whose epochs is one step."""
    draw = np.random.default_rng(5)
    shards = [(draw.normal(size=(6, 4)) + shift, draw.integers(0, 2, 6)) for shift in (-1.0, 1.0)]
    sections = {"model": {"kind": "mlp", "hidden": [5]}, "training": {"lr": LR, "batch_size": 6}} | others
    strategy = {"clients_per_round": 2, "aggregation": "mean", "local_epochs": 3} | strategy
    return world(file_data(folder, shards), 2, strategy, rounds, **sections)


def forward(model: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Representations and outputs of a flat perceptron 4-5-2."""
    first, bias, second, last = torch.split(model, [20, 5, 10, 2])
    hidden = torch.relu(x @ first.view(5, 4).T + bias)
    return hidden, hidden @ second.view(2, 5).T + last


def trained(start: torch.Tensor, previous: torch.Tensor, x: torch.Tensor, y: torch.Tensor, steps: int) -> torch.Tensor:
    """What so many steps on all samples make of a model; the term as the cross-entropy of two similarities."""
    model = start
    for _ in range(steps):
        model = model.detach().requires_grad_()
        own, outputs = forward(model, x)
        similar = torch.stack([torch.nn.CosineSimilarity()(own, forward(each, x)[0]) for each in (start, previous)], 1)
        term = torch.nn.CrossEntropyLoss()(similar / TAU, torch.zeros(len(x), dtype=torch.int64))
        (gradient,) = torch.autograd.grad(functional.cross_entropy(outputs, y) + MU * term, model)
        model = model - LR * gradient
    return model.detach()


@pytest.mark.parametrize("solver", ["fast", "reference"])
def test_three_rounds_of_moon_by_hand(solver: str, tmp_path: Path) -> None:
    moon = {"kind": "moon", "mu": MU, "temperature": TAU}
    training = {"lr": LR, "batch_size": 6, "solver": solver}
    done, _ = played(two_devices(tmp_path, moon, 3, training=training))
    plain, _ = played(two_devices(tmp_path, {"kind": "fedavg"}, 3, training=training))
    (found,), (other,) = (weights(of, [of.strategy.state["model"]]) for of in (done, plain))
    (start,) = weights(done, [done.learner.initial()])
    expected = torch.tensor(start, dtype=torch.float64)
    last = [expected, expected]
    data = done.data
    assert data is not None
    sets = [data.train_samples(shard) for shard in data.shards]
    for _ in range(3):
        begun = expected
        for device, (x, y) in enumerate(sets):
            last[device] = trained(begun, last[device], torch.tensor(x, dtype=torch.float64), torch.tensor(y), 3)
        expected = torch.stack(last).mean(0)
    assert found == pytest.approx(expected.numpy(), abs=2e-5)
    assert np.abs(found - other).max() > 1e-3  # the term is felt
    own: list[Weights] = weights(done, [done.dispatch.devices.states[device]["model"] for device in range(2)])
    assert np.array(own) == pytest.approx(np.array([model.numpy() for model in last]), abs=2e-5)


def test_without_its_term_moon_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    one, other = (run(two_devices(tmp_path, strategy, 3)) for strategy in ({"kind": "moon", "mu": 0.0}, {"kind": "fedavg"}))
    same = ("models_sha256", "bytes", "simulated_s", "accuracy")
    assert [one[name] for name in same] == [other[name] for name in same]


def test_a_step_of_moon_takes_two_forward_passes_more(tmp_path: Path) -> None:
    """A step of training is three forward passes: 5/3 of the time, where compute is all that counts."""
    speeds = {"speed": "10 samples/s"}
    spent = {}
    for kind in ("fedavg", "moon"):
        found = ran(two_devices(tmp_path / kind, {"kind": kind}, 1, population=speeds), tmp_path / kind / "run")
        begun = {event["task"]: event["time"] for event in of_kind(found, "step-start") if event["step"] == "train"}
        ends = [event for event in of_kind(found, "step-end") if event["step"] == "train"]
        spent[kind] = [event["time"] - begun[event["task"]] for event in ends]
        assert found.summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 2 * 37 * 4)
    assert spent["fedavg"] == pytest.approx([6 * 3 / 10] * 2)
    assert spent["moon"] == pytest.approx([6 * 3 / 10 * 5 / 3] * 2)


def test_on_a_kind_of_device_they_take_its_time_and_room(tmp_path: Path) -> None:
    """Two forward passes of each batch by its roofline, and the weights of two models."""
    sections = two_devices(tmp_path, {"kind": "moon"}, 1)
    sections["population"] = {"devices": 2, "device": "raspberry-pi-4"}
    done, _ = played(sections)
    lines = done.dispatch.population.rooflines
    assert lines is not None
    order = fedsim.federation.client.Instruction("train", {"model": done.strategy.state["model"]}, 0)
    training = done.dispatch._client_side.client.training(done.dispatch.devices.of(0), order)
    plain = fedsim.training.Training(None, 3)
    more = 2 * (lines.testing_s(0, 6))
    assert lines.training_s(0, training, 6) - lines.training_s(0, plain, 6) == pytest.approx(more)
    assert lines.needed(training, 6) - lines.needed(plain, 6) == 2 * 37 * 4
