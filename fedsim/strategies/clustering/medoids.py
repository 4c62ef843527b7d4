"""K-medoids on distances (Kaufman and Rousseeuw, 1987), the clustering of LCFL."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.strategies.clustering.grouping import Labels, canonical, require_groups, require_square
from fedsim.strategies.clustering.similarity import Matrix

Start = Literal["build", "heuristic", "k-medoids++"]


def k_medoids(distance: Matrix, groups: int, start: Start, generator: np.random.Generator, max_iter: int = 300) -> Labels:
    """Alternate between the nearest medoid for each device and the best medoid for each cluster, until neither changes.

    Args:
        distance: symmetric [n, n], zero on the diagonal; it need not be a metric.
        groups: how many clusters; each gets at least its medoid.
        start: the first medoids. ``build``: one after the other, each that lowers the sum of distances most.
            ``heuristic``: those with the smallest sums of distances to all (as LCFL's code does); several may lie in one
            cluster. ``k-medoids++``: drawn one after the other in proportion to the squared distance from those before.
        generator: for ``k-medoids++``; the others draw nothing.
        max_iter: the most iterations.

    Returns:
        int64 [n], clusters numbered by their first member. Ties go to the smaller number, but a medoid stays one unless
        another is better.

    Raises:
        SimulationError: there are fewer devices than groups, or a distance is not finite.
    """
    require_square(distance, "distance")
    require_groups(groups, len(distance), "k-medoids")
    medoids = _start(distance, groups, start, generator)
    labels = _nearest(distance, medoids)
    for _ in range(max_iter):
        moved = np.array([_best(distance, np.flatnonzero(labels == group), medoids[group]) for group in range(groups)])
        if np.array_equal(moved, medoids):
            break
        medoids = moved
        labels = _nearest(distance, medoids)
    return canonical(labels)


def _nearest(distance: Matrix, medoids: NDArray[np.int64]) -> Labels:
    labels: Labels = np.argmin(distance[:, medoids], axis=1)
    labels[medoids] = np.arange(len(medoids))  # one at distance 0 from another medoid still keeps its own cluster
    return labels


def _best(distance: Matrix, cluster: NDArray[np.int64], medoid: np.int64) -> np.int64:
    sums = distance[np.ix_(cluster, cluster)].sum(axis=1)
    best = int(np.argmin(sums))
    return cluster[best] if sums[best] < sums[cluster == medoid][0] else medoid


def _start(distance: Matrix, groups: int, start: Start, generator: np.random.Generator) -> NDArray[np.int64]:
    if start == "heuristic":
        return np.argsort(distance.sum(axis=1), kind="stable")[:groups]
    return _build(distance, groups) if start == "build" else plus_plus(distance, groups, generator)


def _build(distance: Matrix, groups: int) -> NDArray[np.int64]:
    medoids: list[int] = []
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
            weights = np.ones(len(distance))
            weights[medoids] = 0.0
        medoids.append(int(generator.choice(len(distance), p=weights / weights.sum())))
        nearest = np.minimum(nearest, distance[:, medoids[-1]])
    return np.array(medoids)
