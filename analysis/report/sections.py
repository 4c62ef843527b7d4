"""The sections of a report: one run in short, or several compared, timelines and details."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import tomli_w
from PIL import Image

from fedsim.analysis import style
from fedsim.analysis.pictures import OF_ANY, OF_ONE, OF_SEVERAL, PictureKind
from fedsim.analysis.report import tables
from fedsim.analysis.report.answer import answers, tiles
from fedsim.analysis.report.chart import chart
from fedsim.analysis.report.gather import MOST_DRAWN, DetailedRun, Subject
from fedsim.analysis.report.markup import Markup, data_block, deflated, el, join, pack, plain
from fedsim.analysis.report.timeline import TimelineData, key, read_timeline, stage, step_colours
from fedsim.analysis.series import Series
from fedsim.common.files import flat
from fedsim.common.harmless import visible
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.compare.critical_path import CriticalPaths, path_table, round_in_words, run_in_words
from fedsim.lab.compare.measures import measure
from fedsim.records.ledger import total
from fedsim.records.reading import RunFolder
from fedsim.running.overrides import Tables

# limits of lanes and steps over all timelines of a page, which keep it small and fast
_MOST_LANES = 3000
_MOST_STEPS = 1_000_000
AT_ONCE = 2  # most timelines that are visible at a time
_HINT = (
    "A dot is the mean of the seeds, its line the 95 % interval (Student's t), a small tick a "
    "seed. Two are compared seed by "
    "seed in the same worlds; each comparison stands alone: the best of many looks a little "
    "better than it is."
)
_LONGEST = 3000  # most characters of a scenario in short
_IMPORTANT_KEYS = (
    *("seed", "learning", "population.devices", "population.host.", "strategy.clients_per_round"),
    *("strategy.local_epochs", "strategy.deadline", "stop."),
)


def in_short(entry: DetailedRun) -> Markup:
    """Return the first section of a report on one run: figures, main picture and scenario."""
    run = entry.run
    name = _key_picture(run)
    source = run if name in OF_ONE else [run]
    figure = list(_draw(name, source))[1:]  # without the heading of the figure
    heading = el("h2", "In short", id="summary")
    return el("section", heading, _headline_figures(run), *figure, *_scenario(run))


def _headline_figures(run: RunFolder) -> Markup:
    summary = run.summary
    measured = measure(run)
    figures = [("rounds", f"{summary['rounds']:,}", _ending(run))]
    final = measured["final accuracy"]
    if final is not None:
        remark = f"best {measured['best accuracy']:.4f}"
        worst = measured["worst-decile accuracy"]
        if worst is not None:
            remark += f", worst tenth of devices {worst:.4f}"
        figures.append(("final accuracy", f"{final:.4f}", remark))
    for name, metric in summary.get("metrics", {}).items():
        if metric["final"] is not None:
            figures.append(
                (f"final {name}", f"{metric['final']:.4g}", f"best {metric['best']:.4g}")
            )
    real_time = f"computed in {show_seconds(summary['wall_s'])}"
    figures.append(("simulated time", show_seconds(summary["simulated_s"]), real_time))
    figures += _byte_figures(run)
    computed = measured["compute"]
    if computed:
        wasted = measured["wasted compute"] or 0
        figures.append(
            ("devices computed", show_seconds(computed), f"{wasted / computed:.1%} wasted")
        )
    purity = measured["last purity of groups"]
    if purity is not None:
        figures.append(("purity of groups", f"{purity:.3f}", "at the end; 1 is perfect"))
    epsilon = run.rounds[-1].get("epsilon") if run.rounds else None
    if epsilon is not None:
        figures.append(("epsilon", f"{epsilon:.3g}", "privacy spent in all rounds"))
    return tiles(figures)


def _ending(run: RunFolder) -> str:
    """Return the reason why a run ended, or its status if it is not done."""
    status = run.summary.get("status")
    condition = run.summary.get("stopped")
    if status == "done" and condition:
        return f"ended by: {plain(condition, 60)}"
    return plain(status, 30)


def _byte_figures(run: RunFolder) -> list[tuple[str, str, str]]:
    sizes = run.summary["bytes"]
    size = total(sizes)
    directions = f"{show_bytes(sizes['down'])} down, {show_bytes(sizes['up'])} up"
    if "peer" in sizes:
        directions += f", {show_bytes(sizes['peer'])} between devices"
    share = f"{sizes['wasted'] / size:.1%} of what moved" if size else "nothing moved"
    return [
        ("moved", show_bytes(size), directions),
        ("wasted", show_bytes(sizes["wasted"]), share),
    ]


def _scenario(run: RunFolder) -> Iterator[Markup]:
    """Yield the scenario in short, remarks on rules that the run used, and the whole scenario."""
    scenario = tables.without_places(run.scenario)
    yield el("p", plain(_scenario_in_short(scenario), _LONGEST))
    if "estimates" in run.summary:
        yield el("p", plain(f"This run {run.summary['estimates']}.", _LONGEST))
    outside = run.summary.get("outside_of_rules")
    if outside:
        text = f"Outside of what a rule was fitted to: {'; '.join(map(str, outside))}."
        yield el("p", plain(text, _LONGEST))
    lines = tomli_w.dumps(scenario).split("\n")
    text = "\n".join(visible(line) for line in lines)
    summary = el("summary", "The scenario with every default written out")
    yield el("details", summary, el("pre", text, tabindex="0"))


def _scenario_in_short(scenario: Tables) -> str:
    """Return a text with the kinds in a scenario, and its most important values."""
    values = {}
    for name, value in flat(scenario).items():
        is_important = name.endswith(".kind") or name.startswith(_IMPORTANT_KEYS)
        if is_important and value != "constant":
            values[name.removesuffix(".kind")] = value
    processes = scenario.get("world", {}).get("processes", ())
    if processes:
        kinds = [str(process.get("kind")) for process in processes]
        values["world.processes"] = ", ".join(kinds)
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def answer(subject: Subject) -> Markup:
    """Return the first section of a report on several runs: the best lines, and their leads."""
    lines = subject.lines
    colours = {
        place: str(style.line_of(rank, 1.0)["color"]) for rank, place in enumerate(subject.order)
    }
    done = sum(len(line.runs) for line in lines)
    planned = sum(line.planned for line in lines)
    parts = [el("h2", "In short", id="summary")]
    if subject.about:
        parts.append(el("p", subject.about))
    if done < planned:
        parts.append(el("p", f"{done:,} of {planned:,} runs are done so far.", class_="soft"))
    parts += answers(subject.comparison.answers(), colours)
    hint = "Each is one run, so nothing says how sure that is."
    if any(line.planned > 1 for line in lines):
        hint = _HINT
    if subject.comparison.lines.until_sure is not None:
        hint += " What was decided by added seeds holds with its error for all lines together."
    parts.append(el("p", hint, class_="soft"))
    return el("section", *parts)


def comparison(subject: Subject) -> Iterator[Markup]:
    """Yield sections on several runs: pictures, the scenario and its differences, and tables."""
    yield _draw_compared_runs(subject)
    yield _compare_scenarios(subject)
    parts: list[Markup] = []
    for table in subject.comparison.tables():
        parts += tables.comparison(table, subject.order)
    yield el("section", el("h2", "Tables", id="tables"), *parts)


def _draw_compared_runs(subject: Subject) -> Markup:
    few = min(len(subject.detailed), MOST_DRAWN)
    every = len(subject.runs)
    parts = [el("h2", "Pictures", id="pictures")]
    parts += chart(subject.series)
    parts += _draw_series(subject.alone(few), subject.series)
    if few < every:
        hint = (
            f"Where single runs are drawn, they are {few} of {every}: the first of the best. Means "
            "are over all of them."
        )
        parts.append(el("p", hint, class_="soft"))
    return el("section", *parts)


def _compare_scenarios(subject: Subject) -> Markup:
    """Return a section with the scenario of the first line, and the keys in which lines differ."""
    first_runs = {id(entry.line): entry for entry in reversed(subject.detailed)}
    firsts = [first_runs[id(line)] for line in subject.lines if id(line) in first_runs]
    runs = [entry.run for entry in firsts]
    differences = tables.differing(runs, [entry.name for entry in firsts])
    text = "All runs have this scenario, with seeds of their own."
    if differences:
        text = f"That is {firsts[0].name}."
    head = el("h2", "Scenario", id="scenario")
    return el("section", head, *_scenario(runs[0]), el("p", text, class_="soft"), differences)


def timelines(entries: tuple[DetailedRun, ...], total: int) -> Markup:
    """Return a section with the timelines of runs: the work of each device over time.

    Args:
        entries: the runs.
        total: count of runs of the report, shown or not.
    """
    at_once = min(len(entries), AT_ONCE)
    most_lanes = _MOST_LANES // at_once
    most_steps = _MOST_STEPS // len(entries)
    data = [read_timeline(entry.run, most_lanes, most_steps) for entry in entries]
    parts: list[Markup] = [el("h2", "Timeline", id="timeline")]
    if len(entries) > at_once:
        parts += _chooser(entries, total)
    parts.append(key(data))
    colours = step_colours(data)
    if len(entries) > 1:
        box = el("input", type="checkbox", name="together", checked=True)
        label = el("label", box, " all timelines show the same span of simulated time")
        parts.append(el("p", label))
    text = "The timeline needs JavaScript; python -m analysis RUN draws one as a picture."
    parts.append(el("noscript", el("p", text)))
    for place, (entry, timeline) in enumerate(zip(entries, data, strict=True)):
        head = el("h3", entry.name) if len(entries) > 1 else None
        parts.append(_timeline(place, entry.name, head, timeline, colours))
    return el("section", *parts)


def _timeline(
    place: int,
    name: str,
    head: Markup | None,
    timeline: TimelineData,
    colours: Mapping[str, str],
) -> Markup:
    """Return the timeline of a run.

    Args:
        place: index of the run on the page.
        name: name of the run.
        head: heading above the timeline, if any.
        timeline: data of the timeline.
        colours: colours of all kinds of steps on the page.
    """
    steps = [{"name": kind, "colour": colours[kind]} for kind in timeline.kinds]
    header = {**timeline.header, "steps": steps}
    lanes = len(timeline.columns["device"])
    population = header["population"]
    worked = header["worked"]
    text = (
        f"{lanes:,} of the {worked:,} devices that worked, evenly spread over them; the "
        f"population has {population:,}."
    )
    if lanes == population:
        text = f"All {population:,} devices; {worked:,} of them worked."
    content = {"header": header, "packed": pack(timeline.columns)}
    block = data_block(f"timeline-{place}-data", content)
    controls = stage(place, name, bool(header["groups"]))
    return el("div", head, el("p", text, class_="soft"), controls, block, data_run=place)


def _chooser(entries: tuple[DetailedRun, ...], total: int) -> Iterator[Markup]:
    """Yield two lists from which the reader chooses two runs to show.

    At first the best run is chosen, and a run of another line.
    """
    second = 1
    for place, entry in enumerate(entries):
        if entry.line is not entries[0].line:
            second = place
            break
    yield el("label", "run ", _run_list("first-run", entries, 0), class_="chooser")
    yield el("label", "beside it ", _run_list("second-run", entries, second), class_="chooser")
    rest = ""
    if total != len(entries):
        rest = f" of {total}; fedsim report, called with its folder, shows any other"
    text = (
        f"{len(entries)} runs can be chosen, the best first{rest}. What follows here is of those "
        "that are."
    )
    yield el("p", text, class_="soft")


def _run_list(name: str, entries: tuple[DetailedRun, ...], selected: int) -> Markup:
    """Return a drop-down list of runs; the list "second-run" also has an entry "none"."""
    options = []
    if name == "second-run":
        options.append(el("option", "none", value=""))
    for place, entry in enumerate(entries):
        options.append(el("option", entry.name, value=place, selected=place == selected))
    return el("select", *options, name=name)


def details(place: int, entry: DetailedRun, several: bool) -> Markup:
    """Return the details of a run: pictures, and tables of devices and rounds.

    Args:
        place: index of the run on the page, from 0.
        entry: the run.
        several: whether the report has several runs.
    """
    run = entry.run
    parts: list[Markup | None] = []
    if several:
        parts.append(_headline_figures(run))
    if place < MOST_DRAWN:
        parts += _draw_run(entry, several)
        parts.append(waiting(run))
    else:
        text = "It has no pictures here: fedsim report, called with its folder, draws them."
        parts.append(el("p", text, class_="soft"))
    block = f"timeline-{place}-data"
    for part in (tables.devices(run, block), tables.rounds(run, block)):
        if part is None:
            continue
        summary, table = part
        content = table
        if several:  # the page inserts the details when the reader opens them
            content = el("div", data_html=deflated(table.encode()))
        parts.append(el("details", el("summary", summary), content))
    name = entry.name if several else "Pictures and tables"
    return el("section", el("h2", name, id=f"run-{place}"), *parts, data_run=place)


def _draw_run(entry: DetailedRun, several: bool) -> Iterator[Markup]:
    """Yield the pictures of a run that no other part of the page shows."""
    run = entry.run
    key_picture = _key_picture(run)
    elsewhere = {"timeline"}
    if not several:
        elsewhere.add(key_picture)
    for name in OF_ONE:
        if name not in elsewhere:
            yield from _draw(name, run)
    if not several:
        series = [Series(entry.name, (run,))]
        yield from _draw_series(series, series, omitted=key_picture)


def waiting(run: RunFolder) -> Markup | None:
    """Return a part of the page on the critical path of a run, with two of its rounds.

    Returns:
        The part of the page; None if the run has no rounds or took no time.
    """
    paths = CriticalPaths(run)
    if not paths.rounds or not paths.end:
        return None
    rows: list[list[str | tables.TableCell]] = []
    for name, seconds in paths.totals.items():
        duration = tables.TableCell(show_seconds(seconds), seconds)
        share = tables.TableCell(f"{seconds / paths.end:.1%}", seconds)
        rows.append([name, duration, share])
    heads = ["on the critical path", "took", "share"]
    table = tables.grid(heads, rows, [True, False, False], "Its times sum to the run's.")
    usual = median(path.seconds for path in paths.rounds)
    longest = max(paths.rounds, key=lambda path: path.seconds)
    middle = min(paths.rounds, key=lambda path: abs(path.seconds - usual))
    rounds = [_describe_round_path(paths, longest.number, "the longest")]
    if middle.number != longest.number:
        rounds.append(_describe_round_path(paths, middle.number, "a usual one"))
    return join(
        el("h3", "Where the simulated time went"),
        el("p", " ".join(run_in_words(paths))),
        table,
        *rounds,
    )


def _describe_round_path(paths: CriticalPaths, number: int, description: str) -> Markup:
    columns = path_table(paths.round(number)).columns
    summary = el("summary", f"Round {number}, {description}: what it waited for")
    text = el("p", " ".join(round_in_words(paths, number)))
    table = tables.of_columns(columns, range(len(columns[0].cells)))
    return el("details", summary, text, table)


# Pictures with their captions.

_ALMOST_WHITE = 250
_DPI = 110  # 13 inches are 1,430 pixels, shown at a width of at most 1,300
_OVER_SEEDS = ("energy", "traffic-purposes")
_IN_CHART = ("costs", "accuracy")  # pictures of several runs that the chart replaces


def _key_picture(run: RunFolder) -> str:
    """Return the main picture of a run: ``accuracy``, or ``traffic`` if nothing was learned."""
    return "traffic" if all(row["loss"] is None for row in run.rounds) else "accuracy"


def _draw_series(
    alone: Sequence[Series], series: Sequence[Series], omitted: str = ""
) -> Iterator[Markup]:
    """Yield pictures of several runs: of the runs in ``alone``, or of the means of ``series``.

    The picture ``omitted`` is left out.
    """
    runs = _list_runs(series)
    single_runs = _list_runs(alone)
    several = len(runs) > 1
    for name in OF_SEVERAL if several else OF_ANY:
        is_in_chart = several and name in _IN_CHART
        if name == omitted or is_in_chart:
            continue
        if name in _OVER_SEEDS:
            yield from _draw(name, runs, series)
        else:
            yield from _draw(name, single_runs, alone)


def _list_runs(series: Sequence[Series]) -> list[RunFolder]:
    runs: list[RunFolder] = []
    for line in series:
        runs += line.runs
    return runs


def _draw(name: str, source: object, *series: object) -> Iterator[Markup]:
    """Yield a picture as a heading and a figure; nothing if the picture does not apply.

    The picture is a PNG of 128 colours, which has a quarter of the size of a full PNG.
    """
    kind: PictureKind = (OF_ONE | OF_SEVERAL)[name]
    try:
        figure = kind.draw(source, *series)
    except style.NothingToDrawError:
        return
    picture = Image.fromarray(style.pixels(figure, _DPI)).convert("RGB")
    reduced = picture.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    # almost white becomes white, so that the picture has the background of the page
    palette = reduced.getpalette() or []
    reduced.putpalette([255 if part > _ALMOST_WHITE else part for part in palette])
    content = io.BytesIO()
    reduced.save(content, "png", optimize=True)
    data = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
    text = f"{kind.title}. {kind.caption}"
    image = el("img", src=data, alt=text, width=reduced.width, height=reduced.height)
    yield el("h3", kind.title)
    # A wide picture keeps a readable size on a narrow screen, where it can be scrolled.
    yield el(
        "figure", el("div", image, class_="wide", tabindex="0"), el("figcaption", kind.caption)
    )
