"""Selections that need more than a draw, and the two rules by which they take the best."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray


def lowest(devices: Iterable[int], count: int, key: Callable[[int], float]) -> list[int]:
    """The ``count`` devices of lowest ``key``; of equals those that come first."""
    return sorted(devices, key=key)[:count]


def drawn(weights: NDArray[np.float64], count: int, variates: NDArray[np.float64]) -> list[int]:
    """``count`` places, drawn without replacement with probabilities proportional to ``weights`` [n].

    They are the first of exponential ages with these rates; ``variates`` [n] are standard exponential.
    """
    found: list[int] = np.argsort(variates / np.maximum(weights, 1e-9), kind="stable")[:count].tolist()
    return found
