"""A convolution as one matrix product: each row is a patch of the image under the kernel."""

import numpy as np
import torch
from torch import Tensor

from fedsim.learning.architecture import Conv2d
from fedsim.learning.solvers.chain.kernels import Kernel
from fedsim.learning.solvers.chain.room import Numbers, Room, Sides, flat, sides
from fedsim.learning.solvers.compiled import compiled_entry

_MOST_CHANNELS = 8  # with more, patches take more time than they save


class Unfolded:
    """The convolution of a model's input, channels last: it passes no error on, and has few channels, so small patches.

    Args:
        layer: the convolution.
        dtype: of the numbers.
    """

    def __init__(self, layer: Conv2d, dtype: torch.dtype) -> None:
        self._layer = layer
        self._rows, self._out = Room(dtype), Room(dtype)
        self.trained = Kernel(layer, dtype, order=(2, 3, 1, 0))

    @staticmethod
    def suits(layer: Conv2d, lowest: bool) -> bool:
        """Whether it can do this convolution, and fast."""
        return lowest and layer.inputs < _MOST_CHANNELS

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of [n, height, width, channels]."""
        n, height, width, channels = shape = sides(x)
        layer = self._layer
        outputs, down, across = layer.output((channels, height, width))
        self._patches = self._rows.of(n * down * across, layer.kernel**2 * channels + 1)
        _unfold(flat(x), shape, layer.kernel, layer.stride, layer.padding, flat(self._patches))
        out = self._out.of(n, down, across, outputs)
        torch.mm(self._patches, self.trained.both, out=out.view(-1, outputs))
        return out

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """Trains; it is never asked for the error of the input."""
        error = error.view(-1, self._layer.outputs)
        self.trained.kernel_step.descend_product(self._patches[:, :-1].t(), error)
        self.trained.bias_step.descend(error.sum(0))
        return error


@compiled_entry
def _unfold(image: Numbers, shape: Sides, side: int, stride: int, padding: int, patches: Numbers) -> None:
    """Patches [n, down, across, side, side, channels], each with a 1 for the bias, of images [n, height, width, channels]."""
    n, height, width, channels = shape
    down, across = (height + 2 * padding - side) // stride + 1, (width + 2 * padding - side) // stride + 1
    line = (width + 2 * padding) * channels
    pixels = np.zeros((height + 2 * padding) * line, dtype=image.dtype)
    run = np.uint64(side * channels)
    o = np.uint64(0)
    for at in range(n):
        for y in range(height):
            p, q = np.uint64((at * height + y) * width * channels), np.uint64((y + padding) * line + padding * channels)
            for z in range(np.uint64(width * channels)):
                pixels[q + z] = image[p + z]
        for row in range(down):
            for column in range(across):
                for k in range(side):
                    p = np.uint64((row * stride + k) * line + column * stride * channels)
                    for z in range(run):
                        patches[o + z] = pixels[p + z]
                    o += run
                patches[o] = 1
                o += np.uint64(1)
