"""The layer that the samples enter, in two forms that give the same (up to rounding) at different cost.

In *weight space* a step multiplies the batch with the kernel, and changes the whole kernel. In *sample space* the kernel is not
there at all: SGD moves it only along the device's own samples, W = a W_0 + A^T X, so that its products with all samples, W X^T,
follow from the inner products of the samples, G = X X^T. A step is then one product of outputs x batch x n instead of two of
outputs x batch x inputs: most devices hold fewer samples than a sample has features.
"""

import numpy as np
import torch

from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.dense.kernel import Entry, Floats, Parameter

_LINE = 16  # floats in a cache line; rows that are so long leave no rest to loops over vector registers


def parameter(weight: Floats, descent: Descent, *, anchored: bool = True) -> Parameter:
    """What steps of the rule need for weights [..., rows, columns]; ``anchored``: the proximal term draws to the start."""
    none = weight[..., :0, :]
    velocity = np.zeros_like(weight) if descent.momentum else none
    return Parameter(weight, velocity, weight.copy() if descent.proximal and anchored else none)


def fours(count: int) -> int:
    """``count`` rounded up to whole fours; see ``kernel``."""
    return -(-count // 4) * 4


def _in_fours(kernel: Floats) -> Floats:
    """A copy of [outputs, inputs], filled up to whole fours of outputs with zeros."""
    outputs, inputs = kernel.shape
    filled = np.zeros((fours(outputs), inputs), kernel.dtype)
    filled[:outputs] = kernel
    return filled


class InWeightSpace:
    """The samples themselves, and the kernel itself.

    Args:
        solve: the work.
        kernel: where the layer starts, [outputs, inputs]; it is left alone until ``write``.
        descent: the rule.

    Attributes:
        entry: what is trained.
    """

    def __init__(self, solve: LocalSolve, kernel: Floats, descent: Descent) -> None:
        self._kernel = kernel
        samples = solve.x.numpy().reshape(len(solve.x), -1).astype(kernel.dtype, copy=False)
        nothing = kernel[:0]
        trained = parameter(_in_fours(kernel), descent)
        self.entry = Entry(np.ascontiguousarray(samples), trained, Parameter(nothing, nothing, nothing))

    def write(self, steps: int) -> None:
        """Turn the kernel into what has become of it."""
        self._kernel[:] = self.entry.kernel.weight[: len(self._kernel)]


class InSampleSpace:
    """What the kernel makes of each sample, and how far it has moved along each.

    Args:
        solve: the work.
        kernel: where the layer starts, [outputs, inputs], in memory that torch has allocated; it is left alone until ``write``.
        descent: the rule.

    Attributes:
        entry: what is trained.
    """

    def __init__(self, solve: LocalSolve, kernel: Floats, descent: Descent) -> None:
        self._kernel, self._descent = torch.from_numpy(kernel), descent
        (outputs, inputs), count = kernel.shape, len(solve.x)
        like, columns = self._kernel, -(-count // _LINE) * _LINE
        self._samples = like.new_empty(count, inputs)  # torch's memory is aligned: on it a product's last bits depend
        self._samples.copy_(solve.x.reshape(count, inputs))
        self._moved = like.new_zeros(count, outputs)
        gram, values = like.new_zeros(count, columns), like.new_zeros(fours(outputs), columns)
        torch.mm(self._samples, self._samples.t(), out=gram[:, :count])
        torch.mm(self._kernel, self._samples.t(), out=values[:outputs, :count])
        moved = parameter(self._moved.numpy(), descent, anchored=False)
        self.entry = Entry(gram.numpy(), parameter(values.numpy(), descent), moved)

    def write(self, steps: int) -> None:
        """Turn the kernel into what has become of it after so many steps."""
        self._kernel.addmm_(self._moved.t(), self._samples, beta=self._kept(steps))

    def _kept(self, steps: int) -> float:
        """a, the share of the start that is left in the kernel after so many steps."""
        descent, shrinkage = self._descent, self._descent.shrinkage(kernel=True)
        share, velocity = 1.0, 0.0
        for _ in range(steps if shrinkage else 0):
            velocity = descent.momentum * velocity + shrinkage * share - descent.proximal
            share -= descent.lr * velocity
        return share
