"""Clustering algorithms, and the clusterers by which a scenario names them.

No algorithm leaves a group empty.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.common.errors import SimulationError
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.toolbox.clustering.similarity import Matrix

Labels = NDArray[np.int64]


def canonical(labels: Sequence[int] | NDArray[np.integer]) -> Labels:
    """Number the groups of ``labels`` [n] as 0, 1, ... by their first member, int64 [n]."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def members(labels: Labels) -> list[list[int]]:
    """The members of each group 0, 1, ..., in ascending order."""
    groups = int(labels.max(initial=-1)) + 1
    return [np.flatnonzero(labels == group).tolist() for group in range(groups)]


_SAME = 1e-9  # rows nearer than this share of the largest value are one point


def kmeans(features: NDArray[np.floating], groups: int, generator: np.random.Generator) -> Labels:
    """The best of ten runs of Lloyd's algorithm from k-means++ starts.

    A run has 20 iterations, as in FlexCFL's published code.

    Args:
        features: one row for each device, [n, k].
        groups: the number of groups.
        generator: draws the seed of the starts.

    Returns:
        The group of each device, numbered by first members.

    Raises:
        SimulationError: fewer rows than ``groups`` differ, or a row is not finite.
    """
    from sklearn.cluster import KMeans as Lloyd
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    rows = np.ascontiguousarray(features, dtype=np.float64)
    distinct = _distinct(rows, groups)
    model = Lloyd(
        groups,
        init="k-means++",
        n_init=10,
        max_iter=20,
        random_state=int(generator.integers(2**32)),
    )
    # Several threads would add up the centres in the order in which they happen to finish.
    with threadpool_limits(1), warnings.catch_warnings():
        # fewer groups than asked for, of rows that are very near
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = model.fit(rows).labels_
    if len(np.unique(labels)) < groups:
        distances = [np.linalg.norm(rows - rows[place], axis=1) for place in distinct]
        labels = np.argmin(distances, axis=0)
    return canonical(labels)


def _distinct(rows: NDArray[np.float64], groups: int) -> list[int]:
    """Places of ``groups`` distinct rows; rows that differ by rounding alone count as one."""
    if not np.isfinite(rows).all():
        raise SimulationError(
            f"of {len(rows)} rows some are not finite; a smaller training.lr may help"
        )
    same = _SAME * float(np.abs(rows).max(initial=0.0))
    distinct = [0]
    nearest = np.linalg.norm(rows - rows[0], axis=1)
    while len(distinct) < groups:
        farthest = int(np.argmax(nearest))
        if nearest[farthest] <= same:
            raise SimulationError(
                f"k-means into {groups} groups needs as many distinct feature rows, and the "
                f"{len(rows)} devices have "
                f"{len(distinct)}"
            )
        distinct.append(farthest)
        nearest = np.minimum(nearest, np.linalg.norm(rows - rows[farthest], axis=1))
    return distinct


FirstMedoids = Literal["build", "heuristic", "k-medoids++"]


def k_medoids(
    distance: Matrix, groups: int, start: FirstMedoids, generator: np.random.Generator
) -> Labels:
    """Cluster by k-medoids: alternate between nearest and best medoids until no medoid changes.

    Ties go to the smaller number, but a medoid is only replaced by a better one.

    Args:
        distance: distances [n, n], which need not be a metric.
        groups: the number of groups.
        start: the first medoids. With ``build`` each lowers the sum of distances most. With
            ``heuristic`` they have the smallest sums of distances to all devices, as in LCFL's
            code. With ``k-medoids++`` they are drawn in proportion to the squared distance from
            the medoids before.
        generator: draws for ``k-medoids++``.

    Returns:
        The group of each device, numbered by first members.
    """
    medoids = _first_medoids(distance, groups, start, generator)
    labels = _nearest(distance, medoids)
    for _ in range(300):
        best_medoids = []
        for group in range(groups):
            members = np.flatnonzero(labels == group)
            best_medoids.append(_best(distance, members, medoids[group]))
        best = np.array(best_medoids)
        if np.array_equal(best, medoids):
            break
        medoids = best
        labels = _nearest(distance, medoids)
    return canonical(labels)


def _first_medoids(
    distance: Matrix, groups: int, start: FirstMedoids, generator: np.random.Generator
) -> NDArray[np.int64]:
    if start == "heuristic":
        return np.argsort(distance.sum(axis=1), kind="stable")[:groups]
    if start == "build":
        return _build(distance, groups)
    return plus_plus(distance, groups, generator)


def _nearest(distance: Matrix, medoids: NDArray[np.int64]) -> Labels:
    labels: Labels = np.argmin(distance[:, medoids], axis=1)
    # a medoid at distance 0 from another one still keeps its cluster
    labels[medoids] = np.arange(len(medoids))
    return labels


def _best(distance: Matrix, cluster: NDArray[np.int64], medoid: np.int64) -> np.int64:
    sums = distance[np.ix_(cluster, cluster)].sum(axis=1)
    best = int(np.argmin(sums))
    return cluster[best] if sums[best] < sums[cluster == medoid][0] else medoid


def _build(distance: Matrix, groups: int) -> NDArray[np.int64]:
    medoids = list[int]()
    nearest = np.full(len(distance), np.inf)
    for _ in range(groups):
        costs = np.minimum(distance, nearest[:, None]).sum(axis=0)
        costs[medoids] = np.inf
        medoids.append(int(np.argmin(costs)))
        nearest = np.minimum(nearest, distance[:, medoids[-1]])
    return np.array(medoids)


def plus_plus(distance: Matrix, groups: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Medoids drawn by k-means++'s rule (Arthur and Vassilvitskii, 2007), int64 [groups]."""
    medoids = [int(generator.integers(len(distance)))]
    nearest = distance[:, medoids[0]]
    while len(medoids) < groups:
        weights = nearest**2
        weights[medoids] = 0.0
        if not weights.any():  # all that are left coincide with a medoid
            weights[:] = 1.0
            weights[medoids] = 0.0
        medoids.append(int(generator.choice(len(distance), p=weights / weights.sum())))
        nearest = np.minimum(nearest, distance[:, medoids[-1]])
    return np.array(medoids)


Linkage = Literal["single", "complete", "average"]


def agglomerative(
    distance: Matrix, groups: int, method: Linkage, threshold: float | None = None
) -> Labels:
    """Merge the two nearest clusters, until ``groups`` are left or up to a distance.

    Args:
        distance: distances [n, n].
        groups: the number of groups, reached even if distances tie.
        method: the distance of two clusters.
        threshold: the largest distance of merged clusters, in place of ``groups``.

    Returns:
        The group of each device, numbered by first members.
    """
    if len(distance) == 1:
        return np.zeros(1, dtype=np.int64)
    from scipy.cluster.hierarchy import cut_tree, fcluster, linkage

    merges = linkage(distance[np.triu_indices(len(distance), 1)], method)
    if threshold is None:
        return canonical(cut_tree(merges, groups)[:, 0])
    return canonical(fcluster(merges, threshold, "distance"))


def bipartition(
    similarity: Matrix, method: Literal["single", "complete"] = "single"
) -> tuple[list[int], list[int], float]:
    """Split a cluster in two so that the largest similarity across is the least (CFL, Eq. 6).

    Args:
        similarity: pairwise similarities, [n, n].
        method: ``single`` linkage finds the least; ``complete``, as in published code, need not.

    Returns:
        The members of both parts, and the largest similarity across.
    """
    # Ranks instead of 1 - similarity: both linkages see the order alone, which subtracting could
    # blur.
    _, ranks = np.unique(-similarity, return_inverse=True)
    distance = ranks.reshape(similarity.shape).astype(np.float64)
    first, second = members(agglomerative(distance, 2, method))
    return first, second, float(similarity[np.ix_(first, second)].max())


def threshold(
    loss: float, first_loss: float, least_loss: float = 0.0, theta: float = math.pi / 36
) -> float:
    """The least similarity of gradients in a cluster (CCS, Eq. 7): from cos(theta) down to 0.

    It falls with the progress (l_0 - l_t) / (l_0 - l_*), limited to [0, 1]. Progress is 0 if
    l_0 is not above l_*.

    Args:
        loss: l_t, the present loss.
        first_loss: l_0.
        least_loss: l_*.
        theta: the angle at first (rad).

    Raises:
        SimulationError: a loss is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(first_loss)):
        raise SimulationError(
            f"the threshold of CCS needs finite losses; the first is {first_loss}, the present "
            f"one {loss}"
        )
    gained = first_loss - loss
    gain = first_loss - least_loss
    progress = min(max(gained / gain, 0.0), 1.0) if gain > 0 else 0.0
    # The sine of the complement: the cosine of pi/2 would not be exactly 0, and orthogonal
    # gradients would stay apart.
    return math.sin((math.pi / 2 - theta) * (1.0 - progress))


def greedy_clusters(similarity: Matrix, eps: float) -> list[list[int]]:
    """Cluster greedily: the largest neighbourhood of the remaining devices, repeatedly.

    Source: CCS, Algorithm 1. Of equal neighbourhoods the first is used.

    Args:
        similarity: pairwise similarities, [n, n].
        eps: the least similarity of a device and its neighbours.

    Returns:
        The members of each cluster.
    """
    near = similarity >= eps
    np.fill_diagonal(near, True)
    remaining = np.ones(len(near), dtype=bool)
    clusters = []
    while remaining.any():
        sizes = np.where(remaining, (near & remaining).sum(axis=1), 0)
        cluster = near[np.argmax(sizes)] & remaining
        clusters.append(np.flatnonzero(cluster).tolist())
        remaining &= ~cluster
    return clusters


class Clusterer(Spec):
    """Base of the clusterers; one without ``labels`` needs more than distances."""

    kind: str

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        """Cluster devices by their distances.

        Args:
            distance: distances [n, n].
            groups: the number of groups.
            generator: the source of random draws.

        Returns:
            The group of each device, int64 [n], numbered by first members.
        """
        raise NotImplementedError


class KMedoids(Clusterer):
    """K-medoids by alternation."""

    kind: Literal["k-medoids"] = "k-medoids"
    start: Literal["build", "k-medoids++"] = "build"
    """the first medoids: ``build`` (each lowers the sum of distances most) or ``k-medoids++``
    (drawn by distance).
    """

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        return k_medoids(distance, groups, self.start, generator)


class Hierarchical(Clusterer):
    """Agglomerative clustering."""

    kind: Literal["hierarchical"] = "hierarchical"
    linkage: Linkage = "complete"
    """how far apart two clusters are: ``single``, ``complete`` or ``average``."""
    threshold: float | None = Field(default=None, gt=0.0)
    """clusters are merged as long as they are not farther apart.

    None: until ``groups`` are left.
    """

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        return agglomerative(distance, groups, self.linkage, self.threshold)


class Dbscan(Clusterer):
    """DBSCAN (Ester et al., 1996) as in LCFL's published code. Noise forms a separate cluster.

    A neighbourhood is dense if it has at least five devices, including the device itself. The
    radius is the percentile 100 / (groups - 1) of all distances. The radius is so wide that
    ``groups`` should exceed the expected number of clusters.
    """

    kind: Literal["dbscan"] = "dbscan"

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        from sklearn.cluster import DBSCAN

        eps = np.percentile(distance, 100 / (groups - 1))  # of all entries, the diagonal too
        # 0, where most devices coincide, is not accepted
        positive = max(float(eps), float(np.finfo(np.float64).tiny))
        model = DBSCAN(eps=positive, min_samples=5, metric="precomputed")
        return canonical(model.fit_predict(distance))


class RandomGroups(Clusterer):
    """Groups of nearly equal size, drawn at random: an ablation."""

    kind: Literal["random"] = "random"


CLUSTERERS = Registry.of("clusterer", KMedoids, Hierarchical, Dbscan, RandomGroups)
