"""What a layer learns: its kernel and its bias, laid out for its arithmetic."""

import math

import torch
from torch import Tensor

from fedsim.learning.architecture import Conv2d, Linear
from fedsim.learning.solvers.base import Descent
from fedsim.learning.solvers.step import Step


class Kernel:
    """The kernel and the bias of a layer, trained in place.

    Args:
        layer: whose.
        dtype: of the numbers.
        order: how the axes of the kernel lie in memory.

    Attributes:
        kernel: a matrix, whose rows are all axes but the last.
        bias: [outputs].
        both: the kernel with the bias as its last row, where that axis is the outputs.
        size: numbers in both.
        kernel_step, bias_step: their rules, once training has begun.
    """

    both: Tensor
    kernel_step: Step
    bias_step: Step

    def __init__(self, layer: Linear | Conv2d, dtype: torch.dtype, order: tuple[int, ...]) -> None:
        (_, self._shape), (_, bias) = layer.tensors
        self._order = order
        last = self._shape[order[-1]]
        self.size = math.prod(self._shape) + math.prod(bias)
        memory = torch.empty(self.size, dtype=dtype)
        kernel, self.bias = memory[: -layer.outputs], memory[-layer.outputs :]
        self.kernel = kernel.view(-1, last)
        if last == layer.outputs:
            self.both = memory.view(-1, last)

    def load(self, weights: Tensor) -> None:
        """Take a flat layer, [size]."""
        kernel, bias = self._parts(weights)
        self.kernel.copy_(kernel)
        self.bias.copy_(bias)

    def store(self, weights: Tensor) -> None:
        """Write the layer into a flat one."""
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        kernel = self.kernel.view([self._shape[axis] for axis in self._order]).permute(back)
        weights[: kernel.numel()].view(self._shape).copy_(kernel)
        weights[kernel.numel() :].copy_(self.bias)

    def begin(self, descent: Descent, constant: Tensor | None) -> None:
        """Start training from what was loaded; ``constant`` is this layer's part of ``LocalSolve.constant``."""
        kernel, bias = (None, None) if constant is None else self._parts(constant)
        self.kernel_step = Step(self.kernel, descent, descent.shrinkage(kernel=True), kernel)
        self.bias_step = Step(self.bias, descent, descent.shrinkage(kernel=False), bias)

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Kernel and bias of a flat layer, laid out as here."""
        kernel = flat[: self.kernel.numel()].view(self._shape).permute(self._order)
        return kernel.reshape(self.kernel.shape), flat[self.kernel.numel() :]
