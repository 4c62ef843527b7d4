"""Layers, tensors and adapters as data, and their arithmetic: shapes, parameters, FLOPs. No
tensor is made here.

FLOPs count two for a multiply-add. A training step costs three forward passes (one forward, two
backward).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec

Shape = tuple[int, ...]

STATISTICS = ("running_mean", "running_var")
"""Buffers of torch's batch and instance norms."""


Patterns = Annotated[list[str], Field(min_length=1)] | str
"""Names of tensors or layers, in which * matches anything."""


def matching(names: Sequence[str], patterns: Patterns, key: str, what: str = "tensor") -> set[str]:
    """The names (of a model's tensors or layers) that match one of the patterns, as ``fnmatch``
    has them.

    A pattern of the scenario's ``key`` that matches nothing raises ``ScenarioError``.
    """
    chosen: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if not (found := [name for name in names if fnmatchcase(name, pattern)]):
            known = f"it has {', '.join(names)}{nearest(pattern, names)}"
            raise ScenarioError(f"{key} has {pattern!r}, and the model has no such {what}; {known}")
        chosen.update(found)
    return chosen


class LoRA(Spec):
    """``model.lora``: low-rank adapters beside dense layers, W x + b + alpha / rank B A x (Hu et
    al., "LoRA", 2021).

    Their tensors are called ``LAYER.lora_A`` [rank, inputs], which is drawn as a dense layer's
    weights are, and ``LAYER.lora_B`` [outputs, rank], which begins at 0. Without ``model.train``
    they alone are trained.
    """

    rank: int = Field(ge=1, le=100_000)
    """of every adapter."""
    alpha: float = Field(default=16.0, gt=0.0, le=1e6)
    """factor of the adapter's product, divided by the rank."""
    where: Patterns = "*"
    """names of the layers that get one; by default every ``torch.nn.Linear``."""


class Tensor(NamedTuple):
    """A parameter of a model."""

    name: str
    """as torch names it, ``0.weight``."""
    size: int
    """how many numbers it has."""
    layer: str
    """the class of the layer that it is of, ``Linear``."""
    shape: Shape = ()
    """of the tensor."""
    kept: bool = False
    """whether the scenario keeps it on each device (``model.keep``, ``model.send``)."""
    is_buffer: bool = False
    """whether forward passes move it, and no gradients."""


@dataclass(frozen=True)
class Linear:
    """A dense layer from ``inputs`` to ``outputs`` features."""

    inputs: int
    outputs: int

    @property
    def kernel_shape(self) -> Shape:
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
        return self.outputs, self.inputs, self.kernel, self.kernel


@dataclass(frozen=True)
class ReLU:
    """max(x, 0)."""


@dataclass(frozen=True)
class MaxPool2d:
    """The maximum over windows of ``size`` x ``size`` that do not overlap; a remainder at the
    border is dropped.
    """

    size: int


@dataclass(frozen=True)
class Flatten:
    """All axes of a sample as one, in row-major order."""


@dataclass(frozen=True)
class Dropout:
    """In training an activation is zero with probability ``rate``; the others are scaled up by 1
    / (1 - rate).
    """

    rate: float


Layer = Linear | Conv2d | ReLU | MaxPool2d | Flatten | Dropout


def dense(*widths: int) -> tuple[Layer, ...]:
    """Dense layers of the given widths, each with its ReLU; ``Architecture.of`` says their
    inputs.
    """
    return tuple(layer for width in widths for layer in (Linear(0, width), ReLU()))


def convolution(
    outputs: int, kernel: int, stride: int = 1, *, same: bool = True
) -> tuple[Layer, ...]:
    """Likewise a convolution and its ReLU; ``same`` keeps the sides (divided by the stride)."""
    return Conv2d(0, outputs, kernel, stride, kernel // 2 if same else 0), ReLU()


@dataclass(frozen=True)
class Architecture:
    """A chain of layers that ends in one output a class (logits), for samples (channels, height,
    width) or (features,).
    """

    input: Shape
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, shape: Shape, layers: Sequence[Layer], width: float = 1.0) -> "Architecture":
        """Layers whose inputs follow from the shape of a sample; a ``ScenarioError`` where that
        does not fit.

        All layers except the last have only the share ``width`` of their channels or units,
        rounded up.
        """
        found = list(layers)
        now = shape
        for at, layer in enumerate(layers):
            if isinstance(layer, Linear | Conv2d):
                outputs = (
                    layer.outputs if at == len(layers) - 1 else math.ceil(width * layer.outputs)
                )
                found[at] = replace(layer, inputs=now[0], outputs=outputs)
            now = _output(found[at], now)
        return cls(shape, tuple(found))

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
        parts = [
            ((f"{at}.weight", layer.kernel_shape), (f"{at}.bias", (layer.outputs,)))
            for at, layer in self.trained()
        ]
        return [tensor for part in parts for tensor in part]

    def trained(self) -> Iterator[tuple[int, Linear | Conv2d]]:
        """The layers that have parameters, with their positions."""
        return (
            (at, layer)
            for at, layer in enumerate(self.layers)
            if isinstance(layer, Linear | Conv2d)
        )

    @property
    def parameters(self) -> int:
        """Trained numbers in all."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def flops(self) -> int:
        """FLOPs of one training step on one sample."""
        shapes = self.shapes
        return 3 * sum(
            2 * math.prod(layer.kernel_shape) * math.prod(shapes[at + 1][1:])
            for at, layer in self.trained()
        )

    def initial(self, generator: np.random.Generator) -> NDArray[np.float32]:
        """A freshly initialised model, float32 [d]: Glorot-uniform kernels, zero biases."""
        parts = []
        for _, layer in self.trained():
            outputs, inputs, *window = layer.kernel_shape
            limit = math.sqrt(6.0 / ((inputs + outputs) * math.prod(window)))
            parts += [
                generator.uniform(-limit, limit, math.prod(layer.kernel_shape)),
                np.zeros(outputs),
            ]
        return np.concatenate(parts).astype(np.float32)

    @property
    def is_dense(self) -> bool:
        """Whether it is Linear, ReLU, Linear, ..., Linear (after flattening): such models have a
        solver of their own.
        """
        layers = (
            self.layers[1:] if self.layers and isinstance(self.layers[0], Flatten) else self.layers
        )
        alternate = all(
            isinstance(layer, ReLU if at % 2 else Linear) for at, layer in enumerate(layers)
        )
        return alternate and len(layers) % 2 == 1


def _output(layer: Layer, shape: Shape) -> Shape:
    """The shape of a layer's result for samples of ``shape``."""
    if isinstance(layer, Linear):
        return (layer.outputs,)
    if isinstance(layer, Flatten):
        return (math.prod(shape),)
    if not isinstance(layer, Conv2d | MaxPool2d):
        return shape
    if len(shape) != 3:
        what = "convolution" if isinstance(layer, Conv2d) else "pooling"
        raise ScenarioError(
            f"a {what} needs samples of shape (channels, height, width); these have {shape}"
        )
    if isinstance(layer, Conv2d):
        found = (
            layer.outputs,
            *((side + 2 * layer.padding - layer.kernel) // layer.stride + 1 for side in shape[1:]),
        )
    else:
        found = shape[0], *(side // layer.size for side in shape[1:])
    if min(found) < 1:
        raise ScenarioError(
            f"nothing is left of an image of shape {shape} after a layer; the model needs "
            "larger images"
        )
    return found
