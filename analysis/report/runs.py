"""Single runs of a report: their timelines, and their key numbers, pictures and tables."""

import math
from collections.abc import Iterator, Mapping
from statistics import median

from fedsim.analysis.report import tables
from fedsim.analysis.report.answer import tiles
from fedsim.analysis.report.drawings import draw_run, fold
from fedsim.analysis.report.gather import MOST_DRAWN, DetailedRun
from fedsim.analysis.report.legend import step_colours, timeline_legend
from fedsim.analysis.report.markup import Markup, data_block, deflated, el, join, pack, plain
from fedsim.analysis.report.timeline import TimelineData, read_timeline, stage
from fedsim.common.round_words import counted, stopped_in_words
from fedsim.common.units import show_bytes, show_joules, show_seconds, show_share
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.compare.critical_words import (
    category_in_words,
    path_table,
    round_in_words,
    run_in_words,
)
from fedsim.lab.compare.measures import Values, measure
from fedsim.records.folder import MEASURED
from fedsim.records.ledger import has_no_server, show_peer, total
from fedsim.records.live import RUNNING
from fedsim.records.reading import RunFolder
from fedsim.world.meters.energy import PHASES

_MOST_LANES = 3000  # greatest count of lanes (a device each) in the visible timelines together
_MOST_STEPS = 1_000_000  # greatest count of steps in all timelines, to limit the page's size
_THIN_LANES = 260  # with more lanes, a lane has less than 2 of the 520 pixels of a timeline
MOST_VISIBLE = 2  # greatest count of timelines that are visible at a time


def headline_figures(run: RunFolder) -> Markup:
    """Return the most important numbers of a run, such as its final accuracy, as tiles in HTML."""
    summary = run.summary
    measured = measure(run)
    figures = [(f"{run.round_word}s", f"{summary['rounds']:,}", _describe_end(run))]
    figures += _test_figures(run, measured)
    duration_remark = f"computed in {show_seconds(summary['wall_s'])}"
    if MEASURED in summary:
        duration_remark = "of a real run"
    figures.append((run.clock, show_seconds(summary["simulated_s"]), duration_remark))
    figures += _byte_figures(run)
    computed_s = measured["compute"]
    if computed_s:
        wasted_s = measured["wasted compute"] or 0
        remark = f"{show_share(wasted_s / computed_s, 1)} wasted"
        figures.append(("devices computed", show_seconds(computed_s), remark))
    figures += _energy_figures(run, measured)
    purity = measured["last purity of groups"]
    if purity is not None:
        moment = "at the end" if run.is_done else "so far"
        figures.append(("purity of groups", f"{purity:.3f}", f"{moment}; 1 is perfect"))
    epsilon = run.rounds[-1].get("epsilon") if run.rounds else None
    if epsilon is not None:
        moment = f"in all {run.round_word}s" if run.is_done else "so far"
        figures.append(("epsilon", f"{epsilon:.3g}", f"privacy spent {moment}"))
    return tiles(figures)


def _test_figures(run: RunFolder, measured: Values) -> Iterator[tuple[str, str, str]]:
    """Yield the last results of tests for a run's tiles; each is a name, a value and a remark."""
    final = measured["final accuracy"]
    if final is not None:
        remark = f"best {measured['best accuracy']:.4f}"
        worst = measured["worst-decile accuracy"]
        if worst is not None:
            remark += f", worst tenth of devices {worst:.4f}"
        yield _label_of_last("accuracy", run), f"{final:.4f}", remark
    unseen = (run.summary.get("accuracy") or {}).get("unseen")
    if unseen is not None:
        label = f"{_label_of_last('accuracy', run)}, unseen"
        yield label, f"{unseen:.4f}", "on devices that are tested and never train"
    for name, metric in run.summary.get("metrics", {}).items():
        if metric["final"] is not None:
            remark = f"best {metric['best']:.4g}"
            yield _label_of_last(name, run), f"{metric['final']:.4g}", remark


def _label_of_last(name: str, run: RunFolder) -> str:
    """Return the label of a measure's last value: ``final NAME``, or else ``NAME so far``."""
    return f"final {name}" if run.is_done else f"{name} so far"


def _describe_end(run: RunFolder) -> str:
    """Return the reason why a run ended, or its status if it is not done."""
    status = run.summary.get("status")
    if status == "done" and run.summary.get("stopped"):
        return f"ended by: {plain(stopped_in_words(run.summary), 60)}"
    if status == RUNNING:
        return "running when last written"
    return plain(status, 30)


def _byte_figures(run: RunFolder) -> list[tuple[str, str, str]]:
    """Return the moved and the wasted bytes for a run's tiles: name, value and remark of each."""
    sizes = run.summary["bytes"]
    size = total(sizes)
    directions = []
    if not has_no_server(sizes):
        directions += [f"{show_bytes(sizes['down'])} down", f"{show_bytes(sizes['up'])} up"]
    directions += show_peer(sizes)
    share = "nothing moved"
    if size:
        share = f"{show_share(sizes['wasted'] / size, 1)} of what moved"
    return [
        ("moved", show_bytes(size), ", ".join(directions)),
        ("wasted", show_bytes(sizes["wasted"]), share),
    ]


def _energy_figures(run: RunFolder, measured: Values) -> Iterator[tuple[str, str, str]]:
    """Yield a run's totals of energy and batteries for its tiles, if they were counted.

    Each is a name, a formatted value and a remark.
    """
    joules = measured["energy"]
    if joules:
        wasted = measured["wasted energy"] or 0.0
        of_devices = math.fsum(
            run.summary["energy"]["by_phase"].get(phase, 0.0) for phase in PHASES
        )
        remark = f"{show_share(wasted / of_devices, 1)} of it wasted" if of_devices else ""
        yield "devices drew", show_joules(of_devices), remark
        if joules > of_devices:
            yield "energy in all", show_joules(joules), "with the server's side"
    flat = measured["flat devices"]
    if flat is not None:
        outcomes = [outcome for (outcome,) in run.events_of(("task-end",), ("outcome",))]
        tasks = outcomes.count("battery")
        remark = f"{counted(tasks, 'task')} ended by a flat battery"
        yield "flat devices", f"{flat:,}", remark
        yield "of a battery", f"{measured['battery']:.3g} %", "drawn by a device, in the mean"


def timelines(entries: tuple[DetailedRun, ...], total: int) -> Iterator[Markup]:
    """Yield the timelines of runs (the work of each device over time), with legend and controls.

    Args:
        entries: the runs that have a timeline, the best first; at least one.
        total: count of all runs of the report, with or without a timeline. A text beside the lists
            from which the reader chooses runs has this count.
    """
    visible = min(len(entries), MOST_VISIBLE)
    most_lanes = _MOST_LANES // visible
    most_steps = _MOST_STEPS // len(entries)
    all_data = [read_timeline(entry.run, most_lanes, most_steps) for entry in entries]
    if len(entries) > visible:
        yield from _chooser(entries, total)
    yield timeline_legend(all_data)
    colours = step_colours(all_data)
    if len(entries) > 1:
        box = el("input", type="checkbox", name="together", checked=True)
        label = el("label", box, " all timelines show the same span of time")
        yield el("p", label)
    text = "The timeline needs JavaScript; python -m fedsim.analysis RUN draws one as a picture."
    yield el("noscript", el("p", text))
    for index, (entry, data) in enumerate(zip(entries, all_data, strict=True)):
        head = el("h3", entry.name) if len(entries) > 1 else None
        yield _timeline(index, entry.name, head, data, colours)


def _timeline(
    index: int,
    name: str,
    head: Markup | None,
    data: TimelineData,
    colours: Mapping[str, str],
) -> Markup:
    """Return the timeline of a run.

    Args:
        index: index of the run on the page.
        name: name of the run.
        head: heading above the timeline, if any.
        data: data of the timeline.
        colours: colours of all kinds of steps on the page.
    """
    steps = [{"name": kind, "colour": colours[kind]} for kind in data.kinds]
    content = {"header": {**data.header, "steps": steps}, "packed": pack(data.columns)}
    block = data_block(_block_id(index), content)
    has_groups = bool(data.header["groups"])
    controls = stage(index, name, data.header["round_word"], has_groups=has_groups)
    text = el("p", _describe_lanes(data), class_="soft")
    return el("div", head, text, controls, block, data_run=index)


def _block_id(index: int) -> str:
    """Return the id of the data block of a run's timeline, by the index of the run on the page."""
    return f"timeline-{index}-data"


def _describe_lanes(data: TimelineData) -> str:
    """Return a text on the devices that have lanes in a timeline, and on how lanes are drawn."""
    lanes = len(data.columns["device"])
    population = data.header["population"]
    worked = data.header["worked"]
    text = (
        f"{lanes:,} of the {worked:,} devices that worked, evenly spread over them; the "
        f"population has {population:,}."
    )
    if lanes == population:
        text = f"All {population:,} devices; {worked:,} of them worked."
    if population == 1:
        text = "Its one device."
    text += " Beside a lane are its device and, if there is room, the speed (samples/s)."
    if lanes > _THIN_LANES:
        text += (
            " Lanes thinner than two pixels are drawn as a density, four pixels for the devices that "
            "lie there: the more of them are at work, the fuller is the colour (by the root of their "
            "share). Taller lanes show each device."
        )
    return text


def _chooser(entries: tuple[DetailedRun, ...], total: int) -> Iterator[Markup]:
    """Yield two drop-down lists on the page, from which one chooses two runs to show.

    At first the best run is chosen, and a run of another variant.

    Args:
        entries: the runs to choose from, the best first.
        total: count of runs of the report, which a text names.
    """
    second = 1
    for index, entry in enumerate(entries):
        if entry.line is not entries[0].line:
            second = index
            break
    yield el("label", "run ", _run_list("first-run", entries, 0), class_="chooser")
    yield el("label", "beside it ", _run_list("second-run", entries, second), class_="chooser")
    rest = ""
    if total != len(entries):
        rest = f" of {total}; fedsim report, called with its folder, shows any other"
    text = (
        f"{len(entries)} runs can be chosen, the best first{rest}. The parts below are of the "
        "chosen runs."
    )
    yield el("p", text, class_="soft")


def _run_list(name: str, entries: tuple[DetailedRun, ...], selected: int) -> Markup:
    """Return a drop-down list of runs; the list "second-run" also has an entry "none"."""
    options = []
    if name == "second-run":
        options.append(el("option", "none", value=""))
    for index, entry in enumerate(entries):
        options.append(el("option", entry.name, value=index, selected=index == selected))
    return el("select", *options, name=name)


def details(index: int, entry: DetailedRun, is_comparison: bool) -> Iterator[Markup]:
    """Yield details of a run, each folded: pictures, and tables of devices and rounds.

    Only the first two runs of the page have pictures.

    Args:
        index: index of the run on the page, from 0.
        entry: the run.
        is_comparison: whether the report has several runs.
    """
    run = entry.run
    level = 3 if is_comparison else 2
    if index < MOST_DRAWN:
        waiting_part = waiting(run)
        if waiting_part is not None:
            yield fold("Where the time went", waiting_part, level=level)
        yield from draw_run(entry, is_comparison)
    else:
        text = "It has no pictures here: fedsim report, called with its folder, draws them."
        yield el("p", text, class_="soft")
    block_id = _block_id(index)
    parts = {"devices": tables.devices(run, block_id), "rounds": tables.rounds(run, block_id)}
    for name, summary_and_table in parts.items():
        if summary_and_table is None:
            continue
        summary, table = summary_and_table
        content = table
        if is_comparison:  # stored compressed; a script inserts the table when the reader opens it
            content = el("div", data_html=deflated(table.encode()))
        yield fold(summary, content, level=level, anchor=f"{name}-{index}")


def section_of_run(index: int, entry: DetailedRun) -> Markup:
    """Return the part about one run, on a page of several runs.

    Args:
        index: index of the run on the page, from 0.
        entry: the run.
    """
    parts = [headline_figures(entry.run), *details(index, entry, is_comparison=True)]
    return el("section", el("h2", entry.name, id=f"run-{index}"), *parts, data_run=index)


def waiting(run: RunFolder) -> Markup | None:
    """Return the part of the page on the critical paths of a run's rounds, with two examples.

    A round's critical path is the chain of steps, such as trainings, that determined when the round
    ended. The examples are the longest round, if it is longer than the median, and the round whose
    length is nearest to the median.

    Returns:
        The part of the page; None if the run has no rounds or took no time.
    """
    paths = CriticalPaths(run)
    if not paths.rounds or not paths.end:
        return None
    rows: list[list[str | tables.TableCell]] = []
    for name, seconds in paths.totals.items():
        duration = tables.TableCell(show_seconds(seconds), seconds)
        share = tables.TableCell(show_share(seconds / paths.end, 1), seconds)
        rows.append([category_in_words(paths, name), duration, share])
    heads = ["on the critical path", "took", "share"]
    caption = "The times on the critical path sum to the time of the run."
    if not run.is_done:
        caption = "The times on the critical path sum to the time of the run so far."
    table = tables.grid(heads, rows, [True, False, False], caption)
    median_s = median(path.seconds for path in paths.rounds)
    longest = max(paths.rounds, key=lambda path: path.seconds)
    usual = min(paths.rounds, key=lambda path: abs(path.seconds - median_s))
    examples = []
    if show_seconds(longest.seconds) != show_seconds(median_s):
        examples.append(_describe_round_path(paths, longest.number, "the longest"))
    if not examples or usual.number != longest.number:
        examples.append(_describe_round_path(paths, usual.number, "a usual one"))
    return join(el("p", " ".join(run_in_words(paths))), table, *examples)


def _describe_round_path(paths: CriticalPaths, number: int, description: str) -> Markup:
    columns = path_table(paths.described_round(number)).columns
    title = f"{paths.word.capitalize()} {number}, {description}: what it waited for"
    summary = el("summary", title)
    text = el("p", " ".join(round_in_words(paths, number)))
    table = tables.of_columns(columns, range(len(columns[0].cells)))
    return el("details", summary, text, table)
