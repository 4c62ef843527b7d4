"""Selections beyond the uniform draw, and the weighted draw that selections share."""

import numpy as np
from numpy.typing import NDArray

from fedsim.federation import Server
from fedsim.strategies.parts.selection import Among


def available_devices(server: Server, among: Among) -> list[int]:
    """The online, idle devices among ``among``, or among all devices if ``among`` is None."""
    if among is None:
        return server.clients.online()
    return [device for device in among if server.clients.idle(device)]


def draw_weighted(
    weights: NDArray[np.float64], count: int, variates: NDArray[np.float64]
) -> list[int]:
    """Draw places without replacement, with probabilities proportional to ``weights``.

    Each place has a Poisson process with its weight as rate. The result is the places of the first
    arrivals.

    Args:
        weights: the weight of each place, [n].
        count: the number of places to draw.
        variates: standard exponential variates, [n].

    Returns:
        At most ``count`` places, in the order in which they were drawn.
    """
    arrivals = variates / np.maximum(weights, 1e-9)
    places: list[int] = np.argsort(arrivals, kind="stable")[:count].tolist()
    return places
