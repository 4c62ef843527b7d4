"""Comparisons as text: for terminals, spreadsheets and Markdown, and in the folders of studies."""

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
from fedsim.lab.compare.columns import (
    Absent,
    Cell,
    ComparedColumn,
    ComparedTable,
    PublishedComparison,
)
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.paired import Estimate
from fedsim.lab.compare.published import LEGEND, Published, as_printed, beside_published
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import PUBLISHED, read_index
from fedsim.records.folder import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedsim.lab.terminal import Console

Form = Literal["csv", "markdown"]

_WIDE = 10_000  # width (characters) of output that is no terminal, so that no line is wrapped
_PREFIXES = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_MOST_DIGITS = 6  # upper bound of the digits of a mean


def print_short(console: "Console", comparison: Comparison) -> None:
    """Print the results of a comparison: sentences that name the best variants, and short tables.

    There are sentences on each world, a group of variants that share devices, network and data. The
    tables have the most important costs and accuracies.

    Args:
        console: the console to print to.
        comparison: the comparison.
    """
    for answer in comparison.answers():
        console.print(*answer.words, *explore.in_words(answer), sep="\n")
        heat_map = explore.heat_map(answer)
        if heat_map is not None:
            print_tables(console, [heat_map.table()])
    print_tables(console, [comparison.in_short()])


def compare_published(path: str | Path, figures: str | Path) -> list[ComparedTable]:
    """Return tables with the published figures of a paper and the figures of a study.

    Args:
        path: folder of the study.
        figures: path of the file of published figures.

    Raises:
        ScenarioError: the file is wrong, or does not fit the study.
        RunFolderError: a run lacks a column, or a figure would be divided by 0.
    """
    return beside_published(read_lines([path]).lines, Published.read(figures))


def print_tables(console: "Console", tables: Sequence[ComparedTable]) -> None:
    """Print tables for people. If the console is no terminal, lines are not wrapped.

    Args:
        console: the console to print to.
        tables: the tables.
    """
    if not console.is_terminal:
        console.width = _WIDE
    for table in tables:
        console.print(*to_terminal(table, console.width), sep="\n")


def as_text(tables: Sequence[ComparedTable], form: Form) -> str:
    """Format the tables of a comparison, or of published figures, as CSV or Markdown.

    For a comparison, Markdown has all tables, and CSV only the first one. For published figures,
    Markdown has the tables in the form that papers print. CSV has their rows in one table, without
    the table of verdicts on the papers' claims.

    Args:
        tables: tables of ``Comparison.tables``, whose first one has no title, or of
            ``compare_published``, whose first one has a title.
        form: the format.
    """
    is_published = bool(tables and tables[0].title)
    if form == "csv":
        return to_csv(_join_rows(tables) if is_published else tables[0])
    if is_published:
        return "\n".join((f"{LEGEND}\n", *map(to_markdown, as_printed(tables))))
    return "\n".join(map(to_markdown, tables))


def _join_rows(tables: Sequence[ComparedTable]) -> ComparedTable:
    """Put the rows of several tables with the same columns into one table.

    A new first column has the title of the table from which a row comes. A table whose columns
    differ from the first table's is left out.
    """
    heads = [column.head for column in tables[0].columns]
    titles: list[Cell] = []
    cells: list[list[Cell]] = [[] for _ in heads]
    for table in tables:
        if [column.head for column in table.columns] != heads:
            continue
        titles += [table.title] * len(table.columns[0].cells)
        for joined, column in zip(cells, table.columns, strict=True):
            joined += column.cells
    columns = [ComparedColumn("table", tuple(titles))]
    for column, joined in zip(tables[0].columns, cells, strict=True):
        columns.append(replace(column, cells=tuple(joined)))
    return ComparedTable(tuple(columns))


def write_tables(path: Path) -> None:
    """Write the tables of the study at ``path`` into its folder.

    ``compare.csv`` and ``compare.md`` have the means of all variants side by side, ``paired.csv``
    their differences to the baseline by seed, and ``runs.csv`` the single runs. If the folder has
    published figures of a paper, ``published.md`` compares these with the study. The tables do not
    depend on when, or in which order, the study's runs were made.

    Args:
        path: folder of the study.
    """
    study = read_index(path)
    lines = read_lines([path])
    comparison = Comparison(lines.begun())
    side_by_side = comparison.side_by_side()
    differences = to_markdown(comparison.differences())
    write_text(path / "compare.csv", to_csv(side_by_side))
    write_text(path / "runs.csv", to_csv(comparison.one_by_one()))
    write_text(path / "paired.csv", to_csv(comparison.paired(study.seeds)))
    write_text(path / "compare.md", f"{to_markdown(side_by_side, study.name)}\n{differences}")
    if (path / PUBLISHED).is_file():
        published = Published.read(path / PUBLISHED)
        about = html.escape(published.about.strip(), quote=False)
        parts = [f"# {for_markdown(study.name)}\n", f"{about}\n", f"{LEGEND}\n"]
        parts += map(to_markdown, as_printed(beside_published(lines.lines, published)))
        write_text(path / "published.md", "\n".join(parts))


def to_csv(table: ComparedTable) -> str:
    """Format a table as CSV in full precision; a mean with its interval becomes three columns.

    Texts are escaped so that no spreadsheet reads a text as a formula.
    """
    file = io.StringIO()
    rows = zip(*((column.head, *column.cells) for column in plain_columns(table)), strict=True)
    csv.writer(file, lineterminator="\n").writerows(map(_format_for_csv, row) for row in rows)
    return file.getvalue()


def _format_for_csv(cell: Cell) -> str:
    if cell is None or isinstance(cell, Absent):
        return ""
    if isinstance(cell, float):
        return f"{cell:.12g}"
    if isinstance(cell, str):
        return for_csv(cell)
    return str(cell)


def plain_columns(table: ComparedTable) -> list[ComparedColumn]:
    """Return the columns of a table for CSV, whose cells are numbers, texts or None.

    A column of means with intervals becomes three columns: mean, low end and high end.
    """
    columns = []
    for column in table.columns:
        means: list[Cell] = []
        lows: list[Cell] = []
        highs: list[Cell] = []
        for cell in column.cells:
            if isinstance(cell, Estimate):
                low, high = cell.edges
                means.append(cell.mean)
                lows.append(low)
                highs.append(high)
            else:
                means.append(None if isinstance(cell, Absent) else cell)
                lows.append(None)
                highs.append(None)
        columns.append(ComparedColumn(column.head, tuple(means)))
        if column.over_seeds:
            columns.append(ComparedColumn(f"{column.head} low", tuple(lows)))
            columns.append(ComparedColumn(f"{column.head} high", tuple(highs)))
    return columns


def to_markdown(table: ComparedTable, title: str = "") -> str:
    """Format a table as Markdown, split into one table per topic, without empty columns.

    Args:
        table: the table.
        title: title of the page, above the tables; empty for no title.
    """
    lines = []
    if title:
        lines += [f"# {_escape(title)}", ""]
    if table.title:
        lines += [f"## {_escape(table.title)}", ""]
    for topic, columns in by_topic(table):
        if topic:
            lines += [f"## {_escape(topic.capitalize())}", ""]
        column_texts = []
        for column in columns:
            alignment = "---" if column.is_text else "---:"
            cells = [_format_for_markdown(cell, column) for cell in column.cells]
            column_texts.append([_escape(column.head), alignment, *cells])
        for row in zip(*column_texts, strict=True):
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    for note in table.notes:
        lines.append(f"{for_markdown(note)}\n")
    return "\n".join(lines).rstrip("\n") + "\n"


def _escape(text: str) -> str:
    return for_markdown(clean(text))


def _format_for_markdown(cell: Cell, column: ComparedColumn) -> str:
    """Format a cell of a table as Markdown.

    If the cell compares a study with a paper, the study's figure is followed by the published one
    in brackets. It is bold if the two differ by more than the tolerance.
    """
    if not isinstance(cell, PublishedComparison):
        return _escape(format_cell(cell, column))
    text = format_cell(cell.ours.mean, column)
    half = cell.ours.half
    if half:
        text = " +- ".join(_format_to_precision((cell.ours.mean, half), half, column))
    if cell.within is False:
        text = f"**{text}**"
    if cell.published is not None:
        text += f" *({format_cell(cell.published, column)})*"
    return text


def to_terminal(table: ComparedTable, width: int) -> "list[RenderableType]":
    """Format a table for a terminal, as objects that rich can print.

    Each topic of the table, such as "cost", becomes a table of its own, of at most ``width``
    characters. If a topic needs more, each of its rows becomes a list of lines ``head: cell``. The
    notes of the table follow at the end.

    Args:
        table: the table.
        width: width of the terminal (characters).
    """
    parts: list[RenderableType] = []
    if table.title:
        parts.append(Text(clean(table.title), style="bold"))
    for topic, columns in by_topic(table):
        texts = []
        for column in columns:
            cells = [format_cell(cell, column) for cell in column.cells]
            texts.append([clean(column.head), *cells])
        # each column has a border and two spaces, and the last one a further border
        least_width = sum(_least_width(cells) + 3 for cells in texts) + 1
        if least_width <= width:
            parts.append(_draw_topic(topic, columns, texts))
            continue
        if topic:
            parts.append(Text(topic, style="bold"))
        heads, *rows = zip(*texts, strict=True)
        for row in rows:
            lines = [f"{head}: {cell}\n" for head, cell in zip(heads, row, strict=True) if cell]
            parts.append(Text("".join(lines)))
    return [*parts, *(Text(note) for note in table.notes)]


def _least_width(cells: Sequence[str]) -> int:
    """Return the least width (characters) of a column of texts in which no word is broken."""
    return max(map(len, " ".join(cells).split()), default=0)


def _draw_topic(topic: str, columns: Sequence[ComparedColumn], texts: list[list[str]]) -> RichTable:
    """Return one table for terminals, with the best numbers of each column in bold.

    Args:
        topic: title of the table.
        columns: columns of the table.
        texts: head and formatted cells of each column.
    """
    drawn = RichTable(
        title=topic or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    styled_columns = []
    for (head, *cells), column in zip(texts, columns, strict=True):
        justify: Literal["left", "right"] = "left" if column.is_text else "right"
        drawn.add_column(Text(head), justify=justify, overflow="fold")
        best_rows = column.best_cells
        styled_cells = []
        for row_index, cell in enumerate(cells):
            style = "bold" if row_index in best_rows else ""
            styled_cells.append(Text(cell, style=style))
        styled_columns.append(styled_cells)
    for row in zip(*styled_columns, strict=True):
        drawn.add_row(*row)
    return drawn


def format_cell(cell: Cell, column: ComparedColumn) -> str:
    """Format a cell as text for people.

    None becomes an empty text, and an ``Absent`` cell the reason why its value is missing.

    Args:
        cell: the value of the cell.
        column: the column, which has the unit.
    """
    if cell is None:
        return ""
    if isinstance(cell, Absent):
        return cell.reason
    if isinstance(cell, Estimate):
        if not cell.half:
            return format_cell(cell.mean, column)
        numbers = (cell.mean, cell.low, cell.high)
        mean, low, high = _format_to_precision(numbers, cell.half, column)
        return f"{mean} ({low} to {high})"
    if isinstance(cell, str):
        return clean(cell)
    assert not isinstance(cell, PublishedComparison), (
        "only tables in Markdown have published figures"
    )
    sign = "+" if column.signed and cell > 0 else ""
    if isinstance(cell, int):
        return f"{sign}{cell}"
    if column.unit == "bytes":
        letter, factor = _find_prefix(abs(cell))
        return f"{sign}{cell / factor:.4g}{letter}"
    if abs(cell) >= 1000:
        return f"{sign}{cell:,.0f}"
    return f"{sign}{cell:.4g}"


def _format_to_precision(
    values: Sequence[float], half: float, column: ComparedColumn
) -> Iterator[str]:
    """Format values with the decimals at which the interval's half width has two digits.

    Args:
        values: a mean, and the ends or the half width of its interval.
        half: half the width of the interval.
        column: column of the values. Bytes have the unit prefix that suits the mean.
    """
    letter = ""
    factor = 1.0
    if column.unit == "bytes":
        letter, factor = _find_prefix(max(abs(values[0]), half))
    # Two exponents of powers of ten: ``finest`` for the last digit of a mean of ``_MOST_DIGITS``
    # digits, ``second_of_half`` for the second digit of the half width. The greater one is the
    # exponent of the last digit shown.
    finest = math.floor(math.log10(abs(values[0]) / factor or 1.0)) - _MOST_DIGITS + 1
    second_of_half = math.floor(math.log10(half / factor)) - 1
    decimals = -max(finest, second_of_half)
    for value in values:
        rounded = round(value / factor, decimals) + 0.0  # + 0.0 turns -0.0 into 0.0
        sign = "+" if column.signed and rounded > 0 else ""
        yield f"{sign}{rounded:,.{max(0, decimals)}f}{letter}"


def _find_prefix(size: float) -> tuple[str, float]:
    for letter, factor in _PREFIXES:
        if size >= factor:
            return letter, factor
    return _PREFIXES[-1]


def by_topic(table: ComparedTable) -> Iterator[tuple[str, list[ComparedColumn]]]:
    """Split a table of a comparison into groups of columns by topic, such as "cost".

    Yields:
        The topic, which is empty for a table without topics, and its columns: columns that identify
        a row, then the non-empty columns of the topic.
    """
    identity = [column for column in table.columns if not column.topic]
    topics: dict[str, list[ComparedColumn]] = {}
    for column in table.columns:
        if column.topic:
            topics.setdefault(column.topic, [])  # a topic stays known if all its columns are empty
            if not column.is_empty:
                topics[column.topic].append(column)
    if identity and not topics:
        yield "", identity
    for topic, columns in topics.items():
        if columns:
            yield topic, [*identity, *columns]
