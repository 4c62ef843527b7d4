"""Agreement of a grouping with the true one; each measure is 1 when both are the same up to the groups' names.

Each takes the group of every device and its true one, ints [n]; a device that has no group yet (-1) is left out. Without any
group, or with unequal lengths, each raises ``SimulationError``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError

Counts = NDArray[np.int64]
Grouping = Sequence[int] | Counts


def measures(groups: Grouping, truth: Grouping) -> dict[str, float]:
    """All measures by their columns in the rounds."""
    found = {"purity": purity, "ari": adjusted_rand_index, "nmi": normalised_mutual_information}
    return {name: measure(groups, truth) for name, measure in found.items()}


def purity(groups: Grouping, truth: Grouping) -> float:
    """Share of devices that are of the commonest true kind in their group; 1 also when every device is alone."""
    cells, (rows, _), (by_group, _) = _contingency(groups, truth)
    largest = np.zeros_like(by_group)
    np.maximum.at(largest, rows, cells)
    return int(largest.sum()) / int(cells.sum())


def adjusted_rand_index(groups: Grouping, truth: Grouping) -> float:
    """Pairs of devices on which both agree, less those by chance (Hubert and Arabie, 1985): 0 for chance; may be negative."""
    cells, _, margins = _contingency(groups, truth)
    n = int(cells.sum())
    both, found, real, pairs = (int((counts * (counts - 1) // 2).sum()) for counts in (cells, *margins, np.array([n])))
    # (both - expected) / (mean of found and real - expected), times twice the number of pairs so that all is whole.
    spread = pairs * (found + real) - 2 * found * real
    return 2 * (pairs * both - found * real) / spread if spread else 1.0


def normalised_mutual_information(groups: Grouping, truth: Grouping) -> float:
    """Mutual information by the mean of the two entropies, in [0, 1]; 1 where neither of them separates anything."""
    cells, (rows, columns), (by_group, by_kind) = _contingency(groups, truth)
    n = int(cells.sum())
    mean = sum(-float((counts / n * np.log(counts / n)).sum()) for counts in (by_group, by_kind)) / 2
    if mean == 0:
        return 1.0
    # Whole numbers in the ratio: independent groupings give the logarithm of exactly 1.
    ratios = (cells * n) / (by_group[rows] * by_kind[columns])
    information = float((cells / n * np.log(ratios)).sum())
    return min(max(information / mean, 0.0), 1.0)


def _contingency(groups: Grouping, truth: Grouping) -> tuple[Counts, tuple[Counts, Counts], tuple[Counts, Counts]]:
    """Devices of each pair of a group and a true kind that occurs, its row and column, and devices of each group and kind."""
    found, real = np.asarray(groups, dtype=np.int64), np.asarray(truth, dtype=np.int64)
    if found.shape != real.shape:
        raise SimulationError(f"the groups of {found.size} devices cannot be compared with the true ones of {real.size}")
    real, found = real[found >= 0], found[found >= 0]
    if not found.size:
        raise SimulationError(f"none of {len(groups)} devices has a group, so that there is nothing to compare with the truth")
    _, row, by_group = np.unique(found, return_inverse=True, return_counts=True)
    _, column, by_kind = np.unique(real, return_inverse=True, return_counts=True)
    places, cells = np.unique(row * len(by_kind) + column, return_counts=True)
    return cells, np.divmod(places, len(by_kind)), (by_group, by_kind)
