"""Steps of ``TorchTrainer`` on stacks of models, of which each lane is one device's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.utils import clip_grad_value_

from fedsim.learning.solvers.stack import clip_lanes
from fedsim.learning.spec import TrainingSession

if TYPE_CHECKING:
    from fedsim.toolbox.trainers.torch_trainer import TorchTrainer


class StackedOptimizer:
    """Optimiser of a stack's parameters, with schedule and clipping.

    Args:
        trainer: the trainer.
        parameters: name: parameter of all lanes, [W, *shape].
        session: facts that the trainings of the lanes share.
    """

    def __init__(
        self,
        trainer: "TorchTrainer",
        parameters: Mapping[str, nn.Parameter],
        session: TrainingSession,
    ) -> None:
        self._trainer = trainer
        self._parameters = parameters
        self._session = session
        self._taken = 0
        self._optimizer = trainer.torch_optimiser(parameters, session.lr)
        self._schedule = None
        if trainer.schedule is not None:
            length = session.epochs if trainer.schedule.every == "epoch" else session.steps
            self._schedule = trainer.schedule.build(self._optimizer, length, session.round)

    def step(self) -> None:
        """Clip the gradients of each lane, and take a step."""
        trainer = self._trainer
        if trainer.clip_norm is not None:
            gradients = {}
            for name, parameter in self._parameters.items():
                assert parameter.grad is not None, "the stack sets all gradients"
                gradients[name] = parameter.grad
            for name, gradient in clip_lanes(gradients, trainer.clip_norm).items():
                self._parameters[name].grad = gradient
        if trainer.clip_value is not None:
            clip_grad_value_(self._parameters.values(), trainer.clip_value)
        self._optimizer.step()
        self._taken += 1
        self._move_on()

    def _move_on(self) -> None:
        """Move the schedule on, after a step or at the end of an epoch."""
        schedule = self._trainer.schedule
        if schedule is None or self._schedule is None:
            return
        ends_epoch = (
            self._taken % self._session.per_epoch == 0 or self._taken == self._session.steps
        )
        if schedule.every == "step" or (schedule.every == "epoch" and ends_epoch):
            self._schedule.step()
