"""Scenario keys of the strategy LCFL."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.common import former_keys
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Epochs
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.refusals import Reasons
from fedsim.toolbox.clustering.algorithms import Clusterer, Dbscan, Hierarchical, KMedoids, Linkage
from fedsim.toolbox.clustering.moments import AfterLocalTraining, AfterRounds
from fedsim.toolbox.strategies.grouped import ClusteredParams, PlainDeadline, Preset

_BY_LOSSES = ("lcfl", "loss-gap")
_BY_GRADIENTS = ("grad-cos", "last-batch-cos")


class AverageLinkage(Hierarchical):
    """Agglomerative clustering with average linkage by default, as in LCFL's published code.

    Attributes:
        linkage: distance of two clusters: the ``single`` (least), ``complete`` (largest) or
            ``average`` distance of their members.
    """

    linkage: Linkage = "average"


class LCFLParams(PlainDeadline, ClusteredParams):
    """Keys of ``[strategy]`` for LCFL, in addition to the keys of groups and rounds.

    The defaults are taken from LCFL's published code for Rotated MNIST. Equations and algorithms
    are numbered as in Gu et al. (2024).

    Attributes:
        groups: k, the number of clusters.
        participation: the share of a group's members that a round asks, at least one member; it
            replaces ``clients_per_round``.
        aggregation: rule that combines the updates of a round, before the clustering too: ``mean``
            (published) or ``weighted`` by samples.
        measure: the distance of two devices. By losses: ``lcfl`` (Eq. 2) or ``loss-gap`` (Eq. 6).
            By models: ``diff-norm``, their Euclidean distance. By directions: 1 minus the cosine of
            the gradients at the devices' models w_i (``grad-cos``), of the gradients of the last
            mini-batch (``last-batch-cos``, the published code), or of the last updates
            (``update-cos``).
        clusterer: ``k-medoids``, ``hierarchical`` or ``dbscan``.
        moment: when devices are clustered: after ``rounds`` of FedAvg (published), or after a
            ``local`` training of each device alone (Algorithm 1).
        clusters_start: first model of a cluster: the ``global`` model (published), or the mean of
            its ``members``' models.
        follows: rule for the first medoids of ``k-medoids``. ``published-code``: the k devices with
            the smallest sums of distances to all devices. ``paper``: by ``clusterer.start``.
    """

    instead: ClassVar[Former] = {
        **ClusteredParams.instead,
        **former_keys.LCFL,
        "clients_per_round": "participation",
        "gradient": "measure",
        **{key: f"clusterer.{key}" for key in ("linkage", "threshold")},
    }

    kind: Literal["lcfl"] = "lcfl"
    clients_per_round: None = None  # type: ignore[assignment]
    groups: int = Field(default=4, ge=1, le=10_000)
    local_epochs: Epochs = 10
    participation: float = Field(default=1.0, gt=0.0, le=1.0)
    aggregation: AggregationSpec = Mean()
    measure: Literal[
        "lcfl", "loss-gap", "diff-norm", "grad-cos", "last-batch-cos", "update-cos"
    ] = "lcfl"
    clusterer: Annotated[
        Clusterer,
        KindField(Registry.of("clusterer", KMedoids, AverageLinkage, Dbscan, usual="k-medoids")),
    ] = KMedoids()
    moment: Annotated[
        AfterRounds | AfterLocalTraining,
        KindField(Registry.of("moment", AfterRounds, AfterLocalTraining, usual="rounds")),
    ] = AfterRounds()
    clusters_start: Literal["global", "members"] = "global"
    follows: Preset = "paper"

    @property
    def why_not(self) -> Reasons:
        """Reasons for which other keys of a scenario are refused, by the keys of this strategy."""
        why_not_private = None
        if self.clusters_start == "members":
            why_not_private = "clusters begin at the plain mean of their members' models"
        why_no_other_steps = None
        if self.measure in _BY_GRADIENTS:
            why_no_other_steps = "a step of SGD gives LCFL's gradients"
        return Reasons(
            private_aggregation=why_not_private,
            privacy_account="clusters are made of updates that are not clipped",
            other_steps=why_no_other_steps,
            by_device={"steps": "LCFL's warm-up is counted in epochs, or has steps of its own"},
        )

    @property
    def second_campaign(self) -> Literal["exchange", "gradient"] | None:
        """Name of the task that each device does between its local training and the clustering.

        A campaign is a task that many devices each do once; the first one is the local training.
        ``exchange``: the device tests all devices' models; ``gradient``: it sends a gradient. None:
        there is no such task, as the key ``measure`` needs only the local models.
        """
        if self.measure in _BY_GRADIENTS:
            return "gradient"
        return "exchange" if self.measure in _BY_LOSSES else None

    def cohort_size(self, devices: int) -> int:
        return share_of(devices, self.participation)

    def check(self, devices: int) -> None:
        self.aggregation.check(self.selection.fewest(self.cohort_size(devices)))
        self.refuse_more("groups", devices)
        if isinstance(self.clusterer, Dbscan) and self.groups < 2:
            raise ScenarioError(
                f"strategy.groups is {self.groups}, from which no radius for dbscan follows; "
                "allowed are 2 or more"
            )


def share_of(count: int, participation: float) -> int:
    """Return the count of devices that a round asks if it asks a share of them; at least one.

    Args:
        count: count of devices to choose from.
        participation: share of these devices that is asked, 0 to 1.
    """
    return max(1, round(participation * count))
