"""Published figures of papers beside those of a study, and a verdict on each claim. A file of published figures::

about = "..."                                    # what a reader has to know
judged = { size = "full" }                       # tolerances hold there alone; everywhere if it is not said
[titles]
flexcfl = "FlexCFL"                              # variants as the paper calls them
[measures]                                       # see ``fedsim.lab.compare.readings``
best = { title = "best accuracy %", scale = 100, tolerance = 1.5 }
[[tables]]
title = "Table 3: {data}"
at = { part = "clusters", data = ["mnist", "cifar"] }    # a table for each
measures = ["best"]
rows = ["fedavg", { name = "slow", variant = "fedavg", at = { share = 0.2 }, title = "FedAvg, 20 %" }]
published.mnist = { fedavg = 89.4, slow = [88.2] }       # a figure, or one a measure (nan: none), or by measure; without
                                                         # ``mnist`` in both tables
claims = [{ says = "{above} is better than {below}", pairs = [["fedavg", "slow"]], measure = "best", by = 0.5 }]
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedsim.errors import RunFolderError, ScenarioError, nearest
from fedsim.lab.compare.lines import ComparedLine, short_key
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference
from fedsim.lab.compare.readings import Reading
from fedsim.lab.compare.table import Beside, Cell, ComparedColumn, ComparedTable
from fedsim.language.spec import Spec
from fedsim.language.wording import explain
from fedsim.overrides import read_toml
from fedsim.records.reading import RunFolder

CLAIMS = "Claims"  # the title of the table of them
LEGEND = (
    "A cell has the mean over seeds with half its 95 % interval after +-, and in brackets what the paper says. Bold is what "
    "differs from that by more than the tolerance, which stands in brackets in the head of its column, or of its row."
)
_CLAIMS = (
    "Each claim says that a difference, seed by seed in the same worlds, is above 0. It holds if the whole 95 % interval is "
    "above 0, holds in part if only the mean is, and does not hold otherwise."
)


class PublishedRow(Spec):
    """A row of a table.

    Attributes:
        name: for the table's figures and claims.
        variant: of the study; by default that of this name.
        at: its place in the grid, besides the table's.
        title: for people, by default the variant's.
    """

    name: str
    variant: str = ""
    at: dict[str, Any] = Field(default={})
    title: str = ""

    @property
    def where(self) -> dict[str, Any]:
        """The values by which its line of the study is found."""
        return {"variant": self.variant or self.name, **self.at}


class Claims(Spec):
    """Sentences of the kind "A is more than B".

    Attributes:
        says: the sentence, with ``{above}`` and ``{below}`` for the rows' titles.
        pairs: names of two rows each, A and B.
        measure: by default the table's first.
        by: the least difference.
    """

    says: str
    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    measure: str = ""
    by: float = 0.0


class PublishedFigures(Spec):
    """A published table, or a figure read as one; see the module. ``tolerance``: of a row, instead of its measures' own."""

    title: str
    at: dict[str, Any] = Field(default={})
    measures: list[str] = Field(min_length=1)
    rows: list[Annotated[PublishedRow, BeforeValidator(lambda row: {"name": row} if isinstance(row, str) else row)]] = Field(
        min_length=1
    )
    published: dict[str, Any] = Field(default={})
    tolerance: dict[str, float] = Field(default={})
    claims: list[Claims] = Field(default=[])
    note: str = ""

    def apart(self) -> "list[PublishedFigures]":
        """A table for each of the values that ``at`` lists."""
        key = next((key for key, values in self.at.items() if isinstance(values, list)), None)
        if key is None:
            return [self]
        found = []
        for value in self.at[key]:
            said = self.published.get(str(value), {}) if self._is_by(key) else self.published
            title = self.title.replace(f"{{{key}}}", str(value))
            one = self.model_copy(update={"title": title, "published": said, "at": self.at | {key: value}})
            found += one.apart()
        return found

    def _is_by(self, key: str) -> bool:
        """Whether figures are said for each value of a key, and not for all of them alike."""
        said = self.published
        return any(str(value) in said for value in self.at[key]) or not any(row.name in said for row in self.rows)

    def figure(self, row: str, name: str) -> float | None:
        """The published figure of a row; None where there is none."""
        said = self.published.get(row, {})
        if not isinstance(said, Mapping):
            said = dict(zip(self.measures, said if isinstance(said, list) else [said], strict=False))
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
        """Read a file of published figures."""
        return cls(**read_toml(path, "published figures"))

    @property
    def apart(self) -> list[PublishedFigures]:
        """All tables, one for each of the values that ``at`` lists."""
        return [one for several in self.tables for one in several.apart()]

    @model_validator(mode="after")
    def _refuse_unknown_names(self) -> "Published":
        for several in self.tables:
            for key in [key for key, values in several.at.items() if isinstance(values, list)][:1]:
                if several._is_by(key):
                    _refuse_unknown(several, f"value of {key!r}", several.published, [*map(str, several.at[key])])
        for table in self.apart:
            rows = [row.name for row in table.rows]
            if len(set(rows)) < len(rows):
                raise ValueError(f"table {table.title!r} has two rows of one name; give one of them a 'name' and a 'variant'")
            claimed = [claim.measure for claim in table.claims if claim.measure]
            _refuse_unknown(table, "measure", [*table.measures, *claimed], self.measures)
            paired = [name for claim in table.claims for pair in claim.pairs for name in pair]
            _refuse_unknown(table, "row", [*table.published, *table.tolerance, *paired], rows)
            for figures in table.published.values():
                _refuse_unknown(table, "measure", figures if isinstance(figures, Mapping) else (), table.measures)
        return self


def _refuse_unknown(table: PublishedFigures, what: str, names: Any, allowed: Any) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(
                f"table {table.title!r} has no {what} {name!r}; allowed are {', '.join(allowed)}{nearest(name, allowed)}"
            )


def beside_published(lines: Sequence[ComparedLine], published: Published) -> list[ComparedTable]:
    """The tables of a paper, those of the study's size, beside the figures of the study's variants; then all claims.

    A table has the seeds with which all of its rows were run.
    """
    tables, claims = [], []
    for table in published.apart:
        if any(_is_at(line, table.at) for line in lines):
            measured = _MeasuredTable(table, published, lines)
            tables.append(measured.table())
            claims += measured.claims()
    if claims:
        heads = ("table", "claim", "difference", "95 % interval", "verdict")
        tables.append(ComparedTable(tuple(map(ComparedColumn, heads, zip(*claims, strict=True))), (_CLAIMS,), CLAIMS))
    return tables


def as_printed(tables: Sequence[ComparedTable]) -> list[ComparedTable]:
    """Tables of ``beside_published`` laid out as papers print them, a column a measure; ``LEGEND`` explains their cells.

    Those whose runs have not been made come last, by name alone.
    """
    missing = [table.title for table in tables if not table.columns[0].cells]
    left_out = [ComparedTable((), (f"{'; '.join(missing)}.",), "Not run")] if missing else []
    return [_printed(table) for table in tables if table.columns[0].cells] + left_out


def _printed(table: ComparedTable) -> ComparedTable:
    if table.title == CLAIMS:
        return table
    long = list(zip(*(column.cells for column in table.columns), strict=True))
    rows, measures = ([*dict.fromkeys(str(row[place]) for row in long)] for place in (0, 1))
    tolerance: dict[Any, Any] = {row[:2]: row[5] for row in long}

    def usual(measure: str) -> Any:
        own = [found for row in rows if (found := tolerance[row, measure]) is not None]
        return max(own, key=own.count, default=None)

    def name(row: str) -> str:
        others = {tolerance[row, measure] for measure in measures} - {None, *map(usual, measures)}
        return row + "".join(f" (+-{other:g})" for other in sorted(others))

    cells: dict[Any, Cell] = dict.fromkeys(tolerance)
    for row, measure, said, ours, _, _, within in long:
        if isinstance(ours, Estimate):
            cells[row, measure] = Beside(ours, said, None if within is None else within == "yes")
    columns = [ComparedColumn("row", tuple(map(name, rows)))]
    for measure in measures:
        head = measure if usual(measure) is None else f"{measure} (+-{usual(measure):g})"
        columns.append(ComparedColumn(head, tuple(cells[row, measure] for row in rows)))
    return ComparedTable(tuple(columns), table.notes, table.title)


def _is_at(line: ComparedLine, where: Mapping[str, Any]) -> bool:
    point = dict(line.point)
    known = {**{short_key(key, point): value for key, value in point.items()}, **point, "variant": line.name}
    return all(key in known and known[key] == value for key, value in where.items())


class _MeasuredTable:
    """A table with the runs of its rows."""

    def __init__(self, table: PublishedFigures, published: Published, lines: Sequence[ComparedLine]) -> None:
        self._table, self._measures, self._lines = table, published.measures, lines
        judged = ({**table.at, key: value} for key, value in published.judged.items())
        self._judged = all(any(_is_at(line, where) for line in lines) for where in judged)
        self._titles = {row.name: row.title or published.titles.get(row.variant or row.name, row.name) for row in table.rows}
        others = [{}, *((one := self._measures[name]).over or one.minus for name in table.measures)]
        wanted = [{**row.where, **other} for row in table.rows for other in others]
        self._seeds = sorted(set.intersection(*(set(self._runs(where)) for where in wanted)))
        self._values: dict[str, dict[str, list[float]]] = {}

    def _runs(self, where: Mapping[str, Any]) -> dict[int, RunFolder]:
        where = {**self._table.at, **where}
        found = [line for line in self._lines if _is_at(line, where)]
        if len(found) != 1:
            said = ", ".join(f"{key}={value}" for key, value in where.items())
            count = len(found) or "no"
            raise ScenarioError(f"table {self._table.title!r}: the study has {count} variants with {said}; a row must be one")
        return {int(run.summary["seed"]): run for run in found[0].runs}

    def values(self, name: str) -> dict[str, list[float]]:
        if name not in self._values:
            one, best = self._measures[name], 0.0
            if one.below_best is not None:
                peak = one.model_copy(update={"take": "max", "below_best": None})
                best = max(math.fsum(self._of(peak, row.where, 0.0)) / len(self._seeds) for row in self._table.rows)
            self._values[name] = {row.name: self._compared(one, row, best) for row in self._table.rows}
        return self._values[name]

    def _of(self, one: Reading, where: Mapping[str, Any], best: float) -> list[float]:
        runs = self._runs(where)
        return [one.of(runs[seed], best) for seed in self._seeds]

    def _compared(self, one: Reading, row: PublishedRow, best: float) -> list[float]:
        own = self._of(one, row.where, best)
        if not one.over and not one.minus:
            return own
        other = self._of(one, {**row.where, **(one.over or one.minus)}, best)
        if one.over and 0 in other:
            raise RunFolderError(f"table {self._table.title!r} has no {one.title!r}: it would be divided by 0")
        return [a / b if one.over else a - b for a, b in zip(own, other, strict=True)]

    def table(self) -> ComparedTable:
        heads = ("row", "measure", "published", "ours", "difference", "tolerance", "within")
        rows = [self._row(row, name) for row in self._table.rows for name in self._table.measures] if self._seeds else []
        cells = list(zip(*rows, strict=True)) or [()] * len(heads)
        notes = [f"Seeds {', '.join(map(str, self._seeds))}." if self._seeds else "Its runs have not been made."]
        notes += [self._table.note] if self._table.note else []
        verdicts = [verdict for verdict in cells[-1] if verdict is not None]
        if verdicts:
            notes.append(f"{verdicts.count('yes')} of {len(verdicts)} figures are within the tolerance.")
        parts = zip(heads, cells, strict=True)
        columns = (ComparedColumn(head, own, over_seeds=head == "ours", signed=head == "difference") for head, own in parts)
        return ComparedTable(tuple(columns), tuple(notes), self._table.title)

    def _row(self, row: PublishedRow, name: str) -> tuple[Cell, ...]:
        one, said, values = self._measures[name], self._table.figure(row.name, name), self.values(name)[row.name]
        ours = mean_of(values) if all(map(math.isfinite, values)) else None
        apart = None if said is None or ours is None else ours.mean - said
        tolerance = None if one.tolerance is None or not self._judged else self._table.tolerance.get(row.name, one.tolerance)
        start = (self._titles[row.name], one.title, said, ours, apart)
        if apart is None or tolerance is None:
            return (*start, None, None)
        return (*start, tolerance, "yes" if abs(apart) <= tolerance else "no")

    def claims(self) -> list[tuple[Cell, ...]]:
        rows: list[tuple[Cell, ...]] = []
        for claim in self._table.claims if self._seeds else ():
            values = self.values(claim.measure or self._table.measures[0])
            for above, below in claim.pairs:
                text = claim.says.replace("{above}", self._titles[above]).replace("{below}", self._titles[below])
                said: tuple[Cell, ...] = (None, "none", "not judged: runs without the figure")
                if all(map(math.isfinite, (*values[above], *values[below]))):
                    found = paired_difference(values[above], [value + claim.by for value in values[below]])
                    said = (found.mean, f"{found.low:.3g} to {found.high:.3g}", str(found.verdict))
                    if found.pairs < 2:
                        said = (found.mean, "none: one seed", "not judged: one seed")
                rows.append((self._table.title, text, *said))
        return rows
