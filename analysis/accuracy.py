"""Accuracy against rounds, simulated time and bytes moved: run by run, and over seeds, what it costs."""

import math
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
from fedsim.analysis.series import Series, each_alone, group_by_scenario
from fedsim.arrays import Floats
from fedsim.records.folder import ROUNDS
from fedsim.records.history import History
from fedsim.records.reading import RunFolder

_CUT = 0.02  # an axis that begins higher says so
_EVEN = 0.01  # share of the whole by which panels may differ that are taken for the same
_TICK: dict[str, Any] = {"linestyle": "", "markersize": 5, "color": style.BLACK}
_MARKS: dict[str, dict[str, Any]] = {
    "deadline": _TICK | {"label": "a round ends at its deadline", "marker": "|", "color": style.VERMILLION},
    "shift": _TICK | {"label": "data shift", "marker": "o", "markerfacecolor": "white"},
    "arrival": _TICK | {"label": "a device arrives", "marker": ">"},
    "departure": _TICK | {"label": "a device leaves for good", "marker": "<"},
}
_EPSILON: dict[str, Any] = {"color": style.PURPLE, "linestyle": "--", "linewidth": 1.3}
_MARKED = 30  # with more evaluations than this the points run into a line
_UNLIKE = 3  # runs whose numbers of rounds differ by more than this factor do not fit on one linear axis


class CurveAxis(NamedTuple):
    """A column of the curves as an axis."""

    column: str
    unit: float
    label: str


@style.styled
def draw_accuracy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Test accuracy against rounds, simulated time, and the bytes moved until then; other metrics in rows of their own.

    Of one run, in which these grow in step, there is one panel. Below its line stand shifts of data, devices that come and go,
    and deadlines that were reached; a second axis has the privacy that was spent. A run without any evaluation is only named.
    Runs are called after their folders, unless ``series`` has one for each, with its name and look.
    """
    series = each_alone(runs) if series is None else series
    names = figures_of(runs)
    by_name = [curves_of(series, name) for name in names]
    curves, axes = by_name[0], axes_of(by_name[0])
    if len(runs) == 1 and _in_step(curves[0][0]):
        last = curves[0][0].iloc[-1]
        size = style.bytes_unit(last["bytes"])
        ends = f"{int(last['rounds']):,} rounds and {last['bytes'] / size.size:.3g} {size.name}"
        axes = [axes[1]._replace(label=f"{axes[1].label}; rounds and bytes grow in step with it, to {ends}")]
    figure = Figure(figsize=(style.WIDTH_IN, 5.2 if len(names) == 1 else 3.6 * len(names)))
    if len(axes) == 1:
        what = " and ".join(names)
        figure.set_label(f"Test {what} against simulated time, with which the rounds and the bytes moved grow in step.")
    grid = figure.subplots(len(names), len(axes), sharex="col", sharey="row", squeeze=False)
    panels = list(grid[0])
    for name, own, row in zip(names, by_name, grid, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            _plot(panel, series, own, axis, _UNLIKE if axis.column == "rounds" else math.inf)
        cut = f"; the axis begins at {low:.2g}" if (low := row[0].get_ylim()[0]) > _CUT else ""
        label = f"test accuracy (0 to 1{cut})" if name == "accuracy" else f"test {name}{cut.replace(';', ',')}"
        row[0].set_ylabel(label.replace(" (", "\n(").replace(", ", ",\n") if len(names) > 1 else label)
    for panel in grid[:-1].flat:
        panel.set_xlabel("")
    if len(runs) == 1:
        return style.finished(figure, runs, _draw_epsilon(panels, curves[0][0], axes) + _mark(panels, runs[0], axes))
    dot: dict[str, Any] = {"marker": "o", "markersize": 3.5}
    return style.finished(figure, runs, _handles([one.name for one in series], series, curves, **dot))


def figures_of(runs: Iterable[RunFolder]) -> list[str]:
    """The figures of tests that runs have, at most three: accuracy and metrics, or without any the loss."""
    rows = [row for run in runs for row in run.rounds]
    names = ["accuracy", *dict.fromkeys(name for run in runs for name in run.summary.get("metrics", {}))]
    return [name for name in names if any(row.get(name) is not None for row in rows)][:3] or ["loss"]


def curves_of(series: Sequence[Series], figure: str | None = None) -> list[list[pd.DataFrame]]:
    """The curves of each series' runs that were evaluated; ``NothingToDrawError`` if none was.

    ``figure``: what tests showed; by default the first of ``figures_of``.
    """
    name = figure or figures_of([run for one in series for run in one.runs])[0]
    curves = [[curve for run in one.runs if len(curve := read_curve(run, name))] for one in series]
    if not any(curves):
        raise style.NothingToDrawError("no round was evaluated (learning is off?), so there is no accuracy to draw")
    return curves


def _handles(names: list[str], series: Sequence[Series], curves: Sequence[Sequence[Any]], **look: Any) -> list[Artist]:
    labels = [name + ("" if own else " (not evaluated)") for name, own in zip(names, curves, strict=False)]
    lines = zip(labels, series, strict=False)
    return [Line2D([], [], label=label, **style.line_of(one.number, _WIDTH) | look) for label, one in lines]


def read_curve(run: RunFolder, figure: str = "accuracy") -> pd.DataFrame:
    """The evaluated rounds: ``rounds`` aggregated until then, ``time`` (s), ``bytes``, a figure's ``value`` and ``epsilon``."""
    return _course(run, figure).dropna(subset="value")


def _course(run: RunFolder, figure: str) -> pd.DataFrame:
    table = run.table(ROUNDS).to_pandas()
    moved = (table["bytes_down"] + table["bytes_up"]).cumsum()
    course = pd.DataFrame({"rounds": table["round"] + 1, "time": table["time"], "bytes": moved})
    value = table[figure].astype(float) if figure in table else math.nan
    return course.assign(value=value, epsilon=table["epsilon"].astype(float))


def axes_of(curves: Sequence[Sequence[pd.DataFrame]]) -> list[CurveAxis]:
    """The axes of curves with units that suit them: rounds, time and bytes."""
    most = pd.concat([curve for own in curves for curve in own])[["time", "bytes"]].max()
    time, size = style.time_unit(most["time"]), style.bytes_unit(most["bytes"])
    return [
        CurveAxis("rounds", 1.0, "rounds aggregated"),
        CurveAxis("time", time.size, f"simulated time ({time.name})"),
        CurveAxis("bytes", size.size, f"moved, down and up ({size.name})"),
    ]


def _in_step(curve: pd.DataFrame) -> bool:
    """Whether time and bytes grow with the rounds so evenly that all panels would be the same."""
    shares = curve[["rounds", "time", "bytes"]] / curve[["rounds", "time", "bytes"]].iloc[-1]
    return bool((shares.sub(shares["rounds"], axis=0).abs() < _EVEN).all(axis=None))


def _draw_epsilon(panels: Sequence[Axes], curve: pd.DataFrame, axes: Sequence[CurveAxis]) -> list[Line2D]:
    """A line on an axis of its own: the privacy that was spent until then, where it is known; returns the legend's entry."""
    if curve["epsilon"].isna().all():
        return []
    for panel, axis in zip(panels, axes, strict=True):
        right = panel.twinx()
        right.plot(curve[axis.column] / axis.unit, curve["epsilon"], gid="epsilon", **_EPSILON)
        right.set_ylim(bottom=0)
        right.spines["right"].set_visible(True)
        right.set_ylabel("epsilon")
    return [Line2D([], [], label="epsilon, the privacy spent (right axis)", **_EPSILON)]


def _mark(panels: Sequence[Axes], run: RunFolder, axes: Sequence[CurveAxis]) -> list[Line2D]:
    """Ticks below the line where data shift, devices come and go, and deadlines are reached; returns the legend's entries."""
    history, course = History(run), _course(run, "accuracy")
    rounds, found = history.rounds, []
    for level, (kind, look) in enumerate(_MARKS.items()):
        reached = rounds["end"][rounds["deadline"] <= rounds["end"]]
        at = np.unique(reached if kind == "deadline" else history.of(kind)["time"])
        if not len(at):
            continue
        for panel, axis in zip(panels, axes, strict=True):
            x = np.interp(at, [0.0, *course["time"]], [0.0, *course[axis.column]]) / axis.unit
            y = np.full(len(x), 0.015 + 0.028 * level)
            panel.plot(x, y, transform=panel.get_xaxis_transform(), gid=kind, clip_on=False, **look)
        found.append(Line2D([], [], **look))
    return found


def _plot(
    panel: Axes, series: Sequence[Series], curves: Sequence[Sequence[pd.DataFrame]], axis: CurveAxis, unlike: float
) -> None:
    """A line or a band a series; the axis is logarithmic where their ends lie further apart than a factor."""
    bands = [band(own, axis.column) for own in curves]
    for one, own, drawn in zip(series, curves, bands, strict=True):
        _draw_band(panel, drawn, one.number, axis.unit, len(own) > 1)
    ends = [float(drawn.at[-1]) for drawn in bands if len(drawn.at)]
    is_log = max(ends, default=0.0) > unlike * min(ends, default=1.0)
    panel.set_xlabel(f"{axis.label}, log scale" if is_log else axis.label)
    panel.grid(color=style.PALE, linewidth=1)
    _scale(panel, is_log, 7, whole=axis.column == "rounds")
    if is_log and axis.column == "rounds":
        panel.set_xlim(left=1)


# Over seeds: accuracy against bytes, simulated time and rounds, the seeds of one strategy as a band.

_POINTS = 400  # of a band: more than pixels are of no use
_COSTS_UNLIKE = 8  # series whose axes end further apart than this factor do not fit on one linear axis
_BAND = 0.2  # opacity
_TOGETHER = 8  # series that have a colour; the eye tells no more apart
_WIDTH = 1.7  # of a line, in points
_OTHERS = "#D0D0D0"


class Band(NamedTuple):
    """A figure of a series' runs along an axis: where, and mean, minimum and maximum there; arrays [m] each."""

    at: Floats
    mean: Floats
    low: Floats
    high: Floats


@style.styled
def draw_costs(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Mean test accuracy against bytes, simulated time and rounds; bands go from the lowest to the highest of the seeds.

    Of runs without any accuracy the first metric is drawn.

    A band begins where every seed has been evaluated, and ends where the first seed does, so all of it is of the same runs.
    Runs of one scenario are a series, unless ``series`` says which are. Of more than eight the first are drawn, over the means
    of the others in grey.
    """
    series = group_by_scenario(runs) if series is None else series
    if all(len(one.runs) == 1 for one in series):
        raise style.NothingToDrawError("no scenario was run with several seeds; the picture of accuracy shows each run")
    curves = curves_of(series)
    by_rounds, by_time, by_bytes = axes_of(curves)
    figure = Figure(figsize=(style.WIDTH_IN, 5.2))
    panels = figure.subplots(1, 3, sharey=True)
    for panel, axis in zip(panels, (by_bytes, by_time, by_rounds), strict=True):
        for own in curves[_TOGETHER:]:
            drawn = band(own, axis.column)
            panel.plot(drawn.at / axis.unit, drawn.mean, color=_OTHERS, linewidth=0.7, gid="other")
        _plot(panel, series[:_TOGETHER], curves[:_TOGETHER], axis, _COSTS_UNLIKE)
    name = figures_of([run for one in series for run in one.runs])[0]
    panels[0].set_ylabel("test accuracy (0 to 1)" if name == "accuracy" else f"test {name}")
    words = "from the lowest to the highest of the seeds; lines are means"
    handles = _handles([one.label for one in series[:_TOGETHER]], series, curves)
    handles.append(Patch(facecolor=style.GREY, alpha=2 * _BAND, label=words))
    if len(series) > _TOGETHER:
        handles.append(Line2D([], [], color=_OTHERS, label=f"the other {len(series) - _TOGETHER}"))
    return style.finished(figure, [run for one in series for run in one.runs], handles)


def band(curves: Sequence[pd.DataFrame], column: str) -> Band:
    """Mean and range of a figure of several curves along a column, which ascends, where all of them are known."""
    if not curves:
        return Band(*np.empty((4, 0)))
    columns = [curve[column].to_numpy(float) for curve in curves]
    start, end = max(own[0] for own in columns), min(own[-1] for own in columns)
    places = np.unique(np.concatenate(columns))
    at = places[(places >= start) & (places <= end)]
    at = at[style.evenly(len(at), _POINTS)] if len(at) else at
    values = np.array([np.interp(at, own, curve["value"]) for own, curve in zip(columns, curves, strict=True)])
    return Band(at, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def _scale(panel: Axes, is_log: bool, ticks: int, whole: bool = False) -> None:
    if is_log:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:,g}")
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=whole))


def _draw_band(panel: Axes, drawn: Band, number: int, unit: float, several: bool) -> None:
    """A series' mean, with a dot at its end, and of one run at each of few evaluations; and its range over several seeds."""
    if not len(drawn.at):
        return
    x, look = drawn.at / unit, style.line_of(number, _WIDTH)
    dots = {"marker": "o" if not several and len(x) <= _MARKED else "", "markersize": 3.5}
    if several:
        shade: dict[str, Any] = {"color": look["color"], "alpha": _BAND, "linewidth": 0, "gid": f"band-{number}"}
        panel.fill_between(x, drawn.low, drawn.high, **shade)
    panel.plot(x, drawn.mean, gid=f"mean-{number}", **look | dots)
    panel.plot(x[-1:], drawn.mean[-1:], **look | {"marker": "o", "markersize": 6})
