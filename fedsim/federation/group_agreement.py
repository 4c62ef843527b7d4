"""Measures of the agreement of a grouping of devices with the true grouping.

Each measure is 1 if the two groupings are equal except for the numbering of groups.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Grouping = Sequence[int] | NDArray[np.int64]


def measure_agreement(groups: Grouping, truth: Grouping) -> dict[str, float]:
    """Compute how well a grouping of devices agrees with the true grouping, by three measures.

    A true group is a set of devices whose data are alike. The measures are purity, adjusted Rand
    index and normalised mutual information; each is 1 if the groupings are equal except for the
    numbering of groups. Purity is the share of devices whose true group is the most frequent one in
    their group. Devices without a group are left out.

    Args:
        groups: the group index of each device, ints [n]; -1 for a device without a group. At least
            one device must have a group.
        truth: the true group index of each device, ints [n].

    Returns:
        Column in the table of rounds (``purity``, ``ari``, ``nmi``) -> measure.
    """
    from sklearn.metrics import adjusted_rand_score
    from sklearn.metrics.cluster import contingency_matrix

    has_group = np.asarray(groups) >= 0
    labels = np.asarray(groups)[has_group]
    true_labels = np.asarray(truth)[has_group]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sklearn warns if every group has one device
        # count of devices in each pair of groups, [groups, true groups]
        table = contingency_matrix(labels, true_labels)
        ari = float(adjusted_rand_score(true_labels, labels))
    return {
        "purity": int(table.max(axis=1).sum()) / len(true_labels),
        "ari": ari,
        "nmi": normalised_mutual_information(table),
    }


def normalised_mutual_information(table: NDArray[np.int64]) -> float:
    """Compute the mutual information of two groupings, divided by the mean of their entropies.

    Args:
        table: count of devices in each pair of a group and a true group, [groups, true groups].

    Returns:
        A value from 0 to 1; 1 if both groupings have only one group.
    """
    n = int(table.sum())
    row_sums = table.sum(axis=1)
    column_sums = table.sum(axis=0)
    mean_entropy = (_entropy(row_sums / n) + _entropy(column_sums / n)) / 2
    if mean_entropy == 0:
        return 1.0
    # the sum of p(r, c) log(p(r, c) / (p(r) p(c))) over the pairs (r, c) that have devices
    rows, columns = np.nonzero(table)
    counts = table[rows, columns]
    # Both products are integers. If the groupings are independent, the ratio is therefore exactly
    # 1, and its logarithm 0.
    ratios = (counts * n) / (row_sums[rows] * column_sums[columns])
    information = float((counts / n * np.log(ratios)).sum())
    return min(max(information / mean_entropy, 0.0), 1.0)


def _entropy(shares: NDArray[np.float64]) -> float:
    return -float((shares * np.log(shares)).sum())
