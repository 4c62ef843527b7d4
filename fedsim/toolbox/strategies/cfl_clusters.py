"""Clusters of CFL, the norms of updates by which CFL splits them, and splits to be carried out."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats32
from fedsim.common.saved import saved
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.toolbox.clustering.similarity import Matrix, length


class Norms(NamedTuple):
    """L2 norms of a cluster's mean update and of its longest update in a round of CFL.

    CFL splits a cluster if its mean update is short while its longest update is long. The norms are
    fields of the run's events ``cluster-criteria`` and ``cluster-split``.
    """

    mean_norm: float
    """Norm of the weighted mean of the updates (Algorithm 1, line 8)."""
    max_norm: float
    """Norm of the longest update (Eq. 5)."""


class NormLimits(NamedTuple):
    """Limits of the ``Norms`` of a cluster, from the keys of ``CFLParams``.

    CFL splits a cluster whose mean update is shorter than ``eps1``, and whose longest update is at
    least ``eps2`` long.
    """

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
        weights: the weight of each update in the mean, [k]; their sum need not be 1.
    """
    mean = np.zeros(len(updates[0]))
    for update, weight in zip(updates, weights, strict=True):
        # numpy multiplies float32 updates by a float64 scalar in float64
        mean += update * np.float64(weight / sum(weights))
    longest = max(length(update) for update in updates)
    return Norms(length(mean), longest)


def is_incongruent(norms: Norms, limits: NormLimits) -> bool:
    """Return whether CFL must split a cluster: it has converged, but its clients' updates disagree.

    It has converged if the norm of its mean update is below ``eps1``. The updates disagree if the
    norm of the longest update is at least ``eps2``.

    Args:
        norms: norms of the cluster's mean update and of its longest update.
        limits: ``eps1`` and ``eps2``.
    """
    return norms.mean_norm < limits.eps1 and norms.max_norm >= limits.eps2


@saved()
class ModelChange(NamedTuple):
    """Change of a model by a client's training, as a pair of models.

    Attributes:
        trained: the model after the training.
        start: the model before the training.
    """

    trained: Ref
    start: Ref

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Return the change of the model by the training of a received update.

        Args:
            entry: the update, with the trained model and the model from which it was trained.
        """
        return cls(entry["update"], entry["start"])


class Cluster(NamedTuple):
    """Cluster of clients in CFL, with the finite updates that they have sent in a round.

    Attributes:
        group: index of the cluster.
        entries: the received updates with their tasks and devices, sorted by device ID.
        updates: trained minus received model of each entry, float32 [d] each.
        norms: L2 norms of the mean update and of the longest update.
    """

    group: int
    entries: list[Entry]
    updates: list[Floats32]
    norms: Norms


class Cut(NamedTuple):
    """Split of a cluster of CFL into two parts, computed but not yet carried out.

    Attributes:
        group: index of the cluster.
        entries: the received updates of the cluster's clients, sorted by device ID.
        sides: positions in ``entries`` of the clients of the first and of the second part.
        criteria: the norms of the updates, and the largest cosine of two updates in different
            parts, as fields of the record ``cluster-split``; empty if the split is random.
        cosines: cosines of all pairs of updates, float64 [n, n]; None if the split is random.
    """

    group: int
    entries: list[Entry]
    sides: tuple[list[int], list[int]]
    criteria: dict[str, float]
    cosines: Matrix | None
