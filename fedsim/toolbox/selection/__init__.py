"""Selections beyond the uniform draw, and the weighted draw that selections share."""

import numpy as np
from numpy.typing import NDArray

from fedsim.federation import Server
from fedsim.strategies.parts.selection import Among


def available_devices(server: Server, among: Among) -> list[int]:
    """Return the IDs of the devices that are available and have no task.

    Args:
        server: the run's server.
        among: IDs to which the result is restricted; None: all devices.
    """
    if among is None:
        return server.clients.idle_devices()
    return [device for device in among if server.clients.idle(device)]


def draw_weighted(
    weights: NDArray[np.float64], count: int, variates: NDArray[np.float64]
) -> list[int]:
    """Draw indices without replacement, with probabilities proportional to weights.

    The indices with the smallest quotients variate / weight are drawn.

    Args:
        weights: the weight of each index, [n].
        count: count of indices to draw.
        variates: standard exponential variates, [n].

    Returns:
        ``count`` indices, or all if there are fewer, in the order in which they were drawn.
    """
    quotients = variates / np.maximum(weights, 1e-9)  # indices of weight 0 are drawn last
    indices: list[int] = np.argsort(quotients, kind="stable")[:count].tolist()
    return indices
