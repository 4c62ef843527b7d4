"""Comparison of devices by their finite losses, models or updates."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.toolbox.clustering.similarity import Matrix, cosine_matrix, loss_distance

Rows: TypeAlias = NDArray[np.floating]


class ModelComparison(NamedTuple):
    """Distances of the devices whose losses, models or updates are finite.

    Attributes:
        positions: the devices, as positions in the compared sequence, ascending.
        distances: float64 [len(positions), len(positions)].
    """

    positions: list[int]
    distances: Matrix


def by_losses(
    losses: Matrix, measure: Callable[[Matrix], Matrix] = loss_distance
) -> ModelComparison:
    """Compare devices by the losses of their models on each other's data.

    Leaves out devices with a non-finite loss of their own model on their own data. Then leaves out
    devices whose model has a non-finite loss on any data.

    Args:
        losses: L_i(w_j), float64 [n, n]: data of device i a row, model of device j a column.
        measure: ``loss_distance`` (LCFL, Eq. 2) or ``loss_gap`` (LCFL, Eq. 6).
    """
    learners = np.flatnonzero(np.isfinite(losses.diagonal()))
    is_finite = np.isfinite(losses[np.ix_(learners, learners)]).all(axis=0)
    positions = learners[is_finite]
    if not len(positions):
        return ModelComparison([], np.zeros((0, 0)))
    return ModelComparison(positions.tolist(), measure(losses[np.ix_(positions, positions)]))


def by_rows(rows: Sequence[Rows], measure: Callable[[Rows], Matrix]) -> ModelComparison:
    """Compare devices by models or updates, without non-finite models or updates.

    Args:
        rows: a model or an update [d] of each device.
        measure: computes the distances [n, n] of n rows [n, d].
    """
    positions = [position for position, row in enumerate(rows) if np.isfinite(row).all()]
    if not positions:
        return ModelComparison([], np.zeros((0, 0)))
    return ModelComparison(positions, measure(np.stack([rows[position] for position in positions])))


def cosine_distances(rows: Rows) -> Matrix:
    """1 minus the cosine of each pair of ``rows`` [n, d], float64 [n, n]."""
    return 1.0 - cosine_matrix(rows)
