"""Accuracy against rounds, simulated time and bytes: of single runs, and as means over seeds."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.style import Series, each_alone, group_by_scenario
from fedsim.lab.reading.history import History
from fedsim.records.folder import ROUNDS
from fedsim.records.reading import RunFolder

_CUT = 0.02  # an axis that begins higher says so
_TICK: dict[str, Any] = {"linestyle": "", "markersize": 5, "color": style.BLACK}
_MARKS: dict[str, dict[str, Any]] = {
    "deadline": _TICK
    | {"label": "a round ends at its deadline", "marker": "|", "color": style.VERMILLION},
    "shift": _TICK | {"label": "data shift", "marker": "o", "markerfacecolor": "white"},
    "arrival": _TICK | {"label": "a device arrives", "marker": ">"},
    "departure": _TICK | {"label": "a device leaves for good", "marker": "<"},
}
_EPSILON: dict[str, Any] = {"color": style.PURPLE, "linestyle": "--", "linewidth": 1.3}
_MARKED = 30  # with more evaluations than this the points run into a line
_UNLIKE = 4  # series whose axes end further apart than this factor do not fit on one linear axis
_TOGETHER = 8  # series that have a colour over seeds; the eye tells no more apart
_OTHERS: dict[str, Any] = {"color": "#D0D0D0", "linewidth": 0.7}
_POINTS = 400  # of a band: more than pixels are of no use
_BAND = 0.2  # opacity
_WIDTH = 1.7  # of a line, in points


class CurveAxis(NamedTuple):
    """A column of the curves as an axis."""

    column: str
    unit: float
    label: str


@style.styled
def draw_accuracy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Test accuracy against rounds, simulated time, and the bytes moved until then; other
    metrics in rows of their own.

    A single run has marks of data shifts, newcomers, leavers and reached deadlines, and a second
    axis for the privacy spent. Runs without evaluation are only named. ``series``, one per run,
    sets names and looks; by default folders give the names.
    """
    series = each_alone(runs) if series is None else series
    names = figures_of(runs)
    figure = Figure(figsize=(style.WIDTH_IN, 5.2 if len(names) == 1 else 3.6 * len(names)))
    grid = figure.subplots(len(names), 3, sharex="col", sharey="row", squeeze=False)
    curves = curves_of(series, names[0])
    axes = axes_of(curves)
    for name, row in zip(names, grid, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            _plot(panel, series, curves_of(series, name), axis)
            panel.label_outer()
        low = row[0].get_ylim()[0]
        cut = f"\nthe axis begins at {low:.2g}" if low > _CUT else ""
        row[0].set_ylabel(f"test {name}{' (0 to 1)' if name == 'accuracy' else ''}{cut}")
    if len(runs) == 1:
        return style.finished(
            figure, runs, _draw_epsilon(grid[0], curves[0][0], axes) + _mark(grid[0], runs[0], axes)
        )
    return style.finished(figure, runs, _handles(series, curves, marker="o", markersize=3.5))


@style.styled
def draw_costs(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Mean test accuracy against bytes, simulated time and rounds; bands go from the lowest to
    the highest of the seeds.

    Without accuracy, the first metric is drawn. A band covers the range in which every seed has
    values. ``series`` defaults to the runs of each scenario; of more than eight, the others are
    grey means.
    """
    series = group_by_scenario(runs) if series is None else series
    every = [run for one in series for run in one.runs]
    if len(every) == len(series):
        raise style.NothingToDrawError(
            "no scenario was run with several seeds; the picture of accuracy shows each run"
        )
    name = figures_of(every)[0]
    curves = curves_of(series, name)
    figure = Figure(figsize=(style.WIDTH_IN, 5.2))
    panels = figure.subplots(1, 3, sharey=True)
    for panel, axis in zip(panels, axes_of(curves)[::-1], strict=True):
        for own in curves[_TOGETHER:]:
            drawn = band(own, axis.column)
            panel.plot(drawn["at"] / axis.unit, drawn["mean"], gid="other", **_OTHERS)
        _plot(panel, series[:_TOGETHER], curves[:_TOGETHER], axis)
    panels[0].set_ylabel(f"test {name}{' (0 to 1)' if name == 'accuracy' else ''}")
    handles = _handles(series[:_TOGETHER], curves[:_TOGETHER])
    words = "from the lowest to the highest of the seeds; lines are means"
    handles.append(Patch(facecolor=style.GREY, alpha=2 * _BAND, label=words))
    if len(series) > _TOGETHER:
        handles.append(Line2D([], [], label=f"the other {len(series) - _TOGETHER}", **_OTHERS))
    return style.finished(figure, every, handles)


def figures_of(runs: Iterable[RunFolder]) -> list[str]:
    """At most three test figures that the runs have: accuracy and metrics; without any, the
    loss.
    """
    rows = [row for run in runs for row in run.rounds]
    names = [
        "accuracy",
        *dict.fromkeys(name for run in runs for name in run.summary.get("metrics", {})),
    ]
    return [name for name in names if any(row.get(name) is not None for row in rows)][:3] or [
        "loss"
    ]


def curves_of(series: Sequence[Series], name: str) -> list[list[pd.DataFrame]]:
    """The curves of a test figure, of each series' evaluated runs; ``NothingToDrawError`` if
    there are none.

    A curve has a row per evaluated round: ``rounds`` aggregated so far, ``time`` (s), ``bytes``,
    ``value`` and ``epsilon``.
    """
    every = [[_course(run, name).dropna(subset="value") for run in one.runs] for one in series]
    curves = [[curve for curve in own if len(curve)] for own in every]
    if not any(curves):
        raise style.NothingToDrawError(
            "no round was evaluated (learning is off?), so there is no accuracy to draw"
        )
    return curves


def _course(run: RunFolder, name: str) -> pd.DataFrame:
    table = run.table(ROUNDS).to_pandas()
    moved = table.filter(["bytes_down", "bytes_up", "bytes_peer"]).sum(axis=1).cumsum()
    value = table[name].astype(float) if name in table else np.nan
    course = {"rounds": table["round"] + 1, "time": table["time"], "bytes": moved, "value": value}
    return pd.DataFrame(course | {"epsilon": table["epsilon"].astype(float)})


def _draw_epsilon(
    panels: Iterable[Axes], curve: pd.DataFrame, axes: Sequence[CurveAxis]
) -> list[Line2D]:
    if curve["epsilon"].isna().all():
        return []
    for panel, axis in zip(panels, axes, strict=True):
        right = panel.twinx()
        right.plot(curve[axis.column] / axis.unit, curve["epsilon"], gid="epsilon", **_EPSILON)
        right.set_ylim(bottom=0)
        right.tick_params(labelright=axis is axes[-1])
        right.spines["right"].set_visible(True)
    right.set_ylabel("epsilon")
    return [Line2D([], [], label="epsilon, the privacy spent (right axis)", **_EPSILON)]


def axes_of(curves: Sequence[Sequence[pd.DataFrame]]) -> list[CurveAxis]:
    """The axes of curves with units that suit them: rounds, time and bytes."""
    most = pd.concat([curve for own in curves for curve in own])[["time", "bytes"]].max()
    time = style.unit_for(most["time"], style.TIMES)
    size = style.unit_for(most["bytes"], style.BYTES)
    return [
        CurveAxis("rounds", 1.0, "rounds aggregated"),
        CurveAxis("time", time.size, f"simulated time ({time.name})"),
        CurveAxis("bytes", size.size, f"moved ({size.name})"),
    ]


def band(curves: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """``at``, ``mean``, ``low`` and ``high`` of several curves along a column, which ascends,
    where all of them are known.
    """
    columns = [curve[column].to_numpy(float) for curve in curves]
    places = np.unique(np.concatenate([[], *columns]))
    for own in columns:
        places = places[(places >= own[0]) & (places <= own[-1])]
    if not len(places):
        return pd.DataFrame(columns=["at", "mean", "low", "high"], dtype=float)
    at = places[style.evenly(len(places), _POINTS)]
    values = np.array(
        [np.interp(at, own, curve["value"]) for own, curve in zip(columns, curves, strict=True)]
    )
    return pd.DataFrame(
        {
            "at": at,
            "mean": values.mean(axis=0),
            "low": values.min(axis=0),
            "high": values.max(axis=0),
        }
    )


def _plot(
    panel: Axes, series: Sequence[Series], curves: Sequence[Sequence[pd.DataFrame]], axis: CurveAxis
) -> None:
    """A line or a band a series, with a dot at its end; the axis is logarithmic where their ends
    lie far apart.
    """
    ends = []
    for one, own in zip(series, curves, strict=True):
        drawn = band(own, axis.column)
        look = style.line_of(one.number, _WIDTH)
        several = len(own) > 1
        if drawn.empty:
            continue
        x = drawn["at"].to_numpy() / axis.unit
        gid = f"band-{one.number}"
        ends.append(float(x[-1]))
        if several:
            panel.fill_between(
                x,
                drawn["low"],
                drawn["high"],
                color=look["color"],
                alpha=_BAND,
                linewidth=0,
                gid=gid,
            )
        marker = "o" if not several and len(x) <= _MARKED else ""
        panel.plot(
            x, drawn["mean"], gid=f"mean-{one.number}", marker=marker, markersize=3.5, **look
        )
        panel.plot(x[-1:], drawn["mean"][-1:], marker="o", markersize=6, **look)
    panel.grid()
    if max(ends, default=0.0) > _UNLIKE * min(ends, default=1.0):
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.set_xlabel(f"{axis.label}, log scale")
        if axis.column == "rounds":
            panel.set_xlim(left=1)
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(
            MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=axis.column == "rounds")
        )
        panel.set_xlabel(axis.label)


def _handles(
    series: Sequence[Series], curves: Sequence[Sequence[Any]], **look: Any
) -> list[Artist]:
    lines = [
        (one, one.label + ("" if own else " (not evaluated)"))
        for one, own in zip(series, curves, strict=True)
    ]
    return [
        Line2D([], [], label=label, **style.line_of(one.number, _WIDTH) | look)
        for one, label in lines
    ]


def _mark(panels: Sequence[Axes], run: RunFolder, axes: Sequence[CurveAxis]) -> list[Line2D]:
    """Ticks below the line where data shift, devices come and go, and deadlines are reached;
    returns the legend's entries.
    """
    history = History(run)
    course = _course(run, "accuracy")
    found = []
    reached = history.rounds["end"][history.rounds["deadline"] <= history.rounds["end"]]
    for level, (kind, look) in enumerate(_MARKS.items()):
        at = np.unique(reached if kind == "deadline" else history.of(kind)["time"])
        if not len(at):
            continue
        for panel, axis in zip(panels, axes, strict=True):
            x = np.interp(at, [0.0, *course["time"]], [0.0, *course[axis.column]]) / axis.unit
            y = np.full(len(x), 0.015 + 0.028 * level)
            panel.plot(x, y, transform=panel.get_xaxis_transform(), gid=kind, clip_on=False, **look)
        found.append(Line2D([], [], **look))
    return found
