"""Tables of a comparison: means of variants or runs, intervals over seeds, and ratios of costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.harmless import clean
from fedsim.common.round_words import counted
from fedsim.lab.compare import measures
from fedsim.lab.compare.absence import explain_absence, has_accuracy
from fedsim.lab.compare.answer import TARGETED, WorldAnswer, answers, usual_target
from fedsim.lab.compare.cells import cell_names
from fedsim.lab.compare.columns import NOISE, Absent, Cell, ComparedColumn, ComparedTable
from fedsim.lab.compare.lines import ComparedLine, Lines, format_value, short_key, some_names
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, ratio_of
from fedsim.lab.reading.targets import Target
from fedsim.records.ledger import LedgerPreset

_PAIR_HEADS = ("variant", "baseline")
_DIFFERENCE_HEADS = ("measure", "unit", "pairs", "mean difference", "low", "high", "ratio")
_RESERVED_HEADS = (*_PAIR_HEADS, *_DIFFERENCE_HEADS, "study", "strategy", "runs", "rounds", "seed")
_OTHER_SEEDS = "other seeds than the baseline"
_MOST_ROWS = 24
_MOST_NOTES = 6

Pairs = dict[int, tuple[float, float]]
"""Dict from seed to two values of a measure: the line's value and its baseline's value."""


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
        # final and best value of each metric that any run has
        metrics = measures.of_metrics(chain.from_iterable(line.runs for line in lines.lines))
        self._finals = [metric for metric in metrics if metric.test == "final"]
        # targets of the user, and of the studies
        requested = {Target.read(target) for target in targets}
        declared = {Target.read(target) for target in lines.targets}
        all_targets = self._sort_targets(requested | declared)
        accuracies = [target for target in all_targets if target.metric == "accuracy"]
        self._requested = [target for target in all_targets if target in requested]
        # costs until the targets that are no accuracies, for the short table
        self._costs_to_metrics: list[measures.Measure] = []
        for target in all_targets[len(accuracies) :]:  # accuracies are first
            self._costs_to_metrics += _goal_measures(TARGETED, target)
        # measures with a column in the tables
        self._measures = [*measures.measures(all_targets), *metrics]
        if lines.budget:
            self._measures.append(measures.WITHIN)
        # values of all measures of each run of each line
        self._figures = self._measure_runs(all_targets, metrics, ledger, cache)
        all_figures = chain.from_iterable(self._figures)
        self._has_accuracy = has_accuracy(all_figures)
        # targets at which the answers compare costs
        self._targets = self._requested or accuracies or all_targets
        if not self._targets:
            self._add_usual_target()

    def _measure_runs(
        self,
        targets: Sequence[Target],
        metrics: Sequence[measures.Measure],
        ledger: LedgerPreset,
        cache: dict[Path, measures.Values] | None,
    ) -> list[list[measures.Values]]:
        """Return the values of all measures, by name, of each run of each line.

        Args:
            targets: targets to which costs are computed.
            metrics: measures of the runs' metrics. A run that lacks one has the value None.
            ledger: traffic to count: ``strict`` or ``paper``.
            cache: dict from run folder to values, to which the values of further runs are added;
                None for no such dict.
        """
        computed: dict[Path, measures.Values] = {} if cache is None else cache
        for run in chain.from_iterable(line.runs for line in self.lines.lines):
            if not computed.get(run.path):
                computed[run.path] = measures.measure(run, targets, ledger, self.lines.budget)
        no_metrics: measures.Values = dict.fromkeys(metric.name for metric in metrics)
        figures = []
        for line in self.lines.lines:
            figures.append([no_metrics | computed[run.path] for run in line.runs])
        return figures

    def _sort_targets(self, targets: set[Target]) -> list[Target]:
        """Sort targets by metric, accuracy first, and then from the easiest to the hardest.

        Raises:
            ScenarioError: a target is of a metric that no run has.
        """
        best_directions: dict[str, measures.Preferred] = {}
        for metric in self._finals:
            best_directions[metric.quantity] = metric.best
        best_directions["accuracy"] = "most"
        best_directions["loss"] = "least"
        for target in sorted(targets):
            if target.metric not in best_directions:
                hint = nearest(target.metric, best_directions)
                raise ScenarioError(
                    f"--target is of {target.metric!r}, which no run has; they have "
                    f"{', '.join(sorted(best_directions))}{hint}"
                )

        def rank(target: Target) -> tuple[bool, str, float]:
            sign = -1 if best_directions[target.metric] == "least" else 1
            return target.metric != "accuracy", target.metric, sign * target.value

        return sorted(targets, key=rank)

    def _add_usual_target(self) -> None:
        """Choose a default target, an accuracy, and add the costs until it to the runs' figures.

        Does nothing if no accuracy is reached by enough lines.
        """
        target = usual_target(self.lines, self.lines.of_common_seeds(self._figures))
        if target is None:
            return
        self._targets = [target]
        for line, figures_of_line in zip(self.lines.lines, self._figures, strict=True):
            for run, values in zip(line.runs, figures_of_line, strict=True):
                values |= measures.costs_until(run, target)

    def tables(self) -> list[ComparedTable]:
        """Return one or two tables with all measures, such as time, accuracy and traffic.

        The first table has the means of all lines (variants or runs) side by side. The second one
        has the differences to the baseline; it is left out if no study has a baseline.
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
        columns = [*self._identity_columns(), *map(self._mean_column, self._measures)]
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
        return ComparedTable(tuple(columns), (*notes, *_describe_undone(self.lines)))

    def _ratio_columns(self) -> Iterator[ComparedColumn]:
        """Yield a column per cost, with the ratio of each line's cost to its baseline's cost.

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
                    cells.append(self._absent_cell(measure, line_index, baseline_index))
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
        identity = self._identity_columns()
        if not self.lines.are_runs:
            identity = [column for column in identity if column.head != "strategy"]
        mean_columns = [self._mean_column(measure) for measure in self._short_measures(answers)]
        columns = []
        for column in (*identity, *mean_columns):
            cells = tuple(column.cells[row] for row in rows)
            short_column = replace(column, topic="", cells=cells)
            if not short_column.is_empty:
                columns.append(short_column)
        return ComparedTable(tuple(columns), tuple(self._short_notes(len(rows))))

    def _short_notes(self, shown_count: int) -> Iterator[str]:
        """Yield sentences on lines that a short table leaves out, and on lines that are not done.

        Args:
            shown_count: count of the lines that the table shows.
        """
        hidden_count = len(self._figures) - shown_count
        if hidden_count:
            noun_and_verb = "lines are" if hidden_count > 1 else "line is"
            yield f"{hidden_count} more {noun_and_verb} not shown here."
        undone_sentences = list(_describe_undone(self.lines))
        yield from undone_sentences[:_MOST_NOTES]
        if len(undone_sentences) > _MOST_NOTES:
            count = len(undone_sentences) - _MOST_NOTES
            yield f"{counted(count, 'more line')} {'is' if count == 1 else 'are'} not done."

    def _short_rows(self, answers: Sequence[WorldAnswer]) -> list[int]:
        """Return the indices of the lines (variants or runs) that a short table shows.

        For each world, these are its best lines and the baselines, the best first. Lines without a
        rank follow if there is room.

        Args:
            answers: the results of the comparison, one for each world (a group of lines that share
                devices, network and data).
        """
        baselines = set(self.lines.baselines)
        # at least three lines of a world, even if the table becomes longer
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
        """Return the measures of a short table: accuracies, costs to targets, wasted compute.

        Args:
            answers: the results of the comparison, which name the targets that were used.
        """
        # the user's targets; else the targets that the answers use; else none
        targets: list[Target | None] = [*self._requested]
        if not targets:
            answered = [answer.target for answer in answers]
            targets += [target for target in self._targets if target in answered]
        if not targets:
            targets = [None]  # goals such as ``battery`` have a measure even without a target
        goals: list[measures.Measure] = []
        for target in targets:
            goals += _goal_measures((self.lines.goal, *TARGETED), target)
        # the final accuracy is in every table, and does not replace the costs
        goals = [measure for measure in goals if measure != measures.FINAL]
        if not goals:
            goals = [measures.TIME, measures.TRAFFIC]  # costs of whole runs
        accuracies = [measures.FINAL, *self._finals]  # ``_finals``: final values of other metrics
        selection = [*accuracies, *goals, *self._costs_to_metrics, measures.WASTED_COMPUTE]
        return [*dict.fromkeys(selection)]  # without repetitions

    def answers(self) -> list[WorldAnswer]:
        """Return for each world which line (variant or run) is the best, and what it costs.

        A world is a group of lines that share devices, network and data, so that they can be
        compared. Costs are counted until a target, such as an accuracy, is reached. If neither the
        user nor a study names a target, it is an accuracy that at least half of the lines reach in
        all runs.
        """
        is_requested = bool(self._requested)
        return list(answers(self.lines, self._figures, self._targets, is_requested=is_requested))

    def one_by_one(self) -> ComparedTable:
        """Return a table with a row per run and a column per measure, such as time or accuracy."""
        rows: list[dict[str, Cell]] = []
        for line, figures in zip(self.lines.lines, self._figures, strict=True):
            for run, values in zip(line.runs, figures, strict=True):
                row = self._point_cells(line)
                row["strategy"] = line.strategy
                row["seed"] = int(run.summary["seed"])
                for measure in self._measures:
                    row[measure.head] = values[measure.name]
                rows.append(row)
        heads = ["variant", *self._heads_of_keys.values(), "strategy", "seed"]
        heads += [measure.head for measure in self._measures]
        return ComparedTable.of(heads, rows)

    def paired(self, seeds: Sequence[int]) -> ComparedTable:
        """Return a table of each variant's differences to its baseline, seed by seed.

        The mean difference is empty unless variant and baseline have a value for every seed (for
        every seed that both have, if the study adds seeds to some variants). A mean over fewer
        seeds would flatter variants that often fail.

        Args:
            seeds: the seeds of the study, each of which gets a column.

        Returns:
            One row per variant and measure, such as time or accuracy.
        """
        rows: list[dict[str, Cell]] = []
        for line_index, baseline_index in self._lines_with_baseline():
            for measure in self._measures:
                pairs = self._pairs(line_index, baseline_index, measure)
                row = self._pair_cells(line_index, baseline_index)
                row["measure"] = measure.name
                row["unit"] = measure.unit
                row["pairs"] = len(pairs)
                for seed, (above, below) in pairs.items():
                    row[f"seed {seed}"] = above - below
                expected = self._pairs_expected(line_index, baseline_index, len(seeds))
                if pairs and len(pairs) == expected:
                    difference = _mean_difference(pairs)
                    row["mean difference"] = difference.mean
                    row["low"], row["high"] = difference.edges
                    row["ratio"] = self._ratio(measure, line_index)
                rows.append(row)
        heads = [
            *_PAIR_HEADS,
            *self._heads_of_keys.values(),
            *_DIFFERENCE_HEADS,
            *(f"seed {seed}" for seed in seeds),
        ]
        return ComparedTable.of(heads, rows)

    def differences(self) -> ComparedTable:
        """Return each variant's mean differences to its baseline, one variant per row.

        There is a column for each measure, such as time or accuracy.
        """
        compared = list(self._lines_with_baseline())
        points = [
            self._pair_cells(line_index, baseline_index) for line_index, baseline_index in compared
        ]
        columns = [*ComparedTable.of([*_PAIR_HEADS, *self._heads_of_keys.values()], points).columns]
        for measure in self._measures:
            cells: list[Cell] = []
            for line_index, baseline_index in compared:
                pairs = self._all_pairs(line_index, baseline_index, measure)
                difference = _mean_difference(pairs) if pairs else None
                cells.append(difference or self._absent_cell(measure, line_index, baseline_index))
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
    def _heads_of_keys(self) -> dict[str, str]:
        """Dict from key of the grid to the heading of its column in tables.

        The heading is the last part of the key, or the whole key if another column would have the
        same heading.
        """
        keys: list[str] = []
        for line in self.lines.lines:
            keys += [key for key, _ in line.point if key not in keys]
        heads = {}
        for key in keys:
            last_part = short_key(key, keys)
            heads[key] = key if last_part in _RESERVED_HEADS else last_part
        return heads

    def _point_cells(self, line: ComparedLine) -> dict[str, Cell]:
        point: dict[str, Cell] = {"variant": line.name}
        for key, value in line.point:
            point[self._heads_of_keys[key]] = format_value(value)
        return point

    def _pair_cells(self, line_index: int, baseline_index: int) -> dict[str, Cell]:
        point = self._point_cells(self.lines.lines[line_index])
        point["baseline"] = self.lines.lines[baseline_index].name
        return point

    def _identity_columns(self) -> list[ComparedColumn]:
        """Return the columns that identify a row: run or variant, strategy, grid values, seed."""
        rows: list[dict[str, Cell]] = []
        for line in self.lines.lines:
            row = self._point_cells(line)
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
            heads = ["variant", *self._heads_of_keys.values(), "strategy", "runs"]
            if len(studies) > 1:
                heads.insert(1, "study")
        return [*ComparedTable.of(heads, rows).columns]

    def _mean_column(self, measure: measures.Measure) -> ComparedColumn:
        """Return the column of a measure: each line's mean over its runs, or why there is none."""
        cells = []
        for line_index, figures in enumerate(self._figures):
            mean = _mean_cell([values[measure.name] for values in figures], measure.most)
            cells.append(self._absent_cell(measure, line_index) if mean is None else mean)
        return ComparedColumn(
            measure.head,
            tuple(cells),
            self._topic(measure),
            over_seeds=not self.lines.are_runs,
            unit=measure.unit,
            best=measure.best,
        )

    def _topic(self, measure: measures.Measure) -> str:
        """Return the topic, such as ``cost``, under which tables show a measure."""
        if measure.topic == "accuracy" and not self._has_accuracy:
            return "tests"
        return measure.topic

    def _absent_cell(
        self, measure: measures.Measure, line_index: int, baseline_index: int | None = None
    ) -> Absent | None:
        """Return a cell with the reason why a variant lacks a value, or a change from its baseline.

        None if no reason is known.

        Args:
            measure: the measure, such as the time to a target.
            line_index: index of the line.
            baseline_index: index of its baseline; None if the cell is not relative to it.
        """
        lines = self.lines.lines
        reason = explain_absence(measure, lines[line_index], self._figures[line_index])
        if reason:
            return Absent(reason)
        if baseline_index is None:
            return None
        reason = explain_absence(measure, lines[baseline_index], self._figures[baseline_index])
        if reason:
            return Absent(f"baseline: {reason}")
        if self.lines.seeds_of(line_index) != self.lines.seeds_of(baseline_index):
            return Absent(_OTHER_SEEDS)
        return None

    def _lines_with_baseline(self) -> Iterator[tuple[int, int]]:
        """Yield the indices of each line (variant or run) with a baseline, and of the baseline."""
        for line_index, baseline_index in enumerate(self.lines.baselines):
            if baseline_index is not None and baseline_index != line_index:
                yield line_index, baseline_index

    def _pairs(self, line_index: int, baseline_index: int, measure: measures.Measure) -> Pairs:
        """Return the values of a measure of a line and of its baseline, as pairs by seed.

        Seeds for which one of the two has no value are left out.
        """
        values = self.lines.by_seed(line_index, self._figures[line_index], measure.name)
        baseline_values = self.lines.by_seed(
            baseline_index, self._figures[baseline_index], measure.name
        )
        pairs = {}
        for seed, value in values.items():
            if seed in baseline_values:
                pairs[seed] = (value, baseline_values[seed])
        return pairs

    def _all_pairs(self, line_index: int, baseline_index: int, measure: measures.Measure) -> Pairs:
        """Return the values of a measure of a line and of its baseline, if no seed lacks one.

        Args:
            line_index: index of the line.
            baseline_index: index of the baseline.
            measure: the measure, such as the time to a target.

        Returns:
            Dict from seed to the two values; empty if a run of either line has no counterpart.
        """
        pairs = self._pairs(line_index, baseline_index, measure)
        runs = max(len(self._figures[line_index]), len(self._figures[baseline_index]))
        is_complete = len(pairs) == self._pairs_expected(line_index, baseline_index, runs)
        return pairs if is_complete else {}

    def _pairs_expected(self, line_index: int, baseline_index: int, usual_count: int) -> int:
        """Return how many pairs of values a line and its baseline should have.

        Args:
            line_index: index of the line.
            baseline_index: index of the baseline.
            usual_count: the result, unless the study adds seeds to some lines. Then it is the count
                of seeds that both lines have.
        """
        if self.lines.until_sure is None:
            return usual_count
        return len(self.lines.seeds_of(line_index) & self.lines.seeds_of(baseline_index))

    def _ratio(self, measure: measures.Measure, line_index: int) -> float | None:
        """Return the mean ratio of a variant's cost to its baseline's cost, over their seeds.

        None if the measure is no cost, if the variant has no baseline, or if a run lacks a value.

        Args:
            measure: the cost, such as the time to a target.
            line_index: index of the line.
        """
        baseline_index = self.lines.baselines[line_index]
        if baseline_index is None or not measure.is_cost:
            return None
        pairs = self._all_pairs(line_index, baseline_index, measure)
        if not pairs:
            return None
        costs, baseline_costs = zip(*pairs.values(), strict=True)
        ratio = ratio_of(costs, baseline_costs)
        return None if ratio is None else ratio.mean


def _goal_measures(goals: Iterable[str], target: Target | None) -> list[measures.Measure]:
    """Return the measures of goals, such as ``time`` to the target.

    Goals that need a target are left out if ``target`` is None.
    """
    candidates = [measures.goal_of(goal, target) for goal in goals]
    return [measure for measure in candidates if measure is not None]


def _mean_difference(pairs: Pairs) -> Estimate:
    """Return the mean difference of a line and its baseline, with its 95 % interval.

    If the mean or an end of the interval is so small that it may be a rounding error, it becomes 0.

    Args:
        pairs: values of the line and of the baseline, by seed.
    """
    above, below = zip(*pairs.values(), strict=True)
    difference = paired_difference(above, below)
    most_error = NOISE * max(map(abs, (*above, *below)))

    def drop_rounding_error(value: float) -> float:
        return 0.0 if abs(value) <= most_error else value

    return Estimate(
        drop_rounding_error(difference.mean),
        drop_rounding_error(difference.low),
        drop_rounding_error(difference.high),
        difference.pairs,
    )


def _mean_cell(values: Sequence[float | int | None], most: float) -> Cell:
    """Return a table cell with the mean of a measure over runs, and its 95 % interval.

    A single value is returned unchanged. The cell is None if any value is None.

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
    if mean.half <= NOISE * abs(mean.mean):
        return replace(mean, low=mean.mean, high=mean.mean)
    return replace(mean, low=max(mean.low, 0.0), high=min(mean.high, most))


def _describe_undone(lines: Lines) -> Iterator[str]:
    """Yield a sentence on each variant of which runs are missing or were not run to their end."""
    for line, line_name in zip(lines.lines, cell_names(lines), strict=True):
        name = clean(line_name)
        if len(line.runs) < line.planned:
            text = f"Of {name} {len(line.runs)} of {line.planned} runs are done"
            if line.planned == 1:
                text = f"The run of {name} is not done"
            rest = line.undone_in_words
            yield f"{text} ({rest})." if rest else f"{text}."
        elif line.statuses != "done":
            yield f"{name} was not run to its end: {clean(line.statuses)}."
    if lines.not_begun:
        yield f"No run was begun of {some_names(lines.not_begun)}."
