"""Overviews of many variants in one world: heat maps, Pareto fronts, and the grid keys that matter.

A cell is a variant at a point of the study's grid (a combination of values).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from fedsim.common.harmless import clean
from fedsim.common.units import show_share
from fedsim.lab.compare.answer import WorldAnswer
from fedsim.lab.compare.cells import ANY, PLACES, VARIANT
from fedsim.lab.compare.columns import ComparedColumn, ComparedTable
from fedsim.lab.compare.ranking import RankedLine, Ranking

if TYPE_CHECKING:
    import pandas as pd

_RUNNERS_UP = 3  # upper bound of the cells close to a front that are named
_LEAST_PERCENT = 0.05  # difference (%) below which the text says "hardly"
_NEAR = 1.5  # greatest ``CostPoint.factor`` of a runner-up
_FIGURE = "figure"


@dataclass(frozen=True)
class HeatMap:
    """Table of the means of a goal (such as time to a target) by the values of two grid keys.

    If several cells (variants at a point of the grid) share both values, the best mean counts.

    Attributes:
        goal: ranking of the variants by the goal.
        figures: DataFrame of means, one key as index and one as columns; NaN if there is no such
            cell, infinite if the target was missed.
    """

    goal: Ranking
    figures: "pd.DataFrame"

    @property
    def title(self) -> str:
        name = self.goal.measure.name.capitalize()
        figures = self.figures
        return f"{name} by {figures.index.name} and {figures.columns.name}; * marks the best"

    def text(self, value: float) -> str:
        if math.isnan(value):
            return "-"
        if math.isinf(value):
            return "not measured" if self.goal.measure.target is None else "not reached"
        figure = self.goal.show(value)
        return f"{figure} *" if self.share(value) == 1 else figure

    def share(self, value: float) -> float:
        """Return how good a value of the goal is, from the worst (0) to the best (1) of the map.

        The share is linear in the value, or in its logarithm for a cost. It sets a cell's shade.
        """
        figures = self.figures.to_numpy().ravel().tolist()
        finite_figures = [figure for figure in figures if math.isfinite(figure)]
        worst = min(finite_figures)
        best = max(finite_figures)
        if self.goal.measure.best == "least":
            worst, best = best, worst
        if self.goal.measure.is_cost and best > 0:  # so that all costs have a logarithm
            value = math.log(value)
            worst = math.log(worst)
            best = math.log(best)
        return 1.0 if worst == best else (value - worst) / (best - worst)

    def table(self) -> ComparedTable:
        texts = self.figures.map(self.text)
        key = self.figures.columns.name
        texts = texts.rename(columns=lambda value: f"{key} {clean(str(value))}")
        texts = texts.rename(index=lambda value: clean(str(value))).reset_index()
        columns = []
        for head, cells in texts.items():
            columns.append(ComparedColumn(str(head), tuple(map(str, cells))))
        return ComparedTable(tuple(columns), title=self.title)


class CostPoint(NamedTuple):
    """Variant at a point of a study's grid, placed by two of its costs, such as time and traffic.

    Attributes:
        line: the ranked line of the variant.
        first, second: its two costs, means over its runs.
        factor: 1 if the point is on the Pareto front. Otherwise the least f such that both costs
            are at most f times the same costs of some point of the front; infinite if every point
            of the front has a cost of 0.
        near: name of the line of the point of the front that has this f; empty if ``factor`` is 1
            or infinite.
    """

    line: RankedLine
    first: float
    second: float
    factor: float
    near: str = ""


@dataclass(frozen=True)
class ParetoFront:
    """Variants of a study compared by two costs, such as time and traffic to the target.

    A variant is on the Pareto front if no other variant has one lower cost and the other cost not
    higher.

    Attributes:
        first: ranking by the first cost.
        second: ranking by the second cost.
        points: all variants that both rankings have, in order of the first cost.
    """

    first: Ranking
    second: Ranking
    points: tuple[CostPoint, ...]

    @property
    def front(self) -> list[CostPoint]:
        """Variants on the Pareto front, in order of the first cost."""
        return [point for point in self.points if point.factor == 1]

    @property
    def runners_up(self) -> list[CostPoint]:
        """Up to three variants that are not on the Pareto front, but close to it.

        A variant is close if each of its two costs is at most 1.5 times the same cost of some
        variant on the front. The closest variant is first.
        """
        close_points = [point for point in self.points if 1 < point.factor <= _NEAR]
        return sorted(close_points, key=lambda point: point.factor)[:_RUNNERS_UP]

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two costs, such as ``time`` and ``traffic``."""
        return self.first.measure.quantity, self.second.measure.quantity

    def format_point(self, point: CostPoint) -> str:
        """Return a point as text: name of its variant and grid values, then its two costs."""
        costs = f"{self.first.show(point.first)}, {self.second.show(point.second)}"
        if point.near:
            percent = 100 * (point.factor - 1)
            amount = f"at most {percent:.2g} %" if percent >= _LEAST_PERCENT else "hardly"
            costs += f"; {amount} more than {clean(point.near)} in both"
        return f"{clean(point.line.name)} ({costs})"

    @property
    def words(self) -> str:
        """Sentences on the variants on the Pareto front and close to it, with their two costs."""
        front = "; ".join(map(self.format_point, self.front))
        text = f"No cell is better in both {' and '.join(self.names)} than: {front}."
        if self.runners_up:
            text += f" Next to these: {'; '.join(map(self.format_point, self.runners_up))}."
        return text


def heat_map(answer: WorldAnswer) -> HeatMap | None:
    """Return a table of the goal's means by the two grid keys that have the most values.

    The goal is the measure by which a study ranks first, such as time to a target. The study's grid
    has lists of values for keys of the scenario. If several variants are compared, the variant
    counts as a key, and is one of the two.

    Args:
        answer: the comparison of variants at points of the grid.

    Returns:
        The table; None if fewer than two keys vary, or the comparison has no ranking.
    """
    frame, keys = _figures_by_cell(answer)
    if len(keys) < 2 or not answer.rankings:
        return None
    goal = answer.rankings[0]
    is_least_best = goal.measure.best == "least"
    # the variant first, then the keys with the most values
    row_key, column_key = sorted(keys, key=lambda key: (key != VARIANT, -frame[key].nunique()))[:2]
    # a missed target, or a metric that was not measured, is worse than any figure
    comparable = frame.fillna({_FIGURE: math.inf if is_least_best else -math.inf})
    cells = comparable.groupby([row_key, column_key], sort=False)[_FIGURE]
    best = cells.min() if is_least_best else cells.max()
    figures = best.unstack(column_key)
    figures = figures.reindex(index=frame[row_key].unique(), columns=frame[column_key].unique())
    return HeatMap(goal, figures)


def fronts(answer: WorldAnswer) -> list[ParetoFront]:
    """Return a Pareto front for each pair of costs, such as time and traffic to the target.

    A Pareto front has the variants that no other variant beats in both costs. A cost is used if at
    least three variants are ranked by it. Pairs with the cost that is the user's goal come first.

    Args:
        answer: comparison of the variants in one world, with their ranking by each cost.
    """
    rankings = []
    for ranking in answer.rankings:
        if ranking.measure.is_cost and len(ranking.ranked) > 2:
            rankings.append(ranking)
    return [_compute_front(first, second) for first, second in combinations(rankings, 2)]


def _compute_front(first: Ranking, second: Ranking) -> ParetoFront:
    """Return the Pareto front of two costs, and how far each further variant is from it.

    Args:
        first, second: rankings of the variants by the two costs.
    """
    second_costs = {line.line_index: line.mean.mean for line in second.ranked}
    points: list[CostPoint] = []
    front: list[CostPoint] = []  # points that are on the front
    in_both = [line for line in first.ranked if line.line_index in second_costs]
    # The order of a ranking differs from this one if seeds were added until a decision, or if
    # variants with equal first costs differ in the second.
    for line in sorted(in_both, key=lambda line: (line.mean.mean, second_costs[line.line_index])):
        first_cost = line.mean.mean
        second_cost = second_costs[line.line_index]
        # points come in the order of the first cost, so the front's last point has the least second
        # cost
        if not front or second_cost < front[-1].second:
            front.append(CostPoint(line, first_cost, second_cost, 1.0, ""))
            points.append(front[-1])
            continue
        factor = math.inf  # greater ratio of the variant's two costs to the closest point's costs
        closest_name = ""
        for point in front:
            if point.first == 0 or point.second == 0:  # no ratio to a cost of 0
                continue
            ratio = max(first_cost / point.first, second_cost / point.second)
            if ratio < factor:
                factor = ratio
                closest_name = point.line.name
        points.append(CostPoint(line, first_cost, second_cost, factor, closest_name))
    return ParetoFront(first, second, tuple(points))


def in_words(answer: WorldAnswer) -> list[str]:
    """Return sentences for people that compare the variants of a world, and the keys of the grid.

    A world is the devices, network and data that variants share. The first sentences name the
    variants that no other variant beats in two costs, such as time and traffic. The last sentence
    states how much of the variance of the goal's measure each key explains.

    Args:
        answer: the comparison of the variants in one world.
    """
    words = [front.words for front in fronts(answer)[:1]]
    return [*words, *variance_in_words(answer)]


def variance_in_words(answer: WorldAnswer) -> list[str]:
    """Return a sentence on how much of the variance of the goal's measure each grid key explains.

    The shares are first-order Sobol indices of a full factorial design: the variance of the means
    of a key's values over the variance of all variants and grid points. They are exact, because
    all combinations were run.

    Source: I. M. Sobol, "Sensitivity estimates for nonlinear mathematical models", Math. Model.
    Comput. Exp. 1 (1993).

    Args:
        answer: the comparison of the variants in one world.

    Returns:
        A list with the sentence; empty if fewer than two keys vary, or combinations are missing.
    """
    if not answer.rankings:
        return []
    frame, varying = _figures_by_cell(answer)
    rows = frame[(frame[varying] != ANY).all(axis=1)].dropna()
    if len(varying) < 2 or rows.empty:
        return []
    # variants that lack some of the combinations are left out
    counts = rows.groupby(VARIANT)[_FIGURE].transform("size")
    rows = rows[counts == counts.max()]
    measure = answer.rankings[0].measure
    shares = _explained_shares(rows, varying, is_cost=measure.is_cost)
    if not shares:
        return []
    keys_by_share = sorted(shares, key=lambda key: -shares[key])
    explained = ", ".join(f"{key} {show_share(shares[key])}" for key in keys_by_share)
    interplay = max(0.0, 1 - sum(shares.values()))
    return [
        f"Of how {measure.label} varies over the {len(rows)} cells that have a figure, each key "
        f"alone explains: {explained}; their interplay {show_share(interplay)}."
    ]


def _explained_shares(
    rows: "pd.DataFrame", varying: Sequence[str], *, is_cost: bool
) -> dict[str, float]:
    """Return the share (0..1) of the variance of figures that each key of the grid explains.

    Args:
        rows: DataFrame with variant, grid values and mean ``figure`` of each combination.
        varying: keys that may vary.
        is_cost: whether the logarithms of the figures are used, if all are above 0.

    Returns:
        Dict from key to share; empty if fewer than two keys vary, if a combination is missing, or
        if all figures are equal.
    """
    import numpy as np

    keys = [key for key in varying if rows[key].nunique() > 1]
    figures = rows[_FIGURE]
    if is_cost and (figures > 0).all():
        figures = np.log(figures)
    variance = float(figures.var(ddof=0))
    all_combinations = math.prod(rows[key].nunique() for key in keys)
    if len(keys) < 2 or len(rows) != all_combinations or variance <= 0:
        return {}
    shares = {}
    for key in keys:
        shares[key] = float(figures.groupby(rows[key]).mean().var(ddof=0)) / variance
    return shares


def _figures_by_cell(answer: WorldAnswer) -> "tuple[pd.DataFrame, list[str]]":
    """Return the goal's mean for each variant and grid point, and the keys that vary.

    Args:
        answer: the comparison of the variants in one world.

    Returns:
        DataFrame with a row for each variant and grid point: ``variant``, the grid values by key,
        and the mean ``figure``, NaN if a run lacks it; and the columns with several values.
    """
    import pandas as pd

    rows = []
    if answer.rankings:
        ranking = answer.rankings[0]  # the ranking by the goal
        means = {line.line_index: line.mean.mean for line in ranking.ranked}
        variants = [line for line in ranking.entries if not line.reference]
        for line_index in sorted(line.line_index for line in variants):
            rows.append({**answer.cells[line_index], _FIGURE: means.get(line_index, math.nan)})
    frame = pd.DataFrame(rows)
    varying_keys = []
    for column in map(str, frame.columns):
        is_key = column not in (_FIGURE, *PLACES)
        if is_key and frame[column].nunique() > 1:
            varying_keys.append(column)
    return frame, varying_keys
