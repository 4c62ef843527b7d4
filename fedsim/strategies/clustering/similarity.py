"""Lengths, inner products and cosines of high-dimensional rows, such as the flattened updates of devices."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError

Rows = NDArray[np.floating]
Matrix = NDArray[np.float64]

_BLOCK_BYTES = 64_000_000  # how much of the rows is held in float64 at a time


def gram_matrix(rows: Rows) -> Matrix:
    """Inner products of all pairs of ``rows`` [n, d], float64 [n, n], exactly symmetric, in O(n^2 d).

    Float32 rows are summed in float64: near-parallel updates differ in digits that float32 sums do not have.

    Raises:
        SimulationError: there is no row, or one holds a value that is not finite.
    """
    if rows.ndim != 2 or not len(rows):
        raise SimulationError(f"the rows to compare have shape {rows.shape}; allowed is [n, d] with n >= 1")
    n, d = rows.shape
    width = max(1, _BLOCK_BYTES // (8 * n))
    gram = np.zeros((n, n))
    with np.errstate(all="ignore"):  # what is not finite is named below
        for start in range(0, d, width):
            block = np.ascontiguousarray(rows[:, start : start + width], dtype=np.float64)
            gram += block @ block.T
    require_finite(gram.diagonal())
    return gram


def require_finite(norms: NDArray[np.floating]) -> None:
    """Every row's norm (or its square) is a finite number.

    Raises:
        SimulationError: the first that is not.
    """
    broken = np.flatnonzero(~np.isfinite(norms))
    if len(broken):
        raise SimulationError(f"row {broken[0]} of {len(norms)} is not finite; leave diverged devices out before clustering")


def cosine_matrix(rows: Rows) -> Matrix:
    """Cosines of all pairs of ``rows`` [n, d], float64 [n, n] in [-1, 1]: exactly symmetric, exactly 1 on the diagonal.

    A row of zeros has no direction: its cosine is 0 with every other row.
    """
    gram = gram_matrix(rows)
    norms = np.sqrt(gram.diagonal())
    norms[norms == 0] = 1.0
    cosines: Matrix = np.clip(gram / np.outer(norms, norms), -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    return cosines


def length(update: NDArray[np.floating]) -> float:
    """||update||_2, summed in float64 in an order that does not depend on the machine's threads."""
    return float(np.sqrt(np.square(update, dtype=np.float64).sum()))


def most_alike(updates: Sequence[NDArray[np.floating]], directions: Sequence[NDArray[np.floating]]) -> list[int]:
    """For each update the position of the direction that has the largest cosine with it, the first of equals.

    The cosine is 0 where one of the two is 0 or not finite. All are [d]. Sums are in float64, one pair after the other, so what
    is found for an update does not depend on those beside it.
    """
    with np.errstate(all="ignore"):  # what is not finite is seen in ``_cosine``
        lengths = [length(direction) for direction in directions]
        found = []
        for update in updates:
            own, wide = length(update), update.astype(np.float64)
            products = [float((wide * direction).sum()) for direction in directions]
            cosines = [_cosine(product, own * other) for product, other in zip(products, lengths, strict=True)]
            found.append(int(np.argmax(cosines)))
    return found


def _cosine(product: float, lengths: float) -> float:
    return product / lengths if 0 < lengths < np.inf and np.isfinite(product) else 0.0
