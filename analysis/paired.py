"""Two strategies in the same worlds, compared seed by seed: a mean difference, its interval, and what it says of a claim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["holds", "holds in part", "does not hold"]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences with a two-sided Student interval.

    Attributes:
        mean: in the unit of what was compared.
        low, high: the interval; infinite for fewer than two pairs.
        pairs: how many.
    """

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> Verdict:
        """What it says of the claim that the difference is above 0.

        It holds if the whole interval is above 0, in part if only the mean is, and not at all otherwise.
        """
        if self.low > 0:
            return "holds"
        return "holds in part" if self.mean > 0 else "does not hold"


def paired_difference(above: Sequence[float], below: Sequence[float], level: float = 0.95) -> Difference:
    """The mean of ``above[i] - below[i]`` over worlds i.

    Raises:
        ValueError: they are not as many, or none, or one is no number.
    """
    from scipy.stats import t

    differences = np.asarray(above, dtype=np.float64) - np.asarray(below, dtype=np.float64)
    if len(above) != len(below) or not len(differences) or not np.isfinite(differences).all():
        raise ValueError(f"cannot pair {list(above)} with {list(below)}: both need as many finite numbers")
    mean, pairs = float(differences.mean()), len(differences)
    if pairs < 2:
        return Difference(mean, -math.inf, math.inf, pairs)
    half = float(t.ppf(0.5 + level / 2, pairs - 1) * differences.std(ddof=1) / math.sqrt(pairs))
    return Difference(mean, mean - half, mean + half, pairs)
