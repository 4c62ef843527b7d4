"""Clusters of CFL: the norms that decide on their splits, and splits that are not yet carried out."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats32
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.toolbox.clustering.similarity import Matrix, length


class Norms(NamedTuple):
    """L2 norms of a cluster's updates: fields of the records ``cluster-criteria`` and ``-split``."""

    mean_norm: float
    """Norm of the weighted mean of the updates (Algorithm 1, line 8)."""
    max_norm: float
    """Norm of the longest update (Eq. 5)."""


class NormLimits(NamedTuple):
    """Limits of two norms of a cluster's updates, at which CFL splits it (``CFLParams``)."""

    eps1: float
    """Limit of the mean update's norm: a cluster whose norm is below it has converged."""
    eps2: float
    """Limit of the longest update's norm: if it is reached, the clients are incongruent."""


def norms_of(
    updates: Sequence[NDArray[np.floating]] | NDArray[np.floating], weights: Sequence[float]
) -> Norms:
    """Compute the L2 norms of a cluster's mean update and of its longest update.

    Args:
        updates: the updates of the cluster's clients (trained minus received model), [k, d].
        weights: the weight of each update in the mean, [k].
    """
    mean = np.zeros(len(updates[0]))
    for update, weight in zip(updates, weights, strict=True):
        mean += update * np.float64(weight / sum(weights))
    longest = max(length(update) for update in updates)
    return Norms(length(mean), longest)


def is_incongruent(norms: Norms, limits: NormLimits) -> bool:
    """Return whether CFL must split a cluster, as it has converged but its clients disagree.

    Args:
        norms: norms of the cluster's mean update and of its longest update.
        limits: the limits of both.
    """
    return norms.mean_norm < limits.eps1 and norms.max_norm >= limits.eps2


class ModelChange(NamedTuple):
    """Change of a model by a client's training: the trained model, and the model before."""

    trained: Ref
    start: Ref

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Return the change of a model that a received update stands for.

        Args:
            entry: the update, with the trained model and the model from which it was trained.
        """
        return cls(entry["update"], entry["start"])


class Cluster(NamedTuple):
    """Cluster of clients in CFL, with the finite updates that they have sent in a round.

    Attributes:
        group: index of the cluster.
        entries: the received updates with their tasks and devices, by device.
        updates: trained minus received model of each entry, float32 [d] each.
        norms: L2 norms of the mean update and of the longest.
    """

    group: int
    entries: list[Entry]
    updates: list[Floats32]
    norms: Norms


class Cut(NamedTuple):
    """Split of a cluster of CFL into two parts, computed but not yet carried out.

    Attributes:
        group: index of the cluster.
        entries: the received updates of the cluster's clients, by device.
        sides: positions in ``entries`` of the clients of the first and of the second part.
        criteria: additional fields of the record ``cluster-split`` of the run's events.
        cosines: cosines of all pairs of updates, float64 [n, n]; None if the split is random.
    """

    group: int
    entries: list[Entry]
    sides: tuple[list[int], list[int]]
    criteria: dict[str, float]
    cosines: Matrix | None
