"""Two strategies in the same worlds, seed by seed: the mean difference and its interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """Mean of values, or of differences of pairs of values, with its 95 % confidence interval.

    Attributes:
        mean: mean of the values.
        low, high: ends of the interval; infinite if ``pairs`` is below 2.
        pairs: count of values or differences.
    """

    mean: float
    low: float = -math.inf
    high: float = math.inf
    pairs: int = field(default=1, compare=False)

    @property
    def half(self) -> float:
        """Half the width of the confidence interval, for "mean ± half"; 0 for an infinite one."""
        width = self.high - self.low
        return width / 2 if math.isfinite(width) else 0.0

    @property
    def edges(self) -> tuple[float | None, float | None]:
        """Low and high end of the confidence interval; None instead of an infinite end."""
        low = self.low if math.isfinite(self.low) else None
        high = self.high if math.isfinite(self.high) else None
        return low, high

    @property
    def verdict(self) -> str:
        """Verdict on the claim that the true mean is above 0.

        ``holds`` if the whole interval is above 0, ``holds in part`` if only the mean is above 0,
        and ``does not hold`` otherwise.
        """
        if self.low > 0:
            return "holds"
        return "holds in part" if self.mean > 0 else "does not hold"


def paired_difference(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Return the mean of ``above[i] - below[i]``, with Student's 95 % interval.

    The interval is mean +- t s / sqrt(n) for n pairs with standard deviation s.

    Source: Student, "The probable error of a mean", Biometrika 6 (1908).

    Args:
        above: figures of a first strategy, one per seed.
        below: figures of a second strategy, in the same order of seeds.

    Raises:
        ValueError: the sequences differ in length, are empty, or have a value that is not finite.
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
    if np.ptp(differences) == 0:  # rounding errors must not widen the interval of equal differences
        mean = float(differences[0])
        return Estimate(mean, mean, mean, pairs)
    half = _student_quantile(pairs) * float(differences.std(ddof=1)) / math.sqrt(pairs)
    return Estimate(mean, mean - half, mean + half, pairs)


def pairs_to_tell(mean: float, half: float, pairs: int, most: int = 1000) -> int | None:
    """Estimate how many pairs of runs are needed until a mean difference is significant.

    Significant means that the 95 % interval excludes 0. New differences are assumed to have the
    same mean and standard deviation.

    Args:
        mean: mean of the differences so far.
        half: half the width of their 95 % interval.
        pairs: count of differences so far.
        most: greatest count to try.

    Returns:
        The least count of pairs above ``pairs`` that is enough; None if ``most`` pairs are too few.
    """
    if not mean:
        return None
    deviation = half * math.sqrt(pairs) / _student_quantile(pairs)
    for count in range(pairs + 1, most + 1):
        if _student_quantile(count) * deviation < abs(mean) * math.sqrt(count):
            return count
    return None


def _student_quantile(pairs: int) -> float:
    """Return the quantile t of Student's distribution for a 95 % interval of ``pairs`` values."""
    from scipy.special import stdtrit  # imports in a third of the time of scipy.stats

    return float(stdtrit(pairs - 1, 0.5 + _LEVEL / 2))


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean of values, one per seed, with Student's 95 % interval."""
    return paired_difference(values, [0.0] * len(values))


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Return the geometric mean of ``above[i] / below[i]``, with its 95 % interval.

    The interval is Student's, of the logarithms. None if a value is not positive.

    Args:
        above: values above 0, one per seed.
        below: values above 0, in the same order of seeds.
    """
    if min(*above, *below) <= 0:
        return None
    logarithms = paired_difference(list(map(math.log, above)), list(map(math.log, below)))
    return Estimate(
        _exp_or_most(logarithms.mean),
        _exp_or_most(logarithms.low),
        _exp_or_most(logarithms.high),
        logarithms.pairs,
    )


def _exp_or_most(value: float) -> float:
    return math.exp(min(value, 700.0))  # exp(710) overflows
