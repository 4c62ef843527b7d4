"""How far apart devices are, and the clusters that follow (LCFL, Algorithm 1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsim.strategies.clustering.density import dbscan, radius
from fedsim.strategies.clustering.distances import diff_norm, gradient_cosine, loss_distance
from fedsim.strategies.clustering.grouping import Labels
from fedsim.strategies.clustering.linkage import agglomerative
from fedsim.strategies.clustering.medoids import k_medoids
from fedsim.strategies.clustering.similarity import Matrix

if TYPE_CHECKING:
    from fedsim.strategies.lcfl.params import LCFLParams

Found = tuple[list[int], Matrix]
"""Positions of the devices that can be compared, and their distances."""


def by_losses(losses: Matrix) -> Found:
    """Distances by what devices' models do to each other's data (LCFL, Eq. 2).

    Args:
        losses: L_i(w_j), the objective on the data of device i (row) of the model of device j (column), [n, n].

    Returns:
        Without those whose own objective, or whose model on another's data, is no finite number.
    """
    own = np.flatnonzero(np.isfinite(losses.diagonal()))
    kept = own[np.isfinite(losses[np.ix_(own, own)]).all(axis=0)]
    if not len(kept):
        return [], np.zeros((0, 0))
    return kept.tolist(), loss_distance(losses[np.ix_(kept, kept)])


def by_models(models: Sequence[NDArray[np.float32]]) -> Found:
    """Euclidean distances of devices' models (LCFL's DiffNorm), without those that are not finite."""
    kept = _finite(models)
    return kept, diff_norm(np.stack([models[at] for at in kept])) if kept else np.zeros((0, 0))


def by_updates(models: Sequence[NDArray[np.float32]], starts: Sequence[NDArray[np.float32]]) -> Found:
    """1 - cosine of what devices' last training has changed (LCFL's GradCos), without what is not finite."""
    kept = _finite(models)
    if not kept:
        return [], np.zeros((0, 0))
    return kept, gradient_cosine(np.stack([models[at] - starts[at] for at in kept]))


def _finite(models: Sequence[NDArray[np.float32]]) -> list[int]:
    return [at for at, model in enumerate(models) if np.isfinite(model).all()]


def cluster(distance: Matrix, params: "LCFLParams", generator: np.random.Generator) -> Labels:
    """The cluster of each device, int64 [n], numbered by their first members."""
    match params.clustering:
        case "hierarchical":
            return agglomerative(distance, params.groups, "average")
        case "dbscan":
            eps = radius(distance, params.groups) if params.eps is None else params.eps
            return dbscan(distance, eps, params.min_samples)
        case _:
            return k_medoids(distance, params.groups, params.start, generator)
