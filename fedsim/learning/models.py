"""``[model]``: the models of the literature, any ``nn.Module`` by import path, or a bare size.

The published parameter counts are tests. Convolutions pad symmetrically; where Keras would pad one row more at the end than
at the start (even inputs, stride 2), shapes and counts are the same and the values are shifted by a pixel.
"""

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedsim.data.federated import TokenShape
from fedsim.errors import ScenarioError
from fedsim.language.imports import refuse_unless_allowed
from fedsim.language.registry import Registry
from fedsim.language.units import Bytes
from fedsim.learning.architecture import (
    Architecture,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPool2d,
    Shape,
    Tensor,
    convolution,
    dense,
)
from fedsim.learning.card import ModelCard
from fedsim.learning.model import Model, PartedModel
from fedsim.model_cost import ModelCost
from fedsim.training import CutBy

if TYPE_CHECKING:
    from torch import nn

    from fedsim.learning.objectives import Objective
    from fedsim.learning.spec import Trainer


class TorchModel(PartedModel):
    """A model that torch can train.

    Attributes:
        file: a ``.safetensors`` file with the first values of tensors, by name, as a run folder has it in ``models``; tensors
            that are not in it are drawn. A relative path starts as that of data does.
    """

    file: str | None = None

    @abstractmethod
    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        """The module without adapters, with all of its tensors trained; of layers of ours the weights are arbitrary."""

    def fitted(self, shape: Shape, classes: int) -> "nn.Module":
        """The module as it is trained, with arbitrary weights."""
        from fedsim.learning.modules import fit  # loads torch

        return fit(self.plain_module(shape, classes), self.lora, self.train)

    def base_bytes(self, shape: Shape, classes: int) -> float:
        from fedsim.learning.modules import frozen_numbers

        return 4.0 * frozen_numbers(self.fitted(shape, classes))

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        from fedsim.learning.modules import numbers

        module = self.fitted(shape, classes)
        layers = {name: type(part).__name__.removeprefix("LoRA") for name, part in module.named_modules()}
        tensors = numbers(module).items()
        return [Tensor(name, each.numel(), layers[name.rpartition(".")[0]], tuple(each.shape)) for name, each in tensors]

    def flops(self, shape: Shape, classes: int) -> float:
        from fedsim.learning.modules import step_flops

        return step_flops(self.fitted(shape, classes), shape, backward=self.has_frozen)

    def cost(self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None) -> ModelCost:
        from fedsim.learning.profile import profile

        return profile(self.fitted(shape, classes), shape, classes, training, objective)


class Layered(TorchModel):
    """Layers of ours, with a dense one at the end.

    Attributes:
        width: share of the channels and units of all layers but the last, rounded up.
    """

    layers: ClassVar[tuple[Layer, ...]] = ()
    width: float = Field(default=1.0, gt=0.0, le=1.0)

    @property
    def body(self) -> tuple[Layer, ...]:
        """The layers before the last; samples that are no vectors are flattened first where no layer does."""
        return self.layers

    def cut(self, by: CutBy, size: float) -> Self:
        if by != "width":
            return super().cut(by, size)
        if self.has_frozen or size > self.width:
            raise ScenarioError(
                f"strategy.sizes has a width of {size:g}, and the model is of width {self.width:g}"
                f"{' with frozen tensors' if self.has_frozen else ''}; allowed are widths up to {self.width:g} of a model that "
                "is trained as a whole"
            )
        return self.model_copy(update={"width": size})

    def architecture(self, shape: Shape, classes: int) -> Architecture:
        """The layers for samples of ``shape``."""
        if isinstance(shape, TokenShape):
            raise ScenarioError(
                f"model.kind is {self.kind!r}, which takes numbers, and samples are tokens; allowed are 'char-lstm', "
                "'transformer' and 'module'"
            )
        body = self.body
        if len(shape) > 1 and Flatten() not in body:
            body = (Flatten(), *body)
        return Architecture.of(shape, (*body, Linear(0, classes)), self.width)

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.solvers.reference import module_of

        return module_of(self.architecture(shape, classes))

    def base_bytes(self, shape: Shape, classes: int) -> float:
        return super().base_bytes(shape, classes) if self.has_frozen else 0.0

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        if self.has_frozen:
            return super().trained(shape, classes)
        architecture = self.architecture(shape, classes)
        layers = [type(layer).__name__ for _, layer in architecture.trained() for _ in ("weight", "bias")]
        named = zip(architecture.tensors, layers, strict=True)
        return [Tensor(name, math.prod(own), layer, own) for (name, own), layer in named]

    def flops(self, shape: Shape, classes: int) -> float:
        return super().flops(shape, classes) if self.has_frozen else float(self.architecture(shape, classes).flops)


class Logistic(Layered):
    """Multinomial logistic regression; 784 x 10 + 10 = 7,850 parameters on MNIST."""

    kind: Literal["logistic"] = "logistic"


class Perceptron(Layered):
    """Dense layers with ReLU between; by default 784-128-10 with 101,770 parameters (FlexCFL's MNIST-MLP).

    Attributes:
        hidden: widths of the hidden layers.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: list[Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default=[128], min_length=1)

    @property
    def body(self) -> tuple[Layer, ...]:
        return dense(*self.hidden)


class FemnistPerceptron(Layered):
    """FlexCFL's FEMNIST-MLP: 784-512-10, 407,050 parameters."""

    kind: Literal["femnist-mlp"] = "femnist-mlp"
    layers: ClassVar[tuple[Layer, ...]] = dense(512)


def _pooled(channels: int, kernel: int, *, same: bool = True) -> tuple[Layer, ...]:
    return (*convolution(channels, kernel, same=same), MaxPool2d(2))


def _two(first: int, second: int, kernel: int, *widths: int, same: bool = True) -> tuple[Layer, ...]:
    """Two convolutions of so many channels, each pooled, and dense layers: McMahan et al.'s shape."""
    return (*_pooled(first, kernel, same=same), *_pooled(second, kernel, same=same), Flatten(), *dense(*widths))


def _block(channels: int) -> tuple[Layer, ...]:
    return (*convolution(channels, 3, same=False) * 2, *convolution(channels, 5, 2), Dropout(0.4))


def _pair(channels: int) -> tuple[Layer, ...]:
    return (*convolution(channels, 3) * 2, MaxPool2d(2), Dropout(0.2))


class MnistCNN(Layered):
    """FlexCFL's MNIST-CNN: 3x3x32, pool, 3x3x64, pool, dropout 0.5, dense; 50,186 parameters."""

    kind: Literal["mnist-cnn"] = "mnist-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (*_two(32, 64, 3), Dropout(0.5))


class FemnistCNN(Layered):
    """FlexCFL's FEMNIST-CNN: six convolutions, two of them with stride 2, and dense 128; 325,578 parameters."""

    kind: Literal["femnist-cnn"] = "femnist-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (*_block(32), *_block(64), Flatten(), *dense(128), Dropout(0.4))


class FashionCNN(Layered):
    """FlexCFL's FashionMNIST-CNN: 5x5x32, pool, 5x5x64, pool, dense 1024; 3,274,634 parameters."""

    kind: Literal["fashion-cnn"] = "fashion-cnn"
    layers: ClassVar[tuple[Layer, ...]] = _two(32, 64, 5, 1024)


class LcflCNN(Layered):
    """LCFL's CNN for MNIST and FEMNIST: 5x5x16, pool, 5x5x32, pool, dense 256; 417,482 parameters."""

    kind: Literal["lcfl-cnn"] = "lcfl-cnn"
    layers: ClassVar[tuple[Layer, ...]] = _two(16, 32, 5, 256)


class LcflCifarCNN(Layered):
    """LCFL's CNN for CIFAR-10: 5x5x32 and 5x5x84 without padding, pooled, dense 256; 610,142 parameters."""

    kind: Literal["lcfl-cifar-cnn"] = "lcfl-cifar-cnn"
    layers: ClassVar[tuple[Layer, ...]] = _two(32, 84, 5, 256, same=False)


class CflCNN(Layered):
    """As many layers as CFL's CNN has: 3x3x32, 3x3x64 and 3x3x64, each pooled, dense 128; 188,810 parameters on CIFAR-10.

    The paper says no more of it than that there are five; their widths are our choice.
    """

    kind: Literal["cfl-cnn"] = "cfl-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (*_pooled(32, 3), *_pooled(64, 3) * 2, Flatten(), *dense(128))


class CataCNN(Layered):
    """CATA-Fed's CNN: three pairs of 3x3 convolutions (32, 64, 128), each pooled with dropout 0.2, dense 1024, 512, 256.

    3,043,882 parameters on CIFAR-10, 2,125,802 on MNIST. Padding and places of pooling are our reading of the paper.
    """

    kind: Literal["cata-cnn"] = "cata-cnn"
    layers: ClassVar[tuple[Layer, ...]] = (*_pair(32), *_pair(64), *_pair(128), Flatten(), *dense(1024, 512, 256))


class CNN5(Layered):
    """McMahan et al.'s shape with a smaller head: 5x5x32, pool, 5x5x64, pool, dense 128; 454,922 parameters on MNIST."""

    kind: Literal["cnn5"] = "cnn5"
    layers: ClassVar[tuple[Layer, ...]] = _two(32, 64, 5, 128)


class _OfTokens(TorchModel):
    """A built-in model of tokens."""

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.modules import seeded

        if not isinstance(shape, TokenShape) or len(shape) != 1:
            raise ScenarioError(
                f"model.kind is {self.kind!r}, which takes sequences of tokens, and samples are of shape {tuple(shape)}"
                f"{' tokens' if isinstance(shape, TokenShape) else ' numbers'}"
            )
        return seeded(lambda: self.made(shape, classes), seed)

    @abstractmethod
    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        """The module with freshly drawn weights."""


class CharLSTM(_OfTokens):
    """An LSTM over embedded tokens, with a dense layer at each; 23,397 parameters by default on 61 characters.

    With ``hidden = 256`` and ``layers = 2`` that of TensorFlow Federated's Shakespeare (820,522 parameters on 90 characters),
    with the second vector of biases that torch's LSTM has: 2,048 more.

    Attributes:
        embedding: numbers of an embedded token.
        hidden: units of each layer.
        layers: one above the other.
    """

    kind: Literal["char-lstm"] = "char-lstm"
    embedding: int = Field(default=8, ge=1, le=100_000)
    hidden: int = Field(default=64, ge=1, le=100_000)
    layers: int = Field(default=1, ge=1, le=100)

    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        from fedsim.learning.sequences import LSTMModule

        return LSTMModule(shape, outputs, self.embedding, self.hidden, self.layers)


class Transformer(_OfTokens):
    """A transformer with learned places and norms before each block, without dropout (Radford et al. 2019, small).

    For the next token attention sees earlier ones alone.

    Attributes:
        hidden: numbers of a token; four times as many within a block.
        heads: of attention; divides ``hidden``.
        layers: blocks.
    """

    kind: Literal["transformer"] = "transformer"
    hidden: int = Field(default=32, ge=1, le=100_000)
    heads: int = Field(default=4, ge=1, le=1_000)
    layers: int = Field(default=2, ge=1, le=1_000)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"'hidden' is {self.hidden} and 'heads' {self.heads}; heads must divide it")
        return self

    def made(self, shape: TokenShape, outputs: int) -> "nn.Module":
        from fedsim.learning.sequences import TransformerModule

        return TransformerModule(shape, outputs, self.hidden, self.heads, self.layers)


class ModuleModel(TorchModel):
    """Any ``torch.nn.Module``, by the import path of something that makes one.

    The module maps samples [n, *shape] (tokens: int64) to outputs [n, classes], or [n, T, vocabulary] where each token asks for
    one. Its loss is that of the objective unless it has a method ``loss(outputs, y)`` that returns one loss a sample, [n]. It
    initialises itself, under a seed of the run's. Dropout is replaced by one whose masks are keyed; whatever else draws random
    numbers in training is refused. Running statistics of batch norms are numbers of the model like its parameters: they travel
    and are averaged (``fedbn`` keeps them), but no gradient moves them.

    Attributes:
        factory: ``package.module:Name`` of a subclass of ``torch.nn.Module``, or of a function that is annotated to return one.
        args: keyword arguments for it.
    """

    kind: Literal["module"] = "module"
    factory: str
    args: dict[str, Any] = Field(default_factory=dict)

    @field_validator("factory")
    @classmethod
    def _allowed(cls, factory: str) -> str:
        refuse_unless_allowed(factory, "model.factory")
        return factory

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.modules import build  # loads torch

        return build(self.factory, self.args, seed)


class SizeOnly(Model):
    """A model of which only the size and the cost are known; for ``learning = "off"``.

    Attributes:
        bytes: its size in float32.
        flops_per_sample: FLOPs of a training step on one sample.
    """

    learnable: ClassVar[bool] = False
    kind: Literal["size"] = "size"
    bytes: Bytes
    flops_per_sample: float = Field(default=1e6, ge=1.0, le=1e30)

    def parameters(self, shape: Shape, classes: int) -> int:
        return round(self.bytes / 4)

    def tensors(self, shape: Shape, classes: int) -> list[Tensor]:
        return []

    def flops(self, shape: Shape, classes: int) -> float:
        return self.flops_per_sample

    def cost(self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None) -> ModelCost:
        return ModelCost.of_size(self.bytes, self.flops_per_sample, momentum=training.sgd.momentum > 0)


_VECTORS = (Logistic, Perceptron, MnistCNN, FemnistPerceptron, FemnistCNN, FashionCNN, LcflCNN, LcflCifarCNN, CflCNN, CataCNN)
MODELS = Registry.of("model", *_VECTORS, CNN5, CharLSTM, Transformer, ModuleModel, ModelCard, SizeOnly)
ModelSpec = Annotated[Model, MODELS]
