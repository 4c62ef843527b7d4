"""``model.kind = "card"``: a model too large to be trained here, known by its size and the
shapes of its dense layers.
"""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.model_cost import ModelCost, operation
from fedsim.learning.architecture import Shape, Tensor, matching
from fedsim.learning.models import PartedModel

if TYPE_CHECKING:
    from fedsim.learning.objectives import Objective
    from fedsim.learning.spec import Trainer

_NUMBER_BYTES = 2.0  # of a frozen number, on the device and on the wire

Width = Annotated[int, Field(ge=1, le=1_000_000)]


class ModelCard(PartedModel):
    """A transformer by its card: bytes, time and energy of its training, without weights; for
    ``learning = "off"``.

    A sample is a sequence of ``tokens``. A training step on it costs a forward pass (2 FLOPs a
    number), as much for the gradients of activations, and as much for those of the trained numbers,
    so three forward passes where all are trained.
    """

    learnable: ClassVar[bool] = False
    kind: Literal["card"] = "card"
    params: int = Field(ge=1, le=10**14)
    """numbers of the model."""
    layers: int = Field(ge=1, le=10_000)
    """layers like one another."""
    dense: dict[str, Annotated[list[Width], Field(min_length=2, max_length=2)]] = Field(
        min_length=1
    )
    """dense layers of each of them: name -> inputs and outputs.

    Adapters are beside these (``model.lora``).
    """
    tokens: int = Field(ge=1, le=10**9)
    """of a sample."""

    @model_validator(mode="after")
    def _adapters(self) -> Self:
        if self.lora is None and (self.train is not None or self.says_what_stays):
            raise ValueError("'train', 'keep' and 'send' name tensors of adapters; give 'lora' too")
        return self

    def _adapted(self) -> list[Tensor]:
        if self.lora is None:
            return []
        rank = self.lora.rank
        found = list[Tensor]()
        layers = {
            f"layers.{at}.{name}": sizes
            for at in range(self.layers)
            for name, sizes in self.dense.items()
        }
        chosen = matching(list(layers), self.lora.where, "model.lora.where", "layer")
        for name in filter(chosen.__contains__, layers):
            shapes = {"A": (rank, layers[name][0]), "B": (layers[name][1], rank)}
            found += [
                Tensor(f"{name}.lora_{at}", math.prod(shape), "Linear", shape)
                for at, shape in shapes.items()
            ]
        return found

    def trained(self, shape: Shape, classes: int) -> list[Tensor]:
        if self.lora is None:
            return [Tensor("model", self.params, "Transformer", (self.params,))]
        found = self._adapted()
        chosen = matching(
            [tensor.name for tensor in found],
            "*" if self.train is None else self.train,
            "model.train",
        )
        return [tensor for tensor in found if tensor.name in chosen]

    def base_bytes(self, shape: Shape, classes: int) -> float:
        if self.lora is None:
            return 0.0
        frozen = sum(tensor.size for tensor in self._adapted()) - self.parameters(shape, classes)
        return self.params * _NUMBER_BYTES + 4.0 * frozen

    def _passes(self) -> tuple[float, float]:
        """FLOPs of a forward pass over a sample, and of the gradients of the trained numbers."""
        token = 2.0 * self.params
        adapters = 2.0 * sum(tensor.size for tensor in self._adapted())
        trained = token if self.lora is None else 2.0 * self.parameters((), 0)
        return self.tokens * (token + adapters), self.tokens * trained

    def flops(self, shape: Shape, classes: int) -> float:
        forward, trained = self._passes()
        return 2.0 * forward + trained

    def cost(
        self, shape: Shape, classes: int, training: "Trainer", objective: "Objective | None" = None
    ) -> ModelCost:
        """Each pass reads all weights once. A token keeps 34 bytes a layer and output of the first
        dense layer until its backward pass (Korthikanti et al. 2022, in 16 bits, without the scores
        of attention).
        """
        forward, trained = self._passes()
        frozen = self.base_bytes((), 0)
        own = 4.0 * self.parameters((), 0)
        weights = frozen or self.params * _NUMBER_BYTES
        has_momentum = training.sgd.momentum > 0
        _, outputs = next(iter(self.dense.values()))
        return ModelCost(
            forward=operation(0.0, forward, weights + own),
            backward=operation(0.0, forward + trained, weights + 2 * own),
            update=operation(own / 2, 0.0, (8.0 if has_momentum else 3.0) * own),
            weights=weights + own,
            memory=frozen + (3.0 if has_momentum else 2.0) * own,
            memory_a_sample=self.tokens * 34.0 * self.layers * outputs,
        )
