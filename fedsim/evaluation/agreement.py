"""Agreement of a grouping with the true one; each measure is 1 when both are the same up to the groups' names.

Each takes the group of every device and its true one, ints [n]; a device that has no group yet (-1) is left out. Without any
group, or with unequal lengths, each raises ``SimulationError``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError

Grouping = Sequence[int] | NDArray[np.int64]


def purity(groups: Grouping, truth: Grouping) -> float:
    """Share of devices that are of the commonest true kind in their group; 1 also when every device is alone."""
    table = _contingency(groups, truth)
    largest = np.zeros_like(table.groups)
    np.maximum.at(largest, table.rows, table.cells)
    return int(largest.sum()) / table.n


def adjusted_rand_index(groups: Grouping, truth: Grouping) -> float:
    """Pairs of devices on which both agree, less those by chance (Hubert and Arabie, 1985): 0 for chance; may be negative."""
    table = _contingency(groups, truth)
    both, found, real = _pairs(table.cells), _pairs(table.groups), _pairs(table.kinds)
    pairs = table.n * (table.n - 1) // 2
    # (both - expected) / (mean of found and real - expected), times twice the number of pairs so that all is whole.
    spread = pairs * (found + real) - 2 * found * real
    return 2 * (pairs * both - found * real) / spread if spread else 1.0


def normalised_mutual_information(groups: Grouping, truth: Grouping) -> float:
    """Mutual information by the mean of the two entropies, in [0, 1]; 1 where neither of them separates anything."""
    table = _contingency(groups, truth)
    mean = (_entropy(table.groups, table.n) + _entropy(table.kinds, table.n)) / 2
    if mean == 0:
        return 1.0
    # Whole numbers in the ratio: independent groupings give the logarithm of exactly 1.
    ratios = (table.cells * table.n) / (table.groups[table.rows] * table.kinds[table.columns])
    information = float((table.cells / table.n * np.log(ratios)).sum())
    return min(max(information / mean, 0.0), 1.0)


class _Contingency(NamedTuple):
    """Devices in all, of each pair (row, column) of a group and a true kind that occurs, of each group and of each kind."""

    n: int
    cells: NDArray[np.int64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    groups: NDArray[np.int64]
    kinds: NDArray[np.int64]


def _contingency(groups: Grouping, truth: Grouping) -> _Contingency:
    found, real = np.asarray(groups, dtype=np.int64), np.asarray(truth, dtype=np.int64)
    if found.shape != real.shape:
        raise SimulationError(f"the groups of {found.size} devices cannot be compared with the true ones of {real.size}")
    real, found = real[found >= 0], found[found >= 0]
    if not found.size:
        raise SimulationError(f"none of {len(groups)} devices has a group, so that there is nothing to compare with the truth")
    _, row, by_group = np.unique(found, return_inverse=True, return_counts=True)
    _, column, by_kind = np.unique(real, return_inverse=True, return_counts=True)
    places, cells = np.unique(row * len(by_kind) + column, return_counts=True)
    rows, columns = np.divmod(places, len(by_kind))
    return _Contingency(found.size, cells, rows, columns, by_group, by_kind)


def _pairs(counts: NDArray[np.int64]) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _entropy(counts: NDArray[np.int64], n: int) -> float:
    shares = counts / n
    return -float((shares * np.log(shares)).sum())
