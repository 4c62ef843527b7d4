"""Distances of devices whose losses, models or updates are finite."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedsim.toolbox.clustering.similarity import Matrix, cosine_matrix, loss_distance

Rows: TypeAlias = NDArray[np.floating]


class ModelComparison(NamedTuple):
    """Pairwise distances of devices, by their losses, models or updates, for a clustering.

    Devices with numbers that are not finite are left out.

    Attributes:
        positions: positions of the remaining devices among all compared devices, ascending.
        distances: distances of all pairs of these devices, float64 [m, m] with m = len(positions).
    """

    positions: list[int]
    distances: Matrix


def by_losses(
    losses: Matrix, measure: Callable[[Matrix], Matrix] = loss_distance
) -> ModelComparison:
    """Compute distances of devices from the losses of their models on each other's data.

    Devices are left out in two steps: first each device whose model has a non-finite loss on the
    device's own data, then each device whose model has a non-finite loss on the data of any
    remaining device.

    Args:
        losses: L_i(w_j), the loss of the model of device j on the data of device i, float64 [n, n]
            with i as the row.
        measure: function of these losses that returns distances: ``loss_distance`` (LCFL, Eq. 2) or
            ``loss_gap`` (LCFL, Eq. 6).

    Returns:
        Positions of the remaining devices, and their distances.
    """
    with_own_loss = np.flatnonzero(np.isfinite(losses.diagonal()))
    is_finite = np.isfinite(losses[np.ix_(with_own_loss, with_own_loss)]).all(axis=0)
    positions = with_own_loss[is_finite]
    if not len(positions):
        return ModelComparison([], np.zeros((0, 0)))
    distances = measure(losses[np.ix_(positions, positions)])
    return ModelComparison(positions.tolist(), distances)


def by_rows(rows: Sequence[Rows], measure: Callable[[Rows], Matrix]) -> ModelComparison:
    """Compute distances of devices from their models or updates.

    Devices whose model or update has a non-finite number are left out.

    Args:
        rows: the model or update of each device, [d] each.
        measure: function of the stacked models or updates [n, d] that returns distances [n, n].

    Returns:
        Positions of the remaining devices in ``rows``, and their distances.
    """
    positions = [position for position, row in enumerate(rows) if np.isfinite(row).all()]
    if not positions:
        return ModelComparison([], np.zeros((0, 0)))
    finite_rows = np.stack([rows[position] for position in positions])
    return ModelComparison(positions, measure(finite_rows))


def cosine_distances(rows: Rows) -> Matrix:
    """Compute 1 minus the cosine of each pair of rows.

    Args:
        rows: vectors, such as models, one a row, [n, d].

    Returns:
        Distances, float64 [n, n].
    """
    return 1.0 - cosine_matrix(rows)
