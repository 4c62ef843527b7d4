"""HypCluster: hypothesis-based clustering (Mansour et al., 2020)."""

from typing import ClassVar, Literal

from fedsim.language.spec import Epochs
from fedsim.strategies.ifca import IFCA, IFCAParams
from fedsim.strategies.parts.aggregation import AggregationSpec, Weighted


class HypClusterParams(IFCAParams):
    """What HypCluster takes: see ``IFCAParams``.

    Attributes:
        aggregation: weighted by samples, as the loss of a cluster is in the paper.
        local_epochs: the paper's few steps.
        sweep: clients are drawn at random from the first round on.
    """

    kind: Literal["hypcluster"] = "hypcluster"  # type: ignore[assignment]
    aggregation: AggregationSpec = Weighted()
    local_epochs: Epochs = 1
    sweep: bool = False


class HypCluster(IFCA):
    """Every client chooses the hypothesis of least loss on its data, and each hypothesis is trained by those who chose it.

    Source: Mansour et al., "Three approaches for personalization with applications to federated learning" (2020), section 4,
    HYPCLUSTER: in each round clients drawn at random receive all q hypotheses, choose, and make a few steps; a hypothesis
    minimises the mean loss of its clients weighted by their samples. That is IFCA with model averaging and these weights, which
    was found at the same time: messages, state and newcomers are IFCA's. The hypotheses begin at draws of their own, where the
    paper begins near one model that was trained before.

    ``groups`` is the paper's q.
    """

    Params: ClassVar[type[IFCAParams]] = HypClusterParams
