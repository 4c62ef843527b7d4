"""The decision on the best variant of a study that adds seeds (``--until-sure``), in sentences."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from fedsim.common.round_words import counted
from fedsim.common.units import show_seconds
from fedsim.lab.compare.lines import ComparedLine, some_names
from fedsim.lab.compare.measures import Measure
from fedsim.lab.compare.sure import Decision, decide
from fedsim.lab.reading.study_folder import IndexedSure

_USUAL_TOLERANCE = 0.05  # default tolerance of a cost, as a share of the cost
_USUAL_STEP = 0.01  # default tolerance of accuracies and metrics, as a difference


@dataclass(frozen=True)
class LineDecision:
    """Decision on the best variant of a study that adds seeds until it is sure.

    In a comparison a variant is a line, identified by its index. The properties describe in
    sentences the decision, the probability that it is wrong, and its cost in runs and time.

    Attributes:
        outcome: best line or lines, and the lines that are surely worse than another line.
        rule: the rule of the study by which seeds are added.
        measure: measure, such as a cost, by which lines are compared.
        tolerance: largest difference that does not matter: relative for a cost, such as .05, and
            absolute for any other measure, such as an accuracy.
        names: names of the lines by their indices.
        runs: count of the finished runs of the compared lines.
        real_s: real time of these runs together (s).
        plan: count of runs that a fixed plan would need: each line with as many seeds as the line
            with the most seeds has.
    """

    outcome: Decision
    rule: IndexedSure
    measure: Measure
    tolerance: float
    names: dict[int, str]
    runs: int
    real_s: float
    plan: int

    @property
    def status(self) -> Literal["best", "tie", "budget", "open"]:
        """State of the decision on the best line; a line is a variant with a run for each seed.

        - ``best``: one line is the best.
        - ``tie``: several lines may be the best. One of them, the leader, is worse than the best by
          at most ``tolerance``, a difference that does not matter.
        - ``open``: not decided yet; further seeds will be run.
        - ``budget``: not decided, and no further seeds will be run, as the study's budget is spent.
        """
        status = self.outcome.status
        assert status != "none", "a world without a decision has no ranking that follows it"
        return "budget" if status == "open" and self.rule.is_over else status

    @property
    def error(self) -> str:
        """Text on the greatest probability of a wrong decision, such as ``error at most 5 %``."""
        return f"error at most {100 * self.rule.error:.3g} %"

    @property
    def tolerance_in_words(self) -> str:
        """Text on the largest difference from the best variant that does not matter.

        Examples are ``5 % more`` for a cost, and ``0.01 less`` for an accuracy.
        """
        if self.measure.is_cost:
            return f"{100 * self.tolerance:.3g} % more"
        return f"{self.tolerance:.3g} {'more' if self.measure.best == 'least' else 'less'}"

    @property
    def sentences(self) -> list[str]:
        """Sentences about the decision, to print after a sentence that names the best variant.

        They state which other variants may be the best (or only their count, if it is not decided),
        how many variants were dropped as worse, and how many runs and how much real time the
        decision took.
        """
        words = []
        outcome = self.outcome
        if self.status == "tie":
            assert outcome.leader is not None
            other_contenders = [index for index in outcome.contenders if index != outcome.leader]
            other_names = [self.names[line_index] for line_index in other_contenders]
            # "that" is the tolerance, which the sentence on the leader has just stated
            words.append(f"{some_names(other_names)} may be better, by no more than that.")
        if outcome.status == "open":
            continuation = "the budget is spent" if self.rule.is_over else "more seeds decide"
            count = len(outcome.contenders)
            words.append(f"One of these {count} is the best ({self.error}); {continuation}.")
        if outcome.losses:
            least = min(loss.seeds for loss in outcome.losses)
            most = max(loss.seeds for loss in outcome.losses)
            seeds = str(least) if least == most else f"{least} to {most}"
            count = len(outcome.losses)
            noun = "line was" if count == 1 else "lines were"
            seed_noun = "seed" if most == 1 else "seeds"
            words.append(f"{count} worse {noun} dropped after {seeds} {seed_noun}.")
        words.append(self._cost())
        return words

    def _cost(self) -> str:
        text = f"This took {counted(self.runs, 'run')} and {show_seconds(self.real_s)} of computing"
        if self.plan > self.runs:
            text += (
                f"; {counted(self.outcome.seeds, 'seed')} for every line would be {self.plan} runs"
            )
        return f"{text}."


def decide_line(
    rule: IndexedSure,
    measure: Measure,
    names: dict[int, str],
    lines: Sequence[ComparedLine],
    values: Mapping[int, Mapping[int, float]],
) -> LineDecision:
    """Decide which of several lines is the best by a measure, from the seeds that have been run.

    A line is a variant of a study. Its runs count in the order of their seeds, up to the first
    unfinished one.

    Args:
        rule: rule of the study by which seeds are added.
        measure: measure, such as a cost, by which lines are compared.
        names: names of the compared lines, by index in ``lines``.
        lines: all lines of the comparison (variants of a study, or single runs).
        values: dict from index of a line to the values of the measure by seed. Runs without a value
            have no entry.
    """
    tolerance = rule.within
    if tolerance is None:
        tolerance = _USUAL_TOLERANCE if measure.is_cost else _USUAL_STEP
    comparable_tolerance = math.log1p(tolerance) if measure.is_cost else tolerance
    costs = _comparable_costs(measure, {index: lines[index] for index in names}, values)
    most_seeds = max(map(len, costs.values()), default=0)
    # lines may have runs in common, which count once
    runs = dict.fromkeys(chain.from_iterable(lines[line_index].runs for line_index in names))
    return LineDecision(
        decide(costs, within=comparable_tolerance, error=rule.error),
        rule=rule,
        measure=measure,
        tolerance=tolerance,
        names=names,
        runs=len(runs),
        real_s=math.fsum(run.summary.get("wall_s", 0.0) for run in runs),
        plan=most_seeds * len(names),
    )


def _comparable_costs(
    measure: Measure,
    lines: Mapping[int, ComparedLine],
    values: Mapping[int, Mapping[int, float]],
) -> dict[int, list[float | None]]:
    """Return the values of each line as numbers where less is better, in the order of its seeds.

    Args:
        measure: the measure.
        lines: the compared lines, by index.
        values: values of the measure by index of the line and seed.

    Returns:
        Dict from index of a line to its numbers; None for a run without a value. The dict is empty
        if a cost is 0, because costs are compared by their ratios.
    """
    all_values = chain.from_iterable(by_seed.values() for by_seed in values.values())
    if measure.is_cost and min(all_values, default=1.0) <= 0:
        return {}
    costs: dict[int, list[float | None]] = {}
    for line_index, line in lines.items():
        values_by_seed = values[line_index]
        costs[line_index] = []
        for seed in line.seeds_in_order:
            value = values_by_seed.get(seed)
            costs[line_index].append(None if value is None else _comparable(value, measure))
    return costs


def _comparable(value: float, measure: Measure) -> float:
    """Convert a measured value to a number for comparison by differences, where less is better.

    Costs become logarithms, so that their differences stand for ratios. Values of which more is
    better change their sign.
    """
    if measure.is_cost:
        return math.log(max(value, sys.float_info.min))
    return -value if measure.best == "most" else value
