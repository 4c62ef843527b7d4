"""The parts that clustered strategies share: the clusterer, and the moment at which devices are clustered."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.language.registry import Registry
from fedsim.language.spec import Epochs, Iterations, OnlyWith, Spec
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.clustering.algorithms import (
    Labels,
    Linkage,
    agglomerative,
    clusters_below,
    dbscan,
    k_medoids,
    radius,
)
from fedsim.strategies.clustering.similarity import Matrix


class Clusterer(Spec):
    """The algorithm that makes groups of devices, with its arguments; those without ``labels`` need more than distances."""

    kind: str

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        """The group of each device, int64 [n], numbered by first members, from ``distance`` [n, n]."""
        raise NotImplementedError


class KMeans(Clusterer):
    """K-means, the best of ten k-means++ starts; for measures that have features."""

    kind: Literal["k-means"] = "k-means"


class KMedoids(Clusterer):
    """K-medoids by alternation.

    Attributes:
        start: the first medoids: ``build`` (each lowers the sum of distances most) or ``k-medoids++`` (drawn by distance).
    """

    kind: Literal["k-medoids"] = "k-medoids"
    start: Literal["build", "k-medoids++"] = "build"

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        return k_medoids(distance, groups, self.start, generator)


class Hierarchical(Clusterer):
    """Agglomerative clustering.

    Attributes:
        linkage: how far apart two clusters are: ``single``, ``complete``, ``average``, or ``ward`` for Euclidean distances.
        threshold: clusters are merged as long as they are not farther apart. None: until ``groups`` are left.
    """

    kind: Literal["hierarchical"] = "hierarchical"
    linkage: Linkage = "complete"
    threshold: float | None = Field(default=None, gt=0.0)

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        if self.threshold is None:
            return agglomerative(distance, groups, self.linkage)
        return clusters_below(distance, self.threshold, self.linkage)


class Dbscan(Clusterer):
    """DBSCAN; what it calls noise is a cluster of its own.

    Attributes:
        eps: the radius; None for the one of LCFL's published code, the percentile 100 / (groups - 1) of all distances. That is
            so wide that ``groups`` should exceed the number of clusters looked for.
        min_samples: so many neighbours, itself included, make a device's neighbourhood dense.
    """

    kind: Literal["dbscan"] = "dbscan"
    eps: float | None = Field(default=None, ge=0.0)
    min_samples: int = Field(default=5, ge=1)

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        return dbscan(distance, radius(distance, groups) if self.eps is None else self.eps, self.min_samples)


class RandomGroups(Clusterer):
    """Groups of nearly equal size, drawn at random: an ablation."""

    kind: Literal["random"] = "random"


CLUSTERERS = Registry.of("clusterer", KMeans, KMedoids, Hierarchical, Dbscan, RandomGroups)


class Once(Spec):
    """Once, by models that all devices have sent.

    Attributes:
        attempts: how often a device is asked for a model, or for what is compared, at most: again on its return if it was lost.
        deadline: each of the two ends so long (s) after its begin, with those who came back. None: it waits for all.
    """

    attempts: int = Field(default=3, ge=1)
    deadline: PositiveSeconds | None = None


class AfterRounds(Once):
    """After rounds of FedAvg.

    Attributes:
        rounds: how many; they count as rounds of the run.
        participation: the share of all devices asked in each of them.
    """

    kind: Literal["rounds"] = "rounds"
    rounds: int = Field(default=5, ge=1)
    participation: float = Field(default=1.0, gt=0.0, le=1.0)


class AfterLocalTraining(Once):
    """After a training of each device by itself (LCFL, Algorithm 1).

    Attributes:
        epochs: passes over its data of a device's training.
        steps: SGD steps of it, in place of ``epochs`` (the T of Algorithm 1).
        start: the training begins at a model that the server sends (``common``) or at the device's own draw (``own``).
    """

    kind: Literal["local"] = "local"
    epochs: Epochs = 10
    steps: Iterations | None = None
    start: Literal["common", "own"] = "common"


ShiftTest = Literal["never", "aligned_l1", "sorted_counts", "oracle"]


class WhenShifted(Spec):
    """Again, when a device's data have shifted.

    Attributes:
        shift: how a device tells whether they have, by how far its label counts c are from its reference r, over C classes:
            ``aligned_l1``, 1/C sum |c_k - r_k|; ``sorted_counts``, the same of the sorted counts (the published code of
            FlexCFL; it does not see labels that change places); ``oracle``, any change of data counts; ``never``. By default
            ``aligned_l1`` in ``flexcfl`` and ``ifca-mig``, ``never`` elsewhere.
        shift_threshold: a shift is more than this times n / C, n the device's training samples at first (FlexCFL, Eq. 9).
    """

    shift: ShiftTest | None = None
    shift_threshold: Annotated[float, OnlyWith("shift", values=(None, "aligned_l1", "sorted_counts"))] = Field(
        default=0.2, ge=0.0
    )


class EachRound(WhenShifted):
    """In each round, by the clients themselves."""

    kind: Literal["each-round"] = "each-round"


class PreTraining(WhenShifted):
    """Before the first round, by what some devices make of the initial model.

    Attributes:
        devices: alpha: as many times ``groups`` devices are pre-trained, or all if there are fewer.
        steps: SGD steps of a pre-training. By default 50 (the published code of FlexCFL); or it is counted in ``epochs``.
        epochs: passes over its data of a pre-training; as the paper has it, ``local_epochs``.
        newcomers: a device without a group joins the one whose direction is most like its own, as soon as it arrives
            (``arrival``) or when it is first selected (``selection``); or one at random then (``random``, the ablation RAC).
    """

    kind: Literal["pre-training"] = "pre-training"
    devices: int = Field(default=20, ge=1)
    steps: Annotated[Iterations | None, OnlyWith("epochs", values=(None,))] = None
    epochs: Epochs | None = None
    newcomers: Literal["arrival", "selection", "random"] = "arrival"


MOMENTS = Registry.of("moment", AfterRounds, AfterLocalTraining, PreTraining, EachRound)
