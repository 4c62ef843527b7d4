"""Layers that are trained in closed form, one device at a time. Images are [n, height, width, channels]."""

from typing import Protocol

import torch
from torch import Tensor

from fedsim.learning import architecture
from fedsim.learning.solvers.chain.kernels import Kernel
from fedsim.learning.solvers.chain.room import Room


class Layer(Protocol):
    """One layer. What it returns lies in memory that its next call writes over."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for a batch; may change ``x``."""

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """Take a step along the gradient, if it has parameters; may change ``error``.

        Args:
            error: the gradient of the loss by the outputs of the last ``forward``.
            onward: whether a layer before this one is trained.

        Returns:
            The gradient of the loss by the inputs; anything if not ``onward``.
        """


class Linear:
    """A dense layer.

    Args:
        layer: its sizes.
        dtype: of the numbers.
    """

    def __init__(self, layer: architecture.Linear, dtype: torch.dtype) -> None:
        self.trained = Kernel(layer, dtype, order=(0, 1))
        self._out, self._below = Room(dtype), Room(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        self._x, kernel = x, self.trained.kernel
        return torch.addmm(self.trained.bias, x, kernel.t(), out=self._out.of(len(x), len(kernel)))

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """See ``Layer``."""
        below = self._below.of(*self._x.shape)
        if onward:
            torch.mm(error, self.trained.kernel, out=below)
        self.trained.kernel_step.descend_product(error.t(), self._x)
        self.trained.bias_step.descend(error.sum(0))
        return below


class ReLU:
    """max(x, 0), in place."""

    def forward(self, x: Tensor) -> Tensor:
        """See ``Layer``."""
        self._out = x.relu_()
        return self._out

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """See ``Layer``."""
        return torch.ops.aten.threshold_backward.grad_input(error, self._out, 0, grad_input=error) if onward else error


class Flatten:
    """All axes of a sample as one, in the order channels, height, width."""

    def forward(self, x: Tensor) -> Tensor:
        """See ``Layer``."""
        self._shape = x.shape
        return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x).reshape(len(x), -1)

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """See ``Layer``."""
        if len(self._shape) != 4:
            return error
        n, height, width, channels = self._shape
        return error.view(n, channels, height, width).permute(0, 2, 3, 1).contiguous()
