"""Progress of unfinished studies, as a part of their live page."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from fedsim.analysis.report import tables
from fedsim.analysis.report.markup import Markup, el, plain
from fedsim.common.errors import RunFolderError
from fedsim.common.round_words import counted
from fedsim.common.units import show_seconds
from fedsim.lab.reading.record_data import RecordData
from fedsim.lab.reading.study_folder import IndexedRun, is_study, read_index
from fedsim.records.folder import SCENARIO
from fedsim.records.reading import RunFolder

_MOST_AT_WORK = 12  # the table lists at most this count of runs at work

StudiedState = Literal["done", "at work", "begun", "not begun", "ended early"]
"""State of a run of a study.

``begun``: the run has started, and has not written any tables yet. ``ended early``: the run has
failed, or was interrupted.
"""


class StudiedRun(NamedTuple):
    """Run of a study in a report, with its state and newest summary.

    Attributes:
        line: label of the run's variant.
        seed: seed of the run.
        state: ``done``, ``at work``, ``begun`` (without tables yet), ``not begun``, or ``ended
            early`` (failed or interrupted).
        summary: newest summary of the run; empty until the run has written its first tables.
    """

    line: str
    seed: int
    state: StudiedState
    summary: RecordData


def read_progress(paths: Sequence[Path]) -> list[StudiedRun]:
    """Read the progress of each planned run of studies, in the order of the studies' variants.

    Args:
        paths: folders of studies; other folders are ignored.

    Raises:
        RunFolderError: the index of a study is damaged.
    """
    runs = []
    for path in paths:
        if not is_study(path):
            continue
        for variant in read_index(path).variants:
            label = plain(variant.label, 60)
            runs += [_read_run(label, path, run) for run in variant.runs]
    return runs


def _read_run(line: str, study: Path, run: IndexedRun) -> StudiedRun:
    """Read state and summary of a run of a study, whose files may be missing or incomplete."""
    folder = study / run.folder
    summary: RecordData = {}
    with suppress(RunFolderError):  # the run has no tables yet, or is just replacing its files
        summary = RunFolder(folder).summary
    state: StudiedState = "not begun"
    if summary.get("status") == "done":
        state = "done"
    elif summary.get("status") == "running":
        state = "at work"
    elif summary:
        state = "ended early"
    elif (folder / SCENARIO).is_file():
        state = "begun"
    return StudiedRun(line, run.seed, state, summary)


def in_words(runs: Sequence[StudiedRun]) -> str:
    """Return the counts of runs by state as text, such as "3 of 8 runs are done, 2 at work".

    Args:
        runs: all planned runs of the studies.
    """
    states = [run.state for run in runs]
    text = f"{states.count('done'):,} of {len(runs):,} runs are done"
    if len(runs) == 1:
        text = "the run is done" if states[0] == "done" else "the run is not done"
    at_work = states.count("at work") + states.count("begun")
    if at_work:
        text += f", {at_work:,} at work"
    ended_early = states.count("ended early")
    if ended_early:
        text += f", {ended_early:,} ended early"
    return text


def is_over(runs: Sequence[StudiedRun]) -> bool:
    """Whether all runs are done."""
    return all(run.state == "done" for run in runs)


def section(runs: Sequence[StudiedRun]) -> Markup | None:
    """Return a section on the progress of studies; None if all runs are done.

    Args:
        runs: the planned runs.
    """
    if is_over(runs):
        return None
    done = sum(run.state == "done" for run in runs)
    bar = el("progress", value=done, max=len(runs), aria_label="runs that are done")
    parts = [el("h2", "Progress", id="progress"), el("p", bar, f" {in_words(runs)}.")]
    parts += _runs_at_work(runs)
    summary = el("summary", "All lines, and how many of their runs are done")
    parts.append(el("details", summary, _lines(runs)))
    return el("section", *parts)


def _runs_at_work(runs: Sequence[StudiedRun]) -> Iterator[Markup]:
    """Yield a table of the runs at work, with their figures so far; nothing if there are none."""
    at_work = [run for run in runs if run.state in ("at work", "begun")]
    if not at_work:
        return
    rows: list[list[str | tables.TableCell]] = []
    for run in at_work[:_MOST_AT_WORK]:
        rows.append([f"{run.line}, seed {run.seed}", *_figures(run.summary)])
    heads = ["run at work", "rounds", "simulated", "accuracy (0-1)"]
    caption = "A run has figures after its first task, and 20 s of real time at the earliest."
    if len(at_work) > len(rows):
        caption += f" {len(rows)} of {len(at_work)} are listed."
    yield tables.grid(heads, rows, [True, False, False, False], caption)


def _figures(summary: RecordData) -> list[str | tables.TableCell]:
    """Return cells with rounds, simulated time and accuracy of a run, empty at its beginning."""
    if not summary:
        return ["", "", ""]
    rounds = int(summary["rounds"])
    seconds = float(summary["simulated_s"])
    accuracy = summary["accuracy"]["final"]
    accuracy_text = "" if accuracy is None else f"{accuracy:.4f}"
    return [
        tables.TableCell(f"{rounds:,}", rounds),
        tables.TableCell(show_seconds(seconds), seconds),
        tables.TableCell(accuracy_text, accuracy),
    ]


def _lines(runs: Sequence[StudiedRun]) -> Markup:
    rows: list[list[str | tables.TableCell]] = []
    for line in dict.fromkeys(run.line for run in runs):
        of_line = [run for run in runs if run.line == line]
        done = sum(run.state == "done" for run in of_line)
        planned = counted(len(of_line), "run")
        rows.append([line, tables.TableCell(f"{done:,}", done), planned])
    return tables.grid(["line", "done", "of"], rows, [True, False, False])
