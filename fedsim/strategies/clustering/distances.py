"""How far apart two devices are: the measures of FlexCFL (MADC) and LCFL, float64 [n, n], symmetric with a zero diagonal."""

import numpy as np

from fedsim.strategies.clustering.grouping import require_square
from fedsim.strategies.clustering.similarity import Matrix, Rows, cosine_matrix, gram_matrix

_LOST = 1e-10  # relative square of a distance below which subtracting inner products leaves too few digits


def madc(similarity: Matrix) -> Matrix:
    """Mean absolute difference of pairwise cosines (FlexCFL, Eq. 6): how differently two devices resemble the others.

    Two devices alone have no others to compare with: 0.
    """
    require_square(similarity, "similarity")
    from scipy.spatial.distance import pdist, squareform

    n = len(similarity)
    if n <= 2:
        return np.zeros((n, n))
    over_all: Matrix = squareform(pdist(similarity, "cityblock"))
    itself = similarity.diagonal()
    own = np.abs(itself[:, None] - similarity.T) + np.abs(similarity - itself[None, :])
    distance: Matrix = np.maximum(over_all - own, 0.0) / (n - 2)
    np.fill_diagonal(distance, 0.0)
    return distance


def diff_norm(rows: Rows) -> Matrix:
    """Euclidean distances of all pairs of ``rows`` [n, d] (LCFL's DiffNorm), in O(n^2 d)."""
    gram = gram_matrix(rows)
    squares = gram.diagonal()[:, None] + gram.diagonal()[None, :]
    distance: Matrix = np.sqrt(np.maximum(squares - 2 * gram, 0.0))
    for one, other in np.argwhere(np.triu(distance**2 <= _LOST * squares, 1)):
        difference = rows[one].astype(np.float64) - rows[other]
        distance[one, other] = distance[other, one] = np.linalg.norm(difference)
    np.fill_diagonal(distance, 0.0)
    return distance


def gradient_cosine(gradients: Rows) -> Matrix:
    """1 - cosine of all pairs of ``gradients`` [n, d], in [0, 2] (LCFL's GradCos)."""
    return 1.0 - cosine_matrix(gradients)


def loss_distance(losses: Matrix) -> Matrix:
    """How much worse two devices' models do on each other's data (LCFL, Eq. 2).

    Args:
        losses: L_i(w_j), the loss on the data of device i (row) of the model of device j (column), [n, n].

    Returns:
        |L_i(w_j) - L_i(w_i)| + |L_j(w_i) - L_j(w_j)|; no metric, as the triangle inequality may fail.
    """
    require_square(losses, "loss")
    excess = np.abs(losses - losses.diagonal()[:, None])
    return excess + excess.T
