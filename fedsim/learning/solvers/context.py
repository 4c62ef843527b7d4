"""Inputs of trainers for a local training: the device's batches, its loss, and settings."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.common.training import Contrast
from fedsim.learning.draws import KeyedDraws
from fedsim.learning.host_copies import FlatModel, on_device, to_device, to_host
from fedsim.learning.modules import as_real, as_tensor_like, outputs_of, real_shape
from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.dropout import KeyedDropout, step_key

_LOWER_63_BITS = (1 << 63) - 1


class LocalData:
    """A device's samples in a local training; iterating over it yields the batches of all epochs.

    Each batch is yielded once, as samples [b, *shape] and labels [b]. The order of the batches
    depends only on the device and on the key of its training. Before each batch, the iterator sets
    the seed of the model's random draws, such as dropout.

    Args:
        model: the module in training, whose layers of dropout get the keys.
        solve: the inputs of the training, with its batches and key.
        x: all samples on the torch device, [n, *shape].
        y: their labels, [n].
        lay_out: returns samples in the memory layout in which torch computes the module fastest.
        draws: context of the module's own random draws; None if it draws none.

    Attributes:
        x, y: all samples, [n, *shape], and their labels, [n].
        counts: count of samples in each batch.
        batch: indices of the samples in the current batch, [b].
        in_last_epoch: whether the current batch belongs to the last epoch.
        taken: count of batches so far, including the current one.
    """

    def __init__(
        self,
        model: nn.Module,
        solve: LocalSolve,
        x: Tensor,
        y: Tensor,
        lay_out: Callable[[Tensor], Tensor],
        draws: KeyedDraws | None = None,
    ) -> None:
        self.x = x
        self.y = y
        self._draws = draws  # context of the module's own draws; None if it draws none
        self.counts: list[int] = solve.batches.counts.tolist()
        # indices of the samples in the current batch; empty before the iteration
        self.batch = torch.arange(0, device=x.device)
        self.in_last_epoch = False
        self.taken = 0  # count of batches so far
        self._solve = solve
        self._lay_out = lay_out  # changes the layout of samples in memory, for speed
        # indices of the samples of each batch, padded, int64 [steps, width]
        self._rows = to_device(solve.batches.rows, x.device, shares=True)
        self._dropouts = [part for part in model.modules() if isinstance(part, KeyedDropout)]

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step, count in enumerate(self.counts):
            for dropout in self._dropouts:
                dropout.key.fill_(step_key(self._solve.key, step))
            if self._draws is not None:
                self._draws.seed(step_key(self._solve.key, step))
            self.batch = self._rows[step, :count]
            self.in_last_epoch = step >= self._solve.batches.last_epoch
            self.taken = step + 1
            yield self._lay_out(self.x[self.batch]), self.y[self.batch]

    @cached_property
    def ends(self) -> list[bool]:
        """Whether each batch is the last one of its epoch or of the training; in order."""
        steps = len(self.counts)
        ends = []
        for number in range(1, steps + 1):
            ends.append(number % self._solve.batches.per_epoch == 0 or number == steps)
        return ends


class TrainingContext:
    """Inputs of ``Trainer.train`` for one local training: settings, data, and the loss to minimise.

    Args:
        solve: the inputs of the training.
        descent: the rule of an SGD step, with learning rate and proximal term.
        trained: name -> tensor of the module that is trained and sent, in order.
        losses: a function of outputs and labels that returns the loss of each sample, [b].
        data: the samples and batches.
        contrast: returns MOON's contrastive term, a scalar, for the indices of a batch; None for no
            term.
        forward: applies a module to a batch.

    Attributes:
        device: index of the device.
        round: index of the round, from 0; 0 if the strategy has no rounds.
        epochs: count of local epochs.
        lr: the learning rate of the round.
        seed: 63 random bits of this training, to seed a trainer's own generator.
        state: name -> tensor of the trainer's state, such as moments, which the trainer changes. If
            ``training.state`` is ``kept`` or ``sent``, the device's next training begins with it;
            empty in the first training.
        start: name of a tensor of the module -> its value in the received model.
        data: the samples and batches.
        forward: a function of a module and a batch that returns the module's outputs, computed in
            ``training.precision``.
    """

    def __init__(
        self,
        solve: LocalSolve,
        descent: Descent,
        trained: Mapping[str, Tensor],
        losses: Callable[..., Tensor],
        data: LocalData,
        contrast: Callable[[Tensor], Tensor] | None,
        forward: Callable[[nn.Module, Tensor], Tensor] = outputs_of,
    ) -> None:
        self.device = solve.task.device
        self.round = solve.task.round
        self.epochs = solve.task.epochs
        self.lr = descent.lr
        self.seed = solve.key & _LOWER_63_BITS  # torch's seeds are signed
        self.state: dict[str, Tensor] = {}
        for name, value in (solve.state or {}).items():
            self.state[name] = to_device(value, data.x.device)
        self.data = data
        self.forward = forward
        self._solve = solve
        self._descent = descent
        self._trained = trained  # name -> tensor of the module that is trained and sent
        self._losses = losses  # outputs, labels -> loss of each sample
        self._contrast = contrast  # indices of a batch -> MOON's term of the loss; None for no term
        # sum of losses, and count of samples, in the steps of the last epoch so far
        self._loss_sum: Tensor | None = None
        self._loss_count = 0
        # name -> part of the tensor's gradient that is equal in all steps; empty for 0
        self._constants = parts_of(solve.constant(descent), trained)

    @cached_property
    def start(self) -> dict[str, Tensor]:
        return parts_of(self._solve.weights, self._trained)

    def loss(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        """Compute the mean loss of the current batch, plus the strategy's terms.

        The strategy may add a proximal term, a linear term and MOON's contrastive term.

        Args:
            outputs: outputs of the model, [b, classes].
            y: labels of the batch, [b].
            **options: options of ``torch.nn.functional.cross_entropy``; not allowed if the module
                has its own loss.
        """
        loss = self.batch_loss(outputs, y, **options)
        for name, tensor in self._trained.items():
            if not tensor.requires_grad:
                continue
            if name in self._constants:  # the gradient of <c, w> is c
                loss = loss + (as_real(self._constants[name]) * as_real(tensor)).sum()
            if self._descent.mu:
                distance = as_real(tensor - self.start[name])
                loss = loss + self._descent.mu / 2 * distance.square().sum()
        return loss

    def batch_loss(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        """Compute the mean loss of the current batch plus the strategy's contrastive term, if any.

        Other terms of the strategy, proximal and linear, are not added.

        Args:
            outputs: outputs of the model, [b, classes].
            y: labels of the batch, [b].
            **options: options of ``torch.nn.functional.cross_entropy``.
        """
        losses = self._losses(outputs, y, **options)
        if self.data.in_last_epoch:
            # The sum stays a tensor. To read it as a number would wait for the device in each step.
            total = losses.detach().sum(dtype=torch.float64)
            self._loss_sum = total if self._loss_sum is None else self._loss_sum + total
            self._loss_count += len(y)
        loss = losses.mean()
        if self._contrast is None:
            return loss
        return loss + self._contrast(self.data.batch)

    @property
    def train_loss(self) -> float:
        """Mean loss of the samples of the last epoch; NaN if it was not computed."""
        if self._loss_sum is None or not self._loss_count:
            return float("nan")
        return float(to_host(self._loss_sum)) / self._loss_count


class Representations:
    """Recorder of the inputs of a module's last dense layer, the representations of samples.

    MOON's contrastive term of the loss compares the representations by several models.

    Args:
        module: the module, which gets a hook until ``close``.
    """

    def __init__(self, module: nn.Module) -> None:
        self._inputs: list[Tensor] = []
        last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
        self._hook = last.register_forward_pre_hook(self._note)

    def _note(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._inputs.append(args[0])

    def take_all(self) -> Tensor:
        """Return the inputs of the last dense layer in all passes since the last call, [n, r]."""
        representation = torch.cat(self._inputs).flatten(1)
        self._inputs.clear()
        return representation

    def take_last(self) -> Tensor:
        """Return the inputs of the last dense layer in the last pass, [b, r], and forget all."""
        representation = self._inputs[-1].flatten(1)
        self._inputs.clear()
        return representation

    def close(self) -> None:
        """Remove the hook from the module, so that nothing is recorded any more."""
        self._hook.remove()


def contrastive_terms(
    current: Tensor, received: Tensor, previous: Tensor, temperature: float
) -> Tensor:
    """Return MOON's contrastive term of each sample, without its weight, [b].

    A representation of a sample is the input of the model's last dense layer.

    Args:
        current: representations by the model in training, [b, r].
        received: representations by the received model, [b, r].
        previous: representations by the device's previous model, [b, r].
        temperature: temperature of the term.
    """
    current = current.to(received.dtype)  # in mixed precision ``current`` is bfloat16
    to_received = functional.cosine_similarity(current, received)
    to_previous = functional.cosine_similarity(current, previous)
    return functional.softplus((to_previous - to_received) / temperature)


@contextmanager
def contrastive_loss(
    module: nn.Module, contrast: Contrast, start: FlatModel, apply: Callable[[FlatModel], object]
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Return a context that provides MOON's contrastive term of the loss for a training.

    The term compares representations of a batch by three models: the current one, the received one
    and the device's previous one. A representation is the input of the module's last dense layer.

    Args:
        module: the module in training.
        contrast: weight and temperature of the term, and the weights of the previous model.
        start: weights of the received model, [d].
        apply: applies the module with the given weights to all samples of the device.

    Yields:
        A function that returns the term (a scalar), given the indices [b] of the batch to which
        the module was applied last.
    """
    representations = Representations(module)
    with torch.no_grad():
        apply(start)  # ``representations`` records this forward pass
        received = representations.take_all()
        apply(contrast.previous)
        previous = representations.take_all()

    def loss(batch: Tensor) -> Tensor:
        current = representations.take_last()  # recorded in the step's forward pass
        terms = contrastive_terms(current, received[batch], previous[batch], contrast.temperature)
        return contrast.weight * terms.mean()

    try:
        yield loss
    finally:
        representations.close()


def parts_of(model: FlatModel | None, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split a flat model, the values of all trained tensors, into new tensors.

    Args:
        model: the flat model, [d], or None.
        trained: the trained tensors by name, in the order of the flat model.

    Returns:
        A tensor for each trained tensor, on the same device; empty for None.
    """
    if model is None:
        return {}
    sizes = [math.prod(real_shape(tensor)) for tensor in trained.values()]
    flat = on_device(model, next(iter(trained.values())).device)
    if flat is model:  # a copy is needed, as a trainer may change the tensors in place
        flat = flat.clone()
    tensors = {}
    for (name, tensor), part in zip(trained.items(), torch.split(flat, sizes), strict=True):
        tensors[name] = as_tensor_like(part, tensor)
    return tensors


def rules(descent: Descent, trained: Mapping[str, Tensor]) -> dict[str, Descent]:
    """Return the rule of an SGD step for each trained tensor.

    Args:
        descent: the rule for the whole model.
        trained: the trained tensors by name, in the order of their values in the model's array.

    Returns:
        Name of a tensor -> its rule, whose ``lr`` is 0 if the tensor is frozen.
    """
    rule_of_tensor = {}
    begin = 0
    for name, tensor in trained.items():
        end = begin + math.prod(real_shape(tensor))
        rule_of_tensor[name] = descent.for_tensor(begin, end)
        begin = end
    return rule_of_tensor
