"""Functions that charge a server for a clustering of devices, and record the clustering."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.federation import Server
from fedsim.toolbox.clustering.similarity import Matrix

_MOST_DEVICES = 200  # maximum count of devices whose pairwise values are recorded


def charge_clustering(
    server: Server, method: str, n: int, d: int, features: int = 0, groups: int = 1
) -> None:
    """Charge the server the simulated time of a clustering of models or updates.

    The server computes the inner products of all pairs, and forms the groups by ``method``.

    Args:
        server: the run's server.
        method: operation that forms the groups, an argument of ``Server.compute`` such as
            ``k-means``.
        n: count of models or updates.
        d: length of a model or update; 0 if no inner products are needed.
        features: length of the vectors that k-means clusters; 0 for other methods.
        groups: count of groups; 1 if the time of ``method`` does not depend on it.
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
        server: the run's server.
        devices: IDs of the devices, [n].
        groups: group index of each device, [n].
        pairs: name of a field -> values of all pairs of devices, such as distances, [n, n]. They
            are not recorded for more than 200 devices.
        fields: further fields of the record, such as ``measure``.
    """
    recorded_pairs: dict[str, object] = {}
    if has_pairs(devices):
        for name, matrix in pairs.items():
            recorded_pairs[name] = rounded(matrix)
    server.emit("clustering", devices=devices, groups=groups, **fields, **recorded_pairs)


def has_pairs(devices: Sequence[int]) -> bool:
    """Return whether the record of a clustering includes the values of all pairs of devices.

    It does for at most 200 devices, as the record of more would be large.
    """
    return len(devices) <= _MOST_DEVICES


def rounded(values: NDArray[np.floating]) -> object:
    """Convert an array of numbers to nested lists of floats, rounded to six decimals."""
    nested: object = np.round(values, 6).tolist()
    return nested
