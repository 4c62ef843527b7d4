"""The solver of dense layers."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Company, Descent, LocalSolve, Solved, mean_of, sum_of_squares
from fedsim.learning.solvers.dense.layers import split
from fedsim.learning.solvers.dense.training import prepare, train

_WORTH_A_REQUEST = 50_000_000  # multiplications that a worker does at one request, some milliseconds
_MOST_AT_ONCE = 32
_FASTER = 2  # how much faster multiplications are in one large product than in the steps
_TOUCHED, _SET_UP = 2, 1_000_000  # multiplications in whose time a number is changed, and sample space is set up
_APPLIED_AT_ONCE = 256  # samples in one product when a model is applied; whole cache lines of any width

Layer = tuple[Tensor, Tensor]  # a kernel and a bias


class Dense:
    """Softmax regression and perceptrons with ReLU under softmax cross-entropy.

    Args:
        architecture: dense layers (``architecture.is_dense``).
        dtype: float32; float64 for tests of the gradients.
        in_sample_space: whether the first layer is trained so; None: whichever is faster for each device.

    Attributes:
        device: a processor.
    """

    def __init__(
        self, architecture: Architecture, dtype: torch.dtype = torch.float32, *, in_sample_space: bool | None = None
    ) -> None:
        layers = [layer.fans for _, layer in architecture.trained()]
        self.device = torch.device("cpu")
        self.dtype = dtype
        self.sizes = [layers[0][0], *(outputs for _, outputs in layers)]
        self._always = in_sample_space
        self._parameters = architecture.parameters
        prepare(dtype)

    def company(self, samples: int, width: int, steps: int) -> Company:
        """See ``Solver``. Each is trained by itself: good company has as much work, so that a request is worth its while."""
        work = int(self._cost(samples, width, steps, there=self.uses_sample_space(samples, width, steps)))
        magnitude = work.bit_length()
        return Company(f"2^{magnitude} multiplications", max(1, min(_MOST_AT_ONCE, _WORTH_A_REQUEST >> magnitude)))

    def uses_sample_space(self, samples: int, width: int, steps: int) -> bool:
        """Whether the first layer of a device with such work is trained in sample space; looks at its own work alone."""
        if self._always is not None:
            return self._always
        return self._cost(samples, width, steps, there=True) < self._cost(samples, width, steps, there=False)

    def _cost(self, samples: int, width: int, steps: int, *, there: bool) -> float:
        """Multiplications, in sample space or not, weighted as they were measured (``tests/benchmarks/sample_space.py``)."""
        inputs, outputs = self.sizes[:2]
        rest = sum(before * after for before, after in pairwise(self.sizes[1:])) * (3 * width + _TOUCHED)
        if there:
            at_once = _SET_UP + samples * inputs * (samples + 2 * outputs) / _FASTER
            return at_once + steps * (samples * outputs * (width + _TOUCHED) + rest)
        return steps * (inputs * outputs * (2 * width + _TOUCHED) + rest)

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all; see ``Solver``."""
        return [self._solve(solve, descent) for solve in solves]

    @torch.inference_mode()
    def _solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        samples, width, steps = len(solve.x), solve.batches.rows.shape[1], solve.batches.steps
        flat = torch.empty(self._parameters, dtype=self.dtype).numpy()
        flat[:] = solve.weights
        there = self.uses_sample_space(samples, width, steps)
        return Solved(flat, train(flat, self.sizes, solve, descent, in_sample_space=there) if steps else float("nan"))

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
        total, at = 0.0, 0
        for inputs, outputs in pairwise(self.sizes):
            total += sum_of_squares(weights[at : at + inputs * outputs])
            at += inputs * outputs + outputs
        return total

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
