"""Published figures of papers beside the figures of a study, and a verdict on each claim.

A file of published figures::

    about = "..."                     # introduction for readers
    judged = { size = "full" }        # tolerances apply only there; by default everywhere

    [titles]
    flexcfl = "FlexCFL"               # names of variants in the paper

    [measures]                        # see ``Reading``
    best = { title = "best accuracy %", scale = 100, tolerance = 1.5 }

    [[tables]]
    title = "Table 3: {data}"
    at = { part = "clusters", data = ["mnist", "cifar"] }    # one table for each listed value
    measures = ["best"]
    rows = [
      "fedavg",
      { name = "slow", variant = "fedavg", at = { share = 0.2 }, title = "FedAvg, 20 %" },
    ]
    # for each row: one figure, a list with one figure per measure (nan: the paper has none), or a
    # table by measure; ``published = { fedavg = 89.4 }`` would hold for all values of ``data``
    published.mnist = { fedavg = 89.4, slow = [88.2] }
    # a claim with ``at = { data = ["mnist"] }`` is made for the table of this value only
    claims = [
      { says = "{above} is better than {below}", pairs = [["fedavg", "slow"]], by = 0.5 },
    ]
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedsim.common.errors import RunFolderError, ScenarioError, nearest
from fedsim.common.round_words import counted
from fedsim.common.spec import Spec
from fedsim.common.wording import explain
from fedsim.lab.compare.columns import Cell, ComparedColumn, ComparedTable, PublishedComparison
from fedsim.lab.compare.figures import Reading
from fedsim.lab.compare.lines import ComparedLine, short_key
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference
from fedsim.records.reading import RunFolder
from fedsim.running.overrides import read_toml

CLAIMS = "Claims"  # title of the table of claims
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


def _read_row(row: object) -> object:
    """Return a row of a published table as a dict; a text becomes a dict with this ``name``."""
    return {"name": row} if isinstance(row, str) else row


class PublishedRow(Spec):
    """Row of a table in a paper, and the variant of a study that reproduces the row.

    Attributes:
        name: name by which figures and claims of the table refer to the row.
        variant: variant of the study; by default the variant named like the row.
        at: grid values of the row, in addition to the ``at`` of its table.
        title: title for people; by default the title of the variant.
    """

    name: str
    variant: str = ""
    at: dict[str, object] = Field(default={})
    title: str = ""

    @property
    def where(self) -> dict[str, object]:
        """Grid values by key, and ``variant``: they select the study's variant for this row."""
        return {"variant": self.variant or self.name, **self.at}


class Claims(Spec):
    """Claims of a paper that rows of a table exceed other rows, to be judged by a study's figures.

    Each pair of rows is one claim.

    Attributes:
        says: sentence of a claim, with ``{above}`` and ``{below}`` for the titles of the two rows.
        pairs: pairs of row names, A and B; A is claimed to exceed B.
        measure: name of the measure; by default the first measure of the table.
        by: difference by which A has to exceed B.
        at: dict from a key of the table's ``at`` to the values for which the paper makes the
            claims; by default all values.
    """

    says: str
    pairs: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    measure: str = ""
    by: float = 0.0
    at: dict[str, list[object]] = Field(default={})


class PublishedFigures(Spec):
    """Numbers of a paper's table, or read from its plot, to compare with a study's results.

    Attributes:
        title: title of the table, with ``{key}`` for each key of ``at`` that has a list.
        at: values of the study's grid for the table; a list makes one table for each of its values.
        measures: names of the columns.
        rows: rows of the table.
        published: dict from name of a row to its published numbers: a single number, a list with
            one number per measure, or a dict by measure, such as ``{"fedavg": 91.2}``. If ``at``
            lists values, this may be a dict from value to such a dict instead, such as
            ``{"0.1": {"fedavg": 91.2}}``.
        tolerance: name of a row -> greatest allowed difference, in place of that of the measures.
        claims: claims of the paper on the rows.
        note: note for readers.
    """

    title: str
    at: dict[str, object] = Field(default={})
    measures: list[str] = Field(min_length=1)
    rows: list[Annotated[PublishedRow, BeforeValidator(_read_row)]] = Field(min_length=1)
    published: dict[str, Any] = Field(default={})
    tolerance: dict[str, float] = Field(default={})
    claims: list[Claims] = Field(default=[])
    note: str = ""

    def apart(self) -> "list[PublishedFigures]":
        """Split the table into tables whose ``at`` has a single value for each key.

        A key in ``at`` may have a list of values. Each combination of listed values gets a table.
        The published figures may be given for each value separately, or once for all values.

        Raises:
            ValueError: figures are given for a value that ``at`` does not list.
        """
        lists = [(key, values) for key, values in self.at.items() if isinstance(values, list)]
        if not lists:
            return [self]
        key, listed_values = lists[0]
        texts = [str(value) for value in listed_values]
        is_by_value = self._has_figures_by_value(texts)
        if is_by_value:
            _refuse_unknown(self, f"value of {key!r}", self.published, texts)
        placeholder = "{" + key + "}"
        tables = []
        for value, text in zip(listed_values, texts, strict=True):
            update = {
                "title": self.title.replace(placeholder, text),
                "published": self.published.get(text, {}) if is_by_value else self.published,
                "at": {**self.at, key: value},
                "claims": self._claims_at(key, value),
            }
            # a further list in ``at`` splits the table again
            tables += self.model_copy(update=update).apart()
        return tables

    def _has_figures_by_value(self, texts: Sequence[str]) -> bool:
        """Whether the keys of ``published`` are values from a list in ``at``, not names of rows.

        Args:
            texts: the listed values, as texts.
        """
        has_values = any(text in self.published for text in texts)
        has_rows = any(row.name in self.published for row in self.rows)
        return has_values or not has_rows

    def _claims_at(self, key: str, value: object) -> list[Claims]:
        """Return the claims that the paper makes for a value of a key of ``at``."""
        claims = []
        for claim in self.claims:
            if key not in claim.at or value in claim.at[key]:
                claims.append(claim)
        return claims

    def figure(self, row: str, name: str) -> float | None:
        """Return the value that the paper has for a row and a measure; None if it has none.

        Args:
            row: name of the row.
            name: name of the measure.
        """
        figures = self.published.get(row, {})  # dict by measure, list for all measures, or number
        if not isinstance(figures, Mapping):
            values = figures if isinstance(figures, list) else [figures]
            figures = dict(zip(self.measures, values, strict=False))
        value = figures.get(name, math.nan)  # papers' gaps are NaN, as TOML has no null
        return None if math.isnan(value) else float(value)


class Published(Spec):
    """Content of a file of published figures: tables of papers, and how a run gives each figure.

    Attributes:
        about: introduction for readers.
        judged: grid values, such as the full size, at which figures are judged by their tolerances;
            by default all figures are.
        titles: dict from variant to its name for people.
        measures: dict from name of a column to the definition of its figure.
        tables: the tables of the papers.
    """

    about: str = ""
    judged: dict[str, object] = Field(default={})
    titles: dict[str, str] = Field(default={})
    measures: dict[str, Reading]
    tables: list[PublishedFigures] = Field(min_length=1)

    def __init__(self, **tables: object) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise ScenarioError(f"the published figures: {explain(error, tables, 'all')}") from None

    @classmethod
    def read(cls, path: str | Path) -> "Published":
        return cls(**read_toml(path, "published figures"))

    @property
    def apart(self) -> list[PublishedFigures]:
        """Tables of the file; a table for several grid values becomes one table for each value."""
        return list(chain.from_iterable(table.apart() for table in self.tables))

    @model_validator(mode="after")
    def _refuse_unknown_names(self) -> "Published":
        """Check that tables name known rows and measures, and that claims name listed values."""
        for table in self.tables:
            listed_values = {
                key: values for key, values in table.at.items() if isinstance(values, list)
            }
            for claim in table.claims:
                _refuse_unknown(table, "list in 'at' for claims", claim.at, listed_values)
                for key, values in claim.at.items():
                    _refuse_unknown(
                        table, f"value of {key!r} for claims", values, listed_values[key]
                    )
        for table in self.apart:
            self._refuse_unknown_names_in(table)
        return self

    def _refuse_unknown_names_in(self, table: PublishedFigures) -> None:
        """Raise ``ValueError`` if a table names a row twice, or an unknown row or measure."""
        known_rows = [row.name for row in table.rows]
        if len(set(known_rows)) < len(known_rows):
            raise ValueError(
                f"table {table.title!r} has two rows of one name; give one of them a "
                "'name' and a 'variant'"
            )
        measures_of_claims = [claim.measure for claim in table.claims if claim.measure]
        _refuse_unknown(table, "measure", [*table.measures, *measures_of_claims], self.measures)
        row_names = [*table.published, *table.tolerance]
        for claim in table.claims:
            row_names += chain.from_iterable(claim.pairs)
        _refuse_unknown(table, "row", row_names, known_rows)
        for figures in table.published.values():
            if isinstance(figures, Mapping):
                _refuse_unknown(table, "measure", figures, table.measures)


def _refuse_unknown(
    table: PublishedFigures, noun: str, names: Iterable[object], allowed: Collection[object]
) -> None:
    for name in names:
        if name not in allowed:
            options = [str(option) for option in allowed]
            hint = f"{', '.join(options)}{nearest(str(name), options)}"
            raise ValueError(f"table {table.title!r} has no {noun} {name!r}; allowed are {hint}")


def beside_published(lines: Sequence[ComparedLine], published: Published) -> list[ComparedTable]:
    """Return tables with the figures of a paper and of a study, then a table of the paper's claims.

    A table's means are over the seeds that all its rows have in common. Rows without a finished run
    do not count for this; a note of the table names them. A table is omitted if no line of the
    study has its grid values.

    Args:
        lines: variants of the study at the points of its grid.
        published: the file of published figures.

    Raises:
        ScenarioError: a row matches no line of the study, or several.
        RunFolderError: a run lacks a column, or a figure would be divided by 0.
    """
    measured = []
    for table in published.apart:
        if any(_has_values(line, table.at) for line in lines):
            measured.append(_MeasuredTable(table, published, lines))
    tables = [table.table() for table in measured]
    claims = list(chain.from_iterable(table.claims() for table in measured))
    if claims:
        heads = ("table", "claim", "difference", "95 % interval", "verdict")
        columns = tuple(map(ComparedColumn, heads, zip(*claims, strict=True)))
        tables.append(ComparedTable(columns, (_CLAIMS,), CLAIMS))
    return tables


def as_printed(tables: Sequence[ComparedTable]) -> list[ComparedTable]:
    """Rearrange tables of ``beside_published`` into the form that papers print.

    The given tables have a row for each figure; in papers, each figure is a column. Tables whose
    runs have not been made are left out. The note of an added last table names them.

    Args:
        tables: the tables of ``beside_published``.
    """
    printed = []
    missing = []
    for table in tables:
        if not table.columns[0].cells:
            missing.append(table.title)
        elif table.title == CLAIMS:
            printed.append(table)
        else:
            printed.append(_figures_as_columns(table))
    if missing:
        printed.append(ComparedTable((), (f"{'; '.join(missing)}.",), "Not run"))
    return printed


def _figures_as_columns(table: ComparedTable) -> ComparedTable:
    """Convert a table of ``beside_published`` into the form of the paper.

    The table has a row for each figure. The result has a column for each figure, and a row for each
    row of the paper. The head of a column states the usual tolerance of its figure; a row with
    another tolerance states it in its name.
    """
    # both dicts: name of a figure -> name of a row of the paper -> cell or tolerance
    cells_of_figure: dict[str, dict[str, Cell]] = {}
    tolerances_of_figure: dict[str, dict[str, Any]] = {}
    columns = (column.cells for column in table.columns)
    # The seven columns of a table of ``beside_published``: the skipped one has the difference, and
    # ``within`` is ``yes``, ``no``, or None if the figure is not judged.
    for row, figure, published, ours, _, tolerance, within in zip(*columns, strict=True):
        cell = None
        if isinstance(ours, Estimate):
            is_within = None if within is None else within == "yes"
            cell = PublishedComparison(ours, published, is_within)
        cells_of_figure.setdefault(str(figure), {})[str(row)] = cell
        tolerances_of_figure.setdefault(str(figure), {})[str(row)] = tolerance
    usual_tolerances = {}
    for figure, by_row in tolerances_of_figure.items():
        judged_tolerances = [tolerance for tolerance in by_row.values() if tolerance is not None]
        usual_tolerances[figure] = max(judged_tolerances, key=judged_tolerances.count, default=None)
    row_names = _row_names([*tolerances_of_figure.values()], usual_tolerances.values())
    printed = [ComparedColumn("row", row_names)]
    for figure, tolerance in usual_tolerances.items():
        head = figure if tolerance is None else f"{figure} (+-{tolerance:g})"
        printed.append(ComparedColumn(head, tuple(cells_of_figure[figure].values())))
    return ComparedTable(tuple(printed), table.notes, table.title)


def _row_names(
    tolerances_of_figures: Sequence[Mapping[str, Any]], usual_tolerances: Collection[Any]
) -> tuple[str, ...]:
    """Return the names of a paper's rows; unusual tolerances are added to a name, as ``(+-2)``.

    Args:
        tolerances_of_figures: for each figure, a dict from row to the figure's tolerance in this
            row (None: not judged).
        usual_tolerances: the usual tolerance of each figure.
    """
    names = []
    for row in tolerances_of_figures[0]:
        tolerances = {tolerance_of_row[row] for tolerance_of_row in tolerances_of_figures}
        name = row
        for tolerance in sorted(tolerances - {None, *usual_tolerances}):
            name += f" (+-{tolerance:g})"
        names.append(name)
    return tuple(names)


def _has_values(line: ComparedLine, where: Mapping[str, object]) -> bool:
    """Whether a line of a comparison has all of the given grid values, such as ``{"share": 0.3}``.

    Args:
        line: variant of a study at a point of the grid.
        where: values by key of the grid, in full or its last part. The key ``variant`` stands for
            the name of the line.
    """
    point = dict(line.point)
    values = {short_key(key, point): value for key, value in point.items()}
    values.update(point)
    values["variant"] = line.name
    return all(key in values and values[key] == value for key, value in where.items())


class _MeasuredTable:
    """One table of a paper, with the figures of a study's runs for the table's rows.

    ``table`` sets both side by side; ``claims`` judges the paper's claims.

    Args:
        table: the table of the paper.
        published: the file that has the table, with the definitions of the figures.
        lines: variants of the study at the points of its grid.
    """

    def __init__(
        self, table: PublishedFigures, published: Published, lines: Sequence[ComparedLine]
    ) -> None:
        self._table = table
        self._measures = published.measures
        self._lines = lines
        self._is_judged = self._has_judged_values(published.judged)
        self._titles = {}  # titles of rows for people, by name of the row
        for row in table.rows:
            variant = row.variant or row.name
            self._titles[row.name] = row.title or published.titles.get(variant, row.name)
        seeds_by_row = {row.name: self._seeds_of(row) for row in table.rows}
        self._rows = [row for row in table.rows if seeds_by_row[row.name]]  # rows with runs
        self._not_run = [row for row in table.rows if not seeds_by_row[row.name]]
        self._seeds = self._common_seeds(seeds_by_row)
        # measure -> row -> figures, one for each of ``_seeds``
        self._values: dict[str, dict[str, list[float]]] = {}
        if self._seeds:
            measures_of_claims = [claim.measure for claim in table.claims if claim.measure]
            for name in dict.fromkeys([*table.measures, *measures_of_claims]):
                if self._is_measurable(self._measures[name]):
                    self._values[name] = self._compute(self._measures[name])

    def _has_judged_values(self, judged: Mapping[str, object]) -> bool:
        """Whether some line of this table has each grid value at which figures are judged.

        Args:
            judged: dict from key of the grid to value, such as the value of full size.
        """
        for key, value in judged.items():
            where = {**self._table.at, key: value}
            if not any(_has_values(line, where) for line in self._lines):
                return False
        return True

    def _seeds_of(self, row: PublishedRow) -> set[int]:
        """Return the seeds for which all lines that a row needs have a finished run.

        A row needs its own line, and the lines by whose figures its figures are divided or reduced.
        """
        seeds = set(self._runs_at(row.where))
        for name in self._table.measures:
            comparison = self._measures[name].comparison
            seeds &= set(self._runs_at({**row.where, **comparison}))
        return seeds

    def _common_seeds(self, seeds_by_row: Mapping[str, set[int]]) -> list[int]:
        """Return the seeds that all rows with runs have in common, sorted.

        Args:
            seeds_by_row: dict from name of a row to the seeds for which all of its runs are done.
        """
        if not self._rows:
            return []
        return sorted(set.intersection(*(seeds_by_row[row.name] for row in self._rows)))

    def _is_measurable(self, reading: Reading) -> bool:
        """Whether a figure can be computed from the finished runs.

        A figure whose target depends on the best row of the table needs runs of all rows.
        """
        return reading.below_best is None or not self._not_run

    def _runs_at(self, where: Mapping[str, object]) -> dict[int, RunFolder]:
        """Return the finished runs by seed of the one line that has certain grid values.

        Args:
            where: values by key of the grid, or ``variant``; the table's own values are added.

        Raises:
            ScenarioError: no line, or several, have these values.
        """
        where = {**self._table.at, **where}
        lines = [line for line in self._lines if _has_values(line, where)]
        if len(lines) != 1:
            grid_values = ", ".join(f"{key}={value}" for key, value in where.items())
            count = len(lines) or "no"
            raise ScenarioError(
                f"table {self._table.title!r}: the study has {count} variants with {grid_values}; a "
                "row must be one"
            )
        return {int(run.summary["seed"]): run for run in lines[0].runs}

    def _compute(self, reading: Reading) -> dict[str, list[float]]:
        """Return the values of one figure, as a dict from row of the table to one value per seed.

        If the definition names a second line, each figure is divided by that line's figure of the
        same seed, or that figure is subtracted.

        Args:
            reading: how the figure is computed from a run.
        """
        best_mean = 0.0  # only used if the target is relative to the best row
        if reading.below_best is not None:
            peak_reading = reading.model_copy(update={"take": "max", "below_best": None})
            mean_peaks = []
            for row in self._rows:
                peaks = self._read(peak_reading, row.where)
                mean_peaks.append(math.fsum(peaks) / len(self._seeds))
            best_mean = max(mean_peaks)
        figures = {}
        for row in self._rows:
            figures_by_seed = self._read(reading, row.where, best_mean)
            if reading.comparison:
                where = {**row.where, **reading.comparison}
                compared_figures = self._read(reading, where, best_mean)
                figures_by_seed = self._divide_or_subtract(
                    reading, figures_by_seed, compared_figures
                )
            figures[row.name] = figures_by_seed
        return figures

    def _read(
        self, reading: Reading, where: Mapping[str, object], best: float = 0.0
    ) -> list[float]:
        runs = self._runs_at(where)
        return [reading.of(runs[seed], best) for seed in self._seeds]

    def _divide_or_subtract(
        self, reading: Reading, values: Sequence[float], comparison: Sequence[float]
    ) -> list[float]:
        """Divide or reduce the values of a row by the values of a second line, seed by seed.

        Args:
            reading: definition of the figure. It divides if ``over`` is given, else subtracts.
            values: values of the row, one per seed.
            comparison: values of the second line, in the same order of seeds.

        Raises:
            RunFolderError: a value would be divided by 0.
        """
        pairs = zip(values, comparison, strict=True)
        if not reading.over:
            return [value - reference for value, reference in pairs]
        if 0 in comparison:
            raise RunFolderError(
                f"table {self._table.title!r} has no {reading.title!r}: it would be divided by 0"
            )
        return [value / reference for value, reference in pairs]

    def table(self) -> ComparedTable:
        """Return a table with the published figures and the study's own, side by side.

        There is one row for each figure, which is a row and a measure of the published table. Its
        cells are the published figure, the mean over seeds, their difference, the tolerance, and
        whether the difference is within it. There are no rows if there are no runs.
        """
        heads = ("row", "measure", "published", "ours", "difference", "tolerance", "within")
        rows: list[tuple[Cell, ...]] = []
        notes = ["Its runs have not been made."]
        measures = [name for name in self._table.measures if name in self._values]
        if measures:
            notes = [f"Seeds {', '.join(map(str, self._seeds))}."]
            for row in self._rows:
                rows += [self._cells_of_row(row, name) for name in measures]
            if self._not_run:
                titles = [self._titles[row.name] for row in self._not_run]
                notes.append(f"Not run: {', '.join(titles)}.")
        if self._table.note:
            notes.append(self._table.note)
        cells = list(zip(*rows, strict=True)) or [()] * len(heads)  # cells of each column
        verdicts = [verdict for verdict in cells[-1] if verdict is not None]
        if verdicts:
            count = f"{verdicts.count('yes')} of {counted(len(verdicts), 'figure')}"
            verb = "is" if len(verdicts) == 1 else "are"
            notes.append(f"{count} {verb} within the tolerance.")
        columns = []
        for head, column in zip(heads, cells, strict=True):
            is_ours = head == "ours"
            is_signed = head == "difference"
            columns.append(ComparedColumn(head, column, over_seeds=is_ours, signed=is_signed))
        return ComparedTable(tuple(columns), tuple(notes), self._table.title)

    def _cells_of_row(self, row: PublishedRow, name: str) -> tuple[Cell, ...]:
        """Return the cells of one row of ``table``: a row of the paper, for one measure.

        Args:
            row: the row of the paper.
            name: name of the measure.
        """
        reading = self._measures[name]
        published_figure = self._table.figure(row.name, name)
        values = self._values[name][row.name]
        ours = mean_of(values) if all(map(math.isfinite, values)) else None
        difference = None
        if published_figure is not None and ours is not None:
            difference = ours.mean - published_figure
        first_cells = (self._titles[row.name], reading.title, published_figure, ours, difference)
        if difference is None or reading.tolerance is None or not self._is_judged:
            return (*first_cells, None, None)
        tolerance = self._table.tolerance.get(row.name, reading.tolerance)
        return (*first_cells, tolerance, "yes" if abs(difference) <= tolerance else "no")

    def claims(self) -> list[tuple[Cell, ...]]:
        """Judge the paper's claims on this table by the study's runs.

        Returns:
            One row for each pair of rows that a claim compares: title of the table, claim,
            difference, interval and verdict. Pairs without runs are left out.
        """
        rows: list[tuple[Cell, ...]] = []
        if not self._seeds:
            return rows
        for claim in self._table.claims:
            values = self._values.get(claim.measure or self._table.measures[0], {})
            for above, below in claim.pairs:
                if not {above, below} <= values.keys():
                    continue
                text = claim.says.replace("{above}", self._titles[above])
                text = text.replace("{below}", self._titles[below])
                verdict = _judge(values[above], values[below], claim.by)
                rows.append((self._table.title, text, *verdict))
        return rows


def _judge(above: Sequence[float], below: Sequence[float], least: float) -> tuple[Cell, ...]:
    """Judge by a study's runs whether one variant exceeds another by a least difference.

    Args:
        above: values of the variant claimed to be greater, one per seed.
        below: values of the second variant, in the same order of seeds.
        least: the least difference.

    Returns:
        Mean of ``above - below - least``, its 95 % interval as text, and the verdict.
    """
    if not all(map(math.isfinite, (*above, *below))):
        return (None, "none", "not judged: runs without the figure")
    difference = paired_difference(above, [value + least for value in below])
    if difference.pairs < 2:
        return (difference.mean, "none: one seed", "not judged: one seed")
    interval = f"{difference.low:.3g} to {difference.high:.3g}"
    return (difference.mean, interval, difference.verdict)
