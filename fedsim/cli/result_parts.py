"""Parts of what ``--json`` prints: the base of all results, tables, answers and costs."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedsim.lab.compare.paired import Estimate
from fedsim.lab.compare.table import Beside, Cell, ComparedColumn, ComparedTable, Comparison

FORMAT: Literal[1] = 1
"""Version of the objects. It grows if an entry is removed or changes its meaning."""


class ResultEntries(BaseModel):
    """Base of all objects in the output; each field is described by its docstring."""

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class VerbResult(ResultEntries):
    """Result of a verb."""

    format: Literal[1] = FORMAT
    """Version of the object's format."""


class EstimatedCell(ResultEntries):
    """Mean over seeds, with its 95 % interval."""

    mean: float
    low: float | None
    """Lower end of the interval; null if it has none."""
    high: float | None
    """Upper end of the interval; null if it has none."""
    pairs: int
    """Count of seeds."""

    @classmethod
    def of(cls, estimate: Estimate) -> "EstimatedCell":
        low, high = estimate.edges
        return cls(mean=estimate.mean, low=low, high=high, pairs=estimate.pairs)


class PublishedCell(ResultEntries):
    """Figure of a study, with the published figure."""

    study: EstimatedCell
    published: float | None
    within: bool | None
    """Whether both agree; null if the published file does not say how closely they should."""


CellResult = str | int | float | EstimatedCell | PublishedCell | None


class ColumnResult(ResultEntries):
    """Column of a table."""

    name: str
    topic: str
    """Group of the column; empty for columns that identify a row."""
    unit: str
    """Unit of the numbers; empty if they have none."""
    cells: list[CellResult]
    """One cell per row; null if the figure is absent."""

    @classmethod
    def of(cls, column: ComparedColumn) -> "ColumnResult":
        cells = [_cell(cell) for cell in column.cells]
        return cls(name=column.head, topic=column.topic, unit=column.unit, cells=cells)


class ShareCostResult(ResultEntries):
    """Predicted cost of the runs of a shard that are not done, or of a study without shards."""

    runs: int
    """Count of the runs that are not done."""
    untold: int
    """Count of those runs whose cost is unknown, and left out here."""
    real_s: float
    """Real time until the last run has ended (s)."""
    worker_s: float
    """Sum of the real times of all workers (s)."""
    memory_bytes: int
    """Peak memory of all processes together (bytes)."""
    disk_bytes: float
    """Size of the run folders, without checkpoints (bytes)."""


class StudyCostResult(ResultEntries):
    """Predicted cost of a study on this machine."""

    shares: list[ShareCostResult]
    """One entry per shard, in their order; without ``--shard``, one entry for the study."""
    workers: int
    """Count of parallel runs of each shard."""
    tried: int
    """Count of variants whose beginning was tried; others cost in proportion to their work."""
    variants: int
    """Count of variants with runs to do."""
    start_s: float
    """Real time in which a worker starts (s)."""


def _cell(cell: Cell) -> CellResult:
    if isinstance(cell, Estimate):
        return EstimatedCell.of(cell)
    if isinstance(cell, Beside):
        ours = EstimatedCell.of(cell.ours)
        return PublishedCell(study=ours, published=cell.published, within=cell.within)
    return cell


class TableResult(ResultEntries):
    """Table by columns."""

    title: str
    columns: list[ColumnResult]
    notes: list[str]

    @classmethod
    def of(cls, table: ComparedTable) -> "TableResult":
        columns = [ColumnResult.of(column) for column in table.columns]
        return cls(title=table.title, columns=columns, notes=[*table.notes])


def tables_of(tables: Iterable[ComparedTable]) -> list[TableResult]:
    """Return tables of a comparison as results."""
    return [TableResult.of(table) for table in tables]


class AnswerResult(ResultEntries):
    """Answer of a comparison for one world."""

    world: str
    """Name of the world; empty if there is only one."""
    sentences: list[str]
    """The answer in words: the best lines, their costs, and the lines that missed the target."""


def answers_of(comparison: Comparison) -> list[AnswerResult]:
    """Return the answers of a comparison, one per world."""
    return [
        AnswerResult(world=answer.world, sentences=answer.words) for answer in comparison.answers()
    ]
