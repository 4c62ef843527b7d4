"""Gathering of the runs and studies of a report, and the choice of runs to show in detail."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedsim.analysis import style
from fedsim.analysis.report.markup import plain
from fedsim.analysis.series import Series
from fedsim.common.errors import RunFolderError
from fedsim.lab.compare.cells import cell_names
from fedsim.lab.compare.lines import ComparedLine, read_lines, title_of
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import is_study, read_index
from fedsim.records.reading import RunFolder

MOST_SHOWN = 6  # greatest count of runs with a timeline, and tables of rounds and devices
MOST_DRAWN = 2  # greatest count of runs with pictures, as a picture takes a second or two


class DetailedRun(NamedTuple):
    """One of the runs for which a report's page has a timeline, pictures and tables.

    Attributes:
        run: the run folder.
        name: name of the run on the page.
        line: variant or scenario to which the run belongs, with its runs over all seeds.
    """

    run: RunFolder
    name: str
    line: ComparedLine


@dataclass(frozen=True)
class Subject:
    """Subject of a report: the runs of the given folders, and their comparison.

    A line is a row of the comparison: a variant or scenario with its runs over seeds.

    Attributes:
        comparison: comparison of the lines.
        names: names of the lines.
        order: indices of the lines, the best first; lines without a rank are at the end.
        runs: runs of all lines: the finished runs of studies, and runs that were given as folders,
            finished or not.
        detailed: runs that the page shows in detail: the first run of each line, the best line
            first, then the second run of each line, and so on.
        title: title of the report.
        about: descriptions of the studies.
    """

    comparison: Comparison
    names: tuple[str, ...]
    order: tuple[int, ...]
    runs: tuple[RunFolder, ...]
    detailed: tuple[DetailedRun, ...]
    title: str
    about: str

    @property
    def lines(self) -> tuple[ComparedLine, ...]:
        """Variants or scenarios that are compared, each with its runs over all seeds."""
        return self.comparison.lines.lines

    @property
    def series(self) -> list[Series]:
        """Runs of each line (variant or scenario) as a series over seeds, the best line first.

        Lines without runs are left out.
        """
        series = []
        for rank, index in enumerate(self.order):
            runs = self.lines[index].runs
            if runs:
                series.append(Series(self.names[index], runs, rank))
        return series

    def single_runs(self, most: int) -> list[Series]:
        """Return a series per run, for the first ``most`` runs that the page shows in detail.

        Each run has the colour of its line, the variant or scenario to which it belongs.
        """
        ranks = {id(self.lines[index]): rank for rank, index in enumerate(self.order)}
        series = []
        for entry in self.detailed[:most]:
            name = style.with_strategy(entry.name, entry.run)
            series.append(Series(name, (entry.run,), ranks[id(entry.line)]))
        return series


class NothingDoneError(RunFolderError):
    """Error that a report has no run to show, as no run of its studies is done yet."""


def gather(paths: Sequence[str | Path]) -> Subject:
    """Read the runs of a report, and compare them.

    Args:
        paths: folders of runs and studies.

    Raises:
        NothingDoneError: all folders are studies, and none of their runs is done.
        RunFolderError: a folder is neither a run nor a study, or is damaged.
    """
    compared = read_lines(paths).begun()  # without lines of which no run has begun
    finished_runs: list[RunFolder] = []
    for line in compared.lines:
        finished_runs += line.runs
    if not finished_runs:
        folder_names = ", ".join(repr(str(path)) for path in paths)
        raise NothingDoneError(
            f"{folder_names} has no run yet that is done, so there is nothing to report"
        )
    comparison = Comparison(compared)
    order = _order_lines(comparison)
    names = tuple(plain(name, 60) for name in cell_names(compared))
    detailed = _choose_runs(compared.lines, names, order)
    studies = [Path(path) for path in paths if is_study(Path(path))]
    heading = title(studies, finished_runs)
    about = " ".join(plain(read_index(path).about, 2000) for path in studies)
    return Subject(
        comparison=comparison,
        names=names,
        order=order,
        runs=tuple(finished_runs),
        detailed=detailed,
        title=heading,
        about=about,
    )


def _order_lines(comparison: Comparison) -> tuple[int, ...]:
    """Return the indices of all lines (variants): ranked lines, best first, then unranked lines."""
    lines = comparison.lines
    order: list[int] = []
    if not lines.are_runs:
        for answer in comparison.answers():
            order += answer.order
    unranked = [index for index in range(len(lines.lines)) if index not in order]
    return (*order, *unranked)


def _choose_runs(
    lines: Sequence[ComparedLine], names: Sequence[str], order: Sequence[int]
) -> tuple[DetailedRun, ...]:
    """Choose the runs that a report shows in detail, in turn from each line (variant).

    They are the first run of each line in ``order``, then the second run of each line, and so on.
    """
    most_runs = max((len(lines[line_index].runs) for line_index in order), default=0)
    selection = []
    for run_index in range(most_runs):
        for line_index in order:
            line = lines[line_index]
            if run_index >= len(line.runs):  # other lines have more runs
                continue
            run = line.runs[run_index]
            name = names[line_index]
            if line.study:
                name = f"{name}, seed {run.summary['seed']}"
            selection.append(DetailedRun(run, plain(name, 80), line))
    return tuple(selection[:MOST_SHOWN])


def title(studies: Sequence[Path], runs: Sequence[RunFolder]) -> str:
    """Return the title of a report: the name of the first study, or of the first scenario.

    Args:
        studies: folders of the studies; may be empty.
        runs: the runs, whose scenarios are named if there is no study; may otherwise be empty.
    """
    titles = [plain(title_of(path), 80) for path in studies]
    if not titles:
        titles = [*dict.fromkeys(plain(run.summary["name"], 80) for run in runs)]
    if len(titles) == 1:
        return titles[0]
    return f"{titles[0]} and {len(titles) - 1} more"
