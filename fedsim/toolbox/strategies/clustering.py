"""Clusterings of devices by a server: the time that they take, and their records."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.federation import Server
from fedsim.toolbox.clustering.similarity import Matrix

_MOST_SHOWN = 200  # maximum count of devices whose pairwise values are recorded


def charge_clustering(
    server: Server, method: str, n: int, d: int, features: int = 0, groups: int = 1
) -> None:
    """Charge the server the time of a clustering of models or updates by their inner products.

    Args:
        server: the server.
        method: operation by which groups are formed, see ``Server.compute``.
        n: count of clustered models or updates.
        d: length of each; 0 if the clustering needs no inner products.
        features: count of values of each by which ``method`` clusters, if it is k-means.
        groups: count of groups that ``method`` forms, if its time depends on it.
    """
    server.compute("products", n, d)
    server.compute(method, n, features, groups)


def record_clustering(
    server: Server,
    devices: Sequence[int],
    groups: Sequence[int],
    pairs: Mapping[str, Matrix],
    **fields: object,
) -> None:
    """Record a clustering of devices among the run's events as ``clustering``.

    Args:
        server: the server.
        devices: IDs of the devices, [n].
        groups: group index of each device, [n].
        pairs: name of a field -> values of all pairs of devices, such as distances, [n, n]. They
            are left out of the record of more than 200 devices.
        fields: further fields of the record, such as ``measure``.
    """
    shown: dict[str, object] = {}
    if has_pairs(devices):
        for name, matrix in pairs.items():
            shown[name] = rounded(matrix)
    server.emit("clustering", devices=devices, groups=groups, **fields, **shown)


def has_pairs(devices: Sequence[int]) -> bool:
    """Return whether the record of a clustering of devices has values of all pairs of devices."""
    return len(devices) <= _MOST_SHOWN


def rounded(figures: NDArray[np.floating]) -> object:
    """Convert an array of numbers to nested lists of floats, rounded to six decimals."""
    nested: object = np.round(figures, 6).tolist()
    return nested
