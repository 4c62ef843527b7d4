"""Definitions of figures, such as a table of a paper needs, and their computation from a run."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.errors import RunFolderError, nearest
from fedsim.common.spec import Spec
from fedsim.lab.compare.measures import measure, measures
from fedsim.records.ledger import LedgerPreset
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    import pandas as pd

Take = Literal[
    "max", "mean", "median", "variance", "variance around a line", "zeros", "last", "after",
    "rounds to", "time to", "missed", "count", "rounds before", "before"
]  # fmt: skip


def _variance_around_line(values: "pd.Series[float]") -> float:
    """Return the variance around a least-squares line, with n - 2 degrees of freedom."""
    # the second result of ``lstsq`` is the sum of squared residuals
    squares = np.linalg.lstsq(np.vander(range(len(values)), 2), values)[1]
    return float(squares[0] / (len(values) - 2))


_SUMMARIES: "dict[str, Callable[[pd.Series[float]], float]]" = {
    "max": lambda values: values.max(skipna=False),
    "mean": lambda values: values.mean(skipna=False),
    "median": lambda values: values.median(skipna=False),
    "variance": lambda values: values.var(skipna=False),
    "variance around a line": _variance_around_line,
    "zeros": lambda values: (values == 0).mean(),
    "last": lambda values: values.iloc[-1],
}


class Reading(Spec):
    """Reading: how a number of a paper, such as rounds to 80 % accuracy, is computed from a run.

    Attributes:
        title: the figure's name, with its unit.
        take: how the figure is computed.

            - ``max``, ``mean``, ``median``, ``variance``: this statistic of the values of
              ``column``.
            - ``last``: the last of these values.
            - ``variance around a line``: variance of the values around a fitted line, for values
              that still climb.
            - ``zeros``: share of the values that are 0.
            - ``after``: the value after ``rounds`` rounds.
            - ``rounds to``, ``time to``: count of rounds, or time (s), until a value reaches
              ``target``; all rounds, or the whole time, of the run if none does.
            - ``missed``: 1 if no value reaches ``target``, else 0.
            - ``count``: count of the records of the kind ``event``.
            - ``rounds before``: count of whole rounds before the record of the kind ``event`` with
              the index ``number``; all rounds if there are fewer such records.
            - ``before``: last value of ``column`` before the first record of the kind ``event``.
        column: column of ``rounds.parquet``.
        scale: factor of the values, such as 100 for %.
        first, last: count of first or last values to use; ``last`` uses at most half of all
            values.
        rounds: count of rounds for ``after``, from 1.
        target: target value, in the scaled unit of the column.
        below_best: instead of ``target``, how far the target lies below the best row of the table.
            The figure of each row is its mean of ``max`` over the seeds.
        event: kind of the records, such as ``assign``.
        number: index of the record for ``rounds before``, from 1.
        figure: name of a measure of ``fedsim.lab.compare.measures``, which replaces ``take``.
        ledger: traffic that ``figure`` counts: ``strict`` for all bytes, ``paper`` for the bytes
            that papers count.
        over, minus: ``variant`` or grid values of a second variant. The figure is divided by, or
            reduced by, the figure of this variant, seed by seed.
        tolerance: greatest difference of the mean from the published figure; None if the figure
            is not judged.
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
    over: dict[str, object] = Field(default={})
    minus: dict[str, object] = Field(default={})
    tolerance: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> "Reading":
        names = [figure.name for figure in measures()]
        if self.figure is not None and self.figure not in names:
            raise ValueError(
                f"'figure' is {self.figure!r}; allowed are "
                f"{', '.join(names)}{nearest(self.figure, names)}"
            )
        has_target = self.target is not None or self.below_best is not None
        if self.take in ("rounds to", "time to", "missed") and not has_target:
            raise ValueError(f"'take' is {self.take!r}, which needs 'target' or 'below_best'")
        if self.take in ("count", "rounds before", "before") and self.event is None:
            raise ValueError(f"'take' is {self.take!r}, which needs 'event'")
        return self

    @property
    def comparison(self) -> dict[str, object]:
        """Values that select the second variant with which the figure is compared; may be empty.

        This is ``over`` or ``minus``, such as ``{"variant": "fedavg"}`` or ``{"share": 0.3}``. With
        ``over`` the figure is divided by the second variant's figure. With ``minus`` the second
        variant's figure is subtracted.
        """
        return self.over or self.minus

    def of(self, run: RunFolder, best: float = 0.0) -> float:
        """Compute the number that this definition describes, from the records of a run.

        Args:
            run: the folder of the run.
            best: best mean of a published table's rows, from which ``below_best`` is subtracted to
                get the target.

        Returns:
            The figure; NaN if the run has too few rounds or tests.

        Raises:
            RunFolderError: the rounds of the run have no column ``column``.
        """
        try:
            value = self._measure(run, best - (self.below_best or 0.0))
        except (IndexError, ValueError):
            return math.nan
        except KeyError as error:
            raise RunFolderError(
                f"{str(run.path)!r} has no column {error} in its rounds, for {self.title!r}"
            ) from None
        return math.nan if value is None else value

    def _measure(self, run: RunFolder, target: float) -> float | None:
        """Compute the figure of a run, times ``scale``.

        Args:
            run: the folder of the run.
            target: value to reach, if the definition has no fixed ``target``.

        Returns:
            The figure; None if the run lacks it or has too few rounds.
        """
        if self.figure is not None:
            value = measure(run, (), self.ledger)[self.figure]
            return None if value is None else self.scale * float(value)
        values = self._values(run)
        if self.event is not None:
            return self._measure_event(run, values)
        if self.take == "after":
            return values.get(self.rounds - 1)  # rounds are numbered from 0
        if self.take in _SUMMARIES:
            return self._summarise(values)
        if self.target is not None:
            target = self.target
        return self._measure_target(run, values, target)

    def _values(self, run: RunFolder) -> "pd.Series[float]":
        """Return a run's values of ``column``, times ``scale``, as a Series by index of the round.

        Rounds without a value are left out.
        """
        import pandas as pd

        values = {}
        for number, row in enumerate(run.rounds):
            if row[self.column] is not None:
                values[number] = row[self.column]
        return self.scale * pd.Series(values, dtype=float)

    def _measure_event(self, run: RunFolder, values: "pd.Series[float]") -> float:
        """Compute a figure from the records of the kind ``event``, by ``take``.

        Args:
            run: the folder of the run.
            values: values of ``column`` by index of the round.

        Returns:
            The count of events, the count of rounds before an event, or the last value before the
            first event.
        """
        event_rounds = [number for (number,) in run.events_of((str(self.event),), ("round",))]
        if self.take == "before":
            first_event = event_rounds[0] if event_rounds else len(run.rounds)
            return float(values[values.index < first_event].iloc[-1])
        if self.take == "count":
            return float(len(event_rounds))
        if self.number > len(event_rounds):
            return float(len(run.rounds))
        return float(event_rounds[self.number - 1])

    def _summarise(self, values: "pd.Series[float]") -> float:
        if self.last is not None:
            values = values.tail(min(self.last, len(values) // 2))
        summary = float(_SUMMARIES[self.take](values.iloc[: self.first]))
        return self.scale * summary if self.take == "zeros" else summary

    def _measure_target(self, run: RunFolder, values: "pd.Series[float]", target: float) -> float:
        reached_rounds = values.index[values >= target]
        if self.take == "missed":
            return float(reached_rounds.empty)
        row = run.rounds[-1]
        if not reached_rounds.empty:
            row = run.rounds[reached_rounds[0]]
        return float(row["time"]) if self.take == "time to" else float(row["round"] + 1)
