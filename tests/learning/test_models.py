"""Published parameter counts, FLOPs and bytes of steps; parts of a model against plain torch;
what cannot be is named.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.common.model_cost import ModelCost
from fedsim.learning.architecture import LoRA
from fedsim.learning.data.federated import TokenShape
from fedsim.learning.models import CNN5, Logistic, ModuleModel, Perceptron, SizeOnly
from fedsim.learning.modules import adapt_and_freeze, count_frozen_numbers, trained_tensors
from fedsim.learning.solvers.reference import module_of
from fedsim.learning.spec import TRAINERS, TrainingSpec
from fedsim.toolbox.models import profile as counted
from fedsim.toolbox.models import published
from fedsim.toolbox.models.images import ResNet18
from fedsim.toolbox.models.profile import profile
from fedsim.toolbox.models.tokens import CharLSTM
from tests.benchmarks.roofline import Recurrent
from tests.learning.small import own
from tests.strategies.runs import played, ran, weights
from tests.strategies.worlds import world

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
PUBLISHED: list[tuple[Any, ...]] = [
    (Logistic(), MNIST, 7_850),
    (Logistic(), (60,), 610),
    (Perceptron(), MNIST, 101_770),
    (published.FemnistPerceptron(), MNIST, 407_050),
    (published.MnistCNN(), MNIST, 50_186, 23),
    (published.FemnistCNN(), MNIST, 325_578),
    (published.FashionCNN(), MNIST, 3_274_634),
    (published.LcflCNN(), MNIST, 417_482, 19),
    (published.LcflCifarCNN(), CIFAR, 610_142),
    (published.CflCNN(), CIFAR, 32 * 28 + 64 * 289 + 64 * 577 + 128 * 1025 + 10 * 129),
    (published.CataCNN(), CIFAR, 3_043_882, 248),
    (published.CataCNN(), MNIST, 2_125_802, 186),
    (CNN5(), MNIST, 454_922),
    (published.LeafCNN(), MNIST, 6_603_710 - 52 * 2049),
    (published.EmnistCNN(), MNIST, 1_206_590 - 52 * 129),
]
"""Parameters, and the megaflops of a training step with one sample where a paper's times rest on
them.
"""


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0].kind}-{row[1]}")
def test_published_counts_and_torch_agree_on_shapes_names_and_outputs(row: tuple[Any, ...]) -> None:
    model, shape, count, *megaflops = row
    assert model.parameters(shape, 10) == count
    assert megaflops in ([], [round(model.flops(shape, 10) / 1e6)])
    architecture = model.architecture(shape, 10)
    module = module_of(architecture).eval()
    assert [(name, tuple(p.shape)) for name, p in module.named_parameters()] == architecture.tensors
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert module(torch.zeros(2, *shape)).shape == (2, 10)
    assert architecture.shapes[-1] == (10,)


def test_models_with_which_papers_compare_have_the_published_counts() -> None:
    """FEMNIST has 62 classes; Reddi et al. 2021 count 90 characters, and TensorFlow's LSTM has one
    vector of biases a layer, torch's two.
    """
    assert published.LeafCNN().parameters(MNIST, 62) == 6_603_710
    assert published.EmnistCNN().parameters(MNIST, 62) == 1_206_590
    assert ResNet18().parameters(CIFAR, 10) == 11_173_962
    assert ResNet18().parameters(CIFAR, 100) == 11_220_132
    lstm = CharLSTM(hidden=256, layers=2)
    assert lstm.parameters(TokenShape.of((80,), 90, "next"), 90) == 820_522 + 2_048


def test_resnet_takes_images_and_groups_that_divide_its_channels() -> None:
    shape = ResNet18(channels=4).plain_module((1, 20, 12), 7)(torch.zeros(2, 1, 20, 12)).shape
    assert shape == (2, 7)
    with pytest.raises(
        ScenarioError, match=r"takes images of shape .*samples are of shape \(60,\)"
    ):
        ResNet18().parameters((60,), 10)
    with pytest.raises(ValueError, match=r"'groups' is 3, which does not divide 'channels' = 64"):
        ResNet18(groups=3)


def test_a_module_counts_as_its_layers_do() -> None:
    model = own("Dropping", features=6, classes=3)
    assert (model.parameters((6,), 3), model.flops((6,), 3)) == (
        6 * 11 + 11 + 11 * 3 + 3,
        3 * 2 * (6 * 11 + 11 * 3),
    )


@pytest.mark.parametrize(
    ("factory", "args", "says"),
    [
        ("tests.learning.small:T", {}, "must be a subclass of torch.nn.Module"),
        ("tests.learning.small:Counting", {}, "a class that is not a subclass of torch.nn.Module"),
        ("tests.learning.small:not_a_module", {}, "annotate it '-> torch.nn.Module'"),
        ("tests.learning.small:no_module_after_all", {}, "made a int"),
        ("torch.nn:Linear", {}, "failed with model.args = {}: TypeError"),
        ("torch.nn:BatchNorm1d", {"num_features": 6, "momentum": None}, "give it a momentum"),
        (
            "torch.nn:LazyLinear",
            {"out_features": 3},
            "'itself' is a LazyLinear, whose size is not known before its first use",
        ),
        ("torch.nn:ReLU", {}, "without trainable parameters"),
    ],
)
def test_a_module_that_cannot_be_used_is_refused_with_its_reason(
    factory: str, args: dict[str, Any], says: str
) -> None:
    with pytest.raises(ScenarioError, match=says) as refusal:
        ModuleModel(factory=factory, args=args).plain_module((1,), 1)
    assert factory in str(refusal.value)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    model = own("Dropping", features=6, classes=3)
    first, again, other = (
        next(model.plain_module((6,), 3, seed).parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_models_that_do_not_fit_the_samples() -> None:
    with pytest.raises(ScenarioError, match="channels, height, width"):
        CNN5().architecture((60,), 10).shapes  # noqa: B018
    with pytest.raises(ScenarioError, match="larger images"):
        published.LcflCifarCNN().parameters((3, 8, 8), 10)
    with pytest.raises(ScenarioError, match="cannot take samples of shape"):
        own("Dropping", features=6, classes=3).flops((5,), 3)


def totals(cost: ModelCost, part: str, samples: int) -> tuple[float, float]:
    """FLOPs and bytes of a part of a step."""
    rows = getattr(cost, part)
    return float((rows[:, 0] + samples * rows[:, 1]).sum()), float(
        (rows[:, 2] + samples * rows[:, 3]).sum()
    )


def test_a_dense_layer_by_hand() -> None:
    """With n samples, 3 inputs, 2 outputs: y = x W' + b reads and writes 3n + 6 + 2 + 2n
    numbers.
    """
    cost = profile(nn.Linear(3, 2), (3,))
    for n in (2, 7, 100):
        flops, _ = totals(cost, "forward", n)
        assert flops == 2 * n * 3 * 2
        assert cost.forward[0][:6] == pytest.approx(
            [0.0, 12.0, 4 * (6 + 2), 4 * (3 + 2), 1.1 * 32, 1.1 * 20]
        )
        # on ARM, where a matrix product makes no further pass
        assert cost.forward[0][6:].tolist() == [0.0, 12.0, 0.0, 0.0]
        # of the weights alone: nobody asks for the samples' gradient
        assert totals(cost, "backward", n)[0] == 2 * n * 3 * 2
        # w <- w - lr g: two read, one written
        assert totals(cost, "update", n) == (0.0, 4 * 3 * (6 + 2))
    assert cost.weights == 4 * 8
    assert cost.memory == 2 * 4 * 8


@pytest.mark.parametrize(
    ("layer", "shape", "flops", "forward", "backward"),
    [
        # 16 and 32 channels fill registers: 2 x 9 x 16 x 32 at each of 64 places.
        (nn.Conv2d(16, 32, 3, padding=1), (16, 8, 8), 2 * 9 * 512 * 64, 1024 + 2048, 1024 + 2048),
        # 24 channels take the room of 32; a first layer's 3 are taken as they are.
        (nn.Conv2d(16, 24, 1), (16, 8, 8), 2 * 16 * 32 * 64, 1024 + 24 * 64, 1024 + 24 * 64),
        (nn.Conv2d(3, 32, 1), (3, 8, 8), 2 * 3 * 32 * 64, 192 + 2048, 192 + 2048),
        # With a stride of 2 the results' gradient is spread over four times the places, with zeros
        # between.
        (nn.Conv2d(16, 32, 3, 2, 1), (16, 8, 8), 2 * 9 * 512 * 16, 1024 + 512, 1024 + 2048),
        # One channel each: no filling, and backward as many FLOPs again (torch's own counter says
        # 16 times as many).
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 8, 8), 2 * 9 * 16 * 64, 2048, 2048),
        # The other way round: from 4 x 4 places to 8 x 8, each a sum over 2 x 2 of the kernel.
        (
            nn.ConvTranspose2d(32, 16, 2, 2),
            (32, 4, 4),
            2 * 4 * 512 * 16,
            1024 + 4 * 512,
            1024 + 512,
        ),
    ],
)
def test_convolutions_by_hand(
    layer: nn.Module, shape: tuple[int, ...], flops: float, forward: int, backward: int
) -> None:
    """A sample's FLOPs, and the numbers that it moves; in its first layer nobody asks for the
    samples' gradient.
    """
    only, second = (
        profile(nn.Sequential(*before, layer, nn.Flatten()), shape)
        for before in ((), (nn.Conv2d(shape[0], shape[0], 1, groups=shape[0], bias=False),))
    )
    # has further passes
    rows = [max(part, key=lambda row: float(row[5])) for part in (only.forward, only.backward)]
    assert rows[0][[1, 3, 5]] == pytest.approx([flops, 4 * forward, 3.7 * 4 * forward])
    assert rows[1][[1, 3, 5]] == pytest.approx([flops, 4 * backward, 3.7 * 4 * backward])
    # where it is not the first, both gradients are asked for
    assert 2 * 4 * backward in second.backward[:, 3]


def test_momentum_has_a_state_and_moves_more() -> None:
    plain, heavy = (
        profile(nn.Linear(30, 20), (30,), TrainingSpec(momentum=momentum))
        for momentum in (0.0, 0.9)
    )
    assert heavy.memory == 1.5 * plain.memory
    assert totals(heavy, "update", 1)[1] > 2 * totals(plain, "update", 1)[1]
    adam = profile(
        nn.Linear(30, 20),
        (30,),
        TRAINERS.spec("torch").model_validate({"kind": "torch", "optimizer": "Adam"}),
    )
    # weights, gradients, two moments, and a count for each of two tensors
    assert adam.memory == 2 * plain.memory + 2 * 4


@pytest.mark.parametrize("model", [Logistic(), CNN5()])
def test_flops_are_what_the_model_says_of_itself(model: Any) -> None:
    """Its rule is three forward passes; the first layer has no gradient of its input."""
    cost = model.cost((1, 28, 28), 10, TrainingSpec())
    step = sum(totals(cost, part, 1)[0] for part in ("forward", "backward"))
    first = model.architecture((1, 28, 28), 10).trained()
    _, layer = next(iter(first))
    sites = 28 * 28 if isinstance(model, CNN5) else 1
    inner = 2 * sites * math.prod(layer.kernel_shape)
    assert step == pytest.approx(model.flops((1, 28, 28), 10) - inner)
    assert cost.weights == 4 * model.parameters((1, 28, 28), 10)


class Attending(nn.Module):
    """A transformer's layer over the rows of a digit."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.layer(x.reshape(-1, 8, 8)).flatten(1))
        return found


class Looks(nn.Module):
    """Looks at the values of its samples, which only real ones have."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(x if float(x.sum()) == 0 else 2 * x)
        return y


@pytest.mark.parametrize(("module", "shape"), [(Attending(0.1), (8, 8)), (Looks(), (8,))])
def test_any_module_against_torchs_counter(module: nn.Module, shape: tuple[int, ...]) -> None:
    cost = profile(module, shape)
    for n in (3, 8):
        with FlopCounterMode(display=False) as counter:
            nn.functional.cross_entropy(
                module(torch.zeros(n, *shape)), torch.zeros(n, dtype=torch.long)
            ).backward()
        counted = sum(totals(cost, part, n)[0] for part in ("forward", "backward"))
        assert counted == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_what_is_kept_for_the_backward_pass() -> None:
    """Of Linear, ReLU, Linear: the samples, the ReLU's result, which the second layer keeps too,
    and what the loss needs.
    """
    wide, wider = (
        profile(nn.Sequential(nn.Linear(10, h), nn.ReLU(), nn.Linear(h, 2)), (10,))
        for h in (100, 300)
    )
    assert wider.memory_a_sample - wide.memory_a_sample == 4 * 200


def test_the_module_and_torchs_generator_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    before, state = [parameter.clone() for parameter in module.parameters()], torch.get_rng_state()
    profile(module, (4,))
    assert all(
        torch.equal(now, then) for now, then in zip(module.parameters(), before, strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_samples_that_do_not_fit_are_refused_and_a_size_is_taken_at_its_word() -> None:
    cost = SizeOnly(bytes="4 kB", flops_per_sample=3e6).cost((1,), 2, TrainingSpec())  # type: ignore[arg-type]
    assert [totals(cost, part, 10)[0] for part in ("forward", "backward")] == [1e7, 2e7]
    assert (cost.weights, cost.memory) == (4000, 8000)
    with pytest.raises(ScenarioError, match=r"cannot be trained on samples of shape \(5,\)"):
        profile(nn.Linear(3, 2), (5,))


def test_a_layer_of_lstm_is_one_kernel() -> None:
    """Four gates of 128 from 32 inputs and 128 of the step before, 20 steps; three times as much
    for a step of training.
    """
    cost = profile(Recurrent(nn.LSTM, 32, 128), (20, 32))
    flops, head = 2 * 20 * 4 * 128 * (32 + 128), 2 * 128 * 10
    assert cost.forward[:, 1].sum() == pytest.approx(flops + head)
    assert cost.backward[:, 1].sum() == pytest.approx(2 * (flops + head))
    assert len(cost.forward) + len(cost.backward) < 40


def test_steps_of_recurrent_layers_cost_something_whatever_the_batch() -> None:
    """An LSTM's fused kernel by its steps, twice backward; other layers by each of the
    operations that torch makes of them.
    """
    costs = {kind: profile(Recurrent(kind, 3, 5), (7, 3)) for kind in (nn.LSTM, nn.GRU)}
    fixed = {
        kind: [part[:, 4].sum() for part in (cost.forward, cost.backward)]
        for kind, cost in costs.items()
    }
    assert fixed[nn.LSTM] == pytest.approx(
        [7 * counted._LSTM_STEP_BYTES, 14 * counted._LSTM_STEP_BYTES], rel=0.1
    )
    operations = len(costs[nn.GRU].forward) + len(costs[nn.GRU].backward)
    assert sum(fixed[nn.GRU]) == pytest.approx(operations * counted._CALL_BYTES, rel=0.02)
    assert operations > 7 * 20


# Parts of a model: adapters, frozen tensors, weights from a file.


DIGITS = {"source": "digits"}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": [13]}
FEDAVG = {"kind": "fedavg", "clients_per_round": 3}
# numbers of the model, and of the upper layer's adapter of rank 2
BASE, SECOND = 64 * 13 + 13 + 13 * 10 + 10, 2 * (13 + 10)


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 10)
    )


@pytest.mark.parametrize("trains", [True, False])
def test_an_adapted_layer_is_one_with_another_weight(trains: bool) -> None:
    torch.manual_seed(0)
    module = Attending().train(trains)
    adapted = adapt_and_freeze(Attending().train(trains), LoRA(rank=3, alpha=6.0), None, seed=1)
    adapted.load_state_dict(module.state_dict(), strict=False)
    x, moved = torch.randn(5, 8, 8), []
    with torch.no_grad():
        assert torch.allclose(adapted(x), module(x), atol=1e-6)  # B is 0
        for name, tensor in trained_tensors(adapted).items():
            if name.endswith("lora_B"):
                tensor.normal_()
                layer = name.removesuffix(".lora_B")
                module.get_submodule(layer).weight += (
                    2.0 * tensor @ trained_tensors(adapted)[f"{layer}.lora_A"]
                )
                moved.append(layer)
        # attention's own output goes past its module
        assert moved == ["layer.linear1", "layer.linear2", "out"]
        assert torch.allclose(adapted(x), module(x), atol=1e-5)


@pytest.mark.parametrize("what", ["lora", "train"])
def test_one_device_trains_as_a_plain_loop_does(what: str) -> None:
    model = MLP | (
        {"lora": {"rank": 2, "where": "3", "alpha": 8.0}} if what == "lora" else {"train": "3.*"}
    )
    training = {"lr": 0.3, "batch_size": 10_000, "momentum": 0.5}
    run, _ = played(
        world(
            DIGITS, 1, {"kind": "fedavg", "clients_per_round": 1}, 3, training=training, model=model
        )
    )
    first, found = weights(run, [run.learner.initial(), run.strategy.state["model"]])
    full, _ = played(
        world(
            DIGITS, 1, {"kind": "fedavg", "clients_per_round": 1}, 1, training=training, model=MLP
        )
    )
    (drawn,) = weights(full, [full.learner.initial()])
    w1, b1, w2, b2 = (torch.tensor(part) for part in np.split(drawn, np.cumsum([64 * 13, 13, 130])))
    w1, w2 = w1.reshape(13, 64), w2.reshape(10, 13)
    trained = (
        [torch.tensor(first[:26]).reshape(2, 13), torch.tensor(first[26:]).reshape(10, 2)]
        if what == "lora"
        else [w2, b2]
    )
    x, y = map(torch.from_numpy, run.data.train_samples(run.data.shards[0]))  # type: ignore[union-attr]
    for _ in range(3):
        for tensor in trained:
            tensor.requires_grad_().grad = None
        hidden = torch.relu(x.flatten(1) @ w1.T + b1)
        outputs = (
            hidden @ w2.T
            + b2
            + (4.0 * hidden @ trained[0].T @ trained[1].T if what == "lora" else 0.0)
        )
        nn.functional.cross_entropy(outputs, y).backward()
        # momentum begins anew in each round
        trained = [(tensor - 0.3 * tensor.grad).detach() for tensor in trained]
        w2, b2 = (w2, b2) if what == "lora" else trained
    assert found == pytest.approx(
        torch.cat([tensor.flatten() for tensor in trained]).numpy(), abs=1e-5
    )
    assert np.abs(found - first).max() > 0.01


@pytest.mark.parametrize(
    ("more", "sent"),
    [({}, SECOND), ({"train": "*.lora_B"}, 2 * 10), ({"train": ["*.lora_?", "3.bias"]}, 56)],
)
def test_the_base_is_charged_once_and_then_what_is_trained(
    more: dict[str, Any], sent: int, tmp_path: Path
) -> None:
    sections = world(DIGITS, 5, FEDAVG, 4, model=MLP | {"lora": {"rank": 2, "where": "3"}} | more)
    run = ran(sections, tmp_path / "run")
    asked = sum(row["selected"] > 0 for row in run.devices)
    once = asked * 4 * (BASE + SECOND - sent)
    assert run.summary["bytes"]["by_purpose"] == {"base": once} | dict.fromkeys(
        ["model", "update"], 4 * 3 * 4 * sent
    )


def test_a_base_that_is_cut_off_is_downloaded_again(tmp_path: Path) -> None:
    """At 1 kB/s the base takes 3.9 s, of which a deadline leaves 2 to devices whose link is
    slow.
    """
    network = {
        "kind": "star",
        "device": {"down": {"kind": "list", "values": ["1 kB/s", "10 kB/s"]}, "up": "10 kB/s"},
    }
    strategy = {"kind": "fedavg", "clients_per_round": 2, "deadline": "2 s"}
    model = MLP | {"lora": {"rank": 2, "where": "3"}}
    purposes = ran(
        world(DIGITS, 2, strategy, 3, model=model, network=network), tmp_path / "run"
    ).summary["bytes"]["by_purpose"]
    assert purposes["update"] == 3 * 4 * SECOND
    assert purposes["base"] == pytest.approx(4 * BASE + 3 * 2000, rel=0.01)


def test_statistics_that_are_not_trained_stay_in_training_too() -> None:
    module = adapt_and_freeze(normed(), None, "4.*").train()
    module(torch.randn(9, 8, 8))
    assert not module[2].running_mean.any()
    assert list(trained_tensors(module)) == ["4.weight", "4.bias"]
    assert count_frozen_numbers(module) == 64 * 7 + 7 + 28


def test_a_run_begins_with_what_another_has_learned(tmp_path: Path) -> None:
    first = ran(world(DIGITS, 4, FEDAVG, 5, model=MLP), tmp_path / "first")
    file = str(tmp_path / "first" / "models" / "global.safetensors")
    second, _ = played(world(DIGITS, 4, FEDAVG, 1, model=MLP | {"file": file}))
    (start,) = weights(second, [second.learner.initial()])
    arrays, names = load_file(file), ("1.weight", "1.bias", "3.weight", "3.bias")
    assert (start == np.concatenate([arrays[name].ravel() for name in names])).all()
    adapted = ran(
        world(DIGITS, 4, FEDAVG, 1, model=MLP | {"file": file, "lora": {"rank": 4}}),
        tmp_path / "adapted",
    )
    assert adapted.summary["accuracy"]["final"] == pytest.approx(
        first.summary["accuracy"]["final"], abs=0.15
    )
    assert set(adapted.models()["global"]) == {"1.lora_A", "1.lora_B", "3.lora_A", "3.lora_B"}


FACTORY = {"kind": "module", "factory": "tests.learning.test_models:normed"}


@pytest.mark.parametrize(
    ("model", "strategy", "says"),
    [
        (MLP | {"train": "3.lora_A"}, FEDAVG, r"model\.train has '3\.lora_A'.*it has 1\.weight"),
        (
            MLP | {"lora": {"rank": 2, "where": "2"}},
            FEDAVG,
            r"model\.lora\.where has '2'.*no such layer.*it has 1, 3",
        ),
        (MLP | {"keep": "3.wait"}, FEDAVG, r"model\.keep has '3\.wait'.*did you mean '3\.weight'"),
        (MLP | {"keep": "*"}, FEDAVG, "every tensor of the model stays on its device"),
        (MLP | {"keep": "3.*", "send": "1.*"}, FEDAVG, "'keep' and 'send' both say"),
        (
            MLP | {"keep": "3.*"},
            FEDAVG | {"kind": "fedper"},
            r"model\.keep.*'fedper', which says so itself; allowed are fedavg",
        ),
        (
            MLP | {"send": "3.*"},
            FEDAVG | {"kind": "scaffold"},
            r"model\.send.*'scaffold', which sends them all",
        ),
        (
            MLP | {"file": "nowhere.safetensors"},
            FEDAVG,
            r"model\.file names '.*nowhere\.safetensors', which does not exist",
        ),
        (
            MLP | {"file": __file__},
            FEDAVG,
            r"test_models\.py. cannot be read as a \.safetensors file",
        ),
        (FACTORY | {"train": "2.running_*"}, FEDAVG, "leaves no tensor to be trained by gradients"),
        (
            {"kind": "module", "factory": "tests.learning.zoo:Normed", "train": "b.*"},
            FEDAVG,
            r"leaves 'norm\.scale' changed",
        ),
        ({"kind": "size", "bytes": "4 kB", "lora": {"rank": 2}}, FEDAVG, "unknown key 'lora'"),
        ({"kind": "size", "bytes": "4 kB"}, FEDAVG, "which has no weights to learn"),
    ],
)
def test_bad_parts_are_refused(
    model: dict[str, Any], strategy: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(fedsim.FedsimError, match=says):
        fedsim.run(fedsim.Scenario(**world(DIGITS, 6, strategy, 1, model=model)), tmp_path / "run")
