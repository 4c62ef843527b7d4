"""Sheets: figures as wide as a paper's column, in the style for LaTeX, as vector files."""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

import matplotlib.style
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

from fedsim.analysis import palette, style
from fedsim.common.arrays import Floats
from fedsim.common.errors import nearest
from fedsim.records.folder import writing

STYLE = "fedsim.analysis.paper.latex"
"""Name of the style file: ``matplotlib.pyplot.style.use(STYLE)``."""

FORMATS = ("pdf", "svg", "png")
UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # unit -> inches; pt as in TeX
LEAST_IN = 2.0
MOST_IN = 20.0
COLUMN_IN = 3.5  # width of a column in two-column papers
LEAST_PT = 7.0  # size of the smallest text (points)
_LETTER_IN = 0.05  # usual width of a letter of a title (inches)
_AXIS_IN = 0.45  # width of a vertical axis with its labels (inches)
_WIDE_IN = 2.9  # least width of a panel that is beside another panel (inches)
_WIDTH = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]+)\s*")

# Colours, dashes and marks of lines that stand for strategies. No line has the colour of an outcome
# of tasks (``OUTCOMES``). Lightness, dashes and marks tell the lines apart in print without
# colours.
_LINE_COLOURS = ("#332288", "#CC6677", "#44AA99", "#882255", "#999933", "#5577AA")
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)), (0, (6, 1.5)), (0, (2, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
BAND = 0.22  # opacity of a band, the area from the lowest to the highest seed

OUTCOMES: dict[str, palette.Look] = {
    "valid": {"color": "#009E73", "linestyle": "-", "marker": "o"},
    "slow": {"color": palette.ORANGE, "linestyle": (0, (4, 1.2, 1, 1.2)), "marker": "D"},
    "late": {"color": palette.VERMILLION, "linestyle": (0, (4, 1.5)), "marker": "^"},
    "lost": {"color": palette.BLACK, "linestyle": (0, (1, 1.2)), "marker": "s"},
}
"""Outcome of a task -> look of its line in figures."""

NumberRow: TypeAlias = dict[str, float | int | str | None]
"""Row of the table beside a figure: the drawn numbers by name."""

DrawArguments = ParamSpec("DrawArguments")
Drawn = TypeVar("Drawn")


class Spread(NamedTuple):
    """Mean, lowest and highest of a number over the seeds of a line.

    Attributes:
        mean: mean over the seeds.
        low: lowest value.
        high: highest value.
        seeds: count of values.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of a number over seeds.

        Args:
            values: the number in the run of each seed; at least one.
        """
        return cls(sum(values) / len(values), min(values), max(values), len(values))

    def row(self, line: str, number: str) -> "NumberRow":
        """Return a row for the CSV of a figure's numbers.

        Args:
            line: name of the figure's line (a variant or scenario) that has the number.
            number: name of the number, such as ``share_of_waiting``.
        """
        return {
            "line": line,
            "number": number,
            "mean": self.mean,
            "lowest_seed": self.low,
            "highest_seed": self.high,
            "seeds": self.seeds,
        }


class SpreadCurve(NamedTuple):
    """Means and ranges over seeds at successive points, for a curve with a band; float64 [n] each.

    Attributes:
        mean: the means.
        low: the lowest values.
        high: the highest values.
    """

    mean: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, spreads: Sequence[Spread], unit: float = 1.0) -> "SpreadCurve":
        """Convert spreads, one for each point of the curve, to arrays.

        Args:
            spreads: mean and range at each point.
            unit: unit of the axis, by which the values are divided.
        """
        table = np.array(spreads, dtype=float).reshape(-1, len(Spread._fields)) / unit
        return cls(table[:, 0], table[:, 1], table[:, 2])


@dataclass(frozen=True)
class PaperFigure:
    """Figure for a paper, with the numbers that it draws.

    Attributes:
        figure: the figure.
        numbers: rows of the table beside the figure.
        notes: sentences on what is not drawn, and why.
    """

    figure: Figure
    numbers: list[NumberRow]
    notes: tuple[str, ...] = ()


def in_style() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws in the style for LaTeX."""
    return matplotlib.style.context(STYLE)


def styled(draw: Callable[DrawArguments, Drawn]) -> Callable[DrawArguments, Drawn]:
    """Decorate a function that draws or saves a figure: it then works in the style for LaTeX."""

    @wraps(draw)
    def draw_styled(*args: DrawArguments.args, **options: DrawArguments.kwargs) -> Drawn:
        with in_style():
            return draw(*args, **options)

    return draw_styled


def read_width(text: str) -> float:
    """Parse a width such as ``"3.5in"``, ``"88 mm"`` or ``"252pt"`` (points of TeX).

    Returns:
        The width in inches.

    Raises:
        PictureError: the text is not a number with a unit out of ``in``, ``cm``, ``mm`` and ``pt``,
            or the width is less than 2 or more than 20 inches.
    """
    hint = ""
    match = _WIDTH.fullmatch(text)
    if match is not None:
        unit = match[2]
        if unit not in UNITS:
            hint = nearest(unit, UNITS)
        elif LEAST_IN <= float(match[1]) * UNITS[unit] <= MOST_IN:
            return float(match[1]) * UNITS[unit]
    raise style.PictureError(
        f"--width is {text!r}; allowed are {LEAST_IN:g} in to {MOST_IN:g} in, as a number and a "
        f"unit out of {', '.join(UNITS)}, such as 3.5in{hint}"
    )


def columns_for(width: float, panels: int) -> int:
    """Return the count of columns in which a figure can arrange its panels.

    Args:
        width: width of the figure (inches).
        panels: count of panels.

    Returns:
        The greatest count, at most ``panels``, for which panels are wide enough; at least 1.
    """
    return max(1, min(panels, int(width / _WIDE_IN)))


class PanelStack(NamedTuple):
    """Panels of a figure, one above another with a common x-axis, that show one variant.

    Attributes:
        panels: the panels, from top to bottom.
        is_lowest: whether no other stack is below this stack, so that its x-axis has a label.
    """

    panels: list[Axes]
    is_lowest: bool


def panel_stacks(
    figure: Figure, count: int, columns: int, heights: Sequence[float]
) -> list[PanelStack]:
    """Return stacks of panels, arranged row by row.

    Args:
        figure: the empty figure.
        count: count of stacks.
        columns: count of stacks in a row.
        heights: relative heights of the panels of a stack, from the top.
    """
    rows = math.ceil(count / columns)  # rows of stacks
    panel_count = len(heights)  # panels of a stack
    grid = figure.subplots(
        rows * panel_count, columns, sharex=True, squeeze=False, height_ratios=[*heights] * rows
    )
    stacks = []
    for stack_index in range(rows * columns):
        row, column = divmod(stack_index, columns)
        top = row * panel_count
        panels: list[Axes] = [*grid[top : top + panel_count, column]]
        if stack_index < count:
            is_lowest = stack_index >= count - columns
            stacks.append(PanelStack(panels, is_lowest))
        else:  # a place of the last row that no stack needs
            for panel in panels:
                panel.set_visible(False)
    return stacks


def pools(rounds: int, pooled: int) -> list[tuple[int, int]]:
    """Divide a run's rounds into pools of consecutive rounds, each of which is drawn as one point.

    The last pool is dropped if it has fewer than ``pooled / 2`` rounds, as its means would be
    noisy. A single pool is always kept.

    Args:
        rounds: count of rounds.
        pooled: count of rounds in a pool.

    Returns:
        For each pool, the index of its first round, and the index of its last round plus 1.
    """
    extents: list[tuple[int, int]] = []
    for first in range(0, rounds, pooled):
        stop = min(first + pooled, rounds)
        if not extents or 2 * (stop - first) >= pooled:
            extents.append((first, stop))
    return extents


def line_look(number: int) -> palette.Look:
    """Return the look (colour, dash and mark) of a line in a figure of a paper.

    Args:
        number: index of the line, from 0.
    """
    turn, colour = divmod(number, len(_LINE_COLOURS))
    # ``turn`` shifts dash and mark, so that lines of the same colour differ in dash and in mark
    return {
        "color": _LINE_COLOURS[colour],
        "linestyle": _DASHES[(colour + turn) % len(_DASHES)],
        "marker": _MARKERS[(colour + 2 * turn) % len(_MARKERS)],
    }


def title_of(name: str, words: str, width: float) -> str:
    """Return the title of a panel, as two lines of text if it is too long for one.

    Args:
        name: name of the line that the panel shows.
        words: text about the line.
        width: width of the panel with its axis (inches).
    """
    title = f"{name}: {words}"
    if len(title) * _LETTER_IN <= width - _AXIS_IN:
        return title
    return f"{name}:\n{words}"


def band_handle(seeds: int) -> Patch:
    """Return the legend's entry that explains lines (means) and bands (ranges) over seeds.

    Args:
        seeds: count of seeds, for the text.
    """
    label = f"line: mean; band: lowest to highest of {seeds} seeds"
    return Patch(facecolor=palette.GREY, alpha=2 * BAND, label=label)


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Add a legend below all panels, in as many columns as the figure has room for.

    Args:
        figure: the figure.
        handles: labelled entries.
    """
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        box = legend.get_tightbbox()
        if box is None or box.width <= figure.bbox.width or columns == 1:
            return
        legend.remove()


def smallest_text(figure: Figure) -> float:
    """Return the size of the smallest visible text of a figure (points)."""
    sizes = []
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_text().strip() and text.get_visible():
            sizes.append(float(text.get_fontsize()))
    return min(sizes)


@styled
def save(drawing: PaperFigure, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure, and a CSV file of its numbers. Equal figures give files with equal bytes.

    Args:
        drawing: the figure.
        stem: path of the files, without their endings.
        formats: endings out of ``FORMATS``.

    Returns:
        Paths of the files, the table last.
    """
    paths = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        metadata: dict[str, None] = {}
        if kind == "svg":
            metadata = {"Date": None}
        if kind == "pdf":
            metadata = {"CreationDate": None}
        # ``writing`` replaces a link at ``path`` instead of following it
        with writing(path) as beside:
            drawing.figure.savefig(beside, format=kind, metadata=metadata)
        paths.append(path)
    table = stem.with_name(f"{stem.name}.csv")
    with writing(table) as beside:
        beside.write_text(as_csv(drawing.numbers), encoding="utf-8")
    return [*paths, table]


def as_csv(rows: Sequence[NumberRow]) -> str:
    """Format rows as CSV, with a column for each name; a cell without a number is empty."""
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)  # None becomes an empty cell
    return text.getvalue()
