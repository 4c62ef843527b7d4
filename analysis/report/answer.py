"""What a comparison answers, on top of its page: sentences, and for each figure a sorted plot of dots with intervals.

The plots are tables whose last column is drawn: they fit any width, follow the page's colours, and can be read aloud.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.language.units import show_bytes, show_joules, show_seconds

if TYPE_CHECKING:
    from fedsim.compare.answer import Answer, Entry, Ranking

_MOST_WORLDS = 6
_UNLIKE = 12  # values further apart than this factor do not fit on one linear axis
_SHOW: dict[str, Callable[[float], str]] = {"s": show_seconds, "bytes": show_bytes, "J": show_joules, "0-1": "{:.3f}".format}
_TITLES = {"s": "Time to {}", "bytes": "Bytes to {}", "J": "Energy to {}", "0-1": "Final accuracy"}


def answers(found: "Sequence[Answer]", colours: dict[int, str]) -> list[Markup]:
    """What each world's answer says and shows.

    Args:
        found: the answers.
        colours: of the lines, by place.
    """
    parts = []
    for answer in found[:_MOST_WORLDS]:
        parts += [el("h3", answer.world)] if answer.world else []
        plots = [el("div", *_in_words(one, answer.target), _plot(one, answer.target, colours)) for one in answer.rankings]
        parts.append(el("div", *plots, class_="plots"))
        parts += [el("p", answer.missing, class_="soft")] if answer.missed else []
    if len(found) > _MOST_WORLDS:
        parts.append(el("p", f"{len(found) - _MOST_WORLDS} more worlds are in the tables below.", class_="soft"))
    return parts


def _in_words(ranking: "Ranking", target: float | None) -> Iterator[Markup]:
    """The best in bold, then how the others compare with it."""
    if words := ranking.sentences:
        to = f"To an accuracy of {target:g} " if ranking.measure.is_cost else ""
        yield el("p", el("strong", to + words[0]), " " + " ".join(words[1:]), class_="answer")


def _plot(ranking: "Ranking", target: float | None, colours: dict[int, str]) -> Markup:
    """One figure of all lines, the best on top: name, value, and a dot with its interval."""
    there = [one for one in ranking.entries if one.values]
    scale = _Scale(there, ranking)
    show = _SHOW[ranking.measure.unit]
    rows = []
    for one in there:
        whole = len(one.values) == one.of
        name = (
            one.name + (", a reference" if one.reference else "") + (", the baseline" if one.place == ranking.baseline else "")
        )
        said = show(one.mean.mean) if whole else f"{len(one.values)} of {one.of}"
        best = bool(ranking.whole) and one is ranking.whole[0]
        row = (
            el("th", plain(one.name, 40), scope="row", class_="text", title=plain(name, 200)),
            el("td", el("strong", said) if best else said),
            el("td", scale.draw(one, ranking, colours[one.place]), class_="dots"),
        )
        rows.append(el("tr", *row, class_=None if whole and not one.reference else "soft"))
    axis = el("tr", el("td"), el("td"), el("td", el("span", scale.low), el("span", scale.high), class_="axis"))
    title = _TITLES[ranking.measure.unit].format(f"{target:g}" if target is not None else "")
    more = "more is better" if ranking.measure.more_is_better else "less is better"
    caption = el("caption", el("strong", title), el("small", f" {more}{', log scale' if scale.log else ''}"))
    return el("table", caption, el("tbody", *rows), el("tfoot", axis), class_="plot")


class _Scale:
    """From figures to places of an axis, 0 to 1000."""

    def __init__(self, entries: "Sequence[Entry]", ranking: "Ranking") -> None:
        values = [value for one in entries for value in one.values.values()]
        least, most, show = min(values), max(values), _SHOW[ranking.measure.unit]
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

    def draw(self, one: "Entry", ranking: "Ranking", colour: str) -> Markup:
        """A dot at the mean, a line for its interval, and a small tick for each seed."""
        mean, parts = one.mean, []
        whole = len(one.values) == one.of
        if whole and mean.pairs > 1:
            low, high = self(max(0.0, mean.low)), self(min(mean.high, ranking.measure.most))
            parts.append(el("line", x1=low, x2=high, y1="10", y2="10", stroke=colour, class_="interval"))
        for value in one.values.values() if mean.pairs > 1 or not whole else ():
            parts.append(el("line", x1=self(value), x2=self(value), y1="6", y2="14", stroke=colour, class_="seed"))
        if whole:
            parts.append(el("line", x1=self(mean.mean), x2=self(mean.mean), y1="10", y2="10", stroke=colour, class_="dot"))
        return el("svg", *parts, viewBox="0 0 1000 20", preserveAspectRatio="none", aria_hidden="true")
