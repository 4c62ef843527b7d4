"""What a study states: worlds, rows, measures, published figures, claims.

world = World("mnist", HERE / "mnist.toml")
best = Measure("best accuracy %", best_accuracy, tolerance=1.5)
table = Table(
    "Table 1: no shift", world, (best,),
    rows=(Row("FedAvg", "fedavg", (), {"best accuracy %": 89.4}), Row("Ours", "ours", ("strategy.kind=ours",))),
    claims=(Claim("ours is better than FedAvg", "ours", "fedavg"),),
)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Reading = Callable[[Path], float]
"""A figure of a run, read from its folder."""


@dataclass(frozen=True)
class World:
    """What the rows of a table have in common. Tables of one world share runs.

    Attributes:
        name: of its run folders; equal names mean equal worlds.
        base: the scenario file.
        changes: ``key.path=value`` texts for all its runs.
    """

    name: str
    base: Path
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measure:
    """A column.

    Attributes:
        name: with its unit; rows name their published figures by it.
        read: the figure of one run.
        tolerance: how far from the published figure the mean over seeds may be, in the measure's unit; None: not judged.
        relative_to: label of the row by whose figure each row's is divided, seed by seed.
        minus: label of the row whose figure is taken off each row's, seed by seed.
        digits: shown after the point.
    """

    name: str
    read: Reading
    tolerance: float | None = None
    relative_to: str | None = None
    minus: str | None = None
    digits: int = 2


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        title: as the paper calls it.
        label: names its runs within the world; equal labels mean equal changes.
        changes: ``key.path=value`` texts.
        published: measure -> figure; a measure that is missing was not published, or not quoted.
        tolerance: instead of the measures' own.
    """

    title: str
    label: str
    changes: tuple[str, ...] = ()
    published: Mapping[str, float] = field(default_factory=dict)
    tolerance: float | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper of the kind "A is more than B", in a measure of the table.

    Attributes:
        text: the sentence.
        above, below: labels of two rows.
        measure: its name; the table's first if None.
        by: A is more than B by at least so much (in the measure's unit).
    """

    text: str
    above: str
    below: str
    measure: str | None = None
    by: float = 0.0


@dataclass(frozen=True)
class Table:
    """A published table, or a figure read as one.

    Attributes:
        title: where it stands in the paper, and what it is of.
        world: what its rows have in common.
        measures: at least one.
        rows: in the paper's order.
        claims: about its rows.
        note: what is not as published, in a sentence or two of Markdown.
    """

    title: str
    world: World
    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    note: str = ""

    def row(self, label: str) -> Row:
        """The row of a label."""
        return next(row for row in self.rows if row.label == label)

    def measure(self, name: str | None) -> Measure:
        """The measure of a name; the first for None."""
        return self.measures[0] if name is None else next(measure for measure in self.measures if measure.name == name)


@dataclass(frozen=True)
class Study:
    """Several tables of one paper.

    Attributes:
        title: the report's heading.
        about: what the reader has to know, in Markdown.
        sizes: name -> the tables of that size, by name; the first is the default.
        out: where runs go if ``--out`` does not say.
        command: how to call it, as people would type it.
        seeds: as many as run if ``--seeds`` does not say.
    """

    title: str
    about: str
    sizes: Mapping[str, Mapping[str, Table]]
    out: Path
    command: str
    seeds: int = 3
