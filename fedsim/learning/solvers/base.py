"""Interface of solvers: one device's local training, the rule of an SGD step, and the result."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.common.arrays import AnyArray
from fedsim.common.training import Batching, Contrast, LocalEpochs, LocalSteps, Penalised, Places
from fedsim.learning.host_copies import FlatModel, difference, on_host, total
from fedsim.learning.scratch import Weights

_LEAST_WIDTH = 64  # least width (columns) of padded batches, unless the batch size is smaller


@dataclass(frozen=True)
class Batches:
    """Batches of a local training: for each SGD step, the indices of its samples.

    Attributes:
        rows: indices of the samples of each batch, int64 [steps, width]. A batch with fewer than
            ``width`` samples is padded with the number n, the count of the device's samples.
        counts: count of samples in each batch, int64 [steps].
        last_epoch: index of the first step of the last epoch.
        per_epoch: count of steps in an epoch.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    last_epoch: int
    per_epoch: int = 1

    @property
    def steps(self) -> int:
        return len(self.counts)

    def between(self, begin: int, end: int) -> "Batches":
        """Return the batches of the SGD steps from ``begin`` (included) to ``end`` (excluded)."""
        # ``last_epoch`` counts from ``begin``. If the part ends before the last epoch,
        # ``last_epoch`` is the count of the part's steps.
        last_epoch = max(0, min(self.last_epoch, end) - begin)
        return Batches(self.rows[begin:end], self.counts[begin:end], last_epoch, self.per_epoch)

    def mean_loss(self, total: float) -> float:
        """Return the mean loss over the last epoch, given the sum of its samples' losses.

        Args:
            total: sum of the samples' losses over the last epoch.

        Returns:
            The mean loss; NaN if there are no steps.
        """
        samples = int(self.counts[self.last_epoch :].sum())
        return total / samples if samples else math.nan


def batch_width(samples: int, batch_size: int) -> int:
    """Return the count of samples to which each batch of a device is padded.

    The width is the batch size, or a smaller number if the device has few samples: their count,
    rounded up to a power of two, but at least 64. The result depends on no other device.

    Args:
        samples: count of the device's samples.
        batch_size: count of samples in a full batch.
    """
    widest = _LEAST_WIDTH
    if samples:
        next_power_of_two = 1 << (samples - 1).bit_length()
        widest = max(_LEAST_WIDTH, next_power_of_two)
    return min(batch_size, widest)


def draw_batches(
    generator: np.random.Generator,
    samples: int,
    batching: Batching,
    amount: LocalEpochs | LocalSteps,
) -> Batches:
    """Draw the batches of a local training: each epoch is a new random permutation of the samples.

    Args:
        generator: source of the random permutations.
        samples: count of samples, n.
        batching: division of an epoch's samples into batches.
        amount: count of epochs or of steps. With ``LocalSteps.only_batch``, all steps use the batch
            of this index in the sequence of random batches.
    """
    per_epoch = max(1, batching.count(samples))
    if not samples:
        return _draw_epochs(generator, samples, batching, steps=0)
    if isinstance(amount, LocalEpochs):
        return _draw_epochs(generator, samples, batching, steps=per_epoch * amount.count)
    if amount.only_batch is None:
        return _draw_epochs(generator, samples, batching, steps=amount.count)
    # the last of these batches is used in all steps, each of which counts as an epoch
    batches = _draw_epochs(generator, samples, batching, steps=amount.only_batch + 1)
    rows = batches.rows[-1:].repeat(amount.count, axis=0)
    counts = batches.counts[-1:].repeat(amount.count)
    return Batches(rows, counts, last_epoch=amount.count - 1)


def _draw_epochs(
    generator: np.random.Generator, samples: int, batching: Batching, steps: int
) -> Batches:
    """Draw the batches of ``steps`` SGD steps, in as many epochs as the steps need."""
    batch_size = batching.size
    per_epoch = max(1, batching.count(samples))
    last_size = batching.last_size(samples)
    epochs = math.ceil(steps / per_epoch)
    # [epochs, samples]; ``permuted`` draws the same numbers as a ``permutation`` for each epoch
    order = generator.permuted(np.tile(np.arange(samples), (epochs, 1)), axis=1)
    # a last batch with which another one is merged is larger than a full batch
    columns = max(batch_width(samples, batch_size), last_size)
    rows = np.full((epochs, per_epoch, columns), samples, dtype=np.int64)
    in_full_batches = (per_epoch - 1) * batch_size  # samples in all batches but the last
    if in_full_batches:
        full_batches = order[:, :in_full_batches]
        rows[:, :-1, :batch_size] = full_batches.reshape(epochs, per_epoch - 1, batch_size)
    rows[:, -1, :last_size] = order[:, in_full_batches : in_full_batches + last_size]
    counts = np.full((epochs, per_epoch), batch_size, dtype=np.int64)
    counts[:, -1] = last_size
    last_epoch = max(0, (epochs - 1) * per_epoch)
    return Batches(rows.reshape(-1, columns)[:steps], counts.ravel()[:steps], last_epoch, per_epoch)


@dataclass(frozen=True)
class Descent:
    """Rule of an SGD step: v <- momentum v + gradient, w <- w - lr v.

    The gradient is g + weight_decay w + 2 l2 w + mu (w - anchor) + linear. Here w is the model, v
    the velocity, and g the gradient of the mean loss with the contrastive term. The term 2 l2 w is
    for kernels only. The anchor and the linear term are inputs of a device's training.

    Attributes:
        lr: learning rate.
        momentum: factor of the velocity v.
        weight_decay: factor of w in the gradient of every parameter.
        l2: factor of the L2 penalty on kernels.
        mu: factor of the proximal term.
        l2_on: the kernels with the L2 penalty: all ``kernels``, or the kernels of ``dense`` layers.
        held: ranges (begin, end) of the model's weights [d] that are frozen.
        clip: greatest norm of g, to which g is scaled down; None for no limit.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    l2: float = 0.0
    mu: float = 0.0
    l2_on: Penalised = "kernels"
    held: Places = ()
    clip: float | None = None

    def for_tensor(self, begin: int, end: int) -> "Descent":
        """Return the rule for one tensor of a model; its ``lr`` is 0 if the tensor is frozen.

        Args:
            begin: index of the tensor's first value in the model, one array of all weights.
            end: index after its last value.
        """
        for held_begin, held_end in self.held:
            if held_begin <= begin and end <= held_end:
                return replace(self, lr=0.0)
        return self

    def shrinkage(self, *, is_kernel: bool, dimensions: int = 2) -> float:
        """Return the coefficient c of the term c w in the gradient of a parameter w.

        It is weight_decay + mu, plus 2 l2 for a kernel with the L2 penalty.

        Args:
            is_kernel: whether the parameter w is a kernel, to which the L2 penalty may apply.
            dimensions: count of the parameter's dimensions; 2 for a dense layer's kernel, the only
                kernels that are penalised with ``l2_on = "dense"``.
        """
        is_penalised = is_kernel and (self.l2_on == "kernels" or dimensions == 2)
        penalty = 2.0 * self.l2 if is_penalised else 0.0
        return self.weight_decay + self.mu + penalty


class ParameterStep:
    """Optimiser of one parameter tensor: SGD in place, with momentum and proximal term.

    Args:
        parameter: the tensor that is trained.
        descent: the rule of the tensor's steps.
        shrinkage: factor of the parameter in its gradient (``Descent.shrinkage``).
        constant: part of the gradient that is equal in all steps (``LocalSolve.constant``); None
            for 0.
    """

    def __init__(
        self, parameter: Tensor, descent: Descent, shrinkage: float, constant: Tensor | None
    ) -> None:
        self.parameter = parameter
        self.descent = descent
        self.shrinkage = shrinkage
        self.constant = constant
        # the proximal term pulls to the start; if there is an anchor, ``constant`` has the rest
        self.start = parameter.detach().clone() if descent.mu else None
        self.velocity = (
            torch.zeros_like(parameter, requires_grad=False) if descent.momentum else None
        )

    def descend(self, gradient: Tensor) -> None:
        """Change the parameter by one SGD step, given the gradient of the mean loss.

        Args:
            gradient: gradient of the mean loss, of the parameter's shape; this method adds the
                gradients of all other terms.
        """
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
        """Change a matrix by one SGD step, given its gradient as a product of two matrices.

        The gradient of the mean loss is ``left @ right``. The product is added to the velocity, or
        without momentum to the parameter, without a temporary tensor. This method also adds
        the gradients of all other terms.

        Args:
            left: gradient with respect to a layer's outputs, transposed, [outputs, b].
            right: the layer's inputs, [b, inputs].
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
        # w <- (1 - lr shrinkage) w + lr mu start - lr left @ right - lr constant
        kept_share = 1.0 - descent.lr * self.shrinkage
        if self.start is not None:
            weight.mul_(kept_share).add_(self.start, alpha=descent.lr * descent.mu)
            kept_share = 1.0  # the factor is applied already
        weight.addmm_(left, right, beta=kept_share, alpha=-descent.lr)
        if self.constant is not None:
            weight.sub_(self.constant, alpha=descent.lr)


class TrainingTask(NamedTuple):
    """Device, round and length of a local training, for trainers and error messages.

    Attributes:
        device: index of the device.
        round: index of the round, from 0.
        epochs: count of local epochs.
    """

    device: int = 0
    round: int = 0
    epochs: int = 1

    @property
    def where(self) -> str:
        """Text that names the training, for error messages."""
        return f"in the training of device {self.device} in round {self.round}"


@dataclass(frozen=True)
class LocalSolve:
    """Inputs of a device's local training: its start, samples, batches, and terms of the loss.

    Each model in ``weights``, ``anchor``, ``linear`` and ``contrast`` is a tensor on the solver's
    torch device, or an array on the host.

    Attributes:
        weights: the start: the model before the training, float [d].
        x: the device's samples, [n, *shape].
        y: targets of the samples, [n, ...].
        batches: the samples of each step.
        key: 64 random bits, for dropout and other random draws of the model.
        anchor: the point to which the proximal term pulls, float [d]; None for the start.
        linear: vector that is added to the gradient of every step, float [d]; None for 0.
        contrast: MOON's contrastive term and the device's previous model; None for no term.
        task: device, round and length of the training.
        state: name -> array of the trainer's state; None or empty to begin without a state.
    """

    weights: FlatModel
    x: Tensor
    y: Tensor
    batches: Batches
    key: int = 0
    anchor: FlatModel | None = None
    linear: FlatModel | None = None
    contrast: Contrast | None = None
    task: TrainingTask = field(default_factory=TrainingTask)
    state: Mapping[str, AnyArray] | None = None

    def copied_start(self) -> FlatModel:
        """Return a copy of the start, the model before the training, float [d]."""
        start = self.weights
        return start.clone() if isinstance(start, Tensor) else start.copy()

    def has_constant(self, descent: Descent) -> bool:
        """Return whether a part of the gradient is equal in all steps (method ``constant``).

        There is such a part if the training has a linear term, or a proximal term with an anchor.

        Args:
            descent: the rule of an SGD step, which has the factor mu of the proximal term.
        """
        return self.linear is not None or (self.anchor is not None and descent.mu != 0.0)

    def constant(self, descent: Descent) -> FlatModel | None:
        """Return the part of the gradient that is equal in all steps, float [d]; None for 0.

        The part is linear + mu (start - anchor), with the fields ``linear`` and ``anchor``, and
        the start in the field ``weights``. The other part of the proximal term's gradient is
        mu (w - start), where w is the present model. It is computed in each step.

        Args:
            descent: the rule of an SGD step, which has the factor mu of the proximal term.
        """
        if self.anchor is None or not descent.mu:
            return self.linear
        with np.errstate(over="ignore", invalid="ignore"):  # the weights may have diverged
            pull: FlatModel = descent.mu * difference(self.weights, self.anchor)
            return pull if self.linear is None else total(pull, self.linear)


class Solved(NamedTuple):
    """Result of a device's local training: the weights, and what the trainer reports.

    Attributes:
        weights: the trained weights, float [d].
        train_loss: the mean loss over the samples of the last epoch; NaN if there were no steps.
        numbers: name -> value that the trainer reports.
        state: name -> array of the trainer's state, which the device's next training may need.
    """

    weights: FlatModel
    train_loss: float
    numbers: Mapping[str, float] = {}
    state: Mapping[str, AnyArray] = {}


class Solver(ABC):
    """Base of the implementations of local training and of tests, for the model of a run.

    A subclass implements ``solve``, which trains the model on one device's samples, and
    ``outputs``, which applies it to test samples. Several threads may use a solver concurrently.

    Args:
        device: torch device of the computation.
        tensors: name and shape of each of the model's tensors, in the order of their values in the
            model's array of all weights.
        kernels: names of the tensors that are kernels, to which the L2 penalty applies.

    Attributes:
        device: the torch device of the computation.
        tensors: names and shapes of the model's tensors, as the argument.
        kernels: names of the tensors that are kernels, to which the L2 penalty applies.
        single_sample_obstacle: the reason why the model cannot be trained on a batch of a single
            sample; "" if there is none.
        at_once: count of trainings that ``solve_all`` computes together, and that a caller should
            therefore pass to it at a time.
    """

    single_sample_obstacle = ""

    @property
    def at_once(self) -> int:
        return 1

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
    def solve(self, inputs: LocalSolve, descent: Descent) -> Solved:
        """Train the model on one device's samples.

        The bits of the result do not depend on the order of devices or on the thread.

        Args:
            inputs: the device's start model, samples and batches.
            descent: the rule of an SGD step.

        Returns:
            The trained weights, the loss, and what the trainer reports.
        """

    def solve_all(self, trainings: Sequence[tuple[LocalSolve, Descent]]) -> list[Solved]:
        """Train the model on the samples of several devices.

        Args:
            trainings: inputs of each local training, and the rule of its steps.

        Returns:
            The result of each training in order, as ``solve`` returns it.
        """
        return [self.solve(*training) for training in trainings]

    @abstractmethod
    def outputs(self, weights: FlatModel, x: Tensor) -> Tensor:
        """Apply a model to samples in evaluation mode.

        Args:
            weights: the model, float [d].
            x: the samples, [n, *shape].

        Returns:
            The outputs, [n, classes].
        """

    @property
    def by_autograd(self) -> "Solver":
        """Solver of the same model by autograd, for losses whose gradient has no closed form."""
        return self

    def outputs_each(self, weights: Sequence[FlatModel], xs: Sequence[Tensor]) -> list[Tensor]:
        """Apply several models in evaluation mode, each to its own samples.

        Args:
            weights: K models, float [d] each.
            xs: the samples of each model, K tensors [n, *shape].

        Returns:
            The outputs of each model, K tensors [n, classes].
        """
        outputs = []
        for model_weights, x in zip(weights, xs, strict=True):
            outputs.append(self.outputs(model_weights, x))
        return outputs

    def objective(
        self, weights: FlatModel, x: Tensor, y: Tensor, l2: float, l2_on: Penalised = "kernels"
    ) -> float:
        """Return a model's mean loss on samples plus the L2 penalty; NaN if there are no samples.

        Args:
            weights: the model, float [d].
            x: samples, [n, *shape], on the solver's device, in memory that torch has allocated, as
                results depend on its alignment.
            y: targets of the samples, [n], in memory that torch has allocated.
            l2: factor of the sum of squared kernel entries.
            l2_on: ``kernels`` if all kernels are penalised; ``dense`` for kernels of dense layers.
        """
        outputs = self.outputs(weights, x)
        loss = math.nan
        if len(y):
            losses = self.tested_losses(weights, outputs, y)
            loss = float(losses.sum(dtype=torch.float64)) / len(y)
        if not l2:
            return loss
        return loss + l2 * self._squares(on_host(weights), l2_on)

    def _squares(self, weights: Weights, l2_on: Penalised) -> float:
        """Return the sum of the squared entries of the kernels to which the L2 penalty applies.

        Args:
            weights: the model, float [d].
            l2_on: ``kernels`` if all kernels are penalised; ``dense`` for kernels of dense layers.
        """
        squares = 0.0
        begin = 0
        for name, shape in self.tensors:
            end = begin + math.prod(shape)
            if name in self.kernels and (l2_on == "kernels" or len(shape) == 2):
                squares += float(np.square(weights[begin:end], dtype=np.float64).sum())
            begin = end
        return squares

    def losses(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        """Compute the loss of each sample, float [n]; softmax cross-entropy unless overridden.

        Args:
            outputs: outputs of a model, [n, classes].
            y: labels, [n].
            **options: options of torch's ``cross_entropy``.
        """
        return functional.cross_entropy(outputs, y, reduction="none", **options)

    def tested_losses(self, weights: FlatModel, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of each sample of a test, float [n], without gradients.

        Args:
            weights: the model, float [d].
            outputs: outputs of the model for the samples, [n, classes].
            y: targets of the samples, [n].
        """
        with torch.inference_mode():
            return self.losses(outputs, y)

    def tested_losses_each(
        self, weights: Sequence[FlatModel], outputs: Sequence[Tensor], y: Tensor
    ) -> Tensor:
        """Compute the loss of each sample in a test of several models, without gradients.

        Args:
            weights: K models, float [d] each.
            outputs: outputs of each model for its own samples, K tensors [n_k, classes].
            y: targets of all models' samples, concatenated, [n_1 + ... + n_K].

        Returns:
            The losses, in the order of ``y``; float [n_1 + ... + n_K].
        """
        with torch.inference_mode():
            return self.losses(torch.cat(list(outputs)), y)


_thread = threading.local()


def use_one_thread() -> None:
    """Make torch compute on a single thread in calls from the calling thread.

    With several threads the last bits of results would depend on how torch splits the work.
    """
    if not getattr(_thread, "is_limited", False):
        torch.set_num_threads(1)
        _thread.is_limited = True
