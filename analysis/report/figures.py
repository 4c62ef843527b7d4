"""The pictures of a report, each with words that say what it shows."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from fedsim.analysis import style
from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL, Kind
from fedsim.analysis.report.markup import Markup, el
from fedsim.analysis.series import Series
from fedsim.records.reading import RunFolder

_ALMOST_WHITE = 250
_DPI = 160  # 13 inches are 2,080 pixels, and are shown on 1,300 at most
_OVER_SEEDS = ("costs", "energy", "traffic-purposes")
_SAID_BY_MEANS = ("accuracy", "traffic-compared")  # of single runs; over seeds ``costs`` and ``traffic-purposes`` say it


def key_of(run: RunFolder) -> str:
    """The picture that a run's page begins with: what accuracy it reached, or, without learning, what it moved."""
    return "traffic" if all(row["accuracy"] is None for row in run.rounds) else "accuracy"


def key_figure(run: RunFolder) -> list[Markup]:
    """That picture, without a heading."""
    found = _drawn(OF_ONE["traffic"], run) if key_of(run) == "traffic" else _drawn(OF_SEVERAL["accuracy"], [run])
    return list(found)[1:]


def of_run(run: RunFolder, but: str = "") -> Iterator[Markup]:
    """What can be drawn of one run, ``but`` one picture; its timeline is not among it, which the page draws itself."""
    for name, kind in OF_ONE.items():
        if name not in ("timeline", but):
            yield from _drawn(kind, run)


def of_all(alone: Sequence[Series], series: Sequence[Series], but: str = "") -> Iterator[Markup]:
    """What can be drawn of one run or of several side by side.

    Args:
        alone: runs that are drawn one by one, a series each.
        series: those of which the means over seeds are drawn, with all their runs.
        but: a picture that is drawn elsewhere.
    """
    every = [run for one in series for run in one.runs]
    runs = [run for one in alone for run in one.runs]
    over_seeds = any(len(one.runs) > 1 for one in series)
    for name in OF_ANY if len(every) == 1 else OF_SEVERAL:
        if name == but:
            continue
        if name in _OVER_SEEDS:
            yield from _drawn(OF_SEVERAL[name], every, series)
        elif not (over_seeds and name in _SAID_BY_MEANS):
            yield from _drawn(OF_SEVERAL[name], runs, alone)


def _drawn(kind: Kind, *what: Any) -> Iterator[Markup]:
    """A picture, if it applies, as a figure with its heading."""
    try:
        figure = kind.draw(*what)
    except style.NothingToDrawError:
        return
    data, (width, height) = _as_data(figure)
    says = str(figure.get_label()) or kind.says
    image = el("img", src=data, alt=f"{kind.title}. {says}", width=width, height=height)
    yield el("h3", kind.title)
    # A wide picture keeps a readable size on a narrow screen, and is scrolled there.
    yield el("figure", el("div", image, class_="wide", tabindex="0"), el("figcaption", says))


def _as_data(figure: Figure) -> tuple[str, tuple[int, int]]:
    """The figure as a data URI, and its size in pixels; it has 256 colours, and more pixels than the page, to look sharp.

    That takes a third of the same picture in all colours, and less than an SVG of it, whose letters alone are larger.
    """
    picture = Image.fromarray(style.pixels(figure, _DPI)).convert("RGB")
    few = picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours = few.getpalette() or []
    few.putpalette([255 if part > _ALMOST_WHITE else part for part in colours])  # or the background shows against the page's
    small = io.BytesIO()
    few.save(small, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}", few.size
