"""What a clustering went by, for the records: rounded, and pair by pair only where the pairs can still be looked at."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SHOWN = 200
"""Devices of which every pair is recorded; a record of more would be hundreds of kilobytes."""

_DIGITS = 6


def rounded(figures: NDArray[np.floating]) -> list[Any]:
    """An array as nested lists, to six digits after the point."""
    shown: list[Any] = np.round(figures, _DIGITS).tolist()
    return shown


def shown_pairs(name: str, matrix: NDArray[np.floating]) -> dict[str, list[list[float]]]:
    """A field of a record with a figure [n, n] for every two devices; none where they are more than ``MOST_SHOWN``."""
    return {name: rounded(matrix)} if len(matrix) <= MOST_SHOWN else {}
