"""Agreement of a grouping with the true one; each measure is 1 when both are the same up to the groups' names."""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Grouping = Sequence[int] | NDArray[np.int64]


def measures(groups: Grouping, truth: Grouping) -> dict[str, float]:
    """Purity, adjusted Rand index and normalised mutual information, by their columns in the rounds.

    ``groups`` and ``truth`` are the group of every device and its true one, ints [n]. Devices without a group (-1) are left
    out; one at least must have one. Purity is the share of devices that are of the commonest true kind in their group.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    found, real = np.asarray(groups), np.asarray(truth)
    real, found = real[found >= 0], found[found >= 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of as many groups as devices
        purity = int(contingency_matrix(found, real).max(axis=1).sum()) / len(real)
        ari, nmi = float(adjusted_rand_score(real, found)), float(normalized_mutual_info_score(real, found))
    return {"purity": purity, "ari": ari, "nmi": min(nmi, 1.0)}  # which rounding may exceed
