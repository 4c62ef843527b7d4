"""The runs and studies of a report, and which of many runs are shown in detail."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from fedsim.analysis import style
from fedsim.analysis.report.markup import plain
from fedsim.analysis.style import Series
from fedsim.common.errors import RunFolderError
from fedsim.lab.compare.cells import cell_names
from fedsim.lab.compare.lines import ComparedLine, read_lines, title_of
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import is_study, read_index
from fedsim.records.reading import RunFolder

MOST_SHOWN = 6  # each has a timeline, and tables of its rounds and devices, and can be chosen
MOST_DRAWN = 2  # each has several pictures as well, which take a second or two


class Shown(NamedTuple):
    """A run that is shown in detail, with its name for the page and its line of the comparison."""

    run: RunFolder
    name: str
    line: ComparedLine


@dataclass(frozen=True)
class Subject:
    """The subject of a report: a comparison of lines, with their names, and all their ``runs``.

    Attributes:
        order: the places of the lines, the best first; as given if nothing ranks them.
        shown: the runs to choose from on the page: the first of each line, the best line first,
            then others.
        title, about: the name of the whole, and the studies' descriptions.
    """

    comparison: Comparison
    names: tuple[str, ...]
    order: tuple[int, ...]
    runs: tuple[RunFolder, ...]
    shown: tuple[Shown, ...]
    title: str
    about: str

    @property
    def lines(self) -> tuple[ComparedLine, ...]:
        """The compared lines, with all runs."""
        return self.comparison.lines.lines

    @property
    def series(self) -> list[Series]:
        """The lines with runs, as series of all seeds, the best first with the clearest looks."""
        lines = self.lines
        return [
            Series(self.names[at], lines[at].runs, rank)
            for rank, at in enumerate(self.order)
            if lines[at].runs
        ]

    def alone(self, most: int) -> list[Series]:
        """The first ``most`` shown runs, one series each, with the looks of their lines."""
        rank = {id(self.lines[place]): rank for rank, place in enumerate(self.order)}
        return [
            Series(style.with_strategy(one.name, one.run), (one.run,), rank[id(one.line)])
            for one in self.shown[:most]
        ]


def gather(paths: Sequence[str | Path]) -> Subject:
    """Find the runs.

    ``RunFolderError``: a folder is neither a run nor a study or is damaged, or no run of a study is
    done.
    """
    lines = read_lines(paths).begun()
    runs = tuple(run for line in lines.lines for run in line.runs)
    if not runs:
        folder_names = ", ".join(repr(str(path)) for path in paths)
        raise RunFolderError(
            f"{folder_names} has no run yet that is done, so there is nothing to report"
        )
    comparison = Comparison(lines)
    ranked = (
        [] if lines.are_runs else [place for one in comparison.answers() for place in one.order]
    )
    order = (*ranked, *(place for place in range(len(lines.lines)) if place not in ranked))
    names = tuple(plain(name, 60) for name in cell_names(lines))
    shown = []
    for seeds in zip_longest(*(lines.lines[place].runs for place in order)):
        for run, place in zip(seeds, order, strict=True):
            line = lines.lines[place]
            name = names[place]
            if run is not None:
                shown.append(
                    Shown(
                        run,
                        plain(f"{name}, seed {run.summary['seed']}" if line.study else name, 80),
                        line,
                    )
                )
    studies = [path for path in map(Path, paths) if is_study(path)]
    titles = [plain(title_of(path), 80) for path in studies] or [
        *dict.fromkeys(plain(run.summary["name"], 80) for run in runs)
    ]
    title = titles[0] if len(titles) == 1 else f"{titles[0]} and {len(titles) - 1} more"
    about = " ".join(plain(read_index(path).about, 2000) for path in studies)
    return Subject(comparison, names, order, runs, tuple(shown[:MOST_SHOWN]), title, about)
