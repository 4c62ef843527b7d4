"""The coordinate-wise trimmed mean (Yin et al., "Byzantine-robust distributed learning", 2018, Algorithm 1, option II)."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.aggregation.robust import Robust


@pure
def trimmed_mean(models: list[NDArray[np.float32]], share: float) -> NDArray[np.floating]:
    """The mean of each coordinate without the floor(share n) smallest and as many largest of n values, [d]."""
    cut = math.floor(share * len(models) + 1e-9)
    kept = np.sort(np.stack(models), axis=0)[cut : len(models) - cut]
    found: NDArray[np.floating] = kept.mean(axis=0, dtype=np.float64)
    return found


class TrimmedMean(Robust):
    """The mean of each coordinate without its smallest and its largest values.

    Attributes:
        share: beta, the part of the updates that is cut off at either end, rounded down to whole updates.
    """

    kind: Literal["trimmed-mean"] = "trimmed-mean"
    share: float = Field(default=0.1, ge=0.0, lt=0.5)

    def rule(self) -> tuple[Function, dict[str, Any]]:
        """``trimmed_mean``."""
        return trimmed_mean, {"share": self.share}
