"""Modules: one at a time, stacked, and with dropout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.learning.architecture import Architecture, Dropout, Flatten, Linear, MaxPool2d, convolution, dense
from fedsim.learning.models import CNN5
from fedsim.learning.solvers.base import Descent, one_thread
from fedsim.learning.solvers.dropout import KeyedDropout, step_key, with_keyed_dropout
from fedsim.learning.solvers.reference import Reference, flat_weights, load_weights, module_of
from tests.learning.small import PULLS, Dropping, plain_sgd, pulled, solve_of

EVERYTHING = Descent(0.05, momentum=0.5, weight_decay=0.01, l2=0.02, mu=0.3)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    one_thread()


def _weights(module: nn.Module, seed: int) -> np.ndarray:
    size = sum(parameter.numel() for parameter in module.parameters())
    return np.random.default_rng(seed).normal(0, 0.2, size).astype(np.float32)


@pytest.mark.parametrize("convolutions", [False, True])
@pytest.mark.parametrize("pull", PULLS)
@pytest.mark.parametrize("rule", [Descent(0.1), EVERYTHING], ids=["plain", "everything"])
def test_one_at_a_time_is_a_plain_loop(rule: Descent, pull: str, convolutions: bool) -> None:
    shape = (1, 12, 12) if convolutions else (6,)
    module = module_of(CNN5().architecture((1, 12, 12), 3)) if convolutions else Dropping(6, 3, rate=0.0)
    solver, scale = Reference(module, CPU), 8 if convolutions else 1
    kernels = [name for name, parameter in module.named_parameters() if parameter.ndim > 1]
    for seed, samples in enumerate((23, 4, 10)):
        solve = pulled(solve_of(_weights(module, seed) / scale, samples, shape, 3, seed=seed), pull)
        solved = solver.solve(solve, rule)
        load_weights(list(module.parameters()), solve.weights)
        expected, loss = plain_sgd(module, solve, rule, kernels)
        assert np.allclose(solved.weights, expected, rtol=1e-5, atol=1e-5)
        assert solved.train_loss == pytest.approx(loss, rel=1e-5)


def test_running_statistics_are_numbers_of_the_model_that_no_gradient_moves() -> None:
    """As torch's own loop has them, whatever the rule; in tests they count, for a single sample too; what is held stays."""
    norm = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    solver = Reference(norm, CPU)
    names = [name for name, _ in solver.tensors]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "2.weight", "2.bias"]
    start = np.concatenate([_weights(norm, 1)[:45], [0.5] * 5, [2.0] * 5, _weights(norm, 1)[45:]]).astype(np.float32)
    solve = solve_of(start, 23, (6,), 3, seed=1, batch_size=8)  # with a rest of 7
    plain = {name: torch.tensor(part) for name, part in zip(names, np.split(start, [30, 35, 40, 45, 50, 55, 70]), strict=True)}
    norm.load_state_dict(
        {name: plain[name].view_as(own) for name, own in norm.state_dict().items() if name in plain}, strict=False
    )
    steps = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for row, count in zip(solve.batches.rows, solve.batches.counts, strict=True):
        steps.zero_grad()
        nn.functional.cross_entropy(norm(solve.x[row[:count]]), solve.y[row[:count]]).backward()
        steps.step()
    expected = flat_weights([norm.state_dict()[name] for name in names])
    rule = Descent(0.1, momentum=0.5, weight_decay=0.01)
    solved = solver.solve(solve, rule)
    assert np.allclose(solved.weights, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(solved.weights - start)[45:55].min() > 1e-3
    assert np.allclose(solver.outputs(solved.weights, solve.x[:1]), norm.eval()(solve.x[:1]).detach(), atol=1e-5)
    held = solver.solve(solve, replace(rule, held=((35, 55),)))
    assert (held.weights[35:55] == start[35:55]).all()
    start[50:55] = -1.0  # as a server's step may make it
    assert np.isfinite(solver.outputs(start, solve.x).numpy()).all()


def test_dropout_keeps_the_mean_and_the_rate() -> None:
    layer = KeyedDropout(0.3, place=2).train()
    kept = torch.zeros(400, 50)
    for step in range(20):
        layer.key.fill_(step_key(123, step))
        out = layer(torch.ones(400, 50))
        assert out.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
        kept += out.ne(0)
    assert float(kept.mean() / 20) == pytest.approx(0.7, abs=0.005)
    assert float(kept.std()) == pytest.approx((20 * 0.7 * 0.3) ** 0.5, rel=0.05)  # masks of different steps are independent
    module = Dropping(6, 3)
    weights, x = flat_weights(list(module.parameters())), torch.ones(5, 6)  # it is off when a model is applied
    assert torch.allclose(Reference(module, CPU).outputs(weights, x), module.eval()(x), atol=1e-6)


def test_two_layers_have_different_masks_and_channels_fall_as_a_whole() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Dropout2d(0.5)).train()
    with_keyed_dropout(module)
    first, second, channels = module
    assert not torch.equal(first(torch.ones(9, 9)), second(torch.ones(9, 9)))
    planes = channels(torch.ones(6, 8, 3, 3)).flatten(2)
    assert torch.equal(planes.amin(2), planes.amax(2))
    assert 0 < int(planes[..., 0].count_nonzero()) < 48


def _convolutions() -> tuple[Architecture, np.ndarray]:
    layers = (*convolution(4, 3), MaxPool2d(2), Dropout(0.3), Flatten(), *dense(9), Linear(0, 5))
    architecture = Architecture.of((1, 8, 8), layers)
    draw = np.random.default_rng(1)
    parts = [draw.normal(0, 0.3, shape).ravel() for _, shape in architecture.tensors]
    return architecture, np.concatenate(parts).astype(np.float32)


def test_convolutions_depend_on_no_other_device_or_memory_bit_for_bit() -> None:
    architecture, start = _convolutions()
    solves = [solve_of(start, n, architecture.input, 5, seed=n) for n in (23, 4, 10, 1, 17)]
    alone = [Reference(module_of(architecture), CPU).solve(solve, EVERYTHING) for solve in solves]
    solver, before = Reference(module_of(architecture), CPU), torch.random.get_rng_state()
    other = solver.solve(replace(solves[0], key=77), EVERYTHING)  # other dropout masks
    assert other.weights.tobytes() != alone[0].weights.tobytes()

    def moved(array: np.ndarray, numbers: int) -> np.ndarray:
        room = torch.empty(array.size + 16, dtype=torch.from_numpy(array).dtype).numpy()
        room[numbers : numbers + array.size] = array.ravel()
        return room[numbers : numbers + array.size].reshape(array.shape)

    for turn in range(3):
        for solve, own in zip(solves[::-1], alone[::-1], strict=True):
            there = replace(solve, weights=moved(solve.weights, turn), x=torch.from_numpy(moved(solve.x.numpy(), turn)))
            solved = solver.solve(there, EVERYTHING)
            assert (solved.weights.tobytes(), solved.train_loss) == (own.weights.tobytes(), own.train_loss)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_penalty_may_be_on_dense_layers_alone() -> None:
    """In a single step it takes 2 l2 of each dense kernel off, and nothing of a convolution or a bias."""
    architecture, start = _convolutions()
    solver = Reference(module_of(architecture), CPU)
    solve = solve_of(start, 6, architecture.input, 5, seed=2, batch_size=6, epochs=1)
    plain, less = (solver.solve(solve, rule) for rule in (Descent(0.5), Descent(0.5, l2=0.1, l2_on="dense")))
    is_dense = np.concatenate([np.full(np.prod(shape), len(shape) == 2) for _, shape in architecture.tensors])
    assert np.abs(less.weights - plain.weights + 0.5 * 0.2 * solve.weights * is_dense).max() <= 1e-6
    added = solver.objective(start, solve.x, solve.y, 2.0, "dense") - solver.objective(start, solve.x, solve.y, 0.0)
    assert added == pytest.approx(2 * np.square(start[is_dense], dtype=np.float64).sum(), rel=1e-9)
