"""All figures for papers by name, and the function that writes them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedsim.analysis import style
from fedsim.analysis.paper.communication import USUAL_TARGETS, draw_communication
from fedsim.analysis.paper.lines import declared_targets, read_series
from fedsim.analysis.paper.members import draw_members
from fedsim.analysis.paper.migration import draw_migration
from fedsim.analysis.paper.rounds import draw_rounds
from fedsim.analysis.paper.sheet import COLUMN_IN, FORMATS, PaperFigure, save
from fedsim.analysis.paper.straggling import draw_straggling
from fedsim.analysis.paper.waiting import draw_waiting
from fedsim.analysis.series import Series
from fedsim.common.errors import nearest
from fedsim.lab.reading.targets import Target


@dataclass(frozen=True)
class FigureRequest:
    """Request for figures of a paper: the lines to draw, and options.

    Attributes:
        series: the lines, each a variant or scenario with its runs over seeds.
        width: width of each figure (inches).
        targets: possible targets for the figure of communication cost, which counts bytes until one
            of these targets is reached; ``measure_communication`` chooses it.
        fallback_targets: possible targets if no run reaches any of ``targets``.
        rounds: indices of the rounds that the figure ``rounds`` draws; empty for the default.
    """

    series: Sequence[Series]
    width: float
    targets: Sequence[Target]
    fallback_targets: Sequence[Target] = ()
    rounds: Sequence[int] = ()


class PaperKind(NamedTuple):
    """Kind of figure for papers, such as ``waiting``.

    Attributes:
        draw: draws the figure; raises ``NothingToDrawError`` if it does not apply.
        is_by_line: whether each line (variant with its seeds) has a separate figure, which shows
            its first run.
    """

    draw: Callable[[FigureRequest], PaperFigure]
    is_by_line: bool = False


def _straggling(request: FigureRequest) -> PaperFigure:
    return draw_straggling(request.series, request.width)


def _waiting(request: FigureRequest) -> PaperFigure:
    return draw_waiting(request.series, request.width)


def _rounds(request: FigureRequest) -> PaperFigure:
    return draw_rounds(request.series[0], request.width, request.rounds)


def _migration(request: FigureRequest) -> PaperFigure:
    return draw_migration(request.series, request.width)


def _members(request: FigureRequest) -> PaperFigure:
    return draw_members(request.series[0], request.width)


def _communication(request: FigureRequest) -> PaperFigure:
    return draw_communication(
        request.series, request.width, request.targets, request.fallback_targets
    )


FIGURES = {
    "straggling": PaperKind(_straggling),
    "waiting": PaperKind(_waiting),
    "rounds": PaperKind(_rounds, is_by_line=True),
    "migration": PaperKind(_migration),
    "members": PaperKind(_members, is_by_line=True),
    "communication": PaperKind(_communication),
}
"""Figures by name, in the order in which they are written."""


class WrittenFigure(NamedTuple):
    """Figure for a paper that was written to files.

    Attributes:
        name: name of the figure, such as ``waiting``.
        line: name of the line that the figure shows; empty if the figure shows all lines.
        files: paths of the files; the last one is the table of the drawn numbers.
        notes: sentences on what the figure leaves out.
    """

    name: str
    line: str
    files: tuple[Path, ...]
    notes: tuple[str, ...]


class SkippedFigure(NamedTuple):
    """Figure for a paper that was not written, because it does not apply to the runs.

    Attributes:
        name: name of the figure.
        line: name of the line that the figure would show; empty for all lines.
        reason: the reason, as a sentence without a period.
    """

    name: str
    line: str
    reason: str


@dataclass
class WrittenFigures:
    """Result of ``write_figures``: figures that were written, and figures that were not.

    Attributes:
        written: the written figures.
        skipped: the figures that do not apply.
    """

    written: list[WrittenFigure] = field(default_factory=list)
    skipped: list[SkippedFigure] = field(default_factory=list)


class _Drawing(NamedTuple):
    """Figure that is drawn and not yet written; ``stem`` is its file's name without ending."""

    name: str
    line: str
    stem: str
    figure: PaperFigure


def write_figures(
    paths: Sequence[Path],
    out: Path | None = None,
    *,
    figures: Sequence[str] = (),
    only: Sequence[str] = (),
    width: float = COLUMN_IN,
    formats: Sequence[str] = FORMATS[:1],
    target: Target | None = None,
    rounds: Sequence[int] = (),
) -> WrittenFigures:
    """Write figures of runs and studies as files, with a table of the drawn numbers beside each.

    Equal runs give equal files. All figures are drawn before the first file is written.

    Args:
        paths: folders of runs and studies.
        out: folder for the files; by default ``NAME-figures`` beside the first folder, NAME.
        figures: names out of ``FIGURES``; by default all figures that apply.
        only: texts ``VARIANT`` or ``KEY=VALUE`` that select the lines to draw (variants of a study,
            or values of its grid); by default all.
        width: width of each figure (inches).
        formats: endings out of ``FORMATS``.
        target: target (such as an accuracy) for the figure of communication cost, which counts the
            bytes until the target is reached. By default it is the hardest target that all runs
            reach, or else the hardest that any run reaches. It is chosen from the targets that the
            studies declare, and from usual accuracies if no run reaches any declared target.
        rounds: indices of the rounds that the figure ``rounds`` draws; by default the round with
            the most failed tasks, and the median round.

    Returns:
        The written figures, and the figures that do not apply to the runs.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or no run is done.
        PictureError: an argument has a value that is not allowed, such as an unknown name.
        NothingToDrawError: no figure applies, or a figure in ``figures`` does not. If the latter is
            drawn for each of several lines, lines to which it does not apply are skipped instead.
    """
    _check_words("--figure", figures, [*FIGURES])
    _check_words("--format", formats, FORMATS)
    series = read_series(paths, only)
    targets: Sequence[Target] = declared_targets(paths) or USUAL_TARGETS
    fallback_targets: Sequence[Target] = USUAL_TARGETS
    if target is not None:
        targets = [target]
        fallback_targets = ()
    result = WrittenFigures()
    drawings: list[_Drawing] = []
    for name in figures or FIGURES:
        for line, lines in _split_by_line(name, series):
            try:
                figure = FIGURES[name].draw(
                    FigureRequest(lines, width, targets, fallback_targets, rounds)
                )
            except style.NothingToDrawError as error:
                # A figure that the user named has to be drawn. If there is a figure for each of
                # several lines, a line may have none.
                if figures and not _has_other_lines(name, series):
                    raise
                result.skipped.append(SkippedFigure(name, line, str(error)))
            else:
                stem = f"{name}-{style.as_file_name(line)}" if line else name
                drawings.append(_Drawing(name, line, stem, figure))
    if not drawings:
        reasons = "; ".join(f"no {skipped.name}: {skipped.reason}" for skipped in result.skipped)
        raise style.NothingToDrawError(f"no figure applies to these runs: {reasons}")
    folder = out
    if folder is None:
        first_path = Path(paths[0]).resolve()
        folder = first_path.with_name(f"{first_path.name}-figures")
    for drawing in drawings:
        files = save(drawing.figure, folder / drawing.stem, formats)
        result.written.append(
            WrittenFigure(drawing.name, drawing.line, tuple(files), drawing.figure.notes)
        )
    return result


def _split_by_line(name: str, series: Sequence[Series]) -> list[tuple[str, Sequence[Series]]]:
    """Divide the lines (variants) of a figure among files, if the figure is drawn per line.

    Returns:
        Pairs of a line's name and the lines to draw. The name is empty if there is only one file.
    """
    if not FIGURES[name].is_by_line:
        return [("", series)]
    if len(series) == 1:
        return [("", series)]
    return [(line.name, [line]) for line in series]


def _has_other_lines(name: str, series: Sequence[Series]) -> bool:
    return FIGURES[name].is_by_line and len(series) > 1


def _check_words(option: str, words: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise ``PictureError`` if a word is not allowed."""
    for word in words:
        if word not in allowed:
            raise style.PictureError(
                f"{option} is {word!r}; allowed are {', '.join(allowed)}{nearest(word, allowed)}"
            )
