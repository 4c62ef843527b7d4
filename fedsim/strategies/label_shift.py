"""What a device does to notice that its data have shifted (FlexCFL, section 4.3, Eq. 9)."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

Metric = Literal["aligned_l1", "sorted_counts", "oracle"]


def distance(counts: Counts, reference: Counts, metric: Metric) -> float:
    """How far a device's label counts [C] are from its reference, per class.

    ``aligned_l1`` compares label by label. ``sorted_counts`` is the Wasserstein distance of the two count vectors taken as
    samples, as the published code computes it: it does not see labels that change places. For ``oracle`` any distance is far.
    """
    if metric == "oracle":
        return float("inf")
    if metric == "sorted_counts":
        counts, reference = np.sort(counts), np.sort(reference)
    return float(np.abs(counts - reference).sum() / len(counts))


def threshold(first: Counts, share: float) -> float:
    """tau_i = share n_i / C, from the label counts [C] of the device's first data."""
    return share * float(first.sum()) / len(first)
