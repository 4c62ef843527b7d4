"""The sections of a report: one run in short, or several compared; the timelines; the details of each run; their pictures."""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import tomli_w
from matplotlib.figure import Figure
from PIL import Image

from fedsim.analysis import style
from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL, PictureKind
from fedsim.analysis.report import tables, words
from fedsim.analysis.report.answer import answers
from fedsim.analysis.report.chart import chart
from fedsim.analysis.report.critical import waiting
from fedsim.analysis.report.gather import MOST_DRAWN, Shown, Subject
from fedsim.analysis.report.markup import Markup, data_block, deflated, el, pack, plain, visible
from fedsim.analysis.report.timeline import TimelineData, key, read_timeline, stage
from fedsim.analysis.series import Series
from fedsim.language.units import show_bytes, show_seconds
from fedsim.records.reading import RunFolder

_MOST_LANES = 3000  # of all timelines of a page, like the next one: what keeps it small, and fluid in a browser
_MOST_STEPS = 1_000_000
AT_ONCE = 2  # timelines, of more runs
_HINT = (
    "A dot is the mean of the seeds, its line the 95 % interval (Student's t), a small tick a seed. Two are compared seed by "
    "seed in the same worlds; each comparison stands alone: the best of many looks a little better than it is."
)
_LONGEST = 3000  # characters of a scenario in words; only hostile ones are longer


def in_short(shown: Shown) -> Markup:
    """One run: its headline numbers, its key figure, and its scenario in words."""
    head = el("h2", "In short", id="summary")
    return el("section", head, _tiles(shown.run), *key_figure(shown.run), *_scenario(shown.run))


def _tiles(run: RunFolder) -> Markup:
    """The headline numbers."""
    from fedsim.lab.compare.measures import measure

    summary, moved, values = run.summary, run.summary["bytes"], measure(run)
    total = moved["down"] + moved["up"]
    status, stopped = summary.get("status"), summary.get("stopped")
    ending = f"ended by: {plain(stopped, 60)}" if status == "done" and stopped else plain(status, 30)
    tiles = [("rounds", f"{summary['rounds']:,}", ending)]
    final, best, worst = (values[f"{name} accuracy"] for name in ("final", "best", "worst-decile"))
    if final is not None:
        low = f", worst tenth of devices {worst:.4f}" if worst is not None else ""
        tiles.append(("final accuracy", f"{final:.4f}", f"best {best:.4f}{low}"))
    for name, told in run.summary.get("metrics", {}).items():
        if told["final"] is not None:
            tiles.append((f"final {name}", f"{told['final']:.4g}", f"best {told['best']:.4g}"))
    tiles.append(("simulated time", show_seconds(summary["simulated_s"]), f"computed in {show_seconds(summary['wall_s'])}"))
    tiles.append(("moved", show_bytes(total), f"{show_bytes(moved['down'])} down, {show_bytes(moved['up'])} up"))
    share = f"{moved['wasted'] / total:.1%} of what moved" if total else "nothing moved"
    tiles.append(("wasted", show_bytes(moved["wasted"]), share))
    computed, wasted = values["compute"], values["wasted compute"]
    if computed:
        tiles.append(("devices computed", show_seconds(computed), f"{(wasted or 0) / computed:.1%} wasted"))
    purity = values["last purity of groups"]
    if purity is not None:
        tiles.append(("purity of groups", f"{purity:.3f}", "at the end; 1 is perfect"))
    spent = run.rounds[-1].get("epsilon") if run.rounds else None
    if spent is not None:
        tiles.append(("epsilon", f"{spent:.3g}", "privacy spent in all rounds"))
    entries = [el("div", el("dt", name), el("dd", value, el("small", more))) for name, value, more in tiles]
    return el("dl", *entries, class_="tiles")


def _scenario(run: RunFolder) -> Iterator[Markup]:
    """The scenario in words, and as it is."""
    yield el("p", plain(words.describe(run.scenario), _LONGEST))
    if "estimates" in run.summary:
        yield el("p", plain(f"This run {run.summary['estimates']}.", _LONGEST))
    text = visible(tomli_w.dumps(words.without_places(run.scenario)))
    yield el("details", el("summary", "The scenario with every default written out"), el("pre", text, tabindex="0"))


def answer(subject: Subject) -> Markup:
    """Several runs: which is the best by what, by how much, and how sure that is."""
    lines = subject.lines.lines
    colours = {place: str(style.line_of(number, 1.0)["color"]) for place, number in subject.numbers.items()}
    done, planned = sum(len(line.runs) for line in lines), sum(line.planned for line in lines)
    part = el("p", f"{done:,} of {planned:,} runs are done so far.", class_="soft") if done < planned else None
    found = subject.comparison.answers()
    hint = _HINT if any(line.planned > 1 for line in lines) else "Each is one run, so nothing says how sure that is."
    return el(
        "section",
        el("h2", "In short", id="summary"),
        el("p", subject.about) if subject.about else None,
        part,
        *answers(found, colours),
        el("p", hint, class_="soft"),
    )


def comparison(subject: Subject) -> Iterator[Markup]:
    """Several runs: the pictures of all, the scenario and what differs, and their figures side by side."""
    few, every = min(len(subject.shown), MOST_DRAWN), len(subject.runs)
    text = f"Where single runs are drawn, they are {few} of {every}: the first of the best. Means are over all of them."
    hint = el("p", text, class_="soft") if few < every else None
    pictures = [*chart(subject.series), *_of_all(subject.alone(few), subject.series)]
    yield el("section", el("h2", "Pictures", id="pictures"), *pictures, hint)
    firsts = {id(shown.line): shown for shown in reversed(subject.shown)}
    lines = [firsts[id(line)] for line in subject.lines.lines if id(line) in firsts]
    differing = tables.differing([shown.run for shown in lines], [shown.name for shown in lines])
    said = f"That is {lines[0].name}." if differing else "All runs have this scenario, with seeds of their own."
    head = el("h2", "Scenario", id="scenario")
    yield el("section", head, *_scenario(lines[0].run), el("p", said, class_="soft"), differing)
    parts = (part for table in subject.comparison.tables() for part in tables.comparison(table, subject.order))
    yield el("section", el("h2", "Tables", id="tables"), *parts)


def timelines(shown: tuple[Shown, ...], of: int) -> Markup:
    """The timeline of each run that can be chosen, out of so many: the work of each device over time."""
    at_once = min(len(shown), AT_ONCE)
    found = [read_timeline(one.run, _MOST_LANES // at_once, _MOST_STEPS // len(shown)) for one in shown]
    parts: list[Markup] = [el("h2", "Timeline", id="timeline")]
    parts += _chooser(shown, of) if len(shown) > at_once else []
    parts.append(key(found))
    if len(shown) > 1:
        box = el("input", type="checkbox", name="together", checked=True)
        parts.append(el("p", el("label", box, " all timelines show the same span of simulated time")))
    parts.append(el("noscript", el("p", "The timeline needs JavaScript; python -m analysis RUN draws one as a picture.")))
    for place, (one, data) in enumerate(zip(shown, found, strict=True)):
        head = el("h3", one.name) if len(shown) > 1 else None
        said = el("p", _lanes_in_words(data), class_="soft")
        block = data_block(f"timeline-{place}-data", {"header": data.header, "packed": pack(data.columns)})
        parts.append(el("div", head, said, stage(place, one.name, bool(data.header["groups"])), block, data_run=place))
    return el("section", *parts)


def _chooser(shown: tuple[Shown, ...], of: int) -> Iterator[Markup]:
    """Choosers for the runs of the timelines and of the sections that follow."""
    beside = next((place for place, one in enumerate(shown) if place and one.line is not shown[0].line), 1)
    for name, text, chosen in (("first", "run ", 0), ("second", "beside it ", beside)):
        options = [el("option", one.name, value=place, selected=place == chosen) for place, one in enumerate(shown)]
        none = [el("option", "none", value="")] if name == "second" else []
        yield el("label", text, el("select", *none, *options, name=f"{name}-run"), class_="chooser")
    more = "" if of == len(shown) else f" of {of}; fedsim report, called with its folder, shows any other"
    yield el(
        "p", f"{len(shown)} runs can be chosen, the best first{more}. What follows here is of those that are.", class_="soft"
    )


def _lanes_in_words(data: TimelineData) -> str:
    lanes, population, worked = len(data.columns["device"]), data.header["population"], data.header["worked"]
    if lanes == population:
        return f"All {population:,} devices; {worked:,} of them worked."
    return f"{lanes:,} of the {worked:,} devices that worked, evenly spread over them; the population has {population:,}."


def details(place: int, shown: Shown, several: bool) -> Markup:
    """One run's pictures, and the tables of its devices and rounds."""
    run, block, drawn = shown.run, f"timeline-{place}-data", place < MOST_DRAWN
    key_of = "" if several else _key_of(run)
    pictures = [part for name in OF_ONE if drawn and name not in ("timeline", key_of) for part in _drawn(OF_ONE[name], run)]
    if not several:
        series = [Series(shown.name, (run,))]
        pictures += _of_all(series, series, key_of)
    hint = "It has no pictures here: fedsim report, called with its folder, draws them."
    return el(
        "section",
        el("h2", shown.name if several else "Pictures and tables", id=f"run-{place}"),
        _tiles(run) if several else None,
        *pictures,
        waiting(run) if drawn else None,
        None if drawn else el("p", hint, class_="soft"),
        _opened_later(tables.devices(run, block), several),
        _opened_later(tables.rounds(run, block), several),
        data_run=place,
    )


def _opened_later(found: tuple[str, Markup] | None, packed: bool) -> Markup | None:
    """A table under its summary; of several runs deflated, and put into the page when it is opened."""
    if found is None:
        return None
    summary, table = found
    inside = el("div", data_html=deflated(table.encode())) if packed else table
    return el("details", el("summary", summary), inside)


# Pictures, each with words that say what it shows.


_ALMOST_WHITE = 250
_DPI = 110  # 13 inches are 1,430 pixels, and are shown on 1,300 at most
_OVER_SEEDS = ("energy", "traffic-purposes")
_SAID_BY_MEANS = ("traffic-compared",)  # of single runs; over seeds ``traffic-purposes`` says it
_IN_CHART = ("costs", "accuracy")  # of several runs


def _key_of(run: RunFolder) -> str:
    """The picture that a run's page begins with: what accuracy or loss it reached, or, without learning, what it moved."""
    return "traffic" if all(row["loss"] is None for row in run.rounds) else "accuracy"


def key_figure(run: RunFolder) -> list[Markup]:
    """That picture, without a heading."""
    found = _drawn(OF_ONE["traffic"], run) if _key_of(run) == "traffic" else _drawn(OF_SEVERAL["accuracy"], [run])
    return list(found)[1:]


def _of_all(alone: Sequence[Series], series: Sequence[Series], but: str = "") -> Iterator[Markup]:
    """Pictures that can be drawn of one run or of several side by side, except ``but``.

    Runs in ``alone`` are drawn one by one, a series each; of ``series`` the means over seeds are drawn.
    """
    every = [run for one in series for run in one.runs]
    runs = [run for one in alone for run in one.runs]
    over_seeds = any(len(one.runs) > 1 for one in series)
    left_out = {but, *(_SAID_BY_MEANS if over_seeds else ()), *(_IN_CHART if len(every) > 1 else ())}
    for name in OF_ANY if len(every) == 1 else OF_SEVERAL:
        if name not in left_out:
            yield from _drawn(OF_SEVERAL[name], *((every, series) if name in _OVER_SEEDS else (runs, alone)))


def _drawn(kind: PictureKind, *what: Any) -> Iterator[Markup]:
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
    """The figure as a data URI with 128 colours, a quarter of the size with all; and its size in pixels."""
    picture = Image.fromarray(style.pixels(figure, _DPI)).convert("RGB")
    few = picture.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours = few.getpalette() or []
    few.putpalette([255 if part > _ALMOST_WHITE else part for part in colours])  # or the background shows against the page's
    small = io.BytesIO()
    few.save(small, "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}", few.size
