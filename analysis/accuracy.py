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

from fedsim.analysis import palette, style
from fedsim.analysis.series import Series, each_alone, group_by_scenario
from fedsim.common.arrays import Floats
from fedsim.common.round_words import common_word
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.folder import ROUNDS
from fedsim.records.reading import RunFolder

_LEGEND_ROWS = 3  # count of rows of a legend for which a figure has room
_STARTS = MaxNLocator(nbins=4, steps=[1, 2, 5, 10])  # round numbers at which an axis may begin
# an axis of values begins at 0 if its lower end is at most this share of its upper end
_FROM_ZERO = 1 / 3
_TICK: palette.Look = {"linestyle": "", "markersize": 5}
_MARKS: dict[str, palette.Look] = {
    "deadline": {
        "label": "a round ends at its deadline",
        "marker": "|",
        "color": palette.VERMILLION,
        **_TICK,
    },
    "shift": {
        "label": "data shift",
        "marker": "o",
        "color": palette.BLACK,
        "markerfacecolor": "white",
        **_TICK,
    },
    "arrival": {"label": "a device arrives", "marker": ">", "color": palette.BLACK, **_TICK},
    "departure": {
        "label": "a device leaves for good",
        "marker": "<",
        "color": palette.BLACK,
        **_TICK,
    },
}
_EPSILON: palette.Look = {"color": palette.PURPLE, "linestyle": "--", "linewidth": 1.3}
_MARKED = 30  # a curve of at most this count of tests has a dot at each test
# ratio of the lines' latest end to their earliest end above which the horizontal axis is
# logarithmic
_MOST_APART = 4
_MOST_COLOURED = 8  # the series after these are grey
_OTHER_SERIES: palette.Look = {"color": "#D0D0D0", "linewidth": 0.7}
_MOST_POINTS = 400  # greatest count of points of a band
_BAND = 0.2  # opacity of a band
_WIDTH = 1.7  # width of a line (points)


class CurveAxis(NamedTuple):
    """Horizontal axis on which curves are drawn: rounds, time or bytes.

    Attributes:
        column: column of the curves that the axis shows.
        unit: size of the axis' unit, in the unit of the column, such as 3600 (s) for hours.
        label: label of the axis.
    """

    column: str
    unit: float
    label: str


@style.styled
def draw_accuracy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Draw test accuracy and metrics against rounds, simulated time, and bytes moved until then.

    A single run has marks of data shifts, of arrivals and departures of devices, and of rounds that
    ended at their deadline, and a second axis for the privacy loss (epsilon) if there is one. Of a
    run without tests, only the legend's entry is drawn.

    Args:
        runs: the runs.
        series: one series per run, with its name and number, which determines colour and dash; by
            default named after the folders.

    Raises:
        NothingToDrawError: no round was evaluated.
    """
    if series is None:
        series = each_alone(runs)
    names = choose_measures(runs)
    figure = Figure(figsize=(style.WIDTH_IN, 5.2 if len(names) == 1 else 3.6 * len(names)))
    grid = figure.subplots(len(names), 3, sharex="col", sharey="row", squeeze=False)
    curves = curves_of(series, names[0])
    axes = axes_of(curves, runs)
    for name, row in zip(names, grid, strict=True):
        for panel, axis in zip(row, axes, strict=True):
            _plot(panel, series, curves_of(series, name), axis)
            panel.label_outer()
        _label_values(row[0], name)
    handles: list[Artist] = []
    if len(runs) == 1:
        handles += _draw_epsilon(grid[0], curves[0][0], axes)
        handles += _mark(grid[0], runs[0], axes)
    else:
        handles = _handles(series, curves, marker="o", markersize=3.5)
    return style.finish(figure, runs, handles, legend_rows=_LEGEND_ROWS)


def _label_values(panel: Axes, name: str) -> None:
    """Set start and label of the vertical axis of a panel with a measure of tests."""
    start = _set_start(panel)
    label = _label(name)
    if start > 0:
        label += f"\nthe axis begins at {start:g}"
    panel.set_ylabel(label)


def _set_start(panel: Axes) -> float:
    """Let the vertical axis of a panel begin at a round number, or at 0 if 0 is near; return it.

    The axis of negative values stays.
    """
    low, high = panel.get_ylim()
    if panel.dataLim.y0 < 0:
        return low
    start = 0.0
    if low > _FROM_ZERO * high:
        start = float(_STARTS.tick_values(low, high)[0])
    panel.set_ylim(bottom=start)
    return start


def _label(name: str) -> str:
    """Return the axis label for a measure of tests, such as ``accuracy``."""
    return "test accuracy (0 to 1)" if name == "accuracy" else f"test {name}"


@style.styled
def draw_costs(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Draw mean test accuracy against bytes, simulated time and rounds, with bands over seeds.

    A band goes from the lowest to the highest of the seeds, over the range in which every seed
    has values. If no run measured the accuracy, the first metric is drawn. After the eighth
    series, only the means are drawn, in grey.

    Args:
        runs: the runs.
        series: the same runs as series; by default one series per scenario.

    Raises:
        NothingToDrawError: no series has several runs, or no round was evaluated.
    """
    if series is None:
        series = group_by_scenario(runs)
    all_runs: list[RunFolder] = []
    for line in series:
        all_runs += line.runs
    if len(all_runs) == len(series):
        raise style.NothingToDrawError(
            "no scenario was run with several seeds; the picture of accuracy shows each run"
        )
    name = choose_measures(all_runs)[0]
    curves = curves_of(series, name)
    figure = Figure(figsize=(style.WIDTH_IN, 5.2))
    panels = figure.subplots(1, 3, sharey=True)
    rounds, time, size = axes_of(curves, all_runs)
    for panel, axis in zip(panels, (size, time, rounds), strict=True):
        for line_curves in curves[_MOST_COLOURED:]:
            line_band = band(line_curves, axis.column)
            x = line_band["at"] / axis.unit
            panel.plot(x, line_band["mean"], gid="other", **_OTHER_SERIES)
        _plot(panel, series[:_MOST_COLOURED], curves[:_MOST_COLOURED], axis)
    _label_values(panels[0], name)
    handles = _handles(series[:_MOST_COLOURED], curves[:_MOST_COLOURED])
    words = "from the lowest to the highest of the seeds; lines are means"
    # a patch is small, and would look too pale with the opacity of a band
    handles.append(Patch(facecolor=palette.GREY, alpha=2 * _BAND, label=words))
    if len(series) > _MOST_COLOURED:
        label = f"the other {len(series) - _MOST_COLOURED}"
        handles.append(Line2D([], [], label=label, **_OTHER_SERIES))
    return style.finish(figure, all_runs, handles, legend_rows=_LEGEND_ROWS)


def choose_measures(runs: Iterable[RunFolder]) -> list[str]:
    """Return the names of the measures of tests to draw, at most three.

    The accuracy is first, then the metrics of the runs. Measures without a value in any round are
    left out. If no measure is left, the result is ``["loss"]``.
    """
    metrics = ["accuracy"]
    rounds: list[RecordData] = []
    for run in runs:
        rounds += run.rounds
        metrics += run.summary.get("metrics", {})
    measured = []
    for metric in dict.fromkeys(metrics):  # without repetitions
        if any(row.get(metric) is not None for row in rounds):
            measured.append(metric)
    return measured[:3] or ["loss"]


def curves_of(series: Sequence[Series], name: str) -> list[list[pd.DataFrame]]:
    """Return a measure of tests, such as the accuracy, as curves: a list for each series.

    Args:
        series: the series.
        name: ``accuracy``, ``loss``, or a metric.

    Returns:
        For each series a list with a curve per run; runs without tests have no curve. A curve has a
        row per evaluated round, with the columns ``rounds`` (ended so far), ``time`` (s), ``bytes``
        (moved so far), ``value`` (of the measure) and ``epsilon`` (privacy loss so far).

    Raises:
        NothingToDrawError: no round was evaluated.
    """
    curves = []
    for line in series:
        all_curves = [_curve(run, name).dropna(subset="value") for run in line.runs]
        curves.append([curve for curve in all_curves if len(curve)])
    if not any(curves):
        raise style.NothingToDrawError(
            "no round was evaluated (learning is off?), so there is no accuracy to draw"
        )
    return curves


def _curve(run: RunFolder, name: str) -> pd.DataFrame:
    """Return a measure of tests as a curve with one row per round of a run.

    Columns are ``rounds`` (aggregated so far), ``time`` (s), ``bytes``, ``value`` and ``epsilon``.
    ``value`` is NaN if the round was not evaluated.
    """
    table = run.table(ROUNDS).to_pandas()
    sizes = table.filter(["bytes_down", "bytes_up", "bytes_peer"]).sum(axis=1)
    columns = {
        "rounds": table["round"] + 1,
        "time": table["time"],
        "bytes": sizes.cumsum(),
        "value": table[name].astype(float) if name in table else np.nan,
        "epsilon": table["epsilon"].astype(float),
    }
    return pd.DataFrame(columns)


def _draw_epsilon(
    panels: Iterable[Axes], curve: pd.DataFrame, axes: Sequence[CurveAxis]
) -> list[Line2D]:
    """Draw the privacy loss on a second axis at the right; return the legend's entries."""
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


def axes_of(curves: Sequence[Sequence[pd.DataFrame]], runs: Sequence[RunFolder]) -> list[CurveAxis]:
    """Return the axes of curves (rounds, time and bytes), with units that suit the values.

    Args:
        curves: curves of each series, as ``curves_of`` returns them: ``rounds``, ``time`` (s),
            ``bytes`` and ``value`` of each test.
        runs: runs of the curves.
    """
    all_curves: list[pd.DataFrame] = []
    for line_curves in curves:
        all_curves += line_curves
    ends = pd.concat(all_curves)[["time", "bytes"]].max()
    time_unit = style.unit_for(ends["time"], style.TIMES)
    bytes_unit = style.unit_for(ends["bytes"], style.BYTES)
    word = common_word(run.round_word for run in runs)
    return [
        CurveAxis("rounds", 1.0, f"{word}s aggregated"),
        CurveAxis("time", time_unit.size, style.time_label(runs, time_unit.name)),
        CurveAxis("bytes", bytes_unit.size, f"moved ({bytes_unit.name})"),
    ]


def band(curves: Sequence[pd.DataFrame], column: str) -> pd.DataFrame:
    """Return mean, lowest and highest value over several curves, as a band for drawing.

    The band covers the range in which all curves have values. Between the points of a curve, its
    values are interpolated.

    Args:
        curves: a DataFrame per seed, with the columns ``column`` (ascending) and ``value``.
        column: name of the column with horizontal positions: ``rounds``, ``time`` or ``bytes``.

    Returns:
        DataFrame with at most 400 rows and the columns ``at`` (horizontal position), ``mean``,
        ``low`` and ``high``; no rows if there is no common range.
    """
    positions = [curve[column].to_numpy(float) for curve in curves]
    common = np.unique(np.concatenate([[], *positions]))
    for x in positions:
        common = common[(common >= x[0]) & (common <= x[-1])]
    if not len(common):
        return pd.DataFrame(columns=["at", "mean", "low", "high"], dtype=float)
    at = common[style.choose_evenly(len(common), _MOST_POINTS)]
    rows = []
    for x, curve in zip(positions, curves, strict=True):
        rows.append(np.interp(at, x, curve["value"]))
    values = np.array(rows)
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
    """Draw a line or a band per series, with a dot at its end, and set the axis.

    The axis is logarithmic if the lines' ends lie far apart. Points at 0, as of a run that moved no
    bytes, have no place on a logarithmic axis.
    """
    bands = [band(line_curves, axis.column) for line_curves in curves]
    ends = [float(line_band["at"].max()) / axis.unit for line_band in bands if len(line_band)]
    longest = max(ends, default=1.0)
    shortest = min((end for end in ends if end > 0), default=1.0)
    is_log = longest > _MOST_APART * shortest
    for line, line_curves, line_band in zip(series, curves, bands, strict=True):
        if is_log:
            line_band = line_band[line_band["at"] > 0]
        if len(line_band):
            x = line_band["at"].to_numpy() / axis.unit
            _plot_line(panel, line, x, line_band, has_seeds=len(line_curves) > 1)
    panel.grid()
    if is_log:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:,g}")
        panel.set_xlabel(f"{axis.label}, log scale")
        if axis.column == "rounds":
            panel.set_xlim(left=1)
    else:
        panel.set_xlim(0, longest or 1.0)
        is_whole = axis.column == "rounds"
        ticks = MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=is_whole)
        panel.xaxis.set_major_locator(ticks)
        panel.set_xlabel(axis.label)


def _plot_line(
    panel: Axes, line: Series, x: Floats, line_band: pd.DataFrame, *, has_seeds: bool
) -> None:
    """Draw the mean of a series as a line, with a band over its seeds if there are several.

    A line without seeds has a dot at each test if the tests are few.
    """
    look = palette.line_of(line.number, _WIDTH)
    mean = line_band["mean"]
    marker = "o" if not has_seeds and len(x) <= _MARKED else ""
    if has_seeds:
        panel.fill_between(
            x,
            line_band["low"],
            line_band["high"],
            color=look["color"],
            alpha=_BAND,
            linewidth=0,
            gid=f"band-{line.number}",
        )
    panel.plot(x, mean, gid=f"mean-{line.number}", marker=marker, markersize=3.5, **look)
    panel.plot(x[-1:], mean[-1:], marker="o", markersize=6, clip_on=False, **look)


def _handles(
    series: Sequence[Series], curves: Sequence[Sequence[pd.DataFrame]], **look: Any
) -> list[Artist]:
    handles: list[Artist] = []
    for line, line_curves in zip(series, curves, strict=True):
        label = line.label if line_curves else f"{line.label} (not evaluated)"
        line_look = palette.line_of(line.number, _WIDTH) | look
        handles.append(Line2D([], [], label=label, **line_look))
    return handles


def _mark(panels: Sequence[Axes], run: RunFolder, axes: Sequence[CurveAxis]) -> list[Line2D]:
    """Draw ticks below the curve at data shifts, arrivals, departures and reached deadlines.

    Returns:
        The legend's entries.
    """
    history = History(run)
    curve = _curve(run, "accuracy")
    handles = []
    rounds = history.rounds
    deadlines = rounds["end"][rounds["deadline"] <= rounds["end"]]
    for level, (kind, look) in enumerate(_MARKS.items()):
        times = np.unique(deadlines if kind == "deadline" else history.of(kind)["time"])
        if not len(times):
            continue
        for panel, axis in zip(panels, axes, strict=True):
            # positions of the marks: the panel's axis shows rounds, time or bytes
            reached = np.interp(times, [0.0, *curve["time"]], [0.0, *curve[axis.column]])
            height = 0.015 + 0.028 * level  # share of the panel's height
            panel.plot(
                reached / axis.unit,
                np.full(len(times), height),
                transform=panel.get_xaxis_transform(),
                gid=kind,
                clip_on=False,
                **look,
            )
        handles.append(Line2D([], [], **look))
    return handles
