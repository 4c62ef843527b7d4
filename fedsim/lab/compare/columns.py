"""Columns and tables of a comparison, and the cells that they may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from fedsim.lab.compare.measures import Preferred
from fedsim.lab.compare.paired import Estimate

NOISE = 1e-9
"""Relative difference up to which numbers count as equal.

Sums of floats have rounding errors, and simulated times are rounded to whole ticks.
"""


@dataclass(frozen=True)
class PublishedComparison:
    """Cell of a table with a value that a study measured and the published value of a paper.

    Attributes:
        ours: value of the study, as a mean over seeds with its interval.
        published: the published value, if the paper has one.
        within: whether the values differ by the tolerance at most; None if they are not judged.
    """

    ours: Estimate
    published: float | None = None
    within: bool | None = None


@dataclass(frozen=True)
class Absent:
    """Cell of a table without a value. A CSV has an empty cell instead.

    Attributes:
        reason: why the value is missing, as text for people.
    """

    reason: str


Cell = str | float | int | Estimate | PublishedComparison | Absent | None


@dataclass(frozen=True)
class ComparedColumn:
    """Column of a table of a comparison, with one cell per row and directions for showing it.

    Attributes:
        head: heading of the column.
        cells: the cells from the first row to the last; None for an empty cell.
        topic: title of the smaller table, such as "cost", that shows the column if a table is split
            by topics; empty for columns that identify a row.
        over_seeds: whether cells may be means over seeds with their intervals (``Estimate``). A CSV
            has three columns for such a column.
        unit: unit of the numbers; empty if they have none.
        signed: whether the cells are differences, shown with their sign.
        best: ``least`` or ``most`` if the least or the greatest number is the best one; None if
            neither is.
    """

    head: str
    cells: tuple[Cell, ...]
    topic: str = ""
    over_seeds: bool = False
    unit: str = ""
    signed: bool = False
    best: Preferred = None

    @property
    def is_text(self) -> bool:
        return any(isinstance(cell, str) for cell in self.cells)

    @property
    def is_empty(self) -> bool:
        """Whether no cell of the column has a value; cells with only a reason have none."""
        return all(cell is None or isinstance(cell, Absent) for cell in self.cells)

    @property
    def best_cells(self) -> set[int]:
        """Row indices of the best numbers of the column, to emphasise them.

        A cell with an estimate counts by its mean. The result is empty if neither small nor great
        numbers are better (``best`` is None), if all numbers are equal, or if the interval of the
        best number includes another number.
        """
        means = self._means()
        if self.best is None or not means:
            return set()
        best_mean = max(means.values()) if self.best == "most" else min(means.values())
        best_rows = {row for row, mean in means.items() if isclose(mean, best_mean, rel_tol=NOISE)}
        if len(best_rows) == len(means):
            return set()
        other_means = [mean for row, mean in means.items() if row not in best_rows]
        for row in best_rows:
            cell = self.cells[row]
            if isinstance(cell, Estimate) and any(
                cell.low <= mean <= cell.high for mean in other_means
            ):
                return set()
        return best_rows

    def _means(self) -> dict[int, float]:
        """Return a dict from row index to the number in the cell, or to the mean of an estimate."""
        means: dict[int, float] = {}
        for row, cell in enumerate(self.cells):
            if isinstance(cell, Estimate):
                means[row] = float(cell.mean)
            elif isinstance(cell, float | int):
                means[row] = float(cell)
        return means


@dataclass(frozen=True)
class ComparedTable:
    """Table of a comparison, which is then formatted as CSV, Markdown or text.

    Attributes:
        columns: columns of equal length. Columns that name a row, such as the variant, are first.
        notes: sentences below the table.
        title: title of the table; may be empty.
    """

    columns: tuple[ComparedColumn, ...]
    notes: tuple[str, ...] = ()
    title: str = ""

    @classmethod
    def of(cls, heads: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> "ComparedTable":
        """Make a table, without notes and title, from its rows.

        Args:
            heads: headings of the columns, in order.
            rows: for each row, a dict from heading to cell. A missing cell is empty; a heading
                that is not in ``heads`` is ignored.
        """
        columns = []
        for head in heads:
            columns.append(ComparedColumn(head, tuple(row.get(head) for row in rows)))
        return cls(tuple(columns))
