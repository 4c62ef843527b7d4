"""Decide which variant is the best while seeds are added, with a bound on the risk of error.

A line is a variant with a run for each seed. All lines run in the same worlds, so two lines are
compared by their differences seed by seed. Each pair of lines has a confidence sequence: intervals
for the mean difference that all hold together, after any count of seeds, with unequal and unknown
variances. A line is worse, and is dropped, if an interval shows another line to be better. The
lines that are left tie if one of them, the leader, is surely worse than any other by no more than
an indifference zone.

Of ``k`` lines, the true best one is in ``k - 1`` pairs, each with the error ``error / (k - 1)``. So
with a probability of at least ``1 - error`` the true best line is never dropped, and the leader is
never worse than this line by more than the zone, whatever the gaps are and whenever the seeds end.
Differences are taken to be normal.

Source: H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means
with unknown variance", Sequential Analysis 44 (2025), arXiv 2310.03722: the scale-invariant
mixture martingale with a standard normal mixture over the effect. The indifference zone and the
union over pairs with the best: S.-H. Kim and B. L. Nelson, "A fully sequential procedure for
indifference-zone selection in simulation", ACM TOMACS 11 (2001).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_SEEDS = 5
"""Seeds of every line before the first decision; fewer cannot reach an error of 5 %."""


@dataclass(frozen=True)
class DroppedLine:
    """Line (variant) that is surely worse than another variant, and so is no longer compared.

    Attributes:
        line_index: index of the variant in the comparison.
        seeds: count of seeds after which it was dropped.
        better: index of the variant that is better.
    """

    line_index: int
    seeds: int
    better: int


@dataclass(frozen=True)
class Decision:
    """Result of ``decide``: the variant with the least mean cost, or that more seeds are needed.

    A variant that is surely worse than another one is dropped. The others are the contenders.
    Variants are identified by their index in the comparison.

    Attributes:
        status: ``best`` if there is one contender. ``tie`` if there are several, and the leader
            is at most an indifference zone (``within``) worse than any of them. ``open`` if more
            seeds are needed. ``none`` if there is nothing to decide: fewer than two variants, or
            each has a run without a cost.
        leader: index of the best variant; None unless the status is ``best`` or ``tie``.
        contenders: indices of the variants that may still be the best.
        losses: variants that were dropped, in the order of the drops.
        missed: indices of the variants that have a run without a cost, such as one that missed the
            target. They are not compared.
        seeds: greatest count of seeds of a contender.
        bound: upper bound on the mean cost of the leader minus the mean cost of the best variant;
            None without a leader. If the costs given to ``decide`` are logarithms, it bounds a
            difference of logarithms.
    """

    status: Literal["best", "tie", "open", "none"]
    leader: int | None
    contenders: tuple[int, ...]
    losses: tuple[DroppedLine, ...]
    missed: tuple[int, ...] = ()
    seeds: int = 0
    bound: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the decision is made, so that no more seeds are needed."""
        return self.status != "open"


def radius(count: int, squares: float, error: float) -> float:
    """Return half the width of a confidence interval of a mean, to compute after every new value.

    All these intervals hold together, with the probability 1 - ``error``. So values can be added
    until a decision is reached, without a greater risk of error.

    For n values with mean m, and the sum Q of their squared deviations from m, the interval has
    each m + d and m - d for which a martingale is below 1 / ``error``. The martingale is
    ``(n + 1)^(-1/2) ((n + 1) (Q + n d^2) / ((n + 1) Q + n d^2))^(n/2)``.

    Source: H. Wang and A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian
    means with unknown variance", Sequential Analysis 44 (2025).

    Args:
        count: count of values, n.
        squares: sum of the squared deviations of the values from their mean, Q.
        error: probability that any of the intervals, over all counts, misses the true mean.

    Returns:
        Half the width; infinite if the values are too few to reach the error.
    """
    unit_radius = _unit_radius(count, error)
    return unit_radius if math.isinf(unit_radius) else unit_radius * math.sqrt(squares)


def _unit_radius(count: int, error: float) -> float:
    """Return half the width of a mean's confidence interval if the sum of squares is 1.

    The sum is of the squared deviations from the mean. The half width grows with its square root.

    Args:
        count: count of values.
        error: probability that any of the intervals, over all counts, misses the mean.
    """
    # With n values, a sum of squares Q, and a distance d of the mean from the end of its interval,
    # the test martingale is 1 / error if (n + 1) (Q + n d^2) / ((n + 1) Q + n d^2) equals this
    # bound. The ratio stays below n + 1. The result is d for Q = 1.
    bound = math.exp(2 / count * (0.5 * math.log(count + 1) - math.log(error)))
    if bound >= count + 1:
        return math.inf
    return math.sqrt((bound - 1) * (count + 1) / (count + 1 - bound) / count)


def decide(costs: Mapping[int, Sequence[float | None]], *, within: float, error: float) -> Decision:
    """Decide which of several variants has the least mean cost, or that more seeds are needed.

    The variants are compared by their first seed, then by their first two seeds, and so on. A
    variant that is surely worse than another one is dropped (no longer compared). It stays dropped
    when further seeds are added. A variant that lacks the cost of a run is not compared at all. If
    it had all costs in an earlier call, variants that were dropped there for being worse than it
    may compete again.

    Args:
        costs: dict from index of a variant to its costs, one per seed. All variants have the same
            order of seeds, but some may have fewer. A cost is None if the run has none, for example
            because it missed the target.
        within: indifference zone: the difference of mean costs that does not matter.
        error: greatest probability of a wrong decision: the best variant is dropped, or the named
            leader is worse than the best variant by more than ``within``.

    Example:
        >>> costs = {0: [1.0, 2.0, 3.1, 4.0, 5.0], 1: [2.0, 3.1, 4.0, 5.1, 6.0]}
        >>> decision = decide(costs, within=0.1, error=0.05)
        >>> decision.status, decision.leader
        ('best', 0)
    """
    complete_costs = {}
    missed = []
    for line_index, values in costs.items():
        figures = [value for value in values if value is not None]
        if len(figures) < len(values):
            missed.append(line_index)
        else:
            complete_costs[line_index] = figures
    if len(costs) < 2 or not complete_costs:
        return Decision("none", leader=None, contenders=(), losses=(), missed=tuple(missed))
    # the best variant is in this many pairs, of which each may be wrong
    race = _Race(complete_costs, error / (len(costs) - 1))
    for count in range(1, max(map(len, complete_costs.values())) + 1):
        race.compare(count)
    return race.decide(within, tuple(missed))


def next_counts(decision: Decision, counts: Mapping[int, int]) -> dict[int, int]:
    """Return how many seeds each variant that may still be the best needs for the next decision.

    Variants with fewer seeds get as many as the variant with the most. If all have equally many,
    all get a quarter more, at least one more.

    Args:
        decision: the last decision, which is still open.
        counts: dict from index of a variant to the count of its seeds so far.

    Returns:
        Dict from index of a variant to the count of seeds in all.
    """
    most = max(counts[line_index] for line_index in decision.contenders)
    if all(counts[line_index] == most for line_index in decision.contenders):
        most += max(1, most // 4)
    return dict.fromkeys(decision.contenders, most)


class _Race:
    """Compares variants by their costs, seed by seed, and drops variants that are surely worse.

    ``compare`` is called for each count of seeds in turn, then ``decide``.

    Args:
        costs: costs in the order of the seeds, by index of the variant.
        error: probability of a wrong result for each pair of variants.
    """

    def __init__(self, costs: Mapping[int, Sequence[float]], error: float) -> None:
        # A row is a line's position in these arrays; results name its index in the comparison.
        self._line_indices = list(costs)
        self._counts = [len(values) for values in costs.values()]  # count of seeds of each line
        self._costs = np.full((len(costs), max(self._counts)), np.nan)
        for row, values in enumerate(costs.values()):
            self._costs[row, : len(values)] = values
        self._error = error
        # rows that are not dropped
        self._contender_rows = list(range(len(costs)))
        self._losses: list[DroppedLine] = []
        # entry [i, j]: upper bound on how much worse line i is than line j
        self._worse_at_most = np.full((len(costs), len(costs)), np.inf)

    def compare(self, count: int) -> None:
        """Compare the variants by their first ``count`` seeds, and drop surely worse ones.

        Variants with fewer seeds, and variants that were dropped before, are not compared.
        """
        unit_radius = _unit_radius(count, self._error)
        rows = [row for row in self._contender_rows if self._counts[row] >= count]
        if math.isinf(unit_radius) or len(rows) < 2:
            return
        costs = self._costs[rows, :count]  # [lines, seeds]
        # entry [i, j]: lower bound on how much worse line ``rows[i]`` is than line ``rows[j]``
        worse_at_least = np.empty((len(rows), len(rows)))
        for j, row in enumerate(rows):
            means, halves = _intervals(costs - costs[j], unit_radius)
            worse_at_least[:, j] = means - halves
            earlier_bounds = self._worse_at_most[rows, row]
            self._worse_at_most[rows, row] = np.minimum(earlier_bounds, means + halves)
        for i, row in enumerate(rows):
            surest = int(worse_at_least[i].argmax())  # the line that is most surely better
            if worse_at_least[i, surest] > 0:
                self._contender_rows.remove(row)
                better = self._line_indices[rows[surest]]
                self._losses.append(DroppedLine(self._line_indices[row], count, better))

    def decide(self, within: float, missed: tuple[int, ...]) -> Decision:
        """Return the decision on the best variant, once ``compare`` was called for all counts.

        Args:
            within: difference of mean costs that does not matter.
            missed: indices of the variants that were not compared, for the decision.
        """
        rows = self._contender_rows
        contenders = tuple(self._line_indices[row] for row in rows)
        losses = tuple(self._losses)
        seeds = max(self._counts[row] for row in rows)
        if len(rows) == 1:
            return Decision("best", contenders[0], contenders, losses, missed, seeds, bound=0.0)
        bounds = self._worse_at_most[np.ix_(rows, rows)]
        np.fill_diagonal(bounds, 0.0)
        worst_bounds = bounds.max(axis=1)  # upper bounds of mean cost minus the best line's mean
        leader_positions = np.flatnonzero(worst_bounds <= within)
        if not len(leader_positions):
            return Decision("open", None, contenders, losses, missed, seeds)  # without a leader
        # the leader is the possible leader with the least mean over the seeds of all contenders
        shared_count = min(self._counts[row] for row in rows)
        means = self._costs[rows, :shared_count].mean(axis=1)
        leader_position = min(leader_positions.tolist(), key=means.__getitem__)
        leader = contenders[leader_position]
        bound = float(worst_bounds[leader_position])
        return Decision("tie", leader, contenders, losses, missed, seeds, bound)


def _intervals(differences: Floats, unit_radius: float) -> tuple[Floats, Floats]:
    """Return the mean cost difference of pairs of variants, and the half widths of its intervals.

    Args:
        differences: differences by pair of variants and seed; float64 [pairs, seeds].
        unit_radius: half the width of an interval for a sum of squared deviations of 1.

    Returns:
        Means and half widths; float64 [pairs] each.
    """
    means = differences.mean(axis=1)
    squares = ((differences - means[:, None]) ** 2).sum(axis=1)
    is_constant = np.ptp(differences, axis=1) == 0  # rounding errors must not widen these intervals
    squares[is_constant] = 0.0
    means[is_constant] = differences[is_constant, 0]
    return means, unit_radius * np.sqrt(squares)
