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
        self._ordered().copy_(weights[: self.kernel.numel()].view(self._shape))
        self.bias.copy_(weights[self.kernel.numel() :])

    def store(self, weights: Tensor) -> None:
        """Write the layer into a flat one."""
        weights[: self.kernel.numel()].view(self._shape).copy_(self._ordered())
        weights[self.kernel.numel() :].copy_(self.bias)

    def _ordered(self) -> Tensor:
        """The kernel with its axes as torch has them."""
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        return self.kernel.view([self._shape[axis] for axis in self._order]).permute(back)

    def begin(self, descent: Descent) -> None:
        """Start training from what was loaded."""
        self.kernel_step = Step(self.kernel, descent, descent.shrinkage(kernel=True))
        self.bias_step = Step(self.bias, descent, descent.shrinkage(kernel=False))
