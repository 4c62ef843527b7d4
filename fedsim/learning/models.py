"""``[model]``: fedsim's own layers, any ``nn.Module`` by import path, or only a size.

More models are in ``fedsim.toolbox.models``.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.imports import import_trusted, refuse_unless_allowed
from fedsim.common.kind_field import KindField
from fedsim.common.model_cost import ModelCost, operation
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.training import CutBy
from fedsim.common.units import Bytes
from fedsim.learning.architecture import (
    Architecture,
    Flatten,
    Layer,
    Linear,
    LoRA,
    MaxPool2d,
    Patterns,
    Shape,
    Tensor,
    convolution,
    dense,
    layers_of,
    matching_tensors,
)
from fedsim.learning.data.federated import TokenShape

if TYPE_CHECKING:
    from torch import nn

    from fedsim.learning.objectives import Objective
    from fedsim.learning.spec import Trainer

_TOOLBOX = "fedsim.toolbox.models"


class Model(Spec):
    """Base of the models that a scenario can choose (``model.kind``).

    A subclass says which tensors a model has, how large it is, and what its training costs.
    """

    learnable: ClassVar[bool] = True
    """Whether the model has weights, and not only a size."""

    kind: str

    @abstractmethod
    def tensors(self, shape: Shape, classes: int) -> list[Tensor]:
        """Describe the tensors that are trained and sent, in the order of their values in a model.

        A model is one array, [d], of the values of its trained parameters and float buffers, such
        as running statistics.

        Args:
            shape: shape of a sample.
            classes: count of classes.

        Raises:
            ScenarioError: the samples do not fit the model.
        """

    @abstractmethod
    def flops(self, shape: Shape, classes: int) -> float:
        """Return the FLOPs of a training step on one sample.

        Args:
            shape: shape of a sample.
            classes: count of classes.
        """

    @abstractmethod
    def cost(
        self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None
    ) -> ModelCost:
        """Return the cost of a training step: FLOPs, bytes and memory.

        Terms that strategies add to the loss, such as a proximal term, are not included.

        Args:
            shape: shape of a sample.
            classes: count of classes.
            training: the trainer, whose optimiser is included.
            objective: the objective, whose loss is included; None for cross-entropy.

        Raises:
            ScenarioError: the model cannot be trained on such samples.
        """

    def parameters(self, shape: Shape, classes: int) -> int:
        """Return d, the count of values of the tensors that are trained and sent."""
        return sum(tensor.size for tensor in self.tensors(shape, classes))

    def base_bytes(self, shape: Shape, classes: int) -> float:
        """Return the size of the frozen tensors (bytes), which each device downloads once."""
        return 0.0

    @property
    def has_kept_tensors(self) -> bool:
        """Whether the scenario sets ``model.keep`` or ``send``, which keep tensors on devices."""
        return False

    def cut(self, by: CutBy, size: float) -> Self:
        """Return a smaller version of this model, such as one for a slow device.

        The tensors of the smaller model are the first slices of this model's tensors.

        Args:
            by: the quantity that is reduced. ``width``: the share of channels and units. ``rank``:
                the rank of the low-rank adapters. ``adapters``: the rank of the adapters, and the
                key ``model.train`` is ignored, so that only the adapters are trained.
            size: the value of this quantity in the smaller model, at most its value in this model.

        Raises:
            ScenarioError: the model has no such quantity, or ``size`` is not possible for it.
        """
        allowed = "models with adapters (model.lora)"
        if by == "width":
            allowed = "fedsim's models of dense layers and convolutions"
        raise ScenarioError(
            f"strategy.sizes has the {by} of each device's model, and model.kind is "
            f"{self.kind!r}, which has none; allowed are {allowed}"
        )

    def with_last_layers(self, count: int, shape: Shape, classes: int) -> Self:
        """Return this model with only the last layers trained, and all other layers frozen.

        The result gives the costs of a device that has no memory to train more layers.

        Args:
            count: count of trained layers.
            shape: shape of a sample.
            classes: count of classes.

        Raises:
            ScenarioError: the model has no layers that could be trained without other layers.
        """
        raise ScenarioError(
            f"population.short_of_memory is 'fewer-layers', and model.kind is {self.kind!r}, "
            "which has no layers; allowed are 'fail' and 'refuse'"
        )


class PartedModel(Model):
    """Base of the models of which a scenario may freeze some tensors, or keep some on devices.

    Attributes:
        lora: low-rank adapters beside the model's dense layers; None: there are none.
        train: patterns of the trained tensors; None: all, or with ``lora`` the adapters. All other
            tensors are frozen, and each device downloads them once, with its first model.
        keep: patterns of trained tensors that stay on each device; ``CLASS:NAME`` matches the
            layer's class too, such as ``*Norm*:*`` for all tensors of norms.
        send: patterns of the tensors that are sent, given instead of ``keep``; all other tensors
            stay on each device.
    """

    lora: LoRA | None = None
    train: Patterns | None = None
    keep: Patterns | None = None
    send: Patterns | None = None

    @model_validator(mode="after")
    def _refuse_keep_with_send(self) -> Self:
        if self.keep is not None and self.send is not None:
            raise ValueError(
                "'keep' and 'send' both say which tensors leave a device; give one of them"
            )
        return self

    @property
    def has_kept_tensors(self) -> bool:
        return self.keep is not None or self.send is not None

    @property
    def has_frozen(self) -> bool:
        """Whether ``lora`` or ``train`` exclude some of the model's tensors from training."""
        return self.lora is not None or self.train is not None

    def cut(self, by: CutBy, size: float) -> Self:
        """Return the model with adapters of rank ``size``; ``by`` may be "rank" or "adapters"."""
        if by == "width" or self.lora is None:
            return super().cut(by, size)  # raises an error
        if size != int(size) or size > self.lora.rank:
            raise ScenarioError(
                f"strategy.sizes has a rank of {size:g}, and model.lora.rank is "
                f"{self.lora.rank}; allowed are whole numbers up "
                "to that"
            )
        update: dict[str, Any] = {"lora": self.lora.model_copy(update={"rank": int(size)})}
        if by == "adapters":
            update["train"] = None  # only the adapters are trained
        return self.model_copy(update=update)

    def with_last_layers(self, count: int, shape: Shape, classes: int) -> Self:
        names = []
        for layer in layers_of(self.trained(shape, classes))[-count:]:
            names += [tensor.name for tensor in layer]
        return self.model_copy(update={"train": names})

    @abstractmethod
    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        """Describe the trained tensors of the model in order, whether they are sent or kept.

        ``keep`` and ``send``, by which tensors stay on devices, are not applied.

        Args:
            shape: shape of a sample.
            classes: count of classes.
        """

    def tensors(self, shape: Shape, classes: int) -> list[Tensor]:
        tensors = self.trained(shape, classes)
        if self.send is not None:
            sent_names = matching_tensors(tensors, self.send, "model.send")
            return [tensor._replace(kept=tensor.name not in sent_names) for tensor in tensors]
        if self.keep is not None:
            kept_names = matching_tensors(tensors, self.keep, "model.keep")
            return [tensor._replace(kept=tensor.name in kept_names) for tensor in tensors]
        return tensors


class TorchModel(PartedModel):
    """Base of the models that torch can train; each builds an ``nn.Module``.

    Attributes:
        file: a ``.safetensors`` file with initial values of tensors by name, such as a file in
            ``models`` of a run folder. A relative path starts from ``data.root``, the working
            directory or ``$FEDSIM_DATA``.
    """

    file: str | None = None

    is_tried: ClassVar[bool] = True
    """Whether the module is tried before a run, to detect hidden state and random draws."""

    @abstractmethod
    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        """Build the torch module without adapters, and with no tensor frozen.

        Args:
            shape: shape of a sample.
            classes: count of classes.
            seed: seed of the initial weights; modules of fedsim's own layers ignore it, and have
                uninitialised weights.
        """

    def fitted(self, shape: Shape, classes: int) -> "nn.Module":
        """Build the torch module with its adapters and frozen tensors, without a run's weights.

        It serves to read the tensors' names and shapes, and to count costs. The values of its
        tensors must not be used: they may be uninitialised.

        Args:
            shape: shape of a sample.
            classes: count of classes.
        """
        from fedsim.learning.modules import adapt_and_freeze  # here, as torch's import is slow

        return adapt_and_freeze(self.plain_module(shape, classes), self.lora, self.train)

    def base_bytes(self, shape: Shape, classes: int) -> float:
        from fedsim.learning.modules import count_frozen_numbers

        return 4.0 * count_frozen_numbers(self.fitted(shape, classes))

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        from fedsim.learning.modules import real_shape, trained_tensors

        module = self.fitted(shape, classes)
        parts = dict(module.named_modules())
        parameters = {id(parameter) for parameter in module.parameters()}
        tensors = []
        for name, tensor in trained_tensors(module).items():
            part_name, _, _ = name.rpartition(".")
            layer = type(parts[part_name]).__name__.removeprefix("LoRA")
            tensor_shape = real_shape(tensor)
            size = math.prod(tensor_shape)
            is_buffer = id(tensor) not in parameters
            tensors.append(Tensor(name, size, layer, tensor_shape, is_buffer=is_buffer))
        return tensors

    def flops(self, shape: Shape, classes: int) -> float:
        from fedsim.learning.modules import step_flops

        return step_flops(self.fitted(shape, classes), shape, backward=self.has_frozen)

    def cost(
        self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None
    ) -> ModelCost:
        profile: Callable[..., ModelCost] = import_trusted(f"{_TOOLBOX}.profile:profile", "model")
        return profile(self.fitted(shape, classes), shape, training, objective)


class Layered(TorchModel):
    """Base of the models that are described by fedsim's own layers, and end in a dense layer.

    Attributes:
        width: factor of the channels and units of all layers but the last; the product is rounded
            up.
    """

    is_tried: ClassVar[bool] = False
    layers: ClassVar[tuple[Layer, ...]] = ()
    width: float = Field(default=1.0, gt=0.0, le=1.0)

    @property
    def body(self) -> tuple[Layer, ...]:
        """Layers of the model except the last one, which ``architecture`` adds.

        If none of them flattens the samples, ``architecture`` adds a ``Flatten`` for samples that
        are no vectors.
        """
        return self.layers

    def cut(self, by: CutBy, size: float) -> Self:
        if by != "width":
            return super().cut(by, size)
        if self.has_frozen or size > self.width:
            condition = " with frozen tensors" if self.has_frozen else ""
            raise ScenarioError(
                f"strategy.sizes has a width of {size:g}, and the model is of width {self.width:g}"
                f"{condition}; allowed are widths up to {self.width:g} of a model that "
                "is trained as a whole"
            )
        return self.model_copy(update={"width": size})

    def architecture(self, shape: Shape, classes: int) -> Architecture:
        """Return the chain of layers, with their sizes, for samples of a shape.

        Args:
            shape: shape of a sample.
            classes: count of classes, which is the width of the last layer.

        Raises:
            ScenarioError: samples are tokens, or too small for the layers.
        """
        if isinstance(shape, TokenShape):
            raise ScenarioError(
                f"model.kind is {self.kind!r}, which takes numbers, and samples are tokens; "
                "allowed are 'char-lstm', "
                "'transformer' and 'module'"
            )
        body = self.body
        if len(shape) > 1 and Flatten() not in body:
            body = (Flatten(), *body)
        return Architecture.of(shape, (*body, Linear(0, classes)), self.width)

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.solvers.reference import module_of

        return module_of(self.architecture(shape, classes))

    def fitted(self, shape: Shape, classes: int) -> "nn.Module":
        from fedsim.learning.modules import adapt_and_freeze
        from fedsim.learning.solvers.reference import module_of

        return adapt_and_freeze(
            module_of(self.architecture(shape, classes), "meta"), self.lora, self.train
        )

    def base_bytes(self, shape: Shape, classes: int) -> float:
        if not self.has_frozen:
            return 0.0
        return super().base_bytes(shape, classes)

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        if self.has_frozen:
            return super().trained(shape, classes)
        architecture = self.architecture(shape, classes)
        tensors = []
        for name, tensor_shape in architecture.tensors:
            position, _, _ = name.partition(".")
            layer = type(architecture.layers[int(position)]).__name__
            tensors.append(Tensor(name, math.prod(tensor_shape), layer, tensor_shape))
        return tensors

    def flops(self, shape: Shape, classes: int) -> float:
        if self.has_frozen:
            return super().flops(shape, classes)
        return float(self.architecture(shape, classes).flops)


class Logistic(Layered):
    """Multinomial logistic regression; 784 x 10 + 10 = 7,850 parameters on MNIST."""

    kind: Literal["logistic"] = "logistic"


class Perceptron(Layered):
    """Dense layers with ReLU between them.

    By default FlexCFL's MNIST-MLP, 784-128-10 with 101,770 parameters.

    Attributes:
        hidden: widths of the hidden layers.
    """

    kind: Literal["mlp"] = "mlp"
    hidden: list[Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default=[128], min_length=1)

    @property
    def body(self) -> tuple[Layer, ...]:
        return dense(*self.hidden)


def pooled(channels: int, kernel: int, *, same: bool = True) -> tuple[Layer, ...]:
    """Return descriptions of a convolution, its ReLU, and max pooling over windows of 2 x 2.

    Args:
        channels: count of output channels.
        kernel: side of the kernel (pixels).
        same: whether the convolution keeps the sides of the image.
    """
    return (*convolution(channels, kernel, same=same), MaxPool2d(2))


def two_convolutions(
    first: int, second: int, kernel: int, *widths: int, same: bool = True
) -> tuple[Layer, ...]:
    """Return descriptions of two pooled convolutions and dense layers, as in McMahan et al.'s CNN.

    Args:
        first: channels of the first convolution.
        second: channels of the second convolution.
        kernel: side of the kernels (pixels).
        *widths: units of the dense layers.
        same: whether convolutions keep the sides of the image.
    """
    return (
        *pooled(first, kernel, same=same),
        *pooled(second, kernel, same=same),
        Flatten(),
        *dense(*widths),
    )


class CNN5(Layered):
    """The CNN of McMahan et al. (2017) with a smaller head; 454,922 parameters on MNIST.

    Its layers are a 5x5 convolution to 32 channels, pooling, a 5x5 convolution to 64 channels,
    pooling, a dense layer of 128 units, and the output layer.
    """

    kind: Literal["cnn5"] = "cnn5"
    layers: ClassVar[tuple[Layer, ...]] = two_convolutions(32, 64, 5, 128)


class ModuleModel(TorchModel):
    """Any ``torch.nn.Module``, by the import path of its class or of a function that makes it.

    The module maps samples [n, *shape] (tokens: int64) to outputs [n, classes], or [n, T,
    vocabulary] if it predicts each of T tokens. If it has a method ``loss(outputs, y)``, with one
    loss a sample, [n], this replaces the objective's loss. It initialises itself, under a seed of
    the run. Its persistent buffers of floats (such as running statistics) are sent and averaged
    like parameters. Torch's random draws are repeatable. Other draws, and other state that a
    training leaves in the module, are errors.

    Attributes:
        factory: ``package.module:Name`` of a subclass of ``torch.nn.Module``, or of a function that
            is annotated to return one.
        args: keyword arguments of the class or function.
    """

    kind: Literal["module"] = "module"
    factory: str
    args: dict[str, Any] = Field(default_factory=dict)

    @field_validator("factory")
    @classmethod
    def _check_factory(cls, factory: str) -> str:
        refuse_unless_allowed(factory, "model.factory")
        return factory

    def plain_module(self, shape: Shape, classes: int, seed: int = 0) -> "nn.Module":
        from fedsim.learning.modules import build  # here, as torch's import is slow

        return build(self.factory, self.args, seed)


class SizeOnly(Model):
    """Model of which only size and cost are known, for runs with ``learning = "off"``.

    Attributes:
        bytes: size of the model, in float32 (bytes).
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

    def cost(
        self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None
    ) -> ModelCost:
        """Return the cost of a training step: FLOPs, bytes and memory.

        It is assumed that a step reads the weights twice, writes the gradients once, and reads and
        writes the optimiser's tensors.
        """
        weights = self.bytes
        flops = self.flops_per_sample
        # w.add_(g) reads two tensors and writes one; momentum adds v.mul_ (2) and v.add_ (3)
        traffic = 3.0 * weights
        memory = 2.0 * weights
        if training.sgd.momentum > 0:
            traffic = 8.0 * weights
            memory = 3.0 * weights
        forward = operation(0.0, flops / 3, weights)
        backward = operation(0.0, flops * 2 / 3, 2 * weights)
        update = operation(weights / 2, 0.0, traffic)
        return ModelCost(forward, backward, update, weights, memory, 0.0)


MODELS = Registry(
    "model",
    "",
    {
        **Registry.of("model", Logistic, Perceptron).known,
        "mnist-cnn": (
            f"{_TOOLBOX}.published:MnistCNN",
            "FlexCFL's MNIST-CNN: 3x3x32, pool, 3x3x64, pool, dropout 0.5, dense",
        ),
        "femnist-mlp": (
            f"{_TOOLBOX}.published:FemnistPerceptron",
            "FlexCFL's FEMNIST-MLP: 784-512-10",
        ),
        "femnist-cnn": (
            f"{_TOOLBOX}.published:FemnistCNN",
            "FlexCFL's FEMNIST-CNN: six convolutions, dense 128",
        ),
        "fashion-cnn": (
            f"{_TOOLBOX}.published:FashionCNN",
            "FlexCFL's FashionMNIST-CNN: two convolutions, dense 1024",
        ),
        "lcfl-cnn": (
            f"{_TOOLBOX}.published:LcflCNN",
            "LCFL's CNN for MNIST and FEMNIST: two convolutions, dense 256",
        ),
        "lcfl-cifar-cnn": (
            f"{_TOOLBOX}.published:LcflCifarCNN",
            "LCFL's CNN for CIFAR-10: two convolutions, dense 256",
        ),
        "cfl-cnn": (
            f"{_TOOLBOX}.published:CflCNN",
            "as many layers as CFL's CNN has: three convolutions, dense 128",
        ),
        "cata-cnn": (
            f"{_TOOLBOX}.published:CataCNN",
            "CATA-Fed's CNN: six convolutions, four dense layers",
        ),
        **Registry.of("model", CNN5).known,
        "leaf-cnn": (
            f"{_TOOLBOX}.published:LeafCNN",
            "LEAF's CNN for FEMNIST: two convolutions, dense 2048",
        ),
        "emnist-cnn": (
            f"{_TOOLBOX}.published:EmnistCNN",
            "the CNN of Reddi et al. for EMNIST: two convolutions, dense 128, dropout",
        ),
        "resnet18-gn": (
            f"{_TOOLBOX}.images:ResNet18",
            "ResNet-18 for small images, with group norm",
        ),
        "char-lstm": (
            f"{_TOOLBOX}.tokens:CharLSTM",
            "an LSTM over embedded tokens, with a dense layer at each",
        ),
        "transformer": (
            f"{_TOOLBOX}.tokens:Transformer",
            "a transformer with learned places, without dropout",
        ),
        **Registry.of("model", ModuleModel).known,
        "language": (
            f"{_TOOLBOX}.language:LanguageModel",
            "a causal language model of transformers (GPT-2, Llama), with adapters of peft",
        ),
        "card": (
            f"{_TOOLBOX}.card:ModelCard",
            'a transformer by its card, without weights; for learning = "off"',
        ),
        **Registry.of("model", SizeOnly).known,
    },
)
ModelSpec = Annotated[Model, KindField(MODELS)]
