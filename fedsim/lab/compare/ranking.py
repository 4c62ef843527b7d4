"""Rankings of lines (variants or runs) by a measure, with the certainty of the best line's lead."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedsim.common.harmless import clean
from fedsim.common.units import show_ratio
from fedsim.lab.compare.line_decision import LineDecision
from fedsim.lab.compare.lines import some_names
from fedsim.lab.compare.measures import Measure
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, pairs_to_tell, ratio_of

_MOST_DIGITS = 7  # the ends of a ratio's interval have fewer digits


@dataclass(frozen=True)
class RankedLine:
    """Line of a ranking: a variant or a run, with one value of the ranked measure per seed.

    Attributes:
        line_index: index of the line in the comparison.
        name: name of the line, made of its variant and grid values.
        reference: whether the line is a reference, such as centralised training, which is shown but
            not ranked.
        values: dict from seed to value of the measure; runs without a value are left out.
        seeds: seeds of all runs, with and without a value.
    """

    line_index: int
    name: str
    reference: bool
    values: Mapping[int, float]
    seeds: frozenset[int]

    @property
    def run_count(self) -> int:
        """Count of all runs of this variant, with or without a value of the ranked measure."""
        return len(self.seeds)

    @property
    def mean(self) -> Estimate:
        return mean_of(list(self.values.values()))

    @property
    def is_complete(self) -> bool:
        """Whether all runs of this variant have a value of the ranked measure.

        For example, a run that missed the target has no time to the target.
        """
        return len(self.values) == self.run_count


@dataclass(frozen=True)
class Ranking:
    """Variants or runs (called lines), ranked by a measure such as the time to a target.

    Attributes:
        measure: the measure.
        entries: first the lines with a value in all their runs, the best first, then lines with
            a value in fewer runs.
        baseline: index in the comparison of the line with which the best line is compared (its
            baseline); None if it has none.
        decision: decision on the best line of a study that added seeds until it was sure of the
            best line by this measure (``--until-sure``). The order of the lines then follows the
            decision. None for all other studies and measures.
        is_even: whether the study has the same seeds for all lines. Otherwise two lines are
            compared on the seeds that they share.
    """

    measure: Measure
    entries: tuple[RankedLine, ...]
    baseline: int | None
    decision: LineDecision | None = None
    is_even: bool = True

    @property
    def has_values(self) -> bool:
        """Whether at least one run of the compared variants has a value of the measure."""
        return any(line.values for line in self.entries)

    @property
    def ranked(self) -> list[RankedLine]:
        """Variants or runs (lines) that have a rank, the best first.

        They have a value of the measure in all their runs, and are not mere references.
        """
        return [line for line in self.entries if line.is_complete and not line.reference]

    def against(self, line: RankedLine, first: RankedLine) -> Estimate | None:
        """Return the ratio or difference of two variants in the ranked measure, with its interval.

        The variants, which are lines of this ranking, are compared seed by seed.

        Args:
            line: a line of this ranking.
            first: the line to compare it with.

        Returns:
            The ratio ``line / first`` if the measure is a cost, otherwise the difference ``line -
            first``. None if the lines do not have values for the same seeds.
        """
        seeds = [seed for seed in line.values if seed in first.values]
        # lines are comparable only if no run that should have a value lacks it
        needed = len(line.seeds & first.seeds)
        if self.is_even:
            needed = max(line.run_count, first.run_count)
        if not seeds or len(seeds) < needed:
            return None
        above = [line.values[seed] for seed in seeds]
        below = [first.values[seed] for seed in seeds]
        return ratio_of(above, below) if self.measure.is_cost else paired_difference(above, below)

    @property
    def ties(self) -> list[RankedLine]:
        """Variants or runs (lines) that cannot be distinguished from the best one.

        For a cost, the 95 % interval of the ratio to the best line includes 1; for an accuracy, the
        interval of the difference includes 0. If seeds were added until a decision
        (``--until-sure``), these are the other lines that may still be the best.
        """
        first, *rest = self.ranked
        if self.decision is not None:
            return [line for line in rest if line.line_index in self.decision.outcome.contenders]
        tied = []
        for line in rest:
            estimate = self.against(line, first)
            if estimate is not None and _includes(estimate, self._no_difference):
                tied.append(line)
        return tied

    @property
    def unpaired(self) -> list[RankedLine]:
        """Lines (variants) that cannot be compared with the best one, because their seeds differ.

        In a study with unfinished or failed runs, lines may have different seeds.
        """
        first, *rest = self.ranked
        if not self.is_even:
            return [line for line in rest if not line.seeds & first.seeds]
        return [line for line in rest if line.seeds != first.seeds]

    def _other_seeds_text(self, first: RankedLine) -> str:
        names = some_names([line.name for line in self.unpaired])
        verb = "has" if len(self.unpaired) == 1 else "have"
        return f"{names} {verb} runs of other seeds than {clean(first.name)}"

    @property
    def is_sure(self) -> bool:
        """Whether the best line (variant or run) is significantly better than the second one.

        A lead is significant if the confidence interval excludes equality: a ratio of 1 for a cost,
        a difference of 0 for other figures. With a single run per line there is no interval, and
        any lead counts. If the study adds seeds until a decision, the best line is sure once the
        decision is made (``best`` or ``tie``).
        """
        ranked = self.ranked
        if len(ranked) < 2:
            return False
        first, second = ranked[:2]
        if self.decision is not None:
            return self.decision.status in ("best", "tie")
        if first.run_count == 1:
            return second not in self.ties
        return self.against(second, first) is not None and second not in self.ties

    @property
    def sentences(self) -> list[str]:
        """Sentences for people on the result of the ranking.

        They name the best line (variant or run), the next line, and the baseline. The last
        sentences state how certain the result is, such as which lines cannot be distinguished from
        the best line. If such lines exist, the first sentence names no best line, unless the study
        has decided on one (``--until-sure``). The list is empty if fewer than two lines compete.
        """
        ranked = self.ranked
        # a line without a rank, as it misses a value in a run, competes too
        contenders = [line for line in self.entries if not line.reference]
        if not ranked or len(contenders) < 2:
            return []
        first, *rest = ranked
        sentences = self._first_sentences(first)
        if rest:
            sentences.append(
                f"{clean(rest[0].name)}, the next, {self._compare_in_words(rest[0], first)}."
            )
        else:
            seeds = " for all its seeds" if first.run_count > 1 else ""
            sentences.append(f"No other line has this figure{seeds}.")
        for line in rest[1:]:
            if line.line_index == self.baseline:
                sentences.append(
                    f"{clean(line.name)}, the baseline, {self._compare_in_words(line, first)}."
                )
        if self.decision is not None:
            sentences += self.decision.sentences
        elif self.ties and first.run_count > 1:
            sentences.append(self._uncertainty_sentence(first))
        return sentences

    def _first_sentences(self, first: RankedLine) -> list[str]:
        """Return one or two sentences on the best variant, or on the reason why none is named.

        Args:
            first: the line with the best mean.
        """
        name = clean(first.name)
        figure = self.show(first.mean.mean)
        predicate = self._lead_predicate  # such as "takes the least time"
        decision = self.decision
        if decision is not None and decision.status == "tie":
            # such as "A takes the least time, or at most 5 % more: 10 s (...)."
            tolerance = decision.tolerance_in_words
            return [f"{name} {predicate}, or at most {tolerance}: {figure} ({decision.error})."]
        if decision is not None and decision.status == "best":
            return [f"{name} {predicate}, {figure} ({decision.error})."]
        if self.ties and first.run_count == 1:
            # single runs tie only if their values are equal: no doubt, and no mean to add
            return [f"no line {predicate} alone: {self._tie_text}."]
        mean_sentence = f"{name} has the {self._extreme_adjective} mean, {figure}."
        if self.ties:
            return [f"no line surely {predicate}: {self._tie_text}.", mean_sentence]
        if self.unpaired:
            return [f"no line surely {predicate}: {self._other_seeds_text(first)}.", mean_sentence]
        return [f"{name} {predicate}, {figure}."]

    @property
    def _no_difference(self) -> float:
        """Comparison of equal means: the ratio 1 for costs, the difference 0 for other measures."""
        return 1.0 if self.measure.is_cost else 0.0

    @property
    def _extreme_adjective(self) -> str:
        """Adjective for the best value: ``least`` for a cost, else ``lowest`` or ``highest``."""
        if self.measure.is_cost:
            return "least"
        return "lowest" if self.measure.best == "least" else "highest"

    @property
    def _lead_predicate(self) -> str:
        """Verb and object of a sentence on the best variant, such as ``takes the least time``."""
        measure = self.measure
        if measure.is_cost:
            return f"{measure.words.verb} the least {measure.words.noun}"
        if measure.test == "final":
            return f"ends with the {self._extreme_adjective} {measure.quantity}"
        return f"reaches the {self._extreme_adjective} {measure.name}"

    @property
    def _tie_text(self) -> str:
        """Text such as "3 of 5 tie at 10 s to 12 s; A, B are worse".

        It states how many lines are not significantly worse than the best, the range of these
        lines' means, the names of the worse lines, and of the lines that cannot be compared.
        """
        ranked = self.ranked
        tied = [ranked[0], *self.ties]
        count = f"{len(tied)} of {len(ranked)}"
        if len(tied) == len(ranked):
            count = "both" if len(tied) == 2 else f"all {len(tied)}"
        means = sorted(line.mean.mean for line in tied)
        means_text = self.show(means[0])
        highest_text = self.show(means[-1])
        if highest_text != means_text:
            means_text += f" to {highest_text}"
        text = f"{count} tie at {means_text}"
        # a decision has compared all lines, whatever their seeds
        unpaired = [] if self.decision is not None else self.unpaired
        worse_names = [line.name for line in ranked if line not in tied and line not in unpaired]
        if worse_names:
            verb = "is" if len(worse_names) == 1 else "are"
            text += f"; {some_names(worse_names)} {verb} worse"
        if unpaired:
            text += f"; {self._other_seeds_text(ranked[0])}"
        return text

    def _uncertainty_sentence(self, first: RankedLine) -> str:
        """Return a sentence that names the variants that are not significantly worse than the best.

        It states how many more seeds may show a difference, if that can be estimated.

        Args:
            first: the line with the best mean.
        """
        ties = self.ties
        near_names: list[str] = []  # names of lines that more seeds may distinguish from the best
        more_seeds: list[int] = []
        for line in ties:
            count = self._count_more_seeds(line, first)
            if count is not None:
                near_names.append(line.name)
                more_seeds.append(count)
        names = some_names([line.name for line in ties])
        doubt = f"These {first.run_count} seeds cannot distinguish it from {names}."
        if not more_seeds:
            return doubt
        opening = "About"
        if len(near_names) < len(ties):
            opening = f"For {some_names(near_names)}, about"
        least = min(more_seeds)
        most = max(more_seeds)
        number = f"{least} to {most}" if most > least else f"{least}"
        noun = "seed" if most == 1 else "seeds"
        return f"{doubt} {opening} {number} more {noun} would, if they differ as these do."

    def _count_more_seeds(self, line: RankedLine, first: RankedLine) -> int | None:
        """Estimate how many more seeds would show that a variant is worse than the best one.

        Args:
            line: the line of the variant.
            first: the line with the best mean.

        Returns:
            The count; None if the lines share fewer than two seeds, or if too many seeds would be
            needed.
        """
        estimate = self.against(line, first)
        if estimate is None or estimate.pairs < 2:
            return None
        mean = estimate.mean
        high = estimate.high
        if self.measure.is_cost:  # the interval of a ratio is symmetric in its logarithm
            mean = math.log(mean)
            high = math.log(high)
        pairs = pairs_to_tell(mean, high - mean, estimate.pairs)
        return None if pairs is None else pairs - estimate.pairs

    @property
    def in_short(self) -> str:
        """Sentence such as "Least time: A, 10 s." on the best variant, or on the variants that tie.

        Empty if fewer than two lines are ranked.
        """
        if len(self.ranked) < 2:
            return ""
        first = self.ranked[0]
        superlative = (self.measure.best or "").capitalize()
        name_and_figure = f"{clean(first.name)}, {self.show(first.mean.mean)}"
        if self.is_named:
            text = name_and_figure
        elif self.ties:
            text = self._tie_text
        else:
            text = f"mean of {name_and_figure}; {self._other_seeds_text(first)}"
        return f"{superlative} {self.measure.name}: {text}."

    @property
    def is_named(self) -> bool:
        """Whether a sentence names one line (variant or run) as the best.

        True if no other line ties with this line, and all lines can be compared with it. If the
        study added seeds until a decision (``--until-sure``), True if the decision names a best
        line, or if no other line may still be the best.
        """
        if self.decision is not None:
            return not self.ties or self.is_sure
        return not self.ties and not self.unpaired

    def show(self, value: float) -> str:
        return self.measure.show(value)

    def _compare_in_words(self, line: RankedLine, first: RankedLine) -> str:
        """Return how a variant compares with the best one, such as "takes 1.5 times as long".

        The 95 % interval and the count of seeds in which the variant was worse follow in brackets.

        Args:
            line: the line of the variant.
            first: the line with the best mean.
        """
        estimate = self.against(line, first)
        measure = self.measure
        if estimate is None:
            return f"comes to {self.show(line.mean.mean)}"
        is_equal = estimate.mean == self._no_difference
        has_no_interval = estimate.pairs < 2
        if is_equal and (has_no_interval or estimate.low == estimate.high):
            return "does exactly as well"
        if measure.is_cost:
            text = measure.words.compare(estimate.mean)
            low, high = _format_ratio_ends(estimate)
        elif estimate.mean > 0:
            text = f"ends {measure.show(estimate.mean)} higher"
            low, high = measure.show(estimate.low), measure.show(estimate.high)
        else:
            text = f"ends {measure.show(abs(estimate.mean))} lower"
            low, high = measure.show(-estimate.high), measure.show(-estimate.low)
        if is_equal:
            text = "does as well on average"
        if has_no_interval:
            return text
        interval = f"95 % interval {low} to {high}"
        worse_count = self._count_worse_seeds(line, first)
        return f"{text} ({interval}; worse in {worse_count} of {estimate.pairs} seeds)"

    def _count_worse_seeds(self, line: RankedLine, first: RankedLine) -> int:
        sign = 1 if self.measure.best == "least" else -1
        shared_seeds = line.values.keys() & first.values.keys()
        return sum(sign * line.values[seed] > sign * first.values[seed] for seed in shared_seeds)


def _format_ratio_ends(estimate: Estimate) -> tuple[str, str]:
    """Format the two ends of a ratio's interval, with so many digits that they differ from 1."""
    ends = (estimate.low, estimate.high)
    for digits in range(3, _MOST_DIGITS):
        texts = [show_ratio(end, digits) for end in ends]
        is_hidden = any(text == "1" and end != 1 for text, end in zip(texts, ends, strict=True))
        if not is_hidden:
            break
    return texts[0], texts[1]


def _includes(estimate: Estimate, value: float) -> bool:
    """Whether a value lies in an estimate's interval; without one, whether the mean equals it."""
    if estimate.pairs < 2:
        return estimate.mean == value
    return estimate.low <= value <= estimate.high
