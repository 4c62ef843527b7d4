"""A grouping as labels [n] and as lists of members."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError

Labels = NDArray[np.int64]


def canonical(labels: Sequence[int] | NDArray[np.integer]) -> Labels:
    """The same grouping, int64 [n], with groups numbered 0, 1, ... by their first member."""
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbered: Labels = rank[inverse]
    return numbered


def members(labels: Labels) -> list[list[int]]:
    """Who is in each group 0, 1, ..., in ascending order."""
    count = int(labels.max(initial=-1)) + 1
    return [np.flatnonzero(labels == group).tolist() for group in range(count)]


def require_groups(groups: int, devices: int, method: str) -> None:
    """There are devices for every group.

    Raises:
        SimulationError: there are not, or there is no group.
    """
    if not 1 <= groups <= devices:
        raise SimulationError(f"{method} into {groups} groups of {devices} devices; allowed are 1 to {devices} groups")


def require_square(matrix: NDArray[np.float64], what: str) -> None:
    """A similarity or a distance of every two devices, all finite.

    Raises:
        SimulationError: it is empty, of another shape, or a value is not a finite number.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise SimulationError(f"the {what} has shape {matrix.shape}; allowed is [n, n] with n >= 1")
    if not np.isfinite(matrix).all():
        row, column = (int(index) for index in np.argwhere(~np.isfinite(matrix))[0])
        raise SimulationError(f"the {what} of devices {row} and {column} is {matrix[row, column]}, no finite number")
