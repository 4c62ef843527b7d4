"""The figures of one run, read off its folder. What a run does not have is None, never 0."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedsim.compare.work import read_work
from fedsim.errors import RunFolderError
from fedsim.records import folder as files
from fedsim.records.fairness import jain_index, worst_decile
from fedsim.records.ledger import Preset, total
from fedsim.records.reading import RunFolder
from fedsim.records.targets import until

Topic = Literal["accuracy", "cost", "to target", "wasted", "fairness and groups"]

Best = Literal["least", "most"] | None

Values = dict[str, float | int | None]


@dataclass(frozen=True)
class Measure:
    """A figure that every run may have.

    Attributes:
        name: what it is; different for each.
        unit: what it is counted in; empty for a plain count.
        topic: beside which others it is shown.
        is_cost: whether ratios of it mean something: how many times as long, or as much. The least is the best.
        more_is_better: whether the most is the best.
    """

    name: str
    unit: str
    topic: Topic
    is_cost: bool = False
    more_is_better: bool = False

    @property
    def most(self) -> float:
        """What it can be at most; at least it is 0."""
        return 1.0 if self.unit == "0-1" else math.inf

    @property
    def best(self) -> Best:
        """Which of several is the best: the least of costs and waste, the most of accuracies; else there is none."""
        return "most" if self.more_is_better else "least" if self.is_cost or self.topic == "wasted" else None

    @property
    def head(self) -> str:
        """The head of its column."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


ROUNDS = Measure("rounds", "", "accuracy")
FINAL = Measure("final accuracy", "0-1", "accuracy", more_is_better=True)
BEST = Measure("best accuracy", "0-1", "accuracy", more_is_better=True)
WORST = Measure("worst-decile accuracy", "0-1", "accuracy", more_is_better=True)
FINE_TUNED = Measure("fine-tuned accuracy", "0-1", "accuracy", more_is_better=True)
TIME = Measure("simulated time", "s", "cost", is_cost=True)
TRAFFIC = Measure("traffic", "bytes", "cost", is_cost=True)
COMPUTE = Measure("compute", "device-s", "cost", is_cost=True)
ENERGY = Measure("energy", "J", "cost", is_cost=True)
CARBON = Measure("carbon", "g", "cost", is_cost=True)
WASTED_TRAFFIC = Measure("wasted traffic", "bytes", "wasted")
WASTED_COMPUTE = Measure("wasted compute", "device-s", "wasted")
WASTED_ENERGY = Measure("wasted energy", "J", "wasted")
DROPPED = Measure("dropped updates", "0-1", "wasted")
JAIN = Measure("Jain's index of selections", "0-1", "fairness and groups", more_is_better=True)
MOVES = Measure("migrations", "", "fairness and groups")
PURITY = Measure("mean purity of groups", "0-1", "fairness and groups", more_is_better=True)
LAST_PURITY = Measure("last purity of groups", "0-1", "fairness and groups", more_is_better=True)


def measures(targets: Sequence[float] = ()) -> list[Measure]:
    """All measures, in the order of their columns; five more for each target accuracy."""
    return [
        *(ROUNDS, FINAL, BEST, WORST, FINE_TUNED, TIME, TRAFFIC, COMPUTE, ENERGY, CARBON),
        *(measure for target in targets for measure in _of_target(target)),
        *(WASTED_TRAFFIC, WASTED_COMPUTE, WASTED_ENERGY, DROPPED, JAIN, MOVES, PURITY, LAST_PURITY),
    ]


def cost_of(what: str, target: float) -> Measure:
    """The measure of the ``rounds``, ``time``, ``traffic``, ``energy`` or ``carbon`` to a target accuracy."""
    return next(one for one in _of_target(target) if one.name.startswith(f"{what} to "))


def _of_target(target: float) -> tuple[Measure, ...]:
    return (
        Measure(f"rounds to target {target:g}", "", "to target", is_cost=True),
        Measure(f"time to target {target:g}", "s", "to target", is_cost=True),
        Measure(f"traffic to target {target:g}", "bytes", "to target", is_cost=True),
        Measure(f"energy to target {target:g}", "J", "to target", is_cost=True),
        Measure(f"carbon to target {target:g}", "g", "to target", is_cost=True),
    )


def measure(run: RunFolder, targets: Sequence[float] = (), ledger: Preset = "strict") -> Values:
    """The figures of a run, by their measures' names.

    Accuracy, and rounds, are all that a run on pooled data has (the reference line of centralised training): its times and
    bytes are those of no federation.

    Args:
        run: the folder.
        targets: accuracies (0..1).
        ledger: ``strict`` counts every byte that moved, ``paper`` as the papers count; the bytes until a target are strict.

    Raises:
        RunFolderError: the folder is damaged.
    """
    try:
        values = _of_run(run, ledger)
        for target in targets:
            values |= costs_until(run, target)
    except (AttributeError, KeyError, TypeError) as error:  # a summary that is JSON, but not what a run writes
        raise RunFolderError(f"{files.SUMMARY} of {str(run.path)!r} is damaged: {type(error).__name__}: {error}") from None
    if run.scenario.get("data", {}).get("pooled_from") is not None:
        values |= {one.name: None for one in measures(targets) if not one.name.startswith(("rounds", FINAL.name, BEST.name))}
    return {name: None if value is None or math.isnan(value) else value for name, value in values.items()}


def _of_run(run: RunFolder, ledger: Preset) -> Values:
    summary, moved, energy = run.summary, run.summary["bytes"], run.summary.get("energy", {})
    work, selected = read_work(run), sum(row["selected"] or 0 for row in run.rounds)
    accuracies = [row["accuracy"] for row in run.devices if row["accuracy"] is not None]
    purities = [row["purity"] for row in run.rounds if row["purity"] is not None]
    return {
        ROUNDS.name: summary["rounds"],
        FINAL.name: summary["accuracy"]["final"],
        BEST.name: summary["accuracy"]["best"],
        WORST.name: worst_decile(accuracies),
        FINE_TUNED.name: summary["accuracy"].get("fine_tuned"),
        TIME.name: summary["simulated_s"],
        TRAFFIC.name: float(moved["paper"] if ledger == "paper" else total(moved)),
        COMPUTE.name: work.seconds,
        ENERGY.name: energy.get("joules"),
        CARBON.name: energy.get("grams"),
        WASTED_TRAFFIC.name: moved["wasted"],
        WASTED_COMPUTE.name: work.wasted,
        WASTED_ENERGY.name: energy.get("wasted"),
        DROPPED.name: 1 - sum(row["valid"] or 0 for row in run.rounds) / selected if selected else None,
        JAIN.name: jain_index((row["selected"] for row in run.devices), run.population),
        MOVES.name: work.moves,
        PURITY.name: math.fsum(purities) / len(purities) if purities else None,
        LAST_PURITY.name: purities[-1] if purities else None,
    }


def costs_until(run: RunFolder, target: float) -> Values:
    """What it took until a test first showed the target accuracy, by the measures' names; Nones where none did."""
    return dict(zip((one.name for one in _of_target(target)), until(run.rounds, target).values(), strict=True))
