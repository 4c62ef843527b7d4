"""The legend of the page's timelines: colours of steps, signs, and lines."""

from collections.abc import Sequence

import numpy as np

from fedsim.analysis import palette
from fedsim.analysis.report.markup import Markup, asset, el, join
from fedsim.analysis.report.timeline import MARKED, OUTCOMES, TimelineData
from fedsim.analysis.timeline import outcome_meanings
from fedsim.common.round_words import common_word

_CROSS = "M6 2.5 L14 10.5 M14 2.5 L6 10.5"
_CIRCLE = "M7 6.5 a3 3 0 1 0 6 0 a3 3 0 1 0 -6 0"
_DIAMOND = "M10 2 L14.5 6.5 L10 11 L5.5 6.5 Z"
_SIGNS = {
    "lost": (_CROSS, "its device disconnected"),
    "left": (_DIAMOND, "its device left for good"),
    "battery": ("M7 2 H13 V11 H7 Z", "its battery is flat"),
    "arrival": ("M6 2 L14 6.5 L6 11 Z", "arrives"),
    "departure": ("M14 2 L6 6.5 L14 11 Z", "leaves for good"),
    "shift": (_CIRCLE, "its data shift"),
    "noticed": (_CIRCLE, "it notices the shift"),
    "move": ("M10 1 V12", "moves to another group"),
    "split": (_DIAMOND, "splits its data"),
}
# kind of a sign that is not black -> colours of its edge and its interior
_SIGN_COLOURS = {
    "left": (palette.PURPLE, palette.PURPLE),
    "shift": ("#000000", "#ffffff"),
    "split": (palette.SPLIT["color"], "#ffffff"),
}


def step_colours(timelines: Sequence[TimelineData]) -> dict[str, str]:
    """Return the colour of each kind of step, such as ``train``, that occurs in the timelines."""
    return palette.step_colours(kind for data in timelines for kind in data.kinds)


def timeline_legend(timelines: Sequence[TimelineData]) -> Markup:
    """Return the legend of the timelines in a report: colours, signs, and help on the controls."""
    entries = [
        *_step_entries(timelines),
        *_message_entries(timelines),
        *_presence_entries(timelines),
        *_outcome_entries(timelines),
        *_sign_entries(timelines),
        *_line_entries(timelines),
    ]
    if any(data.header["groups"] for data in timelines):
        tints = [
            el("rect", x=10 * group, y="0", width="10", height="13", fill=palette.group_tint(group))
            for group in (0, 1)
        ]
        entries.append((_icon(*tints), "in a group, each its colour"))
    entries.append((_swatch(palette.OUTCOMES["done"]), "devices at work"))
    if _has(timelines, "wasted_value", least=1e-9):  # the count of devices is above 0 at some time
        entries.append((_swatch(palette.VERMILLION), "devices whose work is wasted"))
    items = [el("li", swatch, text) for swatch, text in entries]
    return join(el("ul", *items, class_="key", aria_label="Colours and signs"), asset("help.html"))


_KeyEntry = tuple[Markup, str]


def _step_entries(timelines: Sequence[TimelineData]) -> list[_KeyEntry]:
    present = set()
    for data in timelines:
        for number in np.unique(data.columns["step"]).tolist():
            present.add(data.kinds[number])
    colours = step_colours(timelines)
    return [(_swatch(colour), kind) for kind, colour in colours.items() if kind in present]


def _message_entries(timelines: Sequence[TimelineData]) -> list[_KeyEntry]:
    """Return legend entries for messages outside of tasks: sent ones are above received ones."""
    # each direction: step whose colour the bar has, text, value in the column ``message_sent``,
    # and top of the bar (SVG units)
    directions = (("upload", "message sent", 1, "5"), ("download", "message received", 0, "9"))
    entries = []
    for step, text, is_sent, top in directions:
        if is_sent in _values("message_sent", timelines):
            bar = el("rect", x="0", y=top, width="20", height="3", fill=palette.STEPS[step])
            entries.append((_icon(bar), text))
    return entries


def _presence_entries(timelines: Sequence[TimelineData]) -> list[_KeyEntry]:
    all_known = all(data.header["knows_away"] for data in timelines)
    idle = "idle" if all_known else "idle or disconnected"
    entries = [(_swatch(palette.PALE), idle)]
    if _has(timelines, "off_start"):
        entries.append((_swatch(palette.AWAY), "cannot be reached"))
    return entries


def _outcome_entries(timelines: Sequence[TimelineData]) -> list[_KeyEntry]:
    outcomes = _outcomes(timelines)
    meanings = outcome_meanings(
        are_done=all(data.header["is_done"] for data in timelines),
        lose_edges=_lose_edges(timelines),
    )
    entries = []
    for outcome, meaning in meanings.items():
        if outcome in outcomes:
            entries.append((_swatch("#ffffff", palette.OUTCOMES[outcome]), meaning))
    return entries


def _sign_entries(timelines: Sequence[TimelineData]) -> list[_KeyEntry]:
    marks = {MARKED[code] for code in _values("mark_kind", timelines)}
    kinds = marks | _outcomes(timelines)
    entries = []
    for kind, (path, text) in _SIGNS.items():
        if kind in kinds:
            label = text
            if kind == "lost" and _lose_edges(timelines):
                label += ", or its edge server failed"
            edge, fill = _SIGN_COLOURS.get(kind, ("#000000", "#000000"))
            sign = el("path", d=path, stroke=edge, stroke_width="1.6", fill=fill)
            entries.append((_icon(sign), label))
    return entries


def _line_entries(timelines: Sequence[TimelineData]) -> list[_KeyEntry]:
    word = common_word(data.header["round_word"] for data in timelines)
    entries = [(_line("#283036"), f"{word}'s end")]
    if _has(timelines, "path_lane"):
        path = el("path", d="M0 10 H9 V3 H20", class_="path")
        entries.append((_icon(path), f"critical path: what each {word} waited for"))
    if _has(timelines, "round_deadline", least=1):
        entries.append((_line(palette.DEADLINE["color"], "4 3"), "deadline that was reached"))
    if _has(timelines, "limit_lane"):
        entries.append((_line(palette.LIMIT["color"]), "T, the deadline of a training"))
    if _has(timelines, "act"):
        entries.append((_line(palette.PURPLE, "1 2"), "a process of the world acts"))
    return entries


def _lose_edges(timelines: Sequence[TimelineData]) -> bool:
    return any(data.header["loses_edges"] for data in timelines)


def _outcomes(timelines: Sequence[TimelineData]) -> set[str]:
    return {OUTCOMES[code] for code in _values("outcome", timelines)}


def _values(column: str, timelines: Sequence[TimelineData]) -> set[int]:
    return {value for data in timelines for value in np.unique(data.columns[column]).tolist()}


def _has(timelines: Sequence[TimelineData], column: str, least: float = 0) -> bool:
    """Whether the column ``column`` of any timeline has a value of at least ``least``."""
    return any((data.columns[column] >= least).any() for data in timelines)


def _swatch(colour: str, hatch: str | None = None) -> Markup:
    edge = "#9aa5ac" if hatch is None else hatch
    shapes = [el("rect", x="0.5", y="0.5", width="19", height="12", fill=colour, stroke=edge)]
    if hatch is not None:
        for x in range(-12, 20, 6):
            line = f"M{x} 13 L{x + 13} 0"
            shapes.append(el("path", d=line, stroke=hatch, stroke_width="2", fill="none"))
    return _icon(*shapes)


def _line(colour: str, dashes: str | None = None) -> Markup:
    return _icon(
        el("path", d="M10 0 V13", stroke=colour, stroke_width="2", stroke_dasharray=dashes)
    )


def _icon(*shapes: Markup) -> Markup:
    return el("svg", *shapes, viewBox="0 0 20 13", aria_hidden="true")
