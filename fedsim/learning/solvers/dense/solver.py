"""The solver of dense layers: puts devices into stacks, and takes them out again."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Company, Descent, LocalSolve, Solved, mean_of, sum_of_squares
from fedsim.learning.solvers.dense.input_layers import InputLayer, InSampleSpace, InWeightSpace, room
from fedsim.learning.solvers.dense.layout import Layer, padded
from fedsim.learning.solvers.dense.schedule import Schedule
from fedsim.learning.solvers.dense.stack import Stack

_STACK_BYTES = 1 << 19  # stacked weights of one solve: what stays in a core's own cache beside the rest
_VALUES_BYTES = 1 << 20  # the same in sample space
_FEWEST_AT_ONCE, _MOST_AT_ONCE = 4, 32  # fewer leave a product's fixed cost unshared
_TOUCHED, _GATHERED, _PREPARED = 10, 64, 500  # multiplications that a number costs to be changed, fetched, made room for
_FASTER = 3  # how much faster multiplications are in one large product
_LIGHT = 8_000_000  # multiplications in a step, below which two threads are slower than one
_INTERPRETER = threading.Lock()  # whoever makes many small operations holds it: they would only fight over Python's own lock
_APPLIED_AT_ONCE = 256  # samples in one product when a model is applied; whole cache lines of any width
_NEVER = -1e30  # bias of the classes that are only padding: their probability is exactly 0

_Form = type[InWeightSpace] | type[InSampleSpace]


class Dense:
    """Softmax regression and perceptrons with ReLU under softmax cross-entropy.

    Args:
        architecture: dense layers (``architecture.is_dense``).
        device: where to compute.
        dtype: float32; float64 for tests of the gradients.
        form: of the first layer; None: whichever is faster for each device.
    """

    def __init__(
        self,
        architecture: Architecture,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        form: _Form | None = None,
    ) -> None:
        layers = [(layer.fans[0], layer.fans[1]) for _, layer in architecture.trained()]
        self.device = device
        self.dtype = dtype
        self._always = form
        self.sizes = [layers[0][0], *(outputs for _, outputs in layers)]
        self._parameters = architecture.parameters
        lines = [padded(size) for size in self.sizes]
        self._line = lines[1]
        self._stack_bytes = 4 * sum(before * after for before, after in pairwise(lines))

    def company(self, samples: int, width: int, steps: int) -> Company:
        """See ``Solver``."""
        if self._form(samples, width, steps) is InSampleSpace:
            lines = room(samples)
            most = _VALUES_BYTES // (4 * lines * self._line)
            return Company(f"sample space of {lines}", max(_FEWEST_AT_ONCE, min(_MOST_AT_ONCE, most)))
        return Company("weight space", max(_FEWEST_AT_ONCE, min(_MOST_AT_ONCE, _STACK_BYTES // self._stack_bytes)))

    def _form(self, samples: int, width: int, steps: int) -> _Form:
        """In which form a device's first layer is trained faster; looks at its own work alone.

        Compares multiplications, weighted as they were measured to cost (``tests/benchmarks/sample_space.py``).
        """
        if self._always is not None:
            return self._always
        inputs, outputs = self.sizes[0], self._line
        a_step = inputs * outputs * (2 * width + _TOUCHED)
        a_step_there = samples * width * (outputs + _GATHERED)
        at_once = samples * inputs * (samples + 2 * outputs) / _FASTER + samples**2 * _PREPARED
        return InSampleSpace if at_once + steps * a_step_there < steps * a_step else InWeightSpace

    @torch.inference_mode()  # gradients are in closed form: without autograd's books a small operation takes half the time
    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all; see ``Solver``."""
        stacks: dict[str, list[int]] = {}
        for at, solve in enumerate(solves):
            stacks.setdefault(self.company(*_size(solve)).kind, []).append(at)
        solved: dict[int, Solved] = {}
        for stack in stacks.values():
            ranked = sorted(stack, key=lambda at: -solves[at].batches.steps)
            with _INTERPRETER if self._is_light([solves[at] for at in stack]) else nullcontext():
                solved |= zip(ranked, self._solve([solves[at] for at in ranked], descent), strict=True)
        return [solved[at] for at in range(len(solves))]

    def _is_light(self, solves: Sequence[LocalSolve]) -> bool:
        """Whether a step of the stack multiplies so little that the interpreter is what takes the time."""
        samples, width, steps = _size(solves[0])
        in_sample_space = self._form(samples, width, steps) is InSampleSpace
        first = self._line * (room(samples) if in_sample_space else 2 * self.sizes[0])
        rest = 3 * sum(inputs * outputs for inputs, outputs in pairwise(self.sizes[1:]))
        return len(solves) * width * (first + rest) < _LIGHT

    def _solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all in one stack; they are good company, sorted by falling number of steps."""
        form = self._form(*_size(solves[0]))
        layers = self._starts(solves)
        entry = form(solves, [own[0][0] for own in layers], descent)
        kernels, biases = self._stacked(layers)
        schedule = Schedule(solves, entry.first, self.device, self.dtype)
        stack = Stack(entry, kernels, biases, schedule.width, descent)
        for segment in schedule.segments():
            stack.run(segment)
        steps = [solve.batches.steps for solve in solves]
        trained = [self._unstacked(entry, kernels, biases, rank, count) for rank, count in enumerate(steps)]
        return [Solved(weights, loss) for weights, loss in zip(trained, schedule.train_losses(), strict=True)]

    @torch.inference_mode()
    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """Logits of samples [n, *shape]: [n, classes]."""
        return self._apply(self._layers(weights), x.to(self.device))

    @torch.inference_mode()
    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        """Logits of several models, each with its own samples; in one batched product a layer."""
        flat = self._flat(weights)
        longest = max(len(x) for x in xs)
        samples = torch.zeros(len(xs), longest, self.sizes[0], dtype=self.dtype, device=self.device)
        for at, x in enumerate(xs):
            samples[at, : len(x)] = x.reshape(len(x), -1)
        hidden = samples.transpose(1, 2)  # features before samples: twice as fast for the few outputs of a classifier
        for layer, (kernel, bias) in enumerate(self._split(flat)):
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
        return [(kernel[0].clone(), bias[0, :, None].clone()) for kernel, bias in self._split(self._flat([weights]))]

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
        return flat.to(self.device)

    def _split(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Kernels [K, outputs, inputs] and biases [K, outputs] of flat models [K, d]."""
        at = 0
        for inputs, outputs in pairwise(self.sizes):
            kernel = flat[:, at : at + inputs * outputs].view(len(flat), outputs, inputs)
            at += inputs * outputs
            yield kernel, flat[:, at : at + outputs]
            at += outputs

    def _starts(self, solves: Sequence[LocalSolve]) -> list[list[Layer]]:
        """Each device's first layers, kernels [outputs, inputs] and biases [outputs]; the same model is one for all."""
        models: dict[int, list[Layer]] = {}
        for solve in solves:
            if id(solve.weights) not in models:
                flat = self._flat([solve.weights])
                models[id(solve.weights)] = [(kernel[0], bias[0]) for kernel, bias in self._split(flat)]
        return [models[id(solve.weights)] for solve in solves]

    def _stacked(self, layers: Sequence[Sequence[Layer]]) -> tuple[list[Tensor], list[Tensor]]:
        """Padded kernels [K, inputs, outputs] of all layers but the first, and biases [K, 1, outputs] of all."""
        kernels, biases, like = [], [], layers[0][0][1]
        for layer, (inputs, outputs) in enumerate(pairwise(self.sizes)):
            bias = like.new_zeros(len(layers), 1, padded(outputs))
            kernel = like.new_zeros(len(layers), padded(inputs), padded(outputs)) if layer else None
            for rank, own in enumerate(layers):
                bias[rank, 0, :outputs] = own[layer][1]
                if kernel is not None:
                    kernel[rank, :inputs, :outputs] = own[layer][0].t()
            biases.append(bias)
            if kernel is not None:
                kernels.append(kernel)
        biases[-1][:, :, self.sizes[-1] :] = _NEVER
        return kernels, biases

    def _unstacked(
        self, entry: InputLayer, kernels: Sequence[Tensor], biases: Sequence[Tensor], rank: int, steps: int
    ) -> Weights:
        """A device's model after its steps, float [d]."""
        flat = torch.empty(self._parameters, dtype=self.dtype, device=self.device)
        for layer, (kernel, bias) in enumerate(self._split(flat[None])):
            outputs, inputs = kernel.shape[1:]
            if layer:
                kernel[0].copy_(kernels[layer - 1][rank, :inputs, :outputs].t())
            else:
                entry.write(rank, steps, kernel[0])
            bias[0].copy_(biases[layer][rank, 0, :outputs])
        weights: Weights = flat.cpu().numpy()
        return weights


def _size(solve: LocalSolve) -> tuple[int, int, int]:
    """Samples, rows of a batch array, and steps of a device's work."""
    return len(solve.x), solve.batches.rows.shape[1], solve.batches.steps
