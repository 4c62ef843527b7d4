"""FL+HC: devices are clustered once, by their updates of the common model (Briggs, 2020)."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.strategies.parts.aggregation import AggregationSpec, Weighted
from fedsim.toolbox.clustering.algorithms import Hierarchical
from fedsim.toolbox.clustering.comparison import ModelComparison, by_rows, cosine_distances
from fedsim.toolbox.clustering.moments import AfterRounds
from fedsim.toolbox.clustering.similarity import Matrix, row_distances
from fedsim.toolbox.strategies.lcfl import LCFL
from fedsim.toolbox.strategies.lcfl_params import LCFLParams


class FLHCParams(LCFLParams):
    """Keys of ``[strategy]`` for FL+HC, in addition to the keys of LCFL.

    Attributes:
        measure: the distance of two updates: the norm ``l1`` or ``l2`` of their difference, or 1
            minus their cosine (``cosine``).
        clusterer: always ``hierarchical``, by default with complete linkage.
        groups: the number of clusters. If ``clusterer.threshold`` is given, the number of clusters
            follows from the threshold instead. In both cases the run ends if fewer than ``groups``
            devices answer in the warm-up, the training by whose updates devices are clustered.
        aggregation: rule that combines the updates of a round; by default ``weighted`` by samples,
            as in the paper.
    """

    kind: Literal["fl-hc"] = "fl-hc"  # type: ignore[assignment]
    measure: Literal["l1", "l2", "cosine"] = "l1"  # type: ignore[assignment]
    clusterer: Annotated[
        Hierarchical, KindField(Registry.of("clusterer", Hierarchical, usual="hierarchical"))
    ] = Hierarchical()
    moment: Annotated[
        AfterRounds, KindField(Registry.of("moment", AfterRounds, usual="rounds"))
    ] = AfterRounds()
    aggregation: AggregationSpec = Weighted()
    __annotations__["follows"] = Annotated[None, Field(default=None)]


def update_distances(
    updates: NDArray[np.floating], measure: Literal["l1", "l2", "cosine"]
) -> Matrix:
    """Compute the distances of all pairs of updates.

    Args:
        updates: the update of each device, [n, d].
        measure: the distance: ``l1`` or ``l2``, the norm of the difference, or ``cosine``, 1 minus
            the cosine.

    Returns:
        Distances, float64 [n, n].
    """
    match measure:
        case "l1":
            return row_distances(updates, "cityblock")
        case "l2":
            return row_distances(updates, "euclidean")
        case "cosine":
            return cosine_distances(updates)


class FLHC(LCFL):
    """Federated learning with hierarchical clustering of local updates.

    The devices are clustered once, by their updates of the global model; then each cluster runs
    FedAvg separately.

    Source: Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local
    updates" (IJCNN 2020), Algorithm 1.

    After some rounds of FedAvg (key ``moment.rounds``) every available device receives the global
    model, trains, and sends its update (d parameters each way). The updates are clustered, and each
    cluster begins at the global model. Devices without a cluster test the models of all clusters on
    their training data, and join the cluster of the model with the least loss. All else is as in
    ``LCFL``.
    """

    Params: ClassVar[type[LCFLParams]] = FLHCParams
    params: FLHCParams

    async def _begin_warm_up(self) -> None:
        """Ask all available devices to train the global model, for the updates that are clustered.

        The models that devices have sent in earlier rounds are dropped, so that all devices are
        asked.
        """
        self.state.local_models = {}
        self.state.starts = {}
        await super()._begin_warm_up()

    async def distances(self, devices: Sequence[int]) -> ModelComparison:
        models = await self._values(self.state.local_models, devices)
        starts = await self._values(self.state.starts, devices)
        updates = [
            model.astype(np.float64) - start for model, start in zip(models, starts, strict=True)
        ]
        return by_rows(updates, lambda rows: update_distances(rows, self.params.measure))
