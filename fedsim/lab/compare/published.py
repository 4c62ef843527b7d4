"""Published figures of papers beside those of a study, and a verdict on each claim. A file of
published figures::

about = "..."                                    # introduction for readers
judged = { size = "full" }                       # tolerances apply only there; by default
everywhere [titles] flexcfl = "FlexCFL"                              # names of variants in the
paper [measures]                                       # see ``Reading`` best = { title = "best
accuracy %", scale = 100, tolerance = 1.5 } [[tables]] title = "Table 3: {data}" at = { part =
"clusters", data = ["mnist", "cifar"] }    # a table for each measures = ["best"] rows = ["fedavg",
{ name = "slow", variant = "fedavg", at = { share = 0.2 }, title = "FedAvg, 20 %" }] published.mnist
= { fedavg = 89.4, slow = [88.2] }       # a figure, or one a measure (nan: none), or by measure;
without
                                                         # ``mnist`` in both tables
claims = [{ says = "{above} is better than {below}", pairs = [["fedavg", "slow"]], measure = "best",
by = 0.5 }] # with ``at = { data = ["mnist"] }`` a claim is the paper's in these of the tables alone
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedsim.common.errors import RunFolderError, ScenarioError, nearest
from fedsim.common.spec import Spec
from fedsim.common.wording import explain
from fedsim.lab.compare.lines import ComparedLine, short_key
from fedsim.lab.compare.measures import measure, measures
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference
from fedsim.lab.compare.table import Beside, Cell, ComparedColumn, ComparedTable
from fedsim.records.ledger import LedgerPreset
from fedsim.records.reading import RunFolder
from fedsim.running.overrides import read_toml

if TYPE_CHECKING:
    import pandas as pd

CLAIMS = "Claims"  # the title of the table of them
LEGEND = (
    "A cell has the mean over seeds with half its 95 % interval after +-, and in brackets what "
    "the paper says. Bold is what "
    "differs from that by more than the tolerance, which stands in brackets in the head of its "
    "column, or of its row."
)
_CLAIMS = (
    "Each claim says that a difference, seed by seed in the same worlds, is above 0. It holds "
    "if the whole 95 % interval is "
    "above 0, holds in part if only the mean is, and does not hold otherwise."
)

Take = Literal[
    "max", "mean", "median", "variance", "variance around a line", "zeros", "last", "after",
    "rounds to", "time to", "missed", "count", "rounds before", "before"
]  # fmt: skip

_OF_VALUES: "dict[str, Callable[[pd.Series[float]], Any]]" = {
    "max": lambda values: values.max(skipna=False),
    "mean": lambda values: values.mean(skipna=False),
    "median": lambda values: values.median(skipna=False),
    "variance": lambda values: values.var(skipna=False),
    "variance around a line": lambda values: (
        np.linalg.lstsq(np.vander(range(len(values)), 2), values)[1][0] / (len(values) - 2)
    ),
    "zeros": lambda values: (values == 0).mean(),
    "last": lambda values: values.iloc[-1],
}


class Reading(Spec):
    """A figure of a run.

    Attributes:
        title: with its unit.
        take: of the column's measured values ``max``, ``mean``, ``median``, ``variance``, the same
            around a straight line (``variance around a line``: of what still climbs), the share of
            ``zeros``, or the ``last``; the value ``after`` so many ``rounds``; ``rounds to`` or
            ``time to`` (s) a target, all of the run's where it was ``missed`` (1; else 0); of an
            event the ``count``, whole ``rounds before`` the one of this ``number`` (all rounds
            where there was none), or the column's last value ``before`` its first.
        column: of ``rounds.parquet``.
        scale: what its values are multiplied by, such as 100 for %.
        first, last: only so many of the first or last values; at most half of all of the last.
        rounds: from 1, for ``after``.
        target: in the column's scaled unit.
        below_best: the target is the best mean ``max`` of the table's rows less so much.
        event, number: a kind of event; its number from 1.
        figure: instead of all this one of ``fedsim.lab.compare.measures``.
        ledger: which bytes count in it.
        over, minus: what it is divided by or what is taken off it, seed by seed: the same where
            the ``variant``, or the place in the grid, is another.
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
            raise ValueError(
                f"'figure' is {self.figure!r}; allowed are "
                f"{', '.join(names)}{nearest(self.figure, names)}"
            )
        if (
            self.take in ("rounds to", "time to", "missed")
            and self.target is None
            and self.below_best is None
        ):
            raise ValueError(f"'take' is {self.take!r}, which needs 'target' or 'below_best'")
        if self.take in ("count", "rounds before", "before") and self.event is None:
            raise ValueError(f"'take' is {self.take!r}, which needs 'event'")
        return self

    def of(self, run: RunFolder, best: float = 0.0) -> float:
        """The figure of a run; NaN where its rounds, or their tests, are too few.

        ``best``: the mean for ``below_best``.
        """
        try:
            value = self._of(run, best - (self.below_best or 0.0))
        except (IndexError, ValueError):
            value = None
        except KeyError as error:
            raise RunFolderError(
                f"{str(run.path)!r} has no column {error} in its rounds, for {self.title!r}"
            ) from None
        return math.nan if value is None else value

    def _of(self, run: RunFolder, target: float) -> float | None:
        import pandas as pd

        if self.figure is not None:
            return (
                None
                if (value := measure(run, (), self.ledger)[self.figure]) is None
                else self.scale * float(value)
            )
        rows = run.rounds
        known = {
            place: row[self.column]
            for place, row in enumerate(rows)
            if row[self.column] is not None
        }
        values = self.scale * pd.Series(known, dtype=float)
        if self.event is not None:
            at = [number for (number,) in run.events_of((self.event,), ("round",))]
            if self.take == "before":
                return float(values[values.index < (at[0] if at else len(rows))].iloc[-1])
            before = at[self.number - 1] if self.number <= len(at) else len(rows)
            return float(len(at) if self.take == "count" else before)
        if self.take == "after":
            return values.get(self.rounds - 1)
        if self.take in _OF_VALUES:
            values = values if self.last is None else values.tail(min(self.last, len(values) // 2))
            return (self.scale if self.take == "zeros" else 1.0) * float(
                _OF_VALUES[self.take](values.iloc[: self.first])
            )
        reached = values.index[values >= (target if self.target is None else self.target)]
        if self.take == "missed":
            return float(reached.empty)
        row = rows[-1 if reached.empty else reached[0]]
        return float(row["time"]) if self.take == "time to" else float(row["round"] + 1)


class PublishedRow(Spec):
    """A row of a table."""

    name: str
    """for the table's figures and claims."""
    variant: str = ""
    """of the study; by default that of this name."""
    at: dict[str, Any] = Field(default={})
    """its place in the grid, besides the table's."""
    title: str = ""
    """for people, by default the variant's."""

    @property
    def where(self) -> dict[str, Any]:
        return {"variant": self.variant or self.name, **self.at}


class Claims(Spec):
    """Sentences of the kind "A is more than B"."""

    says: str
    """the sentence, with ``{above}`` and ``{below}`` for the rows' titles."""
    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    """names of two rows each, A and B."""
    measure: str = ""
    """by default the table's first."""
    by: float = 0.0
    """the least difference."""
    at: dict[str, list[Any]] = Field(default={})
    """values of the tables' ``at`` for which the paper says so; by default all."""


class PublishedFigures(Spec):
    """A published table, or a figure read as one; see the module.

    ``tolerance``: of a row, instead of its measures' own.
    """

    title: str
    at: dict[str, Any] = Field(default={})
    measures: list[str] = Field(min_length=1)
    rows: list[
        Annotated[
            PublishedRow,
            BeforeValidator(lambda row: {"name": row} if isinstance(row, str) else row),
        ]
    ] = Field(min_length=1)
    published: dict[str, Any] = Field(default={})
    tolerance: dict[str, float] = Field(default={})
    claims: list[Claims] = Field(default=[])
    note: str = ""

    def apart(self) -> "list[PublishedFigures]":
        """A table for each of the values that ``at`` lists; figures are given for each value, or
        once for all.
        """
        key = next((key for key, values in self.at.items() if isinstance(values, list)), None)
        if key is None:
            return [self]
        values = [*map(str, self.at[key])]
        found = []
        said = self.published
        if is_by_value := any(value in said for value in values) or not any(
            row.name in said for row in self.rows
        ):
            _refuse_unknown(self, f"value of {key!r}", said, values)
        for value in self.at[key]:
            own = said.get(str(value), {}) if is_by_value else said
            title = self.title.replace(f"{{{key}}}", str(value))
            claims = [claim for claim in self.claims if value in claim.at.get(key, [value])]
            update = {
                "title": title,
                "published": own,
                "at": self.at | {key: value},
                "claims": claims,
            }
            found += self.model_copy(update=update).apart()
        return found

    def figure(self, row: str, name: str) -> float | None:
        said = self.published.get(row, {})
        if not isinstance(said, Mapping):
            said = dict(
                zip(self.measures, said if isinstance(said, list) else [said], strict=False)
            )
        value = said.get(name, math.nan)
        return None if math.isnan(value) else float(value)


class Published(Spec):
    """A file of published figures; see the module."""

    about: str = ""
    judged: dict[str, Any] = Field(default={})
    titles: dict[str, str] = Field(default={})
    measures: dict[str, Reading]
    tables: list[PublishedFigures] = Field(min_length=1)

    def __init__(self, **tables: Any) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise ScenarioError(f"the published figures: {explain(error, tables, 'all')}") from None

    @classmethod
    def read(cls, path: str | Path) -> "Published":
        return cls(**read_toml(path, "published figures"))

    @property
    def apart(self) -> list[PublishedFigures]:
        return [one for several in self.tables for one in several.apart()]

    @model_validator(mode="after")
    def _refuse_unknown_names(self) -> "Published":
        for table in self.tables:
            listed = {key: values for key, values in table.at.items() if isinstance(values, list)}
            for claim in table.claims:
                _refuse_unknown(table, "list in 'at' for claims", claim.at, listed)
                for key, values in claim.at.items():
                    _refuse_unknown(table, f"value of {key!r} for claims", values, listed[key])
        for table in self.apart:
            rows = [row.name for row in table.rows]
            if len(set(rows)) < len(rows):
                raise ValueError(
                    f"table {table.title!r} has two rows of one name; give one of them a "
                    "'name' and a 'variant'"
                )
            claimed = [claim.measure for claim in table.claims if claim.measure]
            _refuse_unknown(table, "measure", [*table.measures, *claimed], self.measures)
            paired = [name for claim in table.claims for pair in claim.pairs for name in pair]
            _refuse_unknown(table, "row", [*table.published, *table.tolerance, *paired], rows)
            for figures in table.published.values():
                _refuse_unknown(
                    table,
                    "measure",
                    figures if isinstance(figures, Mapping) else (),
                    table.measures,
                )
        return self


def _refuse_unknown(table: PublishedFigures, what: str, names: Any, allowed: Any) -> None:
    for name in names:
        if name not in allowed:
            options = [str(option) for option in allowed]
            known = f"{', '.join(options)}{nearest(str(name), options)}"
            raise ValueError(f"table {table.title!r} has no {what} {name!r}; allowed are {known}")


def beside_published(lines: Sequence[ComparedLine], published: Published) -> list[ComparedTable]:
    """The tables of a paper beside a study's figures, of the seeds with which all rows of a
    table were run; then all claims.
    """
    there = [table for table in published.apart if any(_is_at(line, table.at) for line in lines)]
    measured = [_MeasuredTable(table, published, lines) for table in there]
    tables = [one.table() for one in measured]
    claims = [claim for one in measured for claim in one.claims()]
    if claims:
        heads = ("table", "claim", "difference", "95 % interval", "verdict")
        tables.append(
            ComparedTable(
                tuple(map(ComparedColumn, heads, zip(*claims, strict=True))), (_CLAIMS,), CLAIMS
            )
        )
    return tables


def as_printed(tables: Sequence[ComparedTable]) -> list[ComparedTable]:
    """Tables of ``beside_published`` as papers print them (``LEGEND``); those without runs come
    last, by name alone.
    """
    missing = [table.title for table in tables if not table.columns[0].cells]
    left_out = [ComparedTable((), (f"{'; '.join(missing)}.",), "Not run")] if missing else []
    return [
        table if table.title == CLAIMS else _printed(table)
        for table in tables
        if table.columns[0].cells
    ] + left_out


def _printed(table: ComparedTable) -> ComparedTable:
    cells: dict[str, dict[str, Cell]] = {}
    tolerances: dict[str, dict[str, Any]] = {}
    for row, figure, said, ours, _, tolerance, within in zip(
        *(column.cells for column in table.columns), strict=True
    ):
        found = (
            Beside(ours, said, None if within is None else within == "yes")
            if isinstance(ours, Estimate)
            else None
        )
        cells.setdefault(str(figure), {})[str(row)] = found
        tolerances.setdefault(str(figure), {})[str(row)] = tolerance
    known = {
        figure: [one for one in own.values() if one is not None]
        for figure, own in tolerances.items()
    }
    usual = {figure: max(own, key=own.count, default=None) for figure, own in known.items()}
    names = []
    for row in next(iter(cells.values())):
        others = {by_row[row] for by_row in tolerances.values()} - {None, *usual.values()}
        names.append(row + "".join(f" (+-{other:g})" for other in sorted(others)))
    heads = [
        figure if often is None else f"{figure} (+-{often:g})" for figure, often in usual.items()
    ]
    parts = zip(["row", *heads], [names, *(own.values() for own in cells.values())], strict=True)
    return ComparedTable(
        tuple(ComparedColumn(head, tuple(own)) for head, own in parts), table.notes, table.title
    )


def _is_at(line: ComparedLine, where: Mapping[str, Any]) -> bool:
    point = dict(line.point)
    known = {
        **{short_key(key, point): value for key, value in point.items()},
        **point,
        "variant": line.name,
    }
    return all(key in known and known[key] == value for key, value in where.items())


class _MeasuredTable:
    """A table with the runs of its rows."""

    def __init__(
        self, table: PublishedFigures, published: Published, lines: Sequence[ComparedLine]
    ) -> None:
        self._table = table
        self._measures = published.measures
        self._lines = lines
        judged = ({**table.at, key: value} for key, value in published.judged.items())
        self._judged = all(any(_is_at(line, where) for line in lines) for where in judged)
        self._titles = {
            row.name: row.title or published.titles.get(row.variant or row.name, row.name)
            for row in table.rows
        }
        others = [{}, *((one := self._measures[name]).over or one.minus for name in table.measures)]
        wanted = [{**row.where, **other} for row in table.rows for other in others]
        self._seeds = sorted(set.intersection(*(set(self._runs(where)) for where in wanted)))
        names = dict.fromkeys(
            [*table.measures, *(claim.measure for claim in table.claims if claim.measure)]
        )
        self._values = {
            name: self._values_of(self._measures[name]) for name in names if self._seeds
        }

    def _runs(self, where: Mapping[str, Any]) -> dict[int, RunFolder]:
        where = {**self._table.at, **where}
        found = [line for line in self._lines if _is_at(line, where)]
        if len(found) != 1:
            said = ", ".join(f"{key}={value}" for key, value in where.items())
            count = len(found) or "no"
            raise ScenarioError(
                f"table {self._table.title!r}: the study has {count} variants with {said}; a "
                "row must be one"
            )
        return {int(run.summary["seed"]): run for run in found[0].runs}

    def _values_of(self, one: Reading) -> dict[str, list[float]]:
        """The figure of each row, seed by seed, compared as its reading says."""

        def of(reading: Reading, where: Mapping[str, Any], best: float = 0.0) -> list[float]:
            runs = self._runs(where)
            return [reading.of(runs[seed], best) for seed in self._seeds]

        best = 0.0
        found = {}
        if one.below_best is not None:
            peak = one.model_copy(update={"take": "max", "below_best": None})
            best = max(
                math.fsum(of(peak, row.where)) / len(self._seeds) for row in self._table.rows
            )
        for row in self._table.rows:
            found[row.name] = own = of(one, row.where, best)
            if aside := one.over or one.minus:
                other = of(one, {**row.where, **aside}, best)
                if one.over and 0 in other:
                    raise RunFolderError(
                        f"table {self._table.title!r} has no {one.title!r}: it would be "
                        "divided by 0"
                    )
                found[row.name] = [
                    a / b if one.over else a - b for a, b in zip(own, other, strict=True)
                ]
        return found

    def table(self) -> ComparedTable:
        """A row a figure; none without runs."""
        heads = ("row", "measure", "published", "ours", "difference", "tolerance", "within")
        rows = (
            [self._row(row, name) for row in self._table.rows for name in self._table.measures]
            if self._seeds
            else []
        )
        cells = list(zip(*rows, strict=True)) or [()] * len(heads)
        notes = [
            f"Seeds {', '.join(map(str, self._seeds))}."
            if self._seeds
            else "Its runs have not been made."
        ]
        notes += [self._table.note] if self._table.note else []
        verdicts = [verdict for verdict in cells[-1] if verdict is not None]
        if verdicts:
            notes.append(
                f"{verdicts.count('yes')} of {len(verdicts)} figures are within the tolerance."
            )
        parts = zip(heads, cells, strict=True)
        columns = (
            ComparedColumn(head, own, over_seeds=head == "ours", signed=head == "difference")
            for head, own in parts
        )
        return ComparedTable(tuple(columns), tuple(notes), self._table.title)

    def _row(self, row: PublishedRow, name: str) -> tuple[Cell, ...]:
        one = self._measures[name]
        said = self._table.figure(row.name, name)
        values = self._values[name][row.name]
        ours = mean_of(values) if all(map(math.isfinite, values)) else None
        apart = None if said is None or ours is None else ours.mean - said
        start = (self._titles[row.name], one.title, said, ours, apart)
        if apart is None or one.tolerance is None or not self._judged:
            return (*start, None, None)
        tolerance = self._table.tolerance.get(row.name, one.tolerance)
        return (*start, tolerance, "yes" if abs(apart) <= tolerance else "no")

    def claims(self) -> list[tuple[Cell, ...]]:
        """Each claim with the difference, its interval, and the verdict; none without runs."""
        rows: list[tuple[Cell, ...]] = []
        for claim in self._table.claims if self._seeds else ():
            values = self._values[claim.measure or self._table.measures[0]]
            for above, below in claim.pairs:
                text = claim.says.replace("{above}", self._titles[above]).replace(
                    "{below}", self._titles[below]
                )
                said: tuple[Cell, ...] = (None, "none", "not judged: runs without the figure")
                if all(map(math.isfinite, (*values[above], *values[below]))):
                    found = paired_difference(
                        values[above], [value + claim.by for value in values[below]]
                    )
                    said = (found.mean, f"{found.low:.3g} to {found.high:.3g}", found.verdict)
                    if found.pairs < 2:
                        said = (found.mean, "none: one seed", "not judged: one seed")
                rows.append((self._table.title, text, *said))
        return rows
