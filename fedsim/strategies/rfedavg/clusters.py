"""The clusters of a round's gradients, and how much each of them counts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.strategies.clustering.greedy import greedy_clusters
from fedsim.strategies.clustering.grouping import members
from fedsim.strategies.clustering.kmeans import kmeans
from fedsim.strategies.clustering.reweighting import (
    balance_ratio,
    class_shares,
    cluster_imbalance,
    inverse_weights,
    optimal_weights,
)
from fedsim.strategies.clustering.similarity import Matrix
from fedsim.strategies.rfedavg.params import RFedAvgParams

Clusters = list[list[int]]
Vector = NDArray[np.float64]


def cluster_gradients(
    params: RFedAvgParams,
    gradients: NDArray[np.float32],
    similarity: Matrix,
    eps: float | None,
    classes: int,
    generator: np.random.Generator,
) -> Clusters:
    """Clusters of like gradients.

    Args:
        params: which clustering.
        gradients: [n, d], all of one scale.
        similarity: their cosines, [n, n].
        eps: the cosine that like gradients have; needed where CCS is.
        classes: M.
        generator: for K-means.

    Returns:
        Positions 0..n-1 in clusters, each in ascending order.
    """
    found = [] if eps is None else greedy_clusters(similarity, eps)
    if params.clustering == "ccs":
        return found
    wanted = len(found) if params.kmeans_clusters == "ccs" else classes
    distinct = len({row.tobytes() for row in gradients + 0.0})  # -0.0 becomes 0.0
    return members(kmeans(_coordinates(gradients), min(wanted, distinct), generator))


def _coordinates(gradients: NDArray[np.float32]) -> Vector:
    """The gradients in an orthonormal basis of what they span, [n, min(n, d)]: their distances are the same, at less cost."""
    triangle: Vector = np.asarray(np.linalg.qr(gradients.T.astype(np.float64), mode="r"))
    return triangle.T


def cluster_weights(
    params: RFedAvgParams,
    clusters: Clusters,
    sizes: NDArray[np.int64],
    imbalance: Vector | None,
    counts: NDArray[np.int64] | None,
) -> Vector:
    """p_n of each cluster, float64 [N], with sum 1.

    Args:
        params: which weights.
        clusters: none empty.
        sizes: D_k of each client, [n], all above 0.
        imbalance: I_k of each, [n]; needed for ``rfedavg``.
        counts: samples of each class of each, [n, M]; needed for ``optimal``.
    """
    if params.weights == "rfedavg":
        assert imbalance is not None
        return inverse_weights(cluster_imbalance(imbalance, sizes, clusters))
    if params.weights == "optimal":
        assert counts is not None
        return optimal_weights(class_shares(counts, clusters))
    return by_samples(clusters, sizes)


def by_samples(clusters: Clusters, sizes: NDArray[np.int64]) -> Vector:
    """D_Cn / D_S, each cluster's share of the samples, float64 [N]."""
    totals = np.array([sizes[cluster].sum() for cluster in clusters], dtype=np.float64)
    shares: Vector = totals / totals.sum()
    return shares


def client_weights(clusters: Clusters, weights: Vector, sizes: NDArray[np.int64]) -> list[float]:
    """How much each client counts: its cluster's weight, times its share of the cluster's samples (Eq. 4)."""
    each = np.zeros(len(sizes))
    for cluster, weight in zip(clusters, weights, strict=True):
        each[cluster] = weight * (sizes[cluster] / sizes[cluster].sum())
    found: list[float] = each.tolist()
    return found


def balance(counts: NDArray[np.int64], clusters: Clusters, weights: Sequence[Vector]) -> dict[str, list[float | None]]:
    """How balanced the classes are in mixtures of clusters, one entry for each vector of weights.

    Returns:
        ``beta``, the largest class share by the smallest (Eq. 3), None where a class is missing; and ``distance``, the squared
        distance of the class shares from equal ones (Theorem 1, Q1).
    """
    shares = class_shares(counts, clusters)
    mixtures = [shares @ each for each in weights]
    ratios = [balance_ratio(mixture) for mixture in mixtures]
    return {
        "beta": [ratio if np.isfinite(ratio) else None for ratio in ratios],
        "distance": [float(np.square(mixture - 1 / len(mixture)).sum()) for mixture in mixtures],
    }
