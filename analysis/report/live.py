"""The live page of runs and studies that may be unfinished."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedsim.analysis.report import progress
from fedsim.analysis.report.gather import NothingDoneError, gather, title
from fedsim.analysis.report.page import build, build_progress
from fedsim.common.round_words import count_rounds, round_word
from fedsim.lab.reading.study_folder import is_study
from fedsim.records.reading import RunFolder


class LiveReport(NamedTuple):
    """Newest report of runs or studies that may be unfinished.

    Attributes:
        page: the page as HTML.
        title: title of the page.
        says: line of text on how far the runs are.
        is_over: whether the report is final: all runs of the studies are done, and no other run is
            still running.
    """

    page: str
    title: str
    says: str
    is_over: bool


def read_live(paths: Sequence[Path]) -> LiveReport:
    """Build the page of runs and studies as they are now.

    Until a run is done, the page of studies shows only their progress.

    Args:
        paths: folders of runs and studies.

    Raises:
        RunFolderError: a folder is damaged, or a run is just replacing its files.
    """
    planned = progress.read_progress(paths)
    section = progress.section(planned)
    state = progress.in_words(planned) if planned else ""  # empty if no folder is a study
    try:
        subject = gather(paths)
    except NothingDoneError:  # all folders are studies, and none of their runs is done
        name = f"Live: {title([path for path in paths if is_study(path)], ())}"
        return LiveReport(build_progress(name, section), name, state, is_over=False)
    is_over = progress.is_over(planned)
    for run in subject.runs:
        is_over = is_over and run.summary["status"] != "running"
    name = subject.title if is_over else f"Live: {subject.title}"
    page = build(subject, live=not is_over, progress=section)
    return LiveReport(page, name, state or _state_of(subject.runs), is_over)


def _state_of(runs: Sequence[RunFolder]) -> str:
    """Return a text with the count of runs, or with status and rounds of a single run."""
    if len(runs) > 1:
        return f"{len(runs)} runs"
    summary = runs[0].summary
    return f"{summary['status']}, {count_rounds(summary['rounds'], round_word(summary))}"
