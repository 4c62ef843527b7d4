"""Convolutions by Winograd's algorithm, forward and backward: a fourth or less of the multiplications.

Polynomials are multiplied by their values at a few points (Toom 1963 and Cook 1966; S. Winograd, Arithmetic Complexity of
Computations, 1980; for images A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016):
Y = A (G w G^T * B x B^T) A^T for each tile, summed over channels, where * goes number by number: so for each place in a tile
it is one matrix product. Gradients are the adjoint of just that, with the same transformed images and kernels. In float32 a
gradient differs from the exact one by some 1e-6 of its norm (sides of 3: 1 to 2, of 5: 2 to 4; a plain sum 0.3).
"""

import torch
from torch import Tensor

from fedsim.learning.architecture import Conv2d
from fedsim.learning.solvers.layers import Kernel, Room, flat, sides
from fedsim.learning.solvers.products import multiply
from fedsim.learning.solvers.winograd_loops import (
    PITCH,
    add_out_of_tiles,
    into_tiles,
    out_of_tiles,
    see_nothing,
    transform_kernels,
)

ONE = 1
"""Position of the point 1, where the value of a polynomial is the sum of its coefficients."""

_KERNELS = (3, 5)
_PART_BYTES = 1 << 25  # tiles and products of one part of a batch; of larger batches tiles are made twice, not kept
_FEWEST_CHANNELS = 8  # with fewer the products are too narrow to pay for the transforms


class Winograd:
    """A convolution without stride, with a kernel of side 3 or 5, channels last.

    Args:
        layer: the convolution.
        dtype: of the numbers.
    """

    def __init__(self, layer: Conv2d, dtype: torch.dtype) -> None:
        self._layer = layer
        self.trained = Kernel(layer, dtype, order=(2, 3, 1, 0), rows=3)
        self._side = PITCH + layer.kernel - 1
        self._kernels, self._signals, self._products = Room(dtype), Room(dtype), Room(dtype)
        self._kernel_errors, self._gradient = Room(dtype), Room(dtype)
        self._out, self._below, self._empty = Room(dtype), Room(dtype), Room(torch.uint8)

    @staticmethod
    def suits(layer: Conv2d) -> bool:
        """Whether it can do this convolution, and fast."""
        return layer.kernel in _KERNELS and layer.stride == 1 and min(layer.inputs, layer.outputs) >= _FEWEST_CHANNELS

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of [n, height, width, channels]."""
        n, height, width, channels = x.shape
        layer, points = self._layer, self._side**2
        outputs, down, across = layer.output((channels, height, width))
        rows, columns = self._tiling = -(-down // PITCH), -(-across // PITCH)
        self._x, self._kernel = x, self._kernels.of(points, channels, outputs)
        transform_kernels(layer.kernel, False, flat(self.trained.kernel), flat(self._kernel), channels * outputs)
        out, empty = self._out.of(n, down, across, outputs), self._empty.of(n, down, across)
        see_nothing(flat(x), sides(x), layer.kernel, layer.padding, flat(empty))
        together = max(1, _PART_BYTES // (4 * points * rows * columns * (channels + outputs)))
        self._parts = [slice(at, at + together) for at in range(0, n, together)]
        for part in self._parts:
            signal = self._transformed(x[part])
            product = self._products.of(*signal.shape[:2], outputs)
            multiply(signal[:, None, :, None], self._kernel[:, None], product[:, None])
            blank, image = flat(empty[part]), out[part]
            out_of_tiles(layer.kernel, flat(product), flat(self.trained.bias), blank, rows, columns, flat(image), sides(image))
        return out

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """Trains; gives the error of the input."""
        layer, places, below = self._layer, self._tiling, self._below.of(*self._x.shape)
        kernel_error, gradient = self._kernel_errors.of(*self._kernel.shape), self._gradient.of(*self.trained.kernel.shape)
        bias_error = torch.zeros_like(self.trained.bias)
        for number, part in enumerate(self._parts):
            signal = self._signal if len(self._parts) == 1 else self._transformed(self._x[part])
            errors = self._products.of(*signal.shape[:2], layer.outputs)
            into_tiles(layer.kernel, False, flat(error[part]), sides(error[part]), 0, *places, flat(errors))
            multiply(signal.transpose(1, 2)[:, None, :, None], errors[:, None], kernel_error[:, None], add=number > 0)
            bias_error += errors[ONE * self._side + ONE].sum(0)
            if onward:
                torch.bmm(errors, self._kernel.transpose(1, 2), out=signal)
                image = below[part]
                add_out_of_tiles(layer.kernel, flat(signal), layer.padding, *places, flat(image), sides(image))
        transform_kernels(layer.kernel, True, flat(kernel_error), flat(gradient), layer.inputs * layer.outputs)
        self.trained.kernel_step.descend(gradient)
        self.trained.bias_step.descend(bias_error)
        return below

    def _transformed(self, x: Tensor) -> Tensor:
        """The tiles of some images, B x B^T: [points, tiles, inputs]."""
        rows, columns = self._tiling
        self._signal = self._signals.of(self._side**2, len(x) * rows * columns, self._layer.inputs)
        into_tiles(self._layer.kernel, True, flat(x), sides(x), self._layer.padding, rows, columns, flat(self._signal))
        return self._signal
