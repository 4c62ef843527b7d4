"""Published parameter counts, FLOPs and bytes of steps, and what is said about models that cannot be."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedsim.errors import ScenarioError
from fedsim.learning.models import CNN5, Logistic, ModelSpec, ModuleModel, Perceptron, SizeOnly
from fedsim.learning.solvers.reference import module_of
from fedsim.learning.spec import TRAINERS, TrainingSpec
from fedsim.model_cost import ModelCost
from fedsim.toolbox.models import profile as counted
from fedsim.toolbox.models import published
from fedsim.toolbox.models.profile import profile
from tests.benchmarks.roofline import Recurrent
from tests.learning.small import own

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
PUBLISHED = [
    (Logistic(), MNIST, 7_850),
    (Logistic(), (60,), 610),
    (Perceptron(), MNIST, 101_770),
    (published.FemnistPerceptron(), MNIST, 407_050),
    (published.MnistCNN(), MNIST, 50_186),
    (published.FemnistCNN(), MNIST, 325_578),
    (published.FashionCNN(), MNIST, 3_274_634),
    (published.LcflCNN(), MNIST, 417_482),
    (published.LcflCifarCNN(), CIFAR, 610_142),
    (published.CflCNN(), CIFAR, 32 * 28 + 64 * 289 + 64 * 577 + 128 * 1025 + 10 * 129),
    (published.CataCNN(), CIFAR, 3_043_882),
    (published.CataCNN(), MNIST, 2_125_802),
    (CNN5(), MNIST, 454_922),
]


@pytest.mark.parametrize(("model", "shape", "count"), PUBLISHED, ids=lambda value: getattr(value, "kind", str(value)))
def test_torch_agrees_on_shapes_names_and_outputs(model: ModelSpec, shape: tuple[int, ...], count: int) -> None:
    assert model.parameters(shape, 10) == count
    architecture = model.architecture(shape, 10)  # type: ignore[union-attr]
    module = module_of(architecture).eval()
    assert [(name, tuple(p.shape)) for name, p in module.named_parameters()] == architecture.tensors
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert module(torch.zeros(2, *shape)).shape == (2, 10)
    assert architecture.shapes[-1] == (10,)


@pytest.mark.parametrize(
    ("model", "shape", "megaflops"),
    [
        (published.MnistCNN(), MNIST, 23),
        (published.LcflCNN(), MNIST, 19),
        (published.CataCNN(), MNIST, 186),
        (published.CataCNN(), CIFAR, 248),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_flops_of_a_training_step(model: ModelSpec, shape: tuple[int, ...], megaflops: int) -> None:
    assert round(model.flops(shape, 10) / 1e6) == megaflops


def test_a_module_counts_as_its_layers_do() -> None:
    model = own("Dropping", features=6, classes=3)
    assert (model.parameters((6,), 3), model.flops((6,), 3)) == (6 * 11 + 11 + 11 * 3 + 3, 3 * 2 * (6 * 11 + 11 * 3))


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("tests.learning.small", "package.module:Name"),
        ("tests.learning.smal:Quadratic", "cannot be imported"),
        ("tests.learning.small:Quadratik", "did you mean 'Quadratic'"),
        ("tests.learning.small:T", "must be a subclass of torch.nn.Module"),
        ("tests.learning.small:Counting", "a class that is not a subclass of torch.nn.Module"),
        ("tests.learning.small:not_a_module", "annotate it '-> torch.nn.Module'"),
        ("tests.learning.small:no_module_after_all", "made a int"),
        ("os:system", "a builtin_function_or_method"),
        ("tests.learning.small:Broken", "no such luck"),
        ("tests.learning.small:Normed", "give it a momentum"),
        ("tests.learning.small:Sizeless", "'last' is a LazyLinear, whose size is not known before its first use"),
        ("torch.nn:AlphaDropout", "draws random numbers"),
        ("torch.nn:ReLU", "without trainable parameters"),
    ],
)
def test_a_module_that_cannot_be_used_is_refused_with_its_reason(factory: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says) as refusal:
        ModuleModel(factory=factory).plain_module((1,), 1)
    assert factory in str(refusal.value)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        next(own("Dropping", features=6, classes=3).plain_module((6,), 3, seed).parameters()) for seed in (1, 1, 2)
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
    return float((rows[:, 0] + samples * rows[:, 1]).sum()), float((rows[:, 2] + samples * rows[:, 3]).sum())


def test_a_dense_layer_by_hand() -> None:
    """With n samples, 3 inputs, 2 outputs: y = x W' + b reads and writes 3n + 6 + 2 + 2n numbers."""
    cost = profile(nn.Linear(3, 2), (3,), 2)
    for n in (2, 7, 100):
        flops, _ = totals(cost, "forward", n)
        assert flops == 2 * n * 3 * 2
        assert cost.forward[0][:6] == pytest.approx([0.0, 12.0, 4 * (6 + 2), 4 * (3 + 2), 1.1 * 32, 1.1 * 20])
        assert cost.forward[0][6:].tolist() == [0.0, 12.0, 0.0, 0.0]  # on ARM, where a matrix product makes no further pass
        assert totals(cost, "backward", n)[0] == 2 * n * 3 * 2  # of the weights alone: nobody asks for the samples' gradient
        assert totals(cost, "update", n) == (0.0, 4 * 3 * (6 + 2))  # w <- w - lr g: two read, one written
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
        # With a stride of 2 the results' gradient is spread over four times the places, with zeros between.
        (nn.Conv2d(16, 32, 3, 2, 1), (16, 8, 8), 2 * 9 * 512 * 16, 1024 + 512, 1024 + 2048),
        # One channel each: no filling, and backward as many FLOPs again (torch's own counter says 16 times as many).
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 8, 8), 2 * 9 * 16 * 64, 2048, 2048),
        # The other way round: from 4 x 4 places to 8 x 8, each a sum over 2 x 2 of the kernel.
        (nn.ConvTranspose2d(32, 16, 2, 2), (32, 4, 4), 2 * 4 * 512 * 16, 1024 + 4 * 512, 1024 + 512),
    ],
)
def test_convolutions_by_hand(layer: nn.Module, shape: tuple[int, ...], flops: float, forward: int, backward: int) -> None:
    """A sample's FLOPs, and the numbers that it moves; in its first layer nobody asks for the samples' gradient."""
    outputs = layer(torch.zeros(1, *shape)).numel()
    only, second = (
        profile(nn.Sequential(*before, layer, nn.Flatten()), shape, outputs)
        for before in ((), (nn.Conv2d(shape[0], shape[0], 1, groups=shape[0], bias=False),))
    )
    rows = [max(part, key=lambda row: float(row[5])) for part in (only.forward, only.backward)]  # has further passes
    assert rows[0][[1, 3, 5]] == pytest.approx([flops, 4 * forward, 3.7 * 4 * forward])
    assert rows[1][[1, 3, 5]] == pytest.approx([flops, 4 * backward, 3.7 * 4 * backward])
    assert 2 * 4 * backward in second.backward[:, 3]  # where it is not the first, both gradients are asked for


def test_momentum_has_a_state_and_moves_more() -> None:
    plain, heavy = (profile(nn.Linear(30, 20), (30,), 20, TrainingSpec(momentum=momentum)) for momentum in (0.0, 0.9))
    assert heavy.memory == 1.5 * plain.memory
    assert totals(heavy, "update", 1)[1] > 2 * totals(plain, "update", 1)[1]
    adam = profile(nn.Linear(30, 20), (30,), 20, TRAINERS.spec("torch").model_validate({"kind": "torch", "optimiser": "Adam"}))
    assert adam.memory == 2 * plain.memory + 2 * 4  # weights, gradients, two moments, and a count for each of two tensors


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


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.layer(x).mean(1))
        return y


class Looks(nn.Module):
    """Looks at the values of its samples, which only real ones have."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(x if float(x.sum()) == 0 else 2 * x)
        return y


@pytest.mark.parametrize(("module", "shape"), [(Attention(), (5, 16)), (Looks(), (8,))])
def test_any_module_against_torchs_counter(module: nn.Module, shape: tuple[int, ...]) -> None:
    cost = profile(module, shape, 4)
    for n in (3, 8):
        with FlopCounterMode(display=False) as counter:
            nn.functional.cross_entropy(module(torch.zeros(n, *shape)), torch.zeros(n, dtype=torch.long)).backward()
        counted = sum(totals(cost, part, n)[0] for part in ("forward", "backward"))
        assert counted == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_what_is_kept_for_the_backward_pass() -> None:
    """Of Linear, ReLU, Linear: the samples, the ReLU's result, which the second layer keeps too, and what the loss needs."""
    wide, wider = (profile(nn.Sequential(nn.Linear(10, h), nn.ReLU(), nn.Linear(h, 2)), (10,), 2) for h in (100, 300))
    assert wider.memory_a_sample - wide.memory_a_sample == 4 * 200


def test_the_module_and_torchs_generator_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    before, state = [parameter.clone() for parameter in module.parameters()], torch.get_rng_state()
    profile(module, (4,), 4)
    assert all(torch.equal(now, then) for now, then in zip(module.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_samples_that_do_not_fit_are_refused_and_a_size_is_taken_at_its_word() -> None:
    cost = SizeOnly(bytes="4 kB", flops_per_sample=3e6).cost((1,), 2, TrainingSpec())  # type: ignore[arg-type]
    assert [totals(cost, part, 10)[0] for part in ("forward", "backward")] == [1e7, 2e7]
    assert (cost.weights, cost.memory) == (4000, 8000)
    with pytest.raises(ScenarioError, match=r"cannot be trained on samples of shape \(5,\)"):
        profile(nn.Linear(3, 2), (5,), 2)


def test_a_layer_of_lstm_is_one_kernel() -> None:
    """Four gates of 128 from 32 inputs and 128 of the step before, 20 steps; three times as much for a step of training."""
    cost = profile(Recurrent(nn.LSTM, 32, 128), (20, 32), 10)
    flops, head = 2 * 20 * 4 * 128 * (32 + 128), 2 * 128 * 10
    assert cost.forward[:, 1].sum() == pytest.approx(flops + head)
    assert cost.backward[:, 1].sum() == pytest.approx(2 * (flops + head))
    assert len(cost.forward) + len(cost.backward) < 40


def test_steps_of_recurrent_layers_cost_something_whatever_the_batch() -> None:
    """An LSTM's fused kernel by its steps, twice backward; other layers by each of the operations that torch makes of them."""
    costs = {kind: profile(Recurrent(kind, 3, 5), (7, 3), 10) for kind in (nn.LSTM, nn.GRU)}
    fixed = {kind: [part[:, 4].sum() for part in (cost.forward, cost.backward)] for kind, cost in costs.items()}
    assert fixed[nn.LSTM] == pytest.approx([7 * counted._STEP, 14 * counted._STEP], rel=0.1)
    operations = len(costs[nn.GRU].forward) + len(costs[nn.GRU].backward)
    assert sum(fixed[nn.GRU]) == pytest.approx(operations * counted._CALL, rel=0.02)
    assert operations > 7 * 20
