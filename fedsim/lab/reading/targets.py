"""Costs until a test reaches an accuracy, or a target value of another metric."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from fedsim.common.errors import ScenarioError
from fedsim.lab.reading.record_data import RecordData
from fedsim.records.ledger import total_of_round

_METERED_COSTS = ("joules", "grams", "cost")  # None in rounds of runs that do not count them
COSTS = ("rounds", "time", "bytes", *_METERED_COSTS)


class Target(NamedTuple):
    """Value of a metric that a test of the model has to reach.

    Attributes:
        value: the value; 0..1 for an accuracy.
        metric: ``accuracy``, or another column of the table of rounds.
    """

    value: float
    metric: str = "accuracy"

    @classmethod
    def read(cls, target: "float | str | Target") -> "Target":
        """Convert an accuracy or a text ``metric=value`` to a ``Target``.

        Args:
            target: an accuracy, a text ``metric=value``, or a ``Target``, which is returned
                unchanged.

        Raises:
            ScenarioError: the target is anything else, or an accuracy outside 0..1.
        """
        if isinstance(target, Target):
            return target
        metric, _, number = str(target).rpartition("=")
        with suppress(ValueError):
            value = float(number)
            is_other_metric = metric not in ("", "accuracy") and not math.isnan(value)
            if 0.0 <= value <= 1.0 or is_other_metric:
                return cls(value, metric or "accuracy")
        allowed = (
            "an accuracy from 0 to 1, such as 0.8, or a metric of the runs and a value, such as "
            "perplexity=8"
        )
        raise ScenarioError(f"--target is {target}; allowed is {allowed}")

    def __format__(self, form: str) -> str:
        value = format(self.value, form)
        return value if self.metric == "accuracy" else f"{self.metric} {value}"

    def is_reached(self, value: float | None, summary: RecordData) -> bool:
        """Whether a test's value of the metric is at least as good as the target.

        Args:
            value: result of a test; None if the test did not measure the metric.
            summary: summary of the run, which states whether greater or smaller values are better.
        """
        if value is None:
            return False
        return value >= self.value if self.is_maximised(summary) else value <= self.value

    def is_maximised(self, summary: RecordData) -> bool:
        """Whether greater values of the metric are better, so that a greater target is harder.

        Args:
            summary: summary of a run, which states this for metrics other than the accuracy.
        """
        metrics = {"accuracy": {"best_is": "most"}, **summary.get("metrics", {})}
        return bool(metrics.get(self.metric, {}).get("best_is") == "most")


def costs_until_target(
    rows: Sequence[RecordData],
    target: float | str | Target,
    summary: RecordData,
) -> dict[str, float | int | None]:
    """Return the costs of a run up to the first test that reached a target.

    Args:
        rows: rows of ``rounds.parquet``.
        target: an accuracy, a text ``metric=value``, or a ``Target``.
        summary: summary of the run.

    Returns:
        Costs by name: ``rounds``, ``time`` (s), ``bytes``, ``joules``, ``grams`` (of CO2) and
        ``cost`` (money). A cost is None if a round lacks it, and all are None if no test reached
        the target.
    """
    target = Target.read(target)
    traffic = 0.0
    for count, row in enumerate(rows, start=1):
        traffic += total_of_round(row)
        if not target.is_reached(row.get(target.metric), summary):
            continue
        # values in the order of ``COSTS``
        costs: list[float | None] = [row["round"] + 1, row["time"], traffic]
        for name in _METERED_COSTS:
            values = [earlier[name] for earlier in rows[:count] if earlier.get(name) is not None]
            is_complete = len(values) == count
            costs.append(math.fsum(values) if is_complete else None)
        return dict(zip(COSTS, costs, strict=True))
    return dict.fromkeys(COSTS)


def best_accuracy_within(rows: Sequence[RecordData], budget: Mapping[str, float]) -> float | None:
    """Return the best accuracy of a run's tests before its costs exceeded a budget.

    Args:
        rows: rows of ``rounds.parquet``.
        budget: dict from name of a cost (``time`` (s), ``bytes``, ``joules``, ``grams`` or
            ``cost``) to its limit. A cost that the run did not count exceeds any limit.

    Returns:
        The accuracy (0..1); None if there was no test within the budget.
    """
    costs = dict.fromkeys(("bytes", *_METERED_COSTS), 0.0)  # costs since the begin of the run
    best = None
    for row in rows:
        costs["time"] = row["time"]
        costs["bytes"] += total_of_round(row)
        for name in _METERED_COSTS:
            costs[name] += math.inf if row.get(name) is None else row[name]
        if any(costs[name] > limit for name, limit in budget.items()):
            break
        if row["accuracy"] is not None:
            best = max(best or 0.0, row["accuracy"])
    return best


def costs_to(
    rows: Sequence[RecordData],
    target: float | str | Target,
    summary: RecordData,
) -> dict[str, float]:
    """Return the costs of a run up to the first test that reached a target, as floats for plots.

    Args:
        rows: rows of ``rounds.parquet``.
        target: an accuracy, a text ``metric=value``, or a ``Target``.
        summary: summary of the run.

    Returns:
        Costs by name: ``rounds``, ``time`` (s), ``bytes``, ``joules``, ``grams`` (of CO2) and
        ``cost`` (money); NaN if a cost was not counted, or if no test reached the target.
    """
    costs = costs_until_target(rows, target, summary)
    return {name: math.nan if value is None else value for name, value in costs.items()}
