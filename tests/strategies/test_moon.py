"""MOON against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedsim
from fedsim.testing import run
from tests.strategies.clustered import Weights, file_data, of_kind, played, ran, weights, world

MU, TAU, LR = 3.0, 0.25, 0.2


def two_devices(folder: Path, strategy: dict[str, Any], rounds: int, **others: Any) -> dict[str, Any]:
    """Two devices that differ, each of whose epochs is one step."""
    draw = np.random.default_rng(5)
    shards = [(draw.normal(size=(6, 4)) + shift, draw.integers(0, 2, 6)) for shift in (-1.0, 1.0)]
    sections = {"model": {"kind": "mlp", "hidden": [5]}, "training": {"lr": LR, "batch_size": 6}} | others
    strategy = {"clients_per_round": 2, "aggregation": "mean", "local_epochs": 3} | strategy
    return world(file_data(folder, shards), 2, strategy, rounds, **sections)


def by_hand(model: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Representations and outputs of a flat perceptron 4-5-2."""
    first, bias, second, last = torch.split(model, [20, 5, 10, 2])
    hidden = torch.relu(x @ first.view(5, 4).T + bias)
    return hidden, hidden @ second.view(2, 5).T + last


def trained(start: torch.Tensor, previous: torch.Tensor, x: torch.Tensor, y: torch.Tensor, steps: int) -> torch.Tensor:
    """What so many steps on all samples make of a model; the term as the cross-entropy of two similarities."""
    model = start
    for _ in range(steps):
        model = model.detach().requires_grad_()
        own, outputs = by_hand(model, x)
        similar = torch.stack([torch.nn.CosineSimilarity()(own, by_hand(each, x)[0]) for each in (start, previous)], 1)
        term = torch.nn.CrossEntropyLoss()(similar / TAU, torch.zeros(len(x), dtype=torch.int64))
        (gradient,) = torch.autograd.grad(functional.cross_entropy(outputs, y) + MU * term, model)
        model = model - LR * gradient
    return model.detach()


@pytest.mark.parametrize("solver", ["fast", "reference"])
def test_three_rounds_by_hand(solver: str, tmp_path: Path) -> None:
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


def test_without_its_term_it_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    one, other = (run(two_devices(tmp_path, strategy, 3)) for strategy in ({"kind": "moon", "mu": 0.0}, {"kind": "fedavg"}))
    same = ("models_sha256", "bytes", "simulated_s", "accuracy")
    assert [one[name] for name in same] == [other[name] for name in same]


def test_a_step_takes_two_forward_passes_more(tmp_path: Path) -> None:
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


def test_a_model_without_a_representation_is_refused(tmp_path: Path) -> None:
    sections = two_devices(tmp_path, {"kind": "moon"}, 1, model={"kind": "logistic"})
    with pytest.raises(fedsim.ScenarioError, match=r"its layers are Linear; allowed are models with a torch\.nn\.Linear"):
        run(sections)
    sections["strategy"]["mu"] = 0.0
    assert run(sections)["status"] == "done"
