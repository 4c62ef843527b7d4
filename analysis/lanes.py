"""The lanes of a timeline: each device's steps as bars, and marks where its tasks ended early.

Bars of one kind are one collection, and many bars become pixels inside the SVG, so that a thousand devices over hundreds of
rounds take seconds.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from fedsim.analysis import style
from fedsim.analysis.view import View

_LEAST_LANES = 5  # fewer lanes leave room, rather than to grow fat
_MANY_LANES = 60  # with more, lanes are too thin for hatches and a label each
_MANY_ROUNDS = 60  # with more, bars are too short for hatches
_MANY_BARS = 4000  # as vectors they would make the SVG large and slow
_PIXELS = 1250  # about what the time axis has: a step, however short, is drawn one pixel wide
_MARKS = {"late": "|", "lost": "x", "left": "D", "battery": "s"}
MEANING = {
    "late": "late: ended by the server",
    "lost": "lost: device disconnected",
    "left": "left for good",
    "battery": "battery: flat",
    "stopped": "cut off by the end of the run",
    "memory": "the model does not fit into the device's memory",
}


def draw_lanes(axes: Axes, view: View, unit: float) -> list[Artist]:
    """Draw every step, over it what was wasted, and marks; returns the legend's entries.

    Args:
        axes: where; its limits are set.
        view: what to show.
        unit: seconds that the time axis counts as one.
    """
    coarse = len(view.devices) <= _MANY_LANES and len(view.rounds) <= _MANY_ROUNDS
    axes.set_ylim(max(len(view.devices), _LEAST_LANES) - 0.5, -0.5)
    axes.set_xlim(view.start / unit, view.end / unit)
    _draw_background(axes, view, unit)
    useful = view.steps[view.steps["outcome"] == "done"]
    handles: list[Artist] = []
    for step, colour in style.STEPS.items():
        if (view.steps["step"] == step).any():
            _draw_bars(axes, view, useful[useful["step"] == step], unit, gid=step, facecolor=colour)
            handles.append(Patch(facecolor=colour, label=step))
    edge: dict[str, Any] = {"edgecolor": style.GREY, "linewidth": 0.4}
    handles.append(Patch(facecolor=style.PALE, label="idle" if view.away is not None else "idle or disconnected", **edge))
    if view.away is not None and len(view.away):
        handles.append(Patch(facecolor=style.AWAY, label="cannot be reached", **edge))
    for outcome in MEANING:
        wasted = view.steps[view.steps["outcome"] == outcome]
        if len(wasted):
            handles.append(_draw_wasted(axes, view, wasted, outcome, unit, coarse))
    marks = [outcome for outcome in _MARKS if coarse or outcome != "late"]  # a late bar that is thin ends plainly enough
    return [*handles, *(handle for outcome in marks for handle in _draw_marks(axes, view, outcome, unit))]


def label_lanes(axes: Axes, view: View, population: pd.DataFrame) -> None:
    """Name the lanes by device and speed: all of few, some of many."""
    count = len(view.devices)
    speeds = population.set_index("device")["speed"]
    lanes = np.arange(count) if count <= _MANY_LANES else style.evenly(count, 21)
    names = [f"{device}  ({speeds[device]:.3g}/s)" for device in view.devices[lanes]]
    axes.set_yticks(lanes, names, fontsize=10 if count > _MANY_LANES else 9 if count <= 45 else 8)
    axes.tick_params(axis="y", length=0 if count <= _MANY_LANES else 3)


def _draw_background(axes: Axes, view: View, unit: float) -> None:
    """A pale band a lane while the device is there, darker where it cannot be reached."""
    for stretches, colour, gid in ((view.there, style.PALE, None), (view.away, style.AWAY, "away")):
        if stretches is None or stretches.empty:
            continue
        start, end, lane = (stretches[name].to_numpy(float) for name in ("start", "end", "lane"))
        bands = style.rectangles(start / unit, end / unit, lane - view.half_lane, lane + view.half_lane, facecolor=colour)
        bands.set(
            zorder=0 if gid is None else 0.7, gid=gid, rasterized=len(view.devices) > _MANY_LANES or len(lane) > _MANY_BARS
        )
        axes.add_collection(bands, autolim=False)


def _draw_wasted(axes: Axes, view: View, steps: pd.DataFrame, outcome: str, unit: float, coarse: bool) -> Artist:
    """Work that was wasted: hatched over its step's pale colour, or in small bars plainly in the cause's colour."""
    colour, label = style.OUTCOMES[outcome], f"wasted, {MEANING[outcome]}"
    if not coarse:
        _draw_bars(axes, view, steps, unit, gid=f"wasted-{outcome}", facecolor=colour)
        return Patch(facecolor=colour, label=label)
    hatched: dict[str, Any] = {"edgecolor": colour, "hatch": "//////", "linewidth": 0.8}
    for step, rows in steps.groupby("step"):
        pale = style.lighten(style.STEPS[str(step)], 0.5)
        _draw_bars(axes, view, rows, unit, gid=f"{step}-{outcome}", facecolor=pale, **hatched)
    return Patch(facecolor="white", label=label, **hatched)


def _draw_bars(axes: Axes, view: View, steps: pd.DataFrame, unit: float, **look: Any) -> None:
    start, end, lane = (steps[name].to_numpy(float) for name in ("start", "end", "lane"))
    end = np.maximum(end, start + view.span / _PIXELS)
    bars = style.rectangles(start / unit, end / unit, lane - view.half_lane, lane + view.half_lane, **look)
    bars.set_rasterized(len(view.devices) > _MANY_LANES or len(steps) > _MANY_BARS)
    axes.add_collection(bars, autolim=False)


def _draw_marks(axes: Axes, view: View, outcome: str, unit: float) -> list[Artist]:
    """A mark at each instant at which a task ended so; its ``gid`` is the outcome."""
    ends = view.tasks[view.tasks["outcome"] == outcome]
    if ends.empty:
        return []
    size = float(np.clip(min(320 / len(view.devices), 1200 / max(1, len(view.rounds))), 3.0, 8.0))
    look: dict[str, Any] = {"marker": _MARKS[outcome], "color": style.OUTCOMES[outcome], "linewidths": size / 4}
    look["s"] = size**2 * (2 if outcome == "late" else 1)
    label = f"{outcome} at this instant"
    marks = axes.scatter(ends["end"] / unit, ends["lane"], zorder=3, gid=outcome, label=label, **look)
    marks.set_rasterized(len(ends) > _MANY_BARS)
    if outcome != "late":
        marks.set_clip_on(False)  # who is lost last is lost at the very edge
        marks.set_path_effects([patheffects.withStroke(linewidth=size / 4 + 1.6, foreground="white")])
    return [marks]
