"""What accuracy costs: accuracy against bytes, simulated time and rounds, the seeds of one strategy as a band.

More series than can be told apart have a small panel each, in which all others are pale lines.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.accuracy import read_curve
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.arrays import Floats
from fedsim.records.reading import RunFolder

_POINTS = 400  # of a band: more than pixels are of no use
_UNLIKE = 8  # series whose axes end further apart than this factor do not fit on one linear axis
_BAND = 0.2  # opacity
_TOGETHER, _COLUMNS = 6, 6  # series in one panel, and panels beside each other where each has its own
_WIDTH = 1.7  # of a line, in points
_OTHERS = "#D0D0D0"


@dataclass(frozen=True)
class Band:
    """The accuracy of a series' runs at the same places of an axis; arrays [m] each.

    Attributes:
        at: where.
        mean, low, high: mean, minimum and maximum over the runs, in 0..1.
    """

    at: Floats
    mean: Floats
    low: Floats
    high: Floats


@style.styled
def draw_costs(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Three panels with one accuracy axis, against bytes, simulated time and rounds.

    Of several seeds the line is the mean and the band goes from the minimum to the maximum, between rounds on straight lines.
    It begins where every seed has been evaluated, and ends where the first seed does, so all of it is of the same runs.
    Runs of one scenario are a series, unless ``series`` says which are. More than six have a panel each, by bytes and by time.

    Raises:
        NothingToDrawError: no scenario was run with several seeds, or none of the runs was evaluated.
        RunFolderError: a folder is damaged.
    """
    series = group_by_scenario(runs) if series is None else series
    if all(len(one.runs) == 1 for one in series):
        raise style.NothingToDrawError("no scenario was run with several seeds; the picture of accuracy shows each run")
    curves = [[curve for run in one.runs if (curve := _curve(run))["accuracy"].size] for one in series]
    if not any(curves):
        raise style.NothingToDrawError("no round was evaluated (learning is off?), so there is no accuracy to draw")
    most = {name: max(curve[name][-1] for group in curves for curve in group) for name in ("bytes", "time")}
    size, time = style.bytes_unit(most["bytes"]), style.time_unit(most["time"])

    axes = (("bytes", size.size, f"moved, down and up ({size.name})"), ("time", time.size, f"simulated time ({time.name})"))
    if len(series) > _TOGETHER:
        return _one_by_one(series, curves, axes)
    figure = Figure(figsize=(style.WIDTH_IN, 5.2))
    panels = figure.subplots(1, 3, sharey=True)
    for panel, (column, unit, label) in zip(panels, (*axes, ("rounds", 1.0, "rounds aggregated")), strict=True):
        _plot(panel, curves, [one.number for one in series], column, unit, label)
    panels[0].set_ylabel("test accuracy (0 to 1)")
    figure.suptitle(style.headline_of([run for one in series for run in one.runs]))
    _name_series(figure, series, curves)
    return figure


def band(curves: Sequence[dict[str, Floats]], column: str) -> Band:
    """Mean and range of several curves along one of their columns, where all of them are known.

    Args:
        curves: each with arrays [m] of its own length, ``accuracy`` and the column, which ascends.
        column: what to go along.
    """
    start, end = max(curve[column][0] for curve in curves), min(curve[column][-1] for curve in curves)
    places = np.unique(np.concatenate([curve[column] for curve in curves]))
    at = places[(places >= start) & (places <= end)]
    at = at[style.evenly(len(at), _POINTS)] if len(at) else at
    values = np.array([np.interp(at, curve[column], curve["accuracy"]) for curve in curves])
    return Band(at, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def _curve(run: RunFolder) -> dict[str, Floats]:
    """``accuracy.read_curve`` as arrays [m]."""
    return {str(name): column.to_numpy(float) for name, column in read_curve(run).items()}


def _one_by_one(
    series: Sequence[Series], curves: Sequence[Sequence[dict[str, Floats]]], axes: Sequence[tuple[str, float, str]]
) -> Figure:
    """A small panel for each series, in its colour over those of all others; a block of them for each axis."""
    rows = math.ceil(len(series) / _COLUMNS)
    figure = Figure(figsize=(style.WIDTH_IN, len(axes) * (0.8 + 1.65 * rows)))
    for block, (column, unit, label) in zip(figure.subfigures(len(axes), 1, squeeze=False).flat, axes, strict=True):
        grid = block.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
        bands = [band(group, column) if group else None for group in curves]
        ends = [one.at[-1] for one in bands if one is not None and len(one.at) and one.at[-1] > 0]
        is_log = max(ends, default=0.0) > _UNLIKE * min(ends, default=0.0)
        for place, (panel, one) in enumerate(zip(grid.flat, series, strict=False)):
            for drawn in bands:
                if drawn is not None and drawn is not bands[place]:
                    panel.plot(drawn.at / unit, drawn.mean, color=_OTHERS, linewidth=0.7)
            if (own := bands[place]) is not None:
                _draw_band(panel, own, one.number, unit, len(curves[place]) > 1)
            nothing = "not evaluated" if own is None else "" if len(own.at) and own.at[-1] > 0 else "nothing counted"
            panel.set_title(f"{one.name} ({nothing})" if nothing else one.name, fontsize=9)
            panel.tick_params(labelsize=8)
            if is_log:
                panel.set_xscale("log")
                panel.xaxis.set_major_formatter("{x:,g}")
            else:
                panel.set_xlim(left=0)
                panel.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
        for panel in grid.flat[len(series) :]:
            panel.set_visible(False)
        block.supxlabel(f"{label}, log scale" if is_log else label, fontsize=11)
        block.supylabel("test accuracy (0 to 1)", fontsize=11)
    every = [run for one in series for run in one.runs]
    figure.suptitle(
        f"{style.headline_of(every)}\nlines are means of seeds, bands go from the lowest to the highest; grey: all others",
        fontsize=11,
    )
    return figure


def _draw_band(panel: Axes, drawn: Band, number: int, unit: float, several: bool) -> None:
    """A series' mean, with a dot at its end, and its range over several seeds."""
    look = style.line_of(number, _WIDTH)
    if several:
        panel.fill_between(
            drawn.at / unit, drawn.low, drawn.high, color=look["color"], alpha=_BAND, linewidth=0, gid=f"band-{number}"
        )
    panel.plot(drawn.at / unit, drawn.mean, gid=f"mean-{number}", **look)
    panel.plot(drawn.at[-1:] / unit, drawn.mean[-1:], **look | {"marker": "o", "markersize": 6})


def _plot(
    panel: Axes,
    curves: Sequence[Sequence[dict[str, Floats]]],
    looks: Sequence[int],
    column: str,
    unit: float,
    label: str,
) -> None:
    ends = []
    for number, group in zip(looks, curves, strict=True):
        if not group:
            continue
        drawn = band(group, column)
        if not len(drawn.at):
            continue
        ends.append(drawn.at[-1])
        _draw_band(panel, drawn, number, unit, len(group) > 1)
    panel.set_xlabel(label)
    panel.grid(color=style.PALE, linewidth=1)
    if max(ends, default=0.0) > _UNLIKE * min(ends, default=1.0):
        panel.set_xscale("log")
        panel.set_xlabel(f"{label}, log scale")
        panel.xaxis.set_major_formatter("{x:,g}")
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=column == "rounds"))


def _name_series(figure: Figure, series: Sequence[Series], curves: Sequence[Sequence[Any]]) -> None:
    handles: list[Artist] = [Line2D([], [], **style.line_of(one.number, _WIDTH)) for one in series]
    labels = [one.label + ("" if group else " (not evaluated)") for one, group in zip(series, curves, strict=True)]
    handles.append(Patch(facecolor=style.GREY, alpha=2 * _BAND))
    style.legend_below(figure, handles, [*labels, "from the lowest to the highest of the seeds; lines are means"])
