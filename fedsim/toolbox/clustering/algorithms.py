"""Clustering algorithms, and the clusterers that a scenario selects by kind.

No algorithm returns an empty group.
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
    """Renumber groups of devices as 0, 1, 2, ... in the order in which they first appear.

    Args:
        labels: the group of each device, any integers [n].

    Returns:
        The new group index of each device, int64 [n].
    """
    # for each label, in sorted order, its first position; and the index of each device's label
    _, first_positions, label_indices = np.unique(
        np.asarray(labels), return_index=True, return_inverse=True
    )
    by_appearance = np.argsort(first_positions)
    new_groups = np.argsort(by_appearance)  # place of each label in the order of appearance
    return np.asarray(new_groups[label_indices])


def members(labels: Labels) -> list[list[int]]:
    """Return the members of each group.

    Args:
        labels: the group index of each device, from 0, int64 [n].

    Returns:
        For each group the positions of its devices in ``labels``, ascending.
    """
    groups = int(labels.max(initial=-1)) + 1
    return [np.flatnonzero(labels == group).tolist() for group in range(groups)]


_TOLERANCE = 1e-9  # rows are equal if their distance is at most this share of the largest value
_MOST_ITERATIONS = 300  # maximum count of iterations of k-medoids


def kmeans(features: NDArray[np.floating], groups: int, generator: np.random.Generator) -> Labels:
    """Cluster devices by k-means of their feature vectors, as the best of ten runs.

    A run of Lloyd's algorithm begins with k-means++ and has 20 iterations, as in FlexCFL's
    published code. The best run has the smallest sum of squared distances to the centres.

    Args:
        features: the feature vector of each device, one a row, [n, k].
        groups: the count of groups.
        generator: source of the seed of all runs.

    Returns:
        The group index of each device, int64 [n]; groups are numbered in the order of their first
        members.

    Raises:
        SimulationError: a row is not finite, or there are fewer distinct rows than ``groups``.
    """
    from sklearn.cluster import KMeans as Lloyd
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    rows = np.ascontiguousarray(features, dtype=np.float64)
    distinct = _distinct_rows(rows, groups)
    model = Lloyd(
        groups,
        init="k-means++",
        n_init=10,
        max_iter=20,
        random_state=int(generator.integers(2**32)),
    )
    # One thread, because several would sum in the order in which they happen to finish.
    with threadpool_limits(1), warnings.catch_warnings():
        # sklearn warns if rows that are very near give fewer clusters than ``groups``
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = model.fit(rows).labels_
    if len(np.unique(labels)) < groups:  # some group is empty
        # the distinct rows become the centres, so that no group is empty
        distances = [np.linalg.norm(rows - rows[centre], axis=1) for centre in distinct]
        labels = np.argmin(distances, axis=0)
    return canonical(labels)


def _distinct_rows(rows: NDArray[np.float64], groups: int) -> list[int]:
    """Find ``groups`` distinct rows, each as far as possible from the rows found before.

    They replace the centres of k-means if its result has an empty group. Rows that differ only by
    rounding count as equal.

    Args:
        rows: feature vectors, one a row, [n, k].
        groups: the count of rows to find.

    Returns:
        Positions of the rows found, in the order in which they were found; 0 is first.

    Raises:
        SimulationError: a row is not finite, or there are fewer distinct rows than ``groups``.
    """
    if not np.isfinite(rows).all():
        raise SimulationError(
            f"of {len(rows)} rows some are not finite; a smaller training.lr may help"
        )
    tolerance = _TOLERANCE * float(np.abs(rows).max(initial=0.0))
    distinct = [0]
    distances = np.linalg.norm(rows - rows[0], axis=1)  # distance of each row from ``distinct``
    while len(distinct) < groups:
        farthest = int(np.argmax(distances))
        if distances[farthest] <= tolerance:
            raise SimulationError(
                f"k-means into {groups} groups needs as many distinct feature rows, and the "
                f"{len(rows)} devices have "
                f"{len(distinct)}"
            )
        distinct.append(farthest)
        distances = np.minimum(distances, np.linalg.norm(rows - rows[farthest], axis=1))
    return distinct


FirstMedoids = Literal["build", "heuristic", "k-medoids++"]


def k_medoids(
    distance: Matrix, groups: int, start: FirstMedoids, generator: np.random.Generator
) -> Labels:
    """Cluster devices by k-medoids: each cluster is represented by one of its devices, its medoid.

    The algorithm assigns each device to the nearest medoid, then chooses as medoid of each cluster
    the member with the smallest sum of distances to all members, and repeats both steps until no
    medoid changes. Of equal candidates the device with the smaller position is chosen, but a medoid
    is replaced only by a better one.

    Args:
        distance: distances of devices, [n, n], which need not be a metric.
        groups: the count of groups.
        start: rule for the first medoids. With ``build`` medoids are added one by one, each the
            device that most lowers the sum of all devices' distances to their nearest medoid. With
            ``heuristic`` the medoids have the smallest sums of distances to all devices, as in
            LCFL's code. With ``k-medoids++`` the medoids are drawn with probabilities proportional
            to the squared distance from the nearest medoid drawn before.
        generator: source of the draws of ``k-medoids++``.

    Returns:
        The group index of each device, int64 [n]; groups are numbered in the order of their first
        members.
    """
    medoids = _first_medoids(distance, groups, start, generator)
    labels = _assign_to_medoids(distance, medoids)
    for _ in range(_MOST_ITERATIONS):
        best_medoids = []
        for group in range(groups):
            cluster = np.flatnonzero(labels == group)
            best_medoids.append(_best_medoid(distance, cluster, medoids[group]))
        if np.array_equal(best_medoids, medoids):
            break
        medoids = np.array(best_medoids)
        labels = _assign_to_medoids(distance, medoids)
    return canonical(labels)


def _first_medoids(
    distance: Matrix, groups: int, start: FirstMedoids, generator: np.random.Generator
) -> NDArray[np.int64]:
    if start == "heuristic":
        return np.argsort(distance.sum(axis=1), kind="stable")[:groups]
    if start == "build":
        return _build_medoids(distance, groups)
    return plus_plus(distance, groups, generator)


def _assign_to_medoids(distance: Matrix, medoids: NDArray[np.int64]) -> Labels:
    labels: Labels = np.argmin(distance[:, medoids], axis=1)
    # A medoid at distance 0 from another medoid still keeps its own cluster.
    labels[medoids] = np.arange(len(medoids))
    return labels


def _best_medoid(distance: Matrix, cluster: NDArray[np.int64], medoid: np.int64) -> np.int64:
    """Return the device of a cluster with the least sum of distances to the cluster's devices.

    Args:
        distance: distances of all pairs of devices, [n, n].
        cluster: positions of the devices of the cluster.
        medoid: position of the cluster's present medoid, which is preferred to any device with an
            equal sum.
    """
    sums = distance[np.ix_(cluster, cluster)].sum(axis=1)
    best = int(np.argmin(sums))
    medoid_sum = sums[cluster == medoid][0]
    return cluster[best] if sums[best] < medoid_sum else medoid


def _build_medoids(distance: Matrix, groups: int) -> NDArray[np.int64]:
    """Choose medoids one by one, each the device that most lowers a sum of distances.

    The sum is over the distances of all devices to their nearest medoid.

    Args:
        distance: distances of all pairs of devices, [n, n].
        groups: count of medoids.

    Returns:
        Positions of the medoids, int64 [groups].
    """
    medoids = list[int]()
    to_nearest = np.full(len(distance), np.inf)  # distance of each device to its nearest medoid
    for _ in range(groups):
        # for each device the sum of these distances if it became the next medoid
        costs = np.minimum(distance, to_nearest[:, None]).sum(axis=0)
        costs[medoids] = np.inf
        medoids.append(int(np.argmin(costs)))
        to_nearest = np.minimum(to_nearest, distance[:, medoids[-1]])
    return np.array(medoids)


def plus_plus(distance: Matrix, groups: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw devices as first centres of clusters, far from each other, by the rule of k-means++.

    The first centre is drawn uniformly, each further one with probability proportional to the
    squared distance from the nearest centre drawn before. Source: Arthur and Vassilvitskii (2007).

    Args:
        distance: distances of devices, [n, n].
        groups: how many centres to draw.
        generator: source of the draws.

    Returns:
        Positions of the drawn devices, int64 [groups].
    """
    centres = [int(generator.integers(len(distance)))]
    to_nearest = distance[:, centres[0]]  # distance of each device to its nearest centre
    while len(centres) < groups:
        weights = to_nearest**2
        weights[centres] = 0.0
        if not weights.any():  # all remaining devices coincide with a centre
            weights[:] = 1.0
            weights[centres] = 0.0
        centres.append(int(generator.choice(len(distance), p=weights / weights.sum())))
        to_nearest = np.minimum(to_nearest, distance[:, centres[-1]])
    return np.array(centres)


Linkage = Literal["single", "complete", "average"]


def agglomerative(
    distance: Matrix, groups: int, method: Linkage, threshold: float | None = None
) -> Labels:
    """Cluster devices by repeatedly merging the two nearest clusters.

    Args:
        distance: distances of devices, [n, n].
        groups: the count of groups at which merging stops; exactly this count even if distances are
            equal.
        method: linkage, the rule for the distance of two clusters: the ``single`` (least),
            ``complete`` (largest) or ``average`` distance of a member of one to a member of the
            other.
        threshold: if given, merging stops as soon as the two nearest clusters are farther apart
            than this distance, and ``groups`` is not used.

    Returns:
        The group index of each device, int64 [n]; groups are numbered in the order of their first
        members.
    """
    if len(distance) == 1:
        return np.zeros(1, dtype=np.int64)
    from scipy.cluster.hierarchy import cut_tree, fcluster, linkage

    condensed = distance[np.triu_indices(len(distance), 1)]  # each pair of devices once
    merges = linkage(condensed, method)
    if threshold is None:
        return canonical(cut_tree(merges, groups)[:, 0])
    return canonical(fcluster(merges, threshold, "distance"))


def bipartition(
    similarity: Matrix, method: Literal["single", "complete"] = "single"
) -> tuple[list[int], list[int], float]:
    """Split a cluster of devices into two parts that are as dissimilar as possible (CFL, Eq. 6).

    The largest similarity of two devices in different parts is minimised.

    Args:
        similarity: similarities of all pairs of devices, [n, n].
        method: linkage of the hierarchical clustering that computes the parts. ``single`` finds the
            minimum; ``complete``, as in CFL's published code, may not find it.

    Returns:
        Positions of the devices of the first part, positions of the devices of the second part, and
        the largest similarity of two devices in different parts.
    """
    # Both linkages depend only on the order of similarities. Ranks keep this order exactly, and
    # 1 - similarity might not.
    _, ranks = np.unique(-similarity, return_inverse=True)
    distance = ranks.reshape(similarity.shape).astype(np.float64)
    first, second = members(agglomerative(distance, 2, method))
    return first, second, float(similarity[np.ix_(first, second)].max())


def threshold(
    loss: float, first_loss: float, least_loss: float = 0.0, theta: float = math.pi / 36
) -> float:
    """Compute the least cosine of two gradients at which two devices share a cluster (CCS, Eq. 7).

    The progress p of the training is (l_0 - l_t) / (l_0 - l_*), limited to [0, 1], and 0 if l_0 is
    not above l_*. The angle that is allowed grows linearly from ``theta`` at p = 0 to a right angle
    at p = 1, so the cosine falls from cos(theta) to 0.

    Args:
        loss: l_t, the present training loss.
        first_loss: l_0, the loss at the beginning.
        least_loss: l_*, the loss at which training is complete, so that the result is 0.
        theta: the largest angle between two gradients of a cluster at the beginning (rad).

    Returns:
        The threshold, from 0 to cos(theta).

    Raises:
        SimulationError: ``loss`` or ``first_loss`` is not finite.
    """
    if not (math.isfinite(loss) and math.isfinite(first_loss)):
        raise SimulationError(
            f"the threshold of CCS needs finite losses; the first is {first_loss}, the present "
            f"one {loss}"
        )
    decrease = first_loss - loss
    full_decrease = first_loss - least_loss
    progress = 0.0
    if full_decrease > 0:
        progress = min(max(decrease / full_decrease, 0.0), 1.0)
    # The sine of the complementary angle, as the cosine of pi/2 would not be exactly 0, and
    # orthogonal gradients would not be clustered.
    return math.sin((math.pi / 2 - theta) * (1.0 - progress))


def greedy_clusters(similarity: Matrix, eps: float) -> list[list[int]]:
    """Cluster devices greedily by their neighbourhoods (CCS, Algorithm 1).

    The neighbourhood of a device has all remaining devices that are similar to it. The largest
    neighbourhood of a remaining device becomes a cluster and is removed, until no device remains.
    Of neighbourhoods of equal size the first one is used.

    Args:
        similarity: similarities of all pairs of devices, [n, n].
        eps: the least similarity of a device and its neighbours.

    Returns:
        For each cluster the positions of its devices, ascending.
    """
    is_near = similarity >= eps
    np.fill_diagonal(is_near, True)
    remains = np.ones(len(is_near), dtype=bool)
    clusters = []
    while remains.any():
        neighbours = (is_near & remains).sum(axis=1)  # count for each device
        centre = np.argmax(np.where(remains, neighbours, 0))
        in_cluster = is_near[centre] & remains
        clusters.append(np.flatnonzero(in_cluster).tolist())
        remains &= ~in_cluster
    return clusters


class Clusterer(Spec):
    """Base of the clustering algorithms that a scenario can choose to group devices.

    A subclass implements ``labels``, which clusters devices by their distances. A kind that does
    not use distances, such as ``random``, does not implement ``labels``; the strategy then forms
    the groups itself.
    """

    kind: str

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        """Cluster devices by their distances.

        Args:
            distance: distances of all pairs of devices, [n, n].
            groups: the wanted count of groups.
            generator: source of random draws.

        Returns:
            The group index of each device, int64 [n]; groups are numbered in the order of their
            first members.
        """
        raise NotImplementedError


class KMedoids(Clusterer):
    """Devices are clustered by k-medoids: each cluster has a device, its medoid, as its centre.

    Each device is assigned to the nearest medoid; then the best medoid of each cluster is chosen
    anew, until no medoid changes.

    Attributes:
        start: rule for the first medoids. ``build``: one by one, each the device that most lowers
            the sum of all devices' distances to their nearest medoid. ``k-medoids++``: drawn at
            random, far from each other.
    """

    kind: Literal["k-medoids"] = "k-medoids"
    start: Literal["build", "k-medoids++"] = "build"

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        return k_medoids(distance, groups, self.start, generator)


class Hierarchical(Clusterer):
    """Devices are clustered agglomeratively, by repeated merges of the two nearest clusters.

    Attributes:
        linkage: distance of two clusters: the ``single`` (least), ``complete`` (largest) or
            ``average`` distance of two members.
        threshold: largest distance at which two clusters are merged. None: clusters are merged
            until ``groups`` remain.
    """

    kind: Literal["hierarchical"] = "hierarchical"
    linkage: Linkage = "complete"
    threshold: float | None = Field(default=None, gt=0.0)

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        return agglomerative(distance, groups, self.linkage, self.threshold)


class Dbscan(Clusterer):
    """DBSCAN (Ester et al., 1996) as in LCFL's published code.

    DBSCAN joins devices with dense neighbourhoods that are near each other to clusters. All devices
    that belong to none of these clusters, the noise, form a cluster together.

    A neighbourhood is dense if it has at least five devices, including the device itself. With
    ``groups`` the wanted count of groups, the radius of a neighbourhood is so large that a share of
    1 / (groups - 1) of all distances of devices is within the radius, such as a third with 4
    groups. With such a wide radius clusters merge easily. ``groups`` should therefore be larger
    than the expected number of clusters.
    """

    kind: Literal["dbscan"] = "dbscan"

    def labels(self, distance: Matrix, groups: int, generator: np.random.Generator) -> Labels:
        from sklearn.cluster import DBSCAN

        # As in LCFL's code the percentile includes the distances 0 on the diagonal.
        percentile = np.percentile(distance, 100 / (groups - 1))
        # sklearn does not accept a radius of 0, which results if most devices coincide.
        radius = max(float(percentile), float(np.finfo(np.float64).tiny))
        model = DBSCAN(eps=radius, min_samples=5, metric="precomputed")
        return canonical(model.fit_predict(distance))


class RandomGroups(Clusterer):
    """Devices are assigned at random to groups of nearly equal size (FlexCFL's ablation RCC)."""

    kind: Literal["random"] = "random"


CLUSTERERS = Registry.of("clusterer", KMedoids, Hierarchical, Dbscan, RandomGroups)
