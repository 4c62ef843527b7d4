"""Tables of a comparison: the figures of its lines, with intervals over seeds and cost ratios."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.harmless import clean
from fedsim.common.round_words import counted
from fedsim.lab.compare import measures
from fedsim.lab.compare.answer import TARGETED, WorldAnswer, answers, usual_target
from fedsim.lab.compare.columns import Absent, Cell, ComparedColumn, ComparedTable
from fedsim.lab.compare.lines import ComparedLine, Lines, format_value, short_key, some_names
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, ratio_of
from fedsim.lab.reading.targets import Target
from fedsim.records.ledger import LedgerPreset

_NOISE = 1e-12  # relative difference of sums of floats that counts as equal
_KEYS = ("variant", "baseline")
_PAIRED = ("measure", "unit", "pairs", "mean difference", "low", "high", "ratio")
_RESERVED = (*_KEYS, *_PAIRED, "study", "strategy", "runs", "rounds", "seed")
_OTHER_SEEDS = "other seeds than the baseline"
_MOST_ROWS = 24
_MOST_NOTES = 6

Pairs = dict[int, tuple[float, float]]
"""Figures of a line and of its baseline, by seed."""


class Comparison:
    """Compares several lines (variants of studies, or single runs) by all their measures.

    Methods return tables for people and programs, and ``answers`` names the best line.

    Args:
        lines: the lines to compare.
        targets: accuracies (0..1), or other metrics as ``"perplexity=8"``. Targets that studies
            declare get columns too, but answers use them only if ``targets`` is empty.
        ledger: traffic to count. ``strict``: all bytes. ``paper``: without messages that papers do
            not count, such as the first model, IDs and test accuracies.
        cache: dict from run folder to the run's figures. Figures that it lacks are computed and
            added, so that none is computed twice. All comparisons that share it must have the same
            targets, ledger and budget.

    Raises:
        ScenarioError: a target is of a metric that no run has.
    """

    def __init__(
        self,
        lines: Lines,
        targets: Sequence[float | str] = (),
        ledger: LedgerPreset = "strict",
        cache: dict[Path, measures.Values] | None = None,
    ) -> None:
        self.lines = lines
        metrics = measures.of_metrics(chain.from_iterable(line.runs for line in lines.lines))
        self._finals = [metric for metric in metrics if metric.test == "final"]
        requested = {Target.read(target) for target in targets}
        declared = {Target.read(target) for target in lines.targets}
        all_targets = self._from_easiest(requested | declared)
        accuracies = [target for target in all_targets if target.metric == "accuracy"]
        self._requested = [target for target in all_targets if target in requested]
        self._to_others: list[measures.Measure | None] = []
        for target in all_targets[len(accuracies) :]:
            self._to_others += [measures.goal_of(goal, target) for goal in TARGETED]
        self._measures = [*measures.measures(all_targets), *metrics]
        if lines.budget:
            self._measures.append(measures.WITHIN)
        computed: dict[Path, measures.Values] = {} if cache is None else cache
        for line in lines.lines:
            for run in line.runs:
                if not computed.get(run.path):
                    computed[run.path] = measures.measure(run, all_targets, ledger, lines.budget)
        missing: measures.Values = dict.fromkeys(metric.name for metric in metrics)
        self._figures: list[list[measures.Values]] = [
            [missing | computed[run.path] for run in line.runs] for line in lines.lines
        ]
        self._has_accuracy = any(
            values[measures.BEST.name] is not None
            for figures in self._figures
            for values in figures
        )
        self._targets = self._requested or accuracies or all_targets
        if not self._targets:
            self._add_usual_target()

    def _from_easiest(self, targets: set[Target]) -> list[Target]:
        """Sort targets by metric, accuracy first, and then from the easiest to the hardest.

        Raises:
            ScenarioError: a target is of a metric that no run has.
        """
        best: dict[str, measures.Preferred] = {}
        for metric in self._finals:
            best[metric.quantity] = metric.best
        best["accuracy"] = "most"
        best["loss"] = "least"
        for target in sorted(targets):
            if target.metric not in best:
                hint = f"{', '.join(sorted(best))}{nearest(target.metric, best)}"
                raise ScenarioError(
                    f"--target is of {target.metric!r}, which no run has; they have {hint}"
                )

        def rank(target: Target) -> tuple[bool, str, float]:
            sign = -1 if best[target.metric] == "least" else 1
            return target.metric != "accuracy", target.metric, sign * target.value

        return sorted(targets, key=rank)

    def _add_usual_target(self) -> None:
        target = usual_target(self.lines, self.lines.of_common_seeds(self._figures))
        if target is None:
            return
        self._targets = [target]
        for line, figures in zip(self.lines.lines, self._figures, strict=True):
            for run, values in zip(line.runs, figures, strict=True):
                values |= measures.costs_until(run, target)

    def tables(self) -> list[ComparedTable]:
        """Return the tables of all measures: means side by side, then differences to the baseline.

        The second table is left out if no study has a baseline.
        """
        tables = [self.side_by_side()]
        if self.lines.baseline and not self.lines.are_runs:
            tables.append(self.differences())
        return tables

    def side_by_side(self) -> ComparedTable:
        """Return a table with a row per line (variant or run) and a column per measure.

        Cells are means over seeds with their intervals. Further columns are cost ratios to the
        baseline.
        """
        columns = [*self._identity(), *map(self._column, self._measures)]
        if self.lines.baseline:
            columns += self._ratio_columns()
        notes = []
        if self.lines.baseline and not self.lines.is_first:
            notes.append(f"The baseline is {clean(self.lines.baseline)}.")
        if max(len(line.runs) for line in self.lines.lines) > 1:
            notes.append(
                "Means over seeds with 95 % intervals (Student's t). A line has a mean if all its "
                "seeds have the figure; otherwise the cell says why not."
            )
        return ComparedTable(tuple(columns), (*notes, *_undone(self.lines)))

    def _ratio_columns(self) -> Iterator[ComparedColumn]:
        """Yield a column per cost with each line's ratio to its baseline.

        A cell without a ratio states the reason, if one is known.
        """
        baseline_word = "first" if self.lines.is_first else "baseline"
        topic = f"ratios to the {baseline_word}"
        for measure in self._measures:
            if not measure.is_cost:
                continue
            cells: list[Cell] = []
            for line_index, baseline_index in enumerate(self.lines.baselines):
                ratio = self._ratio(measure, line_index)
                if ratio is None:
                    cells.append(self._absence(measure, line_index, baseline_index))
                else:
                    cells.append(ratio)
            head = f"{measure.name} to {baseline_word} (ratio)"
            yield ComparedColumn(head, tuple(cells), topic, unit="ratio")

    def in_short(self) -> ComparedTable:
        """Return a table of the most important measures of the best variants, for terminals.

        Variants that are compared with each other stay together, the best first.
        """
        answers = self.answers()
        rows = self._short_rows(answers)
        identity = self._identity()
        if not self.lines.are_runs:
            identity = [column for column in identity if column.head != "strategy"]
        columns = []
        for column in (*identity, *map(self._column, self._short_measures(answers))):
            cells = tuple(column.cells[row] for row in rows)
            column = replace(column, topic="", cells=cells)
            if not column.is_empty:
                columns.append(column)
        notes = []
        hidden = len(self._figures) - len(rows)
        if hidden:
            lines = "lines are" if hidden > 1 else "line is"
            notes.append(f"{hidden} more {lines} not shown here.")
        undone = list(_undone(self.lines))
        notes += undone[:_MOST_NOTES]
        if len(undone) > _MOST_NOTES:
            count = len(undone) - _MOST_NOTES
            notes.append(f"{counted(count, 'more line')} {'is' if count == 1 else 'are'} not done.")
        return ComparedTable(tuple(columns), tuple(notes))

    def _short_rows(self, answers: Sequence[WorldAnswer]) -> list[int]:
        """Return the indices of the lines (variants or runs) that a short table shows.

        They are, for each world, its best lines and the baselines, the best first. Lines without a
        rank follow if there is room.
        """
        baselines = set(self.lines.baselines)
        per_world = max(3, _MOST_ROWS // max(1, len(answers)))
        rows: list[int] = []
        ranked: set[int] = set()
        for answer in answers:
            ranked.update(answer.order)
            for rank, line_index in enumerate(answer.order):
                if rank < per_world or line_index in baselines:
                    rows.append(line_index)
        unranked = [
            line_index for line_index in range(len(self._figures)) if line_index not in ranked
        ]
        return rows + unranked[: max(0, _MOST_ROWS - len(rows))]

    def _short_measures(self, answers: Sequence[WorldAnswer]) -> list[measures.Measure]:
        targets: list[Target | None] = [*self._requested]
        if not targets:
            answered = [answer.target for answer in answers]
            targets += [target for target in self._targets if target in answered]
        if not targets:
            targets = [None]
        goals: list[measures.Measure | None] = []
        for target in targets:
            for goal in (self.lines.goal, *TARGETED):
                measure = measures.goal_of(goal, target)
                if measure not in (None, measures.FINAL):
                    goals.append(measure)
        if not goals:
            goals = [measures.TIME, measures.TRAFFIC]
        selection = dict.fromkeys(
            [measures.FINAL, *self._finals, *goals, *self._to_others, measures.WASTED_COMPUTE]
        )
        return [measure for measure in selection if measure is not None]

    def answers(self) -> list[WorldAnswer]:
        """Return which line (variant or run) is the best, and what it costs, for each world.

        A world is what compared lines share: devices, network and data. If no target is declared or
        requested, the target is one that half of the lines reach.
        """
        is_requested = bool(self._requested)
        return list(answers(self.lines, self._figures, self._targets, is_requested=is_requested))

    def one_by_one(self) -> ComparedTable:
        """Return a table with a row per run and a column per measure, such as time or accuracy."""
        rows: list[dict[str, Cell]] = []
        for line, figures in zip(self.lines.lines, self._figures, strict=True):
            for run, values in zip(line.runs, figures, strict=True):
                row = self._point(line)
                row["strategy"] = line.strategy
                row["seed"] = int(run.summary["seed"])
                for measure in self._measures:
                    row[measure.head] = values[measure.name]
                rows.append(row)
        heads = ["variant", *self._heads.values(), "strategy", "seed"]
        heads += [measure.head for measure in self._measures]
        return ComparedTable.of(heads, rows)

    def paired(self, seeds: Sequence[int]) -> ComparedTable:
        """Return a table of each variant's differences to its baseline, seed by seed.

        The mean is empty unless both have a value in every seed. A mean of fewer seeds would
        flatter variants that often fail.

        Args:
            seeds: the seeds of the study, each of which gets a column.

        Returns:
            One row per variant and measure, such as time or accuracy.
        """
        rows: list[dict[str, Cell]] = []
        for line_index, base in self._compared():
            for measure in self._measures:
                pairs = self._pairs(line_index, base, measure)
                row = self._paired_point(line_index, base)
                row["measure"] = measure.name
                row["unit"] = measure.unit
                row["pairs"] = len(pairs)
                for seed, (above, below) in pairs.items():
                    row[f"seed {seed}"] = above - below
                if pairs and len(pairs) == self._pairs_expected(line_index, base, len(seeds)):
                    difference = _mean_difference(pairs)
                    row["mean difference"] = difference.mean
                    row["low"], row["high"] = difference.edges
                    row["ratio"] = self._ratio(measure, line_index)
                rows.append(row)
        heads = [*_KEYS, *self._heads.values(), *_PAIRED, *(f"seed {seed}" for seed in seeds)]
        return ComparedTable.of(heads, rows)

    def differences(self) -> ComparedTable:
        """Return each variant's mean differences to its baseline, one variant per row.

        There is a column for each measure, such as time or accuracy.
        """
        compared = list(self._compared())
        points = [self._paired_point(line_index, base) for line_index, base in compared]
        columns = [*ComparedTable.of([*_KEYS, *self._heads.values()], points).columns]
        for measure in self._measures:
            cells: list[Cell] = []
            for line_index, base in compared:
                pairs = self._all_pairs(line_index, base, measure)
                difference = _mean_difference(pairs) if pairs else None
                cells.append(difference or self._absence(measure, line_index, base))
            columns.append(
                ComparedColumn(
                    measure.head,
                    tuple(cells),
                    f"{self._topic(measure)}, difference to the baseline",
                    over_seeds=True,
                    unit=measure.unit,
                    signed=True,
                )
            )
        note = "Variant minus baseline, seed by seed in the same worlds."
        if all(column.is_empty for column in columns if column.topic):
            note = "No variant can be compared with its baseline: their runs have other seeds."
        return ComparedTable(tuple(columns), (note,) if compared else ())

    @cached_property
    def _heads(self) -> dict[str, str]:
        """Dict from key of the grid to the head of its column in tables.

        It is the last part of the key, or the whole key if another column has this
        head.
        """
        keys: dict[str, None] = {}
        for line in self.lines.lines:
            keys.update(dict.fromkeys(key for key, _ in line.point))
        heads = {}
        for key in keys:
            short = short_key(key, keys)
            heads[key] = key if short in _RESERVED else short
        return heads

    def _point(self, line: ComparedLine) -> dict[str, Cell]:
        point: dict[str, Cell] = {"variant": line.name}
        for key, value in line.point:
            point[self._heads[key]] = format_value(value)
        return point

    def _paired_point(self, line_index: int, base: int) -> dict[str, Cell]:
        point = self._point(self.lines.lines[line_index])
        point["baseline"] = self.lines.lines[base].name
        return point

    def _identity(self) -> list[ComparedColumn]:
        """Return the columns that identify a row: run or variant, strategy, grid values, seed."""
        rows: list[dict[str, Cell]] = []
        for line in self.lines.lines:
            row = self._point(line)
            row["study"] = line.study or None
            row["strategy"] = line.strategy
            row["runs"] = len(line.runs)
            row["run"] = line.name
            if self.lines.are_runs:
                row["seed"] = int(line.runs[0].summary["seed"])
            rows.append(row)
        heads = ["run", "strategy", "seed"]
        if not self.lines.are_runs:
            studies = {line.study for line in self.lines.lines}
            heads = ["variant", *self._heads.values(), "strategy", "runs"]
            if len(studies) > 1:
                heads.insert(1, "study")
        return [*ComparedTable.of(heads, rows).columns]

    def _column(self, measure: measures.Measure) -> ComparedColumn:
        cells = []
        for line_index, figures in enumerate(self._figures):
            mean = _mean([values[measure.name] for values in figures], measure.most)
            cells.append(self._absence(measure, line_index) if mean is None else mean)
        return ComparedColumn(
            measure.head,
            tuple(cells),
            self._topic(measure),
            over_seeds=not self.lines.are_runs,
            unit=measure.unit,
            best=measure.best,
        )

    def _topic(self, measure: measures.Measure) -> str:
        """Return the title of the table that shows a measure, such as ``cost`` or ``to target``."""
        if measure.topic == "accuracy" and not self._has_accuracy:
            return "tests"
        return measure.topic

    def _absence(
        self, measure: measures.Measure, line_index: int, base: int | None = None
    ) -> Absent | None:
        """Return a cell with the reason why a variant lacks a value, or a change from its baseline.

        None if no reason is known.

        Args:
            measure: the measure, such as the time to a target.
            line_index: index of the line.
            base: index of its baseline; None if the cell is not relative to it.
        """
        figures = [values[measure.name] for values in self._figures[line_index]]
        reason = absence(measure, self.lines.lines[line_index], figures)
        if not reason and base is not None:
            figures = [values[measure.name] for values in self._figures[base]]
            reason = absence(measure, self.lines.lines[base], figures)
            reason = reason and f"baseline: {reason}"
            if not reason and self.lines.seeds_of(line_index) != self.lines.seeds_of(base):
                reason = _OTHER_SEEDS
        return Absent(reason) if reason else None

    def _compared(self) -> Iterator[tuple[int, int]]:
        """Yield the indices of each line (variant or run) with a baseline, and of the baseline."""
        for line_index, base in enumerate(self.lines.baselines):
            if base is not None and base != line_index:
                yield line_index, base

    def _pairs(self, line_index: int, base: int, measure: measures.Measure) -> Pairs:
        values = self.lines.by_seed(line_index, self._figures[line_index], measure.name)
        base_values = self.lines.by_seed(base, self._figures[base], measure.name)
        return {
            seed: (value, base_values[seed])
            for seed, value in values.items()
            if seed in base_values
        }

    def _all_pairs(self, line_index: int, base: int, measure: measures.Measure) -> Pairs:
        """Return a measure of a line and of its baseline by seed; empty unless all runs pair up.

        Args:
            line_index: index of the line.
            base: index of the baseline.
            measure: the measure, such as the time to a target.

        Returns:
            Dict from seed to the two figures.
        """
        pairs = self._pairs(line_index, base, measure)
        runs = max(len(self._figures[line_index]), len(self._figures[base]))
        return pairs if len(pairs) == self._pairs_expected(line_index, base, runs) else {}

    def _pairs_expected(self, line_index: int, base: int, usual: int) -> int:
        """Return how many seeds a line shares with its baseline, if no run lacks a value.

        Args:
            line_index: index of the line.
            base: index of the baseline.
            usual: the result if all lines have the same seeds. If seeds were added to some lines,
                the count of seeds that both lines have is returned instead.
        """
        if self.lines.until_sure is None:
            return usual
        return len(self.lines.seeds_of(line_index) & self.lines.seeds_of(base))

    def _ratio(self, measure: measures.Measure, line_index: int) -> float | None:
        """Return the mean ratio of a variant's cost to its baseline's cost, over their seeds.

        None if the measure is no cost, if the variant has no baseline, or if a run lacks a value.

        Args:
            measure: the cost, such as the time to a target.
            line_index: index of the line.
        """
        base = self.lines.baselines[line_index]
        if base is None or not measure.is_cost:
            return None
        pairs = self._all_pairs(line_index, base, measure)
        if not pairs:
            return None
        ratio = ratio_of(*zip(*pairs.values(), strict=True))
        return None if ratio is None else ratio.mean


def _mean_difference(pairs: Pairs) -> Estimate:
    difference = paired_difference(
        [above for above, _ in pairs.values()], [below for _, below in pairs.values()]
    )
    noise = _NOISE * max(map(abs, chain.from_iterable(pairs.values())))

    def denoise(edge: float) -> float:
        return 0.0 if abs(edge) <= noise else edge

    return Estimate(
        denoise(difference.mean),
        denoise(difference.low),
        denoise(difference.high),
        difference.pairs,
    )


def _mean(values: Sequence[float | int | None], most: float) -> Cell:
    """Return a cell with the mean of a measure over runs, with its interval.

    A single value is returned unchanged. None if any value is None.

    Args:
        values: value of the measure in each run.
        most: greatest possible value, to which the interval is clipped; the least is 0.
    """
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    if len(numbers) == 1:
        return numbers[0]
    mean = mean_of(numbers)
    return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, most))


def absence(
    measure: measures.Measure, line: ComparedLine, figures: Sequence[float | int | None]
) -> str:
    """Return the reason why a variant has no mean of a measure, such as "not reached".

    It is the text of the empty cell; empty if the variant has a mean, or no reason is known.

    Args:
        measure: the measure, such as the time to a target.
        line: the line.
        figures: value of the measure in each finished run; None for a run that lacks it.
    """
    if not line.is_begun:
        return "not begun"
    if not line.runs:
        return "no run is done"
    count = sum(figure is not None for figure in figures)
    if count == len(figures):
        return ""
    is_pooled = bool(line.runs[0].scenario.get("data", {}).get("pooled_from"))
    if is_pooled and not measure.is_of_pooled_data:
        return "pooled data"
    if count:
        return f"in {count} of {len(figures)} runs"
    if measure.target is not None:
        return "not reached"
    return "" if measure.topic == "fairness and groups" else "not measured"


def _undone(lines: Lines) -> Iterator[str]:
    """Yield a sentence on each variant of which runs are missing or were not run to their end."""
    for line in lines.lines:
        if len(line.runs) < line.planned:
            text = f"Of {clean(line.name)} {len(line.runs)} of {line.planned} runs are done"
            if line.planned == 1:
                text = f"The run of {clean(line.name)} is not done"
            rest = line.undone_in_words
            yield f"{text} ({rest})." if rest else f"{text}."
        elif line.statuses != "done":
            yield f"{clean(line.name)} was not run to its end: {clean(line.statuses)}."
    if lines.not_begun:
        yield f"No run was begun of {some_names(lines.not_begun)}."
