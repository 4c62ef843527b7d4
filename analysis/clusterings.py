"""What a server saw when it put devices into groups by their models: the ``clustering`` records of a run."""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedsim.errors import RunFolderError
from fedsim.records.folder import EVENTS
from fedsim.records.reading import RunFolder

Matrix = NDArray[np.float64]
_ORDERED_WELL = 300  # of more the best of the trees' orders takes too long to find


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
    devices: NDArray[np.int64]
    groups: NDArray[np.int64]
    similarity: Matrix | None
    distance: Matrix | None
    features: Matrix | None

    @property
    def matrix(self) -> Matrix | None:
        """The similarity, or the distance, [n, n]."""
        return self.distance if self.similarity is None else self.similarity

    def order(self) -> NDArray[np.int64]:
        """Positions [n] by group, and within a group like ones together (as they come where there is no matrix)."""
        matrix = self.matrix
        if matrix is None:
            return np.argsort(self.groups, kind="stable")
        apart = matrix if self.similarity is None else -matrix
        members = [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]
        return np.concatenate([own[_side_by_side(apart[np.ix_(own, own)])] for own in members])


def _side_by_side(apart: Matrix) -> NDArray[np.int64]:
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
    leaves: NDArray[np.int64] = leaves_list(tree).astype(np.int64)
    return leaves if leaves[0] < leaves[-1] else leaves[::-1]


def read_clusterings(run: RunFolder) -> list[Clustering]:
    """Every clustering of the run, in order.

    Raises:
        RunFolderError: the events are missing or damaged.
    """
    table = run.table(EVENTS)
    rows = table.filter(pc.equal(table.column("kind").cast("string"), "clustering")).to_pylist()
    return [_clustering(run, row["time"], row["round"], json.loads(row["data"])) for row in rows]


def _clustering(run: RunFolder, time: float, number: int | None, data: dict[str, list[float]]) -> Clustering:
    devices, groups = (np.array(data[key], dtype=np.int64) for key in ("devices", "groups"))
    n = len(devices)
    similarity, distance, features = (_array(data.get(key)) for key in ("similarity", "distance", "features"))
    square = all(matrix is None or matrix.shape == (n, n) for matrix in (similarity, distance))
    if len(groups) != n or not square or (features is not None and (features.ndim != 2 or len(features) != n)):
        where = f"{EVENTS} of {str(run.path)!r} is damaged"
        raise RunFolderError(f"{where}: the clustering at {time:g} s does not fit its {n} devices")
    return Clustering(time, number, str(data.get("measure", "")), devices, groups, similarity, distance, features)


def _array(value: list[float] | None) -> Matrix | None:
    return None if value is None else np.array(value, dtype=np.float64)
