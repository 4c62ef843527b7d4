"""Layers as data, and their arithmetic: shapes, parameters, FLOPs. No tensor is made here.

FLOPs count two for a multiply-add. A training step costs three forward passes (one forward, two backward).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import ScenarioError

Shape = tuple[int, ...]


class Tensor(NamedTuple):
    """A parameter of a model.

    Attributes:
        name: as torch names it, ``0.weight``.
        size: how many numbers it has.
        layer: the class of the layer that it is of, ``Linear``.
    """

    name: str
    size: int
    layer: str


class SameShape:
    """A layer whose result has the shape that it is given."""

    def output(self, shape: Shape) -> Shape:
        """Shape of the result."""
        return shape


@dataclass(frozen=True)
class Linear:
    """A dense layer from ``inputs`` to ``outputs`` features; weight [outputs, inputs], bias [outputs]."""

    inputs: int
    outputs: int

    def output(self, shape: Shape) -> Shape:
        """Shape of the result."""
        if shape != (self.inputs,):
            raise ScenarioError(f"a dense layer of {self.inputs} inputs was given samples of shape {shape}")
        return (self.outputs,)

    @property
    def tensors(self) -> tuple[tuple[str, Shape], ...]:
        """Names and shapes of the parameters, in the order in which they stand in a flat model."""
        return (("weight", (self.outputs, self.inputs)), ("bias", (self.outputs,)))

    @property
    def fans(self) -> tuple[int, int]:
        """How many inputs an output sees, and how many outputs an input reaches."""
        return self.inputs, self.outputs


@dataclass(frozen=True)
class Conv2d:
    """A convolution with a square kernel and symmetric zero padding; weight [outputs, inputs, kernel, kernel]."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def output(self, shape: Shape) -> Shape:
        """Shape of the result, (channels, height, width)."""
        sides = _image(shape, "convolution")
        sides = tuple((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in sides)
        return (self.outputs, *_not_empty(sides, shape))

    @property
    def tensors(self) -> tuple[tuple[str, Shape], ...]:
        """Names and shapes of the parameters, in the order in which they stand in a flat model."""
        return (("weight", (self.outputs, self.inputs, self.kernel, self.kernel)), ("bias", (self.outputs,)))

    @property
    def fans(self) -> tuple[int, int]:
        """How many inputs an output sees, and how many outputs an input reaches."""
        return self.inputs * self.kernel**2, self.outputs * self.kernel**2


@dataclass(frozen=True)
class ReLU(SameShape):
    """max(x, 0)."""


@dataclass(frozen=True)
class MaxPool2d:
    """The maximum over windows of ``size`` x ``size`` that do not overlap; a remainder at the border is dropped."""

    size: int

    def output(self, shape: Shape) -> Shape:
        """Shape of the result, (channels, height, width)."""
        sides = tuple(side // self.size for side in _image(shape, "pooling"))
        return (shape[0], *_not_empty(sides, shape))


@dataclass(frozen=True)
class Flatten:
    """All axes of a sample as one, in row-major order."""

    def output(self, shape: Shape) -> Shape:
        """Shape of the result: one axis."""
        return (math.prod(shape),)


@dataclass(frozen=True)
class Dropout(SameShape):
    """In training an activation is zero with probability ``rate``; the others are scaled up by 1 / (1 - rate)."""

    rate: float


Layer = Linear | Conv2d | ReLU | MaxPool2d | Flatten | Dropout


@dataclass(frozen=True)
class Architecture:
    """A chain of layers that ends in one output a class (logits).

    Attributes:
        input: shape of one sample, (channels, height, width) or (features,).
        layers: in order.
    """

    input: Shape
    layers: tuple[Layer, ...]

    @property
    def shapes(self) -> list[Shape]:
        """Shape before each layer, and after the last."""
        shapes = [self.input]
        for layer in self.layers:
            shapes.append(layer.output(shapes[-1]))
        return shapes

    @property
    def tensors(self) -> list[tuple[str, Shape]]:
        """Names ("layer.weight") and shapes of all parameters, in the order of a flat model."""
        return [(f"{at}.{name}", shape) for at, layer in self.trained() for name, shape in layer.tensors]

    def trained(self) -> Iterator[tuple[int, Linear | Conv2d]]:
        """The layers that have parameters, with their positions."""
        return ((at, layer) for at, layer in enumerate(self.layers) if isinstance(layer, Linear | Conv2d))

    @property
    def parameters(self) -> int:
        """Trained numbers in all."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def flops(self) -> int:
        """FLOPs of one training step on one sample: three forward passes, two FLOPs a multiply-add."""
        shapes = self.shapes
        forward = sum(2 * math.prod(layer.tensors[0][1]) * math.prod(shapes[at + 1][1:]) for at, layer in self.trained())
        return 3 * forward

    def initial(self, init: str, generator: np.random.Generator) -> NDArray[np.float32]:
        """A freshly initialised model, float32 [d]; for ``init`` see ``TrainingSpec``."""
        parts: list[NDArray[np.float32]] = []
        for _, layer in self.trained():
            (_, kernel), (_, bias) = layer.tensors
            fan_in, fan_out = layer.fans
            limit = math.sqrt(6.0 / (fan_in + fan_out)) if init == "glorot" else 1.0 / math.sqrt(fan_in)
            parts.append(generator.uniform(-limit, limit, math.prod(kernel)).astype(np.float32))
            values = np.zeros(bias) if init == "glorot" else generator.uniform(-limit, limit, bias)
            parts.append(values.astype(np.float32))
        return np.concatenate(parts)

    @property
    def is_dense(self) -> bool:
        """Whether it is Linear, ReLU, Linear, ..., Linear (after flattening): such models have a solver of their own."""
        layers = self.layers[1:] if self.layers and isinstance(self.layers[0], Flatten) else self.layers
        alternate = all(isinstance(layer, ReLU if at % 2 else Linear) for at, layer in enumerate(layers))
        return alternate and len(layers) % 2 == 1


def dense(inputs: int, *widths: int) -> tuple[Layer, ...]:
    """Dense layers of the given widths with a ReLU between each two."""
    layers: list[Layer] = []
    for before, after in pairwise((inputs, *widths)):
        layers += [ReLU(), Linear(before, after)]
    return tuple(layers[1:])


def _image(shape: Shape, what: str) -> Shape:
    if len(shape) != 3:
        raise ScenarioError(f"a {what} needs samples of shape (channels, height, width); these have {shape}")
    return shape[1:]


def _not_empty(sides: Shape, shape: Shape) -> Shape:
    if min(sides) < 1:
        raise ScenarioError(f"nothing is left of an image of shape {shape} after a layer; the model needs larger images")
    return sides
