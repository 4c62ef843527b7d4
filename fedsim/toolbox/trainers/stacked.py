"""Steps of a torch optimiser on stacks of models, which have one model (lane) for each device."""

from collections.abc import Mapping

from torch import nn
from torch.nn.utils import clip_grad_value_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedsim.learning.solvers.stack import clip_lanes


class SteppedSchedule:
    """Learning-rate schedule that advances each time the optimiser has made a count of steps.

    Args:
        schedule: torch's schedule, which changes the learning rate.
        every: count of optimiser steps after which the schedule advances.
        steps: count of optimiser steps in the training; the schedule also advances after the last
            step.
    """

    def __init__(self, schedule: LRScheduler, every: int, steps: int) -> None:
        self._schedule = schedule
        self._every = every
        self._steps = steps
        self._taken = 0  # count of optimiser steps so far

    def count(self) -> None:
        """Count one step of the optimiser, and advance the schedule if it is due.

        The schedule is due after every ``every``-th step, and after the last step of the training.
        """
        self._taken += 1
        if self._taken % self._every == 0 or self._taken == self._steps:
            self._schedule.step()


class StackedOptimizer:
    """Optimiser of several devices' models that are trained together in common tensors (a stack).

    Its ``step`` clips the gradients of each model (lane) separately, moves all models, and advances
    the schedule of the learning rate.

    Args:
        optimizer: torch's optimiser of the parameters.
        parameters: name of a parameter -> its values in all W models, [W, *shape].
        clip_norm: greatest L2 norm of all gradients of one model together; None: no limit.
        clip_value: greatest magnitude of each entry of a gradient; None: no limit.
        schedule: schedule of the learning rate; None: the rate is constant.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        parameters: Mapping[str, nn.Parameter],
        clip_norm: float | None,
        clip_value: float | None,
        schedule: SteppedSchedule | None,
    ) -> None:
        self._optimizer = optimizer
        self._parameters = parameters  # each [W models, *shape]
        self._clip_norm = clip_norm
        self._clip_value = clip_value
        self._schedule = schedule

    def step(self) -> None:
        """Clip the gradients of each model in the stack, and move all models by one step.

        The gradients are the parameters' ``grad``, which must be set. The schedule of the learning
        rate advances if it is due.
        """
        if self._clip_norm is not None:
            # torch's ``clip_grad_norm_`` would take one norm over all models of the stack
            gradients = {}
            for name, parameter in self._parameters.items():
                assert parameter.grad is not None, "the stack sets all gradients"
                gradients[name] = parameter.grad
            for name, gradient in clip_lanes(gradients, self._clip_norm).items():
                self._parameters[name].grad = gradient
        if self._clip_value is not None:
            clip_grad_value_(self._parameters.values(), self._clip_value)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.count()
