"""The timeline's controls and key, as HTML: what ``controls.js`` and ``drawing.js`` bring to life."""

from collections.abc import Sequence

import numpy as np

from fedsim.analysis import style
from fedsim.analysis.history import MARKS
from fedsim.analysis.lanes import MEANING
from fedsim.analysis.report.markup import Markup, el, join
from fedsim.analysis.report.timeline import OUTCOMES, STEPS, TimelineData

_BUTTONS = (
    ("out", "\N{MINUS SIGN}", "zoom out (-)"),
    ("in", "+", "zoom in (+)"),
    ("left", "◀", "earlier (left arrow)"),
    ("right", "▶", "later (right arrow)"),
    ("whole", "whole run", "show everything (0)"),
    ("flatter", "flatter", "flatter lanes ([)"),
    ("taller", "taller", "taller lanes (])"),
)
_ORDERS = (("speed", "fastest on top"), ("number", "by number"), ("first", "first at work on top"))
_HELP = (
    ("wheel", "zooms"),
    ("Shift + wheel", "taller or flatter lanes"),
    ("drag", "moves"),
    ("+ - 0", "zoom, show everything"),
    ("← →", "move in time"),
    ("↑ ↓", "other lanes"),
    ("/", "looks for a device"),
    ("n p", "next, previous task of the chosen device"),
    ("Esc", "lets go"),
)
_CROSS, _CIRCLE = "M6 2.5 L14 10.5 M14 2.5 L6 10.5", "M7 6.5 a3 3 0 1 0 6 0 a3 3 0 1 0 -6 0"
_SIGNS = {
    "lost": (_CROSS, "its device disconnected"),
    "left": ("M10 2 L14.5 6.5 L10 11 L5.5 6.5 Z", "its device left for good"),
    "battery": ("M7 2 H13 V11 H7 Z", "its battery is flat"),
    "arrival": ("M6 2 L14 6.5 L6 11 Z", "arrives"),
    "departure": ("M14 2 L6 6.5 L14 11 Z", "leaves for good"),
    "shift": (_CIRCLE, "its data shift"),
    "noticed": (_CIRCLE, "it notices the shift"),
    "move": ("M10 1 V12", "moves to another group"),
}


def stage(place: int, name: str, block: str, grouped: bool) -> Markup:
    """One timeline: its controls, and where it is drawn.

    Args:
        place: its number on the page.
        name: the run's.
        block: the id of the data block that it shows.
        grouped: whether devices are in groups.
    """
    buttons = [
        el("button", sign, type="button", data_do=act, title=title, aria_label=title.partition(" (")[0])
        for act, sign, title in _BUTTONS
    ]
    orders = [*_ORDERS, ("group", "by last group")] if grouped else _ORDERS
    options = [el("option", text, value=value) for value, text in orders]
    tint = el("label", el("input", type="checkbox", name="tint", checked=True), "groups as tints") if grouped else None
    toolbar = el(
        "div",
        el("span", *buttons, class_="buttons"),
        _finder("device", "device"),
        _finder("round", "round"),
        el("label", "lanes ", el("select", *options, name="order")),
        tint,
        class_="toolbar",
        role="group",
        aria_label=f"Timeline of {name}",
    )
    drawn = el(
        "div",
        el("canvas", class_="lanes"),
        el("canvas", class_="over"),
        el("div", class_="hover", hidden=True),
        class_="stage",
        tabindex="0",
        role="application",
        aria_label=f"Timeline of {name}: a lane a device, simulated time from left to right",
        aria_describedby="timeline-help",
    )
    told = el("output", class_="told", aria_live="polite")
    return el("div", toolbar, drawn, told, class_="timeline", id=f"timeline-{place}", data_block=block, hidden=True)


def _finder(name: str, text: str) -> Markup:
    field = el("input", type="text", name=name, inputmode="numeric", autocomplete="off")
    missed = el("output", class_="missed", role="alert")
    return el("form", el("label", text, field), el("button", "show", type="submit"), missed, data_find=name)


def key(found: Sequence[TimelineData]) -> Markup:
    """What the colours and signs of these timelines mean, and what hands can do."""
    kinds = np.unique(np.concatenate([data.columns["kind"] for data in found]))
    marks = np.unique(np.concatenate([data.columns["mark_kind"] for data in found]))
    there = {STEPS[kind & 7] for kind in kinds}, {OUTCOMES[kind >> 3] for kind in kinds}
    entries = [(_swatch(colour), step) for step, colour in style.STEPS.items() if step in there[0]]
    knows = all(data.header["knows_away"] for data in found)
    entries.append((_swatch(style.PALE), "idle" if knows else "idle or disconnected"))
    if any(len(data.columns["off_start"]) for data in found):
        entries.append((_swatch(style.AWAY), "cannot be reached"))
    entries += [
        (_swatch("#ffffff", style.OUTCOMES[outcome]), f"wasted, {text}")
        for outcome, text in MEANING.items()
        if outcome in there[1]
    ]
    signs = [name for name in ("lost", "left", "battery") if name in there[1]]
    entries += [(_sign(name), _SIGNS[name][1]) for name in [*signs, *(MARKS[mark] for mark in marks)]]
    entries.append((_line("#283036", ""), "round's end"))
    if any(data.columns["round_deadline"].any() for data in found):
        entries.append((_line(style.VERMILLION, "4 3"), "deadline that was reached"))
    if any(len(data.columns["act"]) for data in found):
        entries.append((_line(style.PURPLE, "1 2"), "a process of the world acts"))
    if any(data.header["groups"] for data in found):
        entries.append((_tint(), "in a group, each its colour"))
    entries.append((_swatch(style.OUTCOMES["done"]), "devices at work"))
    if there[1] - {"done"}:
        entries.append((_swatch(style.VERMILLION), "devices whose work is wasted"))
    items = [el("li", swatch, text) for swatch, text in entries]
    hands = [el("li", el("kbd", what), does) for what, does in _HELP]
    return join(
        el("ul", *items, class_="key", aria_label="Colours and signs"),
        el("details", el("summary", "Mouse and keys"), el("ul", *hands, class_="key"), id="timeline-help"),
    )


def _sign(name: str) -> Markup:
    path, _ = _SIGNS[name]
    fill = {"left": style.PURPLE, "shift": "#ffffff"}.get(name, "#000000")
    edge = style.PURPLE if name == "left" else "#000000"
    return el("svg", el("path", d=path, stroke=edge, stroke_width="1.6", fill=fill), viewBox="0 0 20 13", aria_hidden="true")


def _swatch(colour: str, hatch: str | None = None) -> Markup:
    lines = (
        [el("path", d=f"M{x} 13 L{x + 13} 0", stroke=hatch, stroke_width="2", fill="none") for x in range(-12, 20, 6)]
        if hatch
        else []
    )
    box = el("rect", x="0.5", y="0.5", width="19", height="12", fill=colour, stroke=hatch or "#9aa5ac")
    return el("svg", box, *lines, viewBox="0 0 20 13", aria_hidden="true")


def _line(colour: str, dashes: str) -> Markup:
    look = {"stroke_dasharray": dashes} if dashes else {}
    return el(
        "svg", el("path", d="M10 0 V13", stroke=colour, stroke_width="2", **look), viewBox="0 0 20 13", aria_hidden="true"
    )


def _tint() -> Markup:
    halves = [
        el("rect", x=x, y="0", width="10", height="13", fill=style.tint(style.group_colour(group)))
        for group, x in ((0, 0), (1, 10))
    ]
    return el("svg", *halves, viewBox="0 0 20 13", aria_hidden="true")
