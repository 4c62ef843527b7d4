"""Lanes of devices: each one's steps as bars, and marks where something happened to it.

Bars of one kind are one collection, and many bars become pixels inside the SVG, so that a thousand devices over hundreds of
rounds take seconds.
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
from fedsim.analysis.history import MARKS, History
from fedsim.analysis.view import View

_LEAST_LANES = 5  # fewer lanes leave room, rather than to grow fat
_MANY_LANES = 60  # with more, lanes are too thin for hatches and a label each
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
    names = [f"{device}  ({speeds[device]:.3g}/s)" for device in view.devices[lanes]]
    axes.set_yticks(lanes, names, fontsize=10 if count > _MANY_LANES else 9 if count <= 45 else 8)
    axes.tick_params(axis="y", length=0 if count <= _MANY_LANES else 3)


def mark_rows(panel: Axes, history: History, row: "pd.Series[float]", unit: float) -> list[Artist]:
    """Draw a mark for each instant of ``history.marks`` within the panel's limits; returns the legend's entries.

    Args:
        panel: where.
        history: what happened.
        row: each shown device's row, by device.
        unit: seconds that the time axis counts as one.
    """
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
