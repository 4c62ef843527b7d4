"""Lines of a paper's figures: variants of studies and runs, each with its seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsim.analysis import style
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.common.errors import RunFolderError, nearest
from fedsim.lab.compare.cells import VARIANT, cell_names, cells_of
from fedsim.lab.compare.lines import Lines, read_lines
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import History
from fedsim.records.reading import RunFolder

_MOST_NAMED = 6
_LONGEST_NAME = 30


def read_series(paths: Sequence[Path], only: Sequence[str] = ()) -> tuple[list[Series], Lines]:
    """Read the lines of figures from folders of runs and of studies.

    Runs of the same scenario with several seeds are one line, and so are the runs of a variant of a
    study at one point of its grid.

    Args:
        paths: the folders.
        only: texts ``VARIANT`` or ``KEY=VALUE``; other lines are left out. Texts of the same key
            add up, texts of several keys must all hold.

    Returns:
        The lines, numbered from 0, and the lines as a comparison has them.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or no run is done.
        PictureError: a text of ``only`` names no line.
    """
    lines = read_lines(paths).begun()
    names = cell_names(lines)
    places = [place for place, line in enumerate(lines.lines) if line.runs]
    if not places:
        folders = ", ".join(repr(str(path)) for path in paths)
        raise RunFolderError(f"{folders} has no run yet that is done, so there is nothing to draw")
    cells = cells_of(lines, places)
    series: list[Series] = []
    facts: list[Mapping[str, str]] = []
    for place, cell in cells.items():
        line = lines.lines[place]
        if line.study:
            series.append(Series(style.short(names[place], _LONGEST_NAME), line.runs))
            facts.append(cell)
    runs = [line.runs[0] for line in lines.lines if line.runs and not line.study]
    for line_of_runs in group_by_scenario(runs):
        series.append(line_of_runs)
        facts.append({VARIANT: line_of_runs.name})
    selection = _select(series, facts, only)
    numbered = [Series(entry.name, entry.runs, rank) for rank, entry in enumerate(selection)]
    return numbered, lines


def _select(
    series: Sequence[Series], facts: Sequence[Mapping[str, str]], only: Sequence[str]
) -> list[Series]:
    """Return the series that ``only`` selects.

    Args:
        series: all series.
        facts: the values of each series by key.
        only: texts as of ``read_series``.
    """
    wishes: dict[str, set[str]] = {}
    for text in only:
        key, separator, value = text.partition("=")
        if not separator:
            key = VARIANT
            value = text
        allowed = [*dict.fromkeys(entry[key] for entry in facts if key in entry)]
        if separator and not allowed:
            keys = [*dict.fromkeys(name for entry in facts for name in entry)]
            raise style.PictureError(
                f"--only names {key!r}; allowed are {', '.join(keys)}{nearest(key, keys)}"
            )
        if value not in allowed:
            raise style.PictureError(
                f"--only is {text!r}; allowed are {', '.join(allowed)}{nearest(value, allowed)}"
            )
        wishes.setdefault(key, set()).add(value)
    selection = []
    for entry, values in zip(series, facts, strict=True):
        if all(values.get(key) in wish for key, wish in wishes.items()):
            selection.append(entry)
    if not selection:
        raise style.PictureError(f"--only {' --only '.join(only)} leaves no line to draw")
    return selection


def refuse_more(figure: str, series: Sequence[Series], most: int) -> None:
    """Reject a figure of more lines than it has room for.

    Raises:
        PictureError: there are more than ``most`` series.
    """
    if len(series) > most:
        names = [entry.name for entry in series[:_MOST_NAMED]]
        raise style.PictureError(
            f"{len(series)} lines are given, but the figure {figure!r} has room for {most}; "
            f"choose with --only VARIANT or --only KEY=VALUE out of {', '.join(names)}"
            f"{' ...' if len(series) > _MOST_NAMED else ''}"
        )


def attempts_of(run: RunFolder) -> Attempts:
    """Return the attempts of a run's clients."""
    return Attempts(Activities(History(run)))


def strategy_of(series: Series) -> str:
    """Return the strategy of a line, from the summary of its first run."""
    return style.short(str(series.runs[0].summary["strategy"]), _LONGEST_NAME)
