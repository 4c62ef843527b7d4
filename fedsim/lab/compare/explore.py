"""The cells of a world beside each other: a heat map, the Pareto front of two costs, and the keys that matter most."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fedsim.lab.compare.answer import ANY, PLACES, VARIANT, Answer, RankedLine
from fedsim.lab.compare.table import Cell, ComparedTable
from fedsim.output.harmless import clean

if TYPE_CHECKING:
    import pandas as pd

_RUNNERS_UP, _NEAR = 3, 1.5  # so many at most, which cost at most so many times what one on the front does
_FIGURE = "figure"
_NOT_THERE, _NOT_TRIED = "not there", "-"


def heat_map(answer: Answer) -> ComparedTable | None:
    """The goal by variant and the key with the most values, of several cells the best; or by two keys. None with one key."""
    frame, keys = _frame(answer)
    if len(keys) < 2 or not answer.rankings:
        return None
    goal = answer.rankings[0]
    down, along = sorted(keys, key=lambda key: (key != VARIANT, -frame[key].nunique()))[:2]
    cells = frame.groupby([down, along], sort=False)[_FIGURE].agg("max" if goal.measure.more_is_better else "min")
    top = cells.max() if goal.measure.more_is_better else cells.min()
    rows: list[dict[str, Cell]] = []
    for level in frame[down].unique():
        row: dict[str, Cell] = {down: clean(level)}
        for other in frame[along].unique():
            value = cells.get((level, other))
            told = _NOT_TRIED if value is None else _NOT_THERE if math.isnan(value) else goal.show(value)
            row[f"{along} {clean(other)}"] = f"{told} *" if value == top else told
        rows.append(row)
    title = f"{goal.measure.head} by {down} and {along}; * marks the best"
    return replace(ComparedTable.of(list(rows[0]), rows), title=title)


def in_words(answer: Answer) -> list[str]:
    """The Pareto front of the goal and the next cost with its runners-up, and the share of each key in how the goal varies."""
    return [*_front(answer), *_shares(answer)] if answer.rankings else []


def _front(answer: Answer) -> Iterator[str]:
    costs = [one for one in answer.rankings if one.measure.is_cost and len(one.whole) > 2][:2]
    if len(costs) < 2:
        return
    second = {one.place: one.mean.mean for one in costs[1].whole}
    points = [(one, one.mean.mean, second[one.place]) for one in costs[0].whole if one.place in second]
    front: list[tuple[RankedLine, float, float]] = []
    near: list[tuple[float, str]] = []
    for one, first, other in points:  # in order of the first cost
        if not front or other < front[-1][2]:
            front.append((one, first, other))
        elif min(first, other) > 0:
            near.append((min(max(first / x, other / y) for _, x, y in front if x and y), clean(one.name)))
    named = "; ".join(f"{clean(one.name)} ({costs[0].show(x)}, {costs[1].show(y)})" for one, x, y in front)
    yield f"No cell is better in both {_short(costs[0].measure.name)} and {_short(costs[1].measure.name)} than: {named}."
    close = [f"{name} (at most {factor:.2f} times either)" for factor, name in sorted(near)[:_RUNNERS_UP] if factor <= _NEAR]
    if close:
        yield f"Next to these: {', '.join(close)}."


def _shares(answer: Answer) -> Iterator[str]:
    """First-order Sobol indices of a full factorial design: the variance of the means of a key's values over that of all cells.

    Source: I. M. Sobol, "Sensitivity estimates for nonlinear mathematical models", Math. Model. Comput. Exp. 1 (1993).
    """
    import numpy as np

    frame, keys = _frame(answer)
    rows = frame[(frame[keys] != ANY).all(axis=1)].dropna()
    if len(keys) < 2 or rows.empty:
        return
    rows = rows[rows.groupby(VARIANT)[_FIGURE].transform("size") == rows.groupby(VARIANT).size().max()]
    keys = [key for key in keys if rows[key].nunique() > 1]
    goal = answer.rankings[0]
    figures = np.log(rows[_FIGURE]) if goal.measure.is_cost and (rows[_FIGURE] > 0).all() else rows[_FIGURE]
    total = float(figures.var(ddof=0))
    if len(keys) < 2 or len(rows) != math.prod(rows[key].nunique() for key in keys) or total <= 0:
        return
    shares = {key: float(figures.groupby(rows[key]).mean().var(ddof=0)) / total for key in keys}
    named = ", ".join(f"{key} {share:.0%}" for key, share in sorted(shares.items(), key=lambda item: -item[1]))
    rest = 1 - sum(shares.values())
    of = f"the {len(rows)} cells of all combinations"
    yield f"Of how {_short(goal.measure.name)} varies over {of}, each key alone explains: {named}; their interplay {rest:.0%}."


def _frame(answer: Answer) -> "tuple[pd.DataFrame, list[str]]":
    """A row a cell that is no reference: its keys, and the goal's mean, NaN where a run lacks it; and the keys that vary."""
    import pandas as pd

    goal = answer.rankings[:1]
    whole = {one.place: one.mean.mean for ranking in goal for one in ranking.whole}
    ranked = [one.place for ranking in goal for one in ranking.entries if not one.reference]
    frame = pd.DataFrame([{**answer.cells[place], _FIGURE: whole.get(place, math.nan)} for place in sorted(ranked)])
    keys = [str(key) for key in frame.columns if key not in (_FIGURE, *PLACES) and frame[key].nunique() > 1]
    return frame, keys


def _short(name: str) -> str:
    return name.partition(" to target")[0]
