"""Figures that a file of published tables defines, out of a column of ``rounds.parquet`` or of events."""

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedsim.errors import RunFolderError, nearest
from fedsim.lab.compare.measures import measure, measures
from fedsim.language.spec import Spec
from fedsim.records.ledger import LedgerPreset
from fedsim.records.reading import RunFolder

Take = Literal[
    "max", "mean", "median", "variance", "variance around a line", "zeros", "last", "after",
    "rounds to", "time to", "missed", "count", "rounds before", "before"
]  # fmt: skip

_LEAST = {"mean": 1, "median": 1, "zeros": 1, "variance": 2, "variance around a line": 3}
"""Values that each needs at least; with fewer the figure is unknown."""


def _around_a_line(values: NDArray[np.float64]) -> float:
    """The variance of the residuals of a straight line through the values, by least squares."""
    at = np.arange(len(values))
    left = values - np.polyval(np.polyfit(at, values, 1), at)
    return float(left @ left / (len(values) - 2))


_OF_VALUES: dict[str, Callable[[NDArray[np.float64]], Any]] = {
    "max": np.max,
    "mean": np.mean,
    "median": np.median,
    "variance": lambda values: values.var(ddof=1),
    "variance around a line": _around_a_line,
    "zeros": lambda values: (values == 0).mean(),
    "last": lambda values: values[-1],
}


class Reading(Spec):
    """A figure of a run.

    Attributes:
        title: with its unit.
        take: of the column's measured values ``max``, ``mean``, ``median``, ``variance``, the same around a straight line
            (``variance around a line``: of what still climbs), the share of ``zeros``, or the ``last``; the value ``after``
            so many ``rounds``; ``rounds to`` or ``time to`` (s) a target, all of the run's where it was ``missed`` (1; else 0);
            of an event the ``count``, whole ``rounds before`` the one of this ``number`` (all rounds where there was none),
            or the column's last value ``before`` its first.
        column: of ``rounds.parquet``.
        scale: what its values are multiplied by, such as 100 for %.
        first, last: only so many of the first or last values; at most half of all of the last.
        rounds: from 1, for ``after``.
        target: in the column's scaled unit.
        below_best: the target is the best mean ``max`` of the table's rows less so much.
        event, number: a kind of event; its number from 1.
        figure: instead of all this one of ``fedsim.lab.compare.measures``.
        ledger: which bytes count in it.
        over, minus: what it is divided by or what is taken off it, seed by seed: the same where the ``variant``, or the place
            in the grid, is another.
        tolerance: how far from the published figure the mean may be; None: not judged.
    """

    title: str
    take: Take = "max"
    column: str = "accuracy"
    scale: float = 1.0
    first: int | None = Field(default=None, ge=1)
    last: int | None = Field(default=None, ge=1)
    rounds: int = Field(default=1, ge=1)
    target: float | None = None
    below_best: float | None = None
    event: str | None = None
    number: int = Field(default=1, ge=1)
    figure: str | None = None
    ledger: LedgerPreset = "strict"
    over: dict[str, Any] = Field(default={})
    minus: dict[str, Any] = Field(default={})
    tolerance: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> "Reading":
        names = [one.name for one in measures()]
        if self.figure is not None and self.figure not in names:
            raise ValueError(f"'figure' is {self.figure!r}; allowed are {', '.join(names)}{nearest(self.figure, names)}")
        if self.take in ("rounds to", "time to", "missed") and self.target is None and self.below_best is None:
            raise ValueError(f"'take' is {self.take!r}, which needs 'target' or 'below_best'")
        if self.take in ("count", "rounds before", "before") and self.event is None:
            raise ValueError(f"'take' is {self.take!r}, which needs 'event'")
        return self

    def of(self, run: RunFolder, best: float = 0.0) -> float:
        """The figure of a run; NaN where its rounds, or their tests, are too few. ``best``: the mean for ``below_best``."""
        try:
            value = self._of(run, best if self.below_best is None else best - self.below_best)
        except (IndexError, ValueError):
            value = None
        except KeyError as error:
            raise RunFolderError(f"{str(run.path)!r} has no column {error} in its rounds, for {self.title!r}") from None
        return math.nan if value is None else value

    def _of(self, run: RunFolder, target: float) -> float | None:
        if self.figure is not None:
            return None if (value := measure(run, (), self.ledger)[self.figure]) is None else self.scale * float(value)
        rows = run.rounds
        if self.event is not None:
            at = [number for (number,) in run.events_of((self.event,), ("round",))]
            if self.take == "count":
                return float(len(at))
            before = at[self.number - 1] if self.number <= len(at) else len(rows)
            if self.take == "rounds before":
                return float(before)
            return float(self._values(rows[: at[0]] if at else rows)[-1])
        if self.take == "after":
            return float(self._values([rows[self.rounds - 1]])[0])
        values = self._values(rows)
        if self.take in _OF_VALUES:
            if self.last is not None:
                values = values[-min(self.last, len(values) // 2) :]
            values = values[: self.first]
            if len(values) < _LEAST.get(self.take, 0):
                return math.nan
            return (self.scale if self.take == "zeros" else 1.0) * float(_OF_VALUES[self.take](values))
        goal = target if self.target is None else self.target
        reached = next((row for row in rows if row[self.column] is not None and self.scale * row[self.column] >= goal), None)
        if self.take == "missed":
            return float(reached is None)
        row = rows[-1] if reached is None else reached
        return float(row["time"]) if self.take == "time to" else float(row["round"] + 1)

    def _values(self, rows: list[dict[str, Any]]) -> NDArray[np.float64]:
        return self.scale * np.array([row[self.column] for row in rows if row[self.column] is not None], dtype=np.float64)
