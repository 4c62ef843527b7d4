"""Published parameter counts, FLOPs, and what is said about models that cannot be."""

import pytest
import torch
from torch import nn

from fedsim.errors import ScenarioError
from fedsim.learning.models import CNN5, Logistic, ModelSpec, ModuleModel, Perceptron, SizeOnly
from fedsim.learning.solvers.reference import module_of
from fedsim.toolbox.models import published
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


def test_a_module_counts_as_its_layers_do_and_a_size_is_taken_at_its_word() -> None:
    model, size = own("Dropping", features=6, classes=3), SizeOnly.model_validate({"bytes": "4 MB", "flops_per_sample": 5e6})
    assert (model.parameters((6,), 3), model.flops((6,), 3)) == (6 * 11 + 11 + 11 * 3 + 3, 3 * 2 * (6 * 11 + 11 * 3))
    assert (size.parameters((1,), 2), size.flops((1,), 2)) == (1_000_000, 5e6)


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
