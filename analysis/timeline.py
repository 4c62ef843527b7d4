"""A lane a device and what it did when: its steps, the work that was thrown away and why, deadlines and round ends.

Under the lanes stands how each round's tasks ended, and beside them how each device's did. Bars of one colour and kind are one
collection, and many bars become pixels inside the SVG, so that a thousand devices over hundreds of rounds take seconds.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib import patheffects
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis import style
from analysis.activity import read_activity
from analysis.view import MOST_LANES, Span, View, look_at, span_of_rounds
from fedsim.records.folder import DEVICES
from fedsim.records.reading import RunFolder
from fedsim.units import show_seconds

_TALL_IN, _LANE_IN, _SHORT_IN = 9.0, 0.24, 2.2  # the lanes' height: so much a device, within these limits
_BESIDES_IN = 3.1  # title, strip, axis labels, legend
_MANY_LANES = 60  # with more, lanes are too thin for hatches, gaps and a label each
_MANY_BARS = 4000
_MANY_LINES = 45
_MARKS = {"lost": "x", "left": "D", "late": "|"}
_MEANING = {
    "late": "late: too slow for the deadline, or no longer needed",
    "lost": "lost: the device disconnected",
    "left": "left for good",
    "stopped": "cut off by the end of the run",
}


@style.styled
def draw_timeline(
    run: RunFolder,
    *,
    rounds: tuple[int, int] | None = None,
    window: Span | None = None,
    devices: int = MOST_LANES,
    order: str = "speed",
) -> Figure:
    """What each device did when.

    Args:
        run: the run.
        rounds: show rounds ``rounds[0]`` to ``rounds[1] - 1`` only, numbered from 0 as in the records.
        window: show this span only, from and to in simulated seconds; ``rounds`` goes before it.
        devices: show at most so many of the devices that worked, evenly spread over the order.
        order: ``speed`` (fastest on top), ``first`` (who worked first on top) or ``number``.

    Raises:
        NothingToDrawError: nobody worked within the span.
        RunFolderError: the folder is damaged, or there are no such rounds, order or number of devices.
    """
    activity = read_activity(run)
    population = run.table(DEVICES).to_pandas()
    view = look_at(activity, population, window if rounds is None else span_of_rounds(activity, *rounds), devices, order)
    unit = style.time_unit(view.span)

    height = min(max(len(view.devices) * _LANE_IN, _SHORT_IN), _TALL_IN)
    figure = Figure(figsize=(style.WIDTH_IN, height + _BESIDES_IN))
    panels = figure.subplots(
        2, 2, sharex="col", sharey="row", width_ratios=(9, 1), height_ratios=(height, 1.2), squeeze=True
    )
    lanes, totals, strip, words = panels.flat
    handles = _draw_lanes(lanes, view, unit.size)
    _draw_rounds(lanes, view, unit.size)
    _draw_strip(strip, view, unit)
    _draw_totals(totals, view)
    _draw_words(words, view)
    _label_lanes(lanes, view, population, order)
    figure.suptitle(_title(run, view, len(population)))
    handles = [*handles, *_line_handles(view)]
    style.legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    return figure


def _title(run: RunFolder, view: View, population: int) -> str:
    if len(view.devices) < view.at_work:
        who = f"{len(view.devices):,} of the {view.at_work:,} devices that worked, out of {population:,}"
    else:
        who = f"the {view.at_work:,} of {population:,} devices that worked"
    return f"{style.headline(run)}\n{show_seconds(view.span)} from {show_seconds(view.start)} on; {who}"


# The lanes.


def _draw_lanes(axes: Axes, view: View, unit: float) -> list[Artist]:
    """Draw every step, then what was thrown away over it, then where and why it ended; returns the legend's entries."""
    few = len(view.devices) <= _MANY_LANES
    half = 0.4 if few else 0.5
    axes.set_ylim(len(view.devices) - 0.5, -0.5)
    axes.set_xlim(view.start / unit, view.end / unit)
    _draw_background(axes, view, few)
    handles: list[Artist] = [Patch(facecolor=style.PALE, label="idle or offline")]
    useful = view.steps[view.steps["outcome"] == "done"]
    for step, colour in style.STEPS.items():
        if (view.steps["step"] == step).any():
            _bars(axes, useful[useful["step"] == step], half, unit, few, facecolor=colour)
            handles.append(Patch(facecolor=colour, label=step))
    for outcome, colour in style.OUTCOMES.items():
        wasted = view.steps[view.steps["outcome"] == outcome]
        if outcome != "done" and len(wasted):
            handles.append(_draw_wasted(axes, wasted, outcome, colour, half, unit, few))
            _draw_marks(axes, view, outcome, colour, unit)
    return handles


def _draw_background(axes: Axes, view: View, few: bool) -> None:
    """A pale band a lane; with many lanes one for all."""
    if few:
        left, right = axes.get_xlim()
        axes.barh(np.arange(len(view.devices)), right - left, left=left, height=0.8, color=style.PALE, zorder=0)
    else:
        axes.set_facecolor(style.PALE)


def _draw_wasted(
    axes: Axes, steps: pd.DataFrame, outcome: str, colour: str, half: float, unit: float, few: bool
) -> Artist:
    """Work that was thrown away: hatched over its step's pale colour, or in thin lanes plainly in the colour of the cause."""
    label = f"{_MEANING[outcome]} (work thrown away)"
    if not few:
        _bars(axes, steps, half, unit, few, facecolor=colour)
        return Patch(facecolor=colour, label=label)
    hatched = {"edgecolor": colour, "hatch": "/////", "linewidth": 0.8}
    for step, rows in steps.groupby("step"):
        _bars(axes, rows, half, unit, few, facecolor=style.lighten(style.STEPS[str(step)], 0.55), **hatched)
    return Patch(facecolor="white", label=label, **hatched)  # type: ignore[arg-type]


def _bars(axes: Axes, steps: pd.DataFrame, half: float, unit: float, few: bool, **look: object) -> None:
    x0, x1, y = steps["start"].to_numpy() / unit, steps["end"].to_numpy() / unit, steps["lane"].to_numpy()
    bars = PolyCollection(_corners(x0, x1, y - half, y + half), **({"linewidth": 0} | look))  # type: ignore[arg-type]
    bars.set_rasterized(not few or len(steps) > _MANY_BARS)
    axes.add_collection(bars, autolim=False)


def _corners(x0: NDArray[np.float64], x1: NDArray[np.float64], y0: NDArray[np.float64], y1: NDArray[np.float64]) -> Sequence[NDArray[np.float64]]:
    """Rectangles as polygons, [n, 4, 2]."""
    return np.stack([np.stack([x0, x1, x1, x0], axis=1), np.stack([y0, y0, y1, y1], axis=1)], axis=2)  # type: ignore[return-value]


def _draw_marks(axes: Axes, view: View, outcome: str, colour: str, unit: float) -> None:
    """A mark at each instant at which a task ended so."""
    ends = view.tasks[view.tasks["outcome"] == outcome]
    if outcome not in _MARKS or ends.empty:
        return
    size = float(np.clip(9 * 40 / len(view.devices), 3.0, 8.0))
    marks = axes.scatter(
        ends["end"] / unit, ends["lane"], s=size**2, marker=_MARKS[outcome], color=colour, linewidths=size / 4, zorder=3
    )
    marks.set_gid(outcome)
    marks.set_rasterized(len(ends) > _MANY_BARS)
    if outcome != "late":
        marks.set_clip_on(False)
        marks.set_path_effects([patheffects.withStroke(linewidth=size / 4 + 1.6, foreground="white")])
