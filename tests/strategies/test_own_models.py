"""Strategies with models or layers of a device's own, against known answers: Ditto, pFedMe,
MOON; FedPer, FedRep, FedBN.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.testing import quiet_world, run
from tests.strategies.runs import (
    Weights,
    all_after,
    initial_weights,
    model_after,
    model_of,
    moved,
    of_kind,
    played,
    ran,
    weights,
)
from tests.strategies.worlds import (
    CENTER,
    ROTATED,
    STRENGTH,
    Curved,
    curved,
    file_data,
    module,
    world,
)

DITTO: dict[str, Any] = {"kind": "ditto", "clients_per_round": 12, "local_epochs": 2}


def test_two_rounds_of_ditto_by_hand(tmp_path: Path) -> None:
    """Its global model is FedAvg's."""
    ditto = {"kind": "ditto", "lam": 0.5, "aggregation": "mean"}
    model, own = 5.0, np.full(4, 5.0)
    for _ in range(2):
        for _ in range(3):
            own = own - 0.1 * (STRENGTH * (own - CENTER) + 0.5 * (own - model))
        model = float((model + (CENTER - model) * (1 - (1 - 0.1 * STRENGTH) ** 3)).mean())
    shared, owns = all_after(curved(tmp_path, ditto, 2, 3))
    assert owns[:, 0] == pytest.approx(own, abs=1e-5)
    assert shared[0] == pytest.approx(model, abs=1e-5)
    assert shared == model_after(curved(tmp_path, {"kind": "fedavg", "aggregation": "mean"}, 2, 3))


@pytest.mark.parametrize("kind", ["ditto", "fedper"])
def test_only_who_was_ever_asked_has_a_model_and_others_are_served_by_the_global_one(
    kind: str, tmp_path: Path
) -> None:
    sections = world(
        ROTATED,
        12,
        {"kind": kind, "clients_per_round": 3},
        2,
        model={"kind": "mlp", "hidden": [13]},
    )
    run, _ = played(sections)
    models, asked = (
        run.strategy.models(),
        {device for device in range(12) if run.tasks.times_selected[device]},
    )
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
    sections = world(ROTATED, 12, DITTO, 1, population={"speed": "100 samples/s"})
    run = ran(sections, tmp_path / "run")
    ends = {event["device"]: event["time"] for event in of_kind(run, "task-end")}
    assert [ends[row["device"]] for row in run.devices] == pytest.approx(
        [4 * row["samples"] / 100 for row in run.devices]
    )
    assert moved(run) == dict.fromkeys(["model", "update"], 12 * 650 * 4)


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
    assert [event["time"] for event in of_kind(run, "task-end")] == pytest.approx(
        [3 * 4 * 10 / 100] * 8
    )


# MOON.

MU, TAU, LR = 3.0, 0.25, 0.2


def two_devices(
    folder: Path, strategy: dict[str, Any], rounds: int, **others: Any
) -> dict[str, Any]:
    """Two devices that differ, each of whose epochs is one step."""
    draw = np.random.default_rng(5)
    shards = [(draw.normal(size=(6, 4)) + shift, draw.integers(0, 2, 6)) for shift in (-1.0, 1.0)]
    sections = {
        "model": {"kind": "mlp", "hidden": [5]},
        "training": {"lr": LR, "batch_size": 6},
    } | others
    strategy = {"clients_per_round": 2, "aggregation": "mean", "local_epochs": 3} | strategy
    return world(file_data(folder, shards), 2, strategy, rounds, **sections)


def forward(model: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Representations and outputs of a flat perceptron 4-5-2."""
    first, bias, second, last = torch.split(model, [20, 5, 10, 2])
    hidden = torch.relu(x @ first.view(5, 4).T + bias)
    return hidden, hidden @ second.view(2, 5).T + last


def trained(
    start: torch.Tensor, previous: torch.Tensor, x: torch.Tensor, y: torch.Tensor, steps: int
) -> torch.Tensor:
    """What so many steps on all samples make of a model; the term as the cross-entropy of two
    similarities.
    """
    model = start
    for _ in range(steps):
        model = model.detach().requires_grad_()
        own, outputs = forward(model, x)
        similar = torch.stack(
            [torch.nn.CosineSimilarity()(own, forward(each, x)[0]) for each in (start, previous)], 1
        )
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
    found, other = model_of(done), model_of(plain)
    (start,) = weights(done, [done.learner.initial()])
    expected = torch.tensor(start, dtype=torch.float64)
    last = [expected, expected]
    data = done.data
    assert data is not None
    sets = [data.train_samples(shard) for shard in data.shards]
    for _ in range(3):
        begun = expected
        for device, (x, y) in enumerate(sets):
            last[device] = trained(
                begun, last[device], torch.tensor(x, dtype=torch.float64), torch.tensor(y), 3
            )
        expected = torch.stack(last).mean(0)
    assert found == pytest.approx(expected.numpy(), abs=2e-5)
    assert np.abs(found - other).max() > 1e-3  # the term is felt
    own: list[Weights] = weights(
        done, [done.dispatch.devices.states[device]["model"] for device in range(2)]
    )
    assert np.array(own) == pytest.approx(np.array([model.numpy() for model in last]), abs=2e-5)


def test_a_step_of_moon_takes_two_forward_passes_more(tmp_path: Path) -> None:
    """A step of training is three forward passes: 5/3 of the time, where compute is all that
    counts.
    """
    speeds = {"speed": "10 samples/s"}
    spent = {}
    for kind in ("fedavg", "moon"):
        found = ran(
            two_devices(tmp_path / kind, {"kind": kind}, 1, population=speeds),
            tmp_path / kind / "run",
        )
        begun = {
            event["task"]: event["time"]
            for event in of_kind(found, "step-start")
            if event["step"] == "train"
        }
        ends = [event for event in of_kind(found, "step-end") if event["step"] == "train"]
        spent[kind] = [event["time"] - begun[event["task"]] for event in ends]
        assert found.summary["bytes"]["by_purpose"] == dict.fromkeys(
            ["model", "update"], 2 * 37 * 4
        )
    assert spent["fedavg"] == pytest.approx([6 * 3 / 10] * 2)
    assert spent["moon"] == pytest.approx([6 * 3 / 10 * 5 / 3] * 2)


def test_on_a_kind_of_device_they_take_its_time_and_room(tmp_path: Path) -> None:
    """Two forward passes of each batch by its roofline, and the weights of two models."""
    sections = two_devices(tmp_path, {"kind": "moon"}, 1)
    sections["population"] = {"devices": 2, "device": "raspberry-pi-4"}
    done, _ = played(sections)
    lines = done.dispatch.population.rooflines
    assert lines is not None
    order = fedsim.federation.client.Instruction(
        "train", {"model": done.strategy.state["model"]}, 0
    )
    training = done.dispatch.client_side.halves.of(0).training(done.dispatch.devices.of(0), order)
    plain = fedsim.common.training.Training(None, 3)
    more = 2 * (lines.testing_s(0, 6))
    assert lines.training_s(0, training, 6) - lines.training_s(0, plain, 6) == pytest.approx(more)
    assert lines.needed(training, 6) - lines.needed(plain, 6) == 2 * 37 * 4


MLP = {"model": {"kind": "mlp", "hidden": [13]}}
BODY, HEAD = 64 * 13 + 13, 13 * 10 + 10  # numbers of that model's layers


class TwoParts(Curved):
    """The loss of a sample (a, h) is h (u + v - a)^2 / 2: u is below, v the head."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.u = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor([5.0]))})
        self.v = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor([1.0]))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:] * (self.u["w"] + self.v["w"] - x[:, :1]) ** 2 / 2


@pytest.mark.parametrize("kind", ["fedper", "fedrep"])
def test_two_rounds_by_hand(kind: str, tmp_path: Path) -> None:
    """FedPer trains both parts at once; FedRep first the heads alone, then what is below them
    alone. Heads are never sent.
    """
    keys, head_epochs = ({}, 0) if kind == "fedper" else ({"head_epochs": 4}, 4)
    strategy = {"kind": kind, "aggregation": "mean"} | keys
    model, own = all_after(curved(tmp_path, strategy, 2, 3, model=module(TwoParts)))
    u, v = 5.0, np.full(4, 1.0)
    for _ in range(2):
        ends = np.full(4, u)
        for _ in range(head_epochs):
            v = v - 0.1 * STRENGTH * (ends + v - CENTER)
        for _ in range(3):
            gradient = STRENGTH * (ends + v - CENTER)
            ends, v = ends - 0.1 * gradient, v - 0.1 * gradient * (kind == "fedper")
        u = float(ends.mean())
    assert model == pytest.approx([u, 1.0], abs=1e-5)
    assert own == pytest.approx(np.stack([np.full(4, u), v], axis=1), abs=1e-5)


@pytest.mark.parametrize(
    ("head", "sent"), [(1, BODY), (["3.*"], BODY), (["*.bias"], BODY + HEAD - 23)]
)
def test_only_what_is_averaged_is_charged(tmp_path: Path, head: Any, sent: int) -> None:
    sections = (
        world({"source": "digits"}, 8, {"kind": "fedper", "clients_per_round": 3, "head": head}, 2)
        | MLP
    )
    assert moved(ran(sections, tmp_path / "run")) == dict.fromkeys(
        ["model", "update"], 6 * 4 * sent
    )


def test_a_codec_writes_what_is_sent_alone(tmp_path: Path) -> None:
    strategy = {"kind": "fedper", "clients_per_round": 3}
    messages = {"messages": {"up": {"kind": "top-k", "share": 0.1}, "down": "float16"}}
    sections = world(ROTATED, 8, strategy, 3) | MLP | messages
    sent = moved(ran(sections, tmp_path / "run"))
    k = round(0.1 * BODY)
    assert sent == {"model": 9 * 2 * BODY, "update": 9 * (4 * k + -(-BODY // 8))}
    run, _ = played(sections)
    (device,) = list(run.dispatch.devices.residuals)[:1]
    (memory,) = weights(run, [run.dispatch.devices.residuals[device]["update"]])
    assert len(memory) == BODY
    assert (memory != 0).sum() == pytest.approx(BODY - k, abs=BODY // 3)


def normed(norm: str) -> torch.nn.Module:
    layers = {
        "layer": torch.nn.LayerNorm(7),
        "batch": torch.nn.BatchNorm1d(7, track_running_stats=False),
    }
    layers["running"] = torch.nn.BatchNorm1d(7)
    ends = torch.nn.ReLU(), torch.nn.Linear(7, 10)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 7), layers[norm], *ends)


NORMED: dict[str, Any] = {
    "kind": "module",
    "factory": f"{__name__}:normed",
    "args": {"norm": "running"},
}


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_fedbn_keeps_norms_without_statistics_too(norm: str) -> None:
    """They move on their devices; the server's stay as they were drawn."""
    sections = world(
        ROTATED, 8, {"kind": "fedbn", "clients_per_round": 4}, 3, training={"batch_size": 1000}
    )
    model_now, own = all_after(sections | {"model": NORMED | {"args": {"norm": norm}}})
    norms = slice(64 * 7 + 7, 64 * 7 + 7 + 14)
    assert (model_now[norms] == [1.0] * 7 + [0.0] * 7).all()
    assert (own[:, norms] != model_now[norms]).any(axis=1).all()


@pytest.mark.parametrize(
    ("strategy", "kept"), [("fedavg", ()), ("statistics", (14, 28)), ("layers", (0, 28))]
)
def test_running_statistics_are_averaged_or_kept(
    tmp_path: Path, strategy: str, kept: tuple[int, ...]
) -> None:
    """Of the 28 numbers of a norm the last 14 are its statistics. What is kept is not sent."""
    how = {"kind": "fedavg"} if strategy == "fedavg" else {"kind": "fedbn", "keeps": strategy}
    whole = {"training": {"batch_size": 1000}, "model": NORMED}
    sections = world(ROTATED, 8, how | {"clients_per_round": 8}, 1, **whole)
    sent = moved(ran(sections, tmp_path / "run"))
    first, size = 64 * 7 + 7, 64 * 7 + 7 + 28 + 80
    own_places = range(first + kept[0], first + kept[1]) if kept else range(0)
    assert sent == dict.fromkeys(["model", "update"], 8 * 4 * (size - len(own_places)))
    done, _ = played(sections)
    data = done.data
    assert data is not None
    start, model_now = initial_weights(sections), model_of(done)
    counts = np.array([len(shard.train) for shard in data.shards])
    means = []
    # after the one step of an epoch: a tenth of the batch's, and nine of the first, which is 0
    for shard in data.shards:
        x = data.train_samples(shard)[0].reshape(-1, 64)
        means.append(
            0.1 * (x @ start[: 64 * 7].reshape(7, 64).T + start[64 * 7 : first]).mean(axis=0)
        )
    statistics = slice(first + 14, first + 21)
    if not kept:
        assert model_now[statistics] == pytest.approx(
            np.average(means, axis=0, weights=counts), abs=1e-5
        )
        return
    own = np.array(weights(done, [done.strategy.state["own"][device] for device in range(8)]))
    assert own[:, statistics] == pytest.approx(np.array(means), abs=1e-5)
    assert (model_now[own_places] == start[own_places]).all()
    assert (np.delete(own, own_places, axis=1) == np.delete(model_now, own_places)).all()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"kind": "fedper"}, {"keep": "3.*"}),
        ({"kind": "fedper", "head": ["*.bias"]}, {"send": ["*.weight"]}),
        ({"kind": "fedbn"}, {"keep": "BatchNorm*:*"}),
        ({"kind": "fedbn", "keeps": "statistics"}, {"keep": ["*.running_mean", "*.running_var"]}),
    ],
)
def test_patterns_of_the_scenario_say_the_same(kind: dict[str, Any], said: dict[str, Any]) -> None:
    """FedAvg with tensors that are kept is FedPer or FedBN, to the bit, with a codec that
    remembers and noise too.
    """
    model = NORMED if kind["kind"] == "fedbn" else MLP["model"]
    private = {"kind": "private", "clip": 1.0, "noise": 0.01, "account": False}
    up = {"up": {"kind": "top-k", "share": 0.5}}
    for keys, messages in (
        ({"aggregation": private}, {}),
        ({"secure_aggregation": {}}, {}),
        ({}, up),
    ):
        found = []
        for strategy, parts in ((kind, {}), ({"kind": "fedavg"}, said)):
            whole = {"training": {"batch_size": 1000}, "model": model | parts, "messages": messages}
            summary = run(world(ROTATED, 8, strategy | {"clients_per_round": 4} | keys, 3, **whole))
            found.append(
                [summary[name] for name in ("models_sha256", "events_sha256", "bytes", "accuracy")]
            )
        assert found[0] == found[1]


def test_noise_leaves_alone_what_is_kept() -> None:
    private = {"kind": "private", "clip": 1.0, "noise": 1.0, "account": False}
    strategy = {"kind": "fedavg", "clients_per_round": 4, "aggregation": private}
    run, _ = played(world(ROTATED, 8, strategy, 2, model=MLP["model"] | {"keep": "3.*"}))
    first, last = weights(run, [run.learner.initial(), run.strategy.state["model"]])
    assert (first[BODY:] == last[BODY:]).all()
    assert (first[:BODY] != last[:BODY]).all()


@pytest.mark.parametrize("model", ["logistic", {"kind": "mlp", "hidden": [3]}])
@pytest.mark.parametrize("patterns", [["*"], ["*.weight", "*.bias"]])
def test_to_send_all_tensors_is_not_to_keep_any(model: Any, patterns: list[str]) -> None:
    table = ({"kind": model} if isinstance(model, str) else model) | {"send": patterns}
    with pytest.raises(
        ScenarioError,
        match=r"no tensor of the model stays on its device: all of .* are sent; leave it out",
    ):
        run(quiet_world({"kind": "fedavg", "clients_per_round": 2}, rounds=1) | {"model": table})
