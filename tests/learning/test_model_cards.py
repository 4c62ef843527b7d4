"""Model cards: memory, FLOPs and bytes by hand, and beside a transformer in torch."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

import fedsim
from fedsim.learning.architecture import LoRA
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.spec import TrainerSpec, TrainingSpec
from fedsim.toolbox.models.card import ModelCard
from fedsim.toolbox.models.tokens import Transformer
from fedsim.toolbox.objectives import NextToken
from tests.strategies.runs import ran


def card(**keys: Any) -> ModelCard:
    """A small card with adapters of rank 2 in each of four layers."""
    sizes: dict[str, Any] = {"params": 1000, "layers": 4, "dense": {"q": [10, 10]}, "tokens": 3}
    return ModelCard(**{**sizes, "lora": {"rank": 2}, **keys})


def test_the_memory_of_a_card_by_hand() -> None:
    """Adapters have 4 x 2 x 20 numbers; AdamW has two moments of each, and counts its steps."""
    adapters = 160
    plain = card().cost((), 0, TrainingSpec())
    assert plain.memory == 2 * 1000 + (4 + 4) * adapters
    assert plain.memory_a_sample == 3 * 34 * 4 * 10
    adam = TypeAdapter(TrainerSpec).validate_python({"kind": "torch", "optimizer": "AdamW"})
    assert card().cost((), 0, adam).memory == plain.memory + 4 * (2 * adapters + 8)
    packed = card(bits=4.127, vocabulary=50, recompute=True)
    cost = packed.cost((), 0, TrainingSpec())
    assert cost.memory == 516 + 8 * adapters  # 515.875 bytes, rounded up
    assert cost.memory_a_sample == 3 * (2 * 4 * 10 + 34 * 10 + 8 * 50)
    forward = 3 * 2 * (1000 + adapters)
    assert card().flops((), 0) == 2 * forward + 3 * 2 * adapters
    assert packed.flops((), 0) == 3 * forward + 3 * 2 * adapters


def test_the_last_layers_of_a_card_by_hand() -> None:
    last = card().with_last_layers(1, (), 0)
    forward = 3 * 2 * (1000 + 160)
    assert last.flops((), 0) == forward * 1.25 + 3 * 2 * 40
    cost = last.cost((), 0, TrainingSpec())
    assert cost.memory_a_sample == 3 * 34 * 10
    assert cost.memory == 2 * 1000 + 4 * 120 + 8 * 40
    with pytest.raises(fedsim.ScenarioError, match="'card' without adapters"):
        card(lora=None).with_last_layers(1, (), 0)


def test_the_formula_of_a_card_beside_a_transformer_in_torch() -> None:
    """In float32 the transformer keeps twice as many bytes, scores of attention included."""
    shape = TokenShape.of((32,), 61, "next")
    small = Transformer(hidden=64, layers=4, lora=LoRA(rank=2))
    counted = small.cost(shape, 61, TrainingSpec(), NextToken()).memory_a_sample
    outputs = 32 * 8 * 61
    assert (counted - outputs) / (32 * 4 * 64) == pytest.approx(2 * 34.0, rel=0.15)


def test_a_large_model_by_hand_to_the_byte(tmp_path: Path) -> None:
    """LLaMA-7B, rank 8 beside two of its projections: 4,194,304 numbers, as peft counts them."""
    card = tomllib.loads(Path("scenarios/large_model.toml").read_text(encoding="utf-8"))
    board = card["population"]["kinds"]["board"] | {"batch": "0 s", "latency": "0 s"}
    population = {
        "devices": 1,
        "samples": {"low": 7, "high": 7},
        "device": "board",
        "kinds": {"board": board},
    }
    tables = card | {
        "population": population,
        "strategy": {"kind": "fedavg", "clients_per_round": 1},
        "stop": {"rounds": 3},
    }
    run = ran(tables, tmp_path / "run").summary
    base, adapters = 2 * 6_738_415_616, 32 * 2 * 8 * (4096 + 4096)
    assert adapters == 4_194_304
    assert run["bytes"]["by_purpose"] == {"base": base} | dict.fromkeys(
        ["model", "update"], 3 * 4 * adapters
    )
    down_s, up_s = 8 / 13e6, 8 / 6e6
    # forward, activations, and the adapters' own gradients
    step = 512 * (2 * 2 * (6_738_415_616 + adapters) + 2 * adapters)
    update_s = (3 * 4 * adapters) / (0.6 * 204.8e9)
    compute_s = 3 * 7 * (step / (0.3 * 42.5e12) + update_s)
    sent = 3 * 4 * adapters
    assert run["simulated_s"] == pytest.approx(
        (base + sent) * down_s + sent * up_s + compute_s, rel=1e-6
    )
    joules = run["energy"]["by_phase"]
    assert joules["compute"] == pytest.approx(40 * compute_s, rel=1e-6)
    assert joules["receive"] == pytest.approx(0.8 * (base + sent) * down_s, rel=1e-6)
    scenario = fedsim.Scenario(
        **tables
        | {"model": {key: value for key, value in tables["model"].items() if key != "lora"}}
    )
    with pytest.raises(
        fedsim.ScenarioError, match=r"training the model takes .* no device has room"
    ):
        fedsim.run(scenario, tmp_path / "full")
