"""Descriptions of layers, tensors and adapters, with their shapes, parameters and FLOPs.

A multiply-add counts as two FLOPs. A training step costs as much as three forward passes, one for
the forward pass and two for the backward pass.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec

Shape = tuple[int, ...]

STATISTICS = ("running_mean", "running_var")
"""Names of the buffers of running statistics in torch's batch and instance norms."""


Patterns = Annotated[list[str], Field(min_length=1)] | str
"""One pattern or several for names of tensors or layers, in which * matches any text."""


def matching_names(
    names: Sequence[str], patterns: Patterns, key: str, noun: str = "tensor"
) -> set[str]:
    """Return the names of tensors or layers that match patterns such as ``blocks.*`` (``fnmatch``).

    Args:
        names: names of a model's tensors or layers.
        patterns: one pattern, or several.
        key: the scenario's key that has the patterns, for error messages.
        noun: ``tensor`` or ``layer``, for error messages.

    Raises:
        ScenarioError: a pattern matches no name.
    """
    if isinstance(patterns, str):
        patterns = [patterns]
    matches: set[str] = set()
    for pattern in patterns:
        pattern_matches = [name for name in names if fnmatchcase(name, pattern)]
        if not pattern_matches:
            hint = f"it has {', '.join(names)}{nearest(pattern, names)}"
            raise ScenarioError(f"{key} has {pattern!r}, and the model has no such {noun}; {hint}")
        matches.update(pattern_matches)
    return matches


class LoRA(Spec):
    """``model.lora``: low-rank adapters of dense layers (Hu et al., "LoRA", 2021).

    A dense layer with an adapter computes W x + b + alpha / rank B A x. The adapter's tensors are
    ``LAYER.lora_A`` [rank, inputs], which is initialised like a dense layer's weights, and
    ``LAYER.lora_B`` [outputs, rank], which begins at 0. Only the adapters are trained, unless the
    key ``model.train`` names the trained tensors.

    Attributes:
        rank: rank of every adapter.
        alpha: numerator of alpha / rank, the factor of the product B A x.
        where: names of the layers that get an adapter, or patterns such as ``blocks.*``; by default
            every ``torch.nn.Linear``.
    """

    rank: int = Field(ge=1, le=100_000)
    alpha: float = Field(default=16.0, gt=0.0, le=1e6)
    where: Patterns = "*"


class Tensor(NamedTuple):
    """Description of a tensor of a model: its name, size, shape and layer, without its values.

    A flat model has the values of all tensors in one array; the order of a list of descriptions is
    the order in that array.

    Attributes:
        name: torch's name of the tensor, such as ``0.weight``.
        size: count of values.
        layer: class of the tensor's layer, such as ``"Linear"``.
        shape: shape of the tensor.
        kept: whether each device keeps its own values of the tensor, which are never sent (keys
            ``model.keep`` and ``model.send``).
        is_buffer: whether the tensor is a buffer, such as running statistics: forward passes change
            it, and SGD steps do not.
    """

    name: str
    size: int
    layer: str
    shape: Shape = ()
    kept: bool = False
    is_buffer: bool = False


@dataclass(frozen=True)
class Linear:
    """Description of a dense layer in an ``Architecture`` (a model as a chain of layers).

    Attributes:
        inputs: count of input features.
        outputs: count of output features.
    """

    inputs: int
    outputs: int

    @property
    def kernel_shape(self) -> Shape:
        return self.outputs, self.inputs


@dataclass(frozen=True)
class Conv2d:
    """Description of a convolution with a square kernel and zero padding.

    It is a layer of an ``Architecture``, which describes a model as a chain of layers.

    Attributes:
        inputs, outputs: counts of channels.
        kernel: side of the kernel (pixels).
        stride: distance of neighbouring windows (pixels).
        padding: zeros added at each border (pixels).
    """

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
    """Description of the activation max(x, 0) in an ``Architecture`` (a chain of layers)."""


@dataclass(frozen=True)
class MaxPool2d:
    """Description of max pooling over windows that do not overlap.

    It is a layer of an ``Architecture``, which describes a model as a chain of layers. Pixels at
    the border that do not fill a window are dropped.

    Attributes:
        size: side of a window (pixels).
    """

    size: int


@dataclass(frozen=True)
class Flatten:
    """Description of a layer that reshapes a sample to a vector, in row-major order."""


@dataclass(frozen=True)
class Dropout:
    """Description of a dropout layer in an ``Architecture`` (a model as a chain of layers).

    In training the layer sets each activation to zero with probability ``rate``, and scales the
    remaining activations by 1 / (1 - rate).

    Attributes:
        rate: probability of a zero.
    """

    rate: float


Layer = Linear | Conv2d | ReLU | MaxPool2d | Flatten | Dropout


def dense(*widths: int) -> tuple[Layer, ...]:
    """Return descriptions of dense layers, each followed by a ReLU, for an ``Architecture``.

    The layers' counts of inputs are 0 at first; ``Architecture.of`` computes the real ones.

    Args:
        *widths: count of outputs of each dense layer.
    """
    layers: list[Layer] = []
    for width in widths:
        layers += [Linear(0, width), ReLU()]
    return tuple(layers)


def convolution(
    outputs: int, kernel: int, stride: int = 1, *, same: bool = True
) -> tuple[Layer, ...]:
    """Return descriptions of a convolution and of the ReLU that follows it.

    The convolution's count of input channels is 0 at first; ``Architecture.of`` computes the real
    count.

    Args:
        outputs: count of output channels.
        kernel: side of the kernel (pixels).
        stride: distance of neighbouring windows (pixels).
        same: whether the input is padded; with an odd kernel the output then has the input's sides,
            divided by the stride and rounded up. Else there is no padding.
    """
    padding = kernel // 2 if same else 0
    return Conv2d(0, outputs, kernel, stride, padding), ReLU()


@dataclass(frozen=True)
class Architecture:
    """Description of a model as a chain of layers from a sample to logits, one for each class.

    Shapes, parameter counts and FLOPs follow from the layers. The description holds no weights.

    Attributes:
        input: shape of a sample, (channels, height, width) or (features,).
        layers: the layers, in order.
    """

    input: Shape
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, shape: Shape, layers: Sequence[Layer], width: float = 1.0) -> "Architecture":
        """Build the description of a model, with input sizes computed from the shape of a sample.

        Args:
            shape: shape of a sample.
            layers: the layers; their counts of inputs are ignored.
            width: factor of the outputs (channels or units) of all layers but the last; the product
                is rounded up.

        Raises:
            ScenarioError: the samples do not fit the layers.
        """
        sized_layers: list[Layer] = []
        input_shape = shape  # shape of the layer's input: channels or features, then sides
        for layer in layers:
            if isinstance(layer, Linear | Conv2d):
                is_last = len(sized_layers) == len(layers) - 1
                outputs = layer.outputs if is_last else math.ceil(width * layer.outputs)
                layer = replace(layer, inputs=input_shape[0], outputs=outputs)
            sized_layers.append(layer)
            input_shape = _output(layer, input_shape)
        return cls(shape, tuple(sized_layers))

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of a sample before each layer, and after the last layer."""
        shapes = [self.input]
        for layer in self.layers:
            shapes.append(_output(layer, shapes[-1]))
        return shapes

    @property
    def tensors(self) -> list[tuple[str, Shape]]:
        """Names, such as ``0.weight``, and shapes of all parameters, in the model's order."""
        tensors: list[tuple[str, Shape]] = []
        for position, layer in self.trained():
            tensors.append((f"{position}.weight", layer.kernel_shape))
            tensors.append((f"{position}.bias", (layer.outputs,)))
        return tensors

    def trained(self) -> Iterator[tuple[int, Linear | Conv2d]]:
        """Yield the layers that have parameters, each with its index in ``layers``."""
        for position, layer in enumerate(self.layers):
            if isinstance(layer, Linear | Conv2d):
                yield position, layer

    @property
    def parameters(self) -> int:
        """Count of parameters, d."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def flops(self) -> int:
        """FLOPs of a training step on one sample, forward and backward pass together."""
        shapes = self.shapes
        multiply_adds = 0  # count for the forward pass of one sample
        for position, layer in self.trained():
            output_pixels = math.prod(shapes[position + 1][1:])  # 1 for a dense layer
            multiply_adds += math.prod(layer.kernel_shape) * output_pixels
        return 3 * 2 * multiply_adds

    def initial(self, generator: np.random.Generator) -> NDArray[np.float32]:
        """Draw an initial model, float32 [d]: Glorot-uniform kernels and zero biases."""
        parts = []
        for _, layer in self.trained():
            outputs, inputs, *window = layer.kernel_shape
            # sum of fan-in and fan-out; each is the count of channels times the window's pixels
            fans = (inputs + outputs) * math.prod(window)
            limit = math.sqrt(6.0 / fans)
            parts.append(generator.uniform(-limit, limit, math.prod(layer.kernel_shape)))
            parts.append(np.zeros(outputs))
        return np.concatenate(parts).astype(np.float32)

    @property
    def is_dense(self) -> bool:
        """Whether the layers are Linear, ReLU, Linear, ..., Linear, perhaps after a ``Flatten``.

        Only such models can be trained by ``Dense``, the fastest solver on a CPU.
        """
        layers = self.layers
        if layers and isinstance(layers[0], Flatten):
            layers = layers[1:]
        has_odd_count = len(layers) % 2 == 1  # the last layer is then Linear
        are_linear = all(isinstance(layer, Linear) for layer in layers[::2])
        are_relu = all(isinstance(layer, ReLU) for layer in layers[1::2])
        return has_odd_count and are_linear and are_relu


def _output(layer: Layer, shape: Shape) -> Shape:
    """Return the shape of a layer's output for samples of ``shape``.

    Raises:
        ScenarioError: the layer needs images, or nothing is left of an image after the layer.
    """
    if isinstance(layer, Linear):
        return (layer.outputs,)
    if isinstance(layer, Flatten):
        return (math.prod(shape),)
    if not isinstance(layer, Conv2d | MaxPool2d):
        return shape
    if len(shape) != 3:
        name = "convolution" if isinstance(layer, Conv2d) else "pooling"
        raise ScenarioError(
            f"a {name} needs samples of shape (channels, height, width); these have {shape}"
        )
    channels, *sides = shape
    if isinstance(layer, Conv2d):
        channels = layer.outputs
        # a side becomes floor((side + 2 padding - kernel) / stride) + 1
        added = 2 * layer.padding - layer.kernel
        sides = [(side + added) // layer.stride + 1 for side in sides]
    else:
        sides = [side // layer.size for side in sides]
    output = (channels, *sides)
    if min(output) < 1:
        raise ScenarioError(
            f"nothing is left of an image of shape {shape} after a layer; the model needs "
            "larger images"
        )
    return output


def layers_of(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Divide the tensors of a model by layers, from the first layer to the last.

    Consecutive tensors are of one layer if their names are equal up to the first number, as in
    ``blocks.3``. Tensors without a number in their name are of one layer if they are tensors of one
    module, such as ``head.weight`` and ``head.bias``.

    Args:
        tensors: descriptions of a model's tensors, in order.

    Example:
        >>> names = ["embedding.weight", "blocks.0.a.weight", "blocks.0.b.weight", "blocks.1.a.bias"]
        >>> layers = layers_of([Tensor(name, 1, "Linear") for name in names])
        >>> [len(layer) for layer in layers]
        [1, 2, 1]
    """
    return [list(group) for _, group in groupby(tensors, lambda tensor: _layer_name(tensor.name))]


def _layer_name(name: str) -> str:
    parts = name.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return name.rpartition(".")[0]


def matching_tensors(tensors: Sequence[Tensor], patterns: Patterns, key: str) -> set[str]:
    """Return the names of a model's tensors that match patterns such as ``*Norm*:*`` (``fnmatch``).

    A pattern is compared with the tensor's name, and with ``CLASS:NAME``, where CLASS is the class
    of the tensor's layer.

    Args:
        tensors: the tensors of a model.
        patterns: one pattern, or several.
        key: the scenario's key that has the patterns, for error messages.

    Raises:
        ScenarioError: a pattern matches no tensor.
    """
    names = {tensor.name: tensor.name for tensor in tensors}
    for tensor in tensors:
        names[f"{tensor.layer}:{tensor.name}"] = tensor.name
    return {names[match] for match in matching_names(list(names), patterns, key)}
