"""FL+HC: devices are clustered once, by the changes of the common model in their trainings
(Briggs et al., 2020).
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.registry import Registry
from fedsim.strategies.parts.aggregation import AggregationSpec, Weighted
from fedsim.toolbox.clustering.algorithms import Hierarchical
from fedsim.toolbox.clustering.moments import AfterRounds
from fedsim.toolbox.clustering.similarity import Matrix, cosine_matrix, row_distances
from fedsim.toolbox.strategies.lcfl import LCFL, Found, LCFLParams, by_rows


class FLHCParams(LCFLParams):
    """Parameters of FL+HC; see ``LCFLParams``.

    Attributes:
        measure: how far apart two updates are: ``l1`` or ``l2``, or 1 minus their cosine
            (``cosine``).
        clusterer: ``hierarchical``.
        groups: how many clusters to look for; with a threshold the least number of devices that
            must have come back.
        aggregation: weighted by samples, as in the paper.
    """

    kind: Literal["fl-hc"] = "fl-hc"  # type: ignore[assignment]
    measure: Literal["l1", "l2", "cosine"] = "l1"  # type: ignore[assignment]
    clusterer: Annotated[
        Hierarchical, Registry.of("clusterer", Hierarchical, usual="hierarchical")
    ] = Hierarchical()
    moment: Annotated[AfterRounds, Registry.of("moment", AfterRounds, usual="rounds")] = (
        AfterRounds()
    )
    aggregation: AggregationSpec = Weighted()
    __annotations__["as"] = Annotated[None, Field(default=None)]


def update_distances(
    updates: NDArray[np.floating], measure: Literal["l1", "l2", "cosine"]
) -> Matrix:
    """Pairwise distances of ``updates`` [n, d], float64 [n, n]."""
    metrics = {"l1": "cityblock", "l2": "euclidean"}
    return (
        row_distances(updates, metrics[measure])
        if measure in metrics
        else 1.0 - cosine_matrix(updates)
    )


class FLHC(LCFL):
    """Federated learning with hierarchical clustering of local updates.

    Source: Briggs, Fan and Andras, "Federated learning with hierarchical clustering of local
    updates" (IJCNN 2020), Algorithm
    1. After ``moment.rounds`` of FedAvg every device that is there receives the global model,
       trains, and sends its update (d
    parameters each way). Their differences from it are clustered, and each cluster goes on from
    it. All else is as in ``LCFL``.
    """

    Params: ClassVar[type[LCFLParams]] = FLHCParams
    params: FLHCParams

    async def _gather(self) -> None:
        """All begin at the same model: updates of earlier rounds do not count."""
        self.state |= {name: [None] * self.server.devices for name in ("own", "began")}
        await super()._gather()

    async def distances(self, devices: list[int]) -> Found:
        own = self.state["own"]
        began = self.state["began"]
        values = await self.server.models.values(
            [ref for device in devices for ref in (own[device], began[device])]
        )
        updates = [
            model.astype(np.float64) - start
            for model, start in zip(values[::2], values[1::2], strict=True)
        ]
        return by_rows(updates, lambda rows: update_distances(rows, self.params.measure))
