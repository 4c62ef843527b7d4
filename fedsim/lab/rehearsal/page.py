"""Page of a rehearsal: simulated and measured tasks on a time axis, and their differences."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from fedsim.analysis.palette import AWAY, OUTCOMES, STEPS
from fedsim.analysis.report.axis import Axis
from fedsim.analysis.report.markup import Markup, asset, el, join
from fedsim.common.round_words import counted
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.rehearsal.differences import (
    Differences,
    Pair,
    RunTimes,
    TaskTimes,
    bytes_of,
    mean_of,
)
from fedsim.records.folder import writing
from fedsim.records.reading import RunFolder
from fedsim.version import __version__

_WIDTH = 1160.0  # width of the picture (pixels)
_LEFT = 90.0  # room for names (pixels)
_LANE = 9.0  # height of a bar (pixels)
_GAP = 12.0  # gap between the bars of two devices (pixels)
_TOP = 24.0  # room for the axis (pixels)
_MARGIN = 10.0  # margin on the right and below (pixels)
_TICKS = 10  # upper bound of the count of ticks on the axis
_END_SHARE = 0.03  # last share of the axis, in which a tick has its text on the left
_UNMARKED = ("done", "stopped")  # outcomes for which a task has no mark at its end
_SHEET = """
.tasks { display: block; width: 100%; min-width: 760px; height: auto; filter: var(--dark); }
.tasks text { font: 11px sans-serif; fill: #444; }
table { margin: 0.5em 0 1.5em; }
td, th { padding: 0.2em 0.9em 0.2em 0; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
main, header, footer { max-width: 1200px; margin: 1em auto; padding: 0 1em; }
"""


def write_page(
    path: Path,
    run: RunFolder,
    uncalibrated: Differences,
    calibrated: Differences | None,
    simulated_only: Sequence[str] = (),
) -> None:
    """Write the HTML page that compares a rehearsal (a real run of a scenario) with its simulation.

    Args:
        path: the file to write.
        run: the measured run folder of the rehearsal.
        uncalibrated: differences to the simulation of the scenario.
        calibrated: differences to the simulation with the speeds and links that were fitted to the
            rehearsal; None if there is none.
        simulated_only: names of the scenario's keys that the rehearsal does not apply.
    """
    title = f"Rehearsal of {run.summary['name']}"
    parts = [
        el(
            "header",
            el("h1", title),
            el("p", *_summary_sentences(uncalibrated, calibrated)),
            *_not_applied(simulated_only),
        ),
        el(
            "main",
            el("h2", "Tasks on one time axis"),
            _legend(uncalibrated),
            el("div", _timeline(uncalibrated), class_="wide", tabindex="0"),
            el("h2", "Rounds"),
            _rounds(uncalibrated, calibrated),
            el("h2", "Phases"),
            _phases(uncalibrated, calibrated),
            el("h2", "Bytes of payloads"),
            _bytes(uncalibrated),
            el("h2", "Tasks that were not done"),
            _undone(uncalibrated),
        ),
        el("footer", el("p", _footer_text(run))),
    ]
    with writing(path) as beside:
        beside.write_text(_document(title, join(*parts)), encoding="utf-8")


def _footer_text(run: RunFolder) -> str:
    """Return the text of the footer: versions and settings of a rehearsal, and its units of time.

    Args:
        run: the measured run folder of the rehearsal.
    """
    settings = run.summary["measured"]  # settings of the rehearsal, and versions of its software
    training = "training slept for the scenario's time" if settings["pace"] else "training was real"
    waits = ""
    if "longest_wait_s" in settings:  # folders of earlier versions lack it
        longest_s = settings["longest_wait_s"]
        waits = "; Flower's own waits"
        if longest_s is not None:
            waits = f"; Flower's waits were shortened to {show_seconds(longest_s)}"
    return (
        f"Written by fedsim {__version__}. Measured with Flower {settings['flwr']} on "
        f"{settings.get('nodes', '?')} SuperNodes of one machine; {training}{waits}. Times are real "
        "seconds of the rehearsal, and simulated seconds of the simulation."
    )


def _document(title: str, body: Markup) -> str:
    """Return the HTML text of the page, whose security policy allows no scripts."""
    sheet = f"{asset('report.css')}\n{_SHEET}"
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("title", title),
        el("style", Markup(sheet)),
    )
    return f"<!DOCTYPE html>\n{el('html', head, el('body', body), lang='en')}\n"


def _not_applied(names: Sequence[str]) -> Iterator[Markup]:
    if names:
        yield el("p", f"Simulated, and not rehearsed: {', '.join(names)}.")


def _summary_sentences(uncalibrated: Differences, calibrated: Differences | None) -> Iterator[str]:
    """Yield sentences on the mean round, the error of the simulations, and the accuracy."""
    mean = uncalibrated.mean_round
    yield (
        f"{counted(len(uncalibrated.rounds), 'round')} took {show_seconds(mean.measured)} on the "
        f"mean in the rehearsal, and {show_seconds(mean.simulated)} in the simulation: an error of "
        f"{mean.error:+.1%}. "
    )
    if calibrated is not None:
        yield f"After calibration the error is {calibrated.mean_round.error:+.1%}. "
    accuracies = (uncalibrated.measured.accuracy, uncalibrated.simulated.accuracy)
    if None not in accuracies:
        yield f"Final accuracy: {accuracies[0]:.4f} rehearsed, {accuracies[1]:.4f} simulated."


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    head = el("tr", *[el("th", title) for title in titles])
    body = [el("tr", *[el("td", cell) for cell in row]) for row in rows]
    table = el("table", el("thead", head), el("tbody", *body))
    return el("div", table, class_="wide", tabindex="0")


def _rounds(uncalibrated: Differences, calibrated: Differences | None) -> Markup:
    """Return an HTML table of the rounds' lengths in rehearsal and simulation, and of their mean.

    Args:
        uncalibrated: differences to the simulation of the scenario.
        calibrated: differences to the simulation of the fitted world, which add two columns; None
            if there is none.
    """
    calibrated_pairs = {} if calibrated is None else calibrated.rounds
    rows = []
    for number, pair in uncalibrated.rounds.items():
        row = [str(number), *_cells(pair)]
        if calibrated is not None:
            row += _calibrated_cells(calibrated_pairs.get(number))
        rows.append(row)
    mean = ["mean", *_cells(uncalibrated.mean_round)]
    if calibrated is not None:
        mean += _calibrated_cells(calibrated.mean_round)
    return _table(_titles("round", calibrated), [*rows, mean])


def _titles(first: str, calibrated: Differences | None) -> list[str]:
    titles = [first, "rehearsed", "simulated", "error"]
    if calibrated is not None:
        titles += ["calibrated", "error after"]
    return titles


def _cells(pair: Pair) -> list[str]:
    error = f"{pair.error:+.1%}"
    return [show_seconds(pair.measured), show_seconds(pair.simulated), error]


def _calibrated_cells(pair: Pair | None) -> list[str]:
    return ["", ""] if pair is None else [show_seconds(pair.simulated), f"{pair.error:+.1%}"]


def _phases(uncalibrated: Differences, calibrated: Differences | None) -> Markup:
    """Return an HTML table of mean lengths of steps, and of the waits of measured messages.

    Args:
        uncalibrated: differences to the simulation of the scenario.
        calibrated: differences to the simulation of the fitted world, which add two columns; None
            if there is none.
    """
    rows = []
    for name, pairs in uncalibrated.phases.items():  # pairs of measured and simulated lengths
        row = [name, *_cells(mean_of(pairs))]
        if calibrated is not None:
            calibrated_pairs = calibrated.phases.get(name)
            row += _calibrated_cells(mean_of(calibrated_pairs) if calibrated_pairs else None)
        rows.append(row)
    for name, values in uncalibrated.wire.items():  # waits (s), and ratios of bytes
        mean = fmean(values)
        cell = f"{mean:.3f}" if name.startswith("bytes") else show_seconds(mean)
        row = [f"of these: {name}", cell, "", ""]
        if calibrated is not None:
            row += ["", ""]
        rows.append(row)
    return _table(_titles("phase, mean of tasks done in both", calibrated), rows)


def _bytes(uncalibrated: Differences) -> Markup:
    rows = []
    for direction, pair in bytes_of(uncalibrated).items():
        cells = (show_bytes(pair.measured), show_bytes(pair.simulated), f"{pair.error:+.2%}")
        rows.append([direction, *cells])
    return _table(["direction", "rehearsed", "simulated", "error"], rows)


def _undone(uncalibrated: Differences) -> Markup:
    rows = []
    for task in uncalibrated.undone:
        where = "both" if task.where == "both" else f"{task.where} only"
        rows.append([str(task.round), str(task.device), task.measured, task.simulated, where])
    if not rows:
        return el("p", "All tasks were done in both.")
    return _table(["round", "device", "rehearsed", "simulated", "not done in"], rows)


def _legend(differences: Differences) -> Markup:
    """Return the timeline's legend: the steps and outcomes that occur, with their colours."""
    steps: set[str] = set()
    outcomes = set()
    for run in (differences.simulated, differences.measured):
        for task in run.tasks.values():
            steps.update(span.step for span in task.spans)
            outcomes.add(task.outcome)
    entries = []
    for name, colour in STEPS.items():
        if name in steps:
            entries.append(_entry(colour, name))
    for name, colour in OUTCOMES.items():
        if name in outcomes and name not in _UNMARKED:
            entries.append(_entry(colour, f"the task ends: {name}"))
    words = (
        "The upper bar of a device is simulated, the lower bar rehearsed. Lines are ends of "
        "rounds, dashed if simulated."
    )
    return join(el("p", words), el("ul", *entries, class_="key"))


def _entry(colour: str, name: str) -> Markup:
    square = el("rect", width=20, height=13, fill=colour)
    return el("li", el("svg", square, viewBox="0 0 20 13", aria_hidden="true"), name)


def _timeline(differences: Differences) -> Markup:
    """Return an SVG picture of all tasks over time, with two rows of bars for each device.

    The upper row is simulated, the lower row measured. Lines mark the ends of rounds.
    """
    simulated = differences.simulated
    measured = differences.measured
    tasks = [*simulated.tasks.values(), *measured.tasks.values()]
    end = max([task.end for task in tasks], default=1.0) or 1.0  # 1 s for an axis without tasks
    devices = sorted({device for _, device in {**simulated.tasks, **measured.tasks}})
    scale = (_WIDTH - _LEFT - _MARGIN) / end  # pixels per second
    height = _TOP + len(devices) * (2 * _LANE + _GAP) + _MARGIN
    parts: list[Markup] = list(_axis(end, scale, height))
    for row, device in enumerate(devices):
        top = _TOP + row * (2 * _LANE + _GAP)
        parts.append(el("text", f"device {device}", x=4, y=top + _LANE + 4))
        for run, offset in ((simulated, 0.0), (measured, _LANE + 1.0)):
            parts += _lane(run, device, top + offset, scale)
    for run, is_dashed in ((simulated, True), (measured, False)):
        parts += _round_ends(run, scale, height, is_dashed)
    box = f"0 0 {_WIDTH:g} {height:g}"
    return el("svg", *parts, viewBox=box, class_="tasks", role="img", aria_label="tasks")


def _axis(end: float, scale: float, height: float) -> Iterator[Markup]:
    for time in Axis(0.0, end, is_log=False).ticks(_TICKS):
        x = f"{_LEFT + time * scale:.1f}"
        yield el("line", x1=x, x2=x, y1=_TOP - 6, y2=height, stroke="#eee")
        anchor = "middle" if end - time > _END_SHARE * end else "end"
        yield el("text", f"{time:g} s", x=x, y=12, text_anchor=anchor)


def _lane(run: RunTimes, device: int, top: float, scale: float) -> Iterator[Markup]:
    for (number, owner), task in run.tasks.items():
        if owner == device:
            yield from _bars(number, task, top, scale)


def _bars(number: int, task: TaskTimes, top: float, scale: float) -> Iterator[Markup]:
    """Yield SVG bars for the steps of a task, and a mark at the task's end if it was not done.

    Args:
        number: index of the task's round, for the tooltips.
        task: the task.
        top: vertical position of the bars (pixels).
        scale: pixels per second.
    """
    for span in task.spans:
        words = f"round {number}, {span.step}: {span.seconds:.2f} s, {span.outcome}"
        yield el(
            "rect",
            el("title", words),
            x=f"{_LEFT + span.start * scale:.1f}",
            y=top,
            width=f"{max(0.5, span.seconds * scale):.1f}",
            height=_LANE,
            fill=STEPS.get(span.step, AWAY),
        )
    if task.outcome not in _UNMARKED:
        x = f"{_LEFT + task.end * scale - 2:.1f}"
        fill = OUTCOMES.get(task.outcome, OUTCOMES["late"])
        mark = el("title", f"round {number}: {task.outcome}")
        yield el("rect", mark, x=x, y=top - 1, width=4, height=_LANE + 2, fill=fill)


def _round_ends(run: RunTimes, scale: float, height: float, is_dashed: bool) -> Iterator[Markup]:
    dashes = "4 3" if is_dashed else None
    for entry in run.rounds:
        x = f"{_LEFT + entry.end * scale:.1f}"
        line = {"x1": x, "x2": x, "y1": _TOP - 4, "y2": height, "stroke": "#999"}
        yield el("line", **line, stroke_dasharray=dashes)
