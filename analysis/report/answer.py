"""The answer of a comparison on its page: sentences, and pictures made of HTML alone.

A ranking is a table whose last column is drawn: a dot with its interval. A heat map is a table with shaded cells, and a Pareto
front a drawing with numbers, whose names stand below. So they fit any width, follow the page's colours, and can be read aloud.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, el, join, plain
from fedsim.lab.compare import explore
from fedsim.lab.compare.answer import ANY, PLACES, VARIANT, show_figure

if TYPE_CHECKING:
    from fedsim.lab.compare.answer import Answer, RankedLine, Ranking
    from fedsim.lab.compare.explore import CostPoint, HeatMap, ParetoFront

_MOST_WORLDS = 6
_UNLIKE = 12  # values further apart than this factor do not fit on one linear axis


def answers(found: "Sequence[Answer]", colours: dict[int, str]) -> list[Markup]:
    """Text and plots of each world's answer; ``colours`` are those of the lines, by place."""
    parts = []
    for answer in found[:_MOST_WORLDS]:
        parts += [el("h3", answer.world)] if answer.world else []
        parts += [*_answer_words(answer), *_card(answer)]
        cells, fronts = explore.heat_map(answer), [_front(one, colours) for one in explore.fronts(answer)]
        drawn = [
            *([_heat(cells)] if cells else []),
            *fronts[:1],
            *(_plot(one, colours, _names(answer)) for one in answer.rankings),
        ]
        parts.append(el("div", *(el("div", one) for one in drawn), class_="plots"))
        if fronts[1:]:
            others = el("div", *(el("div", one) for one in fronts[1:]), class_="plots")
            parts.append(el("details", el("summary", "Other pairs of costs against each other"), others))
    if len(found) > _MOST_WORLDS:
        parts.append(el("p", f"{len(found) - _MOST_WORLDS} more worlds are in the tables below.", class_="soft"))
    return parts


def _answer_words(answer: "Answer") -> Iterator[Markup]:
    """The goal's sentences, bold where the best is told apart from the next; then who missed the target, and the keys."""
    goal = answer.rankings[0] if answer.rankings else None
    if goal and goal.sentences:
        best = answer.to(goal) + goal.sentences[0]
        yield el("p", el("strong", best) if goal.is_sure else best, " " + " ".join(goal.sentences[1:]), class_="answer")
    yield from (el("p", text) for text in [*([answer.missing] if answer.missed else []), *explore.shares(answer)])


def _card(answer: "Answer") -> Iterator[Markup]:
    """The costs of the best by the goal, and of each the cell that has the least."""
    goal = answer.rankings[0] if answer.rankings else None
    if not goal or not goal.sentences:
        return
    best, alike = goal.whole[0], style.counted(len(goal.alike), "other")
    doubt = f"not told apart from {alike}" if goal.alike else ""
    tiles = [(f"best by {goal.measure.name}", plain(best.name, 60), doubt)]
    for measure, mean in answer.bill:
        ranked = next((one.whole for one in answer.rankings if one.measure == measure and one.measure != goal.measure), ())
        least = f"least: {plain(ranked[0].name, 60)}, {show_figure(measure, ranked[0].mean.mean)}" if ranked else ""
        least = "the least" if ranked and ranked[0].place == best.place else least
        tiles.append((measure.name, show_figure(measure, mean), least))
    yield el(
        "dl", *(el("div", el("dt", name), el("dd", said, el("small", more))) for name, said, more in tiles), class_="tiles"
    )


def _names(answer: "Answer") -> dict[int, str]:
    """The cells' names by place, without the key of their values where only one varies."""
    keys = {key for cell in answer.cells.values() for key in cell} - {VARIANT, *PLACES}
    if len(keys) != 1:
        return {}
    (key,) = keys
    values = {place: (cell[VARIANT], cell.get(key, ANY)) for place, cell in answer.cells.items()}
    found = {place: name if value == ANY else f"{name}, {value}" for place, (name, value) in values.items()}
    return found if len({*found.values()}) == len(found) else {}


def _plot(ranking: "Ranking", colours: dict[int, str], names: Mapping[int, str]) -> Markup:
    """One figure of all lines, the best on top: name, value, and a dot with its interval."""
    there = [one for one in ranking.entries if one.values]
    scale = _Scale(there, ranking)
    rows = []
    for one in there:
        whole = len(one.values) == one.of
        name = (
            f"{one.name}{', a reference' if one.reference else ''}{', the baseline' if one.place == ranking.baseline else ''}"
        )
        said = ranking.show(one.mean.mean) if whole else f"{len(one.values)} of {one.of}"
        best = ranking.is_sure and one is ranking.whole[0]
        row = (
            el("th", plain(names.get(one.place, one.name), 40), scope="row", class_="text", title=plain(name, 200)),
            el("td", el("strong", said) if best else said),
            el("td", scale.draw(one, ranking, colours[one.place]), class_="dots"),
        )
        rows.append(el("tr", *row, class_=None if whole and not one.reference else "soft"))
    axis = el("tr", el("td"), el("td"), el("td", el("span", scale.low), el("span", scale.high), class_="axis"))
    title = ranking.measure.name.capitalize()
    more = "more is better" if ranking.measure.best == "most" else "less is better"
    caption = el("caption", el("strong", title), el("small", f" {more}{', log scale' if scale.log else ''}"))
    return el("table", caption, el("tbody", *rows), el("tfoot", axis), class_="plot")


def _heat(cells: "HeatMap") -> Markup:
    """The figures of two keys as a table whose cells are the darker the better they are."""
    frame = cells.figures
    heads = [el("th", str(frame.index.name), scope="col", class_="text")]
    heads += [el("th", plain(level, 40), scope="col") for level in frame.columns]
    rows = []
    for level, row in frame.iterrows():
        own = [el("th", plain(level, 40), scope="row", class_="text")]
        for value in row:
            shade = f"shade-{1 + round(8 * cells.share(value))}" if math.isfinite(value) else "soft"
            own.append(el("td", cells.text(value), class_=shade))
        rows.append(el("tr", *own))
    title, _, more = cells.title.partition("; ")
    caption = el("caption", el("strong", title), el("small", f" the darker the better, {more}; across: {frame.columns.name}"))
    table = el("table", caption, el("thead", el("tr", *heads)), el("tbody", *rows), class_="heat")
    return el("div", table, class_="wide", tabindex="0")


_WIDE, _HIGH, _EDGE, _ROOM = 400, 240, 10, 22  # of a front's drawing; room above and below it for words
_BESIDE = ((7, -5), (7, 12), (-13, -5), (-13, 12), (-3, -9), (-3, 18))  # places for a number beside its dot


def _front(found: "ParetoFront", colours: dict[int, str]) -> Markup:
    """Cells by two costs, those on the front joined and numbered, the runners-up numbered; their names below."""
    ends = [(min(own), max(own)) for own in zip(*((one.first, one.other) for one in found.points), strict=True)]
    (left, right), (low, high) = ends
    bottom, room = _HIGH - _ROOM, _HIGH - 2 * _ROOM - 16

    def at(point: "CostPoint") -> tuple[float, float]:
        x, y = (_share(value, *own) for value, own in zip((point.first, point.other), ends, strict=True))
        return round(_EDGE + 12 + x * (_WIDE - 2 * _EDGE - 24), 1), round(bottom - 10 - y * room, 1)

    parts = [el("path", d=f"M{_EDGE} {_ROOM - 8} V{bottom} H{_WIDE - _EDGE}", class_="axes")]
    steps = [f"H{x} V{y}" for x, y in map(at, found.front)]
    parts.append(el("path", d=f"M{steps[0][1:].replace(' V', ' ')} {' '.join(steps[1:])}", class_="step"))
    for one in found.points:
        x, y = at(one)
        title = el("title", plain(found.shown(one), 160))
        look = "colour" if one.is_best else "others"
        parts.append(el("circle", title, cx=x, cy=y, r=5 if one.is_best else 3.5, fill=colours[one.line.place], class_=look))
    taken = [at(one) for one in found.points]
    for number, one in enumerate(found.front, start=1):
        x, y = at(one)
        spots = [(x + dx, y + dy) for dx, dy in _BESIDE]
        spot = max(spots, key=lambda spot: min(5.0, *(math.dist((spot[0] + 3, spot[1] - 4), other) - 6 for other in taken)))
        taken.append((spot[0] + 3, spot[1] - 4))
        parts.append(el("text", str(number), x=spot[0], y=spot[1], class_="number"))
    first, other = found.names
    for text, x, y, anchor in (
        (f"{other}: {found.other.show(low)} below, {found.other.show(high)} on top", _EDGE, 9, "start"),
        (found.first.show(left), _EDGE, _HIGH - 6, "start"),
        (first, _WIDE / 2, _HIGH - 6, "middle"),
        (found.first.show(right), _WIDE - _EDGE, _HIGH - 6, "end"),
    ):
        parts.append(el("text", text, x=x, y=y, text_anchor=anchor))
    says = el("small", " the line joins those that no other beats in both; log scales")
    drawing = el("svg", *parts, viewBox=f"0 0 {_WIDE} {_HIGH}", role="img", aria_label=found.words, class_="front")
    names = (el("li", plain(found.shown(one), 160)) for one in found.front)
    return join(el("p", el("strong", f"{first.capitalize()} against {other}"), says), drawing, el("ol", *names, class_="names"))


def _share(value: float, least: float, most: float) -> float:
    """The place (0..1) of a cost between two others, by its logarithm if all are above 0."""
    if least > 0:
        value, least, most = math.log(value), math.log(least), math.log(most)
    return (value - least) / (most - least) if most > least else 0.5


def _arrow(tip: int, back: int) -> Callable[[str], Markup]:
    """The head of an arrow at an end of the axis: the interval goes on beyond it."""
    return lambda colour: el("polyline", points=f"{back},4 {tip},10 {back},16", stroke=colour, fill="none", class_="beyond")


_ARROWS = {"low": _arrow(0, 12), "high": _arrow(1000, 988)}


class _Scale:
    """From figures to places of an axis, 0 to 1000."""

    def __init__(self, entries: "Sequence[RankedLine]", ranking: "Ranking") -> None:
        values = [value for one in entries for value in one.values.values()]
        least, most, show = min(values), max(values), ranking.show
        self.log = ranking.measure.is_cost and least > 0 and most > _UNLIKE * least
        if self.log:
            self._from, self._to = math.log10(least / 1.3), math.log10(most * 1.3)
        elif ranking.measure.is_cost:
            self._from, self._to = 0.0, most * 1.08 or 1.0
        else:
            room = max(0.005, (most - least) * 0.08)
            self._from, self._to = max(0.0, least - room), min(1.0, most + room)
        ends = [10**edge if self.log else edge for edge in (self._from, self._to)]
        self.low, self.high = map(show, ends)

    def __call__(self, value: float) -> float:
        """The place of a value; what lies beyond an end lies at it."""
        if self.log:
            value = math.log10(value) if value > 0 else -math.inf
        return round(min(1000.0, max(0.0, (value - self._from) / (self._to - self._from) * 1000)), 1)

    def leaves(self, value: float, end: str) -> bool:
        """Whether a value lies beyond an end of the axis that is no end of the figure itself."""
        edge = self._from if end == "low" else self._to
        where = math.log10(value) if self.log and value > 0 else -math.inf if self.log else value
        return (where < edge if end == "low" else where > edge) and not (end == "low" and edge == 0.0 and not self.log)

    def draw(self, one: "RankedLine", ranking: "Ranking", colour: str) -> Markup:
        """A dot at the mean, a line for its interval, and a small tick for each seed."""
        mean, parts = one.mean, []
        whole = len(one.values) == one.of
        if whole and mean.pairs > 1:
            low, high = self(max(0.0, mean.low)), self(min(mean.high, ranking.measure.most))
            parts.append(el("line", x1=low, x2=high, y1="10", y2="10", stroke=colour, class_="interval"))
            parts += [
                _ARROWS[end](colour) for end, beyond in (("low", mean.low), ("high", mean.high)) if self.leaves(beyond, end)
            ]
        for value in one.values.values() if mean.pairs > 1 or not whole else ():
            parts.append(el("line", x1=self(value), x2=self(value), y1="6", y2="14", stroke=colour, class_="seed"))
        if whole:
            parts.append(el("line", x1=self(mean.mean), x2=self(mean.mean), y1="10", y2="10", stroke=colour, class_="dot"))
        return el("svg", *parts, viewBox="0 0 1000 20", preserveAspectRatio="none", aria_hidden="true")
