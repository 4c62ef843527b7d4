"""The coordinate-wise trimmed mean (Yin et al., "Byzantine-robust distributed learning", 2018, Algorithm 1, option II)."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.learning.functions import Function, pure
from fedsim.strategies.parts.aggregation.robust import Robust


def cut_off(share: float, updates: int) -> int:
    """How many of n updates are cut off at either end: floor(share n), but one at least where three or more came."""
    return max(math.floor(share * updates + 1e-9), int(share > 0 and updates > 2))


@pure
def trimmed_mean(models: list[NDArray[np.float32]], share: float) -> NDArray[np.floating]:
    """The mean of each coordinate without the smallest and the largest of n values, ``cut_off`` at either end, [d]."""
    cut = cut_off(share, len(models))
    kept = np.sort(np.stack(models), axis=0)[cut : len(models) - cut]
    found: NDArray[np.floating] = kept.mean(axis=0, dtype=np.float64)
    return found


class TrimmedMean(Robust):
    """The mean of each coordinate without its smallest and its largest values.

    A cohort of which ``share`` is not one update is refused. Where fewer come in a round, or to a group, one is cut off at
    either end, of one or two updates none.

    Attributes:
        share: beta, the part of the updates that is cut off at either end, rounded down to whole updates; 0: the plain mean.
    """

    kind: Literal["trimmed-mean"] = "trimmed-mean"
    share: float = Field(default=0.1, ge=0.0, lt=0.5)

    def check(self, clients: int) -> None:
        if self.share and math.floor(self.share * clients + 1e-9) == 0:
            raise ScenarioError(
                f"strategy.aggregation.share is {self.share:g}, which is less than one of {clients} clients a round, so that "
                f"nothing would be cut off; allowed are shares from {math.ceil(1000 / clients) / 1000:g} to below 0.5, and at "
                "least 3 clients"
            )

    def rule(self) -> tuple[Function, dict[str, Any]]:
        return trimmed_mean, {"share": self.share}
