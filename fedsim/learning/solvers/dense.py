"""Dense layers on a processor, one device at a time: gradients in closed form, in compiled loops where a step is small.

The layer that the samples enter has two forms that give the same (up to rounding) at different cost. In *weight space* a step
multiplies the batch with the kernel, and changes the whole kernel. In *sample space* the kernel is not there at all: SGD moves
it only along the device's own samples, and along C, the constant part of the gradient, if there is one:
W = a W_0 + b C + A^T X. So its products with a batch follow from those of W_0 and C with all samples, which never change, and
from the inner products of the samples, X X^T: a step is one product of outputs x batch x n instead of two of outputs x batch x
inputs, and changes A at the batch alone. Most devices hold fewer samples than a sample has features.
"""

from collections.abc import Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers import products
from fedsim.learning.solvers.base import Batches, BatchHint, Descent, LocalSolve, Solved, Solver
from fedsim.learning.solvers.dense_loops import AnyFloats, FirstLayer, Parameter, Plan, Rule, Scratch, descend
from fedsim.learning.solvers.reference import Reference, module_of

Array = TypeVar("Array", NDArray[np.floating], Tensor)


def split(flat: Array, sizes: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Kernels [..., outputs, inputs] and biases [..., outputs] within flat models [..., d].

    ``sizes`` are the features, then the outputs of each layer.
    """
    at = 0
    for inputs, outputs in pairwise(sizes):
        kernel = flat[..., at : at + inputs * outputs].reshape(*flat.shape[:-1], outputs, inputs)
        at += inputs * outputs
        yield kernel, flat[..., at : at + outputs]
        at += outputs


_LINE = 16  # floats in a cache line; rows that are so long leave no rest to loops over vector registers
_FEW = 32  # outputs, up to which sums over samples are faster along the samples than along the outputs


def parameter(weight: AnyFloats, descent: Descent, constant: AnyFloats | None = None, *, drawn: bool = True) -> Parameter:
    """State of weights [..., rows, columns] for steps of the rule; ``drawn``: the proximal term draws to the start."""
    none = weight[..., :0, :]
    velocity = np.zeros_like(weight) if descent.momentum else none
    start = weight.copy() if descent.mu and drawn else none
    return Parameter(weight, velocity, start, none if constant is None else constant)


def fours(count: int) -> int:
    """``count`` rounded up to whole fours; see ``kernel``."""
    return -(-count // 4) * 4


class InWeightSpace:
    """The samples themselves, and the kernel itself, which is left alone until ``write``; ``entry`` is trained."""

    def __init__(self, solve: LocalSolve, kernel: AnyFloats, descent: Descent, constant: AnyFloats | None) -> None:
        self._kernel = kernel
        samples = solve.x.numpy().reshape(len(solve.x), -1).astype(kernel.dtype, copy=False)
        of_constant = None if constant is None else _stacked([constant], kernel.dtype, in_fours=True)[0]
        trained = parameter(_stacked([kernel], kernel.dtype, in_fours=True)[0], descent, of_constant)
        nothing = kernel[:0]
        self.entry = FirstLayer(np.ascontiguousarray(samples), trained, nothing[None], nothing, turned=False)

    def write(self) -> None:
        """Turn the kernel into what has become of it."""
        self._kernel[:] = self.entry.kernel.weight[: len(self._kernel)]


class InSampleSpace:
    """Products of the kernel's start with each sample, and how far the kernel has moved along each.

    The kernel lies in memory that torch has allocated, and is left alone until ``write``; ``entry`` is trained.
    """

    def __init__(self, solve: LocalSolve, kernel: AnyFloats, descent: Descent, constant: AnyFloats | None) -> None:
        self._kernel = torch.from_numpy(kernel)
        self._constant = None if constant is None else torch.tensor(constant)
        (outputs, inputs), count = kernel.shape, len(solve.x)
        like, columns, turned = self._kernel, -(-count // _LINE) * _LINE, outputs > _FEW
        self._samples = like.new_empty(count, inputs)  # torch's memory is aligned: on it a product's last bits depend
        self._samples.copy_(solve.x.reshape(count, inputs))
        gram = like.new_zeros(count, columns)
        torch.mm(self._samples, self._samples.t(), out=gram[:, :count])
        kinds = [(self._kernel, 1.0, -descent.mu)] + ([] if self._constant is None else [(self._constant, 0.0, 1.0)])
        given = like.new_empty(len(kinds), count, outputs)
        for (weights, _, _), values in zip(kinds, given, strict=True):
            values.copy_(torch.mm(weights, self._samples.t()).t())  # faster than their product the other way round
        moved = like.new_zeros((columns, outputs) if turned else (fours(outputs), columns))
        self._moved = moved[:count].t() if turned else moved[:outputs, :count]
        self._shares = [_shares(share, pull, descent, solve.batches.steps) for _, share, pull in kinds]
        shares = np.array(self._shares, kernel.dtype)
        self.entry = FirstLayer(gram.numpy(), parameter(moved.numpy(), descent, drawn=False), given.numpy(), shares, turned)

    def write(self) -> None:
        """Turn the kernel into what has become of it."""
        self._kernel.addmm_(self._moved, self._samples, beta=self._shares[0][-1])
        if self._constant is not None:
            self._kernel.add_(self._constant, alpha=self._shares[1][-1])


def _shares(share: float, pull: float, descent: Descent, steps: int) -> list[float]:
    """The share of W_0 (or C) in the kernel before each step, and after the last; each adds ``pull`` of it to the gradient."""
    shrinkage, velocity, shares = descent.shrinkage(kernel=True), 0.0, [share]
    if not (shrinkage or descent.momentum):
        return [share - descent.lr * pull * step for step in range(steps + 1)]
    for _ in range(steps):
        velocity = descent.momentum * velocity + shrinkage * share + pull
        share -= descent.lr * velocity
        shares.append(share)
    return shares


@cache
def prepare(dtype: torch.dtype) -> None:
    """Have the loops compiled, or fetched if that was done once, before anybody's time depends on it."""
    one = Batches(np.zeros((1, 1), np.int64), np.ones(1, np.int64), last_epoch=0, samples=1)
    weights = torch.zeros(4, dtype=dtype).numpy()
    solve = LocalSolve(weights, torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), one)
    train(weights, (1, 2), solve, Descent(lr=1.0), in_sample_space=False)


def train(flat: AnyFloats, sizes: Sequence[int], solve: LocalSolve, descent: Descent, *, in_sample_space: bool) -> float:
    """Train a flat model [d] in place, in memory that torch has allocated; returns the mean loss over the last epoch.

    ``sizes`` are the features, then the outputs of each layer. There is at least one step; ``solve.weights`` is not used.
    """
    constant = solve.constant(descent)
    constant = None if constant is None else constant.astype(flat.dtype, copy=False)
    first, of_first = next(split(flat, sizes))[0], None if constant is None else next(split(constant, sizes))[0]
    form = (InSampleSpace if in_sample_space else InWeightSpace)(solve, first, descent, of_first)
    batches, (kernels, biases) = solve.batches, _stacks(flat, sizes)
    of_kernels, of_biases = (None, None) if constant is None else _stacks(constant, sizes)
    rule = (descent.lr, descent.momentum, descent.mu, descent.shrinkage(kernel=True), descent.shrinkage(kernel=False))
    loss = descend(
        form.entry,
        parameter(kernels, descent, of_kernels),
        parameter(biases, descent, of_biases),
        np.array(sizes[1:]),
        Plan(solve.y.numpy(), batches.rows, batches.counts, batches.last_epoch),
        Rule(*map(flat.dtype.type, rule)),
        _scratch(batches, sizes, form.entry),
    )
    form.write()
    for stacked, own in zip((kernels, biases), _rest(flat, sizes), strict=True):
        for trained, array in zip(stacked, own, strict=True):
            array[:] = trained[: array.shape[0], : array.shape[1]]
    return loss / int(batches.counts[batches.last_epoch :].sum())


def _rest(flat: AnyFloats, sizes: Sequence[int]) -> tuple[list[AnyFloats], list[AnyFloats]]:
    """All but the first kernel of a flat model: the other kernels, and the biases as rows."""
    layers = list(split(flat, sizes))
    return [kernel for kernel, _ in layers[1:]], [bias[None] for _, bias in layers]


def _stacks(flat: AnyFloats, sizes: Sequence[int]) -> tuple[AnyFloats, AnyFloats]:
    kernels, biases = _rest(flat, sizes)
    return _stacked(kernels, flat.dtype, in_fours=True), _stacked(biases, flat.dtype, in_fours=False)


def _stacked(arrays: Sequence[AnyFloats], dtype: np.dtype[np.floating], *, in_fours: bool) -> AnyFloats:
    """Matrices filled up to one shape with zeros, [count, rows, columns]; with rows ``in_fours``, if need be."""
    rows, columns = (max((array.shape[axis] for array in arrays), default=0) for axis in (0, 1))
    rows = fours(rows) if in_fours else rows
    stacked = np.zeros((len(arrays), rows, columns), dtype)
    for own, array in zip(stacked, arrays, strict=True):
        own[: array.shape[0], : array.shape[1]] = array
    return stacked


def _scratch(batches: Batches, sizes: Sequence[int], entry: FirstLayer) -> Scratch:
    dtype, columns = entry.features.dtype, entry.features.shape[1] if entry.turned else 0
    width, widest = fours(batches.rows.shape[1]), fours(max(sizes[1:]))
    outputs, errors = np.zeros((len(sizes) - 1, width, widest), dtype), np.zeros((2, width, widest), dtype)
    near, every = np.empty((width, columns), dtype), np.arange(max(width, widest, columns))
    return Scratch(outputs, errors, near, batch=np.arange(width), every=every)


Way = Literal["weight space", "sample space", "products"]
"""Way of training a device: compiled loops, with the first layer in one of two forms (see above), or torch's matrix
products, which multiply faster but cost more to call."""

_WORTH_A_REQUEST = 1 << 24  # multiplications at one request, with shuffles and samples some 2 ms: more leaves workers idle
_MOST_AT_ONCE = 32
_FASTER = 2.5  # how much faster multiplications are in matrix products than in loops
_CHANGED, _CHANGED_THERE = 2, 20  # multiplications in whose time a number of a kernel is changed, in loops and by products
_SET_UP, _CALLED, _COPIED = 1_000_000, 2_000_000, 48  # the same: to set up sample space, a step of products, to copy a number
_APPLIED_AT_ONCE = 256  # samples in one product when a model is applied; whole cache lines of any width


class Dense(Solver):
    """Softmax regression and perceptrons with ReLU (``architecture.is_dense``) under softmax cross-entropy.

    Args:
        dtype: float32; float64 for tests of the gradients.
        way: how every device is trained; None: each in whichever way is fastest for it.
    """

    def __init__(self, architecture: Architecture, dtype: torch.dtype = torch.float32, *, way: Way | None = None) -> None:
        layers = [(layer.inputs, layer.outputs) for _, layer in architecture.trained()]
        tensors = architecture.tensors
        super().__init__(torch.device("cpu"), tensors, {name for name, shape in tensors if len(shape) == 2})
        self.dtype = dtype
        self.sizes = [layers[0][0], *(outputs for _, outputs in layers)]
        self._always = way
        self._parameters = architecture.parameters
        self._architecture = architecture
        prepare(dtype)

    @cached_property
    def plain(self) -> Reference:
        return Reference(module_of(self._architecture), self.device, self.dtype)

    def batch_hint(self, samples: int, width: int, steps: int) -> BatchHint:
        """Each is trained by itself; a batch of equal work is large enough to be worth a request."""
        magnitude = int(self._costs(samples, width, steps)[self.way(samples, width, steps)]).bit_length()
        return BatchHint(f"2^{magnitude} multiplications", max(1, min(_MOST_AT_ONCE, _WORTH_A_REQUEST >> magnitude)))

    def way(self, samples: int, width: int, steps: int) -> Way:
        """The fastest way for a device with such work; depends on its own work alone."""
        if self._always is not None:
            return self._always
        costs = self._costs(samples, width, steps)
        return min(costs, key=lambda way: costs[way])

    def _costs(self, samples: int, width: int, steps: int) -> dict[Way, float]:
        """Cost of each way, in multiplications of the loops, fitted to times of 165 shapes of work on one core."""
        (inputs, outputs), width = self.sizes[:2], min(width, samples)
        rest = sum(before * after for before, after in pairwise(self.sizes[1:])) * (3 * width + _CHANGED)
        gram = _SET_UP + samples * inputs * (samples + 2 * outputs) / _FASTER
        product = _CALLED + self._parameters * (2 * width / _FASTER + _CHANGED_THERE)
        return {
            "weight space": steps * (inputs * outputs * (2 * width + _CHANGED) + rest),
            "sample space": gram + steps * (samples * outputs * (width + _CHANGED) + rest),
            "products": samples * inputs * _COPIED + steps * product,
        }

    @torch.inference_mode()
    def _solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        way = self.way(len(solve.x), solve.batches.rows.shape[1], solve.batches.steps)
        if way == "products" or descent.held:
            layers = partial(split, sizes=self.sizes)
            return products.train(self._flat([solve.weights])[0], lambda flat: list(layers(flat)), solve, descent)
        flat = torch.empty(self._parameters, dtype=self.dtype).numpy()
        flat[:] = solve.weights
        if not solve.batches.steps:
            return Solved(flat, float("nan"))
        return Solved(flat, train(flat, self.sizes, solve, descent, in_sample_space=way == "sample space"))

    @torch.inference_mode()
    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        flat = self._flat(weights)
        longest = max(len(x) for x in xs)
        samples = torch.zeros(len(xs), longest, self.sizes[0], dtype=self.dtype)
        for at, x in enumerate(xs):
            samples[at, : len(x)] = x.reshape(len(x), -1)
        hidden = samples.transpose(1, 2)  # features before samples: twice as fast for the few outputs of a classifier
        for layer, (kernel, bias) in enumerate(split(flat, self.sizes)):
            hidden = torch.baddbmm(bias[:, :, None], kernel, hidden.relu_() if layer else hidden)
        return [logits[:, : len(x)].t() for logits, x in zip(hidden, xs, strict=True)]

    @torch.inference_mode()
    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        layers = [(kernel[0].clone(), bias[0, :, None].clone()) for kernel, bias in split(self._flat([weights]), self.sizes)]
        logits = []
        for piece in torch.split(x.reshape(len(x), self.sizes[0]).to(self.dtype), _APPLIED_AT_ONCE):
            hidden = piece.t()  # features before samples: twice as fast for the few outputs of a classifier
            for at, (kernel, bias) in enumerate(layers):
                hidden = torch.addmm(bias, kernel, hidden.relu_() if at else hidden)
            logits.append(hidden.t())
        return torch.cat(logits)

    def _flat(self, models: Sequence[NDArray[np.floating]]) -> Tensor:
        """Flat models [K, d], in memory of torch's: aligned, whatever numpy's was."""
        flat = torch.empty(len(models), len(models[0]), dtype=self.dtype)
        for row, weights in zip(flat.numpy(), models, strict=True):
            row[:] = weights
        return flat
