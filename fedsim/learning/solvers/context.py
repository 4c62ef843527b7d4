"""A local training as every trainer sees it: its batches in their keyed order, its loss, its
facts.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.common.training import Contrast
from fedsim.learning.draws import KeyedDraws
from fedsim.learning.modules import as_real, as_tensor_like, real_shape
from fedsim.learning.refs import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.dropout import KeyedDropout, step_key


class LocalData:
    """A device's samples. Iterating gives the batches of all local epochs, once: samples [b,
    *shape] and labels [b].

    The order is the device's and the task's own. Each step sets the key of the model's random
    draws.

    Attributes:
        x, y: all samples, [n, *shape], and their labels, [n].
        counts: samples in each batch.
        batch: positions of the samples in the present batch, [b].
        taken: batches until now, with the present one.
    """

    def __init__(
        self,
        model: nn.Module,
        solve: LocalSolve,
        x: Tensor,
        y: Tensor,
        laid_out: Callable[[Tensor], Tensor],
        draws: KeyedDraws | None = None,
    ) -> None:
        self.x = x
        self.y = y
        self._draws = draws
        self.counts: list[int] = solve.batches.counts.tolist()
        self.batch = torch.arange(0, device=x.device)
        self.in_last_epoch = False
        self.taken = 0
        self._solve = solve
        self._laid_out = laid_out
        self._rows = torch.from_numpy(solve.batches.rows).to(x.device)
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
            yield self._laid_out(self.x[self.batch]), self.y[self.batch]

    @cached_property
    def ends(self) -> list[bool]:
        """Whether each batch is the last of its epoch, or of all."""
        steps = len(self.counts)
        return [
            (step + 1) % self._solve.batches.per_epoch == 0 or step + 1 == steps
            for step in range(steps)
        ]


class TrainingContext:
    """Facts of a local training, and its loss.

    Attributes:
        device: the device's number.
        round: the round's number, from 0; 0 where there are none.
        epochs: local epochs.
        lr: the learning rate of the round.
        seed: 63 bits that belong to this training alone, for a generator of your own.
        state: tensors by name that go on to the next training if ``training.state`` is ``kept``
            or ``sent``; empty at first.
        start: the received model, by the names of the module's tensors.
        data: the batches.
    """

    def __init__(
        self,
        solve: LocalSolve,
        descent: Descent,
        trained: Mapping[str, Tensor],
        losses: Callable[..., Tensor],
        data: LocalData,
        contrast: Callable[[Tensor], Tensor] | None,
    ) -> None:
        (self.device, self.round, self.epochs), self.lr = solve.task, descent.lr
        self.seed = solve.key & (1 << 63) - 1
        self.state = {
            name: torch.tensor(value, device=data.x.device)
            for name, value in (solve.state or {}).items()
        }
        self.data = data
        self._solve = solve
        self._descent = descent
        self._trained = trained
        self._losses = losses
        self._contrast = contrast
        self._total = 0.0
        self._seen = 0
        self._constants = parts_of(solve.constant(descent), trained)

    @cached_property
    def start(self) -> dict[str, Tensor]:
        return parts_of(self._solve.weights, self._trained)

    def loss(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        """The mean loss of the present batch, with all terms that the strategy adds: proximal,
        linear and contrastive.

        Args:
            outputs: the model's, [b, classes].
            y: the batch's labels, [b].
            options: of ``torch.nn.functional.cross_entropy``; none where the module has a loss
                of its own.
        """
        loss = self.batch_loss(outputs, y, **options)
        for name, tensor in self._trained.items():
            if name in self._constants and tensor.requires_grad:
                loss = loss + (as_real(self._constants[name]) * as_real(tensor)).sum()
            if self._descent.mu and tensor.requires_grad:
                loss = (
                    loss + self._descent.mu / 2 * as_real(tensor - self.start[name]).square().sum()
                )
        return loss

    def batch_loss(self, outputs: Tensor, y: Tensor, **options: Any) -> Tensor:
        """The same without the proximal and the linear term."""
        losses = self._losses(outputs, y, **options)
        if self.data.in_last_epoch:
            self._total += float(losses.detach().sum(dtype=torch.float64))
            self._seen += len(y)
        loss = losses.mean()
        return loss if self._contrast is None else loss + self._contrast(self.data.batch)

    @property
    def train_loss(self) -> float:
        """The mean of the samples' losses that were asked for in the last epoch; NaN where none
        was.
        """
        return self._total / self._seen if self._seen else float("nan")


@contextmanager
def contrastive_loss(
    module: nn.Module, contrast: Contrast, start: Weights, apply: Callable[[Weights], object]
) -> Iterator[Callable[[Tensor], Tensor]]:
    """MOON's term (``common.training.Contrast``) of the batch at some positions that the module
    has just been applied to.

    A representation is the input of the last dense layer. ``apply`` applies the module with
    other weights to all samples.
    """
    seen: list[Tensor] = []
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    models = []
    with torch.no_grad():
        for weights in (start, contrast.previous):
            apply(weights)
            models.append(torch.cat(seen).flatten(1))
            seen.clear()

    def loss(batch: Tensor) -> Tensor:
        own = seen[-1].flatten(1)
        seen.clear()
        alike, other = (functional.cosine_similarity(own, each[batch]) for each in models)
        return contrast.weight * functional.softplus((other - alike) / contrast.temperature).mean()

    try:
        yield loss
    finally:
        hook.remove()


def parts_of(model: Weights | None, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a flat model [d], on the device of those that are trained; none of None."""
    if model is None:
        return {}
    parts = torch.split(
        torch.tensor(model), [math.prod(real_shape(tensor)) for tensor in trained.values()]
    )
    pairs = zip(trained.items(), parts, strict=True)
    return {name: as_tensor_like(part, tensor).to(tensor.device) for (name, tensor), part in pairs}


def rules(descent: Descent, trained: Mapping[str, Tensor]) -> dict[str, Descent]:
    """The rule of each parameter, by name."""
    sizes = [math.prod(real_shape(parameter)) for parameter in trained.values()]
    places = zip(trained, sizes, accumulate(sizes), strict=True)
    return {name: descent.of(end - size, end) for name, size, end in places}
