"""The answer of a comparison: which cell serves the goal best, by how much, how surely, and how many seeds would tell more.

A cell is a variant at a point of the grid. All cells of a study whose worlds are the same stand in one ranking: scenarios
that differ in strategy, training, model, messages or end alone. Two cells are compared seed by seed, by the ratios of costs:
the geometric mean, with Student's t interval of the logarithms. Reference lines are not ranked.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.lab.compare.lines import ComparedLine, Lines, short_key, shown
from fedsim.lab.compare.measures import BEST, FINAL, Measure, Values, cost_of, goal_of
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, pairs_to_tell, ratio_of
from fedsim.language.units import show_bytes, show_joules, show_seconds
from fedsim.output.harmless import clean
from fedsim.records.targets import Target

Aim = float | Target
TARGETED = ("time", "bytes", "energy", "money")
_STEP = 0.05  # of targets that nobody has named
_MOST_NAMES = 6
ANY = "any"  # the value of a key that changes nothing in a cell
VARIANT, PLACES = "variant", ("size", "part")
_CHOSEN = ("name", "seed", "strategy", "training", "model", "messages", "stop", "checkpoint", "meters")
"""Sections of a scenario that are no part of its world."""
_TELLS: Mapping[str, tuple[str, str, str, Callable[[float], str]]] = {
    "s": ("takes", "time", "as long", show_seconds),
    "bytes": ("moves", "bytes", "as much", show_bytes),
    "J": ("draws", "energy", "as much", show_joules),
    "g": ("emits", "CO2", "as much", "{:,.3g} g".format),
    "": ("costs", "money", "as much", "{:,.4g}".format),
    "rounds": ("takes", "rounds", "as many", "{:,.3g}".format),
    "%": ("drains", "of each battery", "as much", "{:.3g} %".format),
    "devices": ("empties", "batteries", "as many", "{:,.3g}".format),
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
        baseline: the place of the best one's baseline among all lines, if there is one.
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
    def is_sure(self) -> bool:
        """Whether the best is told apart from the next; a single run is compared with others as it is."""
        whole = self.whole
        return len(whole) > 1 and (whole[0].of == 1 or self.is_apart(whole[1], whole[0]))

    @property
    def sentences(self) -> list[str]:
        """The best, by how much, and how surely; none where no two lines can be ranked."""
        whole = self.whole
        if not whole or len([one for one in self.entries if not one.reference]) < 2:
            return []
        first, *rest = whole
        if not rest:
            return [f"{clean(first.name)} alone got there: {self.show(first.mean.mean)}."]
        words = [f"{clean(first.name)} {self._best(first)}."]
        words.append(f"{clean(rest[0].name)}, the next, {self._beside(rest[0], first)}.")
        base = next((one for one in rest[1:] if one.place == self.baseline), None)
        if base is not None:
            words.append(f"{clean(base.name)}, the baseline, {self._beside(base, first)}.")
        if alike := self.alike:
            needed = [self._seeds_more(one, first) for one in alike]
            known = [more for more in needed if more is not None]
            upto = f" to {max(known)}" if len(known) == len(needed) and max(known) > min(known) else ""
            more = f" Some {min(known)}{upto} seeds more would, if they differ as these do." if known else ""
            words.append(f"These {first.of} seeds do not tell it apart from {_some([one.name for one in alike])}.{more}")
        return words

    @property
    def alike(self) -> list[RankedLine]:
        """The lines that the seeds do not tell apart from the best."""
        first, *rest = self.whole
        paired = [one for one in rest if (found := self.against(one, first)) is not None and found.pairs > 1]
        return [one for one in paired if not self.is_apart(one, first)]

    @property
    def in_short(self) -> str:
        """The best alone, and how many are not told apart from it; empty where no two lines can be ranked."""
        if len(self.whole) < 2:
            return ""
        most, first, alike = "Most" if self.measure.more_is_better else "Least", self.whole[0], len(self.alike)
        doubt = f", not told apart from {alike} other{'s' if alike > 1 else ''}" if alike else ""
        return f"{most} {self.measure.name}: {clean(first.name)}, {self.show(first.mean.mean)}{doubt}."

    def _seeds_more(self, other: RankedLine, first: RankedLine) -> int | None:
        found = self.against(other, first)
        if found is None or found.pairs < 2:
            return None
        mean, high = (math.log(found.mean), math.log(found.high)) if self.measure.is_cost else (found.mean, found.high)
        pairs = pairs_to_tell(mean, high - mean, found.pairs)
        return None if pairs is None else pairs - found.pairs

    def show(self, value: float) -> str:
        """A figure for people, with its unit."""
        return show_figure(self.measure, value)

    def _best(self, first: RankedLine) -> str:
        if not self.measure.is_cost:
            _, final, what = self.measure.name.rpartition("final ")
            most = "lowest" if self.measure.less_is_better else "highest"
            return f"{'ends with' if final else 'reaches'} the {most} {what if final else 'accuracy'}, {first.mean.mean:.3f}"
        verb, what, *_ = _tells(self.measure)
        return f"{verb} the least {what}, {self.show(first.mean.mean)}"

    def _beside(self, other: RankedLine, first: RankedLine) -> str:
        found = self.against(other, first)
        if found is None:
            return f"needs {self.show(other.mean.mean)}" if self.measure.is_cost else "cannot be compared"
        if found.mean == self._same and (found.pairs < 2 or found.low == found.high):
            return "does exactly as well"
        if self.measure.is_cost:
            verb, _, as_much, _ = _tells(self.measure)
            factor = f"{found.mean:.3g}"
            said = f"{verb} {factor} times {as_much}" if factor != "1" else f"{verb} {as_much}, to three figures"
            within = f"{found.low:.3g} to {found.high:.3g}"
        else:
            said = f"ends {abs(found.mean):.3f} {'lower' if found.mean <= 0 else 'higher'}"
            low, high = (found.low, found.high) if found.mean > 0 else (-found.high, -found.low)
            within = f"{low:.3f} to {high:.3f}"
        if found.pairs < 2:
            return f"{said}, in the one world that both were run in" if not self.are_runs else said
        sign = 1 if self.measure.best == "least" else -1
        beaten = sum(sign * other.values[seed] > sign * value for seed, value in first.values.items())
        return f"{said} (95 % interval {within}; worse in {beaten} of {found.pairs} worlds)"


def show_figure(measure: Measure, value: float) -> str:
    """A figure of a measure for people, with its unit."""
    return _tells(measure)[-1](value) if measure.is_cost else f"{value:.3f}"


def _tells(measure: Measure) -> tuple[str, str, str, Callable[[float], str]]:
    return _TELLS["rounds" if measure.name.startswith("rounds") else measure.unit]


@dataclass(frozen=True)
class Answer:
    """The answer for one world.

    Attributes:
        world: the point of the grid, or the study, in words; empty if there is only one.
        target: the accuracy, or a metric's value, that costs are compared at; None where no line was evaluated, or reached any.
        rankings: by the goal, then by time, bytes, joules and money to the target, as far as they are known, and by accuracy.
        cells: the variant and the keys of each, by place.
        bill: the costs of the best by the goal, the goal itself first, and their means over its runs.
        missed: the lines that did not reach the target in all their runs: name, runs that did, runs.
    """

    world: str
    target: Aim | None
    rankings: tuple[Ranking, ...]
    missed: tuple[tuple[str, int, int], ...]
    cells: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    bill: tuple[tuple[Measure, float], ...] = ()

    @property
    def words(self) -> list[str]:
        """The goal's sentences, the other costs of the best by it, the best by each other figure, and who missed the target."""
        said = [f"{self.where}{self.to(one)}{' '.join(one.sentences)}" for one in self.rankings[:1] if one.sentences]
        others = [one.in_short for one in self.rankings[1:] if one.in_short]
        bill = [_bill_in_words(one, value) for one, value in self.bill[1:]]
        there = [f"There it {', '.join(bill)}."] if bill and said else []
        return [*said, *there, *others, *([self.where + self.missing] if self.missed else [])]

    @property
    def where(self) -> str:
        """The beginning of its sentences: the world, if there are several."""
        return f"{self.world}: " if self.world else ""

    def to(self, ranking: Ranking) -> str:
        """The beginning of a ranking's sentences: the target, if its figure is a cost to reach it."""
        if self.target is None or not ranking.measure.name.endswith(f"to target {self.target:g}"):
            return ""
        return f"To a {self.target:g} " if isinstance(self.target, Target) else f"To an accuracy of {self.target:g} "

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


def answers(lines: Lines, figures: Sequence[Sequence[Values]], targets: Sequence[Aim]) -> Iterator[Answer]:
    """The answers of a comparison, world by world.

    Args:
        lines: to compare.
        figures: of each line, those of its runs, with the costs to the ``targets``.
        targets: from the easiest to the hardest; each world is compared at the hardest that any of its lines reaches.
    """
    worlds = _worlds(lines)
    everywhere = [place for places in worlds for place in places]
    studies = {line.study for line in lines.lines}
    for places in worlds:
        line = lines.lines[places[0]]
        same = [key for key, _ in line.point if _values(lines, places, key) == 1 < _values(lines, everywhere, key)]
        point = [f"{key.rpartition('.')[2]} {shown(value)}" for key, value in line.point if key in same]
        name = ", ".join([*([line.study] if len(studies) > 1 and line.study else []), *point])
        target = _target(lines, figures, places, targets)
        wanted = dict.fromkeys(goal_of(goal, target) for goal in (lines.goal, *TARGETED))
        cells = _cells(lines, places)
        measures = [one for one in wanted if one is not None] + [FINAL]
        rankings = [_ranking(lines, figures, _names(cells), one) for one in dict.fromkeys(measures)]
        costs = [one for one in rankings if "to target" in one.measure.name]
        late = [one for one in costs[0].entries if len(one.values) < one.of and not one.reference] if costs else []
        yield Answer(
            "" if len(worlds) == 1 else clean(name),
            target,
            tuple(one for one in rankings if any(entry.values for entry in one.entries)),
            tuple((clean(one.name), len(one.values), one.of) for one in late),
            cells,
            _bill(rankings[0], figures, target),
        )


def _bill(goal: Ranking, figures: Sequence[Sequence[Values]], target: Aim | None) -> tuple[tuple[Measure, float], ...]:
    """The costs of the best by the goal, as far as all its runs have them."""
    found: dict[Measure, float] = {}
    for measure in (goal.measure, *(goal_of(name, target) for name in (*TARGETED, "battery", "flat"))):
        if measure is not None and goal.whole:
            values = [own.get(measure.name) for own in figures[goal.whole[0].place]]
            known = [value for value in values if value is not None]
            if known and len(known) == len(values):
                found[measure] = math.fsum(known) / len(known)
    return tuple(found.items())


def _bill_in_words(measure: Measure, mean: float) -> str:
    verb, what, _, show = _tells(measure)
    return f"{verb} {show(mean)}" + (f" {what}" if measure.unit in ("%", "devices") else "")


def _worlds(lines: Lines) -> list[list[int]]:
    """The places of the lines that have runs, those of the same world together."""
    points: dict[tuple[Any, ...], list[int]] = {}
    for place, line in enumerate(lines.lines):
        if line.runs:
            points.setdefault(() if lines.are_runs else (line.study, line.point), []).append(place)
    if len(points) == 1:
        return [*points.values()]
    worlds: dict[tuple[Any, ...], list[int]] = {}
    for key, places in points.items():
        own = [lines.lines[place] for place in places]
        kept = [line for line in own if not line.reference] or own
        worlds.setdefault((key[0], frozenset(map(_world_of, kept))), []).extend(places)
    return [sorted(places) for places in worlds.values()]


def _world_of(line: ComparedLine) -> str:
    scenario = line.runs[0].scenario
    return json.dumps({key: value for key, value in scenario.items() if key not in _CHOSEN}, sort_keys=True, default=str)


def _values(lines: Lines, places: Sequence[int], key: str) -> int:
    """The number of values of a key of the grid in some lines; one that lacks the key counts as another."""
    return len({shown(dict(lines.lines[place].point).get(key)) for place in places})


def _cells(lines: Lines, places: Sequence[int]) -> dict[int, dict[str, str]]:
    """The variant of each cell of a world, and its values of the keys that vary there, by place.

    Cells of the same runs are one: its values of the keys by which they differ are ``ANY``.
    """
    by_runs: dict[tuple[Any, ...], list[int]] = {}
    for place in places:
        by_runs.setdefault(tuple(run.path for run in lines.lines[place].runs), []).append(place)
    keys = dict.fromkeys(key for place in places for key, _ in lines.lines[place].point if _values(lines, places, key) > 1)
    cells = {}
    for own in by_runs.values():
        line, point = lines.lines[own[0]], dict(lines.lines[own[0]].point)
        said = {key: shown(point[key]) if key in point and _values(lines, own, key) == 1 else ANY for key in keys}
        cells[own[0]] = {VARIANT: line.name} | {short_key(key, keys): value for key, value in said.items()}
    return cells


def cell_names(lines: Lines) -> list[str]:
    """A name for each line: its variant, and the keys by which it differs from others of that name."""
    names = _names(_cells(lines, [place for place, line in enumerate(lines.lines) if line.runs]))
    return [names.get(place, line.name) for place, line in enumerate(lines.lines)]


def _names(cells: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """A name for each cell; the size and the part are in it only where there would be two of a name without."""

    def named(cell: Mapping[str, str], *but: str) -> str:
        point = ", ".join(f"{key}={value}" for key, value in cell.items() if value != ANY and key not in (VARIANT, *but))
        return f"{cell[VARIANT]} ({point})" if point else cell[VARIANT]

    short = {place: named(cell, *PLACES) for place, cell in cells.items()}
    count = Counter(short.values())
    return {place: name if count[name] == 1 else named(cells[place]) for place, name in short.items()}


def _ranking(lines: Lines, figures: Sequence[Sequence[Values]], names: Mapping[int, str], measure: Measure) -> Ranking:
    entries = []
    for place, name in names.items():
        line, values = lines.lines[place], lines.by_seed(place, figures[place], measure.name)
        entries.append(RankedLine(place, name, line.reference, values, len(line.runs)))

    def rank(one: RankedLine) -> tuple[float, float]:
        missing = 1 - len(one.values) / one.of
        return missing, (1 if measure.best == "least" else -1) * one.mean.mean if one.values else math.inf

    entries.sort(key=rank)
    best = next((one.place for one in entries if not one.reference), None)
    base = None if lines.is_first or best is None else lines.baselines[best]
    return Ranking(measure, tuple(entries), base, lines.are_runs)


def _target(lines: Lines, figures: Sequence[Sequence[Values]], places: Sequence[int], targets: Sequence[Aim]) -> Aim | None:
    """The hardest target that a line of a world reaches in all its runs, or else in any."""
    ranked = [place for place in places if not lines.lines[place].reference]
    for sure in (all, any):
        for target in reversed(targets):
            if any(sure(_reaches(one, target) for one in figures[place]) for place in ranked):
                return target
    return None


def _reaches(values: Values, target: Aim) -> bool:
    if isinstance(target, Target):
        return values[cost_of("rounds", target).name] is not None
    return (values[BEST.name] or 0.0) >= target


def usual_target(lines: Lines, figures: Sequence[Sequence[Values]]) -> float | None:
    """The highest multiple of 0.05 that half of the lines reach in all their runs, where nobody has named a target."""
    own = [figures[place] for place, line in enumerate(lines.lines) if line.runs and not line.reference]
    lows = sorted(min(one[BEST.name] or 0.0 for one in values) for values in own)
    most = math.floor(lows[len(lows) // 2] / _STEP + 1e-9) if lows else 0
    return round(most * _STEP, 2) if most else None


def _some(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    shown_names = ", ".join(map(clean, names[:most]))
    return shown_names if len(names) <= most else f"{shown_names} and {len(names) - most} more"
