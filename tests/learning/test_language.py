"""Causal language models of transformers with adapters of peft, beside these packages alone."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsim
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError
from fedsim.common.training import Training
from fedsim.learning.architecture import LoRA
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.modules import trained_tensors
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.testing import assert_same_run, assert_sound, go_on, run, run_until
from fedsim.toolbox.models.language import LanguageModel

Sections = dict[str, Any]
HAS_PACKAGES = find_spec("transformers") is not None and find_spec("peft") is not None
needs_packages = pytest.mark.skipif(
    not HAS_PACKAGES, reason="needs pip install 'transformers>=5' 'peft>=0.18'"
)
SHAPE = TokenShape.of((16,), 61, "next")
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2}
LLAMA = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
}
MODELS: dict[str, Sections] = {
    "gpt2": {"kind": "language", "config": GPT2, "lora": {"rank": 4, "where": "*.c_attn"}},
    "llama": {
        "kind": "language",
        "family": "llama",
        "config": LLAMA,
        "lora": {"rank": 4, "where": ["*.q_proj", "*.v_proj"]},
    },
}


def world(model: Sections, **others: Any) -> Sections:
    sections: Sections = {
        "seed": 2,
        "data": {"source": "text", "partition": "by-label"},
        "objective": {"kind": "next-token"},
        "model": model,
        "training": {"kind": "torch", "optimizer": "AdamW", "lr": 0.01, "batch_size": 16},
        "population": {"devices": 14, "speed": "200 samples/s"},
        "strategy": {"kind": "fedavg", "clients_per_round": 3},
        "stop": {"rounds": 2},
    }
    return sections | others


@needs_packages
def test_numbers_by_hand() -> None:
    """A block of GPT-2 of width h has 12 h^2 + 13 h numbers; the outputs are the embedding."""
    h = 16
    model = LanguageModel(config=GPT2)
    whole = 61 * h + 16 * h + 2 * (12 * h * h + 13 * h) + 2 * h
    assert model.parameters(SHAPE, 61) == whole
    adapted = LanguageModel(config=GPT2, lora=LoRA(rank=4, where="*.c_attn"))
    assert adapted.parameters(SHAPE, 61) == 2 * 4 * (h + 3 * h)
    assert adapted.base_bytes(SHAPE, 61) == 4 * whole


@needs_packages
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, from within peft
@pytest.mark.parametrize("family", MODELS)
def test_a_step_is_that_of_peft_alone(family: str) -> None:
    """The same weights, tokens and learning rate, by transformers, peft and torch alone."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sections = world(MODELS[family], training={"lr": 0.5, "batch_size": 1000})
    sections["population"] |= {"devices": 1}
    sections["data"] = {"source": "text"}
    sections["strategy"] = {"kind": "fedavg", "clients_per_round": 1}
    sections["stop"] = {"rounds": 1}
    ours = Run(fedsim.Scenario(**sections), Simulation())
    assert ours.data is not None
    module = ours.learner._module(0, 0)  # type: ignore[attr-defined]
    where = MODELS[family]["lora"]["where"]
    targets = [where] if isinstance(where, str) else where
    config = GPT2 | {"n_positions": 80} if family == "gpt2" else LLAMA
    still = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    config = config | (still if family == "gpt2" else {})
    shape = ours._shape_and_classes[0]
    settings = AutoConfig.for_model(family, **config, vocab_size=shape.vocabulary)
    if family == "gpt2":
        settings.n_positions = shape[0]
    theirs = AutoModelForCausalLM.from_config(settings)
    theirs = get_peft_model(
        theirs,
        LoraConfig(
            r=4,
            lora_alpha=16.0,
            target_modules=[target.removeprefix("*.") for target in targets],
            fan_in_fan_out=family == "gpt2",
        ),
    )
    state = {f"base_model.{name}": tensor for name, tensor in module.state_dict().items()}
    theirs.load_state_dict(state)
    x = torch.arange(2 * shape[0]).reshape(2, -1) % shape.vocabulary
    y = torch.roll(x, -1, dims=1)
    for model, apply in ((module, module), (theirs, lambda x: theirs(input_ids=x).logits)):
        trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
        optimiser = torch.optim.SGD(trained, 0.5)
        for _ in range(2):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(apply(x).flatten(0, 1), y.flatten()).backward()
            optimiser.step()
    expected = dict(theirs.named_parameters())
    for name, tensor in trained_tensors(module).items():
        assert torch.allclose(tensor, expected[f"base_model.{name}"], atol=1e-6)


@needs_packages
def test_it_is_tuned_in_simulated_time(tmp_path: Path) -> None:
    sections = world(MODELS["llama"], stop={"rounds": 4})
    run(sections, tmp_path / "r")
    folder = assert_sound(tmp_path / "r")
    perplexities = [row["perplexity"] for row in folder.rounds]
    assert perplexities[-1] < perplexities[0] - 1.0
    assert run_until(sections, tmp_path / "cut", 60) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "r", tmp_path / "cut")


@needs_packages
@pytest.mark.parametrize("family", MODELS)
def test_ranks_by_kind_of_device(family: str, tmp_path: Path) -> None:
    """Updates of both ranks are filled up with zeros; a device sends the numbers of its rank."""
    sections = world(MODELS[family])
    sections["population"] = {"devices": 14, "device": ["phone-high", "phone-low"] * 7}
    sizes = {"phone-high": 4, "phone-low": 1}
    sections["strategy"] = {"kind": "hetlora", "clients_per_round": 6, "sizes": sizes}
    run(sections, tmp_path / "r")
    folder = assert_sound(tmp_path / "r")
    rank_1 = Run(fedsim.Scenario(**sections), Simulation()).learner.parameters / 4
    sent = {}
    for row in folder.transfers:
        if row["direction"] == "up":
            sent[row["device"] % 2] = row["bytes"]
    assert sent == {0: 4 * 4 * rank_1, 1: 4 * rank_1}
    run(sections | {"training": {"lr": 1e-30}}, tmp_path / "still")
    before = RunFolder(tmp_path / "still").models()["global"]
    after = folder.models()["global"]
    moved = [float(np.abs(after[name] - before[name]).max()) for name in after]
    assert min(moved) > 0


@needs_packages
def test_adapters_begin_from_an_earlier_run_of_the_whole_model(tmp_path: Path) -> None:
    whole = {key: MODELS["gpt2"][key] for key in ("kind", "config")}
    run(world(whole, stop={"rounds": 1}), tmp_path / "whole")
    file = tmp_path / "whole" / "models" / "global.safetensors"
    tuned = Run(fedsim.Scenario(**world(MODELS["gpt2"] | {"file": str(file)})), Simulation())
    module = tuned.learner._module(0, 0)  # type: ignore[attr-defined]
    layer = "model.transformer.h.1.attn.c_attn"
    weight = module.state_dict()[f"{layer}.base_layer.weight"].numpy()
    assert (weight == RunFolder(tmp_path / "whole").models()["global"][f"{layer}.weight"]).all()


@needs_packages
def test_a_device_without_the_memory_tunes_the_last_block(tmp_path: Path) -> None:
    sections = world(MODELS["gpt2"])
    rooflines = Run(
        fedsim.Scenario(**sections | {"population": {"devices": 14, "device": "laptop"}}),
        Simulation(),
    ).population.rooflines
    assert rooflines is not None
    needs = [rooflines.needed(Training(None, layers=count), 100) for count in (1, 2)]
    assert needs[0] < needs[1]
    small = {"like": "phone-low", "memory_share": 1.0, "memory": f"{int(sum(needs) / 2)} B"}
    sections["population"] = {
        "devices": 14,
        "device": "small",
        "kinds": {"small": small},
        "short_of_memory": "fewer-layers",
    }
    run(sections, tmp_path / "r")
    folder = assert_sound(tmp_path / "r")
    ends = [event for event in folder.events if event["kind"] == "step-end"]
    assert {event["data"]["layers"] for event in ends if event["step"] == "train"} == {1}


@needs_packages
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"family": "gpt22"}}, "model.family is 'gpt22'.*did you mean 'gpt2'"),
        ({"model": {"config": {"layers": 2}}}, "model.config has 'layers'"),
        ({"model": {"config": {"n_embd": 15, "n_head": 2}}}, "failed with model.config"),
        ({"model": {"lora": {"rank": 2, "where": "*.q_proj"}}}, "model.lora.where has"),
        ({"objective": {"kind": "classification"}}, "allowed is objective.kind = 'next-token'"),
        (
            {"strategy": {"kind": "flora", "clients_per_round": 3}},
            "'flora', which merges adapters",
        ),
    ],
)
def test_what_is_refused(change: Sections, message: str) -> None:
    model = MODELS["gpt2"] | change.pop("model", {})
    with pytest.raises(ScenarioError, match=message):
        Run(fedsim.Scenario(**world(model, **change)), Simulation())


@pytest.mark.skipif(HAS_PACKAGES, reason="transformers and peft are installed")
def test_without_the_packages_it_says_what_to_install() -> None:
    with pytest.raises(ScenarioError, match=r"pip install 'transformers>=5' 'peft>=0.18' installs"):
        Run(fedsim.Scenario(**world(MODELS["gpt2"])), Simulation())


def test_the_model_is_written_as_it_is_read() -> None:
    scenario = fedsim.Scenario(**world(MODELS["llama"]))
    assert json.loads(scenario.model.model_dump_json())["config"] == LLAMA
