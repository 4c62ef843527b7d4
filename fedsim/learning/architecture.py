"""Layers as data, and their arithmetic: shapes, parameters, FLOPs. No tensor is made here.

FLOPs count two for a multiply-add. A training step costs three forward passes (one forward, two backward).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
        shape: of the tensor.
        kept: whether the scenario keeps it on each device (``model.keep``, ``model.send``).
    """

    name: str
    size: int
    layer: str
    shape: Shape = ()
    kept: bool = False


@dataclass(frozen=True)
class Linear:
    """A dense layer from ``inputs`` to ``outputs`` features."""

    inputs: int
    outputs: int

    @property
    def kernel_shape(self) -> Shape:
        """Shape of the weight."""
        return self.outputs, self.inputs


@dataclass(frozen=True)
class Conv2d:
    """A convolution with a square kernel and symmetric zero padding."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0

    @property
    def kernel_shape(self) -> Shape:
        """Shape of the weight."""
        return self.outputs, self.inputs, self.kernel, self.kernel


@dataclass(frozen=True)
class ReLU:
    """max(x, 0)."""


@dataclass(frozen=True)
class MaxPool2d:
    """The maximum over windows of ``size`` x ``size`` that do not overlap; a remainder at the border is dropped."""

    size: int


@dataclass(frozen=True)
class Flatten:
    """All axes of a sample as one, in row-major order."""


@dataclass(frozen=True)
class Dropout:
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
            shapes.append(_output(layer, shapes[-1]))
        return shapes

    @property
    def tensors(self) -> list[tuple[str, Shape]]:
        """Names ("layer.weight") and shapes of all parameters, in the order of a flat model."""
        parts = [((f"{at}.weight", layer.kernel_shape), (f"{at}.bias", (layer.outputs,))) for at, layer in self.trained()]
        return [tensor for part in parts for tensor in part]

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
        return 3 * sum(2 * math.prod(layer.kernel_shape) * math.prod(shapes[at + 1][1:]) for at, layer in self.trained())

    def narrowed(self, width: float) -> "Architecture":
        """The layers with this share of the channels or units between each two, rounded up; inputs and outputs stay."""
        layers, trained = list(self.layers), [at for at, _ in self.trained()]
        for at, layer in self.trained():
            inputs = layer.inputs if at == trained[0] else Architecture(self.input, tuple(layers[:at])).shapes[-1][0]
            outputs = layer.outputs if at == trained[-1] else math.ceil(width * layer.outputs)
            layers[at] = replace(layer, inputs=inputs, outputs=outputs)
        return Architecture(self.input, tuple(layers))

    def initial(self, init: str, generator: np.random.Generator) -> NDArray[np.float32]:
        """A freshly initialised model, float32 [d]; for ``init`` see ``TrainingSpec``."""
        parts: list[NDArray[np.float32]] = []
        for _, layer in self.trained():
            outputs, inputs, *window = layer.kernel_shape
            fan_in, fan_out = inputs * math.prod(window), outputs * math.prod(window)
            limit = math.sqrt(6.0 / (fan_in + fan_out)) if init == "glorot" else 1.0 / math.sqrt(fan_in)
            parts.append(generator.uniform(-limit, limit, outputs * fan_in).astype(np.float32))
            bias = np.zeros(outputs) if init == "glorot" else generator.uniform(-limit, limit, outputs)
            parts.append(bias.astype(np.float32))
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


def _output(layer: Layer, shape: Shape) -> Shape:
    """The shape of a layer's result for samples of ``shape``."""
    match layer:
        case Linear(inputs, outputs):
            if shape != (inputs,):
                raise ScenarioError(f"a dense layer of {inputs} inputs was given samples of shape {shape}")
            return (outputs,)
        case Conv2d(_, channels, kernel, stride, padding):
            sides = [(side + 2 * padding - kernel) // stride + 1 for side in _sides(shape, "convolution")]
        case MaxPool2d(size):
            channels, sides = shape[0], [side // size for side in _sides(shape, "pooling")]
        case Flatten():
            return (math.prod(shape),)
        case _:
            return shape
    if min(sides) < 1:
        raise ScenarioError(f"nothing is left of an image of shape {shape} after a layer; the model needs larger images")
    return (channels, *sides)


def _sides(shape: Shape, what: str) -> Shape:
    if len(shape) != 3:
        raise ScenarioError(f"a {what} needs samples of shape (channels, height, width); these have {shape}")
    return shape[1:]
