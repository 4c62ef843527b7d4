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
from fedsim.toolbox.strategies.sizes import CutModels, CutParams, by_name


class HetLoRAParams(CutParams):
    """Keys of ``[strategy]`` for HetLoRA.

    ``sizes`` are the ranks of devices' adapters. The largest allowed rank is ``model.lora.rank``.
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
    weights = by_name(update.astype(np.float64), shapes)
    square = 0.0
    for name in weights:
        partner = name.replace(".lora_B", ".lora_A")
        if partner != name and partner in weights:
            product = weights[name] @ weights[partner]
            square += float(np.square(product).sum())
    return float(np.sqrt(square))


class HetLoRA(CutModels):
    """Adapters of different ranks.

    Source: Cho et al., "Heterogeneous LoRA for federated fine-tuning of on-device foundation
    models" (EMNLP 2024, arXiv 2401.06432). An adapter is a pair of low-rank matrices A and B of a
    layer. A device of rank r receives the first r rows of each A and the first r columns of each B.
    Updates are filled up with zeros and averaged, each weighted by the norm of B A, so that a small
    rank counts for less. The self-pruning of ranks is left out.

    Each client receives and sends the parameters of its rank (``model`` and ``update``, 4 bytes
    each).
    """

    Params = HetLoRAParams

    async def weighed(self, entries: Sequence[Entry]) -> list[float]:
        models = self.server.models
        trained = [entry["update"] for entry in entries]
        if not models.learns:
            await models.note_skipped(trained)
            return self.weights(entries)
        tensors = self.setting.tensors()
        updates = await models.values(trained)
        norms = np.array([norm(update, tensors) for update in updates])
        norms[~np.isfinite(norms)] = 0.0
        shares: list[float] = norms.tolist()
        total = sum(shares)
        if not total:
            return self.weights(entries)
        return [share / total for share in shares]

    def joined(self, model: Ref, entries: Sequence[Entry], weights: Sequence[float]) -> Ref:
        updates = [entry["update"] for entry in entries]
        return self.server.models.mix(list(zip(updates, weights, strict=True)), otherwise=model)
