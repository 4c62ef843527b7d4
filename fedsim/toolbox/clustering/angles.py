"""Principal angles between subspaces, and the signatures of data from which they are computed."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.toolbox.clustering.similarity import Matrix

AngleMeasure = Literal["smallest", "sum"]
Vectors = NDArray[np.floating]


def left_singular_vectors(samples: NDArray[np.floating], count: int) -> NDArray[np.float64]:
    """Compute the leading left singular vectors of X^T, where each row of X is a sample.

    PACFL uses them as the signature of a client's data. The sign of a vector is such that its entry
    of largest magnitude is positive.

    Args:
        samples: X, [n, features].
        count: p, the wanted count of vectors; fewer if there are fewer samples or features.

    Returns:
        The vectors as columns, float64 [features, min(p, n, features)].
    """
    transposed = samples.T.astype(np.float64)
    all_vectors = np.linalg.svd(transposed, full_matrices=False)[0]
    vectors = all_vectors[:, :count]
    largest_rows = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest_rows, np.arange(vectors.shape[1])])
    oriented: NDArray[np.float64] = vectors * np.where(signs == 0, 1.0, signs)
    return oriented


def svd_flops(features: int, samples: int) -> float:
    """Return the FLOPs of computing the singular values and left singular vectors of a matrix.

    With m >= n the dimensions of the matrix, the count is 6 m n^2 + 20 n^3 by the R-SVD (Golub and
    Van Loan, "Matrix computations", Fig. 8.6.1).

    Args:
        features: count of rows.
        samples: count of columns.
    """
    m = max(features, samples)
    n = min(features, samples)
    return 6.0 * m * n**2 + 20.0 * n**3


def principal_angles(first: Vectors, second: Vectors) -> NDArray[np.float64]:
    """Compute the principal angles of two subspaces (degrees), ascending.

    Their cosines are the singular values of Q1^T Q2, where Q1 and Q2 are orthonormal bases of the
    two subspaces (Björck and Golub 1973).

    Args:
        first: vectors that span the first subspace, [features, p].
        second: vectors that span the second one, [features, q].

    Returns:
        min(p, q) angles, float64.
    """
    first_basis = np.linalg.qr(first.astype(np.float64))[0]
    second_basis = np.linalg.qr(second.astype(np.float64))[0]
    cosines = np.linalg.svd(first_basis.T @ second_basis, compute_uv=False)
    angles: NDArray[np.float64] = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
    return angles


def proximity(first: Vectors, second: Vectors, measure: AngleMeasure, *, of_vectors: bool) -> float:
    """Compute the angle between the data of two clients (degrees), for PACFL's proximity matrix.

    Each client's data are represented by singular vectors, which span a subspace.

    Args:
        first: singular vectors of the first client as columns, [features, p].
        second: singular vectors of the second client as columns, [features, q].
        measure: ``smallest``, the smallest angle; ``sum``, the sum of the angles between the
            vectors of the same position.
        of_vectors: whether the smallest angle is taken over all pairs of one vector of each client,
            as in the published code, instead of the smallest principal angle of the subspaces. Not
            used by ``sum``.
    """
    if measure == "smallest" and not of_vectors:
        return float(principal_angles(first, second)[0])
    cosines = np.clip(np.abs(first.T.astype(np.float64) @ second), 0.0, 1.0)
    if measure == "smallest":
        return float(np.degrees(np.arccos(cosines.max())))
    pairs = min(cosines.shape)
    return float(np.degrees(np.arccos(np.diagonal(cosines)[:pairs])).sum())


def proximity_matrix(clients: list[Vectors], measure: AngleMeasure, *, of_vectors: bool) -> Matrix:
    """Compute the angles between the data of all pairs of clients (degrees), as PACFL does.

    Each client's data are represented by singular vectors, which span a subspace.

    Args:
        clients: singular vectors of each client as columns, [features, p] each.
        measure: ``smallest``, the smallest angle of two clients; ``sum``, the sum of the angles
            between the vectors of the same position.
        of_vectors: whether the smallest angle is taken over all pairs of one vector of each client,
            as in the published code, instead of the smallest principal angle of the subspaces. Not
            used by ``sum``.

    Returns:
        Symmetric matrix, float64 [n, n], 0 on its diagonal.
    """
    distance = np.zeros((len(clients), len(clients)))
    for row, client in enumerate(clients):
        for column in range(row):
            distance[row, column] = proximity(
                client, clients[column], measure, of_vectors=of_vectors
            )
    symmetric: Matrix = distance + distance.T
    return symmetric
