"""Rows and columns: the figures of lines side by side, with intervals over seeds and ratios to a
baseline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.harmless import clean
from fedsim.lab.compare import measures
from fedsim.lab.compare.answer import TARGETED, Aim, Answer, answers, some_names, usual_target
from fedsim.lab.compare.lines import ComparedLine, Lines, short_key, shown
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, ratio_of
from fedsim.lab.reading.targets import Target
from fedsim.records.ledger import LedgerPreset


@dataclass(frozen=True)
class Beside:
    """A figure beside the published one, if any, and whether it is within the tolerance; None
    where that is not judged.
    """

    ours: Estimate
    published: float | None = None
    within: bool | None = None


Cell = str | float | int | Estimate | Beside | None


@dataclass(frozen=True)
class ComparedColumn:
    """A column of a table, one cell a row, None where there is nothing; ``best`` says which of
    its numbers is, if one is.
    """

    head: str
    cells: tuple[Cell, ...]
    topic: str = ""
    """of the table in which it is shown; empty for columns that identify a row."""
    over_seeds: bool = False
    """whether its cells may be estimates, which take three columns in a spreadsheet."""
    unit: str = ""
    signed: bool = False
    """whether its numbers are differences."""
    best: measures.Preferred = None

    @property
    def is_text(self) -> bool:
        return any(isinstance(cell, str) for cell in self.cells)

    @property
    def best_cells(self) -> set[int]:
        """The rows of the best number; none if all are equal, there is only one, or its interval
        holds another.
        """
        means = {
            row: cell.mean if isinstance(cell, Estimate) else cell
            for row, cell in enumerate(self.cells)
        }
        known = {row: float(mean) for row, mean in means.items() if isinstance(mean, float | int)}
        if self.best is None or len(set(known.values())) < 2:
            return set()
        top = (max if self.best == "most" else min)(known.values())
        best = {row for row, mean in known.items() if mean == top}
        spans = [
            (cell.low, cell.high) for row in best if isinstance(cell := self.cells[row], Estimate)
        ]
        others = [mean for row, mean in known.items() if row not in best]
        return set() if any(low <= mean <= high for low, high in spans for mean in others) else best


@dataclass(frozen=True)
class ComparedTable:
    """Columns of the same length, those that say which row it is first; with notes for the
    reader, and a title.
    """

    columns: tuple[ComparedColumn, ...]
    notes: tuple[str, ...] = ()
    title: str = ""

    @classmethod
    def of(cls, heads: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> "ComparedTable":
        return cls(
            tuple(ComparedColumn(head, tuple(row.get(head) for row in rows)) for head in heads)
        )


_NOISE = 1e-12  # of figures: sums of floats differ by less
_KEYS = ("variant", "baseline")
_PAIRED = ("measure", "unit", "pairs", "mean difference", "low", "high", "ratio")
_TAKEN = (*_KEYS, *_PAIRED, "study", "strategy", "runs", "rounds", "seed")
_MOST_ROWS = 24
_MOST_NOTES = 6

Pairs = dict[int, tuple[float, float]]
"""By seed: the figure of a line and that of its baseline."""


class Comparison:
    """Lines side by side, with the figures of their runs; for the ``ledger`` see ``measure``.

    The ``targets`` are accuracies (0..1), and of other metrics as ``"perplexity=8"``. Those that
    studies name get columns too, and are answered for where no others are given.
    """

    def __init__(
        self, lines: Lines, targets: Sequence[float | str] = (), ledger: LedgerPreset = "strict"
    ) -> None:
        of_runs = measures.of_metrics(run for line in lines.lines for run in line.runs)
        self._finals = [one for one in of_runs if one.name.startswith("final ")]
        best = {one.name.removeprefix("final "): one.best for one in self._finals} | {
            "accuracy": "most",
            "loss": "least",
        }
        said = {Target.read(target) for target in (*lines.targets, *targets)}
        for target in sorted(said):
            if target.metric not in best:
                hint = f"{', '.join(sorted(best))}{nearest(target.metric, best)}"
                raise ScenarioError(
                    f"--target is of {target.metric!r}, which no run has; they have {hint}"
                )
        order = sorted(
            said,
            key=lambda one: (one.metric, -one.value if best[one.metric] == "least" else one.value),
        )
        self._aims: list[Aim] = [one.value for one in order if one.metric == "accuracy"]
        others: list[Aim] = [one for one in order if one.metric != "accuracy"]
        asked = [Target.read(target) for target in targets]
        self._asked: list[Aim] = [
            aim for aim in (*self._aims, *others) if Target.read(aim) in asked
        ]
        self._to_others = [measures.goal_of(what, target) for target in others for what in TARGETED]
        all_targets = [*self._aims, *others]
        self.lines = lines
        self._measures = [
            *measures.measures(all_targets),
            *of_runs,
            *([measures.WITHIN] if lines.budget else []),
        ]
        blank: measures.Values = dict.fromkeys(one.name for one in of_runs)
        self._figures = [
            [blank | measures.measure(run, all_targets, ledger, lines.budget) for run in line.runs]
            for line in lines.lines
        ]
        self._aims = self._asked or self._aims or others
        if not self._aims and (usual := usual_target(lines, self._figures)) is not None:
            self._aims = [usual]
            for line, own in zip(lines.lines, self._figures, strict=True):
                for run, values in zip(line.runs, own, strict=True):
                    values |= measures.costs_until(run, usual)
        keys = dict.fromkeys(key for line in lines.lines for key, _ in line.point)
        shorts = {key: short_key(key, keys) for key in keys}
        self._heads = {key: key if short in _TAKEN else short for key, short in shorts.items()}

    def tables(self) -> list[ComparedTable]:
        """``side_by_side``; for studies with a baseline the ``differences`` from it follow."""
        return [
            self.side_by_side(),
            *([] if self.lines.are_runs or not self.lines.baseline else [self.differences()]),
        ]

    def side_by_side(self) -> ComparedTable:
        """Means over seeds, with intervals where there are several, and ratios to the baseline."""
        columns = [*self._identity(), *map(self._column, self._measures)]
        if self.lines.baseline:
            to = "first" if self.lines.is_first else "baseline"
            for one in (one for one in self._measures if one.is_cost):
                cells = tuple(self._ratio(one, place) for place in range(len(self._figures)))
                columns.append(
                    ComparedColumn(
                        f"{one.name} to {to} (ratio)", cells, f"ratios to the {to}", unit="ratio"
                    )
                )
        notes = (
            [f"The baseline is {clean(self.lines.baseline)}."]
            if self.lines.baseline and not self.lines.is_first
            else []
        )
        if max(len(line.runs) for line in self.lines.lines) > 1:
            notes.append(
                "Means over seeds with 95 % intervals (Student's t); empty unless all seeds "
                "have the figure."
            )
        return ComparedTable(tuple(columns), (*notes, *_not_done(self.lines)))

    def in_short(self) -> ComparedTable:
        """The few figures that are asked for most, the best lines first, world by world."""
        found = self.answers()
        bases = set(self.lines.baselines)
        each = max(3, _MOST_ROWS // max(1, len(found)))
        rows = [
            place
            for one in found
            for rank, place in enumerate(one.order)
            if rank < each or place in bases
        ]
        ranked = {place for one in found for place in one.order}
        rows += [place for place in range(len(self._figures)) if place not in ranked][
            : max(0, _MOST_ROWS - len(rows))
        ]
        targets = self._asked or [
            one for one in self._aims if any(one == answer.target for answer in found)
        ]
        goals = [
            measures.goal_of(goal, target)
            for target in targets or (None,)
            for goal in (self.lines.goal, *TARGETED)
        ]
        wanted = [one for one in goals if one not in (None, measures.FINAL)] or [
            measures.TIME,
            measures.TRAFFIC,
        ]
        columns = [
            column
            for column in self._identity()
            if column.head != "strategy" or self.lines.are_runs
        ]
        asked = dict.fromkeys(
            [measures.FINAL, *self._finals, *wanted, *self._to_others, measures.WASTED_COMPUTE]
        )
        columns += [self._column(one) for one in asked if one]
        columns = [
            replace(column, topic="", cells=tuple(column.cells[row] for row in rows))
            for column in columns
        ]
        left_out = len(self._figures) - len(rows)
        notes = [*_not_done(self.lines)]
        more = (
            [f"{left_out} more line{'s are' if left_out > 1 else ' is'} not shown here."]
            if left_out
            else []
        )
        more += notes[:_MOST_NOTES]
        more += (
            [f"{len(notes) - _MOST_NOTES} more lines are not done."]
            if len(notes) > _MOST_NOTES
            else []
        )
        return ComparedTable(
            tuple(column for column in columns if any(cell is not None for cell in column.cells)),
            tuple(more),
        )

    def answers(self) -> list[Answer]:
        """The answers, world by world; where no target was named, of one that half of the lines
        reach.
        """
        return list(answers(self.lines, self._figures, self._aims, are_asked=bool(self._asked)))

    def one_by_one(self) -> ComparedTable:
        rows: list[dict[str, Cell]] = []
        for line, own in zip(self.lines.lines, self._figures, strict=True):
            for run, values in zip(line.runs, own, strict=True):
                said = self._point(line) | {
                    "strategy": line.strategy,
                    "seed": int(run.summary["seed"]),
                }
                rows.append(said | {one.head: values[one.name] for one in self._measures})
        heads = [
            "variant",
            *self._heads.values(),
            "strategy",
            "seed",
            *(one.head for one in self._measures),
        ]
        return ComparedTable.of(heads, rows)

    def paired(self, seeds: Sequence[int]) -> ComparedTable:
        """Each line against its baseline, a row a measure: the difference in each seed's world,
        and their mean and interval.

        The mean is empty unless both have the figure in every seed: it would flatter lines that
        often fail.
        """
        rows: list[dict[str, Cell]] = []
        for said, place, at in self._compared():
            for one in self._measures:
                pairs = self._pairs(place, at, one)
                row: dict[str, Cell] = {"measure": one.name, "unit": one.unit, "pairs": len(pairs)}
                row |= {f"seed {seed}": above - below for seed, (above, below) in pairs.items()}
                if pairs and len(pairs) == len(seeds):
                    mean = _mean_difference(pairs)
                    low, high = mean.edges
                    row |= {
                        "mean difference": mean.mean,
                        "low": low,
                        "high": high,
                        "ratio": self._ratio(one, place),
                    }
                rows.append(said | row)
        return ComparedTable.of(
            [*_KEYS, *self._heads.values(), *_PAIRED, *(f"seed {seed}" for seed in seeds)], rows
        )

    def differences(self) -> ComparedTable:
        """The mean differences of ``paired``, a row a line and a column a measure."""
        compared = list(self._compared())
        columns = [
            *ComparedTable.of(
                [*_KEYS, *self._heads.values()], [said for said, _, _ in compared]
            ).columns
        ]
        for one in self._measures:
            found = (self._all_pairs(place, at, one) for _, place, at in compared)
            cells = tuple(_mean_difference(pairs) if pairs else None for pairs in found)
            topic = f"{one.topic}, difference to the baseline"
            columns.append(
                ComparedColumn(one.head, cells, topic, over_seeds=True, unit=one.unit, signed=True)
            )
        return ComparedTable(
            tuple(columns),
            ("Variant minus baseline, seed by seed in the same worlds.",) if compared else (),
        )

    def _point(self, line: ComparedLine) -> dict[str, Cell]:
        return {
            "variant": line.name,
            **{self._heads[key]: shown(value) for key, value in line.point},
        }

    def _identity(self) -> list[ComparedColumn]:
        rows: list[dict[str, Cell]] = []
        for line in self.lines.lines:
            row = self._point(line) | {
                "study": line.study or None,
                "strategy": line.strategy,
                "runs": len(line.runs),
            }
            rows.append(
                row
                | {"run": line.name}
                | ({"seed": int(line.runs[0].summary["seed"])} if self.lines.are_runs else {})
            )
        studies = ["study"] if len({line.study for line in self.lines.lines}) > 1 else []
        heads = ["variant", *studies, *self._heads.values(), "strategy", "runs"]
        return [
            *ComparedTable.of(
                ["run", "strategy", "seed"] if self.lines.are_runs else heads, rows
            ).columns
        ]

    def _column(self, one: measures.Measure) -> ComparedColumn:
        cells = tuple(
            _mean([values[one.name] for values in line], one.most) for line in self._figures
        )
        return ComparedColumn(
            one.head,
            cells,
            one.topic,
            over_seeds=not self.lines.are_runs,
            unit=one.unit,
            best=one.best,
        )

    def _compared(self) -> Iterator[tuple[dict[str, Cell], int, int]]:
        """The first cells of the row of each line that has a baseline, its place, and that of
        the baseline.
        """
        for place, at in enumerate(self.lines.baselines):
            if at is not None and at != place:
                yield (
                    self._point(self.lines.lines[place]) | {"baseline": self.lines.lines[at].name},
                    place,
                    at,
                )

    def _pairs(self, place: int, at: int, one: measures.Measure) -> Pairs:
        own, base = (
            self.lines.by_seed(line, self._figures[line], one.name) for line in (place, at)
        )
        return {seed: (own[seed], base[seed]) for seed in own if seed in base}

    def _all_pairs(self, place: int, at: int, one: measures.Measure) -> Pairs:
        """The pairs of two lines, if each of their runs is in one; else none."""
        pairs = self._pairs(place, at, one)
        return pairs if len(pairs) == max(len(self._figures[place]), len(self._figures[at])) else {}

    def _ratio(self, one: measures.Measure, place: int) -> float | None:
        """Cost of a line relative to its baseline's; None where some seed lacks it, or a ratio
        means nothing.
        """
        at = self.lines.baselines[place]
        pairs = {} if at is None or not one.is_cost else self._all_pairs(place, at, one)
        found = ratio_of(*zip(*pairs.values(), strict=True)) if pairs else None
        return None if found is None else found.mean


def _mean_difference(pairs: Pairs) -> Estimate:
    found = paired_difference(
        [above for above, _ in pairs.values()], [below for _, below in pairs.values()]
    )
    noise = _NOISE * max(abs(figure) for pair in pairs.values() for figure in pair)
    mean, low, high = (
        0.0 if abs(edge) <= noise else edge for edge in (found.mean, found.low, found.high)
    )
    return Estimate(mean, low, high, found.pairs)


def _mean(values: Sequence[float | int | None], most: float) -> Cell:
    """One value as it is; the mean of several, if all of them are there, with the possible part
    of its interval.
    """
    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)):
        return known[0] if len(known) == len(values) == 1 else None
    found = mean_of(known)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, most))


def _not_done(lines: Lines) -> Iterator[str]:
    for line in lines.lines:
        if len(line.runs) < line.planned:
            yield f"Of {clean(line.name)} {len(line.runs)} of {line.planned} runs are done."
        elif line.statuses != "done":
            yield f"{clean(line.name)} was not run to its end: {clean(line.statuses)}."
    if lines.not_begun:
        yield f"No run was begun of {some_names(lines.not_begun)}."
