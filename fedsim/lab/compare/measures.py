"""The measures by which runs are compared, their values in a run, and the goals of comparisons.

A value that a run lacks is None.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from fedsim.common.errors import RunFolderError, ScenarioError, nearest
from fedsim.common.files import parse_json
from fedsim.common.spec import Spec
from fedsim.common.step_names import COMPUTATIONS
from fedsim.common.stop import MORE_IS_BETTER
from fedsim.common.units import (
    Bytes,
    Joules,
    PositiveSeconds,
    show_bytes,
    show_joules,
    show_number,
    show_ratio,
    show_seconds,
)
from fedsim.common.wording import explain
from fedsim.lab.reading.fairness import jain_index, selectable, worst_decile
from fedsim.lab.reading.record_data import RecordData
from fedsim.lab.reading.targets import Target, best_accuracy_within, costs_until_target
from fedsim.records import folder as files
from fedsim.records.ledger import LedgerPreset, total
from fedsim.records.reading import RunFolder
from fedsim.world.meters.energy import PHASES
from fedsim.world.meters.energy import TABLE as ENERGY

Preferred = Literal["least", "most"] | None
Values = dict[str, float | int | None]

_LEAST_PERCENT = 0.05  # difference (%) below which two costs count as equal
_LEAST_SHARE = 0.0005  # share below which three decimals would show 0.000


class CostWords(NamedTuple):
    """Words for sentences on a cost, such as "takes the least time" or "takes 1.5 times as long".

    Attributes:
        verb: verb for spending the cost, such as "takes".
        noun: name of the cost, such as "time".
        as_much: words that follow a factor, such as "as long".
        show: formats a value with its unit.
    """

    verb: str
    noun: str
    as_much: str
    show: Callable[[float], str]

    def compare(self, ratio: float) -> str:
        """Return how a cost compares with another one, such as "takes 1.5 times as long".

        A ratio near 1 is a percentage, such as "takes 0.3 % more time".

        Args:
            ratio: the cost over the other one.
        """
        text = show_ratio(ratio)
        if text != "1":
            return f"{self.verb} {text} times {self.as_much}"
        percent = 100 * (ratio - 1)
        if abs(percent) < _LEAST_PERCENT:
            return f"{self.verb} {self.as_much}"
        more = "more" if percent > 0 else "less"
        return f"{self.verb} {abs(percent):.1f} % {more} {self.noun}"


def _show_short(value: float) -> str:
    return show_number(value, 3)


_WORDS = {
    "s": CostWords("takes", "time", "as long", show_seconds),
    "bytes": CostWords("moves", "bytes", "as much", show_bytes),
    "J": CostWords("draws", "energy", "as much", show_joules),
    "g": CostWords("emits", "CO2", "as much", lambda value: f"{_show_short(value)} g"),
    "": CostWords("costs", "money", "as much", show_number),
    "rounds": CostWords("takes", "rounds", "as many", _show_short),
    "%": CostWords("drains", "of each battery", "as much", "{:.3g} %".format),
    "devices": CostWords("empties", "batteries", "as many", _show_short),
}


@dataclass(frozen=True)
class Measure:
    """Measure by which runs are compared, such as time, traffic or accuracy.

    Attributes:
        quantity: what is measured, such as ``time`` or ``accuracy``.
        unit: unit of the value; empty for counts and for money.
        topic: title of the table that shows the measure.
        best: ``least`` or ``most`` if the least or the greatest value is the best one; None if
            neither is.
        test: ``final`` or ``best`` if the value is of the last or the best test of the run.
        target: target up to which a cost is counted; None for values of whole runs.
    """

    quantity: str
    unit: str
    topic: Literal["accuracy", "cost", "to target", "wasted", "fairness and groups"]
    best: Preferred = None
    test: Literal["final", "best"] | None = None
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the measure for people, such as ``time to target 0.8``; unique among measures."""
        return self.label if self.target is None else f"{self.label} to target {self.target:g}"

    @property
    def label(self) -> str:
        """Name without the target, such as ``time`` or ``final accuracy``."""
        return self.quantity if self.test is None else f"{self.test} {self.quantity}"

    @property
    def is_of_pooled_data(self) -> bool:
        """Whether the measure also exists for a baseline that trains on all devices' pooled data.

        True for counts of rounds and for results of tests. False for all other measures, such as
        time and traffic, which only a federation has.
        """
        return self.quantity == "rounds" or self.test is not None

    @property
    def is_cost(self) -> bool:
        """Whether the measure is a cost. Variants are compared by the ratio of their costs.

        Other measures, such as accuracies, are compared by their difference.
        """
        return self.topic in ("cost", "to target")

    @property
    def most(self) -> float:
        """Greatest possible value of the measure: 1 for shares, else infinity. The least is 0."""
        return 1.0 if self.unit == "0-1" else math.inf

    @property
    def head(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def words(self) -> CostWords:
        return _WORDS["rounds" if self.quantity == "rounds" else self.unit]

    def show(self, value: float) -> str:
        if self.is_cost:
            return self.words.show(value)
        if self.unit != "0-1":
            return show_number(value)
        return f"{value:.1g}" if 0 < abs(value) < _LEAST_SHARE else f"{value:.3f}"


_MEASURES = {
    measure.name: measure
    for measure in (
        Measure("rounds", "", "accuracy"),
        Measure("accuracy", "0-1", "accuracy", "most", "final"),
        Measure("accuracy", "0-1", "accuracy", "most", "best"),
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
FINAL = _MEASURES["final accuracy"]
BEST = _MEASURES["best accuracy"]
TIME = _MEASURES["simulated time"]
TRAFFIC = _MEASURES["traffic"]
WASTED_COMPUTE = _MEASURES["wasted compute"]
WITHIN = Measure("accuracy within the budget", "0-1", "accuracy", "most")
_WORK_EVENTS = ("assign", "step-start", "step-end", "task-end")
_UNIT_OF_COST = {  # unit of each cost to a target
    "rounds": "",
    "time": "s",
    "traffic": "bytes",
    "energy": "J",
    "carbon": "g",
    "cost": "",
}
_GOALS_WITHOUT_TARGET = {
    "battery": _MEASURES["battery"],
    "flat": _MEASURES["flat devices"],
    "accuracy": FINAL,
    "budget": WITHIN,
}
"""Measures of the goals that need no target, by name of the goal."""
COST_GOALS = ("time", "bytes", "energy", "carbon", "money", "rounds")
GOALS = (*COST_GOALS, *_GOALS_WITHOUT_TARGET, *MORE_IS_BETTER)
"""Goals of a study: the least cost to the target, the least charge drawn from batteries, the fewest
empty batteries, or the best accuracy or metric.
"""


class Budget(Spec):
    """Limits on the costs of a run, to compare the best accuracy before any limit is exceeded.

    Attributes:
        time: simulated time (s).
        bytes: traffic, sent and received (bytes).
        joules: energy of the devices (J), if energy is counted.
        cost: money in the currency of [costs].
    """

    time: PositiveSeconds | None = None
    bytes: Bytes | None = None
    joules: Joules | None = None
    cost: float | None = Field(default=None, gt=0)

    @property
    def limits(self) -> dict[str, float]:
        return {name: limit for name, limit in vars(self).items() if limit is not None}


def read_goal(
    goal: str | None, limits: Sequence[str]
) -> tuple[str | None, Mapping[str, float] | None]:
    """Read goal and budget of a comparison from the options of the command line.

    Args:
        goal: value of ``--goal``; None if not given.
        limits: values of ``--budget``, as ``KEY=VALUE``.

    Returns:
        The goal (None if it is not given), and a dict from cost to limit (None without limits). If
        there are limits, the goal is ``budget``.

    Raises:
        ScenarioError: the goal is unknown, a limit has an unknown key or a wrong value, the goal
            ``budget`` has no limits, or another goal has limits.
    """
    if goal is not None and goal not in GOALS:
        raise ScenarioError(
            f"--goal is {goal!r}; allowed are {', '.join(GOALS)}{nearest(goal, GOALS)}"
        )
    budget: dict[str, Any] = {}
    for text in limits:
        key, _, value = (part.strip() for part in text.partition("="))
        if key in budget:
            raise ScenarioError(
                f"--budget gives {key!r} twice, as {budget[key]} and as {value}; give one of "
                "the two"
            )
        is_number = value.replace(".", "", 1).isdecimal()
        budget[key] = float(value) if is_number else value
    lacks_budget = goal == "budget" and not budget
    has_other_goal = bool(budget) and goal not in (None, "budget")
    if lacks_budget or has_other_goal:
        raise ScenarioError(
            f"--goal is {goal!r}; with --budget it is 'budget', and without one another"
        )
    if budget:
        goal = "budget"
    try:
        return goal, Budget(**budget).limits or None
    except ValidationError as error:
        raise ScenarioError(explain(error, budget, "--budget")) from None


def goal_of(goal: str, target: Target | None) -> Measure | None:
    """Return the measure by which a goal of the user, such as ``time``, ranks runs.

    Args:
        goal: one of ``GOALS``, or a metric.
        target: the target up to which a cost is counted.

    Returns:
        The measure; None if the goal is a cost up to a target, and ``target`` is None.
    """
    if goal in MORE_IS_BETTER:
        return of_metric("final", goal)
    if goal in _GOALS_WITHOUT_TARGET or target is None:
        return _GOALS_WITHOUT_TARGET.get(goal)
    cost = {"bytes": "traffic", "money": "cost"}.get(goal, goal)
    return cost_of(cost, target)


def measures(targets: Sequence[Target] = ()) -> list[Measure]:
    """Return all measures by which runs are compared, such as time, in the order of table columns.

    Args:
        targets: targets; for each of them, six costs until it is reached are among the measures.
    """
    before_targets = [
        measure for measure in _MEASURES.values() if measure.topic in ("accuracy", "cost")
    ]
    after_targets = [measure for measure in _MEASURES.values() if measure not in before_targets]
    costs_to_targets = []
    for target in targets:
        costs_to_targets += [cost_of(cost, target) for cost in _UNIT_OF_COST]
    return [*before_targets, *costs_to_targets, *after_targets]


def of_metrics(runs: Iterable[RunFolder]) -> list[Measure]:
    """Return two measures, final and best value, for each metric (such as perplexity) of runs."""
    more_is_better = {}
    for run in runs:
        for name, metric in run.summary.get("metrics", {}).items():
            more_is_better[name] = metric["best_is"] == "most"
    metrics = []
    for name in more_is_better:
        metrics.append(of_metric("final", name, more_is_better))
        metrics.append(of_metric("best", name, more_is_better))
    return metrics


def of_metric(
    test: Literal["final", "best"], name: str, more_is_better: Mapping[str, bool] = MORE_IS_BETTER
) -> Measure:
    """Return the measure of a metric's value in the last, or in the best, test of a run.

    Args:
        test: ``final`` or ``best``.
        name: name of the metric.
        more_is_better: whether greater values are better, by metric.
    """
    return Measure(name, "", "accuracy", "most" if more_is_better[name] else "least", test)


def cost_of(cost: str, target: Target) -> Measure:
    """Return the measure of a cost of a run up to the first test that reaches a target.

    Args:
        cost: name of the cost: ``rounds``, ``time``, ``traffic``, ``energy``, ``carbon`` or
            ``cost``.
        target: the target.
    """
    return Measure(cost, _UNIT_OF_COST[cost], "to target", "least", target=target)


def measure(
    run: RunFolder,
    targets: Sequence[Target] = (),
    ledger: LedgerPreset = "strict",
    budget: Mapping[str, float] | None = None,
) -> Values:
    """Compute all measures by which a run is compared with others, such as costs and accuracies.

    A run on pooled data is no federation, so it has accuracies, metrics and rounds only.

    Args:
        run: the folder of the run.
        targets: targets to which costs are computed.
        ledger: traffic to count. ``strict``: all bytes. ``paper``: without messages that papers do
            not count, such as the first model, IDs and test accuracies. Costs to a target always
            count all bytes.
        budget: dict from name of a cost to its limit, for the accuracy within the budget.

    Returns:
        Values by the names of their measures; None for a measure that the run lacks.

    Raises:
        RunFolderError: the folder is damaged.
    """
    try:
        values = _compute_figures(run, ledger)
        for target in targets:
            values |= costs_until(run, target)
        if budget:
            values[WITHIN.name] = best_accuracy_within(run.rounds, budget)
        applicable_names: Collection[str] = values.keys()
        if run.scenario.get("data", {}).get("pooled_from") is not None:
            all_measures = (*measures(targets), *of_metrics([run]))
            applicable_names = {
                candidate.name for candidate in all_measures if candidate.is_of_pooled_data
            }
    # these errors are raised if a summary is valid JSON, but lacks entries or has other types
    except (AttributeError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{files.SUMMARY} of {str(run.path)!r} is damaged: {type(error).__name__}: {error}"
        ) from None
    for name, value in values.items():
        has_diverged = value is not None and not math.isfinite(value)
        if has_diverged or name not in applicable_names:
            values[name] = None
    return values


def _compute_figures(run: RunFolder, ledger: LedgerPreset) -> Values:
    """Return the values of a run's measures by name, except those of targets and of a budget.

    Args:
        run: the folder of the run.
        ledger: traffic to count: ``strict`` or ``paper``, as for ``measure``.
    """
    summary = run.summary
    traffic = summary["bytes"]
    energy = summary.get("energy", {})
    accuracies = [row["accuracy"] for row in run.devices if row["accuracy"] is not None]
    purities = [row["purity"] for row in run.rounds if row["purity"] is not None]
    selections = (row["selected"] for row in run.devices)
    values: Values = {
        "rounds": summary["rounds"],
        "final accuracy": summary["accuracy"]["final"],
        "best accuracy": summary["accuracy"]["best"],
        "worst-decile accuracy": worst_decile(accuracies),
        "fine-tuned accuracy": summary["accuracy"].get("fine_tuned"),
        "simulated time": summary["simulated_s"],
        "traffic": float(traffic["paper"] if ledger == "paper" else total(traffic)),
        "energy": energy.get("joules"),
        "carbon": energy.get("grams"),
        "cost": summary.get("costs", {}).get("total"),
        "wasted traffic": traffic["wasted"],
        "wasted energy": energy.get("wasted"),
        "dropped updates": _dropped_share(run),
        "Jain's index of selections": jain_index(selections, selectable(run)),
        "mean purity of groups": math.fsum(purities) / len(purities) if purities else None,
        "last purity of groups": purities[-1] if purities else None,
    }
    for name, metric in summary.get("metrics", {}).items():
        values[f"final {name}"] = metric["final"]
        values[f"best {name}"] = metric["best"]
    values.update(_battery_figures(run))
    values.update(read_work(run))
    return values


def _dropped_share(run: RunFolder) -> float | None:
    """Return the share (0..1) of a run's selected clients whose update was not valid.

    None if no client was selected.
    """
    selected: int = sum(row["selected"] or 0 for row in run.rounds)
    valid: int = sum(row["valid"] or 0 for row in run.rounds)
    return 1 - valid / selected if selected else None


def _battery_figures(run: RunFolder) -> Values:
    """Return two measures of the batteries of a run's devices; both None if it has no batteries.

    ``battery`` is the mean share (%) of a battery's capacity that a device drew, ``flat devices``
    the count of devices whose battery ran empty.
    """
    energy_of_devices = run.rows(ENERGY) if run.has(ENERGY) else []
    shares = []
    for row in energy_of_devices:
        capacity_j = row["capacity_j"]  # None, 0 or infinite without a battery
        if capacity_j and capacity_j < math.inf:
            joules = sum(row[f"{phase}_j"] for phase in PHASES)
            shares.append(joules / capacity_j)
    if not shares:
        return {"battery": None, "flat devices": None}
    flat_devices = set()
    for device, data in run.events_of(("battery",), ("device", "data")):
        if parse_json(data)["flat"]:
            flat_devices.add(device)
    return {"battery": 100 * math.fsum(shares) / len(shares), "flat devices": len(flat_devices)}


def costs_until(run: RunFolder, target: Target) -> Values:
    """Return a run's costs until a test first reached a target, by names of their measures.

    The costs are rounds, time (s), traffic (bytes), energy (J), carbon (g) and money. All are None
    if no test reached the target.

    Args:
        run: the folder of the run.
        target: the target.
    """
    names = [cost_of(cost, target).name for cost in _UNIT_OF_COST]
    costs = costs_until_target(run.rounds, target, run.summary)
    return dict(zip(names, costs.values(), strict=True))


def read_work(run: RunFolder) -> Values:
    """Return a run's compute time, wasted compute time, and moves of devices between groups.

    If a task did not end ``done``, all its compute time is wasted. Otherwise only the time after
    the last epoch that its update includes is wasted. A split of a group is no move.

    Returns:
        ``compute`` and ``wasted compute`` (device-seconds), and ``migrations``, the count of moves
        of devices between groups, which is None if the run has no groups.
    """
    step_starts: dict[int, float] = {}  # open task -> begin of its running step (s)
    compute_times: defaultdict[int, _ComputeTime] = defaultdict(_ComputeTime)  # by open task
    compute = 0.0
    wasted = 0.0
    migrations: int | None = None
    columns = ("time", "kind", "task", "group", "step", "outcome", "data")
    for time, kind, task, group, step, outcome, data in run.events_of(_WORK_EVENTS, columns):
        if kind == "assign":
            fields = parse_json(data or "{}")
            is_between_groups = group is not None and fields["before"] is not None
            is_migration = is_between_groups and fields["why"] != "split"
            migrations = (migrations or 0) + is_migration
        elif kind == "task-end":
            computed = compute_times.pop(task, _ComputeTime())
            compute += computed.total
            useful = computed.useful if outcome == "done" else 0.0
            wasted += computed.total - useful
        elif step not in COMPUTATIONS:
            continue
        elif kind == "step-start":
            step_starts[task] = time
        else:
            seconds = time - step_starts.pop(task)
            compute_times[task].total += seconds
            compute_times[task].useful += _useful_seconds(time, seconds, parse_json(data or "{}"))
    return {"compute": compute, "wasted compute": wasted, "migrations": migrations}


@dataclass
class _ComputeTime:
    """Compute time of a task (s): ``total``, and the part ``useful`` if the task ends ``done``.

    The useful part ends with the last epoch that the task's update includes.
    """

    total: float = 0.0
    useful: float = 0.0


def _useful_seconds(time: float, seconds: float, fields: RecordData) -> float:
    """Return how long a computing step was useful (s): until the last epoch in the task's update.

    Args:
        time: simulated time at the end of the step (s).
        seconds: length of the step (s).
        fields: fields of the record that ends the step. If they have no epochs, all is useful.
    """
    if "epochs" not in fields or fields["epochs"] == fields["asked"]:
        return seconds
    if not fields["epochs"]:
        return 0.0
    last_useful_end = fields["epoch_ends"][fields["epochs"] - 1]
    return seconds - float(time - last_useful_end)
