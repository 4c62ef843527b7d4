"""Weights of clusters by the balance of their classes (RFedAvg; Wang, Zhang and Tao)."""

from collections.abc import Sequence

import numpy as np

from fedsim.common.arrays import Floats, Floats32, Ints
from fedsim.toolbox.clustering.algorithms import kmeans, members

Clusters = list[list[int]]

_RANK_TOLERANCE = 1e-10  # singular values below this share of the largest one count as 0
_LEAST_WEIGHT = 1e-8  # a smaller weight of a cluster counts as 0
_PENALTY = 1e-6  # weight of the penalty on the norm of u in ``optimal_weights``


def class_imbalance(counts: Ints, samples: int | None = None) -> Floats:
    """Compute how unequal the class counts of each device are (RFedAvg, Eq. 17).

    The class imbalance I_k is the sum over M classes of |D/M - D_k^m|.

    Args:
        counts: D_k^m, the sample count of each device and class, int64 [n, M].
        samples: D, the sample count of all devices together, as in the equation; None: the sample
            count D_k of each device in place of D.

    Returns:
        I_k (samples), float64 [n].
    """
    totals = counts.sum(axis=1, keepdims=True) if samples is None else samples
    return np.asarray(np.abs(totals / counts.shape[1] - counts).sum(axis=1))


def cluster_imbalance(imbalance: Floats, sizes: Ints, clusters: Sequence[Sequence[int]]) -> Floats:
    """Compute the class imbalance I_C of each cluster from its devices' imbalances (RFedAvg).

    I_C is the largest imbalance I_k of a member, minus the samples of all other members (steps 1
    and 2 after Eq. 17). If this difference is below 1 sample, or negative, I_C is 1.

    Args:
        imbalance: I_k of each device, how unequal its class counts are (samples), float64 [n].
        sizes: D_k, the sample count of each device, int64 [n].
        clusters: for each cluster the positions of its devices in ``sizes``.

    Returns:
        I_C (samples), float64 [N clusters].
    """
    values = list[float]()
    for cluster in clusters:
        ordered = sorted(cluster)  # of equal imbalances ``argmax`` takes the first
        worst = ordered[int(np.argmax(imbalance[ordered]))]
        other_samples = sum(int(sizes[device]) for device in ordered if device != worst)
        values.append(max(float(imbalance[worst]) - other_samples, 1.0))
    return np.array(values)


def class_shares(counts: Ints, clusters: Sequence[Sequence[int]]) -> Floats:
    """Compute the share of each class in the samples of each cluster of devices.

    Args:
        counts: sample count of each device and class, int64 [n, M].
        clusters: for each cluster the positions of its devices in ``counts``; each cluster has at
            least one sample.

    Returns:
        Shares, float64 [M classes, N clusters].
    """
    totals = np.stack([counts[list(cluster)].sum(axis=0) for cluster in clusters], axis=1)
    return np.asarray(totals / totals.sum(axis=0))


def optimal_weights(shares: Floats) -> Floats:
    """Compute the cluster weights whose mixture of data comes nearest to equal class shares.

    This is the benchmark "Optimal" of RFedAvg's paper (Theorem 1, Q1): the minimiser of ||B p -
    1/M||^2 over p >= 0 with sum 1. Of several minimisers the result is the minimiser of least norm.

    p is computed as a multiple of u, the minimiser of ||C u||^2 + (sum u - 1)^2 over u >= 0, with C
    = B - 1/M. First u is found with a slight penalty on its norm; the clusters with a weight in
    this u are those of the minimiser of least norm. Then the weights of these clusters are computed
    again by least squares without the penalty.

    Args:
        shares: B, the share of each class in each cluster's samples, float64 [M classes, N
            clusters].

    Returns:
        p, the weight of each cluster, float64 [N].
    """
    from scipy.optimize import nnls

    classes, clusters = shares.shape
    # ||system u - target||^2 is ||C u||^2 + (sum u - 1)^2
    system = np.vstack((shares - 1.0 / classes, np.ones(clusters)))
    target = np.zeros(classes + 1)
    target[-1] = 1.0
    # with the penalty on the norm of u
    penalised_system = np.vstack((system, _PENALTY * np.eye(clusters)))
    penalised_target = np.append(target, np.zeros(clusters))
    u = nnls(penalised_system, penalised_target, maxiter=100 * clusters)[0]
    # without the penalty, for the clusters that have a weight
    has_weight = u > _LEAST_WEIGHT
    exact = np.linalg.lstsq(system[:, has_weight], target, rcond=_RANK_TOLERANCE)[0]
    if exact.min() >= 0:  # otherwise the penalised minimiser is the result
        u[has_weight] = exact
        u[~has_weight] = 0.0
    return np.asarray(u / u.sum())


def by_kmeans(gradients: Floats32, groups: int, generator: np.random.Generator) -> Clusters:
    """Cluster devices by k-means of their gradients.

    There are fewer clusters than ``groups`` if there are fewer distinct gradients.

    Args:
        gradients: one gradient for each device, float32 [n, d].
        groups: N, the count of clusters.
        generator: source of the first centres.

    Returns:
        For each cluster the positions of its devices in ``gradients``, ascending.
    """
    # + 0.0 turns -0.0 into 0.0, so that equal rows have equal bytes
    distinct = len({row.tobytes() for row in gradients + 0.0})
    # Distances are equal in an orthonormal basis of the gradients' span, where they cost less.
    coordinates = np.asarray(np.linalg.qr(gradients.T.astype(np.float64), mode="r")).T
    return members(kmeans(coordinates, min(groups, distinct), generator))


def class_ratio(mixture: Floats) -> float | None:
    """Return the largest share of a class in a mixture of data, divided by the smallest share.

    Source: RFedAvg, Eq. 3.

    Args:
        mixture: the share of each of M classes, float64 [M].

    Returns:
        The ratio, the paper's beta, at least 1; None if a class has no samples.
    """
    least = float(mixture.min())
    return float(mixture.max()) / least if least > 0 else None


def balance(
    counts: Ints, clusters: Clusters, weights: Sequence[Floats]
) -> dict[str, list[float | None]]:
    """Measure how equal the shares of the classes are in weighted mixtures of clusters' data.

    In a mixture, each cluster's class shares are weighted and summed.

    Args:
        counts: sample count of each device and class, int64 [n, M].
        clusters: for each cluster the positions of its devices in ``counts``.
        weights: for each mixture the weights of the clusters, float64 [N] each.

    Returns:
        Two lists with an entry for each mixture. ``beta``: the largest class share divided by the
        smallest, None if a class has no samples. ``distance``: the squared Euclidean distance of
        the class shares from equal shares.
    """
    mixtures = [class_shares(counts, clusters) @ vector for vector in weights]
    distances: list[float | None] = []
    for mixture in mixtures:
        distances.append(float(np.square(mixture - 1 / len(mixture)).sum()))
    return {"beta": [class_ratio(mixture) for mixture in mixtures], "distance": distances}
