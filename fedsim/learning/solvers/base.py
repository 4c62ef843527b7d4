"""The interface of solvers: a device's work, the rule of a step, and the outcome."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.common.training import Batching, Contrast, LastBatch, Penalised, Places
from fedsim.learning.refs import Weights

_NARROW = 64  # batches up to this size are always padded to the full batch size


@dataclass(frozen=True)
class Batches:
    """The batches of one local solve on n samples, one row a step."""

    rows: NDArray[np.int64]
    """positions of the samples, int64 [steps, width]; n marks an empty place (in the last batch
    of an epoch).
    """
    counts: NDArray[np.int64]
    """samples in each batch, int64 [steps]."""
    last_epoch: int
    """the first step of the last epoch."""
    per_epoch: int = 1
    """steps of an epoch."""

    @property
    def steps(self) -> int:
        return len(self.counts)

    def between(self, begin: int, end: int) -> "Batches":
        """The batches of the steps from ``begin`` to before ``end``."""
        last_epoch = max(0, min(self.last_epoch, end) - begin)
        return Batches(self.rows[begin:end], self.counts[begin:end], last_epoch, self.per_epoch)

    def mean_loss(self, total: float) -> float:
        """The mean of losses that add up to ``total`` over the last epoch; NaN without a step."""
        seen = int(self.counts[self.last_epoch :].sum())
        return total / seen if seen else math.nan


def batch_width(samples: int, batch_size: int) -> int:
    """Columns of a batch array for a device with so many samples, independent of devices that
    train beside it.
    """
    return (
        min(batch_size, max(_NARROW, 1 << (samples - 1).bit_length()))
        if samples
        else min(batch_size, _NARROW)
    )


def shuffled(
    generator: np.random.Generator,
    samples: int,
    batch_size: int,
    epochs: int,
    iterations: int | None = None,
    *,
    only: int | None = None,
    last: LastBatch = "keep",
) -> Batches:
    """Batches of a fresh permutation an epoch, or so many ``iterations``; with ``only`` all on
    the batch of that number.

    ``last``: the fate of an incomplete last batch; see ``Batching``.
    """
    batching = Batching(batch_size, last)
    per_epoch = max(1, batching.count(samples))
    last_size = batching.last_size(samples)
    total = per_epoch * epochs if iterations is None else iterations
    if not samples:
        total = 0
    if only is not None and total:
        found = shuffled(generator, samples, batch_size, 1, only + 1, last=last)
        return Batches(
            found.rows[-1:].repeat(total, axis=0), found.counts[-1:].repeat(total), total - 1
        )
    epochs = -(-total // per_epoch)
    # as ``permutation`` in each epoch
    order = generator.permuted(np.tile(np.arange(samples), (epochs, 1)), axis=1)
    columns = max(batch_width(samples, batch_size), last_size)
    rows = np.full((epochs, per_epoch, columns), samples, dtype=np.int64)
    before = (per_epoch - 1) * batch_size
    if before:
        rows[:, :-1, :batch_size] = order[:, :before].reshape(epochs, per_epoch - 1, batch_size)
    rows[:, -1, :last_size] = order[:, before : before + last_size]
    counts = np.full((epochs, per_epoch), batch_size, dtype=np.int64)
    counts[:, -1] = last_size
    last_epoch = max(0, (epochs - 1) * per_epoch)
    return Batches(rows.reshape(-1, columns)[:total], counts.ravel()[:total], last_epoch, per_epoch)


@dataclass(frozen=True)
class Descent:
    """The rule of an SGD step: v <- momentum v + gradient, w <- w - lr v; tensors that are
    ``held`` make none.

    The gradient is g + weight_decay w + 2 l2 w (kernels, or dense ones only) + mu (w - anchor) +
    linear, by the device's anchor and linear term. g is that of the mean loss with the contrastive
    term, scaled down to the norm ``clip`` if that is given.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    l2: float = 0.0
    mu: float = 0.0
    l2_on: Penalised = "kernels"
    held: Places = ()
    clip: float | None = None

    def of(self, begin: int, end: int) -> "Descent":
        """The rule for the tensor at a place of a flat model; one that is held makes no steps."""
        return (
            replace(self, lr=0.0)
            if any(first <= begin and end <= last for first, last in self.held)
            else self
        )

    def shrinkage(self, kernel: bool, dimensions: int = 2) -> float:
        """The factor of w itself in the gradient of a parameter of so many dimensions; for a
        ``kernel`` with the L2 penalty.
        """
        is_penalised = kernel and (self.l2_on == "kernels" or dimensions == 2)  # of a dense layer
        return self.weight_decay + self.mu + (2.0 * self.l2 if is_penalised else 0.0)


class ParameterStep:
    """A parameter, trained in place, with ``Descent.shrinkage``, its part of
    ``LocalSolve.constant``, and its rule's state.
    """

    def __init__(
        self, parameter: Tensor, descent: Descent, shrinkage: float, constant: Tensor | None
    ) -> None:
        self.parameter = parameter
        self.descent = descent
        self.shrinkage = shrinkage
        self.constant = constant
        self.start = parameter.detach().clone() if descent.mu else None
        self.velocity = (
            torch.zeros_like(parameter, requires_grad=False) if descent.momentum else None
        )

    def descend(self, gradient: Tensor) -> None:
        descent = self.descent
        weight = self.parameter
        if self.shrinkage:
            gradient = gradient.add(weight, alpha=self.shrinkage)
        if self.start is not None:
            gradient = gradient.sub(self.start, alpha=descent.mu)
        if self.constant is not None:
            gradient = gradient.add(self.constant)
        if self.velocity is not None:
            gradient = self.velocity.mul_(descent.momentum).add_(gradient)
        weight.sub_(gradient, alpha=descent.lr)

    def descend_product(self, left: Tensor, right: Tensor) -> None:
        """One step of a matrix along the gradient ``left`` @ ``right``, which is added where it
        is made.
        """
        descent = self.descent
        weight = self.parameter
        if self.velocity is not None:
            self.velocity.addmm_(left, right, beta=descent.momentum)
            if self.shrinkage:
                self.velocity.add_(weight, alpha=self.shrinkage)
            if self.start is not None:
                self.velocity.sub_(self.start, alpha=descent.mu)
            if self.constant is not None:
                self.velocity.add_(self.constant)
            weight.sub_(self.velocity, alpha=descent.lr)
            return
        keep = 1.0 - descent.lr * self.shrinkage
        if self.start is not None:
            weight.mul_(keep).add_(self.start, alpha=descent.lr * descent.mu)
            keep = 1.0
        weight.addmm_(left, right, beta=keep, alpha=-descent.lr)
        if self.constant is not None:
            weight.sub_(self.constant, alpha=descent.lr)


@dataclass(frozen=True)
class LocalSolve:
    """One device's work, from ``weights``, float [d], on samples x, float32 [n, *shape], with
    labels y, int64 [n].
    """

    weights: Weights
    x: Tensor
    y: Tensor
    batches: Batches
    """which samples make up each step."""
    key: int = 0
    """64 random bits, for dropout."""
    anchor: Weights | None = None
    """where the proximal term draws to, float [d]; None for the start."""
    linear: Weights | None = None
    """added to the gradient of every step, float [d]; None for nothing."""
    contrast: Contrast | None = None
    """a contrastive term, with the weights of the previous model, float [d]; None without one."""
    task: tuple[int, int, int] = (0, 0, 1)
    """the device, the round (from 0), and the number of local epochs."""
    state: Mapping[str, NDArray[Any]] | None = None
    """the trainer's state after the device's last training, by name."""

    def constant(self, descent: Descent) -> Weights | None:
        """Constant part of each step's gradient when mu draws to the start: linear + mu (start -
        anchor), [d]; None for 0.
        """
        if self.anchor is None or not descent.mu:
            return self.linear
        with np.errstate(over="ignore", invalid="ignore"):  # a device that has diverged stays so
            pull = descent.mu * (self.weights - self.anchor)
            return pull if self.linear is None else pull + self.linear


class Solved(NamedTuple):
    """Weights [d], the mean loss over the last epoch's samples, and the trainer's numbers and
    state.
    """

    weights: Weights
    train_loss: float
    numbers: Mapping[str, float] = {}
    state: Mapping[str, NDArray[Any]] = {}


class Solver(ABC):
    """Trains and applies one kind of model, in several threads at once.

    ``tensors``: names and shapes, in the order of a flat model; ``kernels``: names of those that
    are kernels; ``fails_on_one``: why it cannot train on a batch of one sample, "" if it can.
    """

    fails_on_one = ""

    def __init__(
        self,
        device: torch.device,
        tensors: Sequence[tuple[str, tuple[int, ...]]],
        kernels: Collection[str],
    ) -> None:
        self.device = device
        self.tensors = tensors
        self.kernels = kernels

    @abstractmethod
    def solve(self, solve: LocalSolve, descent: Descent) -> Solved:
        """Train one device.

        The result is the same, bit for bit, for any order of devices and in any thread.
        """

    @abstractmethod
    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """The model's outputs for samples [n, *shape]: [n, classes]."""

    @property
    def plain(self) -> "Solver":
        """A solver by autograd, for a loss without a closed form."""
        return self

    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        """The same for several models, each with its own samples."""
        return [self.outputs(own, x) for own, x in zip(weights, xs, strict=True)]

    def objective(
        self, weights: Weights, x: Tensor, y: Tensor, l2: float, l2_on: Penalised = "kernels"
    ) -> float:
        """The mean loss of a model on samples (NaN without any), plus ``l2`` times the penalised
        kernels' squared entries.

        ``x`` and ``y`` lie on the solver's device, in memory of torch's, which is aligned.
        """
        outputs = self.outputs(weights, x)
        loss = (
            float(self.tested_losses(weights, outputs, y).sum(dtype=torch.float64)) / len(y)
            if len(y)
            else math.nan
        )
        squares = 0.0
        at = 0
        for name, shape in self.tensors:
            size = math.prod(shape)
            if l2 and name in self.kernels and (l2_on == "kernels" or len(shape) == 2):
                squares += float(np.square(weights[at : at + size], dtype=np.float64).sum())
            at += size
        return loss + l2 * squares

    def losses(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        """The loss of each sample, [n]: softmax cross-entropy, with ``options`` of torch's."""
        return functional.cross_entropy(outputs, y, reduction="none", **options)

    def tested_losses(self, weights: Weights, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample of a test, [n], of which ``outputs`` are those of a model;
        without gradients.
        """
        with torch.inference_mode():
            return self.losses(outputs, y)

    def tested_losses_each(
        self, weights: Sequence[Weights], outputs: Sequence[Tensor], y: Tensor
    ) -> Tensor:
        """The same for several models, each with its own outputs, and the targets of all."""
        with torch.inference_mode():
            return self.losses(torch.cat(list(outputs)), y)


_threads = threading.local()


def one_thread() -> None:
    """Let torch use one thread in the calling thread: results of two depend on how the work was
    split.
    """
    if not getattr(_threads, "single", False):
        torch.set_num_threads(1)
        _threads.single = True
