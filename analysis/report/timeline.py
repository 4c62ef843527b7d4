"""The interactive timeline: every step of every lane (a device) as arrays for ``lanes.js``, its
controls and its key.

Steps are in order of lane and time, in whole ticks, each as its gap to the one before and its
length: small numbers, which compress well.
"""

import html
from collections.abc import Sequence
from string import Template
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.analysis import style
from fedsim.analysis.report.markup import Markup, asset, el, join
from fedsim.analysis.timeline import MEANING, capacity, counted, on_lanes
from fedsim.common.arrays import Ints
from fedsim.common.harmless import harmless
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.reading.history import MARKS, NO_GROUP, History, parsed
from fedsim.lab.trackers.link_load import link_load, thinned
from fedsim.records.folder import AVAILABILITY
from fedsim.records.reading import RunFolder

STEPS = tuple(style.STEPS)
OUTCOMES = tuple(style.OUTCOMES)
_TICK_S = 1e-4  # as fine as anybody reads a time off a screen
_LEAST_TICKS = 2**20
_MOST_TICKS = 2**31
_POINTS = 16384  # of a curve: far more than pixels, so that it can be looked at closely
# of a message the bytes delivered, of all
_AMOUNTS = {"train": ("epochs", "asked"), "evaluate": ("models", "models")}


class TimelineData(NamedTuple):
    """A run for the page: a header for JSON, and arrays for ``markup.pack``."""

    header: dict[str, Any]
    columns: dict[str, NDArray[Any]]


def read_timeline(run: RunFolder, most_lanes: int, most_steps: int) -> TimelineData:
    """Read a run's timeline; beyond a limit only active devices, evenly spread by number."""
    history = History(run)
    tick = max(min(_TICK_S, history.end / _LEAST_TICKS), history.end / _MOST_TICKS) or 1.0
    devices = _shown(history, most_lanes, most_steps)
    columns = _columns(history, tick, devices, pd.Series(np.arange(len(devices)), index=devices))
    header = {
        "tick": tick,
        "end": round(history.end / tick),
        "population": run.population,
        "worked": int(history.steps["device"].nunique()),
        "groups": {str(group): style.group_tint(group) for group in history.groups},
        "knows_away": run.has(AVAILABILITY),
        "capacity": capacity(run),
        "evaluated": bool(np.isfinite(columns["round_accuracy"]).any()),
    }
    return TimelineData(header, columns)


def _shown(history: History, most_lanes: int, most_steps: int) -> Ints:
    everyone = history.population.index.to_numpy(np.int64)
    steps = len(history.steps)
    if len(everyone) <= most_lanes and steps <= most_steps:
        return everyone
    worked = np.unique(history.steps["device"]).astype(np.int64)
    room = min(most_lanes, max(1, int(len(worked) * min(1.0, most_steps / max(1, steps)))))
    return worked[style.evenly(len(worked), room)] if len(worked) else everyone[:most_lanes]


def _columns(
    history: History, tick: float, devices: Ints, lane: "pd.Series[Any]"
) -> dict[str, NDArray[Any]]:
    run = history.run

    def ticks(times: Any) -> NDArray[np.uint32]:
        # times after the end lie at it
        clipped = np.clip(np.asarray(times, dtype=float), 0.0, history.end)
        return np.asarray(np.rint(clipped / tick), dtype=np.uint32)

    def of_lanes(table: pd.DataFrame, *by: str) -> tuple[pd.DataFrame, Ints]:
        """The rows of the devices shown, lane by lane in order of time; each lane's first
        position, and the end.
        """
        rows = on_lanes(table, lane).sort_values(["lane", *by], kind="stable")
        return rows, np.searchsorted(
            rows["lane"].to_numpy(np.int64), np.arange(len(lane) + 1)
        ).astype(np.int64)

    def before(values: NDArray[Any]) -> NDArray[Any]:
        """The value of the step before each in its lane, 0 before the first."""
        return (
            pd.Series(values, dtype=np.int64)
            .groupby(steps["lane"].to_numpy())
            .shift(fill_value=0)
            .to_numpy()
        )

    own = history.population.loc[devices]
    steps, first = of_lanes(history.steps, "start", "task")
    away, off_first = of_lanes(history.away, "start")
    stays, stay_first = of_lanes(history.stays[history.stays["group"] != NO_GROUP], "start")
    marks, _ = of_lanes(history.marks, "time")
    start = ticks(steps["start"])
    end = ticks(steps["end"])
    kind, outcome = (
        pd.Categorical(steps[name], among).codes
        for name, among in (("step", STEPS), ("outcome", OUTCOMES))
    )
    numbers = {
        name: steps[name].fillna(NO_GROUP).to_numpy(np.int64) for name in ("task", "round", "group")
    }
    keys = [_AMOUNTS.get(step, ("delivered", "bytes")) for step in steps["step"]]
    data = zip(map(parsed, steps["data"]), keys, strict=True)
    # how much of how much; NaN where unknown
    amounts = [[facts.get(key, np.nan) for key in pair] for facts, pair in data]
    done, asked = np.array(amounts, dtype=np.float32).reshape(-1, 2).T
    rounds = history.rounds
    accuracy = {row["round"]: row["accuracy"] for row in run.rounds}
    # else it would fall into the next round
    reached = rounds["deadline"].where(rounds["deadline"] <= rounds["end"])
    path = [step for one in CriticalPaths(run).rounds for step in one.steps]
    on_path = lane.reindex(
        [-1 if step.device is None else step.device for step in path], fill_value=-1
    )
    useful = history.steps["outcome"] == "done"
    # devices at work
    curves = {"useful": counted(history.steps[useful]), "wasted": counted(history.steps[~useful])}
    # of the server's link, bytes/s
    curves |= {"down": link_load(run, "down"), "up": link_load(run, "up")}
    small = {name: thinned(curve, _POINTS) for name, curve in curves.items()}
    return {
        "device": devices.astype(np.uint32),
        "speed": own["speed"].to_numpy(np.float32),
        "samples": own["samples"].to_numpy(np.uint32),
        "arrival": ticks(own["arrival"].fillna(0.0)),
        "departure": ticks(own["departure"].fillna(np.inf)),
        "last_group": own["group"].fillna(NO_GROUP).to_numpy(np.int32),
        "first": first.astype(np.uint32),
        "gap": (start - before(end)).astype(np.int32),
        "length": (end - start).astype(np.uint32),
        "kind": (kind.astype(np.int64) + 8 * outcome.astype(np.int64)).astype(np.uint8),
        **{name: (values - before(values)).astype(np.int32) for name, values in numbers.items()},
        "done": done,
        "asked": asked,
        "round_number": rounds["round"].to_numpy(np.uint32),
        "round_end": ticks(rounds["end"]),
        "round_deadline": ticks(reached.fillna(0.0)),
        "round_accuracy": rounds["round"].map(accuracy).astype(np.float32).to_numpy(),
        "path_lane": on_path.to_numpy(np.int32),  # -1 where no device shown was at work
        "path_start": ticks([step.start for step in path]),
        "path_end": ticks([step.end for step in path]),
        "act": np.unique(ticks(history.acts["end"])),
        "off_first": off_first.astype(np.uint32),
        "off_start": ticks(away["start"]),
        "off_end": ticks(away["end"]),
        "stay_first": stay_first.astype(np.uint32),
        "stay_start": ticks(stays["start"]),
        "stay_end": ticks(stays["end"]),
        "stay_group": stays["group"].to_numpy(np.int32),
        "mark_lane": marks["lane"].to_numpy(np.uint32),
        "mark_time": ticks(marks["time"]),
        "mark_kind": pd.Categorical(marks["kind"], MARKS).codes.astype(np.uint8),
        **{f"{name}_time": ticks(curve.times) for name, curve in small.items()},
        **{f"{name}_value": curve.values.astype(np.float32) for name, curve in small.items()},
    }


_CROSS = "M6 2.5 L14 10.5 M14 2.5 L6 10.5"
_CIRCLE = "M7 6.5 a3 3 0 1 0 6 0 a3 3 0 1 0 -6 0"
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


def stage(place: int, name: str, grouped: bool) -> Markup:
    """A run's timeline, the ``place``-th of the page: its controls, and where it is drawn from
    its data block.
    """
    tint = (
        el("label", el("input", type="checkbox", name="tint", checked=True), "groups as tints")
        if grouped
        else ""
    )
    by_group = el("option", "by last group", value="group") if grouped else ""
    words = {
        "place": str(place),
        "name": html.escape(harmless(name)),
        "tint": tint,
        "by_group": by_group,
    }
    return Markup(Template(asset("stage.html")).substitute(words))


def key(found: Sequence[TimelineData]) -> Markup:
    """Legend of the colours and signs of these timelines, with the controls."""
    kinds = np.unique(np.concatenate([data.columns["kind"] for data in found]))
    marks = np.unique(np.concatenate([data.columns["mark_kind"] for data in found]))
    steps = {STEPS[kind & 7] for kind in kinds}
    outcomes = {OUTCOMES[kind >> 3] for kind in kinds}
    signs = outcomes | {MARKS[mark] for mark in marks}

    def has(column: str, least: int = 0) -> bool:
        return any((data.columns[column] >= least).any() for data in found)

    knows = all(data.header["knows_away"] for data in found)
    tints = [
        el("rect", x=10 * group, y="0", width="10", height="13", fill=style.group_tint(group))
        for group in (0, 1)
    ]
    edges = {"left": (style.PURPLE, style.PURPLE), "shift": ("#000000", "#ffffff")}
    entries = [
        *((step in steps, _swatch(colour), step) for step, colour in style.STEPS.items()),
        (True, _swatch(style.PALE), "idle" if knows else "idle or disconnected"),
        (has("off_start"), _swatch(style.AWAY), "cannot be reached"),
        *(
            (own in outcomes, _swatch("#ffffff", style.OUTCOMES[own]), f"wasted, {MEANING[own]}")
            for own in MEANING
        ),
        *(
            (name in signs, _sign(path, *edges.get(name, ("#000000",) * 2)), words)
            for name, (path, words) in _SIGNS.items()
        ),
        (True, _line("#283036", None), "round's end"),
        (
            has("path_lane"),
            _icon(el("path", d="M0 10 H9 V3 H20", class_="path")),
            "critical path: what each round waited for",
        ),
        (has("round_deadline", 1), _line(style.VERMILLION, "4 3"), "deadline that was reached"),
        (has("act"), _line(style.PURPLE, "1 2"), "a process of the world acts"),
        (
            any(data.header["groups"] for data in found),
            _icon(*tints),
            "in a group, each its colour",
        ),
        (True, _swatch(style.OUTCOMES["done"]), "devices at work"),
        (bool(outcomes - {"done"}), _swatch(style.VERMILLION), "devices whose work is wasted"),
    ]
    items = [el("li", swatch, text) for there, swatch, text in entries if there]
    return join(el("ul", *items, class_="key", aria_label="Colours and signs"), asset("help.html"))


def _swatch(colour: str, hatch: str | None = None) -> Markup:
    box = el(
        "rect", x="0.5", y="0.5", width="19", height="12", fill=colour, stroke=hatch or "#9aa5ac"
    )
    starts = range(-12, 20, 6) if hatch else ()
    return _icon(
        box,
        *(
            el("path", d=f"M{x} 13 L{x + 13} 0", stroke=hatch, stroke_width="2", fill="none")
            for x in starts
        ),
    )


def _sign(path: str, edge: str, fill: str) -> Markup:
    return _icon(el("path", d=path, stroke=edge, stroke_width="1.6", fill=fill))


def _line(colour: str, dashes: str | None) -> Markup:
    return _icon(
        el("path", d="M10 0 V13", stroke=colour, stroke_width="2", stroke_dasharray=dashes)
    )


def _icon(*shapes: Markup) -> Markup:
    return el("svg", *shapes, viewBox="0 0 20 13", aria_hidden="true")
