"""When a cluster is split, and how (CFL, Algorithms 1 and 2): numbers in, numbers out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.strategies.clustering.similarity import length

Updates = Sequence[NDArray[np.float32]] | NDArray[np.floating]


class Lengths(NamedTuple):
    """Lengths of a cluster's updates in a round.

    Attributes:
        mean: of their weighted mean: how far the cluster's model moves.
        longest: of the longest.
    """

    mean: float
    longest: float


class Thresholds(NamedTuple):
    """What the lengths are compared with.

    Attributes:
        eps1: below it a cluster has converged.
        eps2: below it all clients have.
    """

    eps1: float
    eps2: float


def lengths(updates: Updates, weights: Sequence[float]) -> Lengths:
    """The lengths that the criteria are about.

    Args:
        updates: of a cluster's clients, float [k, d] with k >= 1, all finite.
        weights: of each in the mean; scaled here to a sum of 1.
    """
    total = np.zeros(len(updates[0]))
    for update, weight in zip(updates, weights, strict=True):
        total += update * np.float64(weight / sum(weights))
    return Lengths(length(total), max(length(update) for update in updates))


def is_incongruent(found: Lengths, thresholds: Thresholds) -> bool:
    """Whether a cluster must be split: it has converged (Algorithm 1, line 8), but not for each of its clients (Eq. 5)."""
    return found.mean < thresholds.eps1 and found.longest >= thresholds.eps2
