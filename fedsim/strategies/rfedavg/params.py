"""What RFedAvg takes."""

import math
from typing import Literal

from pydantic import Field

from fedsim.strategies.parts.server import ServerOptimiserSpec
from fedsim.strategies.synchronous import SynchronousParams


class RFedAvgParams(SynchronousParams):
    """What RFedAvg takes, besides ``SynchronousParams``.

    Attributes:
        local_epochs: gradient steps on all of its data that a client makes; 1 in the paper.
        server: what the server makes of the reweighted mean (``parts/server``); None: it is the new model.
        weights: p_n of the clusters: ``rfedavg``, in inverse proportion to their data imbalance; ``optimal``, those that bring
            the mixture nearest to equal class shares (the paper's benchmark: clients disclose their class counts);
            ``uniform-by-data``, by samples, so that clusters make no difference (its FedAvg).
        clustering: ``ccs``, greedy clusters by cosine; ``kmeans``, K-means on the gradients as they are (the paper's
            benchmark).
        kmeans_clusters: N of K-means, which the paper does not say: as many as there are ``classes``, or as ``ccs`` would find.
            Fewer if there are not so many distinct gradients.
        imbalance: a device's I_k compares its class counts with D / M, D all samples of all devices (``global``, Eq. 17 as it
            stands), or with D_k / M, its own (``local``).
        theta: the angle (radians) between gradients that counts as alike at first (Eq. 7; not given in the paper).
        least_loss: l_*, the loss at which every acute angle does (likewise).
    """

    kind: Literal["rfedavg"] = "rfedavg"
    server: ServerOptimiserSpec | None = None
    clients_per_round: int = Field(default=30, ge=1)
    weights: Literal["rfedavg", "optimal", "uniform-by-data"] = "rfedavg"
    clustering: Literal["ccs", "kmeans"] = "ccs"
    kmeans_clusters: Literal["classes", "ccs"] = "classes"
    imbalance: Literal["global", "local"] = "global"
    theta: float = Field(default=math.pi / 36, ge=0.0, le=math.pi / 2)
    least_loss: float = Field(default=0.0, ge=0.0)

    @property
    def uses_imbalance(self) -> bool:
        """Whether clients say how imbalanced their data are."""
        return self.weights == "rfedavg"

    @property
    def uses_total(self) -> bool:
        """Whether they must know for it how many samples all devices have."""
        return self.uses_imbalance and self.imbalance == "global"

    @property
    def uses_loss(self) -> bool:
        """Whether clients say how large their loss is."""
        return self.clustering == "ccs" or self.kmeans_clusters == "ccs"
