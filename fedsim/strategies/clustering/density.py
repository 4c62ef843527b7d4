"""Density-based clustering on distances: DBSCAN with the radius that LCFL's code takes."""

import numpy as np

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.grouping import Labels, canonical, require_square
from fedsim.strategies.clustering.similarity import Matrix


def radius(distance: Matrix, groups: int) -> float:
    """The percentile 100 / (k - 1) of all entries of ``distance`` [n, n], the zeros of the diagonal included.

    Raises:
        SimulationError: ``groups`` (k) is below 2.
    """
    require_square(distance, "distance")
    if groups < 2:
        raise SimulationError(f"the radius for DBSCAN is asked for {groups} groups; allowed are 2 or more")
    return float(np.percentile(distance, 100 / (groups - 1)))


def dbscan(distance: Matrix, eps: float, min_samples: int = 5) -> Labels:
    """Clusters of devices linked by dense neighbourhoods (Ester et al., 1996), noise being one cluster of its own.

    Args:
        distance: symmetric [n, n], zero on the diagonal.
        eps: two at this distance or less are neighbours.
        min_samples: a neighbourhood of as many, the device itself included, is dense.

    Returns:
        int64 [n], clusters numbered by their first member.
    """
    require_square(distance, "distance")
    from sklearn.cluster import DBSCAN

    positive = max(eps, float(np.finfo(np.float64).tiny))  # 0, where most devices coincide, is not accepted
    return canonical(DBSCAN(eps=positive, min_samples=min_samples, metric="precomputed").fit_predict(distance))
