"""The layer that the samples enter, in two forms that give the same (up to rounding) at different cost.

In *weight space* a step multiplies the batch with the kernel, and changes the whole kernel. In *sample space* the kernel is not
there at all: SGD moves it only along the device's own samples, and along C, the constant part of the gradient, if there is one:
W = a W_0 + b C + A^T X. So its products with all samples, W X^T, follow from the inner products of the samples, G = X X^T. A
step is then one product of outputs x batch x n instead of two of outputs x batch x inputs: most devices hold fewer samples than
a sample has features.
"""

import numpy as np
import torch

from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.dense.kernel import Entry, Floats, Parameter

_LINE = 16  # floats in a cache line; rows that are so long leave no rest to loops over vector registers


def parameter(weight: Floats, descent: Descent, constant: Floats | None = None, *, drawn: bool = True) -> Parameter:
    """What steps of the rule need for weights [..., rows, columns]; ``drawn``: the proximal term draws to the start."""
    none = weight[..., :0, :]
    velocity = np.zeros_like(weight) if descent.momentum else none
    start = weight.copy() if descent.mu and drawn else none
    return Parameter(weight, velocity, start, none if constant is None else constant)


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
        constant: the kernel's part of ``LocalSolve.constant``.

    Attributes:
        entry: what is trained.
    """

    def __init__(self, solve: LocalSolve, kernel: Floats, descent: Descent, constant: Floats | None) -> None:
        self._kernel = kernel
        samples = solve.x.numpy().reshape(len(solve.x), -1).astype(kernel.dtype, copy=False)
        nothing = kernel[:0]
        trained = parameter(_in_fours(kernel), descent, None if constant is None else _in_fours(constant))
        self.entry = Entry(np.ascontiguousarray(samples), trained, Parameter(nothing, nothing, nothing, nothing))

    def write(self, steps: int) -> None:
        """Turn the kernel into what has become of it."""
        self._kernel[:] = self.entry.kernel.weight[: len(self._kernel)]


class InSampleSpace:
    """What the kernel makes of each sample, and how far it has moved along each.

    Args:
        solve: the work.
        kernel: where the layer starts, [outputs, inputs], in memory that torch has allocated; it is left alone until ``write``.
        descent: the rule.
        constant: the kernel's part of ``LocalSolve.constant``.

    Attributes:
        entry: what is trained.
    """

    def __init__(self, solve: LocalSolve, kernel: Floats, descent: Descent, constant: Floats | None) -> None:
        self._kernel, self._descent = torch.from_numpy(kernel), descent
        self._constant = None if constant is None else torch.tensor(constant)
        (outputs, inputs), count = kernel.shape, len(solve.x)
        like, columns = self._kernel, -(-count // _LINE) * _LINE
        self._samples = like.new_empty(count, inputs)  # torch's memory is aligned: on it a product's last bits depend
        self._samples.copy_(solve.x.reshape(count, inputs))
        self._moved = like.new_zeros(count, outputs)
        gram = self._products(self._samples, count, columns)
        values = parameter(
            self._products(self._kernel, fours(outputs), columns),
            descent,
            None if self._constant is None else self._products(self._constant, fours(outputs), columns),
        )
        self.entry = Entry(gram, values, parameter(self._moved.numpy(), descent, drawn=False))

    def write(self, steps: int) -> None:
        """Turn the kernel into what has become of it after so many steps."""
        kept = self._share(1.0, -self._descent.mu, steps)
        self._kernel.addmm_(self._moved.t(), self._samples, beta=kept)
        if self._constant is not None:
            self._kernel.add_(self._constant, alpha=self._share(0.0, 1.0, steps))

    def _products(self, vectors: torch.Tensor, rows: int, columns: int) -> Floats:
        """Inner products of vectors [k, inputs] with all samples, filled up with zeros: [rows, columns]."""
        products = vectors.new_zeros(rows, columns)
        torch.mm(vectors, self._samples.t(), out=products[: len(vectors), : len(self._samples)])
        return products.numpy()

    def _share(self, share: float, pull: float, steps: int) -> float:
        """What becomes of the share of W_0 (or C) in the kernel in so many steps; each adds ``pull`` of it to the gradient."""
        descent, shrinkage, velocity = self._descent, self._descent.shrinkage(kernel=True), 0.0
        for _ in range(steps if shrinkage or pull else 0):
            velocity = descent.momentum * velocity + shrinkage * share + pull
            share -= descent.lr * velocity
        return share
