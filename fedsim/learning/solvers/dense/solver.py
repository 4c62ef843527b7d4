"""The solver of dense layers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Company, Descent, LocalSolve, Solved, mean_of, sum_of_squares
from fedsim.learning.solvers.chain import Chain
from fedsim.learning.solvers.dense.layers import split
from fedsim.learning.solvers.dense.training import prepare, train

Way = Literal["weight space", "sample space", "products"]
"""How a device is trained: in compiled loops, with its first layer in one of two forms (see ``forms``), or in torch's matrix
products, which multiply faster but cost more to call."""

_WORTH_A_REQUEST = 1 << 27  # multiplications that a worker does at one request, some 5 ms: less gains nothing from a second one
_MOST_AT_ONCE = 32
_FASTER = 2.5  # how much faster multiplications are in matrix products than in loops
_CHANGED, _CHANGED_THERE = 2, 20  # multiplications in whose time a number of a kernel is changed, in loops and by products
_SET_UP, _CALLED, _COPIED = 1_000_000, 2_000_000, 48  # the same: to set up sample space, a step of products, to copy a number
_APPLIED_AT_ONCE = 256  # samples in one product when a model is applied; whole cache lines of any width

Layer = tuple[Tensor, Tensor]  # a kernel and a bias


class Dense:
    """Softmax regression and perceptrons with ReLU under softmax cross-entropy.

    Args:
        architecture: dense layers (``architecture.is_dense``).
        dtype: float32; float64 for tests of the gradients.
        way: how every device is trained; None: each in whichever way is fastest for it.

    Attributes:
        device: a processor.
    """

    def __init__(self, architecture: Architecture, dtype: torch.dtype = torch.float32, *, way: Way | None = None) -> None:
        layers = [layer.fans for _, layer in architecture.trained()]
        self.device = torch.device("cpu")
        self.dtype = dtype
        self.sizes = [layers[0][0], *(outputs for _, outputs in layers)]
        self._always = way
        self._parameters = architecture.parameters
        self._products = Chain(architecture, dtype)
        prepare(dtype)

    def company(self, samples: int, width: int, steps: int) -> Company:
        """See ``Solver``. Each is trained by itself: good company has as much work, so that a request is worth its while."""
        magnitude = int(self._costs(samples, width, steps)[self.way(samples, width, steps)]).bit_length()
        return Company(f"2^{magnitude} multiplications", max(1, min(_MOST_AT_ONCE, _WORTH_A_REQUEST >> magnitude)))

    def way(self, samples: int, width: int, steps: int) -> Way:
        """How a device with such work is trained; looks at its own work alone."""
        if self._always is not None:
            return self._always
        costs = self._costs(samples, width, steps)
        return min(costs, key=lambda way: costs[way])

    def _costs(self, samples: int, width: int, steps: int) -> dict[Way, float]:
        """What each way costs, in multiplications of the loops, as it was measured (``tests/benchmarks/dense.py``)."""
        (inputs, outputs), width = self.sizes[:2], min(width, samples)
        rest = sum(before * after for before, after in pairwise(self.sizes[1:])) * (3 * width + _CHANGED)
        gram = _SET_UP + samples * inputs * (samples + 2 * outputs) / _FASTER
        product = _CALLED + self._parameters * (2 * width / _FASTER + _CHANGED_THERE)
        return {
            "weight space": steps * (inputs * outputs * (2 * width + _CHANGED) + rest),
            "sample space": gram + steps * (samples * outputs * (width + _CHANGED) + rest),
            "products": samples * inputs * _COPIED + steps * product,
        }

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all; see ``Solver``."""
        return [self._solve(solve, descent) for solve in solves]

    @torch.inference_mode()
    def _solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        way = self.way(len(solve.x), solve.batches.rows.shape[1], solve.batches.steps)
        if way == "products":
            return self._products.solve([solve], descent)[0]
        flat = torch.empty(self._parameters, dtype=self.dtype).numpy()
        flat[:] = solve.weights
        if not solve.batches.steps:
            return Solved(flat, float("nan"))
        return Solved(flat, train(flat, self.sizes, solve, descent, in_sample_space=way == "sample space"))

    @torch.inference_mode()
    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """Logits of samples [n, *shape]: [n, classes]."""
        return self._apply(self._layers(weights), x)

    @torch.inference_mode()
    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        """Logits of several models, each with its own samples; in one batched product a layer."""
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
    def mean_losses(self, weights: Weights, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[float]:
        """Mean losses of one model; see ``Solver``. A product has the samples of one set, so nothing else can change it."""
        layers = self._layers(weights)
        return [mean_of(self.losses(self._apply(layers, x), y)) for x, y in zip(xs, ys, strict=True)]

    def kernel_norm(self, weights: Weights) -> float:
        """The sum of the squared kernel entries."""
        return sum(sum_of_squares(kernel.ravel()) for kernel, _ in split(weights, self.sizes))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Softmax cross-entropy of each sample."""
        return functional.cross_entropy(outputs, y, reduction="none")

    def _layers(self, weights: Weights) -> list[Layer]:
        """Kernels [outputs, inputs] and biases [outputs, 1] of one model, each in memory of its own."""
        return [(kernel[0].clone(), bias[0, :, None].clone()) for kernel, bias in split(self._flat([weights]), self.sizes)]

    def _apply(self, layers: Sequence[Layer], x: Tensor) -> Tensor:
        """Logits of samples [n, *shape]: [n, classes]."""
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
