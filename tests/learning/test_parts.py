"""Parts of a model against plain torch: adapters, frozen tensors, weights from a file."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import fedsim
from fedsim.learning.architecture import LoRA
from fedsim.learning.modules import fit, frozen_numbers, numbers
from tests.strategies.runs import played, ran, weights
from tests.strategies.worlds import world

DIGITS = {"source": "digits"}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": [13]}
FEDAVG = {"kind": "fedavg", "clients_per_round": 3}
BASE, SECOND = 64 * 13 + 13 + 13 * 10 + 10, 2 * (13 + 10)  # numbers of the model, and of the upper layer's adapter of rank 2


class Attending(nn.Module):
    """A transformer's layer over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.layer(x.reshape(-1, 8, 8)).flatten(1))
        return found


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 10))


@pytest.mark.parametrize("trains", [True, False])
def test_an_adapted_layer_is_one_with_another_weight(trains: bool) -> None:
    torch.manual_seed(0)
    module = Attending().train(trains)
    adapted = fit(Attending().train(trains), LoRA(rank=3, alpha=6.0), None, seed=1)
    adapted.load_state_dict(module.state_dict(), strict=False)
    x, moved = torch.randn(5, 8, 8), []
    with torch.no_grad():
        assert torch.allclose(adapted(x), module(x), atol=1e-6)  # B is 0
        for name, tensor in numbers(adapted).items():
            if name.endswith("lora_B"):
                tensor.normal_()
                layer = name.removesuffix(".lora_B")
                module.get_submodule(layer).weight += 2.0 * tensor @ numbers(adapted)[f"{layer}.lora_A"]
                moved.append(layer)
        assert moved == ["layer.linear1", "layer.linear2", "out"]  # attention's own output goes past its module
        assert torch.allclose(adapted(x), module(x), atol=1e-5)


@pytest.mark.parametrize("what", ["lora", "train"])
def test_one_device_trains_as_a_plain_loop_does(what: str) -> None:
    model = MLP | ({"lora": {"rank": 2, "where": "3", "alpha": 8.0}} if what == "lora" else {"train": "3.*"})
    training = {"lr": 0.3, "batch_size": 10_000, "momentum": 0.5}
    run, _ = played(world(DIGITS, 1, {"kind": "fedavg", "clients_per_round": 1}, 3, training=training, model=model))
    first, found = weights(run, [run.learner.initial(), run.strategy.state["model"]])
    full, _ = played(world(DIGITS, 1, {"kind": "fedavg", "clients_per_round": 1}, 1, training=training, model=MLP))
    (drawn,) = weights(full, [full.learner.initial()])
    w1, b1, w2, b2 = (torch.tensor(part) for part in np.split(drawn, np.cumsum([64 * 13, 13, 130])))
    w1, w2 = w1.reshape(13, 64), w2.reshape(10, 13)
    trained = [torch.tensor(first[:26]).reshape(2, 13), torch.tensor(first[26:]).reshape(10, 2)] if what == "lora" else [w2, b2]
    x, y = map(torch.from_numpy, run.data.train_samples(run.data.shards[0]))  # type: ignore[union-attr]
    for _ in range(3):
        for tensor in trained:
            tensor.requires_grad_().grad = None
        hidden = torch.relu(x.flatten(1) @ w1.T + b1)
        outputs = hidden @ w2.T + b2 + (4.0 * hidden @ trained[0].T @ trained[1].T if what == "lora" else 0.0)
        nn.functional.cross_entropy(outputs, y).backward()
        trained = [(tensor - 0.3 * tensor.grad).detach() for tensor in trained]  # momentum begins anew in each round
        w2, b2 = (w2, b2) if what == "lora" else trained
    assert found == pytest.approx(torch.cat([tensor.flatten() for tensor in trained]).numpy(), abs=1e-5)
    assert np.abs(found - first).max() > 0.01


@pytest.mark.parametrize(
    ("more", "sent"), [({}, SECOND), ({"train": "*.lora_B"}, 2 * 10), ({"train": ["*.lora_?", "3.bias"]}, 56)]
)
def test_the_base_is_charged_once_and_then_what_is_trained(more: dict[str, Any], sent: int, tmp_path: Path) -> None:
    sections = world(DIGITS, 5, FEDAVG, 4, model=MLP | {"lora": {"rank": 2, "where": "3"}} | more)
    run = ran(sections, tmp_path / "run")
    asked = sum(row["selected"] > 0 for row in run.devices)
    once = asked * 4 * (BASE + SECOND - sent)
    assert run.summary["bytes"]["by_purpose"] == {"base": once} | dict.fromkeys(["model", "update"], 4 * 3 * 4 * sent)


def test_a_base_that_is_cut_off_is_downloaded_again(tmp_path: Path) -> None:
    """At 1 kB/s the base takes 3.9 s, of which a deadline leaves 2 to devices whose link is slow."""
    network = {"kind": "star", "device": {"down": {"kind": "list", "values": ["1 kB/s", "10 kB/s"]}, "up": "10 kB/s"}}
    strategy = {"kind": "fedavg", "clients_per_round": 2, "deadline": "2 s"}
    model = MLP | {"lora": {"rank": 2, "where": "3"}}
    purposes = ran(world(DIGITS, 2, strategy, 3, model=model, network=network), tmp_path / "run").summary["bytes"]["by_purpose"]
    assert purposes["update"] == 3 * 4 * SECOND
    assert purposes["base"] == pytest.approx(4 * BASE + 3 * 2000, rel=0.01)


def test_statistics_that_are_not_trained_stay_in_training_too() -> None:
    module = fit(normed(), None, "4.*").train()
    module(torch.randn(9, 8, 8))
    assert not module[2].running_mean.any()
    assert list(numbers(module)) == ["4.weight", "4.bias"]
    assert frozen_numbers(module) == 64 * 7 + 7 + 28


def test_a_run_begins_with_what_another_has_learned(tmp_path: Path) -> None:
    first = ran(world(DIGITS, 4, FEDAVG, 5, model=MLP), tmp_path / "first")
    file = str(tmp_path / "first" / "models" / "global.safetensors")
    second, _ = played(world(DIGITS, 4, FEDAVG, 1, model=MLP | {"file": file}))
    (start,) = weights(second, [second.learner.initial()])
    arrays, names = load_file(file), ("1.weight", "1.bias", "3.weight", "3.bias")
    assert (start == np.concatenate([arrays[name].ravel() for name in names])).all()
    adapted = ran(world(DIGITS, 4, FEDAVG, 1, model=MLP | {"file": file, "lora": {"rank": 4}}), tmp_path / "adapted")
    assert adapted.summary["accuracy"]["final"] == pytest.approx(first.summary["accuracy"]["final"], abs=0.15)
    assert set(adapted.models()["global"]) == {"1.lora_A", "1.lora_B", "3.lora_A", "3.lora_B"}


FACTORY = {"kind": "module", "factory": "tests.learning.test_parts:normed"}


@pytest.mark.parametrize(
    ("model", "strategy", "says"),
    [
        (MLP | {"train": "3.lora_A"}, FEDAVG, r"model\.train has '3\.lora_A'.*nearest are.*it has 1\.weight"),
        (MLP | {"lora": {"rank": 2, "where": "2"}}, FEDAVG, r"model\.lora\.where has '2'.*no such layer.*it has 1, 3"),
        (MLP | {"keep": "3.wait"}, FEDAVG, r"model\.keep has '3\.wait'.*the nearest are 3\.weight"),
        (MLP | {"keep": "*"}, FEDAVG, "every tensor of the model stays on its device"),
        (MLP | {"keep": "3.*", "send": "1.*"}, FEDAVG, "'keep' and 'send' both say"),
        (
            MLP | {"keep": "3.*"},
            FEDAVG | {"kind": "fedper"},
            r"model\.keep.*'fedper', which says so itself; allowed are fedavg",
        ),
        (MLP | {"send": "3.*"}, FEDAVG | {"kind": "scaffold"}, r"model\.send.*'scaffold', which sends them all"),
        (MLP | {"file": "nowhere.safetensors"}, FEDAVG, r"model\.file names '.*nowhere\.safetensors', which does not exist"),
        (MLP | {"file": __file__}, FEDAVG, r"model\.file: .* cannot be read as a \.safetensors file"),
        (FACTORY | {"train": "2.running_*"}, FEDAVG, "leaves no tensor to be trained by gradients"),
        ({"kind": "size", "bytes": "4 kB", "lora": {"rank": 2}}, FEDAVG, "unknown key 'lora'"),
        ({"kind": "size", "bytes": "4 kB"}, FEDAVG, "which has no weights to learn"),
    ],
)
def test_bad_parts_are_refused(model: dict[str, Any], strategy: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(fedsim.FedsimError, match=says):
        fedsim.run(fedsim.Scenario(**world(DIGITS, 6, strategy, 1, model=model)), tmp_path / "run")


def test_a_large_model_by_hand_to_the_byte(tmp_path: Path) -> None:
    """LLaMA-7B, rank 8 beside two of its projections: 4,194,304 numbers, as peft counts them."""
    card = tomllib.loads(Path("scenarios/large_model.toml").read_text(encoding="utf-8"))
    board = card["population"]["kinds"]["board"] | {"batch": "0 s", "latency": "0 s"}
    population = {"devices": 1, "samples": {"low": 7, "high": 7}, "device": "board", "kinds": {"board": board}}
    tables = card | {"population": population, "strategy": {"kind": "fedavg", "clients_per_round": 1}, "stop": {"rounds": 3}}
    run = ran(tables, tmp_path / "run").summary
    base, adapters = 2 * 6_738_415_616, 32 * 2 * 8 * (4096 + 4096)
    assert adapters == 4_194_304
    assert run["bytes"]["by_purpose"] == {"base": base} | dict.fromkeys(["model", "update"], 3 * 4 * adapters)
    down_s, up_s = 8 / 13e6, 8 / 6e6
    step = 512 * (2 * 2 * (6_738_415_616 + adapters) + 2 * adapters)  # forward, activations, and the adapters' own gradients
    update_s = (3 * 4 * adapters) / (0.6 * 204.8e9)
    compute_s = 3 * 7 * (step / (0.3 * 42.5e12) + update_s)
    sent = 3 * 4 * adapters
    assert run["simulated_s"] == pytest.approx((base + sent) * down_s + sent * up_s + compute_s, rel=1e-6)
    joules = run["energy"]["by_phase"]
    assert joules["compute"] == pytest.approx(40 * compute_s, rel=1e-6)
    assert joules["receive"] == pytest.approx(0.8 * (base + sent) * down_s, rel=1e-6)
    scenario = fedsim.Scenario(**tables | {"model": {key: value for key, value in tables["model"].items() if key != "lora"}})
    with pytest.raises(fedsim.ScenarioError, match=r"training the model takes .* no device has room"):
        fedsim.run(scenario, tmp_path / "full")
