"""The runs and studies of a report, and which of many runs are shown in detail."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
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

MOST_SHOWN = 6  # each has a timeline, and tables of its rounds and devices, and can be chosen
MOST_DRAWN = 2  # each has several pictures as well, which take a second or two


class DetailedRun(NamedTuple):
    """A run that is shown in detail, with its name for the page and its line of the comparison."""

    run: RunFolder
    name: str
    line: ComparedLine


@dataclass(frozen=True)
class Subject:
    """The subject of a report: the runs, and their comparison.

    Attributes:
        comparison: the comparison of the lines.
        names: the names of the lines.
        order: the places of the lines, the best first; in their own order if nothing ranks them.
        runs: the runs of all lines.
        detailed: the runs to choose from on the page: the first of each line, the best line first,
            then the second of each, and so on.
        title: the name of the whole.
        about: the studies' descriptions.
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
        """The compared lines, with all runs."""
        return self.comparison.lines.lines

    @property
    def series(self) -> list[Series]:
        """The lines with runs, as series of all seeds, the best first with the clearest looks."""
        series = []
        for rank, place in enumerate(self.order):
            runs = self.lines[place].runs
            if runs:
                series.append(Series(self.names[place], runs, rank))
        return series

    def alone(self, most: int) -> list[Series]:
        """The first ``most`` shown runs, one series each, with the looks of their lines."""
        ranks = {id(self.lines[place]): rank for rank, place in enumerate(self.order)}
        series = []
        for entry in self.detailed[:most]:
            name = style.with_strategy(entry.name, entry.run)
            series.append(Series(name, (entry.run,), ranks[id(entry.line)]))
        return series


def gather(paths: Sequence[str | Path]) -> Subject:
    """Find the runs of a report.

    Args:
        paths: folders of runs and studies.

    Raises:
        RunFolderError: a folder is neither a run nor a study or is damaged, or no run of a study
            is done.
    """
    lines = read_lines(paths).begun()
    runs: list[RunFolder] = []
    for line in lines.lines:
        runs += line.runs
    if not runs:
        folder_names = ", ".join(repr(str(path)) for path in paths)
        raise RunFolderError(
            f"{folder_names} has no run yet that is done, so there is nothing to report"
        )
    comparison = Comparison(lines)
    order = _order_lines(comparison)
    names = tuple(plain(name, 60) for name in cell_names(lines))
    detailed = _choose_runs(lines.lines, names, order)
    studies = [Path(path) for path in paths if is_study(Path(path))]
    title = _title(studies, runs)
    about = " ".join(plain(read_index(path).about, 2000) for path in studies)
    return Subject(comparison, names, order, tuple(runs), detailed, title, about)


def _order_lines(comparison: Comparison) -> tuple[int, ...]:
    """The places of all lines: ranked lines first, with the best on top, then unranked lines."""
    lines = comparison.lines
    order: list[int] = []
    if not lines.are_runs:
        for answer in comparison.answers():
            order += answer.order
    unranked = [place for place in range(len(lines.lines)) if place not in order]
    return (*order, *unranked)


def _choose_runs(
    lines: Sequence[ComparedLine], names: Sequence[str], order: Sequence[int]
) -> tuple[DetailedRun, ...]:
    """The first run of each line in this order, then the second of each, and so on."""
    selection = []
    for runs in zip_longest(*(lines[place].runs for place in order)):
        for run, place in zip(runs, order, strict=True):
            if run is None:
                continue
            line = lines[place]
            name = names[place]
            if line.study:
                name = f"{name}, seed {run.summary['seed']}"
            selection.append(DetailedRun(run, plain(name, 80), line))
    return tuple(selection[:MOST_SHOWN])


def _title(studies: Sequence[Path], runs: Sequence[RunFolder]) -> str:
    """The name of the first study or, without studies, of the first scenario."""
    titles = [plain(title_of(path), 80) for path in studies]
    if not titles:
        titles = [*dict.fromkeys(plain(run.summary["name"], 80) for run in runs)]
    if len(titles) == 1:
        return titles[0]
    return f"{titles[0]} and {len(titles) - 1} more"
