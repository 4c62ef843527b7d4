"""FlexCFL's embedding: each update by its cosines with the few directions that explain most of all updates."""

import numpy as np
from numpy.typing import NDArray

from fedsim.toolbox.clustering.algorithms import require_groups
from fedsim.toolbox.clustering.similarity import Matrix, RowVectors, gram_matrix, require_finite

EXACT_UP_TO = 256  # devices; beyond, n^2 d operations take longer than a few passes over the updates
_OVERSAMPLING = 10
_DEPTH = 4  # powers of the Gram matrix in the Krylov space, beyond the start


def edc_features(updates: RowVectors, groups: int, generator: np.random.Generator) -> Matrix:
    """The features float64 [n, m] whose Euclidean distance is EDC (FlexCFL, Eq. 7), up to the constant 1/m.

    Feature (i, k) is the cosine of update i of ``updates`` [n, d] with the k-th left singular vector of ``updates``^T (not
    centred), k < m = ``groups``. Signs of columns, which no distance sees, are fixed. Up to 256 updates the decomposition is
    exact (in float64, from the Gram matrix, O(n^2 d)); beyond, it is a randomised truncated one, O(n d m), from ``generator``.
    A row's norm is 1 if the update lies in the span of the directions, less otherwise; an update of zeros has zeros, and so
    has a direction that does not exist because the updates span fewer than m.

    Raises:
        SimulationError: there are fewer updates than groups, or one is not finite.
    """
    require_groups(groups, len(updates), "EDC")
    features = exact(updates, groups) if len(updates) <= EXACT_UP_TO else randomised(updates, groups, generator)
    return _with_fixed_signs(features)


def exact(updates: RowVectors, groups: int) -> Matrix:
    """Features by the Gram matrix G = Q L Q^T: sqrt(L_k) Q_ik / sqrt(G_ii)."""
    gram = gram_matrix(updates)
    values, vectors = np.linalg.eigh(gram)
    scales = np.sqrt(_significant(values[::-1][:groups], len(gram) * np.finfo(np.float64).eps))
    return _divided(vectors[:, ::-1][:, :groups] * scales, np.sqrt(gram.diagonal()))


def randomised(updates: RowVectors, groups: int, generator: np.random.Generator) -> Matrix:
    """Features by a randomised block Krylov decomposition (Musco and Musco, 2015) in the precision of ``updates``.

    The directions are the best within the span of G X, G^2 X, ... for random X, where G is the Gram matrix, never formed.
    """
    n, dtype = len(updates), updates.dtype
    with np.errstate(all="ignore"):  # values that are not finite are named below
        norms = np.sqrt(np.einsum("ij,ij->i", updates, updates, dtype=np.float64))
    require_finite(norms)
    unit = float(norms.max()) or 1.0  # squares of very small (or large) updates may lie outside their precision
    block = min(groups + _OVERSAMPLING, n)
    powers = [_orthonormal(generator.standard_normal((n, block)))]
    for _ in range(_DEPTH):
        powers.append(_orthonormal(updates @ _image(updates, powers[-1] / unit)))
    basis = _orthonormal(np.concatenate(powers[1:], axis=1)) if block * _DEPTH <= n else np.eye(n)
    image = _image(updates, basis / unit)
    values, vectors = np.linalg.eigh(gram_matrix(image.T))
    lengths = np.sqrt(_significant(values[::-1][:groups], n * float(np.finfo(dtype).eps)))
    directions = _divided((image @ vectors[:, ::-1][:, :groups]).T, lengths).astype(dtype)
    return _divided((updates @ directions.T).astype(np.float64), norms)


def _image(updates: RowVectors, columns: Matrix) -> RowVectors:
    """Combinations of the updates, [d, k], in their precision."""
    combined: RowVectors = updates.T @ columns.astype(updates.dtype)
    return combined


def _orthonormal(columns: RowVectors) -> Matrix:
    return np.linalg.qr(columns.astype(np.float64))[0]


def _significant(values: NDArray[np.float64], relative: float) -> NDArray[np.float64]:
    """Descending eigenvalues, with 0 for those that are nothing but rounding."""
    return np.where(values > relative * values[0], values, 0.0)


def _divided(rows: Matrix, norms: NDArray[np.float64]) -> Matrix:
    """Each row by its norm; zeros where the norm is 0."""
    quotient: Matrix = np.divide(rows, norms[:, None], out=np.zeros_like(rows), where=norms[:, None] > 0)
    return quotient


def _with_fixed_signs(features: Matrix) -> Matrix:
    """Positive in the first row that is at least half as large as the largest: rounding cannot swap it for another."""
    sizes = np.abs(features)
    first = np.argmax(sizes >= sizes.max(axis=0) / 2, axis=0)
    chosen = features[first, np.arange(features.shape[1])]
    return features * np.where(chosen < 0, -1.0, 1.0)
