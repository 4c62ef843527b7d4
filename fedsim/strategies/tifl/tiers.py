"""The rules of TiFL's tiers: who belongs together, and how likely each tier is chosen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bins = tuple[float, float]
"""Equal-width bins: where the first begins, and how wide each is."""


def equal_width_bins(values: NDArray[np.float64], tiers: int) -> Bins:
    """Bins over [min, max] of ``values`` [n], outliers included."""
    low, high = float(values.min()), float(values.max())
    return low, (high - low) / tiers


def tier_numbers(values: NDArray[np.float64], tiers: int, bins: Bins) -> NDArray[np.int64]:
    """The tier of each value, int64 [n], from 0; a value between two tiers belongs to the upper, one outside to the nearest."""
    low, width = bins
    if width == 0:
        return np.where(values > low, tiers - 1, 0).astype(np.int64)
    return np.clip(np.floor((values - low) / width), 0, tiers - 1).astype(np.int64)


def credit_probabilities(accuracies: Sequence[float | None], credits: Sequence[int]) -> list[float]:  # noqa: A002
    """How likely each tier is chosen from now on: the lower its accuracy, the likelier (TiFL's ``ChangeProbs``).

    Of the n tiers with credits, in ascending order of accuracy, the one of rank r = 0..n-1 gets (n - r) / (n (n + 1) / 2);
    equals go by their number. A tier without credits gets 0; one of unknown accuracy (None) stands first.
    """
    able = [tier for tier, left in enumerate(credits) if left > 0]
    able.sort(key=lambda tier: (-1.0 if accuracies[tier] is None else accuracies[tier], tier))
    n = len(able)
    probabilities = [0.0] * len(credits)
    for rank, tier in enumerate(able):
        probabilities[tier] = (n - rank) / (n * (n + 1) / 2)
    return probabilities
