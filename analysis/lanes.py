"""Lanes of devices: the part of a run that is shown, each device's steps as bars, and marks where something happened to it.

Bars of one kind are one collection, and many bars become pixels inside the SVG: it stays small, and takes seconds.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.style import NothingToDrawError, PictureError, evenly, time_unit
from fedsim.arrays import Floats, Ints
from fedsim.errors import nearest
from fedsim.records.history import MARKS, History

ORDERS = ("speed", "first", "number")
TimeSpan = tuple[float, float]

MOST_LANES = 1500  # more would be thinner than a pixel
_GAPPED_LANES = 150


class View:
    """The part of a run that is shown.

    Args:
        history: what happened. If it is known of some devices when they could be reached, only those have lanes.
        span: from and to, in simulated seconds; None for the whole run. Records at its start belong to the time before.
        most: show at most so many of the devices that worked, evenly spread over the order.
        order: ``speed`` (fastest on top), ``first`` (who worked first on top) or ``number``.

    Attributes:
        devices: the devices shown, from the top lane to the bottom one.
        at_work: how many devices worked within the span, shown or not.
        there, away, steps, tasks: tables of the history cut to the devices, with ``lane``, the last two to the span as well;
            ``away`` is None where nobody knows.
        rounds, acts: tables of the history cut to the span.
        half_lane: half of a bar's height in its lane; thin lanes have no gap between them.
        unit: of the time axis.

    Raises:
        PictureError: there is no such order, span or number of devices.
        NothingToDrawError: nobody worked within the span.
    """

    def __init__(self, history: History, span: TimeSpan | None = None, most: int = MOST_LANES, order: str = "speed") -> None:
        if order not in ORDERS:
            raise PictureError(f"the order is {order!r}; allowed are {', '.join(ORDERS)}{nearest(order, ORDERS)}")
        if most < 1:
            raise PictureError(f"the number of devices is {most}; allowed is 1 or more")
        start, end = span or (0.0, history.end)
        if 0 <= start == end:
            raise NothingToDrawError(f"no simulated time passes from {start:g} s to {end:g} s, so there is no timeline to draw")
        if not 0 <= start < end:
            raise PictureError(f"the window is {start:g} s to {end:g} s; it must begin at 0 s or later and end after that")
        since = start if start > 0 else -np.inf  # what ends at the very beginning of the run belongs to it
        steps = history.steps[(history.steps["end"] > since) & (history.steps["start"] < end)]
        tables = (history.tasks, history.rounds, history.acts)
        tasks, self.rounds, self.acts = (table[table["end"].between(since, end, inclusive="right")] for table in tables)
        at_work = _sorted(steps, history.population, order)
        if not len(at_work):
            raise NothingToDrawError(f"no device worked between {start:g} s and {end:g} s, so there is no timeline to draw")
        known = at_work[np.isin(at_work, history.known)] if len(history.known) else at_work
        self.history, self.start, self.end, self.span = history, start, end, end - start
        self.devices, self.at_work = known[evenly(len(known), most)], len(at_work)
        self.half_lane, self.unit = 0.4 if len(self.devices) <= _GAPPED_LANES else 0.5, time_unit(self.span)
        lane = pd.Series(np.arange(len(self.devices)), index=self.devices)
        self.there, self.steps, self.tasks = (on_lanes(table, lane) for table in (history.there, steps, tasks))
        self.away = on_lanes(history.away, lane) if len(history.known) else None


def span_of_rounds(history: History, first: int, stop: int) -> TimeSpan:
    """The simulated time of rounds ``first`` to ``stop - 1``, numbered from 0; ``PictureError`` if there are none."""
    numbers, ends = history.rounds["round"], history.rounds["end"]
    inside = ends[(numbers >= first) & (numbers < stop)]
    if inside.empty:
        last = f"rounds 0 to {numbers.max()}" if len(numbers) else "no finished round"
        raise PictureError(f"rounds {first}:{stop} are not in this run, which has {last}")
    before = ends[numbers < first]
    return (float(before.max()) if len(before) else 0.0), float(inside.max())


def on_lanes(rows: pd.DataFrame, lane: "pd.Series[Any]") -> pd.DataFrame:
    """The rows of the devices that have a lane, with the column ``lane``."""
    shown = rows[rows["device"].isin(lane.index)]
    return shown.assign(lane=shown["device"].map(lane).astype(int))


def _sorted(steps: pd.DataFrame, population: pd.DataFrame, order: str) -> Ints:
    """The devices that did these steps, in order."""
    if order == "speed":
        speeds = population.loc[population.index.isin(steps["device"]), "speed"]
        return speeds.sort_values(ascending=False, kind="stable").index.to_numpy(np.int64)
    first = steps.groupby("device")["start"].min()
    return (first.sort_values(kind="stable") if order == "first" else first).index.to_numpy(np.int64)


_LEAST_LANES = 5  # fewer lanes leave room, rather than to grow fat
_MANY_LANES = 60  # with more, lanes are too thin for hatches and a label each
_MOST_NUMBERS = 24  # more round numbers run into one another
_MANY_ROUNDS = 60  # with more, bars are too short for hatches
MANY_BARS = 4000  # as vectors they would make the SVG large and slow
_PIXELS = 1250  # about what the time axis has: a step, however short, is drawn one pixel wide
_SHAPES: dict[str, Any] = {"arrival": 9, "departure": 8, "move": "|", "late": "|", "lost": "x", "left": "D", "battery": "s"}
_MEANING_OF_MARKS = {
    "arrival": "arrives",
    "departure": "leaves for good",
    "shift": "its data shift",
    "noticed": "it notices the shift",
    "move": "moves to another group",
}
MEANING = {
    "late": "late: ended by the server",
    "lost": "lost: device disconnected",
    "left": "left for good",
    "battery": "battery: flat",
    "stopped": "cut off by the end of the run",
    "memory": "the model does not fit into the device's memory",
}


def draw_lanes(axes: Axes, view: View) -> list[Artist]:
    """Draw every step, over it what was wasted, and marks; sets the limits; returns the legend's entries."""
    coarse = len(view.devices) <= _MANY_LANES and len(view.rounds) <= _MANY_ROUNDS
    axes.set_ylim(max(len(view.devices), _LEAST_LANES) - 0.5, -0.5)
    axes.set_xlim(view.start / view.unit.size, view.end / view.unit.size)
    _draw_bars(axes, view, view.there, facecolor=style.PALE, zorder=0)
    handles: list[Artist] = []
    for step, colour in style.STEPS.items():
        own = view.steps[view.steps["step"] == step]
        if len(own):
            _draw_steps(axes, view, own[own["outcome"] == "done"], gid=step, facecolor=colour)
            handles.append(Patch(facecolor=colour, label=step))
    edge: dict[str, Any] = {"edgecolor": style.GREY, "linewidth": 0.4}
    handles.append(Patch(facecolor=style.PALE, label="idle" if view.away is not None else "idle or disconnected", **edge))
    if view.away is not None and len(view.away):
        _draw_bars(axes, view, view.away, facecolor=style.AWAY, zorder=0.7, gid="away")
        handles.append(Patch(facecolor=style.AWAY, label="cannot be reached", **edge))
    for outcome in MEANING:
        wasted = view.steps[view.steps["outcome"] == outcome]
        if len(wasted):
            handles.append(_draw_wasted(axes, view, wasted, outcome, coarse))
    size = float(np.clip(min(320 / len(view.devices), 1200 / max(1, len(view.rounds))), 3.0, 8.0))
    for outcome in ("late", "lost", "left", "battery"):
        own = view.tasks[view.tasks["outcome"] == outcome]
        if coarse or outcome != "late":  # a late bar that is thin ends plainly enough
            handles += _draw_marks(axes, own["end"] / view.unit.size, own["lane"], outcome, size)
    return handles


def label_lanes(axes: Axes, view: View) -> None:
    """Name the lanes by device and speed: all of few, some of many."""
    count, speeds = len(view.devices), view.history.population["speed"]
    lanes = np.arange(count) if count <= _MANY_LANES else style.evenly(count, 21)
    host = view.history.run.scenario["population"].get("host")
    places = ["" if host is None else f" at host {device % host['number']}" for device in view.devices[lanes]]
    names = [f"{device}{at}  ({speeds[device]:.3g}/s)" for device, at in zip(view.devices[lanes], places, strict=True)]
    axes.set_yticks(lanes, names, fontsize=10 if count > _MANY_LANES else 9 if count <= 45 else 8)
    axes.tick_params(axis="y", length=0 if count <= _MANY_LANES else 3)


def number_rounds(panel: Axes, numbers: Ints, places: Floats, label: str, tick: float = 0) -> None:
    """Round numbers above a panel, each at its place, with a tick (points); of many rounds some, none too close together."""
    least, last, shown = (panel.get_xlim()[1] - panel.get_xlim()[0]) / 40, -np.inf, dict[float, str]()
    for number, place in zip(numbers, places, strict=True):
        if number % style.step_for(len(numbers), _MOST_NUMBERS) == 0 and place - last >= least:
            shown[place], last = str(number), place
    if shown:
        above = panel.secondary_xaxis("top")
        above.set_xticks([*shown], [*shown.values()])
        above.tick_params(length=tick, pad=1)
        above.set_xlabel(label, fontsize=10)


def mark_rows(panel: Axes, history: History, row: "pd.Series[float]", unit: float) -> list[Artist]:
    """Draw ``history.marks`` within the panel's limits, each in its device's row; returns the legend's entries."""
    shown = history.marks[history.marks["device"].isin(row.index) & (history.marks["time"] / unit).between(*panel.get_xlim())]
    size, handles = float(np.clip(420 / len(row), 2.2, 7.0)), []
    for kind in MARKS:
        own = shown[shown["kind"] == kind]
        handles += _draw_marks(panel, own["time"] / unit, own["device"].map(row), kind, size)
    return handles


def _draw_marks(panel: Axes, x: "pd.Series[float]", y: "pd.Series[float]", kind: str, size: float) -> list[Artist]:
    """Marks of one kind; returns the legend's entry, which is large enough to be recognised however many lanes there are."""
    if x.empty:
        return []
    shape = _SHAPES.get(kind, "o")
    look: dict[str, Any] = {"marker": shape, "color": style.OUTCOMES.get(kind, style.BLACK), "linestyle": ""}
    look |= {"markerfacecolor": "white"} if kind == "shift" else {}
    width = size / 7 if shape == "o" else max(0.8, size / 4)
    drawn: dict[str, Any] = {"markersize": size * {"|": 1.4, "o": 0.84}.get(shape, 1.0), "markeredgewidth": width}
    if kind in ("move", "lost", "left", "battery"):
        drawn["path_effects"] = [patheffects.withStroke(linewidth=width + 1.5, foreground="white")]
    panel.plot(x, y, gid=kind, zorder=3, clip_on=kind == "late", rasterized=len(x) > MANY_BARS, **look, **drawn)
    size, width = (10, 1.5) if shape == "|" else (6.5, 1.0)
    label = _MEANING_OF_MARKS.get(kind, f"{kind} at this instant")
    return [Line2D([], [], label=label, markersize=size, markeredgewidth=width, **look)]


def _draw_wasted(axes: Axes, view: View, steps: pd.DataFrame, outcome: str, coarse: bool) -> Artist:
    """Work that was wasted: hatched over its step's pale colour, or in small bars plainly in the cause's colour."""
    colour, label = style.OUTCOMES[outcome], f"wasted, {MEANING[outcome]}"
    if not coarse:
        _draw_steps(axes, view, steps, gid=f"wasted-{outcome}", facecolor=colour)
        return Patch(facecolor=colour, label=label)
    hatched: dict[str, Any] = {"edgecolor": colour, "hatch": "//////", "linewidth": 0.8}
    for step, rows in steps.groupby("step"):
        pale = style.lighten(style.STEPS[str(step)], 0.5)
        _draw_steps(axes, view, rows, gid=f"{step}-{outcome}", facecolor=pale, **hatched)
    return Patch(facecolor="white", label=label, **hatched)


def _draw_steps(axes: Axes, view: View, steps: pd.DataFrame, **look: Any) -> None:
    _draw_bars(axes, view, steps.assign(end=np.maximum(steps["end"], steps["start"] + view.span / _PIXELS)), **look)


def _draw_bars(axes: Axes, view: View, rows: pd.DataFrame, **look: Any) -> None:
    start, end = (rows[name].to_numpy(float) / view.unit.size for name in ("start", "end"))
    many = len(view.devices) > _MANY_LANES or len(rows) > MANY_BARS
    style.bars(axes, start, end, rows["lane"], view.half_lane, rasterized=many, **look)
