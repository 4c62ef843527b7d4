"""Stacks of models: their losses and gradients by ``torch.func``, and their steps of SGD."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedsim.learning.host_copies import to_device
from fedsim.learning.solvers.base import Descent, LocalSolve
from fedsim.learning.solvers.context import rules
from fedsim.learning.solvers.dropout import KeyedDropout, step_key
from fedsim.learning.solvers.reference import Reference
from fedsim.learning.solvers.watched import ModuleCopy


@dataclass(frozen=True)
class LanePlan:
    """Batches of several devices' trainings that are computed together, padded to one shape.

    A lane is one training of the stack. There are S steps, W lanes, and b samples in a batch. S is
    the count of steps of the longest training. A shorter training is inactive in the last steps.

    Attributes:
        rows: indices among the samples of all lanes, int64 [S, W * b]; entries that pad a batch
            repeat the first sample of their lane.
        mask: 1 for a sample of the batch, 0 for padding; float [S, W, b].
        sizes: count of samples in each batch, at least 1; float [S, W].
        is_active: whether a lane takes the step, bool [S, W].
        in_last_epoch: whether a lane takes the step in its last epoch, whose losses make up the
            training loss; bool [S, W].
        dropout_keys: key of each lane's dropout masks, int64 [S, W].
        all_active: for each step, whether all lanes take it; bools on the host, which the loop over
            steps reads without waiting for the torch device.
    """

    rows: Tensor
    mask: Tensor
    sizes: Tensor
    is_active: Tensor
    in_last_epoch: Tensor
    dropout_keys: Tensor
    all_active: tuple[bool, ...]

    @property
    def steps(self) -> int:
        return len(self.all_active)


def plan_lanes(solves: Sequence[LocalSolve], width: int, device: torch.device) -> LanePlan:
    """Pad the batches of several trainings to one shape, so that a stack can train all models.

    Args:
        solves: the trainings, one for each lane (place in the stack).
        width: count of samples in a padded batch.
        device: torch device of the result.
    """
    lanes = len(solves)
    steps = max(solve.batches.steps for solve in solves)
    shape = (steps, lanes, width)
    rows = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.float32)
    # 1 for a lane that takes no step, as losses are divided by the sizes
    sizes = np.ones(shape[:2], dtype=np.float32)
    is_active = np.zeros(shape[:2], dtype=np.bool_)
    in_last_epoch = np.zeros(shape[:2], dtype=np.bool_)
    dropout_keys = np.zeros(shape[:2], dtype=np.int64)
    first_row = 0  # index of the lane's first sample among the samples of all lanes
    for lane, solve in enumerate(solves):
        batches = solve.batches
        lane_steps = batches.steps
        samples = len(solve.y)
        lane_rows = batches.rows[:, :width]
        columns = lane_rows.shape[1]
        is_sample = lane_rows < samples  # ``Batches`` pads with the count of samples
        rows[:, lane] = first_row
        rows[:lane_steps, lane, :columns] = first_row + np.where(is_sample, lane_rows, 0)
        mask[:lane_steps, lane, :columns] = is_sample
        sizes[:lane_steps, lane] = batches.counts
        is_active[:lane_steps, lane] = True
        in_last_epoch[batches.last_epoch : lane_steps, lane] = True
        for step in range(lane_steps):
            dropout_keys[step, lane] = step_key(solve.key, step)
        first_row += samples
    return LanePlan(
        rows=to_device(rows.reshape(steps, -1), device, shares=True),
        mask=to_device(mask, device, shares=True),
        sizes=to_device(sizes, device, shares=True),
        is_active=to_device(is_active, device, shares=True),
        in_last_epoch=to_device(in_last_epoch, device, shares=True),
        dropout_keys=to_device(dropout_keys, device, shares=True),
        all_active=tuple(bool(step_is_active.all()) for step_is_active in is_active),
    )


class LaneBatch(NamedTuple):
    """Padded batches of all lanes of a stack, in one step.

    A lane is the training of one model in the stack. There are W lanes, and b samples in a padded
    batch. Within ``torch.func.vmap``, an object has the batch of one lane, and all shapes are
    without W.

    Attributes:
        x: samples, [W, b, *shape].
        y: targets, [W, b, ...].
        mask: 1 for samples that count, else 0; [W, b].
        size: count of the samples that count, [W].
        rows: indices of the samples among the samples of all lanes, int64 [W, b].
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    size: Tensor
    rows: Tensor


class LaneLoss(nn.Module):
    """Module that returns the mean loss of one lane's model on its batch, for ``torch.func.vmap``.

    The cohort solver trains the models of several devices at a time, one in each lane of a stack.

    Args:
        solver: the solver, which computes the loss of each sample.
        copied_module: copy of the model's module, called with the lane's weights.
        options: options of the loss, such as ``label_smoothing``.

    Attributes:
        contrast: returns the contrastive term of each sample, [b], for the indices of a batch; None
            for no term.
    """

    def __init__(
        self, solver: Reference, copied_module: ModuleCopy, options: Mapping[str, float]
    ) -> None:
        super().__init__()
        self.module = copied_module.module
        self._losses = partial(solver.losses_of, copied_module)
        self._forward = solver.forward
        self._options = options
        self.contrast: Callable[[Tensor], Tensor] | None = None

    def forward(self, batch: LaneBatch) -> tuple[Tensor, Tensor]:
        """Compute the loss of a model of the stack on its own batch.

        Returns:
            The mean loss with any contrastive term, and the sum of the samples' losses without it.
        """
        outputs = self._forward(self.module, batch.x)
        losses = self._losses(outputs, batch.y, **self._options)
        losses = losses.reshape(len(losses), -1)
        total = (losses * batch.mask[:, None]).sum()
        loss = total / (batch.size * losses.shape[1])  # a sample may have several losses (tokens)
        if self.contrast is not None:
            loss = loss + (self.contrast(batch.rows) * batch.mask).sum() / batch.size
        return loss, total


class LaneSteps(Protocol):
    """Interface of an optimiser, such as SGD, for the stacked models of several devices."""

    def begin(self, tensors: dict[str, Tensor]) -> None:
        """Prepare the optimiser's state, such as zero momentum.

        Args:
            tensors: name -> tensor of all W models, [W, *shape].
        """

    def take(
        self, tensors: dict[str, Tensor], gradients: dict[str, Tensor], active: Tensor | None
    ) -> None:
        """Change all W stacked models by one step.

        Args:
            tensors: name -> tensor [W, *shape], which is changed or replaced.
            gradients: name -> gradient of the tensor.
            active: whether each model takes the step, bool [W]; None if all do.
        """


class SgdSteps:
    """SGD for the stacked models of W devices: v <- momentum v + gradient, w <- w - lr v.

    Args:
        lr: learning rate of each model, float64 [W].
        momentum: momentum of all models.
    """

    def __init__(self, lr: Tensor, momentum: float) -> None:
        self._lr = lr
        self._momentum = momentum
        self._velocity: dict[str, Tensor] = {}

    def begin(self, tensors: dict[str, Tensor]) -> None:
        if self._momentum:
            for name, tensor in tensors.items():
                self._velocity[name] = torch.zeros_like(tensor)

    def take(
        self, tensors: dict[str, Tensor], gradients: dict[str, Tensor], active: Tensor | None
    ) -> None:
        for name, weight in tensors.items():
            gradient = gradients[name]
            if self._momentum:
                gradient = self._velocity[name].mul_(self._momentum).add_(gradient)
            moved = weight - _broadcast_along(self._lr.to(weight.dtype), weight) * gradient
            tensors[name] = where_active(active, moved, weight)


class OptimizerSteps:
    """Steps of stacked models by a torch optimiser that treats each number separately.

    Args:
        make: given the stacked parameters, name -> parameter [W, *shape], returns a function
            without arguments that changes them by one step of the optimiser.
    """

    def __init__(self, make: Callable[[Mapping[str, nn.Parameter]], Callable[[], None]]) -> None:
        self._make = make
        self._parameters: dict[str, nn.Parameter] = {}

    def begin(self, tensors: dict[str, Tensor]) -> None:
        # each parameter shares its tensor's memory, so that the optimiser's step changes the tensor
        self._parameters = {name: nn.Parameter(tensor) for name, tensor in tensors.items()}
        self._step = self._make(self._parameters)

    def take(
        self, tensors: dict[str, Tensor], gradients: dict[str, Tensor], active: Tensor | None
    ) -> None:
        old_weights = {}  # tensors before the step; empty if all models take the step
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
            if active is not None:
                old_weights[name] = tensors[name].clone()
        self._step()
        for name, old_weight in old_weights.items():
            tensors[name].copy_(where_active(active, tensors[name], old_weight))


class Stack:
    """Models of several devices that are trained together, stacked along a first dimension.

    ``load`` sets the models, ``descend`` trains them, and ``weights`` returns them.

    Args:
        losses: computes the loss of a model on its batch.
        flat: name -> tensor of the module that is trained and sent; only the names, shapes, dtypes,
            and ``requires_grad`` are used.
        descent: the terms of the gradient; ``lr`` and ``momentum`` are not used.
        solver: the solver, which has the names of the kernels, to which the L2 penalty applies.
    """

    def __init__(
        self, losses: LaneLoss, flat: dict[str, Tensor], descent: Descent, solver: Reference
    ) -> None:
        self._losses = losses
        self._descent = descent
        self._flat = flat
        self._sizes = [tensor.numel() for tensor in flat.values()]
        # name of each trained tensor -> ``Descent.shrinkage``, its factor in its own gradient
        self._shrinkage: dict[str, float] = {}
        # ``rules`` sets the learning rate of a frozen tensor to 0; with rate 1 this can be seen.
        for name, rule in rules(replace(descent, lr=1.0), flat).items():
            tensor = flat[name]
            if tensor.requires_grad and rule.lr:
                is_kernel = name in solver.kernels
                self._shrinkage[name] = rule.shrinkage(is_kernel=is_kernel, dimensions=tensor.ndim)
        self._key_buffers = []  # names of the buffers that hold the keys of dropout
        for name, part in losses.named_modules():
            if isinstance(part, KeyedDropout):
                self._key_buffers.append(f"{name}.key")
        # name -> tensor of all W models, [W, *shape]; set by ``load``
        self._trained: dict[str, Tensor] = {}  # tensors that each step changes
        self._fixed: dict[str, Tensor] = {}  # tensors that are not trained
        self._start: dict[str, Tensor] = {}  # trained tensors at first; empty without proximal term
        self._constant: dict[str, Tensor] = {}  # part of the gradient in each step; empty for 0
        # returns the gradients of all models' losses, and the sums of their samples' losses, [W]
        self._gradients = vmap(grad(self._loss, has_aux=True))

    def _loss(
        self,
        trained: dict[str, Tensor],
        fixed: dict[str, Tensor],
        dropout_key: Tensor,
        batch: LaneBatch,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a model of the stack on its own batch, with any contrastive term.

        Args:
            trained: name -> trained tensor of the model.
            fixed: name -> tensor that is not trained.
            dropout_key: key of the model's dropout masks, which all its dropout layers use.
            batch: the batch.

        Returns:
            The loss, and the sum of the samples' losses.
        """
        tensors = {f"module.{name}": tensor for name, tensor in {**fixed, **trained}.items()}
        buffers = dict.fromkeys(self._key_buffers, dropout_key)
        loss, total = functional_call(self._losses, {**tensors, **buffers}, (batch,))
        return loss, total

    def load(self, weights: Tensor, constant: Tensor | None) -> None:
        """Set the weights with which the trainings of the stack begin.

        Args:
            weights: the W models before their trainings, on the torch device, float [W, d]; not
                changed.
            constant: for each model, the part of its gradient that is equal in all steps, float
                [W, d]; None for 0.
        """
        for name, tensor in self._split(weights).items():
            is_trained = name in self._shrinkage
            tensors = self._trained if is_trained else self._fixed
            tensors[name] = tensor
        if self._descent.mu:
            self._start = {name: tensor.clone() for name, tensor in self._trained.items()}
        if constant is not None:
            self._constant = self._split(constant)

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        """Split the flat models of a stack, [W, d], into new tensors [W, *shape] by name.

        The models may share memory in ``flat``. In the new tensors they have memory of their own.
        """
        parts = {}
        pieces = torch.split(flat, self._sizes, dim=1)
        for (name, tensor), piece in zip(self._flat.items(), pieces, strict=True):
            values = piece.to(tensor.dtype, copy=True, memory_format=torch.contiguous_format)
            parts[name] = values.reshape(-1, *tensor.shape)
        return parts

    def weights(self) -> Tensor:
        """Return the present models of the stack as rows of a matrix; float [models, d]."""
        parts = []
        for name in self._flat:
            tensor = self._trained[name] if name in self._trained else self._fixed[name]
            parts.append(tensor.flatten(1))
        flat = torch.cat(parts, dim=1)
        return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

    def descend(self, plan: LanePlan, x: Tensor, y: Tensor, steps: LaneSteps) -> Tensor:
        """Carry out all SGD steps of several trainings together; each training is a lane.

        The host does not wait for the torch device between steps.

        Args:
            plan: for each step, the batches of all lanes.
            x: samples of all lanes, concatenated, [n, *shape].
            y: their targets, [n, ...].
            steps: optimiser that changes the lanes' models by their gradients.

        Returns:
            The sum of the samples' losses in the last epoch, for each lane, float64 [lanes].
        """
        lanes = plan.is_active.shape[1]
        loss_sums = torch.zeros(lanes, dtype=torch.float64, device=x.device)
        steps.begin(self._trained)
        for step in range(plan.steps):
            rows = plan.rows[step]  # sample indices of all lanes' batches, concatenated
            batch = LaneBatch(
                x=_by_lane(x[rows], lanes),
                y=_by_lane(y[rows], lanes),
                mask=plan.mask[step],
                size=plan.sizes[step],
                rows=_by_lane(rows, lanes),
            )
            gradients, lane_sums = self._gradients(
                self._trained, self._fixed, plan.dropout_keys[step], batch
            )
            # a lane whose training has fewer steps than others keeps its weights
            active = None if plan.all_active[step] else plan.is_active[step]
            steps.take(self._trained, self._add_terms(gradients), active)
            # ``torch.where`` would copy a 0.0 to the device in each step; ``masked_fill`` does not
            loss_sums += lane_sums.masked_fill(~plan.in_last_epoch[step], 0.0).double()
        return loss_sums

    def _add_terms(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return clipped gradients plus the gradients of L2 penalty, proximal and linear term.

        The proximal term's gradient is mu w - mu start. Its part mu w is in the shrinkage.

        Args:
            gradients: name -> gradient of the loss for all models, [W, *shape].
        """
        descent = self._descent
        if descent.clip is not None:
            gradients = clip_lanes(gradients, descent.clip)
        complete = {}
        for name, gradient in gradients.items():
            if self._shrinkage[name]:
                gradient = gradient.add(self._trained[name], alpha=self._shrinkage[name])
            if descent.mu:
                gradient = gradient.sub(self._start[name], alpha=descent.mu)
            if name in self._constant:
                gradient = gradient.add(self._constant[name])
            complete[name] = gradient
        return complete


def _by_lane(samples: Tensor, lanes: int) -> Tensor:
    """Split the first dimension of all models' samples, [W * b, ...], into [W, b, ...]."""
    return samples.reshape(lanes, -1, *samples.shape[1:])


def where_active(active: Tensor | None, moved: Tensor, weight: Tensor) -> Tensor:
    """Return the stacked models after a step, in which models that take no step are unchanged.

    A model takes no step if its training has fewer steps than other trainings of the stack.

    Args:
        active: whether each model takes the step, bool [W]; None if all do.
        moved: weights after the step, [W, *shape].
        weight: weights before the step, [W, *shape].
    """
    if active is None:
        return moved
    # a step cannot be undone by a factor of 0: 0 times the infinite step of a diverged lane is NaN
    return torch.where(_broadcast_along(active, weight), moved, weight)


def _broadcast_along(values: Tensor, like: Tensor) -> Tensor:
    """Reshape values of W models so that they broadcast along a tensor of the models.

    Args:
        values: [W].
        like: the tensor, [W, *shape].

    Returns:
        [W, 1, ..., 1], with as many dimensions as ``like``.
    """
    return values.reshape(-1, *[1] * (like.ndim - 1))


def clip_lanes(gradients: dict[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """Scale down the gradients of each stacked model to a joint norm of at most ``max_norm``.

    Args:
        gradients: name -> gradient, [W, *shape].
        max_norm: greatest norm of all gradients of a model together.
    """
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    factor = (max_norm / norm).clamp(max=1.0)
    clipped = {}
    for name, gradient in gradients.items():
        clipped[name] = gradient * _broadcast_along(factor.to(gradient.dtype), gradient)
    return clipped
