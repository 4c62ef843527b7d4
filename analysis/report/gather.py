"""What a report is about: runs and studies, and which of many runs are shown in detail."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.analysis.report.markup import plain
from fedsim.analysis.series import Series
from fedsim.errors import RunFolderError
from fedsim.records.reading import RunFolder

if TYPE_CHECKING:
    from fedsim.compare.lines import Line, Lines

MOST_IN_DETAIL = 6  # each has a timeline and several pictures; more would make the page long and large


@dataclass(frozen=True)
class Shown:
    """A run that is shown in detail.

    Attributes:
        run: its folder.
        name: what to call it, fit for the page.
        line: the line of the comparison that it belongs to.
    """

    run: RunFolder
    name: str
    line: "Line"


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        lines: what is compared, with all runs.
        runs: all runs, in the order of the lines.
        shown: the runs shown in detail: the first of each line, then others.
        title: what to call all of it.
    """

    lines: "Lines"
    runs: tuple[RunFolder, ...]
    shown: tuple[Shown, ...]
    title: str

    @property
    def series(self) -> list[Series]:
        """The lines that have runs, with the runs of all their seeds."""
        return [Series(_line_name(line), line.runs) for line in self.lines.lines if line.runs]


def gather(paths: Sequence[str | Path]) -> Subject:
    """Find the runs.

    Raises:
        RunFolderError: a folder is neither a run nor a study or is damaged, or no run of a study is done.
    """
    from fedsim.compare.lines import read_lines

    lines = read_lines(paths)
    runs = tuple(run for line in lines.lines for run in line.runs)
    if not runs:
        names = ", ".join(repr(str(path)) for path in paths)
        raise RunFolderError(f"{names} has no run yet that is done, so there is nothing to report")
    own = [(line, run) for line in lines.lines for run in line.runs]
    first = [(line, line.runs[0]) for line in lines.lines if line.runs]
    rest = [pair for pair in own if pair not in first] if lines.are_runs else []
    shown = tuple(Shown(run, _name(line, run), line) for line, run in [*first, *rest][:MOST_IN_DETAIL])
    return Subject(lines, runs, shown, _title([Path(path) for path in paths], runs))


def _title(folders: Sequence[Path], runs: Sequence[RunFolder]) -> str:
    """The studies' own names, or the scenarios'."""
    from fedsim.compare.lines import title_of
    from fedsim.records.study_folder import is_study

    studies = [plain(title_of(path), 80) for path in folders if is_study(path)]
    names = studies or list(dict.fromkeys(plain(run.summary["name"], 80) for run in runs))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _name(line: "Line", run: RunFolder) -> str:
    """A run's name: its folder's, or its variant's with its point in the grid and its seed."""
    return plain(f"{_line_name(line)}, seed {run.summary['seed']}", 80) if line.study else _line_name(line)


def _line_name(line: "Line") -> str:
    return plain(line.name + "".join(f", {key.rpartition('.')[2]}={value}" for key, value in line.point), 60)
