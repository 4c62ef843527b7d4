"""The coordinate-wise median (Yin et al., "Byzantine-robust distributed learning", 2018, Algorithm 1, option I)."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.aggregation.robust import Robust


@pure
def median(models: list[NDArray[np.float32]]) -> NDArray[np.floating]:
    """The median of each coordinate, float32 [d]; the mean of the two in the middle where the number is even."""
    found: NDArray[np.floating] = np.median(np.stack(models), axis=0)
    return found


class Median(Robust):
    """The median of each coordinate, over the updates that are finite."""

    kind: Literal["median"] = "median"

    def rule(self) -> tuple[Function, dict[str, Any]]:
        return median, {}
