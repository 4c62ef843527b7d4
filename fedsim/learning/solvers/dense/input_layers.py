"""The layer that the samples enter, in two forms that give the same (up to rounding) at different cost.

In *weight space* a step multiplies the batch with the kernel, and changes the whole kernel. In *sample space* the kernel is not
there at all: SGD moves it only along the device's own samples, W = a W_0 + X^T A, so that its products with all samples, X W,
follow from the inner products of the samples, G = X X^T. A step is then n x batch x outputs instead of twice
inputs x batch x outputs multiplications, and touches n x outputs instead of inputs x outputs numbers: most devices hold fewer
samples than a sample has features.
"""

import copy
from collections.abc import Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.dense.layout import padded
from fedsim.learning.solvers.dense.parameter import Parameter, spread

_SMALLEST_ROOM = 64  # rows


def room(samples: int) -> int:
    """Rows of a device's matrices in sample space, one for no sample among them: 64, 128, 256, ...

    A function of the device alone, since the last bits of a product depend on its shape where that is large. Few sizes, since
    only devices of one size can share a stack.
    """
    return max(_SMALLEST_ROOM, 1 << samples.bit_length())


class InputLayer(Protocol):
    """The first layer of all devices of a stack.

    Attributes:
        first: where each device's samples begin in the stack's; the row after its last is no sample, all zeros.
    """

    first: list[int]

    def active(self, count: int, width: int) -> Self:
        """The same for the first ``count`` devices only, with batches of ``width`` rows; shares all memory."""

    def forward(self, rows: Tensor, bias: Tensor, out: Tensor) -> None:
        """x W + bias of the samples at ``rows`` [count width], into ``out`` [count, width, outputs]."""

    def descend(self, rows: Tensor, error: Tensor) -> None:
        """One step along the gradient x^T error of those samples; error [count, width, outputs]."""

    def write(self, rank: int, steps: int, out: Tensor) -> None:
        """What has become of a device's kernel after its ``steps`` steps, into ``out`` [outputs, inputs]."""


class InWeightSpace:
    """Kernels as those of all other layers.

    Args:
        solves: the work.
        kernels: where each starts, [outputs, inputs], in aligned memory.
        descent: the rule.
    """

    def __init__(self, solves: Sequence[LocalSolve], kernels: Sequence[Tensor], descent: Descent) -> None:
        (outputs, inputs), clients, like = kernels[0].shape, len(kernels), kernels[0]
        self.first, total = [], 0
        for solve in solves:
            self.first.append(total)
            total += len(solve.x) + 1
        self.samples = like.new_zeros(total, padded(inputs))
        for at, solve in zip(self.first, solves, strict=True):
            self.samples[at : at + len(solve.x), :inputs] = solve.x.reshape(len(solve.x), inputs)
        wide = like.new_zeros(clients, padded(inputs), padded(outputs))
        for own, kernel in zip(wide, kernels, strict=True):
            own[:inputs, :outputs] = kernel.t()
        self.kernel = Parameter(wide, descent, descent.shrinkage(kernel=True))

    def active(self, count: int, width: int) -> Self:
        """See ``InputLayer``."""
        view = copy.copy(self)
        view.kernel = self.kernel.first(count)
        batch = self.samples.new_empty(count * width, self.samples.shape[1])
        view._flat, view._batch = batch, batch.view(count, width, -1)
        view._transposed = view._batch.transpose(1, 2)
        return view

    _flat: Tensor
    _batch: Tensor
    _transposed: Tensor

    def forward(self, rows: Tensor, bias: Tensor, out: Tensor) -> None:
        """See ``InputLayer``."""
        torch.index_select(self.samples, 0, rows, out=self._flat)
        torch.baddbmm(bias, self._batch, self.kernel.weight, out=out)

    def descend(self, rows: Tensor, error: Tensor) -> None:
        """See ``InputLayer``."""
        self.kernel.descend(self._transposed, error)

    def write(self, rank: int, steps: int, out: Tensor) -> None:
        """See ``InputLayer``."""
        outputs, inputs = out.shape
        out.copy_(self.kernel.weight[rank, :inputs, :outputs].t())


class InSampleSpace:
    """What the kernels make of the devices' samples, and how far they have moved along each sample.

    Args:
        solves: the work; all need the same ``room``.
        kernels: where each starts, [outputs, inputs], in aligned memory.
        descent: the rule.
    """

    def __init__(self, solves: Sequence[LocalSolve], kernels: Sequence[Tensor], descent: Descent) -> None:
        (outputs, inputs), clients, like = kernels[0].shape, len(kernels), kernels[0]
        self._start, self._descent = kernels, descent
        lines = room(len(solves[0].x))
        self.first = [rank * lines for rank in range(clients)]
        self.samples = like.new_zeros(clients, lines, padded(inputs))
        self.gram = like.new_empty(clients, lines, lines)
        values = like.new_zeros(clients, lines, padded(outputs))
        for rank, (solve, own) in enumerate(zip(solves, self.samples, strict=True)):
            own[: len(solve.x), :inputs] = solve.x.reshape(len(solve.x), inputs)
            torch.mm(own, own.t(), out=self.gram[rank])
            values[rank, :, :outputs] = own[:, :inputs] @ kernels[rank].t()
        shrinkage = descent.shrinkage(kernel=True)
        self.values = Parameter(values, descent, shrinkage)
        self.moved = Parameter(torch.zeros_like(values), descent, shrinkage, anchored=False)

    def active(self, count: int, width: int) -> Self:
        """See ``InputLayer``."""
        view = copy.copy(self)
        view.values, view.moved = self.values.first(count), self.moved.first(count)
        lines = self.gram.shape[1]
        view._flat_values = view.values.weight.view(-1, view.values.weight.shape[2])
        view._flat_gram = self.gram.view(-1, lines)
        view._batch = self.gram.new_empty(count * width, lines)
        view._transposed = view._batch.view(count, width, lines).transpose(1, 2)
        return view

    _flat_values: Tensor
    _flat_gram: Tensor
    _batch: Tensor
    _transposed: Tensor

    def forward(self, rows: Tensor, bias: Tensor, out: Tensor) -> None:
        """See ``InputLayer``."""
        torch.index_select(self._flat_values, 0, rows, out=out.view(-1, out.shape[2]))
        out.add_(bias)

    def descend(self, rows: Tensor, error: Tensor) -> None:
        """See ``InputLayer``."""
        torch.index_select(self._flat_gram, 0, rows, out=self._batch)
        self.values.descend(self._transposed, error)
        self.moved.descend(rows, error, spread)

    def write(self, rank: int, steps: int, out: Tensor) -> None:
        """See ``InputLayer``."""
        outputs, inputs = out.shape
        moved, samples = self.moved.weight[rank, :, :outputs], self.samples[rank, :, :inputs]
        torch.addmm(self._start[rank], moved.t(), samples, beta=self._kept(steps), out=out)

    def _kept(self, steps: int) -> float:
        """a, the share of the start that is left in the kernel after so many steps."""
        descent, shrinkage = self._descent, self._descent.shrinkage(kernel=True)
        share, velocity = 1.0, 0.0
        for _ in range(steps):
            velocity = descent.momentum * velocity + shrinkage * share - descent.proximal
            share -= descent.lr * velocity
        return share
