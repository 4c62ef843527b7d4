"""A comparison from folders to text: ``fedsim compare``, and the tables beside the runs of a study."""

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedsim.errors import RunFolderError, ScenarioError
from fedsim.lab.compare import explore
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.table import ComparedColumn, ComparedTable, Comparison
from fedsim.lab.compare.text import to_csv, to_markdown, to_terminal
from fedsim.output.harmless import for_markdown
from fedsim.records.folder import write_text
from fedsim.records.study_folder import PUBLISHED, read_index

if TYPE_CHECKING:
    from fedsim.output.terminal import Console

Form = Literal["csv", "markdown"]

_ENDINGS: dict[str, Form] = {".csv": "csv", ".md": "markdown"}
_WIDE = 10_000  # where no terminal is, no line is folded


def print_short(console: "Console", comparison: Comparison) -> None:
    """Print the answer of a comparison, in sentences and tables that fit on a screen."""
    for answer in comparison.answers():
        console.print(*answer.words, *explore.in_words(answer), sep="\n")
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
    """Tables as CSV (the first alone, of published ones all but the claims) or Markdown, published ones as printed."""
    titled = bool(tables and tables[0].title)
    if form == "csv":
        return to_csv(_in_one(tables) if titled else tables[0])
    if titled:
        from fedsim.lab.compare.published import LEGEND, as_printed

        return "\n".join((f"{LEGEND}\n", *map(to_markdown, as_printed(tables))))
    return "\n".join(map(to_markdown, tables))


def _in_one(tables: Sequence[ComparedTable]) -> ComparedTable:
    """The tables that have the columns of the first one as one table, which says first out of which each row is."""
    heads = [column.head for column in tables[0].columns]
    same = [table for table in tables if [column.head for column in table.columns] == heads]
    titles = ComparedColumn("table", tuple(table.title for table in same for _ in table.columns[0].cells))
    parts = zip(*(table.columns for table in same), strict=True)
    return ComparedTable((titles, *(replace(one[0], cells=tuple(cell for own in one for cell in own.cells)) for one in parts)))


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
    together, differences = comparison.side_by_side(), comparison.differences()
    write_text(path / "compare.csv", to_csv(together))
    write_text(path / "runs.csv", to_csv(comparison.one_by_one()))
    write_text(path / "paired.csv", to_csv(comparison.paired(study.seeds)))
    write_text(path / "compare.md", f"{to_markdown(together, study.name)}\n{to_markdown(differences)}")
    if (path / PUBLISHED).is_file():
        from fedsim.lab.compare.published import LEGEND, Published, as_printed, beside_published

        published = Published.read(path / PUBLISHED)
        about = html.escape(published.about.strip(), quote=False)
        tables = map(to_markdown, as_printed(beside_published(comparison.lines.lines, published)))
        write_text(path / "published.md", "\n".join([f"# {for_markdown(study.name)}\n", f"{about}\n", f"{LEGEND}\n", *tables]))
