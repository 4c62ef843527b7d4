"""Agreement of a grouping with the true one.

Each measure is 1 if the two groupings are equal up to the names of groups.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Grouping = Sequence[int] | NDArray[np.int64]


def measures(groups: Grouping, truth: Grouping) -> dict[str, float]:
    """Purity, adjusted Rand index and normalised mutual information of a grouping.

    Purity is the share of devices that are of the commonest true group in their group. Devices
    without a group are left out.

    Args:
        groups: the group of each device, ints [n]; -1 for none, but not for all.
        truth: the true group of each device, ints [n].

    Returns:
        The measures by their columns in the table of rounds.
    """
    from sklearn.metrics import adjusted_rand_score
    from sklearn.metrics.cluster import contingency_matrix

    grouped = np.asarray(groups) >= 0
    labels = np.asarray(groups)[grouped]
    true_labels = np.asarray(truth)[grouped]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of as many groups as devices
        table = contingency_matrix(labels, true_labels)
        ari = float(adjusted_rand_score(true_labels, labels))
    return {
        "purity": int(table.max(axis=1).sum()) / len(true_labels),
        "ari": ari,
        "nmi": normalised_mutual_information(table),
    }


def normalised_mutual_information(table: NDArray[np.int64]) -> float:
    """Mutual information divided by the mean of the two entropies, in [0, 1].

    Args:
        table: the number of devices in each group of each true group, [groups, true groups].
    """
    n = int(table.sum())
    row_sums = table.sum(axis=1)
    column_sums = table.sum(axis=0)
    mean = (_entropy(row_sums / n) + _entropy(column_sums / n)) / 2
    if mean == 0:
        return 1.0
    rows, columns = np.nonzero(table)
    cells = table[rows, columns]
    # Whole numbers in the ratio: independent groupings give the logarithm of exactly 1.
    ratios = (cells * n) / (row_sums[rows] * column_sums[columns])
    information = float((cells / n * np.log(ratios)).sum())
    return min(max(information / mean, 0.0), 1.0)


def _entropy(shares: NDArray[np.float64]) -> float:
    return -float((shares * np.log(shares)).sum())
