"""Dense layers on a processor, one device at a time: gradients in closed form, in compiled loops
where a step is small.

The layer that the samples enter has two forms that give the same (up to rounding) at different
cost. In *weight space* a step multiplies the batch with the kernel, and changes the whole kernel.
In *sample space* the kernel is not there at all: SGD moves it only along the device's own samples,
and along C, the constant part of the gradient, if there is one: W = a W_0 + b C + A^T X. So its
products with a batch follow from those of W_0 and C with all samples, which never change, and from
the inner products of the samples, X X^T: a step is one product of outputs x batch x n instead of
two of outputs x batch x inputs, and changes A at the batch alone. Most devices hold fewer samples
than a sample has features.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Batches, Descent, LocalSolve, ParameterStep, Solved, Solver
from fedsim.learning.solvers.dense_loops import (
    AnyFloats,
    FirstLayer,
    Parameter,
    Plan,
    Rule,
    descend,
)
from fedsim.learning.solvers.reference import Reference, module_of

Array = TypeVar("Array", NDArray[np.floating], Tensor)

# floats in a cache line; rows that are so long leave no rest to loops over vector registers
_LINE = 16
# outputs, up to which sums over samples are faster along the samples than along the outputs
_FEW = 32


def split(flat: Array, sizes: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Kernels [..., outputs, inputs] and biases [..., outputs] within flat models [..., d];
    ``sizes``: features, outputs.
    """
    at = 0
    for inputs, outputs in pairwise(sizes):
        kernel = flat[..., at : at + inputs * outputs].reshape(*flat.shape[:-1], outputs, inputs)
        at += inputs * outputs
        yield kernel, flat[..., at : at + outputs]
        at += outputs


def _fours(count: int) -> int:
    return -(-count // 4) * 4


def _parameter(
    arrays: Sequence[AnyFloats],
    constants: Sequence[AnyFloats] | None,
    descent: Descent,
    dtype: np.dtype[np.floating],
    *,
    in_fours: bool = True,
) -> Parameter:
    """Matrices filled up to one shape with zeros, [count, rows, columns], rows ``in_fours`` if
    need be, and their state.
    """
    rows, columns = (max((array.shape[axis] for array in arrays), default=0) for axis in (0, 1))

    def stacked(each: Sequence[AnyFloats]) -> AnyFloats:
        stack = np.zeros((len(each), _fours(rows) if in_fours else rows, columns), dtype)
        for own, array in zip(stack, each, strict=True):
            own[: array.shape[0], : array.shape[1]] = array
        return stack

    weight = stacked(arrays)
    none = weight[:, :0]
    velocity = np.zeros_like(weight) if descent.momentum else none
    start = weight.copy() if descent.mu else none
    return Parameter(weight, velocity, start, none if constants is None else stacked(constants))


TrainedEntry = tuple[FirstLayer, Callable[[], object]]
"""The first layer as it is trained, and a function that turns its kernel, which is left alone
until then, into the result.
"""


def _in_weight_space(
    solve: LocalSolve, kernel: AnyFloats, constant: AnyFloats | None, descent: Descent
) -> TrainedEntry:
    samples = solve.x.numpy().reshape(len(solve.x), -1).astype(kernel.dtype, copy=False)
    stacks = _parameter([kernel], None if constant is None else [constant], descent, kernel.dtype)
    trained = Parameter(*(stack[0] for stack in stacks))
    entry = FirstLayer(
        np.ascontiguousarray(samples), trained, kernel[None, :0], kernel[:0], turned=False
    )
    return entry, lambda: np.copyto(kernel, trained.weight[: len(kernel)])


def _in_sample_space(
    solve: LocalSolve, kernel: AnyFloats, constant: AnyFloats | None, descent: Descent
) -> TrainedEntry:
    """Products of the kernel's start, in torch's memory, with each sample, and how far the
    kernel has moved along each.
    """
    start = torch.from_numpy(kernel)
    (outputs, inputs), count = kernel.shape, len(solve.x)
    columns = -(-count // _LINE) * _LINE
    turned = outputs > _FEW
    # torch's memory is aligned: on it a product's last bits depend
    samples = start.new_empty(count, inputs)
    samples.copy_(solve.x.reshape(count, inputs))
    gram = start.new_zeros(count, columns)
    torch.mm(samples, samples.t(), out=gram[:, :count])
    kinds = [(start, 1.0, -descent.mu)] + (
        [] if constant is None else [(torch.tensor(constant), 0.0, 1.0)]
    )
    given = start.new_empty(len(kinds), count, outputs)
    for (weights, _, _), values in zip(kinds, given, strict=True):
        # faster than their product the other way round
        values.copy_(torch.mm(weights, samples.t()).t())
    moved = start.new_zeros((columns, outputs) if turned else (_fours(outputs), columns))
    shares = [_shares(share, pull, descent, solve.batches.steps) for _, share, pull in kinds]
    weight = moved.numpy()
    trained = Parameter(
        weight, np.zeros_like(weight) if descent.momentum else weight[:0], weight[:0], weight[:0]
    )
    entry = FirstLayer(gram.numpy(), trained, given.numpy(), np.array(shares, kernel.dtype), turned)

    def write() -> None:
        start.addmm_(
            moved[:count].t() if turned else moved[:outputs, :count], samples, beta=shares[0][-1]
        )
        for (weights, _, _), share in zip(kinds[1:], shares[1:], strict=True):
            start.add_(weights, alpha=share[-1])

    return entry, write


def _shares(share: float, pull: float, descent: Descent, steps: int) -> list[float]:
    """The share of W_0 (or C) in the kernel before each step, and after the last; each adds
    ``pull`` of it to the gradient.
    """
    shrinkage = descent.shrinkage(kernel=True)
    velocity = 0.0
    shares = [share]
    if not (shrinkage or descent.momentum):
        return [share - descent.lr * pull * step for step in range(steps + 1)]
    for _ in range(steps):
        velocity = descent.momentum * velocity + shrinkage * share + pull
        share -= descent.lr * velocity
        shares.append(share)
    return shares


@cache
def prepare(dtype: torch.dtype) -> None:
    """Have the loops compiled, or fetched if that was done once, before anybody's time depends
    on it.
    """
    one = Batches(np.zeros((1, 1), np.int64), np.ones(1, np.int64), last_epoch=0)
    weights = torch.zeros(4, dtype=dtype).numpy()
    solve = LocalSolve(weights, torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), one)
    train(weights, (1, 2), solve, Descent(lr=1.0), _in_weight_space)


def train(
    flat: AnyFloats,
    sizes: Sequence[int],
    solve: LocalSolve,
    descent: Descent,
    form: Callable[..., TrainedEntry],
) -> float:
    """Train a flat model [d] in place, in torch's memory, by one step at least; returns the mean
    loss over the last epoch.
    """
    constant = solve.constant(descent)
    batches = solve.batches
    constant = None if constant is None else constant.astype(flat.dtype, copy=False)
    first = next(split(flat, sizes))[0]
    of_first = None if constant is None else next(split(constant, sizes))[0]
    entry, write = form(solve, first, of_first, descent)
    rest = _rest(flat, sizes)
    of_rest = (None, None) if constant is None else _rest(constant, sizes)
    kernels = _parameter(rest[0], of_rest[0], descent, flat.dtype)
    biases = _parameter(rest[1], of_rest[1], descent, flat.dtype, in_fours=False)
    rule = (
        descent.lr,
        descent.momentum,
        descent.mu,
        descent.shrinkage(kernel=True),
        descent.shrinkage(kernel=False),
    )
    plan = Plan(solve.y.numpy(), batches.rows, batches.counts, batches.last_epoch)
    loss = descend(
        entry, kernels, biases, np.array(sizes[1:]), plan, Rule(*map(flat.dtype.type, rule))
    )
    write()
    for stack, own in zip((kernels.weight, biases.weight), rest, strict=True):
        for trained, array in zip(stack, own, strict=True):
            array[:] = trained[: array.shape[0], : array.shape[1]]
    return batches.mean_loss(loss)


def _rest(flat: AnyFloats, sizes: Sequence[int]) -> tuple[list[AnyFloats], list[AnyFloats]]:
    """All but the first kernel of a flat model: the other kernels, and the biases as rows."""
    layers = list(split(flat, sizes))
    return [kernel for kernel, _ in layers[1:]], [bias[None] for _, bias in layers]


def train_by_products(
    weights: Tensor, sizes: Sequence[int], solve: LocalSolve, descent: Descent
) -> float:
    """The same by torch's matrix products, without autograd, for any number of steps."""
    parameters = list(split(weights, sizes))
    constant = solve.constant(descent)
    constants = (
        [(None, None)] * len(parameters)
        if constant is None
        else list(split(torch.tensor(constant), sizes))
    )
    steps = []
    at = 0
    for own, of_own in zip(parameters, constants, strict=True):
        for tensor, of_tensor in zip(own, of_own, strict=True):
            rule = descent.of(at, at + tensor.numel())
            steps.append(
                ParameterStep(tensor, rule, rule.shrinkage(kernel=tensor.ndim > 1), of_tensor)
            )
            at += tensor.numel()
    batches = solve.batches
    x = solve.x.reshape(len(solve.x), -1).to(weights.dtype)
    total = 0.0
    rows = torch.from_numpy(batches.rows)
    for step, count in enumerate(batches.counts.tolist()):
        batch = rows[step, :count]
        inputs = [x[batch]]
        for kernel, bias in parameters[:-1]:
            inputs.append(torch.addmm(bias, inputs[-1], kernel.t()).relu_())
        kernel, bias = parameters[-1]
        logs = torch.addmm(bias, inputs[-1], kernel.t()).log_softmax(1)
        right = solve.y[batch][:, None]
        if step >= batches.last_epoch:
            total -= float(logs.gather(1, right).sum(dtype=torch.float64))
        error = logs.exp_().scatter_add_(1, right, logs.new_full((count, 1), -1.0)).div_(count)
        for layer in range(len(parameters) - 1, -1, -1):
            below = torch.mm(error, parameters[layer][0]) if layer else error
            steps[2 * layer].descend_product(error.t(), inputs[layer])
            steps[2 * layer + 1].descend(error.sum(0))
            error = torch.ops.aten.threshold_backward(below, inputs[layer], 0) if layer else error
    return batches.mean_loss(total)


Way = Literal["weight space", "sample space", "products"]
"""Compiled loops with the first layer in one of two forms (see above), or torch's matrix
products, which cost more to call.
"""

_FASTER = 2.5  # how much faster multiplications are in matrix products than in loops
# multiplications in whose time a number of a kernel is changed, in loops and by products
_CHANGED = 2
_CHANGED_THERE = 20
# the same: to set up sample space, a step of products, to copy a number
_SET_UP = 1_000_000
_CALLED = 2_000_000
_COPIED = 48
# samples in one product when a model is applied; whole cache lines of any width
_APPLIED_AT_ONCE = 256


class Dense(Solver):
    """Softmax regression and perceptrons with ReLU (``architecture.is_dense``) under softmax
    cross-entropy.

    Args:
        dtype: float32; float64 for tests of the gradients.
        way: how every device is trained; None: each in whichever way is fastest for it.
    """

    def __init__(
        self,
        architecture: Architecture,
        dtype: torch.dtype = torch.float32,
        *,
        way: Way | None = None,
    ) -> None:
        layers = [layer for _, layer in architecture.trained()]
        tensors = architecture.tensors
        super().__init__(
            torch.device("cpu"), tensors, {name for name, shape in tensors if len(shape) == 2}
        )
        self.dtype = dtype
        self._always = way
        self._architecture = architecture
        self.sizes = [layers[0].inputs, *(layer.outputs for layer in layers)]
        self._parameters = architecture.parameters
        prepare(dtype)

    @cached_property
    def plain(self) -> Reference:
        return Reference(module_of(self._architecture), self.device, self.dtype)

    def way(self, samples: int, width: int, steps: int) -> Way:
        """The fastest way for a device with such work; depends on its own work alone.

        The costs are in multiplications of the loops, fitted to times of 165 shapes of work on
        one core.
        """
        if self._always is not None:
            return self._always
        (inputs, outputs), width = self.sizes[:2], min(width, samples)
        rest = sum(before * after for before, after in pairwise(self.sizes[1:])) * (
            3 * width + _CHANGED
        )
        gram = _SET_UP + samples * inputs * (samples + 2 * outputs) / _FASTER
        product = _CALLED + self._parameters * (2 * width / _FASTER + _CHANGED_THERE)
        costs: dict[Way, float] = {
            "weight space": steps * (inputs * outputs * (2 * width + _CHANGED) + rest),
            "sample space": gram + steps * (samples * outputs * (width + _CHANGED) + rest),
            "products": samples * inputs * _COPIED + steps * product,
        }
        return min(costs, key=lambda way: costs[way])

    @torch.inference_mode()
    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        way = self.way(len(solve.x), solve.batches.rows.shape[1], solve.batches.steps)
        flat = self._flat([solve.weights])[0]
        if way == "products" or descent.held:
            return Solved(flat.numpy(), train_by_products(flat, self.sizes, solve, descent))
        if not solve.batches.steps:
            return Solved(flat.numpy(), float("nan"))
        form = _in_sample_space if way == "sample space" else _in_weight_space
        return Solved(flat.numpy(), train(flat.numpy(), self.sizes, solve, descent, form))

    @torch.inference_mode()
    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        longest = max(len(x) for x in xs)
        samples = torch.zeros(len(xs), longest, self.sizes[0], dtype=self.dtype)
        for at, x in enumerate(xs):
            samples[at, : len(x)] = x.reshape(len(x), -1)
        # features before samples: twice as fast for the few outputs of a classifier
        hidden = samples.transpose(1, 2)
        for layer, (kernel, bias) in enumerate(split(self._flat(weights), self.sizes)):
            hidden = torch.baddbmm(bias[:, :, None], kernel, hidden.relu_() if layer else hidden)
        return [logits[:, : len(x)].t() for logits, x in zip(hidden, xs, strict=True)]

    @torch.inference_mode()
    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        layers = [
            (kernel[0].clone(), bias[0, :, None].clone())
            for kernel, bias in split(self._flat([weights]), self.sizes)
        ]
        logits = []
        for piece in torch.split(x.reshape(len(x), self.sizes[0]).to(self.dtype), _APPLIED_AT_ONCE):
            hidden = piece.t()  # features before samples, as above
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
