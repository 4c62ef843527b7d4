"""The interactive timeline: every step of every lane as arrays for ``lanes.js``, its controls and its key.

A lane is a device. Steps stand lane by lane in order of time, in whole ticks, each as its distance from the end of the one
before and its length, which are small numbers and therefore compress well.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedsim.analysis import style
from fedsim.analysis.lanes import MEANING, on_lanes
from fedsim.analysis.report.markup import Markup, asset, el, join
from fedsim.analysis.timeline import capacity, counted
from fedsim.arrays import Ints
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.trackers.link_load import link_load, thinned
from fedsim.records.folder import AVAILABILITY, ROUNDS
from fedsim.records.history import MARKS, NO_GROUP, History, parsed
from fedsim.records.reading import RunFolder

STEPS = tuple(style.STEPS)
OUTCOMES = tuple(style.OUTCOMES)
_TICK_S = 1e-4  # as fine as anybody reads a time off a screen
_LEAST_TICKS, _MOST_TICKS = 2**20, 2**31
_POINTS = 16384  # of a curve: far more than pixels, so that it can be looked at closely
_AMOUNTS = {"train": ("epochs", "asked"), "evaluate": ("models", "models")}  # of a message the bytes delivered, of all

TimelineColumns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class TimelineData:
    """A run for the page: a header for JSON, arrays for ``markup.pack``, and how many steps there are, drawn or not."""

    header: dict[str, Any]
    columns: TimelineColumns
    steps: int


def read_timeline(run: RunFolder, most_lanes: int, most_steps: int) -> TimelineData:
    """Read what a run's timeline shows.

    Of too many devices or steps only devices that worked are read, evenly spread by number.
    """
    history = History(run)
    tick = max(min(_TICK_S, history.end / _LEAST_TICKS), history.end / _MOST_TICKS) or 1.0
    columns = _TimelineReader(history, tick, _shown(history, most_lanes, most_steps)).columns()
    header = {
        "tick": tick,
        "end": round(history.end / tick),
        "population": run.population,
        "worked": int(history.steps["device"].nunique()),
        "groups": {str(group): style.tint(style.group_colour(group)) for group in history.groups},
        "knows_away": run.has(AVAILABILITY),
        "capacity": capacity(run),
        "evaluated": bool(np.isfinite(columns["round_accuracy"]).any()),
    }
    return TimelineData(header, columns, len(history.steps))


def _shown(history: History, most_lanes: int, most_steps: int) -> Ints:
    """The devices that have a lane, by number: all of them, or, of too many, those that worked, or some of these."""
    everyone, steps = history.population.index.to_numpy(np.int64), len(history.steps)
    if len(everyone) <= most_lanes and steps <= most_steps:
        return everyone
    worked = np.unique(history.steps["device"]).astype(np.int64)
    room = min(most_lanes, max(1, int(len(worked) * min(1.0, most_steps / max(1, steps)))))
    return worked[style.evenly(len(worked), room)] if len(worked) else everyone[:most_lanes]


class _TimelineReader:
    """Makes the columns: tables of the devices shown, lane by lane, times in whole ticks."""

    def __init__(self, history: History, tick: float, devices: Ints) -> None:
        self._history, self._tick, self._devices = history, tick, devices
        self._lane = pd.Series(np.arange(len(devices)), index=devices)

    def columns(self) -> TimelineColumns:
        history, run = self._history, self._history.run
        away, stays = self._sorted(history.away), self._sorted(history.stays[history.stays["group"] != NO_GROUP])
        marks = self._sorted(history.marks, "time")
        columns = self._lanes() | self._steps() | self._rounds() | self._paths()
        columns |= {
            "act": np.unique(self._ticks(history.acts["end"])),
            "off_first": self._first(away).astype(np.uint32),
            "off_start": self._ticks(away["start"]),
            "off_end": self._ticks(away["end"]),
            "stay_first": self._first(stays).astype(np.uint32),
            "stay_start": self._ticks(stays["start"]),
            "stay_end": self._ticks(stays["end"]),
            "stay_group": stays["group"].to_numpy(np.int32),
            "mark_lane": marks["lane"].to_numpy(np.uint32),
            "mark_time": self._ticks(marks["time"]),
            "mark_kind": pd.Categorical(marks["kind"], MARKS).codes.astype(np.uint8),
        }
        useful = history.steps["outcome"] == "done"
        curves = {"useful": counted(history.steps[useful]), "wasted": counted(history.steps[~useful])}  # devices at work
        curves |= {"down": link_load(run, "down"), "up": link_load(run, "up")}  # of the server's link, bytes/s
        for name, curve in curves.items():
            small = thinned(curve, _POINTS)
            columns |= {f"{name}_time": self._ticks(small.times), f"{name}_value": small.values.astype(np.float32)}
        return columns

    def _ticks(self, times: Any) -> NDArray[np.uint32]:
        """Times in whole ticks; times after the end lie at it."""
        clipped = np.clip(np.asarray(times, dtype=float), 0.0, self._history.end)
        ticks: NDArray[np.uint32] = np.rint(clipped / self._tick).astype(np.uint32)
        return ticks

    def _sorted(self, table: pd.DataFrame, *by: str) -> pd.DataFrame:
        """The rows of the devices shown, lane by lane in order of time."""
        return on_lanes(table, self._lane).sort_values(["lane", *(by or ["start"])], kind="stable")

    def _first(self, rows: pd.DataFrame) -> Ints:
        """Each lane's first position, and the end."""
        return np.searchsorted(rows["lane"].to_numpy(np.int64), np.arange(len(self._lane) + 1)).astype(np.int64)

    def _lanes(self) -> TimelineColumns:
        own = self._history.population.loc[self._devices]
        return {
            "device": self._devices.astype(np.uint32),
            "speed": own["speed"].to_numpy(np.float32),
            "samples": own["samples"].to_numpy(np.uint32),
            "arrival": self._ticks(own["arrival"].fillna(0.0)),
            "departure": self._ticks(own["departure"].fillna(np.inf)),
            "last_group": own["group"].fillna(NO_GROUP).to_numpy(np.int32),
        }

    def _steps(self) -> TimelineColumns:
        steps = self._sorted(self._history.steps, "start", "task")
        start, end, first = self._ticks(steps["start"]), self._ticks(steps["end"]), self._first(steps)
        kind, outcome = pd.Categorical(steps["step"], STEPS), pd.Categorical(steps["outcome"], OUTCOMES)
        columns: TimelineColumns = {
            "first": first.astype(np.uint32),
            "gap": (start.astype(np.int64) - _before(end, first)).astype(np.int32),
            "length": (end - start).astype(np.uint32),
            "kind": (kind.codes.astype(np.int64) + 8 * outcome.codes.astype(np.int64)).astype(np.uint8),
        }
        for name in ("task", "round", "group"):
            numbers = steps[name].fillna(NO_GROUP).to_numpy(np.int64)
            columns[name] = (numbers - _before(numbers, first)).astype(np.int32)
        keys = [_AMOUNTS.get(step, ("delivered", "bytes")) for step in steps["step"]]
        data = zip(map(parsed, steps["data"]), keys, strict=True)
        amounts = [[own.get(key, np.nan) for key in pair] for own, pair in data]  # how much of how much; NaN where unknown
        done, asked = np.array(amounts, dtype=np.float32).reshape(-1, 2).T
        return columns | {"done": done, "asked": asked}

    def _paths(self) -> TimelineColumns:
        """The critical paths of all rounds, step by step; lane -1 where no device shown was at work."""
        steps = [step for one in CriticalPaths(self._history.run).rounds for step in one.steps]
        lanes = self._lane.reindex([-1 if step.device is None else step.device for step in steps], fill_value=-1)
        return {
            "path_lane": lanes.to_numpy(np.int32),
            "path_start": self._ticks([step.start for step in steps]),
            "path_end": self._ticks([step.end for step in steps]),
        }

    def _rounds(self) -> TimelineColumns:
        """When each round ended, and its deadline if that was reached: else it would fall into the next round."""
        rounds = self._history.rounds
        table = self._history.run.table(ROUNDS).select(["round", "accuracy"]).to_pandas()
        accuracy = table.drop_duplicates("round").set_index("round")["accuracy"]
        reached = rounds["deadline"].where(rounds["deadline"] <= rounds["end"])
        return {
            "round_number": rounds["round"].to_numpy(np.uint32),
            "round_end": self._ticks(rounds["end"]),
            "round_deadline": self._ticks(reached.fillna(0.0)),
            "round_accuracy": rounds["round"].map(accuracy).to_numpy(np.float32),
        }


def _before(values: NDArray[Any], first: Ints) -> Ints:
    """The value before each one in its lane, 0 before the first; ``first`` has each lane's first position and the end."""
    before = np.concatenate([[0], values[:-1]]).astype(np.int64) if len(values) else np.zeros(0, np.int64)
    before[first[:-1][first[:-1] < first[1:]]] = 0
    return before


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


def stage(place: int, name: str, grouped: bool) -> Markup:
    """A run's timeline, the ``place``-th of the page: its controls, and where it is drawn from its data block."""
    tint = el("label", el("input", type="checkbox", name="tint", checked=True), "groups as tints") if grouped else ""
    by_group = el("option", "by last group", value="group") if grouped else ""
    words = {"place": str(place), "name": html.escape(name), "tint": tint, "by_group": by_group}
    return Markup(Template(asset("stage.html")).substitute(words))


def key(found: Sequence[TimelineData]) -> Markup:
    """Legend of the colours and signs of these timelines, with the controls."""
    kinds = np.unique(np.concatenate([data.columns["kind"] for data in found]))
    marks = np.unique(np.concatenate([data.columns["mark_kind"] for data in found]))
    steps, outcomes = {STEPS[kind & 7] for kind in kinds}, {OUTCOMES[kind >> 3] for kind in kinds}
    entries = [(_swatch(colour), step) for step, colour in style.STEPS.items() if step in steps]
    knows = all(data.header["knows_away"] for data in found)
    entries.append((_swatch(style.PALE), "idle" if knows else "idle or disconnected"))
    if any(len(data.columns["off_start"]) for data in found):
        entries.append((_swatch(style.AWAY), "cannot be reached"))
    wasted = [outcome for outcome in MEANING if outcome in outcomes]
    entries += [(_swatch("#ffffff", style.OUTCOMES[outcome]), f"wasted, {MEANING[outcome]}") for outcome in wasted]
    signs = [name for name in ("lost", "left", "battery") if name in outcomes]
    entries += [(_sign(name), _SIGNS[name][1]) for name in [*signs, *(MARKS[mark] for mark in marks)]]
    entries.append((_line("#283036", None), "round's end"))
    if any((data.columns["path_lane"] >= 0).any() for data in found):
        entries.append((_icon(el("path", d="M0 10 H9 V3 H20", class_="path")), "critical path: what each round waited for"))
    if any(data.columns["round_deadline"].any() for data in found):
        entries.append((_line(style.VERMILLION, "4 3"), "deadline that was reached"))
    if any(len(data.columns["act"]) for data in found):
        entries.append((_line(style.PURPLE, "1 2"), "a process of the world acts"))
    if any(data.header["groups"] for data in found):
        entries.append((_tint(), "in a group, each its colour"))
    entries.append((_swatch(style.OUTCOMES["done"]), "devices at work"))
    if outcomes - {"done"}:
        entries.append((_swatch(style.VERMILLION), "devices whose work is wasted"))
    items = [el("li", swatch, text) for swatch, text in entries]
    return join(el("ul", *items, class_="key", aria_label="Colours and signs"), asset("help.html"))


def _sign(name: str) -> Markup:
    path, _ = _SIGNS[name]
    fill = {"left": style.PURPLE, "shift": "#ffffff"}.get(name, "#000000")
    edge = style.PURPLE if name == "left" else "#000000"
    return _icon(el("path", d=path, stroke=edge, stroke_width="1.6", fill=fill))


def _swatch(colour: str, hatch: str | None = None) -> Markup:
    box = el("rect", x="0.5", y="0.5", width="19", height="12", fill=colour, stroke=hatch or "#9aa5ac")
    starts = range(-12, 20, 6) if hatch else ()
    lines = [el("path", d=f"M{x} 13 L{x + 13} 0", stroke=hatch, stroke_width="2", fill="none") for x in starts]
    return _icon(box, *lines)


def _line(colour: str, dashes: str | None) -> Markup:
    return _icon(el("path", d="M10 0 V13", stroke=colour, stroke_width="2", stroke_dasharray=dashes))


def _tint() -> Markup:
    colours = [style.tint(style.group_colour(group)) for group in (0, 1)]
    return _icon(*(el("rect", x=10 * place, y="0", width="10", height="13", fill=own) for place, own in enumerate(colours)))


def _icon(*shapes: Markup) -> Markup:
    return el("svg", *shapes, viewBox="0 0 20 13", aria_hidden="true")
