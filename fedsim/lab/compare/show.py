"""A comparison from folders to text, for terminals, spreadsheets and Markdown, and the tables
beside the runs of a study.
"""

import csv
import html
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fedsim.common.harmless import clean, for_csv, for_markdown
from fedsim.lab.compare import explore
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.paired import Estimate
from fedsim.lab.compare.published import LEGEND, Published, as_printed, beside_published
from fedsim.lab.compare.table import Beside, Cell, ComparedColumn, ComparedTable, Comparison
from fedsim.lab.reading.study_folder import PUBLISHED, read_index
from fedsim.records.folder import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedsim.lab.terminal import Console

Form = Literal["csv", "markdown"]

_WIDE = 10_000  # where no terminal is, no line is folded
_SCALES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_MOST_DIGITS = 6  # of a mean, however narrow its interval


def print_short(console: "Console", comparison: Comparison) -> None:
    """Print the answer of a comparison, in sentences and tables that fit on a screen."""
    for answer in comparison.answers():
        console.print(*answer.words, *explore.in_words(answer), sep="\n")
        if (cells := explore.heat_map(answer)) is not None:
            print_to(console, [cells.table()])
    print_to(console, [comparison.in_short()])


def compare_published(path: str | Path, figures: str | Path) -> list[ComparedTable]:
    """The tables of a file of published ``figures``, beside the figures of the study in a
    folder.
    """
    return beside_published(read_lines([path]).lines, Published.read(figures))


def print_to(console: "Console", tables: Sequence[ComparedTable]) -> None:
    """Print tables for people; without a terminal, at their full width."""
    if not console.is_terminal:
        console.width = _WIDE
    for table in tables:
        console.print(*to_terminal(table, console.width), sep="\n")


def as_text(tables: Sequence[ComparedTable], form: Form) -> str:
    """Tables as CSV (the first alone, of published ones all but the claims) or Markdown,
    published ones as printed.
    """
    titled = bool(tables and tables[0].title)
    if form == "csv":
        return to_csv(_in_one(tables) if titled else tables[0])
    if titled:
        return "\n".join((f"{LEGEND}\n", *map(to_markdown, as_printed(tables))))
    return "\n".join(map(to_markdown, tables))


def _in_one(tables: Sequence[ComparedTable]) -> ComparedTable:
    """One table of all tables with the columns of the first; its first column is their title."""
    heads = [column.head for column in tables[0].columns]
    same = [table for table in tables if [column.head for column in table.columns] == heads]
    titles = ComparedColumn(
        "table", tuple(table.title for table in same for _ in table.columns[0].cells)
    )
    joined = zip(*(table.columns for table in same), strict=True)
    return ComparedTable(
        (
            titles,
            *(
                replace(own[0], cells=tuple(cell for one in own for cell in one.cells))
                for own in joined
            ),
        )
    )


def write_tables(path: Path) -> None:
    """Write ``compare.csv``, ``compare.md``, ``paired.csv`` and ``runs.csv`` of the study at
    ``path``, and ``published.md``.

    They depend on its runs alone, never on when or in which order these were made.
    """
    study = read_index(path)
    lines = read_lines([path])
    comparison = Comparison(lines.begun())
    together = comparison.side_by_side()
    differences = comparison.differences()
    write_text(path / "compare.csv", to_csv(together))
    write_text(path / "runs.csv", to_csv(comparison.one_by_one()))
    write_text(path / "paired.csv", to_csv(comparison.paired(study.seeds)))
    write_text(
        path / "compare.md", f"{to_markdown(together, study.name)}\n{to_markdown(differences)}"
    )
    if (path / PUBLISHED).is_file():
        published = Published.read(path / PUBLISHED)
        about = html.escape(published.about.strip(), quote=False)
        tables = map(to_markdown, as_printed(beside_published(lines.lines, published)))
        write_text(
            path / "published.md",
            "\n".join([f"# {for_markdown(study.name)}\n", f"{about}\n", f"{LEGEND}\n", *tables]),
        )


def to_csv(table: ComparedTable) -> str:
    """One line a row, in full precision; an estimate takes three columns.

    No cell is a formula for a spreadsheet.
    """
    out = io.StringIO()
    rows = zip(*((column.head, *column.cells) for column in in_full(table)), strict=True)
    csv.writer(out, lineterminator="\n").writerows(map(_plain, row) for row in rows)
    return out.getvalue()


def _plain(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.12g}"
    return for_csv(cell) if isinstance(cell, str) else str(cell)


def in_full(table: ComparedTable) -> list[ComparedColumn]:
    """All columns, those of estimates as three: mean, low, high."""
    found = []
    for column in table.columns:
        whole = [
            (cell.mean, *cell.edges) if isinstance(cell, Estimate) else (cell, None, None)
            for cell in column.cells
        ]
        endings = ("", " low", " high") if column.over_seeds else ("",)
        parts = zip(endings, zip(*whole, strict=True) if whole else [()] * 3, strict=False)
        found += [ComparedColumn(column.head + ending, cells) for ending, cells in parts]
    return found


def to_markdown(table: ComparedTable, title: str = "") -> str:
    """A table for each topic, below the ``title`` of the page, without empty columns."""
    lines = [f"# {_escaped(title)}", ""] if title else []
    lines += [f"## {_escaped(table.title)}", ""] if table.title else []
    for topic, columns in by_topic(table):
        lines += [f"## {_escaped(topic.capitalize())}", ""] if topic else []
        cells = [[_marked(cell, column) for cell in column.cells] for column in columns]
        heads = [[_escaped(column.head), "---" if column.is_text else "---:"] for column in columns]
        rows = zip(*(head + own for head, own in zip(heads, cells, strict=True)), strict=True)
        lines += [*("| " + " | ".join(row) + " |" for row in rows), ""]
    return (
        "\n".join([*lines, *(f"{for_markdown(note)}\n" for note in table.notes)]).rstrip("\n")
        + "\n"
    )


def _escaped(text: str) -> str:
    return for_markdown(clean(text))


def _marked(cell: Cell, column: ComparedColumn) -> str:
    if not isinstance(cell, Beside):
        return _escaped(shown(cell, column))
    mean = cell.ours.mean
    half = cell.ours.half
    ours = (
        " +- ".join(_as_fine_as_known((mean, half), half, column)) if half else shown(mean, column)
    )
    said = "" if cell.published is None else f" *({shown(cell.published, column)})*"
    return (f"**{ours}**" if cell.within is False else ours) + said


def to_terminal(table: ComparedTable, width: int) -> "list[RenderableType]":
    """Renderables of rich: a table for each topic, or a list for each row where ``width`` is too
    narrow; then notes.
    """
    parts: list[RenderableType] = [Text(clean(table.title), style="bold")] if table.title else []
    for topic, columns in by_topic(table):
        cells = [
            [clean(column.head), *(shown(cell, column) for cell in column.cells)]
            for column in columns
        ]
        if sum(max(map(len, " ".join(own).split()), default=0) + 3 for own in cells) + 1 > width:
            parts += [Text(topic, style="bold")] if topic else []
            heads, *rows = zip(*cells, strict=True)
            for row in rows:
                parts.append(
                    Text(
                        "".join(
                            f"{head}: {cell}\n"
                            for head, cell in zip(heads, row, strict=True)
                            if cell
                        )
                    )
                )
            continue
        drawn = RichTable(
            title=topic or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
        )
        for (head, *_), column in zip(cells, columns, strict=True):
            drawn.add_column(
                Text(head), justify="left" if column.is_text else "right", overflow="fold"
            )
        best = [column.best_cells for column in columns]
        for number, row in enumerate(zip(*(own[1:] for own in cells), strict=True)):
            drawn.add_row(
                *(
                    Text(cell, style="bold" if number in of else "")
                    for cell, of in zip(row, best, strict=True)
                )
            )
        parts.append(drawn)
    return [*parts, *(Text(note) for note in table.notes)]


def shown(cell: Cell, column: ComparedColumn) -> str:
    """A cell of a column for people: empty where there is nothing."""
    if cell is None:
        return ""
    if isinstance(cell, Estimate) and cell.half:
        return "{} ({} to {})".format(
            *_as_fine_as_known((cell.mean, cell.low, cell.high), cell.half, column)
        )
    if isinstance(cell, Estimate):
        return shown(cell.mean, column)
    if isinstance(cell, str):
        return clean(cell)
    assert not isinstance(cell, Beside), "which Markdown alone has"
    sign = "+" if column.signed and cell > 0 else ""
    if isinstance(cell, int):
        return f"{sign}{cell}"
    if column.unit == "bytes":
        letter, factor = _scale(abs(cell))
        return f"{sign}{cell / factor:.4g}{letter}"
    return sign + (f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.4g}")


def _as_fine_as_known(
    values: Sequence[float], half: float, column: ComparedColumn
) -> Iterator[str]:
    """A mean and the ends of its interval, to two digits of half its width, in the unit of the
    mean.
    """
    letter, factor = _scale(max(abs(values[0]), half)) if column.unit == "bytes" else ("", 1.0)
    finest = math.floor(math.log10(abs(values[0]) / factor or 1.0)) - _MOST_DIGITS + 1
    digits = -max(finest, math.floor(math.log10(half / factor)) - 1)
    for value in values:
        rounded = round(value / factor, digits) + 0.0  # no -0
        sign = "+" if column.signed and rounded > 0 else ""
        yield f"{sign}{rounded:,.{max(0, digits)}f}{letter}"


def _scale(size: float) -> tuple[str, float]:
    return next((scale for scale in _SCALES if size >= scale[1]), _SCALES[-1])


def by_topic(table: ComparedTable) -> Iterator[tuple[str, list[ComparedColumn]]]:
    """Each topic with the columns that identify the row, then its own columns that are not
    empty.
    """
    who = [column for column in table.columns if not column.topic]
    topics = dict.fromkeys(column.topic for column in table.columns if column.topic)
    if who and not topics:
        yield "", who
    for topic in topics:
        there = [
            one
            for one in table.columns
            if one.topic == topic and any(cell is not None for cell in one.cells)
        ]
        if there:
            yield topic, [*who, *there]
