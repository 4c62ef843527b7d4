"""K-means on feature rows: no group is empty, and the labels do not depend on the number of cores."""

import warnings

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.strategies.clustering.grouping import Labels, canonical, require_groups
from fedsim.strategies.clustering.similarity import require_finite

_SAME = 1e-9  # rows nearer than this share of the largest value are one point


def kmeans(
    features: NDArray[np.floating], groups: int, generator: np.random.Generator, max_iter: int = 20, restarts: int = 10
) -> Labels:
    """The best of some runs of Lloyd's algorithm from k-means++ starts (the defaults are those of FlexCFL's code).

    Args:
        features: [n, k].
        groups: how many groups; each gets at least one member.
        generator: for the starts.
        max_iter: of Lloyd's iterations in each run.
        restarts: runs.

    Returns:
        int64 [n], groups numbered by their first member.

    Raises:
        SimulationError: there are fewer distinct rows than groups.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]

    rows = np.ascontiguousarray(features, dtype=np.float64)
    _require_distinct(rows, groups)
    seed = int(generator.integers(2**32))
    model = KMeans(groups, init="k-means++", n_init=restarts, max_iter=max_iter, random_state=seed)
    # Several threads would add up the centres in the order in which they happen to finish.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer groups than asked for: mended below
        labels = model.fit(rows).labels_
    return canonical(with_all_groups(rows, labels.astype(np.int64), groups))


def with_all_groups(rows: NDArray[np.float64], labels: Labels, groups: int) -> Labels:
    """The grouping with each empty group given the row farthest from the mean of its own group of several."""
    labels = labels.copy()
    while len(empty := np.setdiff1d(np.arange(groups), labels)):
        sizes = np.bincount(labels, minlength=groups)
        means = np.stack([rows[labels == group].mean(axis=0) if sizes[group] else rows[0] for group in range(groups)])
        away = np.linalg.norm(rows - means[labels], axis=1)
        labels[np.argmax(np.where(sizes[labels] > 1, away, -1.0))] = empty[0]
    return labels


def _require_distinct(rows: NDArray[np.float64], groups: int) -> None:
    """Refuse what has fewer distinct rows than groups; rows that differ by rounding alone count as one."""
    require_groups(groups, len(rows), "k-means")
    require_finite(np.abs(rows).max(axis=1, initial=0.0))
    same = _SAME * float(np.abs(rows).max(initial=0.0))
    nearest = np.linalg.norm(rows - rows[0], axis=1)
    for found in range(1, groups):
        farthest = int(np.argmax(nearest))
        if nearest[farthest] <= same:
            raise SimulationError(
                f"k-means into {groups} groups needs as many distinct feature rows, and the {len(rows)} devices have {found}"
            )
        nearest = np.minimum(nearest, np.linalg.norm(rows - rows[farthest], axis=1))
