"""HetLoRA: adapters whose rank differs between devices (Cho et al., 2024)."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.common.training import CutBy
from fedsim.learning.architecture import Tensor
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.toolbox.strategies.sizes import CutModels, CutParams, split_by_tensor


class HetLoRAParams(CutParams):
    """Keys of ``[strategy]`` for HetLoRA.

    ``sizes`` are the ranks of devices' low-rank adapters. The largest allowed rank is
    ``model.lora.rank``.
    """

    by: ClassVar[CutBy] = "rank"
    kind: Literal["hetlora"] = "hetlora"
    sizes: dict[str, float] | list[float] = Field(default=[1.0, 2.0, 4.0], min_length=1)

    @model_validator(mode="after")
    def _check_aggregation(self) -> Self:
        if self.aggregation.kind != "weighted":
            raise ValueError(
                f"'aggregation' is {self.aggregation.kind!r}, and hetlora weighs updates by "
                "the norms of their adapters; leave it out"
            )
        return self


def norm(update: NDArray[np.float32], tensors: Sequence[Tensor]) -> float:
    """Compute the norm of the products B A of a model's low-rank adapters, over all layers.

    Args:
        update: the model, flat, [d]. A and B are the tensors ``.lora_A`` and ``.lora_B`` of a
            layer.
        tensors: the tensors of the model, in the order of a flat model.

    Returns:
        The Frobenius norm of all products together, computed in float64.
    """
    shapes = [(tensor.name, tensor.shape) for tensor in tensors]
    weights = split_by_tensor(update.astype(np.float64), shapes)
    squared_norm = 0.0
    for b_name in weights:
        a_name = b_name.replace(".lora_B", ".lora_A")
        is_adapter = a_name != b_name and a_name in weights
        if is_adapter:
            product = weights[b_name] @ weights[a_name]
            squared_norm += float(np.square(product).sum())
    return float(np.sqrt(squared_norm))


class HetLoRA(CutModels):
    """Adapters of different ranks.

    Each device trains low-rank adapters of its rank. The server averages the adapters, weighted by
    their norms.

    Source: Cho et al., "Heterogeneous LoRA for federated fine-tuning of on-device foundation
    models" (EMNLP 2024, arXiv 2401.06432). An adapter is a pair of low-rank matrices A and B of a
    layer. A device of rank r receives the first r rows of each A and the first r columns of each B.
    Updates are filled up with zeros and averaged, each weighted by the norm of B A, so that a small
    rank counts for less. The self-pruning of ranks is left out.

    Each client receives and sends the parameters of its rank (``model`` and ``update``, 4 bytes
    each).
    """

    Params = HetLoRAParams

    async def weigh_updates(self, entries: Sequence[Entry]) -> list[float]:
        """Return the weight of each update, in proportion to the norm of its adapters.

        This is the Frobenius norm of the products B A of all layers (``norm``). An update that is
        not finite has the weight 0. In runs without learning, and if all norms are 0, the weights
        are by ``aggregation``.

        Args:
            entries: the updates of the round.

        Returns:
            Weights that sum to 1.
        """
        models = self.server.models
        updates = [entry["update"] for entry in entries]
        if not models.learns:
            # for the memory forecast of ``fedsim check``, whose trial has no weights
            await models.note_skipped(updates)
            return self.weights(entries)
        tensors = self.setting.tensors()
        values = await models.values(updates)
        norms = np.array([norm(value, tensors) for value in values])
        norms[~np.isfinite(norms)] = 0.0
        weights: list[float] = norms.tolist()
        total = sum(weights)
        if not total:
            return self.weights(entries)
        return [weight / total for weight in weights]

    def combine_updates(
        self, model: Ref, entries: Sequence[Entry], weights: Sequence[float]
    ) -> Ref:
        updates = [entry["update"] for entry in entries]
        return self.server.models.mix(list(zip(updates, weights, strict=True)), otherwise=model)
