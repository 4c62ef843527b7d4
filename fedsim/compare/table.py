"""Rows and columns: the figures of lines side by side, with intervals over seeds and ratios to a baseline."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fedsim.compare.answer import TARGETED, Answer, answers, usual_target
from fedsim.compare.lines import Line, Lines, short_key, shown
from fedsim.compare.measures import FINAL, TIME, TRAFFIC, WASTED_COMPUTE, Best, Measure, cost_of, costs_until, measure, measures
from fedsim.compare.paired import Difference, mean_of, paired_difference
from fedsim.output.harmless import clean
from fedsim.records.ledger import Preset


@dataclass(frozen=True)
class Estimate:
    """The mean over seeds and its interval; without one for a single seed."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Beside:
    """A figure with what was published of it, None where nothing was.

    Attributes:
        ours, published: the figures.
        within: whether ours is within the tolerance; None where that is not judged.
    """

    ours: Estimate
    published: float | None = None
    within: bool | None = None


Cell = str | float | int | Estimate | Beside | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: with its unit.
        cells: one a row; None where there is nothing.
        topic: beside which other columns it is shown; empty for what says which row it is.
        over_seeds: whether its cells may be estimates, which take three columns in a spreadsheet.
        unit: what numbers are counted in.
        signed: whether they are differences.
        best: which of its numbers is the best, if one is.
    """

    head: str
    cells: tuple[Cell, ...]
    topic: str = ""
    over_seeds: bool = False
    unit: str = ""
    signed: bool = False
    best: Best = None

    @property
    def best_cells(self) -> set[int]:
        """The rows in which the best stands: those that are equal, but not if all are, or if it is alone."""
        means = {row: cell.mean if isinstance(cell, Estimate) else cell for row, cell in enumerate(self.cells)}
        known = {row: float(mean) for row, mean in means.items() if isinstance(mean, float | int)}
        if self.best is None or len(set(known.values())) < 2:
            return set()
        top = (max if self.best == "most" else min)(known.values())
        return {row for row, mean in known.items() if mean == top}


@dataclass(frozen=True)
class Table:
    """Columns of the same length.

    Attributes:
        columns: those that say which row it is first.
        notes: what a reader should know.
        title: of all of it.
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    title: str = ""


_NOISE = 1e-12  # of figures: less is what sums of floats differ by
_MANY = 10  # seeds from which on it matters little how a figure is distributed over them
_KEYS = ("variant", "baseline")
_PAIRED = ("measure", "unit", "pairs", "mean difference", "low", "high", "ratio")
_TAKEN = (*_KEYS, *_PAIRED, "study", "strategy", "runs", "rounds", "seed")

Pairs = dict[int, tuple[float, float]]
"""By seed: the figure of a line and that of its baseline."""


class Comparison:
    """Lines side by side, with the figures of their runs.

    Args:
        lines: what to compare.
        targets: accuracies (0..1), besides those that studies name.
        ledger: see ``measure``.

    Attributes:
        lines: what is compared.

    Raises:
        RunFolderError: a run is damaged.
    """

    def __init__(self, lines: Lines, targets: Sequence[float] = (), ledger: Preset = "strict") -> None:
        self._targets = sorted({*lines.targets, *targets})
        self.lines, self._measures = lines, measures(self._targets)
        self._figures = [[measure(run, self._targets, ledger) for run in line.runs] for line in lines.lines]
        if not self._targets and (usual := usual_target(lines, self._figures)) is not None:
            self._targets = [usual]
            for line, own in zip(lines.lines, self._figures, strict=True):
                for run, values in zip(line.runs, own, strict=True):
                    values |= costs_until(run, usual)

    def tables(self) -> list[Table]:
        """``side_by_side``; for studies with a baseline the ``differences`` from it follow."""
        return [self.side_by_side(), *([] if self.lines.are_runs or not self.lines.baseline else [self.differences()])]

    def side_by_side(self) -> Table:
        """Means over seeds, with intervals where there are several."""
        columns = [*_identity(self.lines), *map(self._column, self._measures)]
        return Table((*columns, *self._ratios()), tuple(_notes(self.lines)))

    def in_short(self, most: int = 24) -> Table:
        """The few figures that are asked for most, the best lines first, world by world, and at most about so many of them."""
        found = self.answers()
        each = max(3, most // max(1, len(found)))
        bases = set(self.lines.baselines)
        rows = [place for one in found for rank, place in enumerate(one.order) if rank < each or place in bases]
        ranked = {place for one in found for place in one.order}
        rows += [place for place in range(len(self._figures)) if place not in ranked][: max(0, most - len(rows))]
        targets = sorted({one.target for one in found if one.target is not None})
        wanted = [cost_of(what, target) for target in targets for what in TARGETED] or [TIME, TRAFFIC]
        columns = [column for column in _identity(self.lines) if column.head != "strategy" or self.lines.are_runs]
        columns += [self._column(one) for one in (FINAL, *wanted, WASTED_COMPUTE)]
        columns = [replace(column, topic="", cells=tuple(column.cells[row] for row in rows)) for column in columns]
        left_out = len(self._figures) - len(rows)
        more = (f"{left_out} more line{'s are' if left_out > 1 else ' is'} not shown here.",) if left_out else ()
        notes = [*_not_done(self.lines)]
        more += (*notes[:6], *((f"{len(notes) - 6} more lines are not done.",) if len(notes) > 6 else ()))
        return Table(tuple(column for column in columns if any(cell is not None for cell in column.cells)), more)

    def _column(self, one: Measure) -> Column:
        """A figure of all lines: means over seeds, with intervals where there are several."""
        cells = tuple(_mean([values[one.name] for values in line], one.most) for line in self._figures)
        return Column(one.head, cells, one.topic, over_seeds=not self.lines.are_runs, unit=one.unit, best=one.best)

    def answers(self) -> list[Answer]:
        """What it says, world by world; where nobody has named a target, of one that half of the lines reach."""
        return list(answers(self.lines, self._figures, self._targets))

    def one_by_one(self) -> Table:
        """A row a run, of studies."""
        rows: list[dict[str, Cell]] = []
        for line, own in zip(self.lines.lines, self._figures, strict=True):
            for run, values in zip(line.runs, own, strict=True):
                said: dict[str, Cell] = {"variant": line.name, **_point(self.lines, line), "strategy": line.strategy}
                rows.append(said | {"seed": int(run.summary["seed"])} | {one.head: values[one.name] for one in self._measures})
        heads = ["variant", *_point_heads(self.lines), "strategy", "seed", *(one.head for one in self._measures)]
        return _from_rows(heads, rows)

    def paired(self, seeds: Sequence[int]) -> Table:
        """Each line against its baseline, a row a measure: the difference in each seed's world, and their mean and interval.

        The mean is empty unless both have the figure in every seed: over those in which a target happened to be reached it
        would flatter whoever often fails.
        """
        rows: list[dict[str, Cell]] = []
        for said, place, at in self._compared():
            for one in self._measures:
                pairs = self._pairs(place, at, one)
                row: dict[str, Cell] = {"measure": one.name, "unit": one.unit, "pairs": len(pairs)}
                row |= {f"seed {seed}": above - below for seed, (above, below) in pairs.items()}
                if pairs and len(pairs) == len(seeds):
                    mean, ratio = _mean_difference(pairs), _ratio(one, list(pairs.values()))
                    row |= {"mean difference": mean.mean, "low": mean.low, "high": mean.high, "ratio": ratio}
                rows.append(said | row)
        return _from_rows([*_KEYS, *_point_heads(self.lines), *_PAIRED, *(f"seed {seed}" for seed in seeds)], rows)

    def differences(self) -> Table:
        """The mean differences of ``paired``, a row a line and a column a measure."""
        rows = []
        for said, place, at in self._compared():
            most = max(len(self._figures[place]), len(self._figures[at]))
            pairs_of = {one.head: self._pairs(place, at, one) for one in self._measures}
            means = {head: _mean_difference(pairs) if len(pairs) == most > 0 else None for head, pairs in pairs_of.items()}
            rows.append(said | means)
        who = _from_rows([*_KEYS, *_point_heads(self.lines)], rows).columns
        columns = [
            Column(
                one.head, tuple(row[one.head] for row in rows), f"{one.topic}, difference to the baseline", True, one.unit, True
            )
            for one in self._measures
        ]
        return Table((*who, *columns), ("Variant minus baseline, seed by seed in the same worlds.",) if rows else ())

    def _compared(self) -> Iterator[tuple[dict[str, Cell], int, int]]:
        """What a row says first of each line that has a baseline, its place, and that of the baseline."""
        for place, at in enumerate(self.lines.baselines):
            if at is not None and at != place:
                line = self.lines.lines[place]
                yield {"variant": line.name, "baseline": self.lines.lines[at].name, **_point(self.lines, line)}, place, at

    def _by_seed(self, place: int, one: Measure) -> dict[int, float]:
        runs = zip(self.lines.lines[place].runs, self._figures[place], strict=True)
        return {int(run.summary["seed"]): float(value) for run, own in runs if (value := own[one.name]) is not None}

    def _pairs(self, place: int, at: int, one: Measure) -> Pairs:
        own, base = self._by_seed(place, one), self._by_seed(at, one)
        return {seed: (own[seed], base[seed]) for seed in own if seed in base}

    def _ratios(self) -> list[Column]:
        """How many times what the baseline took, for each cost."""
        if not self.lines.baseline:
            return []
        to, columns = "first" if self.lines.is_first else "baseline", []
        for one in self._measures:
            if one.is_cost:
                cells = tuple(self._ratio_cell(one, place) for place in range(len(self._figures)))
                columns.append(Column(f"{one.name} to {to} (ratio)", cells, f"ratios to the {to}", unit="ratio"))
        return columns

    def _ratio_cell(self, one: Measure, place: int) -> Cell:
        at = self.lines.baselines[place]
        if at is None:
            return None
        above, below = self._by_seed(place, one), self._by_seed(at, one)
        if self.lines.are_runs:  # compared as they are, whatever their seeds
            pairs = list(zip(above.values(), below.values(), strict=False))
        elif above.keys() == below.keys() and len(above) == len(self._figures[place]):
            pairs = [(above[seed], below[seed]) for seed in above]
        else:
            pairs = []
        return _ratio(one, pairs) if pairs else None


def in_one(tables: Sequence[Table]) -> Table:
    """The tables that have the columns of the first one as one table, which says first out of which each row is."""
    heads = [column.head for column in tables[0].columns]
    same = [table for table in tables if [column.head for column in table.columns] == heads]
    titles = Column("table", tuple(table.title for table in same for _ in table.columns[0].cells))
    parts = zip(*(table.columns for table in same), strict=True)
    return Table((titles, *(replace(part[0], cells=tuple(cell for one in part for cell in one.cells)) for part in parts)))


def _mean_difference(pairs: Pairs) -> Estimate:
    """Of the differences of pairs; what is only the last bits of their figures is 0."""
    found = estimate(paired_difference([above for above, _ in pairs.values()], [below for _, below in pairs.values()]))
    noise = _NOISE * max(abs(figure) for pair in pairs.values() for figure in pair)
    edges = (found.mean, found.low, found.high)
    return Estimate(*(0.0 if edge is not None and abs(edge) <= noise else edge for edge in edges))  # type: ignore[arg-type]


def estimate(difference: Difference) -> Estimate:
    """A mean with its interval, where it has one."""
    low, high = (edge if math.isfinite(edge) else None for edge in (difference.low, difference.high))
    return Estimate(difference.mean, low, high)


def _from_rows(heads: Sequence[str], rows: Sequence[dict[str, Cell]]) -> Table:
    return Table(tuple(Column(head, tuple(row.get(head) for row in rows)) for head in heads))


def _mean(values: Sequence[float | int | None], most: float) -> Cell:
    """One value as it is; the mean of several, if all of them are there, with what of its interval is possible."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    if len(known) == 1:
        return known[0]
    found = mean_of(known)
    return estimate(replace(found, low=max(found.low, 0.0), high=min(found.high, most)))


def _ratio(one: Measure, pairs: Sequence[tuple[float, float]]) -> float | None:
    """The geometric mean of ratios; None where they mean nothing."""
    if not one.is_cost or any(above <= 0 or below <= 0 for above, below in pairs):
        return None
    return math.exp(math.fsum(math.log(above / below) for above, below in pairs) / len(pairs))


def _identity(lines: Lines) -> list[Column]:
    """The columns that say which row it is."""
    if lines.are_runs:
        runs = [line.runs[0] for line in lines.lines]
        return [
            Column("run", tuple(line.name for line in lines.lines)),
            Column("strategy", tuple(line.strategy for line in lines.lines)),
            Column("seed", tuple(int(run.summary["seed"]) for run in runs)),
        ]
    columns = [_column("variant", lines, lambda line: line.name)]
    if len({line.study for line in lines.lines}) > 1:
        columns.append(_column("study", lines, lambda line: line.study or None))
    points = [_point(lines, line) for line in lines.lines]
    columns += [Column(head, tuple(point.get(head) for point in points)) for head in _point_heads(lines)]
    columns.append(_column("strategy", lines, lambda line: line.strategy))
    columns.append(_column("runs", lines, lambda line: len(line.runs)))
    return columns


def _column(head: str, lines: Lines, cell: Callable[[Line], Cell]) -> Column:
    return Column(head, tuple(cell(line) for line in lines.lines))


def _point(lines: Lines, line: Line) -> dict[str, Cell]:
    """A line's place in the grid, by the heads of its columns."""
    heads = _grid_heads(lines)
    return {heads[key]: shown(value) for key, value in line.point}


def _point_heads(lines: Lines) -> list[str]:
    return list(_grid_heads(lines).values())


def _grid_heads(lines: Lines) -> dict[str, str]:
    """Each grid key's head: its last part, unless that is the head of another column."""
    keys = dict.fromkeys(key for line in lines.lines for key, _ in line.point)
    shorts = {key: short_key(key, keys) for key in keys}
    return {key: key if short in _TAKEN else short for key, short in shorts.items()}


def _notes(lines: Lines) -> list[str]:
    notes = []
    if lines.baseline and not lines.is_first:
        notes.append(f"The baseline is {clean(lines.baseline)}.")
    seeds = max(len(line.runs) for line in lines.lines)
    if seeds > 1:
        notes.append("Means over seeds with 95 % intervals (Student's t); empty unless all seeds have the figure.")
    if 1 < seeds < _MANY:
        notes.append(f"Of {seeds} seeds an interval relies on a normal distribution; it ends where its figure must.")
    return [*notes, *_not_done(lines)]


def _not_done(lines: Lines) -> Iterator[str]:
    """A note for each line whose runs are not all there, or were not run to their end."""
    for line in lines.lines:
        if len(line.runs) < line.planned:
            yield f"Of {clean(line.name)} {len(line.runs)} of {line.planned} runs are done."
        elif line.statuses != "done":
            yield f"{clean(line.name)} was not run to its end: {clean(line.statuses)}."
