"""The answer of a comparison: the best cell for the goal, its lead, the certainty of that lead,
and its costs.

A cell is a variant at a point of the grid. All cells of a study with the same world are ranked
together: scenarios that differ only in strategy, training, model, messages or end. Two cells are
compared seed by seed, by the ratios of costs: the geometric mean, with Student's t interval of the
logarithms. Reference lines are not ranked.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedsim.common.harmless import clean
from fedsim.lab.compare.lines import Lines, short_key, shown
from fedsim.lab.compare.measures import BEST, FINAL, Measure, Values, cost_of, goal_of
from fedsim.lab.compare.paired import Estimate, mean_of, paired_difference, pairs_to_tell, ratio_of
from fedsim.lab.reading.targets import Target

Aim = float | Target
TARGETED = ("time", "bytes", "energy", "money")
_STEP = 0.05  # of targets that neither a study nor the user names
_MOST_NAMES = 12
_USUAL_GOAL = "time"
ANY = "any"  # the value of a key that changes nothing in a cell
VARIANT = "variant"
PLACES = ("size", "part")
_CHOSEN = (
    "name",
    "seed",
    "strategy",
    "training",
    "model",
    "messages",
    "stop",
    "checkpoint",
    "meters",
)
"""Sections of a scenario that are no part of its world."""


@dataclass(frozen=True)
class RankedLine:
    """A line in a ranking: its place among all, the figures of the runs that have it by seed,
    and ``of`` how many runs.
    """

    place: int
    name: str
    reference: bool
    values: Mapping[int, float]
    of: int

    @property
    def mean(self) -> Estimate:
        return mean_of(list(self.values.values()))


@dataclass(frozen=True)
class Ranking:
    """Lines of one world by one figure: those that have it in all their runs, the best first,
    then those that have it in most.

    ``baseline`` is the place of the best one's baseline among all lines, if there is one.
    """

    measure: Measure
    entries: tuple[RankedLine, ...]
    baseline: int | None

    @property
    def whole(self) -> list[RankedLine]:
        """The lines that are ranked: they have the figure in all their runs, and are no
        references.
        """
        return [one for one in self.entries if len(one.values) == one.of and not one.reference]

    def against(self, other: RankedLine, first: RankedLine) -> Estimate | None:
        """``other`` compared with ``first``: ratios of costs, else differences.

        None where they cannot be paired.
        """
        seeds = [seed for seed in other.values if seed in first.values]
        if not seeds or len(seeds) < max(other.of, first.of):
            return None
        above, below = ([one.values[seed] for seed in seeds] for one in (other, first))
        return ratio_of(above, below) if self.measure.is_cost else paired_difference(above, below)

    @property
    def alike(self) -> list[RankedLine]:
        """The lines that the seeds do not tell apart from the best: the interval of their
        comparison includes no difference.
        """
        first, *rest = self.whole
        same = float(self.measure.is_cost)
        found = ((one, self.against(one, first)) for one in rest)
        return [
            one
            for one, by in found
            if by is not None and by.pairs > 1 and by.low <= same <= by.high
        ]

    @property
    def is_sure(self) -> bool:
        """Whether the best differs from the next beyond the interval; single runs are compared
        as they are.
        """
        whole = self.whole
        if len(whole) < 2:
            return False
        return whole[0].of == 1 or (
            self.against(whole[1], whole[0]) is not None and whole[1] not in self.alike
        )

    @property
    def sentences(self) -> list[str]:
        whole = self.whole
        measure = self.measure
        if not whole or len([one for one in self.entries if not one.reference]) < 2:
            return []
        first, *rest = whole
        if measure.is_cost:
            best = (
                f"{measure.words.verb} the least {measure.words.what}, {self.show(first.mean.mean)}"
            )
        else:
            most = "lowest" if measure.best == "least" else "highest"
            what = measure.name.removeprefix("final ")
            best = (
                f"{'reaches' if what == measure.name else 'ends with'} the {most} {what}, "
                f"{first.mean.mean:.3f}"
            )
        words = [f"{clean(first.name)} {best}."]
        words += [f"{clean(one.name)}, the next, {self._beside(one, first)}." for one in rest[:1]]
        base = [one for one in rest[1:] if one.place == self.baseline]
        words += [f"{clean(one.name)}, the baseline, {self._beside(one, first)}." for one in base]
        if alike := self.alike:
            known = sorted(
                count for one in alike if (count := self._seeds_more(one, first)) is not None
            )
            upto = f" to {known[-1]}" if len(known) == len(alike) and known[-1] > known[0] else ""
            more = (
                f" Some {known[0]}{upto} seeds more would, if they differ as these do."
                if known
                else ""
            )
            words.append(
                f"These {first.of} seeds do not tell it apart from "
                f"{some_names([one.name for one in alike])}.{more}"
            )
        return words

    def _seeds_more(self, other: RankedLine, first: RankedLine) -> int | None:
        found = self.against(other, first)
        if found is None or found.pairs < 2:
            return None
        mean, high = (
            (math.log(found.mean), math.log(found.high))
            if self.measure.is_cost
            else (found.mean, found.high)
        )
        pairs = pairs_to_tell(mean, high - mean, found.pairs)
        return None if pairs is None else pairs - found.pairs

    @property
    def in_short(self) -> str:
        """The best alone, and the number of lines like it (``alike``); empty where no two lines
        can be ranked.
        """
        if len(self.whole) < 2:
            return ""
        most = (self.measure.best or "").capitalize()
        first = self.whole[0]
        alike = len(self.alike)
        doubt = f", not told apart from {alike} other{'s' if alike > 1 else ''}" if alike else ""
        return (
            f"{most} {self.measure.name}: {clean(first.name)}, {self.show(first.mean.mean)}{doubt}."
        )

    def show(self, value: float) -> str:
        return self.measure.show(value)

    def _beside(self, other: RankedLine, first: RankedLine) -> str:
        found = self.against(other, first)
        measure = self.measure
        if found is None:
            return f"comes to {self.show(other.mean.mean)}"
        if found.mean == float(measure.is_cost) and (found.pairs < 2 or found.low == found.high):
            return "does exactly as well"
        if measure.is_cost:
            said = f"{measure.words.verb} {found.mean:.3g} times {measure.words.as_much}"
            within = f"{found.low:.3g} to {found.high:.3g}"
        else:
            low, high = (found.low, found.high) if found.mean > 0 else (-found.high, -found.low)
            said = f"ends {abs(found.mean):.3f} {'lower' if found.mean <= 0 else 'higher'}"
            within = f"{low:.3f} to {high:.3f}"
        if found.pairs < 2:
            return said
        sign = 1 if measure.best == "least" else -1
        beaten = sum(
            sign * other.values[seed] > sign * value for seed, value in first.values.items()
        )
        return f"{said} (95 % interval {within}; worse in {beaten} of {found.pairs} worlds)"


@dataclass(frozen=True)
class Answer:
    """The answer for one world, of which ``world`` says the point of the grid, or the study, if
    there are several.
    """

    world: str
    target: Aim | None
    """the accuracy, or a metric's value, that costs are compared at; None where no line was
    evaluated, or reached any.
    """
    rankings: tuple[Ranking, ...]
    """by the goal, then by time, bytes, joules and money to the target, as far as they are
    known, and by accuracy.
    """
    missed: tuple[tuple[str, int, int], ...]
    """the lines that did not reach the target in all their runs: name, runs that did, runs."""
    cells: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """the variant and the keys of each, by place."""
    bill: tuple[tuple[Measure, float], ...] = ()
    """the costs of the best by the goal, the goal itself first, and their means over its runs."""
    unreached: tuple[Aim, ...] = ()
    """targets that no line reached in any of its runs; of a study that names several only if
    none was reached.
    """
    unranked: str = ""
    """the goal, if no run has a figure for it."""

    @property
    def words(self) -> list[str]:
        said = [
            f"{self.where}{self.to(one)}{' '.join(one.sentences)}"
            for one in self.rankings[:1]
            if one.sentences
        ]
        bill = []
        for measure, mean in self.bill[1:]:
            what = f" {measure.words.what}" if measure.unit in ("%", "devices") else ""
            bill.append(f"{measure.words.verb} {measure.show(mean)}{what}")
        there = [f"There it {', '.join(bill)}."] if bill and said else []
        others = [one.in_short for one in self.rankings[1:] if one.in_short]
        missing = [self.where + self.missing] if self.missed else []
        unranked = (
            [f"{self.where}No run has a figure to rank by {self.unranked}."]
            if self.unranked
            else []
        )
        return [
            *unranked,
            *said,
            *there,
            *others,
            *missing,
            *map(self._unreached_in_words, self.unreached),
        ]

    def _unreached_in_words(self, target: Aim) -> str:
        what = f"{target:g}" if isinstance(target, Target) else f"an accuracy of {target:g}"
        ends = [
            entry
            for ranking in self.rankings
            if ranking.measure is FINAL
            for entry in ranking.entries
            if entry.values
        ]
        highest = (
            f"; {clean(ends[0].name)} ends with the highest, {ends[0].mean.mean:.3f}"
            if ends
            else ""
        )
        return f"{self.where}No line reaches {what}{'' if isinstance(target, Target) else highest}."

    @property
    def where(self) -> str:
        return f"{self.world}: " if self.world else ""

    def to(self, ranking: Ranking) -> str:
        """The beginning of a ranking's sentences: the target, if its figure is a cost to reach
        it.
        """
        if self.target is None or not ranking.measure.name.endswith(f"to target {self.target:g}"):
            return ""
        return f"To {'a' if isinstance(self.target, Target) else 'an accuracy of'} {self.target:g} "

    @property
    def missing(self) -> str:
        names = [
            f"{name} ({reached} of {of})" if of > 1 else name for name, reached, of in self.missed
        ]
        return (
            f"Not there{' in every world' if any(of > 1 for *_, of in self.missed) else ''}: "
            f"{some_names(names)}."
        )

    @property
    def order(self) -> list[int]:
        """The places of its lines, the best first: by the first ranking, then by the last."""
        ranked = [
            one
            for ranking in (self.rankings[:1] + self.rankings[-1:])
            for one in ranking.entries
            if one.values
        ]
        return list(dict.fromkeys(one.place for one in ranked))


def answers(
    lines: Lines,
    figures: Sequence[Sequence[Values]],
    targets: Sequence[Aim],
    *,
    are_asked: bool = False,
) -> Iterator[Answer]:
    """The answers of a comparison, world by world: ``figures`` are those of the runs of each line.

    Each world is compared at the hardest of the ``targets``, from the easiest to the hardest, that
    any of its lines reaches. If the user has asked for these (``are_asked``), each that no line
    reaches is named.
    """
    worlds = _worlds(lines)
    varying = _varying(lines, [place for places in worlds for place in places])
    studies = {line.study for line in lines.lines}
    for places in worlds:
        line = lines.lines[places[0]]
        own = _varying(lines, places)
        point = {key: value for key, value in line.point if key in varying and key not in own}
        name = [line.study] if len(studies) > 1 and line.study else []
        name += [f"{key.rpartition('.')[2]} {shown(value)}" for key, value in point.items()]
        target = _target(lines, figures, places, targets)
        cells = _cells(lines, places)
        wanted = dict.fromkeys(
            [*(goal_of(goal, target) for goal in (lines.goal, *TARGETED)), FINAL]
        )
        rankings = [
            _ranking(lines, figures, _names(cells), one) for one in wanted if one is not None
        ]
        costs = [one for one in rankings if "to target" in one.measure.name]
        goal = goal_of(lines.goal, target)
        has_goal = any(
            one.measure == goal and any(entry.values for entry in one.entries) for one in rankings
        )
        unreached = [
            aim for aim in targets if not _reached_by(figures, _ranked(lines, places), aim, any)
        ]
        late = (
            [one for one in costs[0].entries if len(one.values) < one.of and not one.reference]
            if costs
            else []
        )
        yield Answer(
            "" if len(worlds) == 1 else clean(", ".join(name)),
            target,
            tuple(one for one in rankings if any(entry.values for entry in one.entries)),
            tuple((clean(one.name), len(one.values), one.of) for one in late),
            cells,
            tuple(_bill(rankings[0], figures, target)),
            tuple(unreached) if are_asked or target is None else (),
            ""
            if has_goal or lines.goal == _USUAL_GOAL or (target is None and targets)
            else lines.goal,
        )


def _bill(
    goal: Ranking, figures: Sequence[Sequence[Values]], target: Aim | None
) -> Iterator[tuple[Measure, float]]:
    wanted = dict.fromkeys(
        [goal.measure, *(goal_of(name, target) for name in (*TARGETED, "battery", "flat"))]
    )
    for measure in wanted if goal.whole else ():
        values = [own.get(measure.name) for own in figures[goal.whole[0].place]] if measure else []
        known = [value for value in values if value is not None]
        if measure and known and len(known) == len(values):
            yield measure, math.fsum(known) / len(known)


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
        kept = [line.runs[0].scenario for line in own if not line.reference] or [
            line.runs[0].scenario for line in own
        ]
        worlds_of = [
            {name: value for name, value in scenario.items() if name not in _CHOSEN}
            for scenario in kept
        ]
        same = frozenset(json.dumps(world, sort_keys=True, default=str) for world in worlds_of)
        worlds.setdefault((key[0], same), []).extend(places)
    return [sorted(places) for places in worlds.values()]


def _varying(lines: Lines, places: Sequence[int]) -> list[str]:
    """The keys of the grid by which some lines differ; one that lacks a key differs from those
    that have it.
    """
    points = [{key: shown(value) for key, value in lines.lines[place].point} for place in places]
    keys = dict.fromkeys(key for point in points for key in point)
    return [key for key in keys if len({point.get(key) for point in points}) > 1]


def _cells(lines: Lines, places: Sequence[int]) -> dict[int, dict[str, str]]:
    """The variant of each cell of a world, and its values of the keys that vary there, by place.

    Cells of the same runs are one: its values of the keys by which they differ are ``ANY``.
    """
    by_runs: dict[tuple[Any, ...], list[int]] = {}
    for place in places:
        by_runs.setdefault(tuple(run.path for run in lines.lines[place].runs), []).append(place)
    keys = _varying(lines, places)
    cells = {}
    for own in by_runs.values():
        line = lines.lines[own[0]]
        free = _varying(lines, own)
        point = {key: shown(value) for key, value in line.point if key not in free}
        cells[own[0]] = {VARIANT: line.name} | {
            short_key(key, keys): point.get(key, ANY) for key in keys
        }
    return cells


def cell_names(lines: Lines) -> list[str]:
    """A name for each line: its variant, and the keys by which it differs from others of that
    name.
    """
    names = _names(_cells(lines, [place for place, line in enumerate(lines.lines) if line.runs]))
    return [names.get(place, line.name) for place, line in enumerate(lines.lines)]


def _names(cells: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """A name for each cell; the size and the part are in it only where there would be two of a
    name without.
    """

    def named(cell: Mapping[str, str], *but: str) -> str:
        point = ", ".join(
            f"{key}={value}"
            for key, value in cell.items()
            if value != ANY and key not in (VARIANT, *but)
        )
        return f"{cell[VARIANT]} ({point})" if point else cell[VARIANT]

    short = {place: named(cell, *PLACES) for place, cell in cells.items()}
    count = Counter(short.values())
    return {
        place: name if count[name] == 1 else named(cells[place]) for place, name in short.items()
    }


def _ranking(
    lines: Lines, figures: Sequence[Sequence[Values]], names: Mapping[int, str], measure: Measure
) -> Ranking:
    entries = []
    for place, name in names.items():
        line = lines.lines[place]
        values = lines.by_seed(place, figures[place], measure.name)
        entries.append(RankedLine(place, name, line.reference, values, len(line.runs)))

    def rank(one: RankedLine) -> tuple[float, float]:
        missing = 1 - len(one.values) / one.of
        return missing, (
            1 if measure.best == "least" else -1
        ) * one.mean.mean if one.values else math.inf

    entries.sort(key=rank)
    best = next((one.place for one in entries if not one.reference), None)
    base = None if lines.is_first or best is None else lines.baselines[best]
    return Ranking(measure, tuple(entries), base)


def _target(
    lines: Lines, figures: Sequence[Sequence[Values]], places: Sequence[int], targets: Sequence[Aim]
) -> Aim | None:
    ranked = _ranked(lines, places)
    for sure in (all, any):
        for target in reversed(targets):
            if _reached_by(figures, ranked, target, sure):
                return target
    return None


def _ranked(lines: Lines, places: Sequence[int]) -> list[int]:
    return [place for place in places if not lines.lines[place].reference]


def _reached_by(
    figures: Sequence[Sequence[Values]],
    places: Sequence[int],
    target: Aim,
    sure: Callable[[Iterator[bool]], bool],
) -> bool:
    """Whether a line reached a target, in ``all`` its runs or in ``any``."""

    def reaches(values: Values) -> bool:
        if isinstance(target, Target):
            return values[cost_of("rounds", target).name] is not None
        return (values[BEST.name] or 0.0) >= target

    return any(sure(reaches(one) for one in figures[place]) for place in places)


def usual_target(lines: Lines, figures: Sequence[Sequence[Values]]) -> float | None:
    """The highest multiple of 0.05 that half of the lines reach in all their runs; used if no
    target is named.
    """
    own = [
        figures[place] for place, line in enumerate(lines.lines) if line.runs and not line.reference
    ]
    lows = sorted(min(one[BEST.name] or 0.0 for one in values) for values in own)
    most = math.floor(lows[len(lows) // 2] / _STEP + 1e-9) if lows else 0
    return round(most * _STEP, 2) if most else None


def some_names(names: Sequence[str]) -> str:
    """Names for people, without the last of very many."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(clean, names[:_MOST_NAMES])) + more
