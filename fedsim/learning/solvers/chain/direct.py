"""Convolutions by torch's own routines, forward and backward: what is left, above all strides between many channels."""

import torch
from torch import Tensor

from fedsim.learning.architecture import Conv2d
from fedsim.learning.solvers.chain.kernels import Kernel


class Direct:
    """Any convolution, channels last.

    Args:
        layer: the convolution.
        dtype: of the numbers.
    """

    def __init__(self, layer: Conv2d, dtype: torch.dtype) -> None:
        self._layer = layer
        self._stride, self._padding = [layer.stride] * 2, [layer.padding] * 2
        self.trained = Kernel(layer, dtype, order=(0, 2, 3, 1))

    @staticmethod
    def suits(layer: Conv2d, lowest: bool) -> bool:
        """Whether it can do this convolution: always."""
        return True

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of [n, height, width, channels]."""
        self._x, layer = x.permute(0, 3, 1, 2), self._layer
        self._kernel = self.trained.kernel.view(layer.outputs, layer.kernel, layer.kernel, layer.inputs).permute(0, 3, 1, 2)
        out = torch.conv2d(self._x, self._kernel, self.trained.bias, self._stride, self._padding)
        return out.permute(0, 2, 3, 1).contiguous()

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """Trains; gives the error of the input."""
        below, kernel, bias = torch.ops.aten.convolution_backward(
            error.permute(0, 3, 1, 2), self._x, self._kernel, [self._layer.outputs], self._stride, self._padding,
            [1, 1], False, [0, 0], 1, [onward, True, True],
        )  # fmt: skip
        self.trained.kernel_step.descend(kernel.permute(0, 2, 3, 1).reshape(self.trained.kernel.shape))
        self.trained.bias_step.descend(bias)
        return below.permute(0, 2, 3, 1).contiguous() if onward else error
