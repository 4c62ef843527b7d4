"""Interactive chart of accuracy against time, bytes and rounds. Readers hide lines and zoom.

``chart.js`` draws the lines.

The page contains the library uPlot (MIT, 51 kB), the smallest one that draws bands, dashes and a
cursor without loading other files.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pandas as pd

from fedsim.analysis import palette, style
from fedsim.analysis.accuracy import CurveAxis, axes_of, band, choose_measures, curves_of
from fedsim.analysis.report import tables
from fedsim.analysis.report.markup import Markup, data_block, el, join, pack
from fedsim.analysis.series import Series
from fedsim.common.arrays import AnyArray
from fedsim.common.round_words import counted
from fedsim.records.reading import RunFolder

AT_ONCE = 8  # most lines that are visible at first
_BANDS = 3  # most visible lines with a band each; of more, the line at the pointer has one
_POINTS = 241  # points per line in the chart
_REACH = 6  # points to each side over which a smoothed line is the mean: 2.5 % of the axis
# A chart opens with smoothed lines if the sum of a line's ups and downs, divided by the range of
# its values, exceeds this in the median.
_NOISY = 1.5
_TABLE_POINTS = 8  # values per line in the table
_DASHES: dict[str, list[int]] = {"-": [], "--": [8, 5], ":": [2, 4], "-.": [9, 4, 2, 4]}
_HINT = (
    "Lines are means over seeds; a line ends where its first seed does. The band of a line goes "
    f"from the lowest to the highest of its seeds; of more than {_BANDS} lines, the one that is "
    "pointed at has it. Choose names to hide or show lines, drag to zoom, double-click for all."
)
_SMOOTH = (
    f"A smoothed line is a mean over {_REACH / (_POINTS - 1):.1%} of the axis to each side. What is "
    "said of the line at the pointer, and the table, are the figures as they were."
)


class _ChartLine(TypedDict):
    """Name, colour and dash of one curve of the chart, as JSON for the script ``chart.js``."""

    name: str
    colour: str
    dash: list[int]


def chart(series: Sequence[Series]) -> list[Markup]:
    """Return the interactive chart of a report: curves of all series, with a table.

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
    # keys of columns end in the index of their axis; time is the first
    means = columns["mean0"].reshape(len(series), _POINTS)
    table = _table(metric, series, time, columns["x0"], means)
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
    # ``np.interp`` needs at least one point, so a line without points gets one of NaN
    lines = [line if len(line) else line.reindex([0]) for line in bands]
    for part in ("mean", "low", "high"):
        values = []
        for line in lines:
            # values outside of the line's range are NaN
            values.append(np.interp(grid, line["at"], line[part], left=np.nan, right=np.nan))
        columns[f"{part}{axis_index}"] = np.concatenate(values).astype(np.float32)
    return columns


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
    options = [el("option", axis.label, value=index) for index, axis in enumerate(axes)]
    choices = [("all", len(lines)), ("none", 0)]  # text of a button, and count of lines it shows
    if len(lines) > AT_ONCE:
        choices.insert(0, (f"the best {AT_ONCE}", AT_ONCE))
    buttons = [el("button", text, type="button", data_show=most) for text, most in choices]
    box = el("input", type="checkbox", name="smooth", checked=is_noisy)
    against = el("label", "against ", el("select", *options))
    toolbar = el("div", against, *buttons, el("label", box, " smoothed"), class_="toolbar")
    entries = [el("li", _button(index, line)) for index, line in enumerate(lines)]
    label = f"{metric.capitalize()} of {counted(len(lines), 'line')}. {_HINT}"
    return join(
        toolbar,
        el("ul", *entries, class_="key"),
        el("div", class_="plotted", role="img", aria_label=label),
        el("output", class_="said"),
        el("figcaption", f"{_HINT} {_SMOOTH}"),
        data_block("chart-data", {"header": header, "packed": pack(columns)}),
    )


def _table(
    metric: str, series: Sequence[Series], time: CurveAxis, times: AnyArray, means: AnyArray
) -> Markup:
    """Return a table of the mean of each line at some times.

    Args:
        metric: name of the metric.
        series: the lines.
        time: the axis of time.
        times: times in its unit; float32 [_POINTS].
        means: mean of each line at these times; float32 [lines, _POINTS].
    """
    points = np.linspace(0, _POINTS - 1, _TABLE_POINTS + 1, dtype=int)[1:]  # without time 0
    rows = []
    for line, line_means in zip(series, means[:, points], strict=True):
        cells = [tables.NOTHING if np.isnan(mean) else f"{mean:.3f}" for mean in line_means]
        rows.append([line.name, *cells])
    heads = ["line", *(f"{times[point]:.3g}" for point in points)]
    caption = (
        f"Mean {metric} of each line, not smoothed, at some times: {time.label}. A dash: the line has "
        "no figure yet, or one of its seeds has ended."
    )
    return tables.grid(heads, rows, [True, *[False] * _TABLE_POINTS], caption)


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
