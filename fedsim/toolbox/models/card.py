"""``model.kind = "card"``: a large model, given by its size and the shapes of its dense layers."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.model_cost import ModelCost, operation
from fedsim.learning.architecture import Shape, Tensor, matching
from fedsim.learning.models import PartedModel

if TYPE_CHECKING:
    from fedsim.learning.objectives import Objective
    from fedsim.learning.spec import Trainer

_NUMBER_BYTES = 2.0  # bytes of a frozen parameter, in memory and in messages

Width = Annotated[int, Field(ge=1, le=1_000_000)]


class ModelCard(PartedModel):
    """A transformer by its card, for bytes, time and energy of training with ``learning = "off"``.

    A sample is a sequence of ``tokens``. A forward pass costs 2 FLOPs a number and token. The
    gradients of activations cost as much, and the gradients of the trained numbers as much for each
    trained number. If all numbers are trained, a step costs three forward passes.
    """

    learnable: ClassVar[bool] = False
    kind: Literal["card"] = "card"
    params: int = Field(ge=1, le=10**14)
    """numbers of the model."""
    layers: int = Field(ge=1, le=10_000)
    """number of equal layers."""
    dense: dict[str, Annotated[list[Width], Field(min_length=2, max_length=2)]] = Field(
        min_length=1
    )
    """dense layers of each layer: name -> inputs and outputs.

    Adapters (``model.lora``) are further layers.
    """
    tokens: int = Field(ge=1, le=10**9)
    """number of tokens of a sample."""

    @model_validator(mode="after")
    def _adapters(self) -> Self:
        if self.lora is None and (self.train is not None or self.says_what_stays):
            raise ValueError("'train', 'keep' and 'send' name tensors of adapters; give 'lora' too")
        return self

    def _adapters_of_layers(self) -> list[Tensor]:
        if self.lora is None:
            return []
        rank = self.lora.rank
        layers: dict[str, list[int]] = {}
        for number in range(self.layers):
            for name, sizes in self.dense.items():
                layers[f"layers.{number}.{name}"] = sizes
        adapted = matching(list(layers), self.lora.where, "model.lora.where", "layer")
        tensors = []
        for name, (inputs, outputs) in layers.items():
            if name in adapted:
                tensors.append(_adapter(f"{name}.lora_A", (rank, inputs)))
                tensors.append(_adapter(f"{name}.lora_B", (outputs, rank)))
        return tensors

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        if self.lora is None:
            return [Tensor("model", self.params, "Transformer", (self.params,))]
        tensors = self._adapters_of_layers()
        patterns = "*" if self.train is None else self.train
        trained = matching([tensor.name for tensor in tensors], patterns, "model.train")
        return [tensor for tensor in tensors if tensor.name in trained]

    def base_bytes(self, shape: Shape, classes: int) -> float:
        if self.lora is None:
            return 0.0
        frozen = self._adapter_numbers() - self.parameters(shape, classes)
        return self.params * _NUMBER_BYTES + 4.0 * frozen

    def _adapter_numbers(self) -> int:
        return sum(tensor.size for tensor in self._adapters_of_layers())

    def _passes(self) -> tuple[float, float]:
        """Return one sample's FLOPs of the forward pass, and of the trained weights' gradients."""
        token = 2.0 * self.params
        adapters = 2.0 * self._adapter_numbers()
        trained = token if self.lora is None else 2.0 * self.parameters((), 0)
        return self.tokens * (token + adapters), self.tokens * trained

    def flops(self, shape: Shape, classes: int) -> float:
        forward, trained = self._passes()
        return 2.0 * forward + trained

    def cost(
        self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None
    ) -> ModelCost:
        """The cost of one step, in which each pass reads all weights once.

        A token keeps 34 bytes a layer and output of the first dense layer until its backward pass
        (Korthikanti et al. 2022, in 16 bits, without the scores of attention).
        """
        forward, gradients = self._passes()
        frozen = self.base_bytes((), 0)
        trained = 4.0 * self.parameters((), 0)
        weights = frozen or self.params * _NUMBER_BYTES
        traffic = 3.0 * trained
        optimiser = 2.0 * trained
        if training.sgd.momentum > 0:
            traffic = 8.0 * trained
            optimiser = 3.0 * trained
        _, outputs = next(iter(self.dense.values()))
        return ModelCost(
            forward=operation(0.0, forward, weights + trained),
            backward=operation(0.0, forward + gradients, weights + 2 * trained),
            update=operation(trained / 2, 0.0, traffic),
            weights=weights + trained,
            memory=frozen + optimiser,
            memory_a_sample=self.tokens * 34.0 * self.layers * outputs,
        )


def _adapter(name: str, shape: Shape) -> Tensor:
    return Tensor(name, math.prod(shape), "Linear", shape)
