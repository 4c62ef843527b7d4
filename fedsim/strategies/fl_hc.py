"""FL+HC: hierarchical clusters of what training changes in the common model (Briggs et al., 2020)."""

from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.strategies.clustering.algorithms import Labels, Linkage, agglomerative, clusters_below
from fedsim.strategies.clustering.similarity import Matrix, Rows, diff_norm, gradient_cosine
from fedsim.strategies.lcfl import LCFL, Found, LCFLParams
from fedsim.strategies.parts.aggregation import AggregationSpec, Weighted


class FLHCParams(LCFLParams):
    """What FL+HC takes; its rounds before the clustering are LCFL's federated warm-up.

    Attributes:
        metric: how far apart two updates are: by the sum of absolute differences (``l1``), by their distance (``l2``), or 1
            minus their cosine (``cosine``).
        linkage: how far apart two clusters are (``agglomerative``); ``ward`` goes with ``l2``.
        threshold: clusters are merged as long as they are not farther apart. None: until ``groups`` are left.
        groups: see there; with a threshold the least number of devices that must have come back.
        aggregation: weighted by samples, as in the paper.
    """

    kind: Literal["fl-hc"] = "fl-hc"  # type: ignore[assignment]
    metric: Literal["l1", "l2", "cosine"] = "l1"  # type: ignore[assignment]
    linkage: Linkage = "complete"
    threshold: float | None = Field(default=None, gt=0.0)
    clustering: Literal["hierarchical"] = "hierarchical"
    warmup: Literal["federated"] = "federated"
    aggregation: AggregationSpec = Weighted()

    @model_validator(mode="after")
    def _ward_is_euclidean(self) -> Self:
        if self.linkage == "ward" and self.metric != "l2":
            raise ValueError(
                f"'linkage' is 'ward', for Euclidean distances alone; 'metric' is {self.metric!r}, allowed is 'l2'"
            )
        return self


def update_distances(updates: Rows, metric: Literal["l1", "l2", "cosine"]) -> Matrix:
    """How far apart ``updates`` [n, d] are, float64 [n, n]."""
    if metric == "l1":
        from scipy.spatial.distance import pdist, squareform

        distance: Matrix = squareform(pdist(updates, "cityblock"))
        return distance
    return diff_norm(updates) if metric == "l2" else gradient_cosine(updates)


class FLHC(LCFL):
    """Federated learning with hierarchical clustering of local updates.

    Source: Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local updates to improve training on
    non-IID data" (IJCNN 2020), Algorithm 1.

    After ``warmup_rounds`` rounds of FedAvg every device that is there receives the global model, trains, and sends its update
    (d parameters each way). The differences from the global model are clustered, once and for all, and each cluster goes on by
    FedAvg from the global model.

    All else, and what becomes of those who were away and of newcomers, is as in ``LCFL``, of which it is another distance.
    """

    Params: ClassVar[type[LCFLParams]] = FLHCParams
    params: FLHCParams

    async def _gather(self) -> None:
        """All begin at the same model: what was sent in the rounds before does not count."""
        devices = self.server.devices
        self.state |= {"own": [None] * devices, "began": [None] * devices}
        await super()._gather()

    async def _distances(self, devices: list[int]) -> Found:
        """How far apart the updates are, without those that are not finite."""
        state = self.state
        models = await self.server.values([state["own"][device] for device in devices])
        starts = await self.server.values([state["began"][device] for device in devices])
        updates = np.array([model.astype(np.float64) - start for model, start in zip(models, starts, strict=True)])
        kept = np.flatnonzero(np.isfinite(updates).all(axis=1))
        return kept.tolist(), update_distances(updates[kept], self.params.metric)

    def clusters(self, distance: Matrix, generator: np.random.Generator) -> Labels:
        """Up to the threshold, or as many as are wanted."""
        params = self.params
        if params.threshold is None:
            return agglomerative(distance, params.groups, params.linkage)
        return clusters_below(distance, params.threshold, params.linkage)
