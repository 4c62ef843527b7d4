"""Accuracy against time, bytes and rounds as lines that a reader can hide and look at closely;
``chart.js`` draws them.

uPlot (MIT, 51 kB) is in the page: of the libraries it is the smallest that has bands, dashes and
a cursor, and loads nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.analysis import style
from fedsim.analysis.accuracy import axes_of, band, curves_of, figures_of
from fedsim.analysis.report import tables
from fedsim.analysis.report.markup import Markup, data_block, el, join, pack
from fedsim.analysis.style import Series

AT_ONCE = 8  # lines; the others are a click away
# of a line, in the chart and in the table
_POINTS = 120
_TOLD = 5
_DASHES: dict[str, list[int]] = {"-": [], "--": [8, 5], ":": [2, 4], "-.": [9, 4, 2, 4]}
_SAYS = (
    "Lines are means over seeds, bands go from the lowest to the highest of them; a line ends "
    "where its first seed does. Point "
    "at a line for its figures, choose names to hide or show lines, drag to zoom, double-click "
    "for all."
)


def chart(series: Sequence[Series]) -> list[Markup]:
    """The chart of all series, of which the first eight are seen; empty if nothing was
    evaluated.
    """
    name = figures_of([run for one in series for run in one.runs])[0]
    try:
        curves = curves_of(series, name)
    except style.NothingToDrawError:
        return []
    columns: dict[str, NDArray[Any]] = {}
    rounds, time, size = axes_of(curves)
    axes = (time, size, rounds)
    for place, axis in enumerate(axes):
        bands = [band(own, axis.column) for own in curves]
        grid = np.linspace(0.0, max(float(one["at"].max()) for one in bands if len(one)), _POINTS)
        columns[f"x{place}"] = (grid / axis.unit).astype(np.float32)
        for part in ("mean", "low", "high"):
            # NaN outside of what is known
            known = [one if len(one) else one.reindex([0]) for one in bands]
            values = [
                np.interp(grid, one["at"], one[part], left=np.nan, right=np.nan) for one in known
            ]
            columns[f"{part}{place}"] = np.concatenate(values).astype(np.float32)
    lines = []
    for one in series:
        look = style.line_of(one.number, 2.0)
        lines.append(
            {"name": one.name, "colour": look["color"], "dash": _DASHES[look["linestyle"]]}
        )
    figure = "test accuracy (0 to 1)" if name == "accuracy" else f"test {name}"
    header = {
        "points": _POINTS,
        "axes": [axis.label for axis in axes],
        "lines": lines,
        "figure": figure,
    }
    options = [el("option", axis.label, value=place) for place, axis in enumerate(axes)]
    some = [(f"the best {AT_ONCE}", AT_ONCE)] * (len(lines) > AT_ONCE) + [
        ("all", len(lines)),
        ("none", 0),
    ]
    buttons = (el("button", text, type="button", data_show=most) for text, most in some)
    toolbar = el("div", el("label", "against ", el("select", *options)), *buttons, class_="toolbar")
    key = el(
        "ul", *(el("li", _button(place, line)) for place, line in enumerate(lines)), class_="key"
    )
    stage = el(
        "div",
        class_="plotted",
        role="img",
        aria_label=f"{name.capitalize()} of {len(lines)} lines. {_SAYS}",
    )
    block = data_block("chart-data", {"header": header, "packed": pack(columns)})
    body = join(toolbar, key, stage, el("output", class_="said"), el("figcaption", _SAYS), block)
    told = np.linspace(0, _POINTS - 1, _TOLD + 1, dtype=int)[1:]
    means = columns["mean0"].reshape(-1, _POINTS)[:, told]
    cells = [["" if np.isnan(mean) else f"{mean:.3f}" for mean in own] for own in means]
    rows = [[line["name"], *own] for line, own in zip(lines, cells, strict=True)]
    heads = ["line", *(f"{columns['x0'][at]:.3g}" for at in told)]
    table = tables.grid(
        heads,
        rows,
        [True, *[False] * _TOLD],
        f"Mean {name} of each line at some times: {axes[0].label}.",
    )
    return [
        el("h3", f"{name.capitalize()} against time, bytes and rounds", id="accuracy"),
        el("figure", body, class_="chart", data_block="chart-data"),
        el("details", el("summary", "The same as a table"), table),
    ]


def _button(place: int, line: dict[str, Any]) -> Markup:
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
    pressed = "true" if place < AT_ONCE else "false"
    return el("button", picture, line["name"], type="button", data_line=place, aria_pressed=pressed)
