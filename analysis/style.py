"""Parts that all pictures share: palette, units of axes, bars and marks, legends, series of
seeds, names, and saving.

Colours are those of Okabe and Ito (2008), which stay apart for the colour-blind: cool ones for
work that counts, warm and dark ones for work that is wasted.
"""

import json
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedsim.common.arrays import Floats
from fedsim.common.errors import FedsimError
from fedsim.common.harmless import clean
from fedsim.lab.reading.study_folder import names_apart
from fedsim.records.folder import writing
from fedsim.records.reading import RunFolder

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"
PALE = "#EFEFEF"
AWAY = "#BFBFBF"
HATCHED: dict[str, Any] = {"facecolor": PALE, "edgecolor": GREY, "hatch": "//////"}  # in legends

STEPS = {"download": SKY, "train": GREEN, "evaluate": YELLOW, "upload": BLUE, "queue": ORANGE}
# Tol's
STEPS |= {
    "decode": "#88CCEE",
    "encode": "#332288",
    "compute": "#117733",
    "start-up": "#DDCC77",
    "sleep": "#DDDDDD",
}
OUTCOMES = {
    "done": "#A9BFCC",
    "late": VERMILLION,
    "lost": BLACK,
    "left": PURPLE,
    "stopped": GREY,
    "memory": "#882255",
}
OUTCOMES |= {"battery": "#8C564B"}
SERIES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
FORMATS = ("png", "svg")
# No phase has any of these; the first five stay apart for every eye (CIE76 distances above 25).
GROUPS = (
    "#542788",
    "#B35806",
    "#A6DBA0",
    "#994455",
    "#C2A5CF",
    "#661100",
    "#EECC66",
    "#AA4499",
    "#AA8866",
    "#7F3B08",
)
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")

TIMES = (
    (2 * 86400.0, 86400.0, "days"),
    (2 * 3600.0, 3600.0, "h"),
    (180.0, 60.0, "min"),
    (0.0, 1.0, "s"),
)
BYTES = ((1e12, 1e12, "TB"), (1e9, 1e9, "GB"), (1e6, 1e6, "MB"), (1e3, 1e3, "kB"), (1.0, 1.0, "B"))

WIDTH_IN = 13.0
DPI = 120
MANY_BARS = 4000  # as vectors they would make the SVG large and slow
_LONGEST_LINE = 120  # characters that fit beside each other at this width
_FONT = "DejaVu Sans"  # ships with matplotlib: the same picture everywhere
_RC: dict[Any, Any] = {
    "font.family": _FONT,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "hatch.linewidth": 0.8,
    "text.parse_math": False,  # a name may hold dollar signs
    "text.usetex": False,
    "svg.hashsalt": "fedsim",
}

styled = matplotlib.rc_context(_RC)
"""Decorator: draws with the shared style, and leaves matplotlib's settings as they were."""


class PictureError(FedsimError):
    """A picture cannot be drawn as it was asked for."""

    exit_status = 2


class NothingToDrawError(PictureError):
    """A run holds nothing that this picture could show."""


class AxisUnit(NamedTuple):
    """A unit that suits an axis that reaches ``least``: divide by ``size``, and write ``name``."""

    least: float
    size: float
    name: str


def unit_for(most: float, units: Sequence[tuple[float, float, str]]) -> AxisUnit:
    """The unit for an axis that reaches ``most``, of several, those for the longest axes first."""
    return next((AxisUnit(*unit) for unit in units if most >= unit[0]), AxisUnit(*units[-1]))


@styled
def save(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the figure as ``stem.png``, ``stem.svg``; the same figure gives the same bytes."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in formats]
    for path, kind in zip(paths, formats, strict=True):
        with writing(path) as beside:  # no link is followed
            figure.savefig(
                beside, format=kind, metadata={"Date": None} if kind == "svg" else {}, dpi=DPI
            )
    return paths


@styled
def pixels(figure: Figure, dpi: int = DPI) -> NDArray[np.uint8]:
    """The figure as pixels, red, green, blue and opacity [height, width, 4]: drawn once, where a
    file takes two passes.
    """
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]


def rectangles(
    panel: Axes, x0: ArrayLike, x1: ArrayLike, y0: ArrayLike, y1: ArrayLike, **look: Any
) -> None:
    """Draw rectangles between opposite corners, arrays [n] or one number for all, as one
    collection; limits stay.
    """
    x0, x1, y0, y1 = np.broadcast_arrays(np.atleast_1d(x0), x1, y0, y1)
    corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).reshape(-1, 4, 2)
    look = {"linewidth": 0, "rasterized": len(corners) > MANY_BARS} | look
    panel.add_collection(PolyCollection(corners, **look), autolim=False)  # type: ignore[arg-type]  # [n, 4, 2]: the fast way


def bars(
    panel: Axes, start: ArrayLike, end: ArrayLike, row: ArrayLike, half: float, **look: Any
) -> None:
    """Draw horizontal bars from start to end, arrays [n], of the height ``2 * half`` around
    their rows.
    """
    rectangles(panel, start, end, np.asarray(row) - half, np.asarray(row) + half, **look)


def marks_at(panel: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> None:
    """Draw marks at places, arrays [n] each, whole even at the panel's edge."""
    if np.size(x):  # the layout fails at a line without points
        panel.plot(x, y, clip_on=False, zorder=4, **look)


def across(panels: Iterable[Axes], times: ArrayLike, **look: Any) -> None:
    """Draw vertical lines through whole panels."""
    for panel in panels:
        panel.vlines(times, 0, 1, transform=panel.get_xaxis_transform(), **look)


def whole_ticks(axis: Axis, most: int) -> None:
    """Put at most so many ticks on an axis, at whole numbers."""
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))


def lighten(colour: str, share: float) -> tuple[float, float, float]:
    """The colour mixed with a share (0..1) of white."""
    red, green, blue = (part + (1 - part) * share for part in to_rgb(colour))
    return red, green, blue


def line_of(number: int, width: float) -> dict[str, Any]:
    """Line style of the run (or series) at ``number``: neighbours differ in colour and dash, to
    stay apart in grey.
    """
    turn, colour = divmod(number, len(SERIES))
    return {
        "color": SERIES[colour],
        "linestyle": ("-", "--", ":", "-.")[(number + 2 * turn) % 4],
        "linewidth": width,
    }


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """Places of at most so many of ``count`` things, evenly spread, the first and the last among
    them.
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))


def group_colour(group: int) -> str:
    """The colour of a group of devices, the same in all pictures; from the eleventh group on the
    colours come again, paler.
    """
    turn, place = divmod(group, len(GROUPS))
    return to_hex(lighten(GROUPS[place], 1 - 0.5 ** min(turn, 2)))


def group_tint(group: int) -> str:
    """The colour of a group of devices, as pale as a background has to be."""
    return to_hex(lighten(group_colour(group), 0.72))


def group_name(group: int) -> str:
    """``"group 3"``; ``"no group"`` for a negative number."""
    return f"group {group}" if group >= 0 else "no group"


def write_beside(panel: Axes, y: float, text: str, apart: float, **look: Any) -> None:
    """Write a text right of a panel, ``apart`` points from it, at a height of its own axis."""
    look |= {"va": "center", "annotation_clip": False}
    panel.annotate(
        text,
        (1, y),
        (apart, 0),
        xycoords=panel.get_yaxis_transform(),
        textcoords="offset points",
        **look,
    )


def spread(values: Sequence[float] | Floats, apart: float) -> Floats:
    """The values, moved up as little as it takes to lie so far apart that their labels do not
    touch.
    """
    placed = np.array(values, dtype=float)
    below = -np.inf
    for place in np.argsort(placed, kind="stable"):
        below = placed[place] = max(placed[place], below + apart)
    return placed


def short(name: str, most: int = 40) -> str:
    """A name fit to be drawn: one line, no characters that the font lacks, the middle left out
    when it is long.
    """
    font = get_font(findfont(FontProperties(family=_FONT)))
    drawn = (
        "".join(c if font.get_char_index(ord(c)) else "□" for c in clean(name, most)) or "unnamed"
    )
    # matplotlib leaves labels with a leading underscore out of legends
    return f" {drawn}" if drawn.startswith("_") else drawn


def as_file_name(name: str) -> str:
    """A name with letters, digits and ``-_.`` alone."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def run_names(runs: Iterable[RunFolder]) -> list[str]:
    """Names of runs side by side: those of their folders, with parent folders where names are
    the same.
    """
    return [short(name) for name in names_apart([run.path for run in runs])]


def with_strategy(name: str, run: RunFolder) -> str:
    """A name fit to be drawn, with the run's strategy unless it says that itself."""
    shown = short(name)
    strategy = short(str(run.summary["strategy"]), 20)
    return shown if strategy.lower() in shown.lower() else f"{shown}: {strategy}"


def counted(count: int, word: str) -> str:
    """``"1 group"``, ``"2 groups"``, ``"no groups"``."""
    return f"{f'{count:,}' if count else 'no'} {word}{'' if count == 1 else 's'}"


def step_for(count: int, most: int) -> int:
    """Take every so many-th of ``count`` things to have at most ``most``: 1, 2, 5, 10, 20, 50
    ...
    """
    least = max(count / most, 1.0)
    power = 10 ** math.floor(math.log10(least))
    return next(int(step * power) for step in (1, 2, 5, 10) if step * power >= least)


def headline(runs: Sequence[RunFolder]) -> str:
    """Headline of a picture: the scenario, and of one run the strategy and the seed."""
    name, *others = dict.fromkeys(short(str(run.summary["name"]), 70) for run in runs)
    if len(runs) == 1:
        return (
            f"{name}   ({short(str(runs[0].summary['strategy']), 30)}, seed "
            f"{runs[0].summary['seed']})"
        )
    more = f" and {counted(len(others), 'other scenario')}" if others else ""
    return f"{name}{more}   ({len(runs)} runs)"


def finished(
    figure: Figure, runs: Sequence[RunFolder], handles: Sequence[Artist], told: str = ""
) -> Figure:
    """The figure with its title, ``told`` below the headline, and a legend of the labelled
    handles under all panels.
    """
    figure.suptitle("\n".join([headline(runs), *textwrap.wrap(told, _LONGEST_LINE)]), fontsize=12)
    lengths = [len(str(handle.get_label())) + 7 for handle in handles]
    columns = len(handles)  # matplotlib fills them one by one, the first ones with one entry more
    while (
        columns > 1 and sum(map(max, np.array_split(lengths, columns))) > figure.get_figwidth() * 11
    ):
        columns -= 1
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


# Series: runs of one scenario with several seeds.

_APART = ("seed", "name")  # keys in which runs of one series may differ


@dataclass(frozen=True)
class Series:
    """Runs whose scenarios differ only in the seed; ``number`` sets its look (``line_of``) in
    all pictures.
    """

    name: str
    runs: tuple[RunFolder, ...]
    number: int = 0

    @property
    def label(self) -> str:
        """The name, with the number of seeds if there are several."""
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} seeds)"


def group_by_scenario(runs: Sequence[RunFolder]) -> list[Series]:
    """The series in the order of their first runs; a second run of the same scenario and seed
    begins another series.

    Series are named after their strategies, those that share one after the folders of their
    first runs too.
    """
    seen: Counter[tuple[str, Any]] = Counter()
    found: dict[tuple[str, int], list[RunFolder]] = {}
    for run in runs:
        scenario = json.dumps(
            {key: value for key, value in run.scenario.items() if key not in _APART}, sort_keys=True
        )
        again = scenario, run.summary["seed"]
        found.setdefault((scenario, seen[again]), []).append(run)
        seen[again] += 1
    firsts = [own[0] for own in found.values()]
    strategies = [short(str(run.summary["strategy"])) for run in firsts]
    names = [
        name if strategies.count(name) == 1 else with_strategy(folder, run)
        for name, folder, run in zip(strategies, run_names(firsts), firsts, strict=True)
    ]
    return [
        Series(name, tuple(own), number)
        for number, (name, own) in enumerate(zip(names, found.values(), strict=True))
    ]


def each_alone(runs: Sequence[RunFolder]) -> list[Series]:
    """One series per run, named after its folder and strategy."""
    named = zip(run_names(runs), runs, strict=True)
    return [
        Series(with_strategy(name, run), (run,), number) for number, (name, run) in enumerate(named)
    ]


def draw_mean_bar(
    panel: Axes, place: int, seeds: pd.DataFrame, looks: Mapping[str, dict[str, Any]], words: str
) -> None:
    """Draw a stacked bar of means, a line over the range of totals, and words; ``seeds`` [runs,
    parts] in units of the axis.
    """
    base = 0.0
    for part, mean in seeds.mean().items():
        panel.barh(place, mean, left=base, height=0.6, gid=str(part), **looks[str(part)])
        base += mean
    totals = seeds.sum(axis=1)
    if totals.min() < totals.max():
        panel.plot(
            [totals.min(), totals.max()],
            [place, place],
            color=BLACK,
            linewidth=1.4,
            marker="|",
            markersize=7,
        )
    panel.annotate(
        words,
        (float(totals.max()), place),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=10,
    )


def name_bars(panel: Axes, names: Sequence[str]) -> None:
    """Name the rows of bars, the first on top."""
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(len(names) - 0.5, -0.5)
