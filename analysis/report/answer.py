"""The answer of a comparison as HTML: sentences and drawings that fit any width.

A ranking is a table with a drawn column of dots and intervals. A heat map is a table with shaded
cells. A Pareto front is a numbered drawing with names below. Screen readers can read all of them.
"""

import math
from collections.abc import Iterator, Sequence

from fedsim.analysis.report.axis import Axis
from fedsim.analysis.report.front import draw_front
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.common.round_words import counted
from fedsim.lab.compare import explore
from fedsim.lab.compare.answer import WorldAnswer
from fedsim.lab.compare.explore import HeatMap
from fedsim.lab.compare.measures import Measure
from fedsim.lab.compare.ranking import RankedLine, Ranking

_MOST_WORLDS = 6
_MOST_APART = 12  # ratio of values above which an axis is logarithmic
_DOTS_WIDTH = 1000  # width of the drawn column (units of the drawing)


HINT = (
    "Two lines are compared seed by seed in the same worlds. Each comparison stands alone: the best "
    "of many looks a little better than it is."
)
"""Remark on the intervals of a study with several seeds."""


def answers(
    worlds: Sequence[WorldAnswer], colours: dict[int, str], hint: str, *, is_over: bool
) -> Iterator[Markup | None]:
    """Yield HTML that says which lines are best: sentences and drawings for each world.

    A line is a variant or scenario with its seeds; a world is a set of devices, network and data.
    The drawings of the first world are visible, and a click opens the drawings of each other world.

    Args:
        worlds: the answers, one per world. The first six are shown, further worlds only counted.
        colours: index of a line -> its CSS colour, the same in all drawings.
        hint: remark on how certain the answers are, shown with each world.
        is_over: whether all runs are done; if not, sentences begin with "So far".
    """
    for world_index, answer in enumerate(worlds[:_MOST_WORLDS]):
        yield from _answer(answer, world_index, colours, hint, is_over=is_over)
    if len(worlds) > _MOST_WORLDS:
        more = counted(len(worlds) - _MOST_WORLDS, "more world")
        text = f"The tables below have {more}."
        yield el("p", text, class_="soft")


def _answer(
    answer: WorldAnswer, world_index: int, colours: dict[int, str], hint: str, *, is_over: bool
) -> Iterator[Markup | None]:
    """Yield the sentences and drawings on the best lines in one world.

    The drawings are folded unless it is the first world.

    Args:
        answer: the answer in this world.
        world_index: index of the world in the report, from 0.
        colours: index of a line -> its colour.
        hint: remark on the certainty of all answers.
        is_over: whether all runs are done; if not, sentences begin with "So far".
    """
    if answer.world:
        yield el("h3", answer.world)
    goal_ranking = answer.rankings[0] if answer.rankings else None
    if goal_ranking is not None and goal_ranking.sentences:
        yield _first_sentence(answer, goal_ranking, is_over=is_over)
    if not answer.rankings:
        text = "Nothing was evaluated, so no line is ranked; their costs are among all figures."
        yield el("p", el("a", text, href="#tables"))
    other_goals = _other_goals(answer, world_index)
    if other_goals is not None:
        yield other_goals
    if answer.missed:
        yield el("p", answer.missing)
    figures = [*_figures(answer, colours, is_over=is_over)]
    figures += _folds(answer, world_index, colours, hint, is_over=is_over)
    if world_index == 0:
        yield from figures
    else:
        yield el("details", el("summary", f"Figures of {answer.world}"), *figures)


def _first_sentence(answer: WorldAnswer, goal_ranking: Ranking, *, is_over: bool) -> Markup:
    """Return the sentence on the best line (variant) by the goal, the first ranking, as HTML.

    It is in bold if all runs are done and the lead is significant.
    """
    prefix = answer.target_prefix(goal_ranking)
    if not is_over:
        return el("p", f"{_so_far(prefix)}{goal_ranking.sentences[0]}", class_="answer")
    text: str = _capitalise(prefix + goal_ranking.sentences[0])
    if goal_ranking.is_sure:
        text = el("strong", text)
    return el("p", text, class_="answer")


def _so_far(prefix: str) -> str:
    """Return "So far, " and ``prefix``, as the beginning of a sentence on unfinished runs."""
    return f"So far, {prefix[:1].lower()}{prefix[1:]}"


def _capitalise(text: str) -> str:
    """Capitalise a text that begins with "no line"; other texts begin with a capital or a name."""
    if text.startswith("no line"):
        return f"N{text[1:]}"
    return text


def _other_goals(answer: WorldAnswer, world_index: int) -> Markup | None:
    """Return a list with a sentence on each ranking except the goal, linked to its drawing."""
    entries = []
    for ranking in answer.rankings[1:]:
        if ranking.in_short:
            link = el("a", ranking.in_short, href=f"#{_anchor(world_index)}")
            entries.append(el("li", link))
    return el("ul", *entries, class_="further") if entries else None


def _anchor(world_index: int) -> str:
    return f"rankings-{world_index}"


def _figures(
    answer: WorldAnswer, colours: dict[int, str], *, is_over: bool
) -> Iterator[Markup | None]:
    """Yield the costs of the best variant, then drawings side by side, and their legend.

    The drawings are a heat map over two keys of the study's grid, a Pareto front of two costs, and
    the ranking by the goal. A drawing is left out if it does not apply.

    Args:
        answer: the answer in one world.
        colours: index of a line -> its colour.
        is_over: whether all runs are done.
    """
    goal_ranking = answer.rankings[0] if answer.rankings else None
    if goal_ranking is not None and goal_ranking.sentences:
        yield _best_figures(answer, goal_ranking, is_over=is_over)
    plots = []
    heat_map = explore.heat_map(answer)
    if heat_map is not None:
        plots.append(_draw_heat_map(heat_map))
    fronts = explore.fronts(answer)
    if fronts:
        plots.append(draw_front(fronts[0], colours))
    if goal_ranking is not None:
        plots.append(_draw_ranking(goal_ranking, colours))
    if plots:
        yield _side_by_side(plots)
    if goal_ranking is not None:
        yield _ranking_legend(goal_ranking)


def _folds(
    answer: WorldAnswer, world_index: int, colours: dict[int, str], hint: str, *, is_over: bool
) -> Iterator[Markup]:
    """Yield folded parts: how sure the answer is; and further rankings and pairs of costs.

    Args:
        answer: the answer in one world.
        world_index: index of the world in the report, from 0.
        colours: index of a line -> its colour.
        hint: remark on the certainty of all answers.
        is_over: whether all runs are done; if not, sentences begin with "So far".
    """
    goal_ranking = answer.rankings[0] if answer.rankings else None
    if goal_ranking is not None and goal_ranking.sentences:
        prefix = answer.target_prefix(goal_ranking)
        if not is_over:
            prefix = _so_far(prefix)
        parts = [el("p", _capitalise(prefix + " ".join(goal_ranking.sentences)))]
        parts += [el("p", text) for text in explore.variance_in_words(answer)]
        parts.append(el("p", hint, class_="soft"))
        yield el("details", el("summary", "How sure is that, and what decides?"), *parts)
    rankings = [_draw_ranking(ranking, colours) for ranking in answer.rankings[1:]]
    fronts = [draw_front(front, colours) for front in explore.fronts(answer)[1:]]
    if not rankings + fronts:
        return
    names = [ranking.measure.label for ranking in answer.rankings[1:]]
    title = f"Rankings by {', '.join(names)}"
    if fronts:
        title += ", and these costs against each other"
    plots = _side_by_side([*rankings, *fronts])
    yield el("details", el("summary", title), plots, id=_anchor(world_index))


def _ranking_legend(ranking: Ranking) -> Markup | None:
    """Return the legend of the signs in drawings of rankings, such as intervals.

    None if each variant has only one run.
    """
    if all(line.run_count == 1 for line in ranking.entries):
        return None
    signs = (
        (el("circle", cx=10, cy=6.5, r=4), "mean of the seeds"),
        (el("path", d="M0 6.5 H20"), "95 % interval of the mean (Student's t)"),
        (el("path", d="M6 2 V11 M14 2 V11"), "one seed each"),
        (el("path", d="M14 2 L19 6.5 L14 11"), "the interval goes on"),
    )
    entries = []
    for sign, text in signs:
        icon = el("svg", sign, viewBox="0 0 20 13", aria_hidden="true", class_="sign")
        entries.append(el("li", icon, text))
    return el("ul", *entries, class_="key", aria_label="Signs of the rankings")


def _side_by_side(plots: Sequence[Markup]) -> Markup:
    return el("div", *(el("div", plot) for plot in plots), class_="plots")


def _best_figures(answer: WorldAnswer, goal_ranking: Ranking, *, is_over: bool) -> Markup:
    """Return the name of the best variant by the goal, and its costs, as tiles in HTML."""
    best = goal_ranking.ranked[0]
    remarks = []
    if goal_ranking.ties:
        remarks.append(f"ties with {counted(len(goal_ranking.ties), 'other')}")
    if best.run_count > 1:
        remarks.append(f"figures are means of {best.run_count} seeds")
    title = _title_of_best(goal_ranking)
    if not is_over:
        title = f"so far, {title}"
    figures = [(title, plain(best.name, 60), "; ".join(remarks))]
    for measure, mean in answer.bill:
        remark = ""
        cheapest = _cheapest(answer, goal_ranking, measure)
        if cheapest is not None and cheapest.line_index == best.line_index:
            remark = "the least"
        elif cheapest is not None:
            remark = f"least: {plain(cheapest.name, 60)}, {measure.show(cheapest.mean.mean)}"
        figures.append((measure.name, measure.show(mean), remark))
    return tiles(figures)


def _title_of_best(goal_ranking: Ranking) -> str:
    """Return the title of the first variant's tile, such as "best by time".

    The title has "best" only if the answer's sentences name this variant as the best.
    """
    if goal_ranking.is_named:
        return f"best by {goal_ranking.measure.name}"
    if goal_ranking.measure.is_cost:
        return f"least mean {goal_ranking.measure.name}"
    return f"first by {goal_ranking.measure.name}"


def _cheapest(answer: WorldAnswer, goal_ranking: Ranking, measure: Measure) -> RankedLine | None:
    """Return the variant that is best by ``measure``, such as the bytes to the target.

    None if ``measure`` is the goal, or if no variant is ranked by ``measure``.
    """
    if measure == goal_ranking.measure:
        return None
    for ranking in answer.rankings:
        if ranking.measure == measure:
            return ranking.ranked[0] if ranking.ranked else None
    return None


def tiles(figures: Sequence[tuple[str, str, str]]) -> Markup:
    """Return key numbers, such as the accuracy of a run, as an HTML list in large type.

    Args:
        figures: name, formatted value and remark of each number; the remark may be empty.
    """
    entries = []
    for name, figure, remark in figures:
        look = None if figure[:1].isdecimal() else "name"
        entries.append(
            el("div", el("dt", name), el("dd", figure, el("small", remark), class_=look))
        )
    return el("dl", *entries, class_="tiles")


def _draw_ranking(ranking: Ranking, colours: dict[int, str]) -> Markup:
    """Return a ranking as a table: name, mean, and a drawing of mean, interval and seeds."""
    lines = [line for line in ranking.entries if line.values]
    axis = _choose_axis(lines, ranking)
    rows = [_ranking_row(line, ranking, axis, colours[line.line_index]) for line in lines]
    ends = (el("span", ranking.show(axis.low)), el("span", ranking.show(axis.high)))
    foot = el("tr", el("td"), el("td"), el("td", *ends, class_="axis"))
    remark = " more is better" if ranking.measure.best == "most" else " less is better"
    if axis.is_log:
        remark += ", log scale"
    title = el("strong", ranking.measure.name.capitalize())
    caption = el("caption", title, el("small", remark))
    return el("table", caption, el("tbody", *rows), el("tfoot", foot), class_="plot")


def _ranking_row(line: RankedLine, ranking: Ranking, axis: Axis, colour: str) -> Markup:
    """Return a line's row in a ranking: name, mean, and a drawing.

    If some of the line's runs have no value, such as by missing the target, the row has the count
    of the others instead of the mean.
    """
    title = line.name
    if line.reference:
        title += ", a reference"
    if line.line_index == ranking.baseline:
        title += ", the baseline"
    if line.is_complete:
        mean = line.mean.mean  # ``line.mean`` also has the interval
        figure = ranking.show(mean)
    else:
        figure = f"{len(line.values)} of {line.run_count}"
    is_significantly_best = ranking.is_sure and line is ranking.ranked[0]
    is_ranked = line.is_complete and not line.reference
    return el(
        "tr",
        el("th", plain(line.name, 40), scope="row", class_="text", title=plain(title, 200)),
        el("td", el("strong", figure) if is_significantly_best else figure),
        el("td", _draw_dots(line, axis, colour), class_="dots"),
        class_=None if is_ranked else "soft",
    )


def _choose_axis(lines: Sequence[RankedLine], ranking: Ranking) -> Axis:
    """Return an axis on which a ranking is drawn, so that it has the values of all runs.

    It is logarithmic if costs are far apart. It never goes beyond the values that the measure can
    have.
    """
    values: list[float] = []
    for line in lines:
        values += line.values.values()
    lowest = min(values)
    highest = max(values)
    if not ranking.measure.is_cost:
        margin = max(0.005, (highest - lowest) * 0.08)
        greatest_possible = ranking.measure.most
        high = min(greatest_possible, highest + margin)
        return Axis(max(0.0, lowest - margin), high, is_log=False)
    if lowest > 0 and highest > _MOST_APART * lowest:
        return Axis(lowest / 1.3, highest * 1.3, is_log=True)
    if highest == 0:
        return Axis(0.0, 1.0, is_log=False)
    return Axis(0.0, highest * 1.08, is_log=False)


def _draw_dots(line: RankedLine, axis: Axis, colour: str) -> Markup:
    """Draw a dot at the mean, a small tick per seed, and a line for the interval.

    If the interval exceeds the axis, it ends at the edge of the drawing, with an arrow there. If a
    run of the line has no value, only the ticks of the other seeds are drawn.
    """
    mean = line.mean

    def stroke(from_value: float, to_value: float, look: str, *, y1: int, y2: int) -> Markup:
        x1 = round(_DOTS_WIDTH * axis.clipped_share(from_value), 1)
        x2 = round(_DOTS_WIDTH * axis.clipped_share(to_value), 1)
        return el("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke=colour, class_=look)

    def arrowhead(points: str) -> Markup:
        return el("polyline", points=points, stroke=colour, fill="none", class_="beyond")

    parts = []
    if line.is_complete and mean.pairs > 1:
        parts.append(stroke(mean.low, mean.high, "interval", y1=10, y2=10))
        if mean.low < axis.low:
            parts.append(arrowhead("12,4 0,10 12,16"))  # points to the left
        if mean.high > axis.high:
            parts.append(arrowhead("988,4 1000,10 988,16"))  # points to the right
    if mean.pairs > 1 or not line.is_complete:
        for value in line.values.values():
            parts.append(stroke(value, value, "seed", y1=6, y2=14))
    if line.is_complete:
        # The dot is a line of length 0 with round caps: it stays round when the drawing is widened.
        parts.append(stroke(mean.mean, mean.mean, "dot", y1=10, y2=10))
    box = f"0 0 {_DOTS_WIDTH} 20"
    return el("svg", *parts, viewBox=box, preserveAspectRatio="none", aria_hidden="true")


def _draw_heat_map(heat_map: HeatMap) -> Markup:
    """Return a heat map over two keys of the grid as a table; a better cell has a bluer shade."""
    frame = heat_map.figures
    heads = [el("th", str(frame.index.name), scope="col", class_="text")]
    heads += [el("th", plain(level, 40), scope="col") for level in frame.columns]
    rows = []
    for level, figures in frame.iterrows():
        cells = [el("th", plain(level, 40), scope="row", class_="text")]
        for figure in figures:
            shade = "soft"
            if math.isfinite(figure):  # the style sheet has the classes shade-1 to shade-9
                shade = f"shade-{1 + round(8 * heat_map.share(figure))}"
            cells.append(el("td", heat_map.text(figure), class_=shade))
        rows.append(el("tr", *cells))
    # after a semicolon, the title has a remark on the sign that marks the best cell
    title, _, sign_remark = heat_map.title.partition("; ")
    remark = f" the bluer the better, {sign_remark}; across: {frame.columns.name}"
    caption = el("caption", el("strong", title), el("small", remark))
    head = el("thead", el("tr", *heads))
    table = el("table", caption, head, el("tbody", *rows), class_="heat")
    return el("div", table, class_="wide", tabindex="0")
