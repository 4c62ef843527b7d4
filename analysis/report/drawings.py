"""Pictures of a report: PNG files in the page, at the size at which they are shown."""

import base64
import io
from collections.abc import Iterator, Sequence

from PIL import Image

from fedsim.analysis import style
from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL, PictureKind
from fedsim.analysis.report.gather import DetailedRun
from fedsim.analysis.report.markup import Markup, el
from fedsim.analysis.series import Series
from fedsim.common.round_words import common_word
from fedsim.records.reading import RunFolder

_ALMOST_WHITE = 250  # colour component (0..255) above which it becomes 255
_DPI = 100  # most pictures are 13 inches wide: 1,300 pixels, which fit into the page
_SMALL = 760  # width of a picture (pixels) below which it is never enlarged
_OVER_SEEDS = ("energy", "traffic-purposes")
_IN_CHART = ("costs", "accuracy")  # pictures that the interactive chart of several runs replaces


def key_picture(run: RunFolder) -> str:
    """Return the name of a run's main picture.

    The picture is ``accuracy``, or ``traffic`` if no round was tested.
    """
    return "traffic" if all(row["loss"] is None for row in run.rounds) else "accuracy"


def draw_key_picture(run: RunFolder) -> Markup | None:
    """Return the main picture of a run as an HTML ``figure``; None if there is no data for it."""
    name = key_picture(run)
    return draw(name, run if name in OF_ONE else [run])


def draw_run(entry: DetailedRun, is_comparison: bool) -> Iterator[Markup]:
    """Yield the pictures of a run, each folded: a click on its heading shows it.

    The timeline is left out, as the page has an interactive one. On a page of a single run, the
    main picture is left out too, as it is at the top of the page.

    Args:
        entry: the run.
        is_comparison: whether the report has several runs.
    """
    run = entry.run
    elsewhere = {"timeline"}
    if not is_comparison:
        elsewhere.add(key_picture(run))
    for name in OF_ONE:
        if name not in elsewhere:
            yield from _folded(name, is_comparison, run)
    if not is_comparison:
        series = [Series(entry.name, (run,))]
        yield from draw_series(series, series, is_comparison=False, omitted=key_picture(run))


def draw_series(
    single_run_series: Sequence[Series],
    series: Sequence[Series],
    *,
    is_comparison: bool,
    omitted: str = "",
) -> Iterator[Markup]:
    """Yield pictures that may show several runs, each folded: a click on its heading shows it.

    On a page of several runs the pictures compare the runs; on a page of a single run they show
    this run. ``single_run_series`` and ``series`` have the same runs in different groups, as some
    pictures draw each run, and others draw means over seeds.

    Args:
        single_run_series: the runs for pictures that draw each run: a series for each run.
        series: the runs for pictures that draw means: a series for each variant or scenario, with
            its runs over seeds.
        is_comparison: whether the report has several runs.
        omitted: name of a picture to skip.
    """
    runs = _list_runs(series)
    single_runs = _list_runs(single_run_series)
    names = [*OF_ANY]
    if is_comparison:
        names = [name for name in OF_SEVERAL if name not in _IN_CHART]
    for name in names:
        if name == omitted:
            continue
        if name in _OVER_SEEDS:
            yield from _folded(name, is_comparison, runs, series)
        else:
            yield from _folded(name, is_comparison, single_runs, single_run_series)


def _list_runs(series: Sequence[Series]) -> list[RunFolder]:
    runs: list[RunFolder] = []
    for line in series:
        runs += line.runs
    return runs


def _folded(
    name: str, is_comparison: bool, source: RunFolder | Sequence[RunFolder], *series: object
) -> Iterator[Markup]:
    """Yield a folded picture, which a click on its heading shows; nothing if it does not apply.

    Args:
        name: name of the picture, as in ``pictures``.
        is_comparison: whether the report has several runs.
        source: the run or the runs.
        series: the same runs as series, if the function of the picture has this argument.
    """
    figure = draw(name, source, *series)
    if figure is None:
        return
    title = (OF_ONE | OF_SEVERAL)[name].title
    if is_comparison:
        yield fold(title, figure, level=3)
    else:
        yield fold(title, figure, level=2, anchor=name)


def fold(
    title: str,
    *content: Markup | None,
    level: int = 2,
    anchor: str | None = None,
    about: str = "",
    is_open: bool = False,
) -> Markup:
    """Return a foldable part of the page (``details`` in HTML), which a click opens or closes.

    Args:
        title: heading of the part, which is always visible.
        content: HTML elements of the part; None is left out.
        level: level of the heading, such as 2 for ``h2``.
        anchor: id of the part; None for no id.
        about: words on the content, beside the heading.
        is_open: whether the part is open at first.
    """
    words = el("small", f" {about}") if about else None
    summary = el("summary", el(f"h{level}", title), words)
    look = "part" if level == 2 else None
    return el("details", summary, *content, class_=look, id=anchor, open=is_open)


def draw(name: str, source: RunFolder | Sequence[RunFolder], *series: object) -> Markup | None:
    """Return a picture as an HTML ``figure`` with its caption; None if there is no data for it.

    The picture is a PNG of 128 colours, which has a quarter of the size of a full PNG.

    Args:
        name: name of the picture: a key of ``pictures.OF_ONE`` or ``pictures.OF_SEVERAL``.
        source: the run for a picture in ``OF_ONE``; a list of runs for a picture in ``OF_SEVERAL``.
        series: nothing, or one list: the same runs in groups that are drawn as a line or bar each.
            By default the function of the picture groups the runs.
    """
    kind: PictureKind = (OF_ONE | OF_SEVERAL)[name]
    try:
        figure = kind.draw(source, *series)
    except style.NothingToDrawError:
        return None
    picture = Image.fromarray(style.render_pixels(figure, _DPI)).convert("RGB")
    reduced = picture.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # almost white becomes white, so that the picture has the background of the page
    palette = reduced.getpalette() or []
    reduced.putpalette([255 if part > _ALMOST_WHITE else part for part in palette])
    content = io.BytesIO()
    reduced.save(content, "png", optimize=True)
    data = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
    runs = [source] if isinstance(source, RunFolder) else source
    caption = kind.caption_for(common_word(run.round_word for run in runs))
    text = f"{kind.title}. {caption}"
    look = "small" if reduced.width < _SMALL else None
    size = {"width": reduced.width, "height": reduced.height}
    image = el("img", src=data, alt=text, class_=look, **size)
    # A wide picture keeps a readable size on a narrow screen, where it can be scrolled.
    wide = el("div", image, class_="wide", tabindex="0")
    return el("figure", wide, el("figcaption", caption))
