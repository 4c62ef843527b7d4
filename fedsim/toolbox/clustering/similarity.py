"""L2 norms, inner products, cosines and distances of rows, such as flattened updates.

All values must be finite, unless the docstring of a function says otherwise.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RowVectors = NDArray[np.floating]
Matrix = NDArray[np.float64]

# greatest size (bytes) of the columns that are copied to float64 at a time
_BLOCK_BYTES = 64_000_000


def gram_matrix(rows: RowVectors) -> Matrix:
    """Compute the inner products of all pairs of rows.

    The result is exactly symmetric. The time is O(n^2 d). Products are summed in float64, because
    near-parallel updates differ in digits that float32 sums do not have.

    Args:
        rows: vectors, one a row, [n, d].

    Returns:
        Inner products, float64 [n, n].
    """
    n, d = rows.shape
    block_columns = max(1, _BLOCK_BYTES // (8 * n))
    gram = np.zeros((n, n))
    for start in range(0, d, block_columns):
        block = np.ascontiguousarray(rows[:, start : start + block_columns], dtype=np.float64)
        gram += block @ block.T
    return gram


def cosine_matrix(rows: RowVectors) -> Matrix:
    """Compute the cosines of all pairs of rows.

    The result is exactly symmetric, and exactly 1 on the diagonal. A row of zeros has no direction,
    and its cosine with every other row is 0.

    Args:
        rows: vectors, one a row, [n, d].

    Returns:
        Cosines, float64 [n, n] in [-1, 1].
    """
    gram = gram_matrix(rows)
    norms = np.sqrt(gram.diagonal())
    norms[norms == 0] = 1.0  # against division by 0
    cosines: Matrix = np.clip(gram / np.outer(norms, norms), -1.0, 1.0)
    np.fill_diagonal(cosines, 1.0)
    return cosines


def length(update: NDArray[np.floating]) -> float:
    """Compute the L2 norm of an update [d], the same on every machine.

    The squares are summed in float64, in an order that does not depend on the count of threads.
    """
    return float(np.sqrt(np.square(update, dtype=np.float64).sum()))


def most_alike(
    updates: Sequence[NDArray[np.floating]], directions: Sequence[NDArray[np.floating]]
) -> list[int]:
    """Find the direction with the largest cosine for each update.

    Of directions with equal cosines the first one is used. A cosine is 0 if the update or the
    direction is 0 or not finite. Each cosine is computed in float64, independently of other pairs.

    Args:
        updates: the updates, [d] each.
        directions: the directions, [d] each.

    Returns:
        For each update the position of its direction in ``directions``.
    """
    norms = np.array([length(direction) for direction in directions])
    best = list[int]()
    for update in updates:
        exact = update.astype(np.float64)
        norm_products = length(update) * norms
        with np.errstate(all="ignore"):
            products = np.array([(exact * direction).sum() for direction in directions])
            cosines = products / norm_products
        is_defined = (norm_products > 0) & np.isfinite(norm_products) & np.isfinite(cosines)
        best.append(int(np.argmax(np.where(is_defined, cosines, 0.0))))
    return best


def edc_features(updates: RowVectors, groups: int) -> Matrix:
    """Compute a feature vector of each update, by which FlexCFL clusters the updates.

    The squared Euclidean distance of two feature vectors is, up to a constant factor, the paper's
    distance EDC (Eq. 7).

    Feature k of update i is the cosine of the update and the k-th left singular vector of the
    matrix that has the updates as columns, for k < m = ``groups``. With the Gram matrix (inner
    products of all updates) G = Q L Q^T it is sqrt(L_k) Q_ik / sqrt(G_ii). The time is O(n^2 d).
    Features of zero updates are 0.

    Args:
        updates: flattened updates, [n, d].
        groups: m, the count of features of each update.

    Returns:
        The features, float64 [n, m].
    """
    gram = gram_matrix(updates)
    eigenvalues, eigenvectors = np.linalg.eigh(gram)  # L ascending, and Q
    largest_values = eigenvalues[::-1][:groups]
    vectors = eigenvectors[:, ::-1][:, :groups]
    # an eigenvalue that is not above this bound is a rounding error, and counts as 0
    rounding = len(gram) * np.finfo(np.float64).eps * largest_values[0]
    rows = vectors * np.sqrt(np.where(largest_values > rounding, largest_values, 0.0))
    # sqrt(G_ii) is the norm of an update
    norms = np.sqrt(gram.diagonal())[:, None]
    features: Matrix = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    # The sign of a singular vector is arbitrary. It is set by the first row of at least half the
    # largest magnitude, because several rows may have the largest magnitude, up to rounding.
    magnitudes = np.abs(features)
    sign_rows = np.argmax(magnitudes >= magnitudes.max(axis=0) / 2, axis=0)
    signed_entries = features[sign_rows, np.arange(features.shape[1])]
    return features * np.where(signed_entries < 0, -1.0, 1.0)


def madc(similarity: Matrix) -> Matrix:
    """Compute the distance MADC of all pairs of devices from their cosines (FlexCFL, Eq. 6).

    The distance of devices i and j is the mean over all third devices z of |cos(i, z) - cos(j, z)|.
    If there are only two devices, the distance is 0.

    Args:
        similarity: cosines of all pairs of devices, [n, n].

    Returns:
        Distances, float64 [n, n].
    """
    n = len(similarity)
    diagonal = similarity.diagonal()
    if n <= 2:
        return np.zeros((n, n))
    sums = row_distances(similarity, "cityblock")  # sums over all devices z, i and j included
    # the terms z = i, |cos(i, i) - cos(j, i)|, and z = j, |cos(i, j) - cos(j, j)|
    own_terms = np.abs(diagonal[:, None] - similarity.T) + np.abs(similarity - diagonal[None, :])
    # sums and terms are rounded, so that their difference may be slightly below 0
    distance: Matrix = np.maximum(sums - own_terms, 0.0) / (n - 2)
    np.fill_diagonal(distance, 0.0)
    return distance


def row_distances(rows: RowVectors, metric: str = "euclidean") -> Matrix:
    """Compute the distances of all pairs of rows, by default Euclidean (LCFL's DiffNorm).

    Args:
        rows: the rows, [n, d].
        metric: name of a metric of ``scipy.spatial.distance.pdist``.

    Returns:
        Distances, float64 [n, n].
    """
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(rows, metric)))


def loss_distance(losses: Matrix) -> Matrix:
    """Compute distances of devices by how much worse their models are on each other's data.

    The distance of devices i and j is |L_i(w_j) - L_i(w_i)| + |L_j(w_i) - L_j(w_j)| (LCFL, Eq. 2).
    It is not a metric.

    Args:
        losses: L_i(w_j), the loss of the model of device j on the data of device i, [n, n] with i
            as the row.

    Returns:
        Distances, float64 [n, n].
    """
    excess = np.abs(losses - losses.diagonal()[:, None])
    return excess + excess.T


def loss_gap(losses: Matrix) -> Matrix:
    """Compute distances of devices by the difference of each model's losses on the data of both.

    The distance of devices i and j is |L_i(w_i) - L_j(w_i)| + |L_i(w_j) - L_j(w_j)| (LCFL, Eq. 6).

    Args:
        losses: L_i(w_j), the loss of the model of device j on the data of device i, [n, n] with i
            as the row.

    Returns:
        Distances, float64 [n, n].
    """
    gap = np.abs(losses - losses.diagonal()[None, :])
    return gap + gap.T
