"""The cells of a world beside each other: heat maps, Pareto fronts of two costs, and the keys
that matter most.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from fedsim.common.harmless import clean
from fedsim.lab.compare.answer import Answer
from fedsim.lab.compare.cells import ANY, PLACES, VARIANT
from fedsim.lab.compare.ranking import RankedLine, Ranking
from fedsim.lab.compare.table import ComparedTable

if TYPE_CHECKING:
    import pandas as pd

# so many at most, which cost at most so many times what one on the front does
_RUNNERS_UP = 3
_NEAR = 1.5
_FIGURE = "figure"


@dataclass(frozen=True)
class HeatMap:
    """The goal's mean by two keys, the best of several cells: NaN where none was tried, infinite
    if the target was missed.
    """

    goal: Ranking
    figures: "pd.DataFrame"

    @property
    def title(self) -> str:
        name = self.goal.measure.name.capitalize()
        figures = self.figures
        return f"{name} by {figures.index.name} and {figures.columns.name}; * marks the best"

    def text(self, value: float) -> str:
        if not math.isfinite(value):
            return "-" if math.isnan(value) else "not there"
        return f"{self.goal.show(value)} *" if self.share(value) == 1 else self.goal.show(value)

    def share(self, value: float) -> float:
        """The rank of a figure between the worst (0) and the best (1) of the map; of costs by
        their logarithms.
        """
        known = [one for one in self.figures.to_numpy().ravel().tolist() if math.isfinite(one)]
        worst, best = (
            (max(known), min(known)) if self.goal.measure.is_cost else (min(known), max(known))
        )
        if self.goal.measure.is_cost and best > 0:
            value, worst, best = map(math.log, (value, worst, best))
        return 1.0 if worst == best else (value - worst) / (best - worst)

    def table(self) -> ComparedTable:
        named = self.figures.map(self.text).rename(
            columns=lambda value: f"{self.figures.columns.name} {clean(str(value))}"
        )
        named = named.rename(index=lambda value: clean(str(value))).reset_index()
        return replace(
            ComparedTable.of([str(head) for head in named], named.to_dict("records")),
            title=self.title,
        )  # type: ignore[arg-type]


class CostPoint(NamedTuple):
    """A cell by two costs, and the factor up to which it costs more than one on the front does;
    1 on the front itself.
    """

    line: RankedLine
    first: float
    other: float
    factor: float


@dataclass(frozen=True)
class ParetoFront:
    """The cells of a world by two costs, in order of the first."""

    first: Ranking
    other: Ranking
    points: tuple[CostPoint, ...]

    @property
    def front(self) -> list[CostPoint]:
        """The cells that none is better than in both costs."""
        return [one for one in self.points if one.factor == 1]

    @property
    def runners_up(self) -> list[CostPoint]:
        """The cells next to the front, the nearest first."""
        near = [one for one in self.points if 1 < one.factor <= _NEAR]
        return sorted(near, key=lambda one: one.factor)[:_RUNNERS_UP]

    @property
    def names(self) -> tuple[str, str]:
        first, other = (
            one.measure.name.partition(" to target")[0] for one in (self.first, self.other)
        )
        return first, other

    def shown(self, point: CostPoint) -> str:
        near = f", at most {point.factor:.2f} times either" if point.factor > 1 else ""
        return (
            f"{clean(point.line.name)} ({self.first.show(point.first)}, "
            f"{self.other.show(point.other)}{near})"
        )

    @property
    def words(self) -> str:
        near = (
            f" Next to these: {'; '.join(map(self.shown, self.runners_up))}."
            if self.runners_up
            else ""
        )
        return (
            f"No cell is better in both {' and '.join(self.names)} than: "
            f"{'; '.join(map(self.shown, self.front))}.{near}"
        )


def heat_map(answer: Answer) -> HeatMap | None:
    """The goal by variant and the key with the most values, or by two keys. None with one key."""
    frame, keys = _frame(answer)
    if len(keys) < 2 or not answer.rankings:
        return None
    goal = answer.rankings[0]
    down, along = sorted(keys, key=lambda key: (key != VARIANT, -frame[key].nunique()))[:2]
    missed = math.inf if goal.measure.is_cost else -math.inf
    cells = frame.fillna({_FIGURE: missed}).groupby([down, along], sort=False)[_FIGURE]
    found = (cells.min() if goal.measure.is_cost else cells.max()).unstack(along)
    return HeatMap(goal, found.reindex(index=frame[down].unique(), columns=frame[along].unique()))


def fronts(answer: Answer) -> list[ParetoFront]:
    """The Pareto fronts of any two costs that three cells or more have; that of the goal and the
    next cost first.
    """
    found = []
    for first, other in combinations(
        [one for one in answer.rankings if one.measure.is_cost and len(one.whole) > 2], 2
    ):
        seconds = {one.place: one.mean.mean for one in other.whole}
        points: list[CostPoint] = []
        for line in (line for line in first.whole if line.place in seconds):
            x = line.mean.mean
            y = seconds[line.place]
            front = [one for one in points if one.factor == 1]
            more = (max(x / one.first, y / one.other) for one in front if one.first and one.other)
            points.append(
                CostPoint(
                    line,
                    x,
                    y,
                    1.0 if not front or y < front[-1].other else min(more, default=math.inf),
                )
            )
        found.append(ParetoFront(first, other, tuple(points)))
    return found


def in_words(answer: Answer) -> list[str]:
    """The Pareto front of the goal and the next cost with its runners-up, and the share of each
    key in how the goal varies.
    """
    return [*(one.words for one in fronts(answer)[:1]), *shares(answer)]


def shares(answer: Answer) -> Iterator[str]:
    """First-order Sobol indices of a full factorial design: the variance of the means of a key's
    values over that of all cells.

    They are exact, as all combinations are there; a search, which tries some, has estimates
    (``search.importances``).

    Source: I. M. Sobol, "Sensitivity estimates for nonlinear mathematical models", Math. Model.
    Comput. Exp. 1 (1993).
    """
    import numpy as np

    frame, keys = _frame(answer)
    if not answer.rankings:
        return
    rows = frame[(frame[keys] != ANY).all(axis=1)].dropna()
    if len(keys) < 2 or rows.empty:
        return
    rows = rows[
        rows.groupby(VARIANT)[_FIGURE].transform("size") == rows.groupby(VARIANT).size().max()
    ]
    keys = [key for key in keys if rows[key].nunique() > 1]
    goal = answer.rankings[0]
    figures = (
        np.log(rows[_FIGURE])
        if goal.measure.is_cost and (rows[_FIGURE] > 0).all()
        else rows[_FIGURE]
    )
    total = float(figures.var(ddof=0))
    if len(keys) < 2 or len(rows) != math.prod(rows[key].nunique() for key in keys) or total <= 0:
        return
    of_keys = {key: float(figures.groupby(rows[key]).mean().var(ddof=0)) / total for key in keys}
    named = ", ".join(
        f"{key} {share:.0%}" for key, share in sorted(of_keys.items(), key=lambda item: -item[1])
    )
    rest = 1 - sum(of_keys.values())
    name = goal.measure.name.partition(" to target")[0]
    yield (
        f"Of how {name} varies over the {len(rows)} cells of all combinations, each key alone "
        f"explains: {named}; "
        f"their interplay {rest:.0%}."
    )


def _frame(answer: Answer) -> "tuple[pd.DataFrame, list[str]]":
    """A row a cell that is no reference: its keys, and the goal's mean, NaN where a run lacks
    it; and the keys that vary.
    """
    import pandas as pd

    goal = answer.rankings[:1]
    whole = {one.place: one.mean.mean for ranking in goal for one in ranking.whole}
    ranked = [one.place for ranking in goal for one in ranking.entries if not one.reference]
    frame = pd.DataFrame(
        [{**answer.cells[place], _FIGURE: whole.get(place, math.nan)} for place in sorted(ranked)]
    )
    keys = [
        str(key)
        for key in frame.columns
        if key not in (_FIGURE, *PLACES) and frame[key].nunique() > 1
    ]
    return frame, keys
