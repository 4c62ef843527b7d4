"""Two strategies in the same worlds, compared seed by seed: a mean difference, its interval, and
the verdict on a claim.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or of paired differences, with a 95 % interval; it is infinite for
    fewer than two ``pairs``.
    """

    mean: float
    low: float = -math.inf
    high: float = math.inf
    pairs: int = field(default=1, compare=False)

    @property
    def half(self) -> float:
        """Half the width of the interval; 0 where there is none."""
        return (self.high - self.low) / 2 if math.isfinite(self.high - self.low) else 0.0

    @property
    def edges(self) -> tuple[float | None, float | None]:
        """The ends of the interval; None where there is none."""
        low, high = (edge if math.isfinite(edge) else None for edge in (self.low, self.high))
        return low, high

    @property
    def verdict(self) -> str:
        """On the claim that the value is above 0: the whole interval is, or only the mean, or
        not even that.
        """
        if self.low > 0:
            return "holds"
        return "holds in part" if self.mean > 0 else "does not hold"


def paired_difference(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The mean of ``above[i] - below[i]`` over worlds i, with Student's 95 % interval: mean +- t
    s / sqrt(n) for n pairs.

    ``ValueError``: the two differ in length, are empty, or hold a value that is not finite.

    Source: Student, "The probable error of a mean", Biometrika 6 (1908).
    """
    if len(above) != len(below) or not len(above) or not np.isfinite([*above, *below]).all():
        raise ValueError(
            f"cannot pair {list(above)} with {list(below)}: both need as many finite numbers"
        )
    differences = np.subtract(above, below, dtype=np.float64)
    mean = math.fsum(differences) / len(differences)
    pairs = len(differences)
    if pairs < 2:
        return Estimate(mean)
    if np.ptp(differences) == 0:  # a sum's last bit must not make an interval of nothing
        mean = float(differences[0])
        return Estimate(mean, mean, mean, pairs)
    half = _student(pairs) * float(differences.std(ddof=1)) / math.sqrt(pairs)
    return Estimate(mean, mean - half, mean + half, pairs)


def pairs_to_tell(mean: float, half: float, pairs: int, most: int = 1000) -> int | None:
    """The number of pairs whose interval excludes 0, if further differences are like these; None
    for more than ``most``.
    """
    deviation = half * math.sqrt(pairs) / _student(pairs)
    more = range(pairs + 1, most + 1) if mean else ()
    return next((n for n in more if _student(n) * deviation < abs(mean) * math.sqrt(n)), None)


def _student(pairs: int) -> float:
    from scipy.special import stdtrit  # imports in a third of the time of scipy.stats

    return float(stdtrit(pairs - 1, 0.5 + _LEVEL / 2))


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of values over worlds, with Student's t interval; see ``paired_difference``."""
    return paired_difference(values, [0.0] * len(values))


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """The geometric mean of ``above[i] / below[i]``, with Student's t interval of the
    logarithms; None of values up to 0.
    """
    if min(*above, *below) <= 0:
        return None
    found = paired_difference(list(map(math.log, above)), list(map(math.log, below)))
    mean, low, high = (math.exp(min(edge, 700.0)) for edge in (found.mean, found.low, found.high))
    return Estimate(mean, low, high, found.pairs)
