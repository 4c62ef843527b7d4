"""The clusterers: algorithms that make groups of devices from distances."""

from typing import Literal

import numpy as np
from pydantic import Field

from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.toolbox.clustering.algorithms import Labels, Linkage, agglomerative, dbscan, k_medoids, radius
from fedsim.toolbox.clustering.similarity import Matrix


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
        return agglomerative(distance, groups, self.linkage, self.threshold)


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
