"""Interactive chart of accuracy against time, bytes and rounds. Readers hide lines and zoom.

``chart.js`` draws the lines.

The page contains the library uPlot (MIT, 51 kB), the smallest one that draws bands, dashes and a
cursor without loading other files.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import palette, style
from fedsim.analysis.accuracy import CurveAxis, axes_of, band, choose_measures, curves_of
from fedsim.analysis.report import tables
from fedsim.analysis.report.markup import Markup, data_block, el, join, pack
from fedsim.analysis.series import Series
from fedsim.common.arrays import AnyArray, Floats
from fedsim.common.round_words import counted
from fedsim.records.reading import RunFolder

AT_ONCE = 8  # greatest count of lines that are visible at first
_BANDS = 3  # if more lines than this are visible, only the line at the pointer has its band
_POINTS = 241  # points per line in the chart
_REACH = 6  # a smoothed point is a mean over itself and 6 points on each side, 2.5 % of the axis
# The chart opens with smoothed lines if the median of this ratio over the lines exceeds 1.5: the
# sum of a line's ups and downs, divided by the range of its values.
_NOISY = 1.5
_TABLE_POINTS = 8  # approximate limit of the values per line in the table
_DASHES: dict[str, list[int]] = {"-": [], "--": [8, 5], ":": [2, 4], "-.": [9, 4, 2, 4]}
_SEEDS = (
    "Lines are means over seeds; a line ends when the first of its runs ends. The band of a line "
    f"goes from the lowest to the highest of its seeds; with more than {_BANDS} lines, only the line "
    "at the pointer has its band. "
)
_HINT = "Choose names to hide or show lines, drag to zoom, double-click for all."
_SMOOTH = (
    f"A smoothed line is a mean over {_REACH / (_POINTS - 1):.1%} of the axis to each side. The text "
    "at the pointer and the table have the figures without smoothing."
)


class _ChartLine(TypedDict):
    """Name, colour and dash of one curve of the chart, as JSON for the script ``chart.js``."""

    name: str
    colour: str
    dash: list[int]


def chart(series: Sequence[Series]) -> list[Markup]:
    """Return the interactive chart of a report: curves of all series, with a table.

    Args:
        series: the lines of the chart; a series has the runs of a variant or scenario over seeds.

    Returns:
        Heading, figure and table; empty if no round was evaluated.
    """
    runs: list[RunFolder] = []
    for line in series:
        runs += line.runs
    metric = choose_measures(runs)[0]
    try:
        curves = curves_of(series, metric)
    except style.NothingToDrawError:
        return []
    rounds, time, size = axes_of(curves, runs)
    axes = (time, size, rounds)
    columns: dict[str, AnyArray] = {}
    for axis_index, axis in enumerate(axes):
        columns |= _columns(axis_index, axis, curves)
    figure = _figure(metric, series, axes, columns, is_noisy=_is_noisy(curves))
    table = _table(metric, series, time, curves)
    return [
        el("h3", f"{metric.capitalize()} against time, bytes and rounds", id="accuracy"),
        el("figure", figure, class_="chart", data_block="chart-data"),
        el("details", el("summary", "The same as a table"), table),
    ]


def _columns(
    axis_index: int, axis: CurveAxis, curves: Sequence[Sequence[pd.DataFrame]]
) -> dict[str, AnyArray]:
    """Return the points of all lines against one axis, for ``chart.js``.

    Returns:
        The keys end in the index of the axis, such as 0. ``x0`` has the horizontal positions,
        float32 [_POINTS]; ``mean0``, ``low0`` and ``high0`` have the values, float32 [lines *
        _POINTS], line by line.
    """
    bands = [band(line_curves, axis.column) for line_curves in curves]
    end = max(float(line["at"].max()) for line in bands if len(line))
    grid = np.linspace(0.0, end, _POINTS)
    columns: dict[str, AnyArray] = {f"x{axis_index}": (grid / axis.unit).astype(np.float32)}
    for part in ("mean", "low", "high"):
        values = [_values_at(grid, line, part) for line in bands]
        columns[f"{part}{axis_index}"] = np.concatenate(values).astype(np.float32)
    return columns


def _values_at(positions: Floats, line: pd.DataFrame, part: str) -> Floats:
    """Return the values of a line at some positions, NaN outside of its range; float64 [n].

    Args:
        positions: positions on the axis, float64 [n].
        line: the line, as ``band`` returns it.
        part: column of the values: ``mean``, ``low`` or ``high``.
    """
    if not len(line):
        return np.full(len(positions), np.nan)
    at = line["at"].to_numpy(np.float64)
    values = line[part].to_numpy(np.float64)
    interpolated: Floats = np.interp(positions, at, values, left=np.nan, right=np.nan)
    return interpolated


def _is_noisy(curves: Sequence[Sequence[pd.DataFrame]]) -> bool:
    """Whether most lines zigzag: the sum of their changes is far above their range of values."""
    ratios = []
    for line in curves:
        values = band(line, "time")["mean"].to_numpy()
        value_range = np.ptp(values) if len(values) else 0.0
        if value_range:
            ratios.append(np.abs(np.diff(values)).sum() / value_range)
    return bool(ratios) and float(np.median(ratios)) > _NOISY


def _figure(
    metric: str,
    series: Sequence[Series],
    axes: Sequence[CurveAxis],
    columns: dict[str, AnyArray],
    *,
    is_noisy: bool,
) -> Markup:
    """Return the chart's HTML: controls, legend, drawing area and data for ``chart.js``.

    Args:
        metric: name of the drawn measure, such as ``accuracy``.
        series: the lines.
        axes: the horizontal axes from which the reader chooses.
        columns: points of all lines, as ``_columns`` returns them for each axis.
        is_noisy: whether the lines are smoothed at first.
    """
    lines: list[_ChartLine] = []
    for line in series:
        look = palette.line_of(line.number, 2.0)
        dash = _DASHES[look["linestyle"]]
        lines.append({"name": line.name, "colour": look["color"], "dash": dash})
    header = {
        "points": _POINTS,
        "smoothed": _REACH,
        "bands": _BANDS,
        "axes": [axis.label for axis in axes],
        "lines": lines,
        "figure": "test accuracy (0 to 1)" if metric == "accuracy" else f"test {metric}",
    }
    key_entries = [el("li", _button(index, line)) for index, line in enumerate(lines)]
    hint = _HINT
    if any(len(line.runs) > 1 for line in series):
        hint = _SEEDS + hint
    label = f"{metric.capitalize()} of {counted(len(lines), 'line')}. {hint}"
    return join(
        _toolbar(axes, len(lines), is_noisy=is_noisy),
        el("ul", *key_entries, class_="key"),
        el("div", class_="plotted", role="img", aria_label=label),
        el("output", class_="said"),
        el("figcaption", f"{hint} {_SMOOTH}"),
        data_block("chart-data", {"header": header, "packed": pack(columns)}),
    )


def _toolbar(axes: Sequence[CurveAxis], line_count: int, *, is_noisy: bool) -> Markup:
    """Return the chart's controls: the choice of the axis and of lines, and smoothing.

    Args:
        axes: the horizontal axes from which the reader chooses.
        line_count: count of lines of the chart.
        is_noisy: whether the lines are smoothed at first.
    """
    options = [el("option", axis.label, value=index) for index, axis in enumerate(axes)]
    against = el("label", "against ", el("select", *options))
    # text of each button, and count of lines that are visible after a click on it
    choices = [("all", line_count), ("none", 0)]
    if line_count > AT_ONCE:
        choices.insert(0, (f"the best {AT_ONCE}", AT_ONCE))
    buttons = [el("button", text, type="button", data_show=most) for text, most in choices]
    box = el("input", type="checkbox", name="smooth", checked=is_noisy)
    return el("div", against, *buttons, el("label", box, " smoothed"), class_="toolbar")


def _table(
    metric: str,
    series: Sequence[Series],
    time: CurveAxis,
    curves: Sequence[Sequence[pd.DataFrame]],
) -> Markup:
    """Return a table of the mean of each line at some times, which are round numbers.

    Args:
        metric: name of the metric.
        series: the lines.
        time: the axis of time.
        curves: curves of each line.
    """
    bands = [band(line_curves, time.column) for line_curves in curves]
    end = max(float(line["at"].max()) for line in bands if len(line)) / time.unit
    locator = MaxNLocator(nbins=_TABLE_POINTS, steps=[1, 2, 2.5, 4, 5, 10])
    ticks = np.asarray(locator.tick_values(0.0, end), dtype=np.float64)
    shown = ticks[(ticks > 0) & (ticks <= end)]
    rows = []
    for line, line_band in zip(series, bands, strict=True):
        values = _values_at(shown * time.unit, line_band, "mean")
        cells = [tables.NOTHING if np.isnan(value) else f"{value:.3f}" for value in values]
        rows.append([line.name, *cells])
    has_seeds = any(len(line.runs) > 1 for line in series)
    quantity = metric.capitalize()
    last = "has ended"
    if has_seeds:
        quantity = f"Mean {metric}"
        last = "one of its runs has ended"
    caption = (
        f"{quantity} of each line, not smoothed, at some times: {time.label}. A dash: the line has "
        f"no figure yet, or {last}."
    )
    heads = ["line", *(f"{at:g}" for at in shown.tolist())]
    return tables.grid(heads, rows, [True, *[False] * len(shown)], caption)


def _button(index: int, line: _ChartLine) -> Markup:
    """Return a button that hides or shows a line, drawn in the look of the line."""
    dash = " ".join(map(str, line["dash"])) or None
    swatch = el(
        "line",
        x1=0,
        x2=26,
        y1=6,
        y2=6,
        stroke=line["colour"],
        stroke_width=3,
        stroke_dasharray=dash,
    )
    picture = el("svg", swatch, viewBox="0 0 26 12", aria_hidden="true")
    pressed = "true" if index < AT_ONCE else "false"
    return el("button", picture, line["name"], type="button", data_line=index, aria_pressed=pressed)
