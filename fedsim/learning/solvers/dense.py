"""Dense layers, many devices at once: gradients in closed form on stacked weights, in place.

All rows are padded with zeros to a multiple of 16 floats (one cache line): a device's slot in the stack then never changes how
its memory is aligned, so its result does not depend on who shares the stack, bit for bit. Devices are sorted by their number
of steps, so that those still at work are a prefix.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.learning.architecture import Architecture
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, mean_of, sum_of_squares
from fedsim.learning.solvers.batches import Batches

_LINE = 16  # floats in a cache line
_STACK_BYTES = 1 << 19  # stacked weights of one solve: what stays in a core's own cache beside the rest
_FEWEST_AT_ONCE, _MOST_AT_ONCE = 4, 32  # fewer leave a product's fixed cost unshared
_NARROWEST = 2  # rows of a batch array: a product of single rows depends on how many of them are stacked
_APPLIED_AT_ONCE = 256  # samples in one product when a model is applied; whole cache lines of any width
_NEVER = -1e30  # bias of the classes that are only padding: their probability is exactly 0


_Layer = tuple[Tensor, Tensor]  # a kernel and a bias, stacked


def padded(size: int) -> int:
    """``size`` rounded up to whole cache lines of floats."""
    return -(-size // _LINE) * _LINE


class Dense:
    """Softmax regression and perceptrons with ReLU under softmax cross-entropy.

    Args:
        architecture: dense layers (``architecture.is_dense``).
        device: where to compute.
        dtype: float32; float64 for tests of the gradients.
    """

    def __init__(self, architecture: Architecture, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        layers = [(layer.fans[0], layer.fans[1]) for _, layer in architecture.trained()]
        self.device = device
        self.dtype = dtype
        self.sizes = [layers[0][0], *(outputs for _, outputs in layers)]
        self.lines = [padded(size) for size in self.sizes]
        stack_bytes = 4 * sum(before * after for before, after in pairwise(self.lines))
        self.clients_at_once = max(_FEWEST_AT_ONCE, min(_MOST_AT_ONCE, _STACK_BYTES // stack_bytes))

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all; see ``Solver``."""
        order = sorted(range(len(solves)), key=lambda at: -solves[at].batches.steps)
        ranked = [solves[at] for at in order]
        layers = self._stack([solve.weights for solve in ranked])
        schedule = _Schedule.of(ranked, self.device, self.dtype)
        samples = self._samples(ranked)
        stack = _Stack(layers, schedule.width, descent)
        for segment in schedule.segments():
            stack.run(segment, samples)
        picked = schedule.picked.cpu().numpy()
        unstacked = self._unstack(layers)
        solved = {at: Solved(unstacked[rank], schedule.train_loss(rank, picked)) for rank, at in enumerate(order)}
        return [solved[at] for at in range(len(solves))]

    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """Logits of samples [n, *shape]: [n, classes]."""
        return self._apply(self._layers(weights), x.to(self.device))

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

    def _layers(self, weights: Weights) -> list[_Layer]:
        """Kernels [outputs, inputs] and biases [outputs, 1] of one model, each in memory of its own."""
        return [(kernel[0].clone(), bias[0, :, None].clone()) for kernel, bias in self._split(self._flat([weights]))]

    def _apply(self, layers: Sequence[_Layer], x: Tensor) -> Tensor:
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

    def _stack(self, models: Sequence[NDArray[np.floating]]) -> list[_Layer]:
        """Each layer's padded kernels [K, inputs, outputs] and biases [K, 1, outputs]."""
        flat = self._flat(models)
        stacked = []
        for layer, (kernel, bias) in enumerate(self._split(flat)):
            inputs, outputs = self.sizes[layer], self.sizes[layer + 1]
            wide = flat.new_zeros(len(models), self.lines[layer], self.lines[layer + 1])
            wide[:, :inputs, :outputs] = kernel.transpose(1, 2)
            wide_bias = flat.new_zeros(len(models), 1, self.lines[layer + 1])
            wide_bias[:, 0, :outputs] = bias
            stacked.append((wide, wide_bias))
        stacked[-1][1][:, :, self.sizes[-1] :] = _NEVER
        return stacked

    def _unstack(self, stacked: Sequence[_Layer]) -> list[Weights]:
        parts = []
        for layer, (kernel, bias) in enumerate(stacked):
            inputs, outputs = self.sizes[layer], self.sizes[layer + 1]
            parts += [kernel[:, :inputs, :outputs].transpose(1, 2).flatten(1), bias[:, 0, :outputs]]
        flat = torch.cat(parts, dim=1).cpu().numpy()
        return [row.copy() for row in flat]

    def _samples(self, solves: Sequence[LocalSolve]) -> Tensor:
        """All samples of all devices, one a padded row; the last row is no sample: all zeros."""
        total = sum(len(solve.x) for solve in solves)
        samples = torch.zeros(total + 1, self.lines[0], dtype=self.dtype, device=self.device)
        at = 0
        for solve in solves:
            samples[at : at + len(solve.x), : self.sizes[0]] = solve.x.reshape(len(solve.x), self.sizes[0])
            at += len(solve.x)
        return samples


@dataclass(frozen=True)
class _Segment:
    """Steps during which the same devices are at work.

    Attributes:
        active: how many devices.
        steps: four sequences with one entry a step: where the batches lie in the samples, int64 [active * width]; labels,
            int64 [active, width, 1]; shares, 1 / batch size or 0 where a row is no sample, [active, width, 1]; and what
            receives the log-probability of each label, [active, width, 1].
    """

    active: int
    steps: tuple[Sequence[Tensor], ...]


class _Schedule:
    """The batches of all devices, laid out step by step: the rows of step t are those of the devices still at work."""

    def __init__(self, batches: Sequence[Batches], rows: Tensor, labels: Tensor, shares: Tensor) -> None:
        self.batches = batches
        self.width = rows.shape[1]
        self.active = _still_active(batches)
        self.starts = np.concatenate([[0], np.cumsum(self.active)])
        self.rows, self.labels, self.shares = rows, labels, shares
        self.picked = torch.empty_like(shares)

    @classmethod
    def of(cls, solves: Sequence[LocalSolve], device: torch.device, dtype: torch.dtype) -> "_Schedule":
        """Lay out the work of ``solves``, which are sorted by falling number of steps."""
        batches = [solve.batches for solve in solves]
        starts = np.concatenate([[0], np.cumsum(_still_active(batches))])
        lines, width = int(starts[-1]), max(_NARROWEST, batches[0].rows.shape[1])
        total = sum(len(solve.y) for solve in solves)
        rows = np.full((lines, width), total, dtype=np.int64)
        shares = np.zeros((lines, width, 1), dtype=np.float64)
        labels = np.concatenate([*(solve.y.numpy() for solve in solves), [0]])
        first = 0
        for rank, batch in enumerate(batches):
            at = starts[: batch.steps] + rank
            real = batch.rows < batch.samples
            columns = batch.rows.shape[1]
            rows[at, :columns] = np.where(real, batch.rows + first, total)
            shares[at, :columns, 0] = real / batch.counts[:, None]
            first += batch.samples
        return cls(
            batches,
            torch.from_numpy(rows).to(device),
            torch.from_numpy(labels[rows][..., None]).to(device),
            torch.from_numpy(shares).to(device, dtype),
        )

    def segments(self) -> Iterator[_Segment]:
        """The whole work, in order."""
        changes = [0, *(np.flatnonzero(np.diff(self.active)) + 1).tolist(), len(self.active)]
        for begin, end in pairwise(changes):
            if begin == end:
                continue
            active = int(self.active[begin])
            lines = slice(int(self.starts[begin]), int(self.starts[end]))
            rows = self.rows[lines].view(end - begin, -1).unbind()
            others = (torch.split(each[lines], active) for each in (self.labels, self.shares, self.picked))
            yield _Segment(active, (rows, *others))

    def train_loss(self, rank: int, picked: NDArray[np.floating]) -> float:
        """Mean loss over the samples of a device's last epoch."""
        batch = self.batches[rank]
        if not batch.steps:
            return float("nan")
        real = batch.rows[batch.last_epoch :] < batch.samples
        log_probability = picked[self.starts[batch.last_epoch : batch.steps] + rank, : batch.rows.shape[1], 0]
        return float(-log_probability[real].sum(dtype=np.float64) / real.sum())


def _still_active(batches: Sequence[Batches]) -> NDArray[np.int64]:
    """How many devices are at work in each step, int64 [most steps]."""
    steps = np.array([batch.steps for batch in batches])
    active: NDArray[np.int64] = np.count_nonzero(steps[None, :] > np.arange(steps.max())[:, None], axis=1)
    return active


class _Stack:
    """Stacked weights being trained, with the buffers that a step needs."""

    def __init__(self, layers: list[_Layer], width: int, descent: Descent) -> None:
        kernels = [kernel for kernel, _ in layers]
        clients, like = len(kernels[0]), kernels[0]
        lines = [kernels[0].shape[1], *(kernel.shape[2] for kernel in kernels)]
        self.inputs = [like.new_zeros(clients, width, line) for line in lines]
        self.errors = [torch.empty_like(buffer) for buffer in self.inputs[:-1]]
        self.minus_one = like.new_full((clients, width, 1), -1.0)
        self.ones = like.new_ones(clients, 1, width)
        self.kernels = [_Parameter(kernel, descent, descent.shrinkage(kernel=True)) for kernel in kernels]
        self.biases = [_Parameter(bias, descent, descent.shrinkage(kernel=False)) for _, bias in layers]

    def run(self, segment: _Segment, samples: Tensor) -> None:
        """Carry out the steps of a segment.

        The gradient of a kernel is x^T error, that of a bias 1^T error: both sums over the batch.
        """
        active = segment.active
        inputs = [buffer[:active] for buffer in self.inputs]
        errors = [buffer[:active] for buffer in self.errors]
        kernels = [kernel.first(active) for kernel in self.kernels]
        biases = [bias.first(active) for bias in self.biases]
        transposed = [buffer.transpose(1, 2) for buffer in inputs]
        minus_one, ones = self.minus_one[:active], self.ones[:active]
        flat, top = inputs[0].view(-1, inputs[0].shape[2]), len(kernels) - 1
        for rows, labels, shares, picked in zip(*segment.steps, strict=True):
            torch.index_select(samples, 0, rows, out=flat)
            for layer in range(top):
                torch.baddbmm(biases[layer].weight, inputs[layer], kernels[layer].weight, out=inputs[layer + 1]).relu_()
            torch.baddbmm(biases[top].weight, inputs[top], kernels[top].weight, out=inputs[-1])
            error = torch.log_softmax(inputs[-1], 2)
            torch.gather(error, 2, labels, out=picked)
            error.exp_().scatter_add_(2, labels, minus_one).mul_(shares)
            for layer in range(top, 0, -1):
                below = errors[layer]
                torch.bmm(error, kernels[layer].weight.transpose(1, 2), out=below)
                torch.ops.aten.threshold_backward.grad_input(below, inputs[layer], 0.0, grad_input=below)
                kernels[layer].descend(transposed[layer], error)
                biases[layer].descend(ones, error)
                error = below
            kernels[0].descend(transposed[0], error)
            biases[0].descend(ones, error)


class _Parameter:
    """A stacked kernel [K, inputs, outputs] or bias [K, 1, outputs] with the state that its steps need."""

    def __init__(self, weight: Tensor, descent: Descent, shrinkage: float) -> None:
        self.weight = weight
        self.descent = descent
        self.shrinkage = shrinkage
        self.anchor = weight.clone() if descent.proximal else None
        self.velocity = torch.zeros_like(weight) if descent.momentum else None

    def first(self, count: int) -> "_Parameter":
        """The same for the first devices only; shares all memory."""
        view = copy.copy(self)
        view.weight = self.weight[:count]
        view.anchor = None if self.anchor is None else self.anchor[:count]
        view.velocity = None if self.velocity is None else self.velocity[:count]
        return view

    def descend(self, left: Tensor, right: Tensor) -> None:
        """One SGD step along the gradient left @ right."""
        descent, weight = self.descent, self.weight
        if self.velocity is not None:
            self.velocity.baddbmm_(left, right, beta=descent.momentum)
            if self.shrinkage:
                self.velocity.add_(weight, alpha=self.shrinkage)
            if self.anchor is not None:
                self.velocity.sub_(self.anchor, alpha=descent.proximal)
            weight.sub_(self.velocity, alpha=descent.lr)
            return
        if self.anchor is not None:
            weight.mul_(1.0 - descent.lr * self.shrinkage).add_(self.anchor, alpha=descent.lr * descent.proximal)
            weight.baddbmm_(left, right, alpha=-descent.lr)
        else:
            weight.baddbmm_(left, right, beta=1.0 - descent.lr * self.shrinkage, alpha=-descent.lr)
