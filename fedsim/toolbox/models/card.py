"""``model.kind = "card"``: a large model, given by its size and the shapes of its dense layers."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.model_cost import ModelCost, operation
from fedsim.learning.architecture import Shape, Tensor, matching_names
from fedsim.learning.models import PartedModel

if TYPE_CHECKING:
    from fedsim.learning.objectives import Objective
    from fedsim.learning.spec import Trainer

# bytes of activations that a layer keeps for the backward pass, per token and unit of its width
# (Korthikanti et al. 2022)
_ACTIVATION_BYTES = 34.0
_INPUT_BYTES = 2.0  # part of ``_ACTIVATION_BYTES`` that is for the layer's input, in 16 bits
# bytes per token and word of the vocabulary: a logit and a logarithmic probability in float32
_LOGIT_BYTES = 8.0
# placeholder for a sample's shape and the count of classes, on which no size of a card depends
_NO_DATA: tuple[Shape, int] = ((), 0)

Width = Annotated[int, Field(ge=1, le=1_000_000)]


class ModelCard(PartedModel):
    """A transformer known only by its sizes, for bytes, time and energy with ``learning = "off"``.

    A sample is a sequence of ``tokens`` tokens. For each token the forward pass costs 2 FLOPs per
    parameter, the gradients of activations cost as much again, and the gradients of weights cost 2
    FLOPs per trained parameter. A step thus costs three forward passes if all parameters are
    trained. If only adapters of the last layers are trained, gradients of activations are computed
    down to the first of these layers.

    Attributes:
        params: number of parameters.
        layers: number of equal transformer layers.
        dense: the dense layers within each transformer layer, as name -> [inputs, outputs].
            Adapters (``model.lora``) are added to these layers.
        tokens: number of tokens of a sample.
        vocabulary: number of outputs of each token, which need 8 bytes each until the backward
            pass; 0: they are not counted.
        bits: with adapters: bits of each of the ``params`` frozen parameters, in memory and in the
            message in which a device downloads them once; 4.127 for QLoRA's 4 bits with double
            quantisation. Without adapters: bits of each parameter in the copy that the forward and
            backward passes read. Trained parameters always have 32 bits.
        recompute: whether each transformer layer stores only its input, and the backward pass
            computes the layer again (gradient checkpointing). A step then costs up to one more
            forward pass.
    """

    learnable: ClassVar[bool] = False
    kind: Literal["card"] = "card"
    params: int = Field(ge=1, le=10**14)
    layers: int = Field(ge=1, le=10_000)
    dense: dict[str, Annotated[list[Width], Field(min_length=2, max_length=2)]] = Field(
        min_length=1
    )
    tokens: int = Field(ge=1, le=10**9)
    vocabulary: int = Field(default=0, ge=0, le=10**9)
    bits: float = Field(default=16.0, ge=1.0, le=32.0)
    recompute: bool = False

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        if self.lora is None and (self.train is not None or self.has_kept_tensors):
            raise ValueError("'train', 'keep' and 'send' name tensors of adapters; give 'lora' too")
        return self

    def with_last_layers(self, count: int, shape: Shape, classes: int) -> Self:
        if self.lora is None:
            raise ScenarioError(
                "population.short_of_memory is 'fewer-layers', and model.kind is 'card' without "
                "adapters; allowed with model.lora"
            )
        return super().with_last_layers(count, shape, classes)

    def _adapter_tensors(self) -> list[Tensor]:
        """Return the two matrices, A and B, of each adapter (``model.lora``) of a dense layer.

        Empty if the model has no adapters.
        """
        if self.lora is None:
            return []
        rank = self.lora.rank
        layers: dict[str, list[int]] = {}  # name of a dense layer -> counts of inputs and outputs
        for number in range(self.layers):
            for name, sizes in self.dense.items():
                layers[f"layers.{number}.{name}"] = sizes
        adapted = matching_names(list(layers), self.lora.where, "model.lora.where", "layer")
        tensors = []
        for name, (inputs, outputs) in layers.items():
            if name in adapted:
                tensors.append(_adapter(f"{name}.lora_A", (rank, inputs)))
                tensors.append(_adapter(f"{name}.lora_B", (outputs, rank)))
        return tensors

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        if self.lora is None:
            return [Tensor("model", self.params, "Transformer", (self.params,))]
        tensors = self._adapter_tensors()
        patterns = "*" if self.train is None else self.train
        trained = matching_names([tensor.name for tensor in tensors], patterns, "model.train")
        return [tensor for tensor in tensors if tensor.name in trained]

    def base_bytes(self, shape: Shape, classes: int) -> float:
        if self.lora is None:
            return 0.0
        frozen = self._count_adapter_numbers() - self.parameters(shape, classes)
        return math.ceil(self.params * self.bits / 8) + 4.0 * frozen

    def _count_adapter_numbers(self) -> int:
        return sum(tensor.size for tensor in self._adapter_tensors())

    def _forward_and_weight_flops(self) -> tuple[float, float]:
        """Return FLOPs per sample: of the forward pass, and of the gradients of trained weights."""
        token = 2.0 * self.params
        adapters = 2.0 * self._count_adapter_numbers()
        trained = token if self.lora is None else 2.0 * self.parameters(*_NO_DATA)
        return self.tokens * (token + adapters), self.tokens * trained

    def _count_backward_layers(self) -> int:
        """Return how many layers the backward pass traverses, the first trained layer to the last."""
        first_trained = 0
        if self.lora is not None:
            trained = self.trained(*_NO_DATA)
            first_trained = min(int(tensor.name.split(".")[1]) for tensor in trained)
        return self.layers - first_trained

    def _backward_flops(self) -> float:
        """Return the FLOPs per sample of the backward pass, by which gradients are computed.

        These are the gradients of activations and of trained weights.
        """
        forward, trained = self._forward_and_weight_flops()
        return forward * self._activation_gradient_ratio() + trained

    def _activation_gradient_ratio(self) -> float:
        """Return the FLOPs of the gradients of activations, as a multiple of a forward pass's FLOPs.

        With ``recompute`` the FLOPs include a second forward pass of the layers that the backward
        pass traverses.
        """
        passes = 2.0 if self.recompute else 1.0
        return passes * (self._count_backward_layers() / self.layers)

    def flops(self, shape: Shape, classes: int) -> float:
        forward, trained = self._forward_and_weight_flops()
        return forward * (1.0 + self._activation_gradient_ratio()) + trained

    def cost(
        self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None
    ) -> ModelCost:
        """Return the cost of a training step: FLOPs, bytes moved, and memory.

        The forward and the backward pass read all weights once each. The width of a transformer
        layer is the count of outputs of the first entry of ``dense``. Until its backward pass a
        layer stores 34 bytes for each token and unit of width (Korthikanti et al. 2022, in 16 bits,
        without the scores of attention). With ``recompute`` a layer stores 2 bytes, and only the
        layer that is being computed again needs 34 bytes. Layers before the first trained layer
        store nothing.

        Args:
            shape: not used, as the card gives the count of tokens of a sample.
            classes: not used.
            training: the trainer; its momentum and its optimiser's state need memory and traffic.
            objective: not used.
        """
        # sizes in bytes; trained weights, their gradients and the optimiser's state are float32
        forward, _ = self._forward_and_weight_flops()
        frozen = self.base_bytes(*_NO_DATA)
        trained = 4.0 * self.parameters(*_NO_DATA)
        # without adapters no tensor is frozen, and the passes read the trained weights in ``bits``
        # bits
        weights = frozen or math.ceil(self.params * self.bits / 8)
        shapes = {tensor.name: tensor.shape for tensor in self.trained(shape, classes)}
        state = 4.0 * training.state_numbers(shapes)
        # the update reads weights and gradients, writes weights, and reads and writes its state
        traffic = 3.0 * trained + 2.0 * state
        training_memory = 2.0 * trained + state
        if training.sgd.momentum > 0:
            # arrays read or written: 2 to scale the momentum, 3 to add the gradient to it, and 3
            # to move the weights
            traffic = 8.0 * trained
            training_memory = 3.0 * trained
        return ModelCost(
            forward=operation(0.0, forward, weights + trained),
            backward=operation(0.0, self._backward_flops(), weights + 2 * trained),
            update=operation(trained / 2, 0.0, traffic),
            weights=weights + trained,
            memory=frozen + training_memory,
            memory_a_sample=self.tokens * self._token_bytes(),
        )

    def _token_bytes(self) -> float:
        """Return the memory for a token's activations until the backward pass (bytes)."""
        _, width = next(iter(self.dense.values()))
        bytes_per_unit = _ACTIVATION_BYTES * self._count_backward_layers()
        if self.recompute:
            bytes_per_unit = _INPUT_BYTES * self._count_backward_layers() + _ACTIVATION_BYTES
        return width * bytes_per_unit + _LOGIT_BYTES * self.vocabulary


def _adapter(name: str, shape: Shape) -> Tensor:
    return Tensor(name, math.prod(shape), "Linear", shape)
