"""The sections of a report: one run in short, or several compared; the timelines; and the details of each run shown."""

from collections.abc import Iterator
from typing import Any

import tomli_w

from fedsim.analysis import style
from fedsim.analysis.report import figures, tables, words
from fedsim.analysis.report.answer import answers
from fedsim.analysis.report.controls import key, stage
from fedsim.analysis.report.gather import MOST_DRAWN, Shown, Subject
from fedsim.analysis.report.markup import Markup, data_block, el, pack, plain, visible
from fedsim.analysis.report.timeline import read_timeline
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
    return el("section", head, _tiles(shown.run), *figures.key_figure(shown.run), *_scenario(shown.run))


def _tiles(run: RunFolder) -> Markup:
    """The headline numbers."""
    from fedsim.compare.measures import measure

    summary, moved, values = run.summary, run.summary["bytes"], measure(run)
    total = moved["down"] + moved["up"]
    tiles: list[tuple[str, str, str]] = [("rounds", f"{summary['rounds']:,}", _ending(run))]
    final, best, worst = (values[f"{name} accuracy"] for name in ("final", "best", "worst-decile"))
    if final is not None:
        low = f", worst tenth of devices {worst:.4f}" if worst is not None else ""
        tiles.append(("final accuracy", f"{final:.4f}", f"best {best:.4f}{low}"))
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


def _ending(run: RunFolder) -> str:
    status, stopped = run.summary.get("status"), run.summary.get("stopped")
    return f"ended by: {plain(stopped, 60)}" if status == "done" and stopped else plain(status, 30)


def _scenario(run: RunFolder) -> Iterator[Markup]:
    """The scenario in words, and as it is."""
    yield el("p", plain(words.describe(run.scenario), _LONGEST))
    text = tomli_w.dumps(words.without_places(run.scenario))
    yield el("details", el("summary", "The scenario with every default written out"), el("pre", visible(text), tabindex="0"))


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
    yield el("section", el("h2", "Pictures", id="pictures"), *_pictures(subject))
    firsts = {id(shown.line): shown for shown in reversed(subject.shown)}
    lines = [firsts[id(line)] for line in subject.lines.lines if id(line) in firsts]
    differing = tables.differing([shown.run for shown in lines], [shown.name for shown in lines])
    said = f"That is {lines[0].name}." if differing else "All runs have this scenario, with seeds of their own."
    head = el("h2", "Scenario", id="scenario")
    yield el("section", head, *_scenario(lines[0].run), el("p", said, class_="soft"), differing)
    parts = (part for table in subject.comparison.tables() for part in tables.comparison(table, subject.order))
    yield el("section", el("h2", "Tables", id="tables"), *parts)


def _pictures(subject: Subject) -> Iterator[Markup]:
    few = min(len(subject.shown), MOST_DRAWN)
    yield from figures.of_all(subject.alone(few), subject.series)
    if few < len(subject.runs):
        text = f"Where single runs are drawn, they are {few} of {len(subject.runs)}: the first of the best. "
        yield el("p", f"{text}Means are over all of them.", class_="soft")


def timelines(shown: tuple[Shown, ...]) -> Markup:
    """What each device did when, for each run that can be chosen."""
    at_once = min(len(shown), AT_ONCE)
    found = [read_timeline(one.run, _MOST_LANES // at_once, _MOST_STEPS // len(shown)) for one in shown]
    parts: list[Markup] = [el("h2", "Timeline", id="timeline")]
    parts += _chooser(shown) if len(shown) > at_once else []
    parts.append(key(found))
    if len(shown) > 1:
        box = el("input", type="checkbox", name="together", checked=True)
        parts.append(el("p", el("label", box, " all timelines show the same span of simulated time")))
    parts.append(el("noscript", el("p", "The timeline needs JavaScript; python -m analysis RUN draws one as a picture.")))
    for place, (one, data) in enumerate(zip(shown, found, strict=True)):
        block = _block(place)
        own = [el("h3", one.name)] if len(shown) > 1 else []
        own.append(el("p", _lanes_in_words(data.header, len(data.columns["device"])), class_="soft"))
        own.append(stage(place, one.name, block, bool(data.header["groups"])))
        own.append(data_block(block, {"header": data.header, "packed": pack(data.columns)}))
        parts.append(el("div", *own, data_run=place))
    return el("section", *parts)


def _chooser(shown: tuple[Shown, ...]) -> Iterator[Markup]:
    """Which runs the timelines and what follows them are of."""
    beside = next((place for place, one in enumerate(shown) if place and one.line is not shown[0].line), 1)
    for name, text, chosen in (("first", "run ", 0), ("second", "beside it ", beside)):
        options = [el("option", one.name, value=place, selected=place == chosen) for place, one in enumerate(shown)]
        none = [el("option", "none", value="")] if name == "second" else []
        yield el("label", text, el("select", *none, *options, name=f"{name}-run"), class_="chooser")
    yield el("p", f"{len(shown)} runs can be chosen, the best first; what follows here is of those that are.", class_="soft")


def _block(place: int) -> str:
    return f"timeline-{place}-data"


def _lanes_in_words(header: dict[str, Any], lanes: int) -> str:
    population, worked = header["population"], header["worked"]
    if lanes == population:
        return f"All {population:,} devices; {worked:,} of them worked."
    return f"{lanes:,} of the {worked:,} devices that worked, evenly spread over them; the population has {population:,}."


def details(place: int, shown: Shown, several: bool) -> Markup:
    """One run's pictures, and the tables of its devices and rounds."""
    run = shown.run
    block = _block(place)
    key_of = "" if several else figures.key_of(run)
    pictures = list(figures.of_run(run, key_of)) if shown.drawn else []
    if not several:
        series = [Series(shown.name, (run,))]
        pictures += figures.of_all(series, series, key_of)
    hint = "It has no pictures here: fedsim report, called with its folder, draws them." if not shown.drawn else None
    return el(
        "section",
        el("h2", shown.name if several else "Pictures and tables", id=f"run-{place}"),
        _tiles(run) if several else None,
        *pictures,
        el("p", hint, class_="soft") if hint else None,
        tables.devices(run, block),
        tables.rounds(run, block),
        data_run=place,
    )
