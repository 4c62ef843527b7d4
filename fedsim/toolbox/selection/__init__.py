"""Selections that need more than a uniform draw, and the weighted draw of two of them."""

import numpy as np
from numpy.typing import NDArray


def drawn(weights: NDArray[np.float64], count: int, variates: NDArray[np.float64]) -> list[int]:
    """``count`` places, drawn without replacement with probabilities proportional to ``weights``
    [n].

    They are the first arrivals at these rates; ``variates`` [n] are standard exponential.
    """
    found: list[int] = np.argsort(variates / np.maximum(weights, 1e-9), kind="stable")[
        :count
    ].tolist()
    return found
