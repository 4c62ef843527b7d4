"""What is trained, stacked over devices, and its SGD step."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.learning.solvers.base import Descent

Add = Callable[[Tensor, Tensor, Tensor, float, float], object]
"""add(target, left, right, beta, alpha) makes target beta target + alpha gradient, which has left and right as factors."""


def product(target: Tensor, left: Tensor, right: Tensor, beta: float, alpha: float) -> None:
    """The gradient left @ right, [K, rows, columns]."""
    target.baddbmm_(left, right, beta=beta, alpha=alpha)


def spread(target: Tensor, rows: Tensor, values: Tensor, beta: float, alpha: float) -> None:
    """The gradient that has ``values`` [K, width, columns] in certain ``rows`` [K width] of the whole stack, 0 elsewhere."""
    if beta != 1.0:
        target.mul_(beta)
    columns = target.shape[2]
    target.view(-1, columns).index_add_(0, rows, values.view(-1, columns), alpha=alpha)


class Parameter:
    """A stacked kernel [K, inputs, outputs] or bias [K, 1, outputs] with the state that its steps need.

    Args:
        weight: where it starts; trained in place.
        descent: the rule.
        shrinkage: the factor of the parameter itself in its gradient.
        anchored: whether the proximal term draws it to its start; else to 0.
    """

    def __init__(self, weight: Tensor, descent: Descent, shrinkage: float, *, anchored: bool = True) -> None:
        self.weight = weight
        self.descent = descent
        self.shrinkage = shrinkage
        self.anchor = weight.clone() if descent.proximal and anchored else None
        self.velocity = torch.zeros_like(weight) if descent.momentum else None

    def first(self, count: int) -> "Parameter":
        """The same for the first devices only; shares all memory."""
        view = copy.copy(self)
        view.weight = self.weight[:count]
        view.anchor = None if self.anchor is None else self.anchor[:count]
        view.velocity = None if self.velocity is None else self.velocity[:count]
        return view

    def descend(self, left: Tensor, right: Tensor, add: Add = product) -> None:
        """One SGD step along the gradient that ``add`` makes of ``left`` and ``right``."""
        descent, weight = self.descent, self.weight
        if self.velocity is not None:
            add(self.velocity, left, right, descent.momentum, 1.0)
            if self.shrinkage:
                self.velocity.add_(weight, alpha=self.shrinkage)
            if self.anchor is not None:
                self.velocity.sub_(self.anchor, alpha=descent.proximal)
            weight.sub_(self.velocity, alpha=descent.lr)
            return
        keep = 1.0 - descent.lr * self.shrinkage
        if self.anchor is not None:
            weight.mul_(keep).add_(self.anchor, alpha=descent.lr * descent.proximal)
            keep = 1.0
        add(weight, left, right, keep, -descent.lr)
