"""Lengths, inner products, cosines and distances of high-dimensional rows, such as flattened
updates, of finite numbers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

RowVectors = NDArray[np.floating]
Matrix = NDArray[np.float64]

_BLOCK_BYTES = 64_000_000  # how much of the rows is held in float64 at a time


def gram_matrix(rows: RowVectors) -> Matrix:
    """Inner products of all pairs of ``rows`` [n, d], float64 [n, n], exactly symmetric, in
    O(n^2 d).

    Float32 rows are summed in float64: near-parallel updates differ in digits that float32 sums
    do not have.
    """
    n, d = rows.shape
    width = max(1, _BLOCK_BYTES // (8 * n))
    gram = np.zeros((n, n))
    for start in range(0, d, width):
        block = np.ascontiguousarray(rows[:, start : start + width], dtype=np.float64)
        gram += block @ block.T
    return gram


def cosine_matrix(rows: RowVectors) -> Matrix:
    """Cosines of all pairs of ``rows`` [n, d], float64 [n, n] in [-1, 1]: exactly symmetric,
    exactly 1 on the diagonal.

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


def most_alike(
    updates: Sequence[NDArray[np.floating]], directions: Sequence[NDArray[np.floating]]
) -> list[int]:
    """For each update [d] the position of the direction [d] that has the largest cosine with it,
    the first of equals.

    The cosine is 0 where one of the two is 0 or not finite. Sums are in float64, independent of
    other pairs.
    """
    lengths = np.array([length(direction) for direction in directions])
    found = list[int]()
    for update in updates:
        wide = update.astype(np.float64)
        sizes = length(update) * lengths
        with np.errstate(all="ignore"):
            cosines = np.array([(wide * direction).sum() for direction in directions]) / sizes
        found.append(
            int(
                np.argmax(
                    np.where((sizes > 0) & np.isfinite(sizes) & np.isfinite(cosines), cosines, 0.0)
                )
            )
        )
    return found


def edc_features(updates: RowVectors, groups: int) -> Matrix:
    """FlexCFL's features float64 [n, m] of ``updates`` [n, d], whose Euclidean distance is EDC
    (Eq. 7), up to the constant 1/m.

    Feature (i, k) is the cosine of update i with the k-th left singular vector of ``updates``^T
    (not centred), k < m = ``groups``: sqrt(L_k) Q_ik / sqrt(G_ii) with the Gram matrix G = Q L Q^T,
    in O(n^2 d). Features of zero updates are 0.
    """
    gram = gram_matrix(updates)
    values, vectors = np.linalg.eigh(gram)
    largest = values[::-1][:groups]
    vectors = vectors[:, ::-1][:, :groups]
    rounding = len(gram) * np.finfo(np.float64).eps * largest[0]
    rows = vectors * np.sqrt(np.where(largest > rounding, largest, 0.0))
    norms = np.sqrt(gram.diagonal())[:, None]
    features: Matrix = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    # Positive in the first row that is at least half as large as the largest: rounding cannot swap
    # it for another.
    sizes = np.abs(features)
    first = np.argmax(sizes >= sizes.max(axis=0) / 2, axis=0)
    chosen = features[first, np.arange(features.shape[1])]
    return features * np.where(chosen < 0, -1.0, 1.0)


def madc(similarity: Matrix) -> Matrix:
    """Mean absolute difference of pairwise cosines [n, n] (FlexCFL, Eq. 6): how differently two
    devices resemble the others.

    Two devices alone have no others to compare with: 0.
    """
    n = len(similarity)
    itself = similarity.diagonal()
    if n <= 2:
        return np.zeros((n, n))
    own = np.abs(itself[:, None] - similarity.T) + np.abs(similarity - itself[None, :])
    distance: Matrix = np.maximum(row_distances(similarity, "cityblock") - own, 0.0) / (n - 2)
    np.fill_diagonal(distance, 0.0)
    return distance


def row_distances(rows: RowVectors, metric: str = "euclidean") -> Matrix:
    """Distances of all pairs of ``rows`` [n, d] by a ``metric`` of SciPy, float64 [n, n]; the
    Euclidean is LCFL's DiffNorm.
    """
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(rows, metric)))


def loss_distance(losses: Matrix) -> Matrix:
    """Excess loss of two models on each other's data (LCFL, Eq. 2): |L_i(w_j) - L_i(w_i)| +
    |L_j(w_i) - L_j(w_j)|.

    ``losses`` [n, n] is L_i(w_j), the loss of the model of device j (column) on the data of
    device i (row). It is no metric.
    """
    excess = np.abs(losses - losses.diagonal()[:, None])
    return excess + excess.T


def loss_gap(losses: Matrix) -> Matrix:
    """Difference of two devices' losses on both models (LCFL, Eq. 6): |L_i(w_i) - L_j(w_i)| +
    |L_i(w_j) - L_j(w_j)|.
    """
    gap = np.abs(losses - losses.diagonal()[None, :])
    return gap + gap.T


MOST_SHOWN = 200  # devices of which every pair is recorded


def rounded(figures: NDArray[np.floating]) -> list[Any]:
    """An array as nested lists, to six digits after the point."""
    return np.round(figures, 6).tolist()  # type: ignore[no-any-return]


def shown_pairs(name: str, matrix: NDArray[np.floating]) -> dict[str, list[list[float]]]:
    """A field of a record with a figure [n, n] for every two devices; none where they are more
    than ``MOST_SHOWN``.
    """
    return {name: rounded(matrix)} if len(matrix) <= MOST_SHOWN else {}
