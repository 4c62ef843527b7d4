"""One device's work, brought into the arrays that the kernel works on."""

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.batches import Batches
from fedsim.learning.solvers.dense.forms import InSampleSpace, InWeightSpace, fours, parameter
from fedsim.learning.solvers.dense.kernel import Entry, Floats, Plan, Rule, Scratch, descend
from fedsim.learning.solvers.dense.layers import split


@cache
def prepare(dtype: torch.dtype) -> None:
    """Have the loops compiled, or fetched if that was done once, before anybody's time depends on it."""
    one = Batches(np.zeros((1, 1), np.int64), np.ones(1, np.int64), last_epoch=0, samples=1)
    weights = torch.zeros(4, dtype=dtype).numpy()
    solve = LocalSolve(weights, torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), one)
    train(weights, (1, 2), solve, Descent(lr=1.0), in_sample_space=False)


def train(flat: Floats, sizes: Sequence[int], solve: LocalSolve, descent: Descent, *, in_sample_space: bool) -> float:
    """Train a model in place.

    Args:
        flat: the model [d], in memory that torch has allocated.
        sizes: features, then the outputs of each layer.
        solve: the work; of at least one step. Its weights are not looked at.
        descent: the rule.
        in_sample_space: the form of the first layer.

    Returns:
        The mean loss over the samples of the last epoch.
    """
    constant = solve.constant(descent)
    constant = None if constant is None else constant.astype(flat.dtype, copy=False)
    first, of_first = next(split(flat, sizes))[0], None if constant is None else next(split(constant, sizes))[0]
    form = (InSampleSpace if in_sample_space else InWeightSpace)(solve, first, descent, of_first)
    loss = _steps(form.entry, flat, constant, sizes, solve, descent)
    form.write(solve.batches.steps)
    return loss


def _steps(
    entry: Entry, flat: Floats, constant: Floats | None, sizes: Sequence[int], solve: LocalSolve, descent: Descent
) -> float:
    """Carry out all steps, of ``entry`` and of everything in ``flat`` but its first kernel; the mean loss as above."""
    batches, (kernels, biases) = solve.batches, _stacks(flat, sizes)
    of_kernels, of_biases = (None, None) if constant is None else _stacks(constant, sizes)
    loss = descend(
        entry,
        parameter(kernels, descent, of_kernels),
        parameter(biases, descent, of_biases),
        np.array(sizes[1:]),
        Plan(solve.y.numpy(), batches.rows, batches.counts, batches.last_epoch),
        _rule(descent, flat.dtype),
        _scratch(batches, sizes, flat.dtype),
    )
    for stacked, own in zip((kernels, biases), _rest(flat, sizes), strict=True):
        for trained, array in zip(stacked, own, strict=True):
            array[:] = trained[: array.shape[0], : array.shape[1]]
    return loss / int(batches.counts[batches.last_epoch :].sum())


def _rest(flat: Floats, sizes: Sequence[int]) -> tuple[list[Floats], list[Floats]]:
    """All but the first kernel of a flat model, in its own memory: the other kernels, and the biases as rows."""
    layers = list(split(flat, sizes))
    return [kernel for kernel, _ in layers[1:]], [bias[None] for _, bias in layers]


def _stacks(flat: Floats, sizes: Sequence[int]) -> tuple[Floats, Floats]:
    """Copies of the same in two arrays."""
    kernels, biases = _rest(flat, sizes)
    return _stacked(kernels, flat.dtype, in_fours=True), _stacked(biases, flat.dtype, in_fours=False)


def _stacked(arrays: Sequence[Floats], dtype: np.dtype[np.floating], *, in_fours: bool) -> Floats:
    """Matrices filled up to one shape with zeros, [count, rows, columns]; with rows ``in_fours``, if need be."""
    rows, columns = (max((array.shape[axis] for array in arrays), default=0) for axis in (0, 1))
    rows = fours(rows) if in_fours else rows
    stacked = np.zeros((len(arrays), rows, columns), dtype)
    for own, array in zip(stacked, arrays, strict=True):
        own[: array.shape[0], : array.shape[1]] = array
    return stacked


@lru_cache(maxsize=64)
def _rule(descent: Descent, dtype: np.dtype[np.floating]) -> Rule:
    number, kernels, biases = dtype.type, descent.shrinkage(kernel=True), descent.shrinkage(kernel=False)
    return Rule(number(descent.lr), number(descent.momentum), number(descent.mu), number(kernels), number(biases))


def _scratch(batches: Batches, sizes: Sequence[int], dtype: np.dtype[np.floating]) -> Scratch:
    """Working memory for so wide batches."""
    width, widest = fours(batches.rows.shape[1]), fours(max(sizes[1:]))
    return Scratch(
        outputs=np.zeros((len(sizes) - 1, width, widest), dtype),
        errors=np.zeros((2, width, widest), dtype),
        batch=_positions(width),
        every=_positions(max(width, widest)),
    )


def _positions(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64)
