"""RFedAvg's weights of clusters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats
from fedsim.errors import SimulationError

LabelCounts = NDArray[np.int64]

_LEAST = 1.0  # sample: the imbalance of a cluster that has no more to gain
_SAME = 1e-10  # relative singular value below which mixtures of clusters are taken to be the same
_NONE = 1e-8  # weight below which a cluster is taken to have none
_PULL = 1e-6


def class_imbalance(counts: LabelCounts, samples: int | None = None) -> Floats:
    """I_k = sum over the M classes of |D/M - D_k^m| (Eq. 17), float64 [n], from the ``counts`` D_k^m [n, M].

    ``samples`` is D, those of all devices together, as the equation has it; None: each device's own number.
    """
    totals = counts.sum(axis=1, keepdims=True) if samples is None else samples
    imbalance: Floats = np.abs(totals / counts.shape[1] - counts).sum(axis=1)
    return imbalance


def cluster_imbalance(imbalance: Floats, sizes: LabelCounts, clusters: Sequence[Sequence[int]]) -> Floats:
    """I_C of each cluster: the largest I_k (``imbalance`` [n]) of its members, less the samples D_k (``sizes``) of all others.

    At least 1 sample: with I_k from a device's own number of samples it could become negative.
    """
    values = []
    for cluster in clusters:
        ordered = sorted(cluster)
        worst = ordered[int(np.argmax(imbalance[ordered]))]
        others = sum(int(sizes[device]) for device in ordered if device != worst)
        values.append(max(float(imbalance[worst]) - others, _LEAST))
    return np.array(values)


def class_shares(counts: LabelCounts, clusters: Sequence[Sequence[int]]) -> Floats:
    """Class shares of each cluster's samples, float64 [M, N]; a cluster without samples is refused (``SimulationError``)."""
    totals = np.stack([counts[list(cluster)].sum(axis=0) for cluster in clusters], axis=1)
    sizes = totals.sum(axis=0)
    if not sizes.all():
        raise SimulationError(f"cluster {int(np.argmin(sizes))} of {len(sizes)} has no samples, so that it has no class shares")
    shares: Floats = totals / sizes
    return shares


def optimal_weights(shares: Floats) -> Floats:
    """The weights that bring the mixture of clusters nearest to equal class shares (the paper's benchmark "Optimal").

    The minimiser float64 [N] of ||B p - 1/M||^2 over p >= 0 with sum 1, where B [M, N] are the clusters' class ``shares``; of
    several, the one of least norm. With C = B - 1/M, min ||C u||^2 + (sum u - 1)^2 over u >= 0 has the same answer but for its
    length: for a given direction of u the best length leaves v^2 / (1 + v^2), where v is ||C p||, and that grows with v. A
    slight pull towards 0 says which clusters the shortest answer has; least squares then find it among these.
    """
    from scipy.optimize import nnls

    classes, clusters = shares.shape
    system, target = np.vstack((shares - 1.0 / classes, np.ones(clusters))), np.zeros(classes + 1)
    target[-1] = 1.0
    pulled = np.vstack((system, _PULL * np.eye(clusters)))
    u = nnls(pulled, np.append(target, np.zeros(clusters)), maxiter=100 * clusters)[0]
    exact = np.linalg.lstsq(system[:, u > _NONE], target, rcond=_SAME)[0]
    if exact.min() >= 0:
        u[u > _NONE], u[u <= _NONE] = exact, 0.0
    weights: Floats = u / u.sum()
    return weights
