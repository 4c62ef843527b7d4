"""The answer of a comparison: sentences, and pictures in HTML alone, which fit any width and can
be read aloud.

A ranking is a table with a drawn column of dots and intervals, a heat map a table with shaded
cells, a Pareto front a numbered drawing with names below.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, el, join, plain
from fedsim.lab.compare import explore
from fedsim.lab.compare.answer import Answer
from fedsim.lab.compare.explore import CostPoint, HeatMap, ParetoFront
from fedsim.lab.compare.ranking import RankedLine, Ranking

_MOST_WORLDS = 6
_UNLIKE = 12  # values further apart than this factor do not fit on one linear axis


def answers(found: Sequence[Answer], colours: dict[int, str]) -> Iterator[Markup]:
    """Text and plots of each world's answer; ``colours`` of the lines are by place."""
    for answer in found[:_MOST_WORLDS]:
        if answer.world:
            yield el("h3", answer.world)
        goal = answer.rankings[0] if answer.rankings else None
        if goal and goal.sentences:
            best = answer.to(goal) + goal.sentences[0]
            yield el(
                "p",
                el("strong", best) if goal.is_sure else best,
                " " + " ".join(goal.sentences[1:]),
                class_="answer",
            )
        yield from (
            el("p", text)
            for text in [*([answer.missing] if answer.missed else []), *explore.shares(answer)]
        )
        if goal and goal.sentences:
            yield _card(answer, goal)
        cells = explore.heat_map(answer)
        fronts = [_front(one, colours) for one in explore.fronts(answer)]
        rankings = (_plot(one, colours) for one in answer.rankings)
        yield _side_by_side(_heat(cells) if cells else None, *fronts[:1], *rankings)
        if fronts[1:]:
            yield el(
                "details",
                el("summary", "Other pairs of costs against each other"),
                _side_by_side(*fronts[1:]),
            )
    if len(found) > _MOST_WORLDS:
        yield el(
            "p", f"{len(found) - _MOST_WORLDS} more worlds are in the tables below.", class_="soft"
        )


def _side_by_side(*plots: Markup | None) -> Markup:
    return el("div", *(el("div", one) for one in plots if one), class_="plots")


def _card(answer: Answer, goal: Ranking) -> Markup:
    best = goal.whole[0]
    alike = style.counted(len(goal.alike), "other")
    doubt = f"not told apart from {alike}" if goal.alike else ""
    figures = [(f"best by {goal.measure.name}", plain(best.name, 60), doubt)]
    for measure, mean in answer.bill:
        ranked = next(
            (
                one.whole
                for one in answer.rankings
                if one.measure == measure and one.measure != goal.measure
            ),
            (),
        )
        least = (
            f"least: {plain(ranked[0].name, 60)}, {measure.show(ranked[0].mean.mean)}"
            if ranked
            else ""
        )
        least = "the least" if ranked and ranked[0].place == best.place else least
        figures.append((measure.name, measure.show(mean), least))
    return tiles(figures)


def tiles(figures: Sequence[tuple[str, str, str]]) -> Markup:
    """Headline figures: name, figure and a remark."""
    return el(
        "dl",
        *(
            el("div", el("dt", name), el("dd", said, el("small", more)))
            for name, said, more in figures
        ),
        class_="tiles",
    )


def _plot(ranking: Ranking, colours: dict[int, str]) -> Markup:
    there = [one for one in ranking.entries if one.values]
    low, high, is_log = _scale(there, ranking)
    rows = []

    def place(value: float) -> float:
        """From 0 to 1000; values beyond the axis lie at its ends."""
        return round(1000 * _share(min(max(value, low), high), low, high, is_log), 1)

    for one in there:
        whole = len(one.values) == one.of
        name = f"{one.name}{', a reference' * one.reference}{', the baseline' * (one.place == ranking.baseline)}"
        said = ranking.show(one.mean.mean) if whole else f"{len(one.values)} of {one.of}"
        best = ranking.is_sure and one is ranking.whole[0]
        row = (
            el("th", plain(one.name, 40), scope="row", class_="text", title=plain(name, 200)),
            el("td", el("strong", said) if best else said),
            el(
                "td",
                _dots(one, place, colours[one.place], low, min(high, ranking.measure.most)),
                class_="dots",
            ),
        )
        rows.append(el("tr", *row, class_=None if whole and not one.reference else "soft"))
    axis = el(
        "tr",
        el("td"),
        el("td"),
        el("td", el("span", ranking.show(low)), el("span", ranking.show(high)), class_="axis"),
    )
    title = ranking.measure.name.capitalize()
    more = "more is better" if ranking.measure.best == "most" else "less is better"
    caption = el(
        "caption", el("strong", title), el("small", f" {more}{', log scale' if is_log else ''}")
    )
    return el("table", caption, el("tbody", *rows), el("tfoot", axis), class_="plot")


def _scale(entries: Sequence[RankedLine], ranking: Ranking) -> tuple[float, float, bool]:
    values = [value for one in entries for value in one.values.values()]
    least = min(values)
    most = max(values)
    if not ranking.measure.is_cost:
        room = max(0.005, (most - least) * 0.08)
        return max(0.0, least - room), min(1.0, most + room), False
    if least > 0 and most > _UNLIKE * least:
        return least / 1.3, most * 1.3, True
    return 0.0, most * 1.08 or 1.0, False


def _dots(
    one: RankedLine, place: Callable[[float], float], colour: str, least: float, most: float
) -> Markup:
    """A dot at the mean, a small tick per seed, and a line for the interval, with an arrow where
    it exceeds the axis.
    """
    mean = one.mean
    whole = len(one.values) == one.of

    def line(first: float, last: float, y1: int, y2: int, look: str) -> Markup:
        return el("line", x1=place(first), x2=place(last), y1=y1, y2=y2, stroke=colour, class_=look)

    parts = (
        [line(max(0.0, mean.low), min(mean.high, most), 10, 10, "interval")]
        if whole and mean.pairs > 1
        else []
    )
    for beyond, points in (
        (mean.low < least, "12,4 0,10 12,16"),
        (mean.high > most, "988,4 1000,10 988,16"),
    ):
        if parts and beyond:
            parts.append(el("polyline", points=points, stroke=colour, fill="none", class_="beyond"))
    parts += [
        line(value, value, 6, 14, "seed")
        for value in one.values.values()
        if mean.pairs > 1 or not whole
    ]
    parts += [line(mean.mean, mean.mean, 10, 10, "dot")] if whole else []
    return el("svg", *parts, viewBox="0 0 1000 20", preserveAspectRatio="none", aria_hidden="true")


def _heat(cells: HeatMap) -> Markup:
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
    caption = el(
        "caption",
        el("strong", title),
        el("small", f" the darker the better, {more}; across: {frame.columns.name}"),
    )
    table = el("table", caption, el("thead", el("tr", *heads)), el("tbody", *rows), class_="heat")
    return el("div", table, class_="wide", tabindex="0")


# of a front's drawing; room above and below it for words
_WIDE = 400
_HIGH = 240
_EDGE = 10
_ROOM = 22
# places for a number beside its dot
_BESIDE = ((7, -5), (7, 12), (-13, -5), (-13, 12), (-3, -9), (-3, 18))


def _front(found: ParetoFront, colours: dict[int, str]) -> Markup:
    """Cells by two costs: the front joined and numbered, the runners-up numbered; names below."""
    ends = [
        (min(own), max(own))
        for own in zip(*((one.first, one.other) for one in found.points), strict=True)
    ]
    (left, right), (low, high) = ends
    bottom = _HIGH - _ROOM
    room = _HIGH - 2 * _ROOM - 16

    def at(point: CostPoint) -> tuple[float, float]:
        x, y = (
            _share(value, *own, own[0] > 0)
            for value, own in zip((point.first, point.other), ends, strict=True)
        )
        return round(_EDGE + 12 + x * (_WIDE - 2 * _EDGE - 24), 1), round(bottom - 10 - y * room, 1)

    parts = [el("path", d=f"M{_EDGE} {_ROOM - 8} V{bottom} H{_WIDE - _EDGE}", class_="axes")]
    steps = [f"H{x} V{y}" for x, y in map(at, found.front)]
    parts.append(
        el("path", d=f"M{steps[0][1:].replace(' V', ' ')} {' '.join(steps[1:])}", class_="step")
    )
    for one in found.points:
        (x, y), look = at(one), "colour" if one.factor == 1 else "others"
        dot = {"fill": colours[one.line.place], "class_": look, "r": 5 if one.factor == 1 else 3.5}
        parts.append(el("circle", el("title", plain(found.shown(one), 160)), cx=x, cy=y, **dot))
    taken = [at(one) for one in found.points]
    named = [*found.front, *found.runners_up]
    for number, one in enumerate(named, start=1):
        x, y = at(one)
        spots = [(x + dx, y + dy) for dx, dy in _BESIDE]
        spot = max(
            spots,
            key=lambda spot: min(
                5.0, *(math.dist((spot[0] + 3, spot[1] - 4), other) - 6 for other in taken)
            ),
        )
        taken.append((spot[0] + 3, spot[1] - 4))
        parts.append(el("text", str(number), x=spot[0], y=spot[1], class_="number"))
    first, other = found.names
    for text, x, y, anchor in (
        (
            f"{other}: {found.other.show(low)} below, {found.other.show(high)} on top",
            _EDGE,
            9,
            "start",
        ),
        (found.first.show(left), _EDGE, _HIGH - 6, "start"),
        (first, _WIDE / 2, _HIGH - 6, "middle"),
        (found.first.show(right), _WIDE - _EDGE, _HIGH - 6, "end"),
    ):
        parts.append(el("text", text, x=x, y=y, text_anchor=anchor))
    says = el("small", " the line joins those that no other beats in both; log scales")
    drawing = el(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDE} {_HIGH}",
        role="img",
        aria_label=found.words,
        class_="front",
    )
    names = (
        el("li", plain(found.shown(one), 160), class_=None if one.factor == 1 else "soft")
        for one in named
    )
    return join(
        el("p", el("strong", f"{first.capitalize()} against {other}"), says),
        drawing,
        el("ol", *names, class_="names"),
    )


def _share(value: float, least: float, most: float, is_log: bool) -> float:
    """The place (0..1) of a figure between two others."""
    if is_log:
        value = math.log(value)
        least = math.log(least)
        most = math.log(most)
    return (value - least) / (most - least) if most > least else 0.5
