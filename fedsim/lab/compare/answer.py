"""The best variant of a comparison for the goal, its lead, the lead's certainty and its costs.

A cell is a variant of a study at a point of its grid (a combination of values). All cells of a
study with the same world (devices, network and data) are ranked together. Two cells are compared
seed by seed, by the ratios of costs: the geometric mean, with Student's t interval of the
logarithms. Reference lines are not ranked.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from fedsim.common.harmless import clean
from fedsim.lab.compare.absence import has_accuracy
from fedsim.lab.compare.cells import cells_of, name_cells, name_world, varying_keys, worlds_of
from fedsim.lab.compare.line_decision import LineDecision, decide_line
from fedsim.lab.compare.lines import Lines, some_names
from fedsim.lab.compare.measures import BEST, FINAL, Measure, Values, cost_of, goal_of
from fedsim.lab.compare.ranking import RankedLine, Ranking
from fedsim.lab.reading.targets import Target

TARGETED = ("time", "bytes", "energy", "money")
_TARGET_STEP = 0.05  # step between default targets (accuracy)
_DEFAULT_GOAL = "time"

LineFigures = Sequence[Sequence[Values]]
"""For each line, for each of its runs: the values of all measures, by name."""


@dataclass(frozen=True)
class WorldAnswer:
    """Result of a comparison for one world: which variant is the best, and what it costs.

    A world is the devices, network and data that compared runs share. A line is a variant at a
    point of the study's grid, or a single run; ``line_index`` is its index in the comparison.

    Attributes:
        world: name of the world, made of the study and grid values that all its lines share and by
            which it differs from other worlds; empty if there is only one world.
        target: the accuracy, or a metric's value, at which costs are compared; None if no line
            reached a target.
        rankings: rankings by the goal, then by time, bytes, joules and money to the target, then by
            accuracy. A measure of which no run has a value has no ranking.
        missed: lines that did not reach the target in all their runs: name, count of runs that
            reached it, count of runs.
        cells: dict from index of a line to the variant and grid values by which the line differs
            from the others; lines with the same runs have one entry.
        bill: costs of the line that is best by the goal, each with its mean over the line's runs;
            the goal's measure is first.
        unreached: targets that no run of any line reached. If the user has named no targets, the
            targets of the studies count, and this is empty once a run has reached one of them.
        unranked: name of the goal if no run has a figure for it, otherwise empty.
    """

    world: str
    target: Target | None
    rankings: tuple[Ranking, ...]
    missed: tuple[tuple[str, int, int], ...]
    cells: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    bill: tuple[tuple[Measure, float], ...] = ()
    unreached: tuple[Target, ...] = ()
    unranked: str = ""

    @property
    def words(self) -> list[str]:
        """Sentences for people: the best variant, its costs, and the targets that were missed."""
        words = []
        if self.unranked:
            words.append(f"{self.where}No run has a figure to rank by {self.unranked}.")
        sentences = self.rankings[0].sentences if self.rankings else []
        if sentences:
            prefix = self.where + self.target_prefix(self.rankings[0])
            words.append(prefix + " ".join(sentences))
            if self.bill[1:]:  # further costs; ``sentences`` have the first one, the goal's measure
                words.append(self._costs_in_words())
        words += [ranking.in_short for ranking in self.rankings[1:] if ranking.in_short]
        if self.missed:
            words.append(self.where + self.missing)
        words += map(self._unreached_in_words, self.unreached)
        return words

    def _costs_in_words(self) -> str:
        costs = []
        for measure, mean in self.bill[1:]:
            cost = f"{measure.words.verb} {measure.show(mean)}"
            if measure.unit in ("%", "devices"):
                cost += f" {measure.words.noun}"
            costs.append(cost)
        return f"There it {', '.join(costs)}."

    def _unreached_in_words(self, target: Target) -> str:
        if target.metric != "accuracy":
            return f"{self.where}No line reaches {target:g}."
        highest = ""
        for ranking in self.rankings:
            measured_lines = [line for line in ranking.entries if line.values]
            if ranking.measure is FINAL and measured_lines:
                best = measured_lines[0]
                highest = f"; {clean(best.name)} ends with the highest, {best.mean.mean:.3f}"
        return f"{self.where}No line reaches an accuracy of {target:g}{highest}."

    @property
    def where(self) -> str:
        """Beginning of a sentence that names the world, such as "share 0.3: ".

        A world is the devices, network and data that compared runs share. The text is empty if
        there is only one world.
        """
        return f"{self.world}: " if self.world else ""

    def target_prefix(self, ranking: Ranking) -> str:
        """Return the beginning of a sentence on a ranking, such as "To an accuracy of 0.8 ".

        Empty if the ranking is by a measure of whole runs, such as the final accuracy.
        """
        target = ranking.measure.target
        if target is None:
            return ""
        if target.metric == "accuracy":
            return f"To an accuracy of {target.value:g} "
        return f"To the target {target.metric} {target.value:g} "

    @property
    def missing(self) -> str:
        """Sentence that names the variants that did not reach the target in all their runs."""
        names = []
        for name, reached, runs in self.missed:
            names.append(f"{name} (reached in {reached} of {runs} runs)" if runs > 1 else name)
        return f"The target was missed by {some_names(names)}."

    @property
    def order(self) -> list[int]:
        """Indices of the lines (variants or runs) to show in a short table, the best first.

        First are the lines that have a value of the goal, in the order of the ranking by the goal.
        Lines that have only an accuracy follow, in the order of the ranking by accuracy.
        """
        line_indices: dict[int, None] = {}
        for ranking in self.rankings[:1] + self.rankings[-1:]:
            for line in ranking.entries:
                if line.values:
                    line_indices[line.line_index] = None
        return list(line_indices)


def answers(
    lines: Lines, figures: LineFigures, targets: Sequence[Target], *, is_requested: bool = False
) -> Iterator[WorldAnswer]:
    """Yield the best line and its costs for each world, a group of lines that can be compared.

    Lines of a world share devices, network and data. Their costs are compared at the hardest target
    that at least one line reaches in all its runs. If there is no such target, they are compared at
    the hardest target that any run reaches.

    Args:
        lines: the lines (variants or single runs) of the comparison.
        figures: values of all measures, such as time and accuracy, of each run of each line.
        targets: accuracies or values of metrics, the easiest first.
        is_requested: whether the user has named the targets. If so, each result lists every target
            that no line reaches.
    """
    worlds = worlds_of(lines)
    keys = varying_keys(lines, list(chain.from_iterable(worlds)))
    for line_indices in worlds:
        world = "" if len(worlds) == 1 else clean(name_world(lines, line_indices, keys))
        yield _answer_for_world(
            lines, figures, targets, line_indices, world=world, is_requested=is_requested
        )


def _answer_for_world(
    lines: Lines,
    figures: LineFigures,
    targets: Sequence[Target],
    line_indices: Sequence[int],
    *,
    world: str,
    is_requested: bool,
) -> WorldAnswer:
    """Return the answer for one world: rankings by the goal, by other costs, and by accuracy.

    Args:
        lines: the lines (variants or single runs) of the comparison.
        figures: values of all measures, such as time and accuracy, of each run of each line.
        targets: accuracies or values of metrics, the easiest first.
        line_indices: indices of the lines that share this world (devices, network and data).
        world: name of the world; empty if there is only one.
        is_requested: whether the user has named the targets, instead of a study.
    """
    # targets are judged by the seeds that all lines have, if the study added seeds to some lines
    common_figures = lines.of_common_seeds(figures)
    competitors = [index for index in line_indices if not lines.lines[index].reference]
    target = _find_hardest_target(common_figures, competitors, targets)
    goal = goal_of(lines.goal, target)
    cells = cells_of(lines, line_indices)
    names = name_cells(cells)
    # a study adds seeds until it is sure by its own goal and targets, not by the user's
    has_decision = lines.seeds_follow_goal and not is_requested
    rankings = []
    for measure in dict.fromkeys([*_measures_of((lines.goal, *TARGETED), target), FINAL]):
        decides = has_decision and measure == goal
        rankings.append(_rank_lines(lines, figures, names, measure, decides_seeds=decides))
    measured_rankings = [ranking for ranking in rankings if ranking.has_values]
    # A missing ranking by the goal is reported, unless the goal is the default, or a missed target
    # explains it.
    unranked = ""
    is_missed = target is None and bool(targets)
    is_measured = any(ranking.measure == goal for ranking in measured_rankings)
    if lines.goal != _DEFAULT_GOAL and not is_missed and not is_measured:
        unranked = lines.goal
    # if a target was reached, further targets are reported only if the user has named them
    unreached: list[Target] = []
    if is_requested or target is None:
        for candidate in targets:
            if not _is_reached(common_figures, competitors, candidate, any):
                unreached.append(candidate)
    return WorldAnswer(
        world,
        target,
        tuple(measured_rankings),
        missed=tuple(_list_missed(rankings, figures)),
        cells=cells,
        bill=tuple(_list_costs(rankings[0], figures, target)),
        unreached=tuple(unreached),
        unranked=unranked,
    )


def _measures_of(goals: Iterable[str], target: Target | None) -> list[Measure]:
    """Return the distinct measures of some goals, such as ``time``, in the same order.

    Args:
        goals: the goals.
        target: target up to which costs are counted. If it is None, goals that need a target are
            left out.
    """
    measures = [goal_of(goal, target) for goal in goals]
    return [measure for measure in dict.fromkeys(measures) if measure is not None]


def _list_missed(
    rankings: Sequence[Ranking], figures: LineFigures
) -> Iterator[tuple[str, int, int]]:
    """Yield the variants that missed the target in at least one of their runs.

    References, such as centralised training, are left out, and so are variants without learning
    if the target is an accuracy.

    Args:
        rankings: all rankings of a world. Only a ranking by a cost up to the target tells which
            runs reached it; nothing is yielded if there is none.
        figures: values of all measures of each run of each line.

    Yields:
        Name of the variant, count of its runs that reached the target, and count of all its runs.
    """
    to_target = [ranking for ranking in rankings if ranking.measure.target is not None]
    # all these rankings have the same target, so one is enough
    for ranking in to_target[:1]:
        target = ranking.measure.target
        is_accuracy = target is not None and target.metric == "accuracy"
        for line in ranking.entries:
            if is_accuracy and not has_accuracy(figures[line.line_index]):
                continue
            if not line.is_complete and not line.reference:
                yield clean(line.name), len(line.values), line.run_count


def _list_costs(
    goal: Ranking, figures: LineFigures, target: Target | None
) -> Iterator[tuple[Measure, float]]:
    """Yield each cost of the variant that is best by the goal, as its mean over the variant's runs.

    A cost that a run lacks is left out. Nothing is yielded if no variant is ranked.

    Args:
        goal: the ranking by the goal.
        figures: values of all measures, such as time and accuracy, of each run of each line.
        target: target up to which costs are counted; None for costs of whole runs only.
    """
    if not goal.ranked:
        return
    runs = figures[goal.ranked[0].line_index]
    costs = _measures_of((*TARGETED, "battery", "flat"), target)
    for measure in dict.fromkeys([goal.measure, *costs]):  # the goal's measure may be one of them
        values = [run_figures.get(measure.name) for run_figures in runs]
        numbers = [value for value in values if value is not None]
        if numbers and len(numbers) == len(values):
            yield measure, math.fsum(numbers) / len(numbers)


def _rank_lines(
    lines: Lines,
    figures: LineFigures,
    names: Mapping[int, str],
    measure: Measure,
    *,
    decides_seeds: bool,
) -> Ranking:
    """Rank lines (variants or runs) of one world by a measure, such as the time to a target.

    Lines with a value of the measure in all their runs come first, the best mean first.

    Args:
        lines: the lines of the comparison (variants of a study, or single runs).
        figures: values of all measures, such as time and accuracy, of each run of each line.
        names: names of the lines to rank, by index of the line.
        measure: the measure.
        decides_seeds: whether the study added seeds (``until_sure``) to decide by this measure. The
            lines that may still be the best are then ranked before the others.
    """
    entries = []
    for line_index, name in names.items():
        line = lines.lines[line_index]
        values = lines.by_seed(line_index, figures[line_index], measure.name)
        entries.append(
            RankedLine(line_index, name, line.reference, values, lines.seeds_of(line_index))
        )
    decision = None
    if decides_seeds:
        decision = _decide(lines, [line for line in entries if not line.reference], measure)
    contenders = () if decision is None else decision.outcome.contenders
    leader = None if decision is None else decision.outcome.leader
    sign = 1 if measure.best == "least" else -1

    # The line with the least key is the best. Without a decision all lines count as dropped, which
    # does not change their order.
    def rank(line: RankedLine) -> tuple[float, ...]:
        missing_share = 1 - len(line.values) / line.run_count
        figure = sign * line.mean.mean if line.values else math.inf
        is_dropped = line.line_index not in contenders
        return missing_share, is_dropped, line.line_index != leader, figure

    entries.sort(key=rank)
    best = next((line.line_index for line in entries if not line.reference), None)
    baseline = None  # a baseline that is only the first run gets no sentence
    if best is not None and not lines.is_first:
        baseline = lines.baselines[best]
    is_even = lines.until_sure is None  # whether all lines have the same seeds
    return Ranking(measure, tuple(entries), baseline, decision, is_even)


def _decide(
    lines: Lines, competitors: Sequence[RankedLine], measure: Measure
) -> LineDecision | None:
    """Return the decision on the best line of a study that adds seeds until it is sure.

    Args:
        lines: the lines of the comparison, with the rule by which seeds are added.
        competitors: the lines to compare, with their values of the measure.
        measure: the measure.

    Returns:
        The decision; None if the study adds no seeds, or if there is nothing to decide.
    """
    if lines.until_sure is None:
        return None
    names = {line.line_index: line.name for line in competitors}
    values = {line.line_index: line.values for line in competitors}
    decision = decide_line(lines.until_sure, measure, names, lines.lines, values)
    return None if decision.outcome.status == "none" else decision


def _find_hardest_target(
    figures: LineFigures, line_indices: Sequence[int], targets: Sequence[Target]
) -> Target | None:
    """Return the hardest target that any variant reached in all its runs, to compare costs at it.

    If there is none, return the hardest target that any run reached; None if no run reached one.

    Args:
        figures: values of all measures, such as time and accuracy, of each run of each line.
        line_indices: indices of the lines that compete, without reference lines.
        targets: the targets, the easiest first.
    """
    for quantifier in (all, any):
        for target in reversed(targets):
            if _is_reached(figures, line_indices, target, quantifier):
                return target
    return None


def _is_reached(
    figures: LineFigures,
    line_indices: Sequence[int],
    target: Target,
    quantifier: Callable[[Iterable[bool]], bool],
) -> bool:
    """Whether any of some lines (variants or single runs) reached a target.

    Args:
        figures: values of all measures, such as time and accuracy, of each line's runs.
        line_indices: indices of the lines.
        target: the target.
        quantifier: ``all`` if all runs of the line must reach it, ``any`` if one run is enough.
    """

    def reaches(values: Values) -> bool:
        if target.metric == "accuracy":
            return (values[BEST.name] or 0.0) >= target.value
        return values[cost_of("rounds", target).name] is not None

    return any(quantifier(map(reaches, figures[line_index])) for line_index in line_indices)


def usual_target(lines: Lines, figures: LineFigures) -> Target | None:
    """Return the accuracy at which costs are compared if neither a study nor the user names one.

    It is the highest multiple of 0.05 that at least half of the lines reach in all their runs. None
    if there is no such accuracy.

    Args:
        lines: the lines (variants or runs) of the comparison.
        figures: values of all measures, such as time and accuracy, of each line's runs.
    """
    lowest_accuracies = []
    for line, run_figures in zip(lines.lines, figures, strict=True):
        if line.runs and not line.reference:
            lowest_accuracies.append(min(values[BEST.name] or 0.0 for values in run_figures))
    if not lowest_accuracies:
        return None
    lowest_accuracies.sort()
    # at least half of the lines reach the upper median; 1e-9 allows for rounding errors
    steps = math.floor(lowest_accuracies[len(lowest_accuracies) // 2] / _TARGET_STEP + 1e-9)
    return Target(round(steps * _TARGET_STEP, 2)) if steps else None
