"""Result of ``fedsim figures``."""

from typing import TYPE_CHECKING, Literal

from fedsim.cli.results.parts import ResultEntries, VerbResult

if TYPE_CHECKING:
    from fedsim.analysis.paper.figures import WrittenFigures


class FigureFilesResult(ResultEntries):
    """One picture for a paper that ``fedsim figures`` has written, with the names of its files."""

    figure: str
    """Name of the figure, such as ``waiting``."""
    line: str
    """The line that it shows; empty if it shows all lines."""
    files: list[str]
    """Its files, one for each format."""
    numbers: str
    """CSV file of the drawn numbers."""
    notes: list[str]
    """Sentences on what it leaves out, and why."""


class SkippedFigureResult(ResultEntries):
    """Picture that ``fedsim figures`` did not draw, with the reason why it does not apply."""

    figure: str
    """Name of the figure."""
    line: str
    """The line to which it does not apply; empty for all lines."""
    reason: str
    """Why it does not apply."""


class FiguresResult(VerbResult):
    """JSON output of ``fedsim figures``, which draws pictures for a paper from runs.

    It names the files of each picture, and says why other pictures were skipped.
    """

    verb: Literal["figures"] = "figures"
    width_in: float
    """Width of the figures (inches)."""
    figures: list[FigureFilesResult]
    """The figures that were written."""
    skipped: list[SkippedFigureResult]
    """The figures that were not written."""

    @classmethod
    def of(cls, width: float, outcome: "WrittenFigures") -> "FiguresResult":
        """Return the JSON output of ``fedsim figures``, with the names of the written files.

        Args:
            width: width of the pictures (inches).
            outcome: the pictures that were written or skipped.
        """
        figures = []
        for entry in outcome.written:
            *files, table = map(str, entry.files)  # the last file is the CSV file
            figures.append(
                FigureFilesResult(
                    figure=entry.name,
                    line=entry.line,
                    files=files,
                    numbers=table,
                    notes=[*entry.notes],
                )
            )
        skipped = [
            SkippedFigureResult(figure=entry.name, line=entry.line, reason=entry.reason)
            for entry in outcome.skipped
        ]
        return cls(width_in=width, figures=figures, skipped=skipped)
