"""FedPer, FedRep and FedBN against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.testing import run
from tests.strategies.clustered import ROTATED, played, ran, weights, world
from tests.strategies.curved import PULLS, all_after, curved

CENTER, STRENGTH = PULLS.T
MLP = {"model": {"kind": "mlp", "hidden": [13]}}
BODY, HEAD = 64 * 13 + 13, 13 * 10 + 10  # numbers of that model's layers


class TwoParts(torch.nn.Module):
    """The loss of a sample (a, h) is h (u + v - a)^2 / 2: u is below, v the head."""

    def __init__(self) -> None:
        super().__init__()
        self.u = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor([5.0]))})
        self.v = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.tensor([1.0]))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:] * (self.u["w"] + self.v["w"] - x[:, :1]) ** 2 / 2

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return outputs[:, 0]


def two_parts(folder: Path, strategy: dict[str, Any], rounds: int, epochs: int = 5) -> dict[str, Any]:
    model = {"kind": "module", "factory": "tests.strategies.test_layers:TwoParts"}
    return curved(folder, strategy | {"aggregation": "mean"}, rounds, epochs, model=model)


@pytest.mark.parametrize("kind", ["fedper", "fedrep"])
def test_two_rounds_by_hand(kind: str, tmp_path: Path) -> None:
    """FedPer trains both parts at once; FedRep first the heads alone, then what is below them alone. Heads are never sent."""
    keys, head_epochs = ({}, 0) if kind == "fedper" else ({"head_epochs": 4}, 4)
    model, own = all_after(two_parts(tmp_path, {"kind": kind} | keys, 2, 3))
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


@pytest.mark.parametrize(("solver", "model"), [("fast", "mlp"), ("reference", "mlp"), ("fast", "mnist-cnn")])
def test_what_is_held_stays_to_the_bit_and_the_rest_moves(solver: str, model: str) -> None:
    training = {"solver": solver, "momentum": 0.5, "l2": 0.01}
    strategy = {"kind": "fedrep", "clients_per_round": 2, "head_epochs": 1}
    run, _ = played(world({"source": "digits"}, 40, strategy, 1, training=training) | {"model": {"kind": model}})
    initial, end = weights(run, [run.server.models.initial(), run.strategy.state["model"]])
    kept = weights(run, list(run.strategy.state["kept"].values()))
    assert (initial[: -len(kept[0])] != end[: -len(kept[0])]).mean() > 0.3
    assert (initial[-len(kept[0]) :] == end[-len(kept[0]) :]).all()
    assert all((own != initial[-len(own) :]).all() for own in kept)


@pytest.mark.parametrize(("head", "sent"), [(1, BODY), (["3.*"], BODY), (["*.bias"], BODY + HEAD - 23)])
def test_only_what_is_averaged_is_charged(tmp_path: Path, head: Any, sent: int) -> None:
    sections = world({"source": "digits"}, 8, {"kind": "fedper", "clients_per_round": 3, "head": head}, 2) | MLP
    run = ran(sections, tmp_path / "run")
    assert run.summary["bytes"]["by_purpose"] == dict.fromkeys(["model", "update"], 6 * 4 * sent)


def test_a_codec_writes_what_is_sent_alone(tmp_path: Path) -> None:
    strategy = {"kind": "fedper", "clients_per_round": 3}
    messages = {"messages": {"up": {"kind": "top-k", "share": 0.1}, "down": "float16"}}
    sections = world(ROTATED, 8, strategy, 3) | MLP | messages
    sent = ran(sections, tmp_path / "run").summary["bytes"]["by_purpose"]
    k = round(0.1 * BODY)
    assert sent == {"model": 9 * 2 * BODY, "update": 9 * (4 * k + -(-BODY // 8))}
    run, _ = played(sections)
    (device,) = list(run.dispatch.devices.residuals)[:1]
    (memory,) = weights(run, [run.dispatch.devices.residuals[device]["update"]])
    assert len(memory) == BODY
    assert (memory != 0).sum() == pytest.approx(BODY - k, abs=BODY // 3)


def normed(norm: str) -> torch.nn.Module:
    layers = {"layer": torch.nn.LayerNorm(7), "batch": torch.nn.BatchNorm1d(7, track_running_stats=False)}
    layers["running"] = torch.nn.BatchNorm1d(7)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 7), layers[norm], torch.nn.ReLU(), torch.nn.Linear(7, 10)
    )


def of_norm(norm: str) -> dict[str, Any]:
    return {"kind": "module", "factory": "tests.strategies.test_layers:normed", "args": {"norm": norm}}


@pytest.mark.parametrize(("strategy", "kept"), [("fedavg", ()), ("statistics", (14, 28)), ("layers", (0, 28))])
def test_running_statistics_are_averaged_or_kept(tmp_path: Path, strategy: str, kept: tuple[int, ...]) -> None:
    """Of the 28 numbers of a norm the last 14 are its statistics. What is kept is not sent."""
    how = {"kind": "fedavg"} if strategy == "fedavg" else {"kind": "fedbn", "keeps": strategy}
    whole = {"training": {"batch_size": 1000}, "model": of_norm("running")}
    sections = world(ROTATED, 8, how | {"clients_per_round": 8}, 1, **whole)
    sent = ran(sections, tmp_path / "run").summary["bytes"]["by_purpose"]
    first, size = 64 * 7 + 7, 64 * 7 + 7 + 28 + 80
    own_places = range(first + kept[0], first + kept[1]) if kept else range(0)
    assert sent == dict.fromkeys(["model", "update"], 8 * 4 * (size - len(own_places)))
    done, _ = played(sections)
    data = done.data
    assert data is not None
    (start, model_now) = weights(done, [done.learner.initial(), done.strategy.state["model"]])
    counts = np.array([len(shard.train) for shard in data.shards])
    means = []
    for shard in data.shards:  # after the one step of an epoch: a tenth of the batch's, and nine of the first, which is 0
        x = data.train_samples(shard)[0].reshape(-1, 64)
        means.append(0.1 * (x @ start[: 64 * 7].reshape(7, 64).T + start[64 * 7 : first]).mean(axis=0))
    statistics = slice(first + 14, first + 21)
    if not kept:
        assert model_now[statistics] == pytest.approx(np.average(means, axis=0, weights=counts), abs=1e-5)
        return
    own = np.array(weights(done, [done.strategy.state["own"][device] for device in range(8)]))
    assert own[:, statistics] == pytest.approx(np.array(means), abs=1e-5)
    assert (model_now[own_places] == start[own_places]).all()
    assert (np.delete(own, own_places, axis=1) == np.delete(model_now, own_places)).all()


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_fedbn_keeps_the_norms_and_sends_the_rest(tmp_path: Path, norm: str) -> None:
    training = {"batch_size": 1000}  # torch takes no batch of one sample through a batch norm
    sections = world(ROTATED, 8, {"kind": "fedbn", "clients_per_round": 4}, 3, training=training, model=of_norm(norm))
    sent = ran(sections, tmp_path / "run").summary["bytes"]["by_purpose"]
    assert sent == dict.fromkeys(["model", "update"], 12 * 4 * (64 * 7 + 7 + 70 + 10))
    model_now, own = all_after(sections)
    norms = slice(64 * 7 + 7, 64 * 7 + 7 + 14)
    assert (model_now[norms] == [1.0] * 7 + [0.0] * 7).all()
    assert (own[:, norms] != model_now[norms]).any(axis=1).all()
    rest = np.delete(own, np.r_[norms], axis=1)
    assert (rest == np.delete(model_now, np.r_[norms])).all()


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
    """FedAvg with tensors that are kept is FedPer or FedBN, to the bit, with a codec that remembers and noise too."""
    model = of_norm("running") if kind["kind"] == "fedbn" else MLP["model"]
    private = {"kind": "private", "clip": 1.0, "noise": 0.01, "account": False}
    up = {"up": {"kind": "top-k", "share": 0.5}}
    for keys, messages in (({"aggregation": private}, {}), ({"secure_aggregation": {}}, {}), ({}, up)):
        found = []
        for strategy, parts in ((kind, {}), ({"kind": "fedavg"}, said)):
            whole = {"training": {"batch_size": 1000}, "model": model | parts, "messages": messages}
            summary = run(world(ROTATED, 8, strategy | {"clients_per_round": 4} | keys, 3, **whole))
            found.append([summary[name] for name in ("models_sha256", "events_sha256", "bytes", "accuracy")])
        assert found[0] == found[1]


def test_noise_leaves_alone_what_is_kept() -> None:
    private = {"kind": "private", "clip": 1.0, "noise": 1.0, "account": False}
    strategy = {"kind": "fedavg", "clients_per_round": 4, "aggregation": private}
    run, _ = played(world(ROTATED, 8, strategy, 2, model=MLP["model"] | {"keep": "3.*"}))
    first, last = weights(run, [run.learner.initial(), run.strategy.state["model"]])
    assert (first[BODY:] == last[BODY:]).all()
    assert (first[:BODY] != last[:BODY]).all()
