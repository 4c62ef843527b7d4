"""Clusterings by models: what a server saw when it put devices into groups, from the ``clustering`` records of a run."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.analysis import style
from fedsim.analysis.history import History
from fedsim.arrays import Floats, Ints
from fedsim.errors import RunFolderError
from fedsim.language.units import show_seconds
from fedsim.records.folder import EVENTS

_ORDERED_WELL = 300  # of more the best of the trees' orders takes too long to find
_MOST = 6  # clusterings in one picture


@dataclass(frozen=True)
class Clustering:
    """One ``clustering`` record.

    Attributes:
        time: when (s).
        round: for which round; None where it belongs to none.
        measure: what was compared, by the strategy's name for it; empty if it says none.
        devices: those that were clustered, int64 [n].
        groups: the group of each, int64 [n].
        similarity, distance: of every two, [n, n]; None where it was not recorded.
        features: what was clustered, [n, m]; None where it was not recorded.
    """

    time: float
    round: int | None
    measure: str
    devices: Ints
    groups: Ints
    similarity: Floats | None
    distance: Floats | None
    features: Floats | None

    @property
    def matrix(self) -> Floats | None:
        """The similarity, or the distance, [n, n]."""
        return self.distance if self.similarity is None else self.similarity

    @property
    def title(self) -> str:
        """When, how many devices, and in how many groups."""
        when = f"after {show_seconds(self.time)}" if self.round is None else f"round {self.round}"
        return f"{when}: {len(self.devices)} devices in {style.counted(len(np.unique(self.groups)), 'group')}"

    def order(self) -> Ints:
        """Positions [n] by group, and within a group like ones together (as they come where there is no matrix)."""
        matrix = self.matrix
        if matrix is None:
            return np.argsort(self.groups, kind="stable")
        apart = matrix if self.similarity is None else -matrix
        members = [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]
        return np.concatenate([own[_side_by_side(apart[np.ix_(own, own)])] for own in members])


def _side_by_side(apart: Floats) -> Ints:
    """Positions [n] such that those little apart lie together: the leaves of a tree of average linkage.

    Args:
        apart: how far apart every two are, [n, n], on any scale; unknown (NaN) counts as furthest.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    n = len(apart)
    if n < 3:
        return np.arange(n)
    both = (apart + apart.T) / 2
    off = ~np.eye(n, dtype=bool) & np.isfinite(both)
    low, high = (both[off].min(), both[off].max()) if off.any() else (0.0, 1.0)
    distance = np.where(np.isfinite(both), both, high) - low
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=n <= _ORDERED_WELL)
    leaves: Ints = leaves_list(tree).astype(np.int64)
    return leaves if leaves[0] < leaves[-1] else leaves[::-1]


def read_clusterings(history: History) -> list[Clustering]:
    """Every clustering of a run, in order.

    Raises:
        RunFolderError: the events are missing or damaged.
    """
    return [_clustering(history, row) for row in history.data("clustering")]


def _clustering(history: History, row: dict[str, Any]) -> Clustering:
    data, time, number = row["data"], row["time"], row["round"]
    devices, groups = (np.array(data[key], dtype=np.int64) for key in ("devices", "groups"))
    n = len(devices)
    similarity, distance, features = (
        None if data.get(key) is None else np.array(data[key], dtype=np.float64)
        for key in ("similarity", "distance", "features")
    )
    square = all(matrix is None or matrix.shape == (n, n) for matrix in (similarity, distance))
    if len(groups) != n or not square or (features is not None and (features.ndim != 2 or len(features) != n)):
        where = f"{EVENTS} of {str(history.run.path)!r} is damaged"
        raise RunFolderError(f"{where}: the clustering at {time:g} s does not fit its {n} devices")
    at = None if number is None else int(number)
    return Clustering(time, at, str(data.get("measure", "")), devices, groups, similarity, distance, features)


def some_of(found: list[Clustering]) -> list[Clustering]:
    """The first, the last, and some between, of more than six."""
    return [found[place] for place in style.evenly(len(found), _MOST)] if found else []
