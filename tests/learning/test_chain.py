"""Chains in closed form against autograd, and equality bit for bit whoever else trains."""

import pickle
import threading
from dataclasses import replace
from fractions import Fraction
from operator import mul

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsim.learning.architecture import (
    Architecture,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    ReLU,
    Shape,
    dense,
)
from fedsim.learning.models import CNN5, CataCNN, FemnistCNN, MnistCNN, ModelSpec
from fedsim.learning.solvers import winograd, winograd_loops
from fedsim.learning.solvers.base import Descent, LocalSolve, Solver, compute_with_one_thread
from fedsim.learning.solvers.chain import Chain
from fedsim.learning.solvers.dropout import KeyedDropout, step_key, with_keyed_dropout
from fedsim.learning.solvers.layers import Dropout as KeyedMask
from fedsim.learning.solvers.reference import Reference, load_weights, module_of
from fedsim.learning.solvers.stacked import Stacked
from tests.learning.small import PULLS, RULES, plain_sgd, pulled, solve_of

PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
RAGGED = (23, 4, 10, 1, 17)
CPU = torch.device("cpu")
CLASSES = 5

FRONTS: dict[str, tuple[Shape, tuple[Layer, ...]]] = {
    "no convolution": ((11,), (ReLU(), Linear(11, 9), Dropout(0.3), ReLU())),
    "one channel": ((1, 9, 7), (Conv2d(1, 4, 3), ReLU())),
    "without pool or ReLU": ((2, 6, 6), (Conv2d(2, 9, 3, padding=1), Conv2d(9, 8, 5, padding=2))),
    "unpadded 5x5 of many channels": ((8, 11, 9), (Conv2d(8, 9, 5), ReLU())),
    "3x3 of many channels": ((9, 10, 6), (Conv2d(9, 17, 3, padding=1), MaxPool2d(2), ReLU(), Conv2d(17, 8, 3, padding=2))),
    "strides": ((3, 12, 11), (Conv2d(3, 10, 5, 2, 2), ReLU(), Conv2d(10, 9, 3, 2, 1), ReLU())),
    "even kernels": ((2, 9, 9), (Conv2d(2, 4, 4, 1, 1), ReLU(), Conv2d(4, 9, 2, 2, 1), Conv2d(9, 9, 2), MaxPool2d(3))),
    "1x1": ((3, 5, 5), (Conv2d(3, 8, 1), ReLU(), Conv2d(8, 8, 1), ReLU(), MaxPool2d(2))),
    "pool first": ((2, 9, 9), (MaxPool2d(2), ReLU(), Dropout(0.2), Conv2d(2, 8, 3))),
    "dropout between": ((8, 8, 8), (Conv2d(8, 8, 3), ReLU(), Dropout(0.4), Conv2d(8, 8, 5, 2, 2), ReLU(), Dropout(0.4))),
    "dropout of nothing": ((1, 8, 8), (Conv2d(1, 8, 3), Dropout(0.0), MaxPool2d(2), Dropout(0.5), ReLU())),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    compute_with_one_thread()


def _architecture(name: str) -> Architecture:
    shape, front = FRONTS[name]
    features = Architecture(shape, (*front, Flatten())).shapes[-1][0]
    return Architecture(shape, (*front, Flatten(), *dense(features, 12, CLASSES)))


def _start(architecture: Architecture, seed: int, dtype: type = np.float32) -> np.ndarray:
    """Kernels that keep the size of activations, and small biases."""
    draw = np.random.default_rng(seed)
    parts = [draw.normal(0, np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1, shape) for _, shape in architecture.tensors]
    return np.concatenate([part.ravel() for part in parts]).astype(dtype)


def _kernels(architecture: Architecture) -> list[str]:
    return [name for name, shape in architecture.tensors if len(shape) > 1]


class _Keyed(nn.Module):
    """A module whose keyed dropout counts the steps by itself."""

    def __init__(self, module: nn.Module, key: int) -> None:
        super().__init__()
        self.chain = with_keyed_dropout(module)
        self.key, self.step = key, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.chain.modules():
            if isinstance(part, KeyedDropout):
                part.key.fill_(step_key(self.key, self.step))
        self.step += 1
        return self.chain(x)  # type: ignore[no-any-return]


def _by_autograd(architecture: Architecture, solve: LocalSolve, rule: Descent, dtype: torch.dtype) -> tuple[np.ndarray, float]:
    module = _Keyed(module_of(architecture).to(dtype), solve.key).train()
    load_weights(list(module.parameters()), solve.weights)
    return plain_sgd(module, solve, rule, [f"chain.{name}" for name in _kernels(architecture)])


@PRECISIONS
@pytest.mark.parametrize("name", FRONTS)
def test_every_gradient_is_that_of_autograd(name: str, dtype: torch.dtype, tolerance: float) -> None:
    architecture = _architecture(name)
    number = np.float32 if dtype == torch.float32 else np.float64
    solve = solve_of(_start(architecture, 1, number), 6, architecture.input, CLASSES, seed=2, epochs=1)
    (trained,) = Chain(architecture, dtype).solve([solve], Descent(1.0))
    expected, loss = _by_autograd(architecture, solve, Descent(1.0), dtype)
    assert trained.train_loss == pytest.approx(loss, rel=max(tolerance, 1e-6))
    at = 0
    for tensor, shape in architecture.tensors:
        part = slice(at, at + int(np.prod(shape)))
        at = part.stop
        gradient = expected[part] - solve.weights[part]
        assert np.linalg.norm(trained.weights[part] - expected[part]) <= tolerance * np.linalg.norm(gradient), tensor


def test_the_numbers_of_an_image_may_be_the_logits() -> None:
    architecture = Architecture((2, 3, 5), (Conv2d(2, 2, 3), Flatten()))
    solve = solve_of(_start(architecture, 1, np.float64), 6, architecture.input, CLASSES, seed=2, epochs=1)
    (trained,) = Chain(architecture, torch.float64).solve([solve], Descent(1.0))
    expected, _ = _by_autograd(architecture, solve, Descent(1.0), torch.float64)
    assert np.abs(trained.weights - expected).max() <= 1e-12


@PRECISIONS
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", ["one channel", "3x3 of many channels", "strides", "dropout between"])
def test_training_is_that_of_autograd(name: str, rule: Descent, dtype: torch.dtype, tolerance: float) -> None:
    architecture = _architecture(name)
    number = np.float32 if dtype == torch.float32 else np.float64
    solves = [
        pulled(solve_of(_start(architecture, 100 + at, number), n, architecture.input, CLASSES, seed=at), pull)
        for at, n in enumerate(RAGGED)
        for pull in PULLS
    ]
    for solve, (weights, loss) in zip(solves, Chain(architecture, dtype).solve(solves, rule), strict=True):
        expected, expected_loss = _by_autograd(architecture, solve, rule, dtype)
        assert np.abs(weights - expected).max() <= tolerance * np.abs(expected).max()
        assert loss == pytest.approx(expected_loss, rel=max(tolerance, 1e-5))


@PRECISIONS
def test_where_a_kernel_sees_zeros_only_an_error_passes_relu_as_in_autograd(dtype: torch.dtype, tolerance: float) -> None:
    """Black images with a spot, and no biases: whole neighbourhoods lie at ReLU's kink."""
    layers = (Conv2d(1, 8, 3, padding=1), ReLU(), Conv2d(8, 8, 5, padding=2), ReLU(), MaxPool2d(2), Flatten(), Linear(512, 4))
    architecture = Architecture((1, 16, 16), layers)
    weights = _start(architecture, 5, np.float32 if dtype == torch.float32 else np.float64)
    at = 0
    for name, shape in architecture.tensors:
        if name.endswith("bias"):
            weights[at : at + shape[0]] = 0
        at += int(np.prod(shape))
    solve = solve_of(weights, 10, (1, 16, 16), 4, seed=1, epochs=1)
    solve.x[:, :, :9] = 0
    (trained,) = Chain(architecture, dtype).solve([solve], Descent(1.0))
    expected, _ = _by_autograd(architecture, solve, Descent(1.0), dtype)
    assert np.linalg.norm(trained.weights - expected) <= tolerance * np.linalg.norm(expected - weights)


@pytest.mark.parametrize("part", [1, 30_000, 200_000])
def test_large_batches_are_convolved_in_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = _architecture("3x3 of many channels")
    monkeypatch.setattr(winograd, "_PART_BYTES", part)
    start = _start(architecture, 4, np.float64)
    solve = solve_of(start, 300, architecture.input, CLASSES, seed=3, batch_size=290, epochs=1)
    (trained,) = Chain(architecture, torch.float64).solve([solve], Descent(0.1))
    expected, _ = _by_autograd(architecture, solve, Descent(0.1), torch.float64)
    assert np.abs(trained.weights - expected).max() <= 1e-12 * np.abs(expected).max()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_chain_is_autograd(data: st.DataObject) -> None:
    """Random layers, sizes, batches and rules, in float64, where no rounding decides which way ReLU goes."""
    architecture = _drawn(data)
    samples, batch_size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    rule = data.draw(st.sampled_from(RULES))
    start = _start(architecture, data.draw(st.integers(0, 99)), np.float64)
    solve = solve_of(start, samples, architecture.input, CLASSES, seed=3, batch_size=batch_size)
    solve = pulled(solve, data.draw(st.sampled_from(PULLS)))
    (trained,) = Chain(architecture, torch.float64).solve([solve], rule)
    expected, loss = _by_autograd(architecture, solve, rule, torch.float64)
    assert np.abs(trained.weights - expected).max() <= 1e-12 * np.abs(expected).max()
    assert trained.train_loss == pytest.approx(loss, rel=1e-11)


def _drawn(data: st.DataObject) -> Architecture:
    """A random small architecture, with or without images."""
    shape: Shape = (data.draw(st.sampled_from((1, 3, 8))), *(data.draw(st.integers(5, 12)) for _ in "hw"))
    first = shape
    layers: list[Layer] = []
    for _ in range(data.draw(st.integers(1, 5))):
        channels, side = shape[0], min(shape[1:])
        options: list[Layer] = [ReLU(), Dropout(data.draw(st.sampled_from((0.0, 0.25, 0.5))))]
        if side >= 2:
            options.append(MaxPool2d(data.draw(st.integers(1, min(3, side)))))
        kernel = data.draw(st.integers(1, min(5, side)))
        outputs = data.draw(st.sampled_from((2, 8, 9)))
        options += [Conv2d(channels, outputs, kernel, data.draw(st.integers(1, 2)), data.draw(st.integers(0, kernel // 2)))] * 3
        layers.append(data.draw(st.sampled_from(options)))
        shape = layers[-1].output(shape)
    return Architecture(first, (*layers, Flatten(), Linear(int(np.prod(shape)), CLASSES)))


@pytest.mark.parametrize("rule", [RULES[0], RULES[-1]], ids=["plain", "everything"])
@pytest.mark.parametrize("name", ["no convolution", "3x3 of many channels", "dropout between", "strides"])
def test_a_result_does_not_depend_on_others_thread_or_memory_bit_for_bit(name: str, rule: Descent) -> None:
    architecture = _architecture(name)
    solves = [
        pulled(solve_of(_start(architecture, at), n, architecture.input, CLASSES, seed=at), PULLS[at % 4])
        for at, n in enumerate(RAGGED)
    ]
    alone = [Chain(architecture).solve([solve], rule)[0] for solve in solves]
    solver, found = pickle.loads(pickle.dumps(Chain(architecture))), {}

    def work(turn: int) -> None:
        compute_with_one_thread()
        found[turn] = solver.solve([_moved(solve, turn) for solve in solves[::-1]], rule)[::-1]

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for turn in range(3):
        for solved, own in zip(found[turn], alone, strict=True):
            assert solved.weights.tobytes() == own.weights.tobytes()
            assert solved.train_loss == own.train_loss


def _moved(solve: LocalSolve, numbers: int) -> LocalSolve:
    """The same work in memory that begins so many numbers after a cache line."""

    def moved(array: np.ndarray) -> np.ndarray:
        room = torch.empty(array.size + 16, dtype=torch.from_numpy(array).dtype).numpy()
        room[numbers : numbers + array.size] = array.ravel()
        return room[numbers : numbers + array.size].reshape(array.shape)

    models = (solve.weights, solve.anchor, solve.linear)
    weights, anchor, linear = (model if model is None else moved(model) for model in models)
    return replace(solve, weights=weights, x=torch.from_numpy(moved(solve.x.numpy())), anchor=anchor, linear=linear)


def test_no_steps_give_the_start_back() -> None:
    architecture = _architecture("3x3 of many channels")
    idle = solve_of(_start(architecture, 1), 9, architecture.input, CLASSES, seed=1, epochs=0)
    busy = solve_of(_start(architecture, 2), 9, architecture.input, CLASSES, seed=2)
    for together in ([idle], [idle, busy]):
        solved = Chain(architecture).solve(together, Descent(0.1))[0]
        assert solved.weights.tobytes() == idle.weights.tobytes()
        assert np.isnan(solved.train_loss)


@pytest.mark.parametrize("name", ["3x3 of many channels", "dropout between", "strides", "pool first"])
def test_what_diverges_stays_so_and_spoils_no_other(name: str) -> None:
    architecture = _architecture(name)
    good = solve_of(_start(architecture, 1), 20, architecture.input, CLASSES, seed=1)
    bad = solve_of(np.full(architecture.parameters, np.nan, np.float32), 20, architecture.input, CLASSES, seed=2)
    huge = solve_of(_start(architecture, 3) * 1e20, 20, architecture.input, CLASSES, seed=3)
    solver = Chain(architecture)
    expected = Chain(architecture).solve([good], Descent(0.1))[0]
    spoilt, far, kept = solver.solve([bad, huge, good], Descent(0.1))
    assert np.isnan(spoilt.weights).all()
    assert np.isnan(spoilt.train_loss)
    assert not np.isfinite(far.weights).all()
    assert kept.weights.tobytes() == expected.weights.tobytes()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_anchor_at_the_start_and_a_linear_term_of_zero_change_nothing(rule: Descent) -> None:
    architecture = _architecture("3x3 of many channels")
    none = solve_of(_start(architecture, 1), 12, architecture.input, CLASSES, seed=1)
    same = replace(none, anchor=none.weights.copy(), linear=np.zeros_like(none.weights))
    plain, drawn = Chain(architecture).solve([none, same], rule)
    assert drawn.weights == pytest.approx(plain.weights, abs=1e-6)
    assert drawn.train_loss == pytest.approx(plain.train_loss, abs=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(7, 5, 6, 9), (11, 13)], ids=str)
def test_dropout_has_the_masks_of_modules(shape: Shape, rate: float) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 1
    for place, key in ((0, 5), (3, step_key(1 << 63, 7)), (2, -1)):
        keyed, ours = KeyedDropout(rate, place).train(), KeyedMask(rate, place, torch.float32)
        keyed.key.fill_(key)
        ours.begin_step(key)
        channels_last = x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 else x.clone()
        found = ours.forward(channels_last)
        torch.testing.assert_close(found.permute(0, 3, 1, 2) if x.ndim == 4 else found, keyed(x), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("model", [CNN5(), MnistCNN(), FemnistCNN(), CataCNN()], ids=lambda model: model.kind)
def test_a_model_is_applied_as_by_modules(model: ModelSpec) -> None:
    shape = (1, 20, 20)
    architecture = model.architecture(shape, CLASSES)
    draw, weights = torch.Generator().manual_seed(1), [_start(architecture, at) for at in range(2)]
    xs = [torch.randn(n, *shape, generator=draw) for n in (37, 1, 5)]
    ys = [torch.randint(CLASSES, (len(x),), generator=draw) for x in xs]
    ours, theirs = Chain(architecture), Reference(module_of(architecture), CPU)
    for x in xs:
        found, expected = ours.outputs(weights[0], x), theirs.outputs(weights[0], x)
        assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    for found, own, x in zip(ours.outputs_each(weights, xs[:2]), weights, xs[:2], strict=True):
        assert torch.equal(found, ours.outputs(own, x))
    losses = ours.mean_losses(weights[0], [*xs, xs[0][:0]], [*ys, ys[0][:0]])
    assert losses[:3] == pytest.approx(theirs.mean_losses(weights[0], xs, ys), rel=1e-5)
    assert np.isnan(losses[3])
    assert ours.mean_losses(weights[0], xs[1:2], ys[1:2]) == losses[1:2]
    assert ours.kernel_norm(weights[0]) == pytest.approx(theirs.kernel_norm(weights[0]), rel=1e-12)


@pytest.mark.parametrize(("outputs", "taps"), [(4, 3), (4, 5), (2, 3), (1, 2)])
def test_toom_cook_is_a_correlation_exactly(outputs: int, taps: int) -> None:
    values, kernels, signals = winograd_loops.matrices(outputs, taps)
    signal = [Fraction(number) for number in (3, -1, 4, 1, -5, 9, 2, -6)[: outputs + taps - 1]]
    kernel = [Fraction(number) for number in (2, 7, -1, 8, 3)[:taps]]
    products = [
        sum(map(mul, row, kernel), Fraction(0)) * sum(map(mul, other, signal), Fraction(0))
        for row, other in zip(kernels, signals, strict=True)
    ]
    found = [sum(map(mul, row, products), Fraction(0)) for row in values]
    assert found == [sum(map(mul, kernel, signal[at:]), Fraction(0)) for at in range(outputs)]
    assert [row[winograd.ONE] for row in values] == [1] * outputs


@pytest.mark.parametrize("kind", [Chain, Reference, Stacked])
def test_the_penalty_may_be_on_dense_layers_alone(kind: type[Solver]) -> None:
    """In a single step it takes 2 l2 of each dense kernel off, and nothing of a convolution or a bias."""
    architecture = _architecture("3x3 of many channels")
    solver = Chain(architecture) if kind is Chain else kind(module_of(architecture), torch.device("cpu"))  # type: ignore[call-arg]
    solve = solve_of(_start(architecture, 1), 6, architecture.input, CLASSES, seed=2, batch_size=6, epochs=1)
    (plain,), (less,) = (solver.solve([solve], rule) for rule in (Descent(0.5), Descent(0.5, l2=0.1, l2_on="dense")))
    at, squares = 0, 0.0
    for name, shape in architecture.tensors:
        part = slice(at, at + int(np.prod(shape)))
        at = part.stop
        is_dense = name.endswith("weight") and len(shape) == 2
        squares += float((solve.weights[part].astype(np.float64) ** 2).sum()) if is_dense else 0.0
        expected = plain.weights[part] - 0.5 * 0.2 * solve.weights[part] * is_dense
        assert np.abs(less.weights[part] - expected).max() <= 1e-6
    assert squares > 0
    assert solver.kernel_norm(solve.weights, "dense") == pytest.approx(squares, rel=1e-9)
