"""The SGD rule for one parameter."""

import torch
from torch import Tensor

from fedsim.learning.solvers.base import Descent


class Step:
    """A parameter (or a stack of them, of which a step may concern the first few) with the state that its rule keeps.

    Args:
        parameter: where it starts; trained in place.
        descent: the rule.
        shrinkage: the factor of the parameter itself in its gradient (``Descent.shrinkage``).
        constant: its part of ``LocalSolve.constant``, in its shape.
    """

    def __init__(self, parameter: Tensor, descent: Descent, shrinkage: float, constant: Tensor | None) -> None:
        self.parameter = parameter
        self.descent = descent
        self.shrinkage = shrinkage
        self.constant = constant
        self.start = parameter.detach().clone() if descent.mu else None
        self.velocity = torch.zeros_like(parameter, requires_grad=False) if descent.momentum else None

    def descend(self, gradient: Tensor) -> None:
        """One step; of a stack, the first ``len(gradient)`` members."""
        descent, first = self.descent, slice(len(gradient)) if gradient.ndim else ...
        weight = self.parameter[first]
        if self.shrinkage:
            gradient = gradient.add(weight, alpha=self.shrinkage)
        if self.start is not None:
            gradient = gradient.sub(self.start[first], alpha=descent.mu)
        if self.constant is not None:
            gradient = gradient.add(self.constant[first])
        if self.velocity is not None:
            gradient = self.velocity[first].mul_(descent.momentum).add_(gradient)
        weight.sub_(gradient, alpha=descent.lr)

    def descend_product(self, left: Tensor, right: Tensor) -> None:
        """One step of a matrix along the gradient ``left`` @ ``right``, which is added where it is made."""
        descent, weight = self.descent, self.parameter
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
