"""What a solver is given and what it gives."""

import math
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsim.learning.refs import Weights
from fedsim.learning.solvers.batches import Batches


@dataclass(frozen=True)
class Descent:
    """The rule of an SGD step.

    The gradient of each parameter w is g + weight_decay w + 2 l2 w (kernels only) + mu (w - anchor) + linear, where each
    device has an anchor and a linear term of its own; with momentum m the step is v <- m v + gradient, w <- w - lr v.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    l2: float = 0.0
    mu: float = 0.0

    def shrinkage(self, kernel: bool) -> float:
        """The factor of w itself in the gradient of a parameter; for a ``kernel`` with the L2 penalty."""
        return self.weight_decay + self.mu + (2.0 * self.l2 if kernel else 0.0)


@dataclass(frozen=True)
class LocalSolve:
    """One device's work.

    Attributes:
        weights: where it starts, float [d].
        x: its samples, float32 [n, *shape].
        y: their labels, int64 [n].
        batches: which of them make up each step.
        key: 64 random bits, for dropout.
        anchor: where the proximal term draws to, float [d]; None for the start.
        linear: added to the gradient of every step, float [d]; None for nothing.
    """

    weights: Weights
    x: Tensor
    y: Tensor
    batches: Batches
    key: int = 0
    anchor: Weights | None = None
    linear: Weights | None = None

    def constant(self, descent: Descent) -> Weights | None:
        """What every step adds to the gradient when mu draws to the start: linear + mu (start - anchor), [d]; None for nothing.

        All that a solver must know of both: an anchor that is the start, and a linear term of 0, change no bit.
        """
        if self.anchor is None or not descent.mu:
            return self.linear
        with np.errstate(over="ignore", invalid="ignore"):  # a device that has diverged stays so
            pull = descent.mu * (self.weights - self.anchor)
            return pull if self.linear is None else pull + self.linear


class Solved(NamedTuple):
    """The outcome: weights, float [d], and the mean loss over the samples of the last epoch (NaN without a step)."""

    weights: Weights
    train_loss: float


def mean_of(losses: Tensor) -> float:
    """The mean of the losses of samples [n], summed in float64; NaN without samples."""
    return float(losses.sum(dtype=torch.float64)) / len(losses) if len(losses) else float("nan")


def sum_of_squares(entries: Weights) -> float:
    """The sum of squares in float64, the same on any number of threads."""
    return float(np.square(entries, dtype=np.float64).sum())


def kernel_norm(weights: Weights, tensors: Sequence[tuple[str, tuple[int, ...]]], kernels: Collection[str]) -> float:
    """The sum of squares of those tensors of a flat model that are kernels."""
    total, at = 0.0, 0
    for name, shape in tensors:
        size = math.prod(shape)
        if name in kernels:
            total += sum_of_squares(weights[at : at + size])
        at += size
    return total


class Company(NamedTuple):
    """With whom a solve goes well together: those of the same kind, and ``most`` of them at once (memory and cache)."""

    kind: str
    most: int


class Solver(Protocol):
    """Trains and applies one kind of model. Its methods may run in several threads at once.

    Attributes:
        device: where the arithmetic is done.
    """

    device: torch.device

    def company(self, samples: int, width: int, steps: int) -> Company:
        """The best company for a solve of so many samples, rows of a batch array, and steps; knows nothing of workers."""

    def solve(self, solves: Sequence[LocalSolve], descent: Descent) -> list[Solved]:
        """Train all; the batches of all have one width. Each result is the same, bit for bit, whoever else is among them."""

    def outputs(self, weights: Weights, x: Tensor) -> Tensor:
        """What the model makes of samples [n, *shape]: [n, classes]."""

    def outputs_each(self, weights: Sequence[Weights], xs: Sequence[Tensor]) -> list[Tensor]:
        """The same for several models, each with its own samples."""

    def mean_losses(self, weights: Weights, xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[float]:
        """The mean loss of one model on each of several sets of samples; NaN for an empty set.

        Each is the same, bit for bit, whatever other sets there are. ``xs`` and ``ys`` lie on the solver's device, in memory
        that torch has allocated (and therefore aligned).
        """

    def kernel_norm(self, weights: Weights) -> float:
        """The sum of the squared entries of a model's kernels, which the L2 penalty is on."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, [n]."""


_threads = threading.local()


def compute_with_one_thread() -> None:
    """Let torch use one thread in the calling thread, from now on.

    Workers are the parallelism here: two torch threads on small matrices are slower than one, and their results depend on
    how the work was split.
    """
    if not getattr(_threads, "single", False):
        torch.set_num_threads(1)
        _threads.single = True
