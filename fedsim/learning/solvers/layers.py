"""Layers that are trained in closed form, one device at a time. Images are [n, height, width, channels]."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning import architecture
from fedsim.learning.solvers.base import Descent, Step
from fedsim.learning.solvers.dropout import WORD, KeyedDropout
from fedsim.learning.solvers.dropout_loops import drop
from fedsim.learning.solvers.pooling_loops import give_to_winners, pool
from fedsim.learning.solvers.products import multiply

Numbers = NDArray[np.floating[Any]]

Sides = tuple[int, int, int, int]
"""Shape of images: n, height, width, channels."""


def flat(x: Tensor) -> NDArray[Any]:
    """The numbers of a contiguous tensor."""
    return x.view(-1).numpy()


def sides(x: Tensor) -> Sides:
    """The shape of images."""
    n, height, width, channels = x.shape
    return n, height, width, channels


class Room:
    """One array of any shape at a time, always in the same memory once that is large enough.

    It begins where torch lets memory begin, so that no result depends on whose arrays were there before.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._flat = torch.empty(0, dtype=dtype)

    def of(self, *shape: int) -> Tensor:
        """An array of this shape, with whatever the memory held."""
        size = math.prod(shape)
        if len(self._flat) < size:
            self._flat = torch.empty(size, dtype=self._flat.dtype)
        return self._flat[:size].view(shape)


class Kernel:
    """The kernel and the bias of a layer, trained in place.

    Args:
        layer: whose.
        dtype: of the numbers.
        order: how the axes of the kernel lie in memory.
        rows: how many of them, in that order, are the rows of a matrix.
        shape: the axes of the kernel, where they are to be told apart in more detail than the layer does.

    Attributes:
        kernel: that matrix.
        bias: [outputs].
        size: numbers in both.
        kernel_step, bias_step: their rules, once training has begun.
    """

    kernel_step: Step
    bias_step: Step

    def __init__(
        self,
        layer: architecture.Linear | architecture.Conv2d,
        dtype: torch.dtype,
        order: tuple[int, ...],
        rows: int,
        shape: architecture.Shape = (),
    ) -> None:
        (_, kernel), (_, bias) = layer.tensors
        self._dimensions, self._shape, self._order = len(kernel), shape or kernel, order
        self.size = math.prod(kernel) + math.prod(bias)
        memory = torch.empty(self.size, dtype=dtype)
        self.bias = memory[-layer.outputs :]
        self.kernel = memory[: -layer.outputs].view(math.prod(self._shape[axis] for axis in order[:rows]), -1)

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

    def begin(self, descent: Descent, constant: Tensor | None, at: int) -> None:
        """Start training from what was loaded; ``constant`` is this layer's part of ``LocalSolve.constant``, from ``at`` on."""
        kernel, bias = (None, None) if constant is None else self._parts(constant)
        middle = at + self.kernel.numel()
        rules = descent.of(at, middle), descent.of(middle, at + self.size)
        self.kernel_step = Step(self.kernel, rules[0], rules[0].shrinkage(True, self._dimensions), kernel)
        self.bias_step = Step(self.bias, rules[1], rules[1].shrinkage(kernel=False), bias)

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Kernel and bias of a flat layer, laid out as here."""
        kernel = flat[: self.kernel.numel()].view(self._shape).permute(self._order)
        return kernel.reshape(self.kernel.shape), flat[self.kernel.numel() :]


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
    """A dense layer; of images it takes all numbers of a sample, as if they were flattened first.

    Args:
        layer: its sizes.
        dtype: of the numbers.
        shape: of a sample, (features,) or (channels, height, width).
    """

    def __init__(self, layer: architecture.Linear, dtype: torch.dtype, shape: architecture.Shape) -> None:
        order = (0, 2, 3, 1) if len(shape) == 3 else (0, 1)
        self.trained = Kernel(layer, dtype, order, 1, (layer.outputs, *shape))
        self._out, self._below = Room(dtype), Room(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        self._x, self._seen, kernel = x.view(len(x), -1), x.shape, self.trained.kernel
        return torch.addmm(self.trained.bias, self._x, kernel.t(), out=self._out.of(len(x), len(kernel)))

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """See ``Layer``."""
        below = self._below.of(*self._x.shape)
        if onward:
            torch.mm(error, self.trained.kernel, out=below)
        self.trained.kernel_step.descend_product(error.t(), self._x)
        self.trained.bias_step.descend(error.sum(0))
        return below.view(self._seen)


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


class Conv2d:
    """Any convolution, as products with the patches of its images, which are a view of them.

    Args:
        layer: the convolution.
        dtype: of the numbers.
    """

    def __init__(self, layer: architecture.Conv2d, dtype: torch.dtype) -> None:
        self._layer = layer
        self.trained = Kernel(layer, dtype, order=(2, 3, 1, 0), rows=3)
        self._framed, self._out, self._gradient = Room(dtype), Room(dtype), Room(dtype)
        self._errors, self._below = Room(dtype), Room(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of [n, height, width, channels]."""
        layer, (n, height, width, channels) = self._layer, x.shape
        outputs, down, across = layer.output((channels, height, width))
        self._sides, edge = (height, width), 2 * layer.padding
        framed = _framed(x, self._framed.of(n, height + edge, width + edge, channels), layer.padding)
        self._patches = _patches(framed, (0, 0), (down, across), (layer.kernel, layer.kernel), layer.stride)
        out = self._out.of(n, down, across, outputs).copy_(self.trained.bias)
        multiply(self._patches, self.trained.kernel.view(layer.kernel, -1, outputs).expand(n, -1, -1, -1), out, add=True)
        return out

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """Trains; gives the error of the input."""
        layer, (n, *_, terms) = self._layer, self._patches.shape
        below = self._below.of(n, *self._sides, layer.inputs)
        if onward:
            self._spread(error, below)
        gradient = self._gradient.of(layer.kernel, terms, layer.outputs).zero_()
        multiply(self._patches.permute(0, 3, 4, 1, 2), error, gradient.expand(n, -1, -1, -1), add=True)
        self.trained.kernel_step.descend(gradient.view(self.trained.kernel.shape))
        self.trained.bias_step.descend(error.sum((0, 1, 2)))
        return below

    def _spread(self, error: Tensor, below: Tensor) -> None:
        """The error of the input, whose pixels at one place between two strides are a convolution of ``error`` each."""
        side, stride, padding = self._layer.kernel, self._layer.stride, self._layer.padding
        n, *sides, channels = below.shape
        margin = -(-side // stride) - 1
        reach = [margin + max((own - 1 + padding) // stride + 1, out) for own, out in zip(sides, error.shape[1:3], strict=True)]
        framed = _framed(error, self._errors.of(n, *reach, self._layer.outputs), margin)
        kernel = self.trained.kernel.view(side, side, channels, -1)
        for y, x in product(range(min(stride, sides[0])), range(min(stride, sides[1]))):
            target = below[:, y::stride, x::stride]
            (row, up), (column, left) = (divmod(at + padding, stride) for at in (y, x))
            seen = kernel[up::stride, left::stride].flip(0, 1).transpose(2, 3).contiguous()
            down, across = seen.shape[:2]
            if not down * across:
                target.zero_()
                continue
            row, column = row + margin + 1 - down, column + margin + 1 - across
            patches = _patches(framed, (row, column), target.shape[1:3], (down, across), 1)
            multiply(patches, seen.view(down, -1, channels).expand(n, -1, -1, -1), target)


def _framed(x: Tensor, room: Tensor, margin: int) -> Tensor:
    """Images within larger ones, from ``margin`` on, zero around them."""
    if room.shape == x.shape:
        return x
    room.zero_()[:, margin : margin + x.shape[1], margin : margin + x.shape[2]] = x
    return room


def _patches(x: Tensor, begin: Sequence[int], count: Sequence[int], size: Sequence[int], stride: int) -> Tensor:
    """Patches of images, as a view: [n, *count, height, width x channels] with (height, width) = ``size``."""
    n, height, width, channels = x.shape
    line = width * channels
    shape, strides = (n, *count, size[0], size[1] * channels), (height * line, stride * line, stride * channels, line, 1)
    return x.as_strided(shape, strides, x.storage_offset() + begin[0] * line + begin[1] * channels)


class MaxPool2d:
    """The maximum over windows that do not overlap.

    Args:
        size: side of a window.
        dtype: of the numbers.
        rectified: whether a ReLU comes before or after it: neither changes the other's result.
    """

    def __init__(self, size: int, dtype: torch.dtype, *, rectified: bool) -> None:
        self._size, self._rectified = size, rectified
        self._out, self._below, self._winners = Room(dtype), Room(dtype), Room(torch.uint16)

    def forward(self, x: Tensor) -> Tensor:
        """Maxima of [n, height, width, channels]."""
        self._sides, size = sides(x), self._size
        n, height, width, channels = self._sides
        out = self._out.of(n, height // size, width // size, channels)
        self._won = flat(self._winners.of(*out.shape))
        pool(flat(x), self._sides, size, self._rectified, flat(out), self._won)
        return out

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """The error of each maximum to where it came from."""
        below = self._below.of(*self._sides)
        if onward:
            give_to_winners(flat(error), self._won, self._sides, self._size, flat(below))
        return below


class Dropout:
    """The keyed dropout of modules, in place.

    Args:
        rate: probability of a zero.
        place: number of this layer among the dropout layers of the model.
        dtype: of the numbers.
    """

    def __init__(self, rate: float, place: int, dtype: torch.dtype) -> None:
        self._keyed, self._factors = KeyedDropout(rate, place), Room(dtype)

    def begin_step(self, key: int) -> None:
        """Set the key of a step, see ``step_key``."""
        self._key = key

    def forward(self, x: Tensor) -> Tensor:
        """Zeros in a part of ``x``, the rest scaled up; positions count channel by channel."""
        keyed, factors = self._keyed, self._factors.of(*x.shape)
        least, scale = keyed.rule
        key, salt = np.uint64(self._key % WORD), np.uint64(keyed.salt % WORD)
        drop(flat(x), x.shape[-1], math.prod(x.shape[1:-1]), key, salt, np.uint64(least), scale, flat(factors))
        return x

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """See ``Layer``."""
        return error.mul_(self._factors.of(*error.shape))
