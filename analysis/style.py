"""Shared parts of pictures: units, bars, marks, legends, names, and saving."""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedsim.analysis import palette
from fedsim.common.arrays import Floats
from fedsim.common.errors import FedsimError
from fedsim.common.harmless import clean
from fedsim.common.round_words import counted
from fedsim.lab.reading.study_folder import distinct_names
from fedsim.records.folder import writing
from fedsim.records.reading import RunFolder

FORMATS = ("png", "svg")  # formats of pictures; figures for papers have further formats

TIMES = (
    (2 * 86400.0, 86400.0, "days"),
    (2 * 3600.0, 3600.0, "h"),
    (180.0, 60.0, "min"),
    (0.0, 1.0, "s"),
)
# least end of the axis (J), size (J) and name of each unit; ``show_joules`` has the same units
JOULES = ((3.6e9, 3.6e9, "MWh"), (1e6, 3.6e6, "kWh"), (1e3, 1e3, "kJ"), (0.0, 1.0, "J"))
BYTES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (1.0, 1.0, "B"))

WIDTH_IN = 13.0
DPI = 120
MANY_BARS = 4000  # more bars than this are drawn as pixels, as vectors make the SVG large and slow
_LONGEST_LINE = 120  # characters that fit into a line of the title
_CHARACTERS_PER_IN = 11  # characters of a legend's text in an inch
_LEGEND_ROW_IN = 0.22  # height of a row of a legend
_LEGEND_ROWS = 8  # count of rows of a legend for which most figures have room
_SWATCH_CHARACTERS = 7  # width of an entry's sign and the gap beside it (characters)
_FONT = "DejaVu Sans"  # ships with matplotlib, so that pictures are the same everywhere
_RC: dict[Any, object] = {
    "font.family": _FONT,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": palette.PALE,
    "grid.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "hatch.linewidth": 0.8,
    "text.parse_math": False,  # names may have dollar signs
    "text.usetex": False,
    "svg.hashsalt": "fedsim",
}

styled = matplotlib.rc_context(_RC)
"""Decorator that draws with the shared style, and restores matplotlib's settings."""


class PictureError(FedsimError):
    """Error that a picture cannot be drawn with the given options."""

    exit_status = 2


class NothingToDrawError(PictureError):
    """Error that a run has no data for a picture."""


class AxisUnit(NamedTuple):
    """Unit in which an axis is labelled, such as hours or MB.

    Attributes:
        least: end of the shortest axis for which the unit is used, in the base unit (such as s).
        size: size of the unit, in the base unit.
        name: name of the unit.
    """

    least: float
    size: float
    name: str


_UNNAMED = "unnamed"  # name of a scenario that has none


def unit_for(most: float, units: Sequence[tuple[float, float, str]]) -> AxisUnit:
    """Return the unit that suits an axis.

    Args:
        most: end of the axis, in the base unit (such as s).
        units: the units to choose from, the largest first. Each unit is a tuple: the end of the
            shortest axis for which the unit is used, the size of the unit (both in the base unit),
            and its name.
    """
    for unit in units:
        if most >= unit[0]:
            return AxisUnit(*unit)
    return AxisUnit(*units[-1])


@styled
def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure to files. Equal figures give files with equal bytes.

    Args:
        figure: the figure.
        stem: path of the files, without their endings.
        formats: endings of the files, such as ``png``.

    Returns:
        Paths of the files.
    """
    paths = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        metadata = {"Date": None} if kind == "svg" else {}
        # ``writing`` replaces a link at ``path`` instead of following it
        with writing(path) as beside:
            figure.savefig(beside, format=kind, metadata=metadata, dpi=DPI)
        paths.append(path)
    return paths


@styled
def render_pixels(figure: Figure, dpi: int = DPI) -> NDArray[np.uint8]:
    """Render a figure as pixels: red, green, blue and opacity, uint8 [height, width, 4].

    The figure is drawn once, whereas saving it to a file draws it twice.

    Args:
        figure: the figure.
        dpi: pixels per inch.
    """
    figure.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(figure)  # methods of the canvas have no types
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def draw_rectangles(
    panel: Axes, x0: ArrayLike, x1: ArrayLike, y0: ArrayLike, y1: ArrayLike, **look: Any
) -> None:
    """Draw n rectangles as one collection, without changing the panel's limits.

    Args:
        panel: the panel.
        x0: left sides, [n] or one value for all rectangles.
        x1: right sides, [n] or one value.
        y0: lower sides, [n] or one value.
        y1: upper sides, [n] or one value.
        look: matplotlib's options of the collection of shapes.
    """
    x0, x1, y0, y1 = np.broadcast_arrays(np.atleast_1d(x0), x1, y0, y1)
    corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).reshape(-1, 4, 2)
    look = {"linewidth": 0, "rasterized": len(corners) > MANY_BARS} | look
    panel.add_collection(PolyCollection(corners, **look), autolim=False)  # type: ignore[arg-type]  # [n, 4, 2]: the fast way


def draw_bars(
    panel: Axes, start: ArrayLike, end: ArrayLike, row: ArrayLike, half: float, **look: Any
) -> None:
    """Draw horizontal bars.

    Args:
        panel: the panel.
        start: starts of the bars on the horizontal axis [n].
        end: ends of the bars on the horizontal axis [n].
        row: vertical positions of the bars' middles [n].
        half: half the height of a bar.
        look: matplotlib's options of the collection of shapes.
    """
    middle = np.asarray(row)
    draw_rectangles(panel, start, end, middle - half, middle + half, **look)


def draw_markers(panel: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> None:
    """Draw n marks, which are not cut at the panel's edge.

    Args:
        panel: the panel.
        x: positions on the horizontal axis [n].
        y: positions on the vertical axis [n].
        look: matplotlib's options of the marks (``Line2D``).
    """
    if np.size(x):  # matplotlib's layout fails for a curve without points
        panel.plot(x, y, clip_on=False, zorder=4, **look)


def draw_verticals(panels: Iterable[Axes], times: ArrayLike, **look: Any) -> None:
    """Draw vertical lines over the whole height of panels.

    Args:
        panels: the panels.
        times: positions on the horizontal axis [n].
        look: matplotlib's options of the lines.
    """
    for panel in panels:
        panel.vlines(times, 0, 1, transform=panel.get_xaxis_transform(), **look)


def set_whole_ticks(axis: Axis, most: int) -> None:
    """Set at most ``most`` ticks on an axis, at whole numbers.

    Args:
        axis: the axis.
        most: greatest count of ticks.
    """
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))


def choose_evenly(count: int, most: int) -> NDArray[np.int64]:
    """Choose at most ``most`` of ``count`` indices, evenly spread, with the first and the last.

    Args:
        count: count of indices to choose from.
        most: greatest count of indices to return.

    Returns:
        The indices, ascending, int64 [n].
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))


def time_label(runs: Iterable[RunFolder], unit: str) -> str:
    """Return the label of an axis of time, such as "simulated time (h)".

    If some of the runs have simulated and others measured time, the label is "time (h)".

    Args:
        runs: runs of the picture.
        unit: name of the unit.
    """
    clocks = {run.clock for run in runs}
    clock = clocks.pop() if len(clocks) == 1 else "time"
    return f"{clock} ({unit})"


def group_name(group: int) -> str:
    """Return the name of a group, such as ``"group 3"``; ``"no group"`` if it is negative."""
    return f"group {group}" if group >= 0 else "no group"


def write_beside(panel: Axes, y: float, text: str, apart: float, **look: Any) -> None:
    """Write a text to the right of a panel.

    Args:
        panel: the panel.
        y: vertical position of the text, on the panel's axis.
        text: the text.
        apart: distance from the panel (points).
        look: matplotlib's options of the text.
    """
    look |= {"va": "center", "annotation_clip": False}
    panel.annotate(
        text,
        (1, y),
        (apart, 0),
        xycoords=panel.get_yaxis_transform(),
        textcoords="offset points",
        **look,
    )


def separate_labels(values: Sequence[float] | Floats, apart: float) -> Floats:
    """Increase the positions of labels until neighbours do not overlap.

    Args:
        values: positions of the labels, [n].
        apart: least distance of neighbours.

    Returns:
        The new positions, float64 [n].
    """
    positions = np.array(values, dtype=float)
    previous = -np.inf
    for index in np.argsort(positions, kind="stable"):
        previous = max(positions[index], previous + apart)
        positions[index] = previous
    return positions


def shorten(name: str, most: int = 40) -> str:
    """Shorten a name for drawing: one line of at most ``most`` characters.

    The middle of a longer name is left out. Characters that the font lacks become boxes. An empty
    name becomes ``unnamed``.

    Args:
        name: the name.
        most: greatest count of characters.
    """
    font = get_font(findfont(FontProperties(family=_FONT)))
    text = ""
    for character in clean(name, most):
        text += character if font.get_char_index(ord(character)) else "□"
    if not text:
        return _UNNAMED
    # matplotlib leaves labels with a leading underscore out of legends
    return f" {text}" if text.startswith("_") else text


def as_file_name(name: str) -> str:
    """Replace each character of a name except letters, digits and ``-_.`` by an underscore."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def run_names(runs: Iterable[RunFolder]) -> list[str]:
    """Return a distinct name per run: its folder's name, with parent folders if names are equal."""
    return [shorten(name) for name in distinct_names([run.path for run in runs])]


def with_strategy(name: str, run: RunFolder) -> str:
    """Shorten a name for drawing, and append the run's strategy unless the name contains it.

    Args:
        name: the name.
        run: the run's folder.
    """
    label = shorten(name)
    strategy = shorten(str(run.summary["strategy"]), 20)
    if strategy.lower() in label.lower():
        return label
    return f"{label}: {strategy}"


def thinning_step(count: int, most: int) -> int:
    """Return the least n of 1, 2, 5, 10, 20, 50 ... for which ``count / n`` is at most ``most``.

    Pictures draw or label only every n-th entry.

    Args:
        count: count of entries.
        most: greatest count of entries to draw or label.
    """
    exact_step = max(count / most, 1.0)
    # greatest power of ten that is at most ``exact_step``
    power: int = 10 ** math.floor(math.log10(exact_step))
    for digit in (1, 2, 5):
        if digit * power >= exact_step:
            return digit * power
    return 10 * power


def headline(runs: Sequence[RunFolder]) -> str:
    """Return the headline of a picture: the scenario, and in brackets further properties.

    These are strategy and seed of a single run, or the count of several runs.
    """
    name, *further = dict.fromkeys(shorten(str(run.summary["name"]), 70) for run in runs)
    is_unnamed = name == _UNNAMED and not further
    if len(runs) == 1:
        summary = runs[0].summary
        text = f"{shorten(str(summary['strategy']), 30)}, seed {summary['seed']}"
        return text if is_unnamed else f"{name}   ({text})"
    if is_unnamed:
        return f"{len(runs)} runs"
    if further:
        name = f"{name} and {counted(len(further), 'other scenario')}"
    return f"{name}   ({len(runs)} runs)"


def finish(
    figure: Figure,
    runs: Sequence[RunFolder],
    handles: Sequence[Artist],
    words: str = "",
    *,
    legend_rows: int = _LEGEND_ROWS,
) -> Figure:
    """Add title and legend to a figure, which grows by the rows of a long legend.

    Args:
        figure: the figure.
        runs: runs of the figure, named in the headline.
        handles: labelled entries of the legend, which is below all panels.
        words: text below the headline.
        legend_rows: count of rows of a legend for which the figure has room.

    Returns:
        The same figure.
    """
    title = "\n".join([headline(runs), *textwrap.wrap(words, _LONGEST_LINE)])
    figure.suptitle(title, fontsize=12)
    if handles:
        characters = figure.get_figwidth() * _CHARACTERS_PER_IN
        columns = _legend_columns(handles, characters)
        further_rows = max(0, math.ceil(len(handles) / columns) - legend_rows)
        figure.set_figheight(figure.get_figheight() + further_rows * _LEGEND_ROW_IN)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def _legend_columns(handles: Sequence[Artist], most_characters: float) -> int:
    """Return the greatest count of legend columns that fit into a line of characters."""
    lengths = [len(str(handle.get_label())) + _SWATCH_CHARACTERS for handle in handles]
    for columns in range(len(handles), 1, -1):
        # matplotlib fills columns one by one; the first columns may have one entry more
        widths = [max(column) for column in np.array_split(lengths, columns)]
        if sum(widths) <= most_characters:
            return columns
    return 1


def lowest_panels(grid: NDArray[Any], shown: int) -> list[Axes]:
    """Return the lowest panel of each column, of the first ``shown`` panels of a grid.

    Args:
        grid: panels, which are filled row by row, [rows, columns].
        shown: count of panels that are not hidden.
    """
    columns = grid.shape[1]
    first = max(0, shown - columns)
    return list(grid.flat[first:shown])
