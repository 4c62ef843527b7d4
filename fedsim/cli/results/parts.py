"""Parts of what ``--json`` prints: the base of all results, tables, answers and costs."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedsim.lab.compare.columns import (
    Absent,
    Cell,
    ComparedColumn,
    ComparedTable,
    PublishedComparison,
)
from fedsim.lab.compare.line_decision import LineDecision
from fedsim.lab.compare.paired import Estimate
from fedsim.lab.compare.table import Comparison

FORMAT: Literal[1] = 1
"""Version of the objects. It grows if an entry is removed or changes its meaning."""


class ResultEntries(BaseModel):
    """Base of all objects that ``--json`` prints.

    The docstring after a field becomes the field's description in the JSON schema.
    """

    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid")


class VerbResult(ResultEntries):
    """Base of the results of commands (verbs), such as ``fedsim run``, that ``--json`` prints.

    Each result is one JSON object. Its entry ``verb`` names the command.
    """

    format: Literal[1] = FORMAT
    """Version of the object's format."""


class EstimatedCell(ResultEntries):
    """Cell of a table with the mean of a measure over seeds, and its 95 % confidence interval."""

    mean: float
    """Mean of the figure over the seeds."""
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
    """Cell of a table with a value that a study measured, and the published value of a paper."""

    study: EstimatedCell
    """Figure of the study."""
    published: float | None
    """Published figure; null if the paper has none."""
    within: bool | None
    """Whether both agree; null if the published file does not say how closely they should."""


CellResult = str | int | float | EstimatedCell | PublishedCell | None


class ColumnResult(ResultEntries):
    """Column of a table in the JSON output: its heading, its unit, and one cell per row."""

    name: str
    """Heading of the column."""
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
    """Predicted time, memory and disk space of the runs that a study still has to do.

    They are the runs of one shard (``--shard``), or without ``--shard`` all runs of the study.
    """

    runs: int
    """Count of the runs that are not done."""
    untold: int
    """Count of those runs whose cost is unknown; it is not included in the costs below."""
    real_s: float
    """Real time until the last run has ended (s)."""
    worker_s: float
    """Sum of the real times of all workers (s)."""
    memory_bytes: int
    """Peak memory of all processes together (bytes)."""
    disk_bytes: float
    """Size of the run folders, without checkpoints (bytes)."""


class StudyCostResult(ResultEntries):
    """Predicted time, memory and disk space of a study on this machine, for each shard.

    ``fedsim study --dry-run`` predicts them from trials of the beginnings of the study's runs.
    """

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
    """Convert a table's cell to the form in which ``--json`` prints it."""
    if isinstance(cell, Estimate):
        return EstimatedCell.of(cell)
    if isinstance(cell, PublishedComparison):
        ours = EstimatedCell.of(cell.ours)
        return PublishedCell(study=ours, published=cell.published, within=cell.within)
    if isinstance(cell, Absent):
        return None
    return cell


class TableResult(ResultEntries):
    """Table in the JSON output: its title, its columns with their cells, and notes."""

    title: str
    """Title of the table; may be empty."""
    columns: list[ColumnResult]
    """Columns of equal length; those that identify a row are first."""
    notes: list[str]
    """Sentences below the table."""

    @classmethod
    def of(cls, table: ComparedTable) -> "TableResult":
        columns = [ColumnResult.of(column) for column in table.columns]
        return cls(title=table.title, columns=columns, notes=[*table.notes])


def tables_of(tables: Iterable[ComparedTable]) -> list[TableResult]:
    """Convert tables of a comparison to the form in which ``--json`` prints them."""
    return [TableResult.of(table) for table in tables]


class LossResult(ResultEntries):
    """Variant that lost and was dropped: ``fedsim study --until-sure`` adds no more seeds to it.

    Another variant is surely better.
    """

    line: str
    """The line that was dropped."""
    seeds: int
    """Count of seeds after which it was dropped."""
    better: str
    """The line that is better."""


class DecisionResult(ResultEntries):
    """Decision, made or still open, of ``fedsim study --until-sure`` on the best line.

    A line is a variant at one point of the study's grid. Seeds are added until one line is surely
    the best in its world, which is a set of devices, network and data.
    """

    status: Literal["best", "tie", "budget", "open"]
    """``best``: one line is left. ``tie``: the leader is the best, or worse by no more than
    ``within``. ``budget``: the budget is spent. ``open``: more seeds are needed."""
    measure: str
    """Name of the cost or metric by which lines are compared."""
    leader: str | None
    """The best line; null unless the status is ``best`` or ``tie``."""
    contenders: list[str]
    """Lines that may be the best; the leader is one of them."""
    losses: list[LossResult]
    """Lines that are worse, in the order in which they were dropped."""
    missed: list[str]
    """Lines without a value of this measure in some run, such as lines that missed the target."""
    error: float
    """Greatest probability that the decision is wrong."""
    within: float
    """Indifference zone: a share of a cost, or a difference of accuracies or metrics."""
    seeds: int
    """Greatest count of seeds of a contender."""
    runs: int
    """Count of the finished runs of the compared lines."""
    real_s: float
    """Real time of these runs together (s)."""
    even_runs: int
    """Count of runs if all lines had the seeds of the line with the most."""

    @classmethod
    def of(cls, line_decision: LineDecision) -> "DecisionResult":
        names = line_decision.names
        decision = line_decision.outcome
        losses = []
        for loss in decision.losses:
            better = names[loss.better]
            losses.append(LossResult(line=names[loss.line_index], seeds=loss.seeds, better=better))
        return cls(
            status=line_decision.status,
            measure=line_decision.measure.name,
            leader=None if decision.leader is None else names[decision.leader],
            contenders=[names[line_index] for line_index in decision.contenders],
            losses=losses,
            missed=[names[line_index] for line_index in decision.missed],
            error=line_decision.rule.error,
            within=line_decision.tolerance,
            seeds=decision.seeds,
            runs=line_decision.runs,
            real_s=line_decision.real_s,
            even_runs=line_decision.plan,
        )


class AnswerResult(ResultEntries):
    """Best lines of a comparison in one world, as sentences for people.

    A line is a variant of a study or a run folder; a world is a set of devices, network and data.
    """

    world: str
    """Name of the world; empty if there is only one."""
    sentences: list[str]
    """The answer in words: the best lines, their costs, and the lines that missed the target."""
    decision: DecisionResult | None = None
    """The decision of ``--until-sure``; null without it."""


def answers_of(comparison: Comparison) -> list[AnswerResult]:
    """Convert the answers of a comparison, one per world, to the form that ``--json`` prints."""
    results = []
    for answer in comparison.answers():
        line_decision = answer.rankings[0].decision if answer.rankings else None
        decision = None if line_decision is None else DecisionResult.of(line_decision)
        result = AnswerResult(world=answer.world, sentences=answer.words, decision=decision)
        results.append(result)
    return results
