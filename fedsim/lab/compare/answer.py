"""The answer of a comparison: which line reaches a target with the least time, bytes and joules, by how much, and how surely.

Lines are ranked world by world: within one study and at one point of its grid. Two lines are compared seed by seed, by the
ratios of their costs: the geometric mean, with Student's t interval of the logarithms. Reference lines are not ranked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.lab.compare.lines import Lines, shown
from fedsim.lab.compare.measures import BEST, FINAL, Measure, Values, cost_of
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, ratio_of
from fedsim.language.units import show_bytes, show_joules, show_seconds
from fedsim.output.harmless import clean
from fedsim.records.targets import Target

TARGETED = ("time", "traffic", "energy")
_STEP = 0.05  # of targets that nobody has named
_MOST_NAMES = 6
_TELLS: Mapping[str, tuple[str, str, str, Callable[[float], str]]] = {
    "s": ("takes", "time", "as long", show_seconds),
    "bytes": ("moves", "bytes", "as much", show_bytes),
    "J": ("draws", "energy", "as much", show_joules),
}


@dataclass(frozen=True)
class RankedLine:
    """A line in a ranking: its place among all, the figures of the runs that have it by seed, and ``of`` how many runs."""

    place: int
    name: str
    reference: bool
    values: Mapping[int, float]
    of: int

    @property
    def mean(self) -> Estimate:
        """The mean over its seeds, with its interval."""
        return mean_of(list(self.values.values()))


@dataclass(frozen=True)
class Ranking:
    """Lines of one world by one figure.

    Attributes:
        entries: the lines that have it in all their runs, the best first; then the others, those that have it in most first.
        baseline: the baseline's place among all lines, if there is one.
        are_runs: whether each line is a single run, whatever its seed.
    """

    measure: Measure
    entries: tuple[RankedLine, ...]
    baseline: int | None
    are_runs: bool

    @property
    def whole(self) -> list[RankedLine]:
        """The lines that are ranked: they have the figure in all their runs, and are no references."""
        return [one for one in self.entries if len(one.values) == one.of and not one.reference]

    def against(self, other: RankedLine, first: RankedLine) -> Estimate | None:
        """``other`` compared with ``first``: ratios of costs, else differences. None where they cannot be paired."""
        seeds = [seed for seed in other.values if seed in first.values]
        if not seeds or len(seeds) < max(other.of, first.of):
            return None
        above, below = ([one.values[seed] for seed in seeds] for one in (other, first))
        return ratio_of(above, below) if self.measure.is_cost else paired_difference(above, below)

    @property
    def _same(self) -> float:
        return 1.0 if self.measure.is_cost else 0.0

    def is_apart(self, other: RankedLine, first: RankedLine) -> bool:
        """Whether the interval of their comparison excludes that they are the same."""
        found = self.against(other, first)
        return found is not None and found.pairs > 1 and not found.low <= self._same <= found.high

    @property
    def sentences(self) -> list[str]:
        """The best, by how much, and how surely; none where no line is ranked."""
        whole = self.whole
        if not whole:
            return []
        first, *rest = whole
        words = [f"{clean(first.name)} {self._best(first)}."]
        if rest:
            words.append(f"{clean(rest[0].name)}, the next, {self._beside(rest[0], first)}.")
        base = next((one for one in rest[1:] if one.place == self.baseline), None)
        if base is not None:
            words.append(f"{clean(base.name)}, the baseline, {self._beside(base, first)}.")
        alike = [one.name for one in rest[1:] if first.of > 1 and one is not base and not self.is_apart(one, first)]
        if alike:
            words.append(f"Not told apart from {clean(first.name)} by these seeds either: {_some(alike)}.")
        return words

    def _best(self, first: RankedLine) -> str:
        if not self.measure.is_cost:
            most = "highest" if self.measure.more_is_better else "lowest"
            return f"ends with the {most} {self.measure.name.removeprefix('final ')}, {first.mean.mean:.3f}"
        verb, what, _, show = _TELLS[self.measure.unit]
        return f"{verb} the least {what}, {show(first.mean.mean)}"

    def _beside(self, other: RankedLine, first: RankedLine) -> str:
        found = self.against(other, first)
        if found is None:
            return f"needs {_TELLS[self.measure.unit][-1](other.mean.mean)}" if self.measure.is_cost else "cannot be compared"
        if found.mean == self._same and (found.pairs < 2 or found.low == found.high):
            return "does exactly as well"
        if self.measure.is_cost:
            verb, _, as_much, _ = _TELLS[self.measure.unit]
            factor = f"{found.mean:.3g}"
            said = f"{verb} {factor} times {as_much}" if factor != "1" else f"{verb} {as_much}, to three figures"
            within = f"{found.low:.3g} to {found.high:.3g}"
        else:
            said = f"ends {abs(found.mean):.3f} {'lower' if found.mean <= 0 else 'higher'}"
            within = f"{-found.high:.3f} to {-found.low:.3f}"
        if found.pairs < 2:
            return f"{said}, in the one world that both were run in" if not self.are_runs else said
        sign = -1 if self.measure.more_is_better else 1
        beaten = sum(sign * other.values[seed] > sign * value for seed, value in first.values.items())
        doubt = "" if self.is_apart(other, first) else ", so these seeds do not tell the two apart"
        return f"{said} (95 % interval {within}; worse in {beaten} of {found.pairs} worlds{doubt})"


@dataclass(frozen=True)
class Answer:
    """The answer for one world.

    Attributes:
        world: the point of the grid, or the study, in words; empty if there is only one.
        target: the value that costs are compared at; None where no line was evaluated, or reached any.
        rankings: by time, bytes and joules to the target, as far as they are known, by final accuracy, and final metrics.
        missed: the lines that did not reach the target in all their runs: name, runs that did, runs.
    """

    world: str
    target: Target | None
    rankings: tuple[Ranking, ...]
    missed: tuple[tuple[str, int, int], ...]

    @property
    def words(self) -> list[str]:
        """Sentences, one paragraph per figure, and the lines that missed the target."""
        where = f"{self.world}: " if self.world else ""
        said = [
            f"{where}{self.goal if one.measure.is_cost else ''}{' '.join(one.sentences)}"
            for one in self.rankings
            if one.sentences
        ]
        return [*said, *([where + self.missing] if self.missed else [])]

    @property
    def goal(self) -> str:
        """The target, as a sentence about costs begins."""
        if self.target is None:
            return ""
        return f"To {'an accuracy of ' if self.target.metric == 'accuracy' else ''}{self.target:g} "

    @property
    def missing(self) -> str:
        """The lines that did not reach the target, or not in every world."""
        names = [f"{name} ({reached} of {of})" if of > 1 else name for name, reached, of in self.missed]
        everywhere = " in every world" if any(of > 1 for *_, of in self.missed) else ""
        return f"Not there{everywhere}: {_some(names, 12)}."

    @property
    def order(self) -> list[int]:
        """The places of its lines, the best first: by the first ranking, then by the last."""
        places = [one.place for ranking in (self.rankings[:1] + self.rankings[-1:]) for one in ranking.entries if one.values]
        return list(dict.fromkeys(places))


def answers(
    lines: Lines, figures: Sequence[Sequence[Values]], targets: Sequence[float | Target], finals: Sequence[Measure] = ()
) -> Iterator[Answer]:
    """The answers of a comparison, world by world.

    Args:
        lines: to compare.
        figures: of each line, those of its runs, with the costs to the ``targets``.
        targets: each world is compared at the highest accuracy that any of its lines reaches; targets of metrics go first.
        finals: of metrics, by which lines are ranked too.
    """
    goals = [Target.read(target) for target in targets]
    worlds: dict[tuple[Any, ...], list[int]] = {}
    for place, line in enumerate(lines.lines):
        if line.runs:
            worlds.setdefault(() if lines.are_runs else (line.study, line.point), []).append(place)
    studies = {line.study for line in lines.lines}
    for places in worlds.values():
        line = lines.lines[places[0]]
        point = [f"{key.rpartition('.')[2]} {shown(value)}" for key, value in line.point]
        name = ", ".join([*([line.study] if len(studies) > 1 and line.study else []), *point])
        target = _target(lines, figures, places, goals)
        costs = [] if target is None else [cost_of(what, target) for what in TARGETED]
        rankings = [_ranking(lines, figures, places, one) for one in (*costs, FINAL, *finals)]
        late = [one for one in rankings[0].entries if len(one.values) < one.of and not one.reference] if costs else []
        yield Answer(
            "" if len(worlds) == 1 else clean(name),
            target,
            tuple(one for one in rankings if any(entry.values for entry in one.entries)),
            tuple((clean(one.name), len(one.values), one.of) for one in late),
        )


def _ranking(lines: Lines, figures: Sequence[Sequence[Values]], places: Sequence[int], measure: Measure) -> Ranking:
    entries = []
    for place in places:
        line, values = lines.lines[place], lines.by_seed(place, figures[place], measure.name)
        entries.append(RankedLine(place, line.name, line.reference, values, len(line.runs)))

    def rank(one: RankedLine) -> tuple[float, float]:
        missing = 1 - len(one.values) / one.of
        return missing, (-1 if measure.more_is_better else 1) * one.mean.mean if one.values else math.inf

    bases = set() if lines.is_first else {lines.baselines[place] for place in places} - {None}
    return Ranking(measure, tuple(sorted(entries, key=rank)), bases.pop() if len(bases) == 1 else None, lines.are_runs)


def _target(
    lines: Lines, figures: Sequence[Sequence[Values]], places: Sequence[int], targets: Sequence[Target]
) -> Target | None:
    """The first target of a metric that a run of a world reaches, or the highest accuracy that a line reaches in all its runs,
    or else in any."""
    for target in (target for target in targets if target.metric != "accuracy"):
        if any(values[cost_of("rounds", target).name] is not None for place in places for values in figures[place]):
            return target
    ranked = [place for place in places if not lines.lines[place].reference]
    best = [[one[BEST.name] for one in figures[place]] for place in ranked]
    for sure in (min, max):
        most = max((sure(-1.0 if value is None else value for value in own) for own in best), default=-1.0)
        if reached := [target for target in targets if target.metric == "accuracy" and target.value <= most]:
            return max(reached)
    return None


def usual_target(lines: Lines, figures: Sequence[Sequence[Values]]) -> float | None:
    """The highest multiple of 0.05 that half of the lines reach in all their runs, where nobody has named a target."""
    own = [figures[place] for place, line in enumerate(lines.lines) if line.runs and not line.reference]
    lows = sorted(min(one[BEST.name] or 0.0 for one in values) for values in own)
    most = math.floor(lows[len(lows) // 2] / _STEP + 1e-9) if lows else 0
    return round(most * _STEP, 2) if most else None


def _some(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    shown_names = ", ".join(map(clean, names[:most]))
    return shown_names if len(names) <= most else f"{shown_names} and {len(names) - most} more"
