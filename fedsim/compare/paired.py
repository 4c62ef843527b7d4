"""Two strategies in the same worlds, compared seed by seed: a mean difference, its interval, and what it says of a claim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.streams import Streams

Verdict = Literal["holds", "holds in part", "does not hold"]

_RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences with a two-sided interval.

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
    """The mean of ``above[i] - below[i]`` over worlds i, with Student's interval.

    Raises:
        ValueError: they are not as many, or none, or one is no number.
    """
    from scipy.stats import t

    differences = _differences(above, below)
    mean, pairs = float(differences.mean()), len(differences)
    if pairs < 2:
        return Difference(mean, -math.inf, math.inf, pairs)
    half = float(t.ppf(0.5 + level / 2, pairs - 1) * differences.std(ddof=1) / math.sqrt(pairs))
    return Difference(mean, mean - half, mean + half, pairs)


def bootstrap_difference(above: Sequence[float], below: Sequence[float], level: float = 0.95) -> Difference:
    """The mean of ``above[i] - below[i]`` over worlds i, with a bootstrap percentile interval.

    The pairs are drawn again, as many with replacement, 10,000 times; the interval holds the middle ``level`` of their means.
    It assumes no shape of the differences, but is too narrow for few of them: of three pairs it is from the least to the
    largest, which holds the true mean about three times in four. The draws are the same for any pairs of the same number.

    Source: Efron and Tibshirani, "An introduction to the bootstrap" (1993), chapter 13.

    Raises:
        ValueError: they are not as many, or none, or one is no number.
    """
    differences = _differences(above, below)
    mean, pairs = math.fsum(differences) / len(differences), len(differences)
    if pairs < 2:
        return Difference(mean, -math.inf, math.inf, pairs)
    means = differences[_resamples(pairs)].mean(axis=1)
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return Difference(mean, float(low), float(high), pairs)


def bootstrap_mean(values: Sequence[float], level: float = 0.95) -> Difference:
    """The mean of values over worlds, with a bootstrap percentile interval; see ``bootstrap_difference``."""
    return bootstrap_difference(values, [0.0] * len(values), level)


def _differences(above: Sequence[float], below: Sequence[float]) -> NDArray[np.float64]:
    if len(above) == len(below) and len(above):
        differences = np.asarray(above, dtype=np.float64) - np.asarray(below, dtype=np.float64)
        if np.isfinite(differences).all():
            return differences
    raise ValueError(f"cannot pair {list(above)} with {list(below)}: both need as many finite numbers")


@lru_cache(maxsize=16)
def _resamples(pairs: int) -> NDArray[np.int64]:
    """Which pairs each resample draws, int64 [10,000, pairs]."""
    return Streams(0).generator("compare/bootstrap", pairs).integers(0, pairs, (_RESAMPLES, pairs))
