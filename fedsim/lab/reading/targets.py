"""Cost until a test first showed an accuracy, or another metric at a value."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fedsim.common.errors import ScenarioError
from fedsim.records.ledger import total_of_round

COSTS = ("rounds", "time", "bytes", "joules", "grams", "cost")


class Target(NamedTuple):
    """A value that a test is to show, of accuracy (0..1) or another column of rounds."""

    value: float
    metric: str = "accuracy"

    @classmethod
    def read(cls, said: "float | str | Target") -> "Target":
        """The target that a number or ``metric=value`` means; any other text raises
        ``ScenarioError``.
        """
        if isinstance(said, Target):
            return said
        metric, _, number = str(said).rpartition("=")
        with suppress(ValueError):
            target = cls(float(number), metric or "accuracy")
            if 0.0 <= target.value <= 1.0 or (
                metric not in ("", "accuracy") and not math.isnan(target.value)
            ):
                return target
        allowed = (
            "an accuracy from 0 to 1, such as 0.8, or a metric of the runs and a value, such as "
            "perplexity=8"
        )
        raise ScenarioError(f"--target is {said}; allowed is {allowed}")

    def __format__(self, form: str) -> str:
        value = format(self.value, form)
        return value if self.metric == "accuracy" else f"{self.metric} {value}"

    def is_reached(self, value: float | None, summary: Mapping[str, Any]) -> bool:
        """Whether a run with this summary has reached it with a value of its metric."""
        known = {"accuracy": {"best_is": "most"}, **summary.get("metrics", {})}
        most = known.get(self.metric, {}).get("best_is") == "most"
        return value is not None and (value >= self.value if most else value <= self.value)


def until(
    rows: Sequence[Mapping[str, Any]], said: float | str | Target, summary: Mapping[str, Any]
) -> dict[str, float | int | None]:
    """Rounds, time (s), bytes, joules, grams and money until a test first showed a target; None
    where none did.
    """
    target = Target.read(said)
    moved = 0.0
    for count, row in enumerate(rows, start=1):
        moved += total_of_round(row)
        if target.is_reached(row.get(target.metric), summary):
            drawn: list[float | None] = []
            for name in COSTS[3:]:
                known = [each[name] for each in rows[:count] if each.get(name) is not None]
                drawn.append(math.fsum(known) if len(known) == count else None)
            return dict(zip(COSTS, (row["round"] + 1, row["time"], moved, *drawn), strict=True))
    return dict.fromkeys(COSTS)


def within(rows: Sequence[Mapping[str, Any]], budget: Mapping[str, float]) -> float | None:
    """The best accuracy that a test showed while none of the costs (``COSTS`` without rounds)
    was above its limit, if any.
    """
    spent = dict.fromkeys(COSTS[2:], 0.0)
    best = None
    for row in rows:
        spent["time"], spent["bytes"] = row["time"], spent["bytes"] + total_of_round(row)
        for name in COSTS[3:]:
            spent[name] += math.inf if row.get(name) is None else row[name]
        if any(spent[name] > limit for name, limit in budget.items()):
            break
        if row["accuracy"] is not None:
            best = max(best or 0.0, row["accuracy"])
    return best


def costs_to(
    rows: Sequence[Mapping[str, Any]], said: float | str | Target, summary: Mapping[str, Any]
) -> dict[str, float]:
    """The same for notebooks, with NaN for targets not reached and costs not counted, for plots."""
    return {
        name: math.nan if value is None else value
        for name, value in until(rows, said, summary).items()
    }
