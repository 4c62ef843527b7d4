"""Accuracy against rounds, simulated time and bytes moved, for one run or several side by side."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedsim.analysis import style
from fedsim.analysis.series import Series, each_alone
from fedsim.records.folder import ROUNDS
from fedsim.records.reading import RunFolder

_MARKED = 30  # with more evaluations than this the points run into a line
_UNLIKE = 3  # runs whose numbers of rounds differ by more than this factor do not fit on one linear axis


@style.styled
def draw_accuracy(runs: Sequence[RunFolder], series: Sequence[Series] | None = None) -> Figure:
    """Three panels with one accuracy axis: what a strategy reached by round, by simulated time, and by bytes.

    Rounds that were not evaluated are skipped; a run without any evaluation is named in the legend and has no line. Runs are
    called after their folders, unless ``series`` has one for each, with its name and look.

    Raises:
        NothingToDrawError: none of the runs was evaluated.
        RunFolderError: a folder is damaged.
    """
    series = each_alone(runs) if series is None else series
    curves, looks = [read_curve(run) for run in runs], [one.number for one in series]
    if all(curve.empty for curve in curves):
        raise style.NothingToDrawError("no round was evaluated (learning is off?), so there is no accuracy to draw")
    time = style.time_unit(max(curve["time"].max() for curve in curves if len(curve)))
    size = style.bytes_unit(max(curve["bytes"].max() for curve in curves if len(curve)))

    figure = Figure(figsize=(style.WIDTH_IN, 5.2))
    panels = figure.subplots(1, 3, sharey=True)
    _plot(panels[0], curves, looks, "rounds", 1.0, "rounds aggregated")
    _plot(panels[1], curves, looks, "time", time.size, f"simulated time ({time.name})")
    _plot(panels[2], curves, looks, "bytes", size.size, f"moved, down and up ({size.name})")
    _stretch_rounds(panels[0], curves)
    panels[0].set_ylabel("test accuracy (0 to 1)")
    if len(runs) == 1:
        figure.suptitle(style.headline(runs[0]))
    else:
        _name_lines(figure, series, curves)
    return figure


def read_curve(run: RunFolder) -> pd.DataFrame:
    """The evaluated rounds: ``rounds`` aggregated until then, ``time`` (s), ``bytes`` and ``accuracy`` (0..1)."""
    table = run.table(ROUNDS).to_pandas()
    moved = (table["bytes_down"] + table["bytes_up"]).cumsum()
    curve = pd.DataFrame(
        {"rounds": table["round"] + 1, "time": table["time"], "bytes": moved, "accuracy": table["accuracy"].astype(float)}
    )
    return curve.dropna(subset="accuracy")


def _plot(panel: Axes, curves: Sequence[pd.DataFrame], looks: Sequence[int], column: str, unit: float, label: str) -> None:
    for number, curve in zip(looks, curves, strict=True):
        line = _line(number, len(curve) <= _MARKED)
        panel.plot(curve[column] / unit, curve["accuracy"], **line)
        panel.plot(curve[column].tail(1) / unit, curve["accuracy"].tail(1), **line | {"marker": "o", "markersize": 6})
    panel.set_xlabel(label)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=column == "rounds"))
    panel.grid(color=style.PALE, linewidth=1)


def _stretch_rounds(panel: Axes, curves: Sequence[pd.DataFrame]) -> None:
    """Make the axis of rounds logarithmic if need be: a run without rounds has an aggregation an update, or nearly."""
    longest = [int(curve["rounds"].max()) for curve in curves if len(curve)]
    if max(longest) > _UNLIKE * min(longest):
        panel.set_xscale("log")
        panel.set_xlim(left=1)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.set_xlabel("rounds aggregated (log scale)")


def _line(number: int, marked: bool) -> dict[str, Any]:
    look = style.line_of(number, 1.8 if marked else 1.3)
    return look | {"marker": "o" if marked else "", "markersize": 3.5}


def _name_lines(figure: Figure, series: Sequence[Series], curves: Sequence[pd.DataFrame]) -> None:
    handles = [Line2D([], [], **_line(one.number, True)) for one in series]
    said = [one.name + ("" if len(curve) else " (not evaluated)") for one, curve in zip(series, curves, strict=True)]
    style.legend_below(figure, handles, said)
