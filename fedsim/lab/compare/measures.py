"""The figures of one run, read off its folder, and the goals that comparisons rank by.

A figure that is not there is None.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from fedsim.common.errors import RunFolderError, ScenarioError, nearest
from fedsim.common.files import parse_json
from fedsim.common.spec import Spec
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.common.units import (
    Bytes,
    Joules,
    PositiveSeconds,
    show_bytes,
    show_joules,
    show_seconds,
)
from fedsim.common.wording import explain
from fedsim.lab.reading.fairness import jain_index, worst_decile
from fedsim.lab.reading.targets import Target, until, within
from fedsim.records import folder as files
from fedsim.records.ledger import LedgerPreset, total
from fedsim.records.reading import RunFolder
from fedsim.world.meters.energy import PHASES
from fedsim.world.meters.energy import TABLE as ENERGY

Preferred = Literal["least", "most"] | None
Values = dict[str, float | int | None]


class CostWords(NamedTuple):
    """Words for a cost: a line takes the least time, or 1.5 times as long."""

    verb: str
    what: str
    as_much: str
    show: Callable[[float], str]


_WORDS = {
    "s": CostWords("takes", "time", "as long", show_seconds),
    "bytes": CostWords("moves", "bytes", "as much", show_bytes),
    "J": CostWords("draws", "energy", "as much", show_joules),
    "g": CostWords("emits", "CO2", "as much", "{:,.3g} g".format),
    "": CostWords("costs", "money", "as much", "{:,.4g}".format),
    "rounds": CostWords("takes", "rounds", "as many", "{:,.3g}".format),
    "%": CostWords("drains", "of each battery", "as much", "{:.3g} %".format),
    "devices": CostWords("empties", "batteries", "as many", "{:,.3g}".format),
}


@dataclass(frozen=True)
class Measure:
    """A figure by a name of its own, in its unit if it is no plain count, in the table of a
    ``topic``.
    """

    name: str
    unit: str
    topic: Literal["accuracy", "cost", "to target", "wasted", "fairness and groups"]
    best: Preferred = None

    @property
    def is_cost(self) -> bool:
        """Whether ratios of it mean something."""
        return self.topic in ("cost", "to target")

    @property
    def most(self) -> float:
        """Its greatest possible value; the least is 0."""
        return 1.0 if self.unit == "0-1" else math.inf

    @property
    def head(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def words(self) -> CostWords:
        return _WORDS["rounds" if self.name.startswith("rounds") else self.unit]

    def show(self, value: float) -> str:
        return self.words.show(value) if self.is_cost else f"{value:.3f}"


_MEASURES = {
    one.name: one
    for one in (
        Measure("rounds", "", "accuracy"),
        Measure("final accuracy", "0-1", "accuracy", "most"),
        Measure("best accuracy", "0-1", "accuracy", "most"),
        Measure("worst-decile accuracy", "0-1", "accuracy", "most"),
        Measure("fine-tuned accuracy", "0-1", "accuracy", "most"),
        Measure("simulated time", "s", "cost", "least"),
        Measure("traffic", "bytes", "cost", "least"),
        Measure("compute", "device-s", "cost", "least"),
        Measure("energy", "J", "cost", "least"),
        Measure("carbon", "g", "cost", "least"),
        Measure("cost", "", "cost", "least"),
        Measure("battery", "%", "cost", "least"),
        Measure("flat devices", "devices", "cost", "least"),
        Measure("wasted traffic", "bytes", "wasted", "least"),
        Measure("wasted compute", "device-s", "wasted", "least"),
        Measure("wasted energy", "J", "wasted", "least"),
        Measure("dropped updates", "0-1", "wasted", "least"),
        Measure("Jain's index of selections", "0-1", "fairness and groups", "most"),
        Measure("migrations", "", "fairness and groups"),
        Measure("mean purity of groups", "0-1", "fairness and groups", "most"),
        Measure("last purity of groups", "0-1", "fairness and groups", "most"),
    )
}
FINAL, BEST = (_MEASURES[f"{which} accuracy"] for which in ("final", "best"))
TIME, TRAFFIC, WASTED_COMPUTE = (
    _MEASURES[name] for name in ("simulated time", "traffic", "wasted compute")
)
WITHIN = Measure("accuracy within the budget", "0-1", "accuracy", "most")
_OF_WORK = ("assign", "step-start", "step-end", "task-end")
_TO_TARGET = {
    "rounds": "",
    "time": "s",
    "traffic": "bytes",
    "energy": "J",
    "carbon": "g",
    "cost": "",
}
_ALONE = {
    "battery": _MEASURES["battery"],
    "flat": _MEASURES["flat devices"],
    "accuracy": FINAL,
    "budget": WITHIN,
}
"""Goals without a target."""
COST_GOALS = ("time", "bytes", "energy", "carbon", "money", "rounds")
GOALS = (*COST_GOALS, *_ALONE, *MORE_IS_BETTER)
"""The goals of a study: least of a cost to the target, of a battery's charge or flat devices;
the best accuracy or metric.
"""


class Budget(Spec):
    """Limits on the costs of a run until its best accuracy."""

    time: PositiveSeconds | None = None
    """simulated."""
    bytes: Bytes | None = None
    """moved, both ways."""
    joules: Joules | None = None
    """drawn, where energy is counted."""
    cost: float | None = Field(default=None, gt=0)
    """in the currency of [costs]."""

    @property
    def limits(self) -> dict[str, float]:
        return {name: limit for name, limit in vars(self).items() if limit is not None}


def read_goal(
    goal: str | None, limits: Sequence[str]
) -> tuple[str | None, Mapping[str, float] | None]:
    """A goal and a budget (``KEY=VALUE`` texts) as the command line says them; each None where
    it says nothing.
    """
    if goal is not None and goal not in GOALS:
        raise ScenarioError(
            f"--goal is {goal!r}; allowed are {', '.join(GOALS)}{nearest(goal, GOALS)}"
        )
    tables: dict[str, Any] = {}
    for text in limits:
        key, _, value = (part.strip() for part in text.partition("="))
        if key in tables:
            raise ScenarioError(
                f"--budget gives {key!r} twice, as {tables[key]} and as {value}; give one of "
                "the two"
            )
        tables[key] = float(value) if value.replace(".", "", 1).isdecimal() else value
    if (goal == "budget") > bool(tables) or (tables and goal not in (None, "budget")):
        raise ScenarioError(
            f"--goal is {goal!r}; with --budget it is 'budget', and without one another"
        )
    try:
        return "budget" if tables else goal, Budget(**tables).limits or None
    except ValidationError as error:
        raise ScenarioError(explain(error, tables, "--budget")) from None


def goal_of(goal: str, target: float | Target | None) -> Measure | None:
    """The measure of a goal; None for a cost to the target without one."""
    if goal in MORE_IS_BETTER:
        return of_metric("final", goal)
    if goal in _ALONE or target is None:
        return _ALONE.get(goal)
    return cost_of({"bytes": "traffic", "money": "cost"}.get(goal, goal), target)


def measures(targets: Sequence[float | Target] = ()) -> list[Measure]:
    """All measures, in the order of their columns; six more for each target."""
    first = [one for one in _MEASURES.values() if one.topic in ("accuracy", "cost")]
    to_targets = [cost_of(what, target) for target in targets for what in _TO_TARGET]
    return [*first, *to_targets, *(one for one in _MEASURES.values() if one not in first)]


def of_metrics(runs: Iterable[RunFolder]) -> list[Measure]:
    """The final and the best value of each metric that one of the runs has."""
    known = {
        name: told["best_is"] == "most"
        for run in runs
        for name, told in run.summary.get("metrics", {}).items()
    }
    return [of_metric(which, name, known) for name in known for which in ("final", "best")]


def of_metric(which: str, name: str, known: Mapping[str, bool] = MORE_IS_BETTER) -> Measure:
    """The ``final`` or ``best`` value of a metric; ``known``: whether more of each metric is
    better.
    """
    return Measure(f"{which} {name}", "", "accuracy", "most" if known[name] else "least")


def cost_of(what: str, target: float | Target) -> Measure:
    """The measure of the ``rounds``, ``time``, ``traffic``, ``energy`` or ``carbon`` to a
    target.
    """
    return Measure(f"{what} to target {target:g}", _TO_TARGET[what], "to target", "least")


def measure(
    run: RunFolder,
    targets: Sequence[float | Target] = (),
    ledger: LedgerPreset = "strict",
    budget: Mapping[str, float] | None = None,
) -> Values:
    """The figures of a run, by their measures' names. ``RunFolderError``: the folder is damaged.

    A run on pooled data has accuracy and rounds alone: its times and bytes are those of no
    federation. A ledger that is ``paper`` counts bytes as papers do, but those until a target. For
    the ``budget`` see ``lab.reading.targets.within``.
    """
    try:
        values = _of_run(run, ledger)
        for target in targets:
            values |= costs_until(run, target)
        if budget:
            values[WITHIN.name] = within(run.rounds, budget)
    except (
        AttributeError,
        KeyError,
        TypeError,
    ) as error:  # a summary that is JSON, but not of a run
        raise RunFolderError(
            f"{files.SUMMARY} of {str(run.path)!r} is damaged: {type(error).__name__}: {error}"
        ) from None
    if run.scenario.get("data", {}).get("pooled_from") is not None:
        values |= {
            name: None for name in values if not name.startswith(("rounds", "final ", "best "))
        }
    return {
        name: None if value is None or math.isnan(value) else value
        for name, value in values.items()
    }


def _of_run(run: RunFolder, ledger: LedgerPreset) -> Values:
    summary = run.summary
    moved = run.summary["bytes"]
    energy = run.summary.get("energy", {})
    selected = sum(row["selected"] or 0 for row in run.rounds)
    accuracies = [row["accuracy"] for row in run.devices if row["accuracy"] is not None]
    purities = [row["purity"] for row in run.rounds if row["purity"] is not None]
    return {
        "rounds": summary["rounds"],
        "final accuracy": summary["accuracy"]["final"],
        "best accuracy": summary["accuracy"]["best"],
        "worst-decile accuracy": worst_decile(accuracies),
        "fine-tuned accuracy": summary["accuracy"].get("fine_tuned"),
        **{
            f"{which} {name}": told[which]
            for name, told in summary.get("metrics", {}).items()
            for which in ("final", "best")
        },
        "simulated time": summary["simulated_s"],
        "traffic": float(moved["paper"] if ledger == "paper" else total(moved)),
        "energy": energy.get("joules"),
        "carbon": energy.get("grams"),
        "cost": summary.get("costs", {}).get("total"),
        **_batteries(run),
        "wasted traffic": moved["wasted"],
        "wasted energy": energy.get("wasted"),
        "dropped updates": 1 - sum(row["valid"] or 0 for row in run.rounds) / selected
        if selected
        else None,
        "Jain's index of selections": jain_index(
            (row["selected"] for row in run.devices), run.population
        ),
        **read_work(run),
        "mean purity of groups": math.fsum(purities) / len(purities) if purities else None,
        "last purity of groups": purities[-1] if purities else None,
    }


def _batteries(run: RunFolder) -> Values:
    """The share of its battery that a device with one drew (mean, %), and how many of these
    devices ran flat.
    """
    own = (
        [row for row in run.rows(ENERGY) if (row["capacity_j"] or math.inf) < math.inf]
        if run.has(ENERGY)
        else []
    )
    if not own:
        return {"battery": None, "flat devices": None}
    drawn = [sum(row[f"{phase}_j"] for phase in PHASES) / row["capacity_j"] for row in own]
    flat = {
        device
        for device, data in run.events_of(("battery",), ("device", "data"))
        if parse_json(data)["flat"]
    }
    return {"battery": 100 * math.fsum(drawn) / len(drawn), "flat devices": len(flat)}


def costs_until(run: RunFolder, target: float | Target) -> Values:
    """Costs until a test first showed the target, by the measures' names; None where none did."""
    found = until(run.rounds, target, run.summary)
    return dict(
        zip((cost_of(what, target).name for what in _TO_TARGET), found.values(), strict=True)
    )


def read_work(run: RunFolder) -> Values:
    """``compute`` and ``wasted compute`` of a run's devices (device-seconds), and ``migrations``
    between its groups.

    Wasted: all of an unfinished task, and of others the time after the last epoch that counted.
    A split of a group is no migration; None without groups.
    """
    begun: dict[int, float] = {}
    # of each open task: seconds in all, and those that count if it is done
    computed: dict[int, list[float]] = {}
    seconds = wasted = 0.0
    moves: int | None = None
    columns = ("time", "kind", "task", "group", "step", "outcome", "data")
    for time, kind, task, group, step, outcome, data in run.events_of(_OF_WORK, columns):
        if kind == "assign":
            facts = parse_json(data or "{}")
            moves = (moves or 0) + (
                group is not None and facts["before"] is not None and facts["why"] != "split"
            )
        elif kind == "task-end":
            spent, counts = computed.pop(task, (0.0, 0.0))
            seconds += spent
            wasted += spent - (counts if outcome == "done" else 0.0)
        elif step in ("train", "evaluate", "compute"):
            if kind == "step-start":
                begun[task] = time
                continue
            spent = time - begun.pop(task)
            facts = parse_json(data or "{}")
            counts = spent
            # finished epochs alone; all of an evaluation
            if "epochs" in facts and facts["epochs"] != facts["asked"]:
                counts = (
                    spent - float(time - facts["epoch_ends"][facts["epochs"] - 1])
                    if facts["epochs"]
                    else 0.0
                )
            entry = computed.setdefault(task, [0.0, 0.0])
            entry[0] += spent
            entry[1] += counts
    return {"compute": seconds, "wasted compute": wasted, "migrations": moves}
