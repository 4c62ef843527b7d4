"""Lines of a paper's figures: variants of studies and runs, each with its seeds."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fedsim.analysis import style
from fedsim.analysis.series import Series, group_by_scenario
from fedsim.common.errors import RunFolderError, nearest
from fedsim.lab.compare.cells import VARIANT, cells_of, name_cells
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.reading.activities import Activities
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import History
from fedsim.lab.reading.study_folder import is_study, read_index
from fedsim.lab.reading.targets import Target
from fedsim.records.reading import RunFolder

LineNumbers = TypeVar("LineNumbers")

_MOST_NAMED = 6
_LONGEST_NAME = 30


def read_series(paths: Sequence[Path], only: Sequence[str] = ()) -> list[Series]:
    """Read the lines of figures from folders of runs and of studies.

    Runs of the same scenario with several seeds are one line, and so are the runs of a variant of a
    study at one point of its grid.

    Args:
        paths: the folders.
        only: texts ``VARIANT`` or ``KEY=VALUE`` that select lines; other lines are left out. Texts
            with different keys all have to fit a line; of texts with the same key, one has to fit.
            Empty for all lines.

    Returns:
        The lines, numbered from 0: first the studies' lines, then the lines of single runs.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or no run is done.
        PictureError: a text of ``only`` fits no line, or no line fits all texts.
    """
    lines = read_lines(paths).begun()
    with_runs = [index for index, line in enumerate(lines.lines) if line.runs]
    if not with_runs:
        folders = ", ".join(repr(str(path)) for path in paths)
        raise RunFolderError(f"{folders} has no run yet that is done, so there is nothing to draw")
    of_studies = [index for index in with_runs if lines.lines[index].study]
    study_cells = cells_of(lines, of_studies)
    single_runs = [lines.lines[index].runs[0] for index in with_runs if index not in of_studies]
    single_series = group_by_scenario(single_runs)
    descriptions: list[Mapping[str, str]] = [*study_cells.values()]
    for line in single_series:
        descriptions.append({VARIANT: line.name})
    selection = _select(descriptions, only)
    selected = [index for number, index in enumerate(study_cells) if number in selection]
    series = []
    # names are made after the selection, as they state only keys in which the selected lines differ
    for index, name in name_cells(cells_of(lines, selected)).items():
        series.append(Series(style.shorten(name, _LONGEST_NAME), lines.lines[index].runs))
    for number, line in enumerate(single_series, start=len(study_cells)):
        if number in selection:
            series.append(line)
    return [Series(line.name, line.runs, rank) for rank, line in enumerate(series)]


def _select(descriptions: Sequence[Mapping[str, str]], only: Sequence[str]) -> list[int]:
    """Return the indices of the lines that ``only`` selects; of all lines if ``only`` is empty.

    Args:
        descriptions: for each line, key -> value: its variant, and its values of the study's grid.
        only: texts ``VARIANT`` or ``KEY=VALUE``, as in ``read_series``.

    Raises:
        PictureError: a text names no line, or no line fits all texts.
    """
    requested_values: dict[str, set[str]] = {}  # key -> values that a line may have
    for text in only:
        key, value = _split_selection(text, descriptions)
        requested_values.setdefault(key, set()).add(value)
    line_indices = []
    for line_index, description in enumerate(descriptions):
        if all(description.get(key) in values for key, values in requested_values.items()):
            line_indices.append(line_index)
    if not line_indices:
        raise style.PictureError(f"--only {' --only '.join(only)} leaves no line to draw")
    return line_indices


def _split_selection(text: str, descriptions: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Split a text ``KEY=VALUE`` of ``--only``; a text without ``=`` is the name of a variant.

    Raises:
        PictureError: no line has this key, or this value of the key.
    """
    key, has_key, value = text.partition("=")
    if not has_key:
        key = VARIANT
        value = text
    allowed_values = dict.fromkeys(line[key] for line in descriptions if key in line)
    if has_key and not allowed_values:
        keys = dict.fromkeys(key for line in descriptions for key in line)
        raise style.PictureError(
            f"--only names {key!r}; allowed are {', '.join(keys)}{nearest(key, keys)}"
        )
    if value not in allowed_values:
        raise style.PictureError(
            f"--only is {text!r}; allowed are {', '.join(allowed_values)}"
            f"{nearest(value, allowed_values)}"
        )
    return key, value


def declared_targets(paths: Sequence[Path]) -> list[Target]:
    """Return the targets, such as an accuracy, that the studies in ``paths`` declare.

    Equal targets of several studies are one target.

    Args:
        paths: folders of runs and studies; folders of runs have no targets.
    """
    targets: list[Target] = []
    for path in paths:
        if is_study(path):
            targets += map(Target.read, read_index(path).targets)
    return list(dict.fromkeys(targets))


def refuse_too_many(figure: str, series: Sequence[Series], most: int) -> None:
    """Raise ``PictureError`` if there are more lines than a figure has room for.

    Args:
        figure: name of the figure, for the message.
        series: the lines; a line is a variant or scenario with its runs over seeds.
        most: greatest count of lines in the figure.
    """
    if len(series) > most:
        names = [entry.name for entry in series[:_MOST_NAMED]]
        raise style.PictureError(
            f"{len(series)} lines are given, but the figure {figure!r} has room for {most}; "
            f"choose with --only VARIANT or --only KEY=VALUE out of {', '.join(names)}"
            f"{' ...' if len(series) > _MOST_NAMED else ''}"
        )


def attempts_of(run: RunFolder) -> Attempts:
    """Return an object with the tasks of a run: ``all`` tasks, and ``clients``, tasks by round."""
    return Attempts(Activities(History(run)))


def strategy_of(series: Series) -> str:
    """Return the name of the strategy with which a line's first run was computed, shortened."""
    return style.shorten(str(series.runs[0].summary["strategy"]), _LONGEST_NAME)


def not_drawn(line: Series, reason: style.NothingToDrawError, series: Sequence[Series]) -> str:
    """Return a sentence for the user on a line that a figure leaves out.

    Args:
        line: the line: a variant or scenario with its runs over seeds.
        reason: the error that says why the line has nothing to draw.
        series: all lines of the figure; the sentence names the line only if there are several.
    """
    return str(reason) if len(series) == 1 else f"without {line.name}: {reason}"


def measure_each(
    series: Sequence[Series], measure: Callable[[Series], LineNumbers]
) -> tuple[list[LineNumbers], list[str]]:
    """Compute the numbers of each line of a figure, and collect the lines that have none.

    Args:
        series: the lines to draw; a line is a variant or scenario with its runs over seeds.
        measure: returns the numbers of a line; raises ``NothingToDrawError`` if it has none.

    Returns:
        The numbers of the lines that have numbers, and a sentence on each other line.

    Raises:
        NothingToDrawError: no line has numbers.
    """
    lines = []
    notes = []
    for entry in series:
        try:
            lines.append(measure(entry))
        except style.NothingToDrawError as error:
            notes.append(not_drawn(entry, error, series))
    if not lines:
        raise style.NothingToDrawError("; ".join(notes))
    return lines, notes
