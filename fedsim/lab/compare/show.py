"""A comparison from folders to text: ``fedsim compare``, and the tables beside the runs of a study."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsim.errors import RunFolderError, ScenarioError
from fedsim.lab.compare import explore
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.table import ComparedTable, Comparison, in_one
from fedsim.lab.compare.text import to_csv, to_markdown, to_terminal
from fedsim.output.harmless import for_markdown
from fedsim.records.folder import write_text
from fedsim.records.ledger import LedgerPreset
from fedsim.records.study_folder import PUBLISHED, read_index

if TYPE_CHECKING:
    from fedsim.output.terminal import Console

Form = Literal["csv", "markdown"]

_ENDINGS: dict[str, Form] = {".csv": "csv", ".md": "markdown"}
_WIDE = 10_000  # where no terminal is, no line is folded


def compare(
    paths: Sequence[str | Path],
    targets: Sequence[float | str] = (),
    baseline: str | None = None,
    ledger: LedgerPreset = "strict",
) -> list[ComparedTable]:
    """Put folders of runs and studies side by side; for studies with a baseline, the differences from it follow.

    Args:
        paths: the folders.
        targets: accuracies (0..1), besides those that studies name, and of other metrics as ``"perplexity=8"``.
        baseline: see ``read_lines``.
        ledger: ``strict`` counts every byte that moved, ``paper`` as the papers count.

    Raises:
        RunFolderError: a folder is neither a run nor a study, or is damaged.
        ScenarioError: there is no such baseline, or a target is none.
    """
    return Comparison(read_lines(paths, baseline), targets, ledger).tables()


def print_short(
    console: "Console",
    paths: Sequence[str | Path],
    targets: Sequence[float | str] = (),
    baseline: str | None = None,
    ledger: LedgerPreset = "strict",
    goal: str | None = None,
    budget: Mapping[str, float] | None = None,
) -> None:
    """Print the answer of a comparison, in sentences and tables that fit on a screen; see ``compare`` and ``read_lines``."""
    comparison = Comparison(read_lines(paths, baseline, goal, budget), targets, ledger)
    for answer in comparison.answers():
        console.print(*answer.words, sep="\n")
        console.print(*explore.in_words(answer), sep="\n")
        if (cells := explore.heat_map(answer)) is not None:
            print_to(console, [cells.table()])
    print_to(console, [comparison.in_short()])


def compare_published(path: str | Path, figures: str | Path) -> list[ComparedTable]:
    """The tables of a file of published ``figures``, beside the figures of the study in a folder."""
    from fedsim.lab.compare.published import Published, beside_published  # loads the scenarios' grammar

    return beside_published(read_lines([path]).lines, Published.read(figures))


def claims_of(tables: Sequence[ComparedTable]) -> Sequence[ComparedTable]:
    """Of the tables beside published ones the claims and their verdicts; all of them where nothing is claimed."""
    from fedsim.lab.compare.published import CLAIMS

    return [table for table in tables if table.title == CLAIMS] or tables


def print_to(console: "Console", tables: Sequence[ComparedTable]) -> None:
    """Print tables for people; without a terminal, at their full width."""
    if not console.is_terminal:
        console.width = _WIDE
    for table in tables:
        console.print(*to_terminal(table, console.width), sep="\n")


def as_text(tables: Sequence[ComparedTable], form: Form) -> str:
    """Tables as CSV (the first alone, but all with titles that have its columns) or Markdown, published ones as printed."""
    titled = bool(tables and tables[0].title)
    if form == "csv":
        return to_csv(in_one(tables) if titled else tables[0])
    if titled:
        from fedsim.lab.compare.published import LEGEND, as_printed

        return "\n".join((f"{LEGEND}\n", *map(to_markdown, as_printed(tables))))
    return "\n".join(map(to_markdown, tables))


def form_of(path: Path, said: Form | None) -> Form:
    """The form of a file: as said, or by its ending."""
    form = said or _ENDINGS.get(path.suffix.lower())
    if form is None:
        raise ScenarioError(
            f"--out is {str(path)!r}; allowed is a name that ends in {' or '.join(_ENDINGS)}, or say --csv or --markdown"
        )
    return form


def write_file(path: Path, text: str) -> None:
    """Write a comparison."""
    try:
        write_text(path, text)
    except OSError as error:
        raise RunFolderError(f"--out {str(path)!r} cannot be written: {error.strerror}") from None


def write_tables(path: Path) -> None:
    """Write ``compare.csv``, ``compare.md``, ``paired.csv`` and ``runs.csv`` of the study at ``path``, and ``published.md``.

    They depend on its runs alone, never on when or in which order these were made.
    """
    study, comparison = read_index(path), Comparison(read_lines([path]))
    together = comparison.side_by_side(), comparison.differences()
    write_text(path / "compare.csv", to_csv(together[0]))
    write_text(path / "runs.csv", to_csv(comparison.one_by_one()))
    write_text(path / "paired.csv", to_csv(comparison.paired(study.seeds)))
    write_text(path / "compare.md", "\n".join(to_markdown(*pair) for pair in zip(together, (study.name, ""), strict=True)))
    if (path / PUBLISHED).is_file():
        from fedsim.lab.compare.published import LEGEND, Published, as_printed, beside_published

        published = Published.read(path / PUBLISHED)
        parts = (
            f"# {for_markdown(study.name)}\n",
            f"{html.escape(published.about.strip(), quote=False)}\n",
            f"{LEGEND}\n",
            *map(to_markdown, as_printed(beside_published(comparison.lines.lines, published))),
        )
        write_text(path / "published.md", "\n".join(parts))
