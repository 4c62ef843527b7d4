"""FlexCFL's embedding: each update by its cosines with the few directions that explain most of all updates."""

import numpy as np

from fedsim.toolbox.clustering.algorithms import require_groups
from fedsim.toolbox.clustering.similarity import Matrix, RowVectors, gram_matrix


def edc_features(updates: RowVectors, groups: int) -> Matrix:
    """The features float64 [n, m] whose Euclidean distance is EDC (FlexCFL, Eq. 7), up to the constant 1/m.

    Feature (i, k) is the cosine of update i of ``updates`` [n, d] with the k-th left singular vector of ``updates``^T (not
    centred), k < m = ``groups``: sqrt(L_k) Q_ik / sqrt(G_ii) with the Gram matrix G = Q L Q^T, in O(n^2 d). Signs of columns,
    which no distance sees, are fixed. A row's norm is 1 if the update lies in the span of the directions, less otherwise; an
    update of zeros has zeros, and so has a direction that does not exist because the updates span fewer than m.

    Raises:
        SimulationError: there are fewer updates than groups, or one is not finite.
    """
    require_groups(groups, len(updates), "EDC")
    gram = gram_matrix(updates)
    values, vectors = np.linalg.eigh(gram)
    largest, vectors = values[::-1][:groups], vectors[:, ::-1][:, :groups]
    rounding = len(gram) * np.finfo(np.float64).eps * largest[0]
    rows = vectors * np.sqrt(np.where(largest > rounding, largest, 0.0))
    norms = np.sqrt(gram.diagonal())[:, None]
    features: Matrix = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    # Positive in the first row that is at least half as large as the largest: rounding cannot swap it for another.
    sizes = np.abs(features)
    first = np.argmax(sizes >= sizes.max(axis=0) / 2, axis=0)
    chosen = features[first, np.arange(features.shape[1])]
    return features * np.where(chosen < 0, -1.0, 1.0)
