"""HeteroFL and HetLoRA: a smaller model within the global one is that smaller model, in numbers,
time and bytes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fedsim
from fedsim.learning.models import CNN5, Perceptron
from fedsim.toolbox.strategies.flora import merged
from fedsim.toolbox.strategies.heterofl import mean_of_holders
from fedsim.toolbox.strategies.hetlora import norm
from fedsim.toolbox.strategies.sizes import leading
from tests.strategies.runs import moved, played, ran, told, weights
from tests.strategies.worlds import Sections, world

DIGITS = {"source": "digits"}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": [13, 7]}
ADAPTED = MLP | {"lora": {"rank": 4, "alpha": 4.0}}
ONE = {"kind": "fedavg", "clients_per_round": 1}


@pytest.mark.parametrize(
    ("kind", "size", "whole", "part"),
    [
        ("heterofl", 0.5, MLP, MLP | {"width": 0.5}),
        ("heterofl", 0.3, {"kind": "cnn5"}, {"kind": "cnn5", "width": 0.3}),
        ("hetlora", 2, ADAPTED, MLP | {"lora": {"rank": 2, "alpha": 2.0}}),
    ],
)
def test_training_among_zeros_is_that_of_the_smaller_model(
    kind: str, size: float, whole: Sections, part: Sections, tmp_path: Path
) -> None:
    training = {"momentum": 0.5, "l2": 0.01, "weight_decay": 0.01}
    timed = (
        {"device": "phone-low"}
        if kind == "heterofl"
        else {"speed": "1000 samples/s", "reference_flops": 1e4}
    )
    strategy = {"kind": kind, "clients_per_round": 1, "sizes": [size]}
    sections = world(DIGITS, 1, strategy, 2, model=whole, training=training) | {
        "population": {"devices": 1} | timed
    }
    run, _ = played(sections)
    first, last = weights(run, [run.learner.initial(), run.strategy.state["model"]])
    own = run.scenario.model.cut(run.scenario.strategy.by, size).tensors(*run._shape_and_classes)
    places = leading(run.strategy.setting.tensors(), own)
    names = iter(
        np.split(
            np.concatenate([first[b:e] for b, e in places]),
            np.cumsum([tensor.size for tensor in own])[:-1],
        )
    )
    arrays = {tensor.name: next(names).reshape(tensor.shape) for tensor in own}
    if kind == "hetlora":  # the frozen layers are those of the whole model
        plain = ran(world(DIGITS, 1, ONE, 1, model=MLP, training={"lr": 1e-30}), tmp_path / "plain")
        arrays |= load_file(plain.path / "models" / "global.safetensors")
    save_file(arrays, tmp_path / "first.safetensors")
    small = ran(
        sections | {"strategy": ONE, "model": part | {"file": str(tmp_path / "first.safetensors")}},
        tmp_path / "small",
    )
    found = small.models()["global"]
    expected = np.concatenate([found[tensor.name].ravel() for tensor in own])
    assert np.concatenate([last[b:e] for b, e in places]) == pytest.approx(expected, abs=2e-6)
    assert np.abs(last - first).max() > 1e-3
    untouched = np.ones(len(first), dtype=bool)
    for begin, end in places:
        untouched[begin:end] = False
    assert (last[untouched] == (0.0 if kind == "hetlora" else first[untouched])).all()
    summary = ran(sections, tmp_path / "among").summary
    assert summary["bytes"] == small.summary["bytes"]
    assert summary["simulated_s"] == small.summary["simulated_s"]


def test_each_number_is_the_mean_over_those_who_have_it() -> None:
    model = np.array([9, 9, 9, 9], dtype=np.float32)
    updates = [
        np.array(row, dtype=np.float32) for row in ([1, 2, 3, 0], [5, 6, 0, 0], [np.nan] * 4)
    ]
    found = mean_of_holders([model, *updates], [0.25, 0.5, 0.25], [((0, 3),), ((0, 2),)], [0, 1, 1])
    assert found.tolist() == pytest.approx(
        [(0.25 * 1 + 0.5 * 5) / 0.75, (0.25 * 2 + 0.5 * 6) / 0.75, 3, 9]
    )


def test_a_norm_weighs_updates_by_hand(tmp_path: Path) -> None:
    run, _ = played(
        world(
            DIGITS,
            3,
            {"kind": "hetlora", "clients_per_round": 3, "sizes": [1, 4]},
            1,
            model=ADAPTED,
        )
    )
    tensors = run.strategy.setting.tensors()
    update = np.arange(sum(tensor.size for tensor in tensors), dtype=np.float32)
    at, total = 0, 0.0
    for rows, inputs in ((13, 64), (7, 13), (10, 7)):
        a = update[at : at + 4 * inputs].reshape(4, inputs).astype(float)
        b = (
            update[at + 4 * inputs : (at := at + 4 * (inputs + rows))]
            .reshape(rows, 4)
            .astype(float)
        )
        total += float(((b @ a) ** 2).sum())
    assert norm(update, tensors) == pytest.approx(total**0.5)


STACKED = MLP | {"lora": {"rank": 4, "alpha": 8.0}, "train": "*"}


def test_stacked_adapters_are_merged_exactly_and_charged_by_hand(tmp_path: Path) -> None:
    """One client's merge changes no answer; of two it is the mean of products.

    Adapters of rank 1: 64+13 + 13+7 + 7+10.
    """
    rank_1, whole = 114, 64 * 13 + 13 + 13 * 7 + 7 + 7 * 10 + 10 + 4 * 114
    plain = ran(
        world(DIGITS, 4, ONE, 1, model=STACKED | {"train": "*.lora_?"}), tmp_path / "plain"
    ).rounds
    one = {"kind": "flora", "clients_per_round": 1, "sizes": [4]}
    assert ran(world(DIGITS, 4, one, 1, model=STACKED), tmp_path / "one").rounds[0][
        "loss"
    ] == pytest.approx(plain[0]["loss"])

    model, *updates = (
        np.random.default_rng(1).normal(size=(4, 3 * 2 + 2 * 2 + 3 * 2)).astype(np.float32)
    )
    updates[2][0] = np.nan
    tensors = [("0.weight", [2, 3]), ("0.lora_A", [2, 3]), ("0.lora_B", [2, 2])]
    found = merged([model, *updates], np.random.default_rng(0), [0.25, 0.25, 0.5], tensors, 2.0)
    products = [update[12:].reshape(2, 2) @ update[6:12].reshape(2, 3) for update in updates[:2]]
    assert found[:6] == pytest.approx(
        (model[:6].reshape(2, 3) + (products[0] + products[1])).ravel(), abs=1e-5
    )
    assert not found[12:].any()
    assert np.abs(found[6:12]).max() <= 3**-0.5

    all_three = {"kind": "flora", "clients_per_round": 3, "sizes": [2]}
    run = ran(world(DIGITS, 3, all_three, 5, model=STACKED), tmp_path / "all")
    assert moved(run) == {
        "model": 3 * 4 * (whole + 4 * 3 * 2 * rank_1),
        "update": 5 * 3 * 4 * 2 * rank_1,
    }


def test_widths_are_drawn_again_up_to_that_of_the_kind() -> None:
    table = {
        "sizes": {"a": 1.0, "b": 0.5, "c": 0.1},
        "redraw": True,
        "kind": "heterofl",
        "clients_per_round": 3,
    }
    _, records = played(
        world(DIGITS, 3, table, 12, model=MLP) | three_kinds(memory="1 GB", memory_share=1.0)
    )
    downloads = [fields for fields in told(records, "step-end") if fields["step"] == "download"]
    assert [
        len({step["bytes"] for step in downloads if step["device"] == device})
        for device in range(3)
    ] == [3, 2, 1]


def test_a_table_needs_a_size_for_each_kind() -> None:
    table = {"kind": "heterofl", "clients_per_round": 3, "sizes": {"a": 1.0, "b": 0.5}}
    with pytest.raises(fedsim.ScenarioError, match="no size for devices of the kind 'c'"):
        played(world(DIGITS, 3, table, 1, model=MLP) | three_kinds())


def three_kinds(**of_all: Any) -> dict[str, Any]:
    """One device each of a, b and c, which have less and less memory unless all have the same."""
    kinds = {
        kind: {"like": "phone-low", "memory": size, "memory_share": 1.0} | of_all
        for kind, size in (("a", "600 kB"), ("b", "50 kB"), ("c", "15 kB"))
    }
    return {
        "population": {
            "devices": 3,
            "device": {"kind": "list", "values": list(kinds)},
            "kinds": kinds,
        }
    }


@pytest.mark.parametrize("kind", ["hetlora", "flora", "diloco", "heterofl"])
def test_models_of_tokens(kind: str) -> None:
    model = {"kind": "transformer", "hidden": 8}
    model |= (
        {"lora": {"rank": 4}, "train": "*.lora_?" if kind == "hetlora" else "*"}
        if "lora" in kind
        else {}
    )
    data = {"source": {"kind": "text", "length": 12}, "partition": "by-label"}
    strategy = {"kind": kind} | ({} if kind == "diloco" else {"clients_per_round": 2})
    sections = world(data, 14, strategy, 1, model=model, objective={"kind": "next-token"})
    if kind == "heterofl":
        with pytest.raises(
            fedsim.ScenarioError,
            match="allowed are fedsim's models of dense layers and convolutions",
        ):
            played(sections)
    else:
        assert 10 < told(played(sections)[1], "round")[0]["perplexity"] < 300


@pytest.mark.parametrize(
    ("strategy", "model", "says"),
    [
        (
            {"kind": "heterofl", "sizes": [2.0]},
            MLP,
            r"strategy\.sizes has a width of 2.*allowed are widths up to 1",
        ),
        ({"kind": "heterofl"}, ADAPTED, "with frozen tensors; allowed"),
        ({"kind": "heterofl", "sizes": {"none": 0.5}}, MLP, r"population\.device has no kinds"),
        (
            {"kind": "heterofl", "aggregation": "median"},
            MLP,
            "'median', and heterofl has updates of different sizes",
        ),
        (
            {"kind": "heterofl", "secure_aggregation": {}},
            MLP,
            "has to know which numbers each client has sent",
        ),
        (
            {"kind": "heterofl", "redraw": True},
            MLP | {"up": "top-k"},
            "another size; allowed is error_feedback = false",
        ),
        (
            {"kind": "flora"},
            STACKED | {"down": "int8"},
            "'flora' sends no model down; allowed is 'plain'",
        ),
        ({"kind": "hetlora", "sizes": [8]}, ADAPTED, r"a rank of 8, and model\.lora\.rank is 4"),
        ({"kind": "hetlora", "sizes": [1.5]}, ADAPTED, "whole numbers"),
        (
            {"kind": "flora"},
            ADAPTED,
            r"merges adapters into the weights beside them, .* model\.train = '\*'",
        ),
        ({"kind": "flora", "server": "adam"}, STACKED, "'server' is 'adam', and with flora"),
        (
            {"kind": "hetlora"},
            MLP,
            r"model\.kind is 'mlp', which has none; allowed are models with adapters",
        ),
    ],
)
def test_bad_sizes_are_refused(
    strategy: dict[str, Any], model: dict[str, Any], says: str, tmp_path: Path
) -> None:
    ways = {way: model[way] for way in ("up", "down") if way in model}
    told = {
        "model": {key: value for key, value in model.items() if key not in ways},
        "messages": ways,
    }
    with pytest.raises(fedsim.ScenarioError, match=says):
        fedsim.run(
            fedsim.Scenario(**world(DIGITS, 4, strategy | {"clients_per_round": 2}, 1, **told)),
            tmp_path / "run",
        )


@pytest.mark.parametrize("width", [0.25, 0.5, 1.0])
def test_a_narrow_model_has_the_parameters_that_the_paper_counts(width: float) -> None:
    """Of two convolutions and two dense layers, by hand."""
    a, b, c = (int(np.ceil(width * channels)) for channels in (32, 64, 128))
    expected = 25 * a + a + 25 * a * b + b + 49 * b * c + c + 10 * c + 10
    assert CNN5(width=width).parameters((1, 28, 28), 10) == expected
    assert Perceptron(hidden=[200], width=width).parameters((64,), 10) == int(200 * width) * 75 + 10


@pytest.mark.parametrize("kind", ["fedavg", "heterofl"])
def test_devices_without_room_for_the_model_take_part_with_a_smaller_one(
    kind: str, tmp_path: Path
) -> None:
    sizes = {"sizes": {"a": 1.0, "b": 0.2, "c": 0.05}} if kind == "heterofl" else {}
    sections = world(
        DIGITS,
        3,
        {"kind": kind, "clients_per_round": 3} | sizes,
        2,
        model={"kind": "mlp", "hidden": [200]},
    )
    rounds = ran(sections | three_kinds(), tmp_path / "run").rounds
    assert [row["valid"] for row in rounds] == ([3, 3] if kind == "heterofl" else [1, 1])
