"""The sections of a report: one run in short, or several compared; the timelines; the details of
each run; their pictures.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import tomli_w
from PIL import Image

from fedsim.analysis import style
from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL, PictureKind
from fedsim.analysis.report import tables
from fedsim.analysis.report.answer import answers, tiles
from fedsim.analysis.report.chart import chart
from fedsim.analysis.report.gather import MOST_DRAWN, Shown, Subject
from fedsim.analysis.report.markup import Markup, data_block, deflated, el, join, pack, plain
from fedsim.analysis.report.timeline import key, read_timeline, stage
from fedsim.analysis.style import Series
from fedsim.common.files import flat
from fedsim.common.harmless import visible
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.compare.critical_path import CriticalPaths, path_table, round_in_words, run_in_words
from fedsim.lab.compare.measures import measure
from fedsim.records.reading import RunFolder

# of all timelines of a page, like the next one: what keeps it small, and fluid in a browser
_MOST_LANES = 3000
_MOST_STEPS = 1_000_000
AT_ONCE = 2  # timelines, of more runs
_HINT = (
    "A dot is the mean of the seeds, its line the 95 % interval (Student's t), a small tick a "
    "seed. Two are compared seed by "
    "seed in the same worlds; each comparison stands alone: the best of many looks a little "
    "better than it is."
)
_LONGEST = 3000  # characters of a scenario in short; only hostile ones are longer
_COUNTED = (
    *("seed", "learning", "population.devices", "population.host.", "strategy.clients_per_round"),
    *("strategy.local_epochs", "strategy.deadline", "stop."),
)


def in_short(shown: Shown) -> Markup:
    """One run: its headline numbers, its key figure, and its scenario."""
    run = shown.run
    name = _key_of(shown.run)
    figure = list(_drawn(name, run if name in OF_ONE else [run]))[1:]  # without its heading
    return el("section", el("h2", "In short", id="summary"), _tiles(run), *figure, *_scenario(run))


def _tiles(run: RunFolder) -> Markup:
    summary = run.summary
    moved = run.summary["bytes"]
    values = measure(run)
    total = moved["down"] + moved["up"]
    status = summary.get("status")
    stopped = summary.get("stopped")
    ending = (
        f"ended by: {plain(stopped, 60)}" if status == "done" and stopped else plain(status, 30)
    )
    figures = [("rounds", f"{summary['rounds']:,}", ending)]
    final, best, worst = (values[f"{name} accuracy"] for name in ("final", "best", "worst-decile"))
    if final is not None:
        low = f", worst tenth of devices {worst:.4f}" if worst is not None else ""
        figures.append(("final accuracy", f"{final:.4f}", f"best {best:.4f}{low}"))
    for name, told in run.summary.get("metrics", {}).items():
        if told["final"] is not None:
            figures.append((f"final {name}", f"{told['final']:.4g}", f"best {told['best']:.4g}"))
    computed = values["compute"]
    wasted = values["wasted compute"]
    purity = values["last purity of groups"]
    spent = run.rounds[-1].get("epsilon") if run.rounds else None
    share = f"{moved['wasted'] / total:.1%} of what moved" if total else "nothing moved"
    figures += [
        (
            "simulated time",
            show_seconds(summary["simulated_s"]),
            f"computed in {show_seconds(summary['wall_s'])}",
        ),
        (
            "moved",
            show_bytes(total),
            f"{show_bytes(moved['down'])} down, {show_bytes(moved['up'])} up",
        ),
        ("wasted", show_bytes(moved["wasted"]), share),
        *(
            [("devices computed", show_seconds(computed), f"{(wasted or 0) / computed:.1%} wasted")]
            if computed
            else []
        ),
        *(
            []
            if purity is None
            else [("purity of groups", f"{purity:.3f}", "at the end; 1 is perfect")]
        ),
        *([] if spent is None else [("epsilon", f"{spent:.3g}", "privacy spent in all rounds")]),
    ]
    return tiles(figures)


def _scenario(run: RunFolder) -> Iterator[Markup]:
    scenario = tables.without_places(run.scenario)
    keys = {
        key: value
        for key, value in flat(scenario).items()
        if key.endswith(".kind") or key.startswith(_COUNTED)
    }
    told = {key.removesuffix(".kind"): value for key, value in keys.items() if value != "constant"}
    acts = [str(act.get("kind")) for act in scenario.get("world", {}).get("processes", ())]
    told |= {"world.processes": ", ".join(acts)} if acts else {}
    yield el("p", plain("; ".join(f"{key}: {value}" for key, value in told.items()), _LONGEST))
    if "estimates" in run.summary:
        yield el("p", plain(f"This run {run.summary['estimates']}.", _LONGEST))
    if outside := run.summary.get("outside_of_rules"):
        yield el(
            "p",
            plain(
                f"Outside of what a rule was fitted to: {'; '.join(map(str, outside))}.", _LONGEST
            ),
        )
    text = "\n".join(map(visible, tomli_w.dumps(scenario).split("\n")))
    yield el(
        "details",
        el("summary", "The scenario with every default written out"),
        el("pre", text, tabindex="0"),
    )


def answer(subject: Subject) -> Markup:
    """Several runs: the best by each measure, by how much, and how certain."""
    lines = subject.lines
    colours = {
        place: str(style.line_of(rank, 1.0)["color"]) for rank, place in enumerate(subject.order)
    }
    done = sum(len(line.runs) for line in lines)
    planned = sum(line.planned for line in lines)
    hint = (
        _HINT
        if any(line.planned > 1 for line in lines)
        else "Each is one run, so nothing says how sure that is."
    )
    return el(
        "section",
        el("h2", "In short", id="summary"),
        el("p", subject.about) if subject.about else None,
        el("p", f"{done:,} of {planned:,} runs are done so far.", class_="soft")
        if done < planned
        else None,
        *answers(subject.comparison.answers(), colours),
        el("p", hint, class_="soft"),
    )


def comparison(subject: Subject) -> Iterator[Markup]:
    """Several runs: pictures of all, the scenario and its differences, and tables."""
    few = min(len(subject.shown), MOST_DRAWN)
    every = len(subject.runs)
    text = (
        f"Where single runs are drawn, they are {few} of {every}: the first of the best. Means are "
        "over all of them."
    )
    hint = el("p", text, class_="soft") if few < every else None
    pictures = [*chart(subject.series), *_of_all(subject.alone(few), subject.series)]
    yield el("section", el("h2", "Pictures", id="pictures"), *pictures, hint)
    firsts = {id(shown.line): shown for shown in reversed(subject.shown)}
    lines = [firsts[id(line)] for line in subject.lines if id(line) in firsts]
    differing = tables.differing([shown.run for shown in lines], [shown.name for shown in lines])
    said = (
        f"That is {lines[0].name}."
        if differing
        else "All runs have this scenario, with seeds of their own."
    )
    head = el("h2", "Scenario", id="scenario")
    yield el("section", head, *_scenario(lines[0].run), el("p", said, class_="soft"), differing)
    parts = (
        part
        for table in subject.comparison.tables()
        for part in tables.comparison(table, subject.order)
    )
    yield el("section", el("h2", "Tables", id="tables"), *parts)


def timelines(shown: tuple[Shown, ...], of: int) -> Markup:
    """The timelines of the runs ``shown``, out of ``of``: the work of each device over time."""
    at_once = min(len(shown), AT_ONCE)
    found = [
        read_timeline(one.run, _MOST_LANES // at_once, _MOST_STEPS // len(shown)) for one in shown
    ]
    parts: list[Markup] = [el("h2", "Timeline", id="timeline")]
    parts += _chooser(shown, of) if len(shown) > at_once else []
    parts.append(key(found))
    if len(shown) > 1:
        box = el("input", type="checkbox", name="together", checked=True)
        parts.append(
            el("p", el("label", box, " all timelines show the same span of simulated time"))
        )
    parts.append(
        el(
            "noscript",
            el(
                "p", "The timeline needs JavaScript; python -m analysis RUN draws one as a picture."
            ),
        )
    )
    for place, (one, data) in enumerate(zip(shown, found, strict=True)):
        head = el("h3", one.name) if len(shown) > 1 else None
        lanes = len(data.columns["device"])
        population = data.header["population"]
        worked = data.header["worked"]
        said = (
            f"{lanes:,} of the {worked:,} devices that worked, evenly spread over them; the "
            f"population has {population:,}."
        )
        if lanes == population:
            said = f"All {population:,} devices; {worked:,} of them worked."
        block = data_block(
            f"timeline-{place}-data", {"header": data.header, "packed": pack(data.columns)}
        )
        drawn = stage(place, one.name, bool(data.header["groups"]))
        parts.append(el("div", head, el("p", said, class_="soft"), drawn, block, data_run=place))
    return el("section", *parts)


def _chooser(shown: tuple[Shown, ...], of: int) -> Iterator[Markup]:
    beside = next(
        (place for place, one in enumerate(shown) if place and one.line is not shown[0].line), 1
    )
    for name, text, chosen in (("first", "run ", 0), ("second", "beside it ", beside)):
        options = [
            el("option", one.name, value=place, selected=place == chosen)
            for place, one in enumerate(shown)
        ]
        none = [el("option", "none", value="")] if name == "second" else []
        yield el("label", text, el("select", *none, *options, name=f"{name}-run"), class_="chooser")
    more = (
        ""
        if of == len(shown)
        else f" of {of}; fedsim report, called with its folder, shows any other"
    )
    told = (
        f"{len(shown)} runs can be chosen, the best first{more}. What follows here is of those "
        "that are."
    )
    yield el("p", told, class_="soft")


def details(place: int, shown: Shown, several: bool) -> Markup:
    """One run's pictures, and the tables of its devices and rounds."""
    run = shown.run
    block = f"timeline-{place}-data"
    drawn = place < MOST_DRAWN
    pictures: list[Markup | None] = [_tiles(run)] if several else []
    if drawn:
        series = [Series(shown.name, (run,))]
        but = ("timeline",) if several else ("timeline", _key_of(run))
        pictures += [part for name in OF_ONE if name not in but for part in _drawn(name, run)]
        pictures += [*([] if several else _of_all(series, series, _key_of(run))), waiting(run)]
    else:
        pictures.append(
            el(
                "p",
                "It has no pictures here: fedsim report, called with its folder, draws them.",
                class_="soft",
            )
        )
    for found in filter(None, (tables.devices(run, block), tables.rounds(run, block))):
        summary, table = found
        # put into the page when it is opened
        packed = el("div", data_html=deflated(table.encode())) if several else table
        pictures.append(el("details", el("summary", summary), packed))
    name = shown.name if several else "Pictures and tables"
    return el("section", el("h2", name, id=f"run-{place}"), *pictures, data_run=place)


def waiting(run: RunFolder) -> Markup | None:
    """The critical path of a run in short, with its longest and a usual round; None without
    rounds or time.
    """
    paths = CriticalPaths(run)
    if not paths.rounds or not paths.end:
        return None
    rows: list[list[str | tables.TableCell]] = []
    for name, seconds in paths.totals.items():
        told = (show_seconds(seconds), f"{seconds / paths.end:.1%}")
        rows.append([name, *(tables.TableCell(text, seconds) for text in told)])
    usual = median(one.seconds for one in paths.rounds)
    longest = max(paths.rounds, key=lambda one: one.seconds)
    middle = min(paths.rounds, key=lambda one: abs(one.seconds - usual))
    chosen = []
    for number in dict.fromkeys((longest.number, middle.number)):
        columns = path_table(paths.round(number)).columns
        title = (
            f"Round {number}, {'the longest' if number == longest.number else 'a usual one'}: what "
            "it waited for"
        )
        table = tables.of_columns(columns, range(len(columns[0].cells)))
        chosen.append(
            el(
                "details",
                el("summary", title),
                el("p", " ".join(round_in_words(paths, number))),
                table,
            )
        )
    return join(
        el("h3", "Where the simulated time went"),
        el("p", " ".join(run_in_words(paths))),
        tables.grid(
            ["on the critical path", "took", "share"],
            rows,
            [True, False, False],
            "Its times sum to the run's.",
        ),
        *chosen,
    )


# Pictures, each with words that say what it shows.

_ALMOST_WHITE = 250
_DPI = 110  # 13 inches are 1,430 pixels, and are shown on 1,300 at most
_OVER_SEEDS = ("energy", "traffic-purposes")
_IN_CHART = ("costs", "accuracy")  # of several runs


def _key_of(run: RunFolder) -> str:
    """The first picture of a run's page: accuracy or loss, or traffic for a run without
    learning.
    """
    return "traffic" if all(row["loss"] is None for row in run.rounds) else "accuracy"


def _of_all(alone: Sequence[Series], series: Sequence[Series], but: str = "") -> Iterator[Markup]:
    """Pictures, except ``but``, of the single runs in ``alone``, and of the means over seeds of
    ``series``.
    """
    every = [run for one in series for run in one.runs]
    runs = [run for one in alone for run in one.runs]
    left_out = {but, *(_IN_CHART if len(every) > 1 else ())}
    for name in OF_ANY if len(every) == 1 else OF_SEVERAL:
        if name not in left_out:
            yield from _drawn(name, *((every, series) if name in _OVER_SEEDS else (runs, alone)))


def _drawn(name: str, what: Any, *series: Any) -> Iterator[Markup]:
    """A picture, if it applies, as a heading and a figure; a PNG with 128 colours has a quarter
    of the size.
    """
    kind: PictureKind = (OF_ONE | OF_SEVERAL)[name]
    try:
        figure = kind.draw(what, *series)
    except style.NothingToDrawError:
        return
    picture = Image.fromarray(style.pixels(figure, _DPI)).convert("RGB")
    few = picture.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # or it shows against the page
    few.putpalette([255 if part > _ALMOST_WHITE else part for part in few.getpalette() or []])
    small = io.BytesIO()
    few.save(small, "png", optimize=True)
    data = f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"
    image = el(
        "img", src=data, alt=f"{kind.title}. {kind.says}", width=few.width, height=few.height
    )
    yield el("h3", kind.title)
    # A wide picture keeps a readable size on a narrow screen, and is scrolled there.
    yield el("figure", el("div", image, class_="wide", tabindex="0"), el("figcaption", kind.says))
