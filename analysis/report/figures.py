"""The pictures of a report: drawn by their modules, put into the page as they are, each with words that say what it shows."""

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


def of_run(run: RunFolder) -> Iterator[Markup]:
    """What can be drawn of one run; its timeline is not among it, which the page draws itself."""
    for name, kind in OF_ONE.items():
        if name != "timeline":
            yield from _drawn(kind, run)


def of_all(runs: Sequence[RunFolder], names: Sequence[str], series: Sequence[Series]) -> Iterator[Markup]:
    """What can be drawn of one run or of several side by side.

    Args:
        runs: those that are drawn one by one.
        names: what to call them.
        series: those of which the means over seeds are drawn.
    """
    every = [run for one in series for run in one.runs]
    for name in OF_ANY if len(every) == 1 else OF_SEVERAL:
        yield from _drawn(OF_SEVERAL[name], *((every, series) if name in _OVER_SEEDS else (runs, names)))


def _drawn(kind: Kind, *what: Any) -> Iterator[Markup]:
    """A picture, if it applies, as a figure with its heading."""
    try:
        figure = kind.draw(*what)
    except style.NothingToDrawError:
        return
    data, (width, height) = _as_data(figure)
    image = el("img", src=data, alt=f"{kind.title}. {kind.says}", width=width, height=height)
    yield el("h3", kind.title)
    # A wide picture keeps a readable size on a narrow screen, and is scrolled there.
    yield el("figure", el("div", image, class_="wide", tabindex="0"), el("figcaption", kind.says))


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
