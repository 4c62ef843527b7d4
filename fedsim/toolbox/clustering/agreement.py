"""Agreement of a grouping with the true one; each measure is 1 when both are the same up to the
groups' names.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Grouping = Sequence[int] | NDArray[np.int64]


def measures(groups: Grouping, truth: Grouping) -> dict[str, float]:
    """Purity, adjusted Rand index and normalised mutual information, by their columns in the
    rounds.

    ``groups`` and ``truth`` are the group of every device and its true one, ints [n]. Devices
    without a group (-1) are left out; one at least must have one. Purity is the share of devices
    that are of the commonest true kind in their group.
    """
    from sklearn.metrics import adjusted_rand_score
    from sklearn.metrics.cluster import contingency_matrix

    found = np.asarray(groups)
    real = np.asarray(truth)
    real = real[found >= 0]
    found = found[found >= 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of as many groups as devices
        table = contingency_matrix(found, real)
        ari = float(adjusted_rand_score(real, found))
    return {
        "purity": int(table.max(axis=1).sum()) / len(real),
        "ari": ari,
        "nmi": normalised_mutual_information(table),
    }


def normalised_mutual_information(table: NDArray[np.int64]) -> float:
    """Mutual information by the mean of the two entropies, in [0, 1]; ``table`` counts devices
    by group and kind.
    """
    n = int(table.sum())
    margins = (table.sum(axis=1), table.sum(axis=0))
    mean = sum(-float((counts / n * np.log(counts / n)).sum()) for counts in margins) / 2
    if mean == 0:
        return 1.0
    rows, columns = np.nonzero(table)
    cells = table[rows, columns]
    # Whole numbers in the ratio: independent groupings give the logarithm of exactly 1.
    ratios = (cells * n) / (margins[0][rows] * margins[1][columns])
    return min(max(float((cells / n * np.log(ratios)).sum()) / mean, 0.0), 1.0)
