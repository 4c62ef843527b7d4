"""Cost until a test first showed an accuracy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsim.records.ledger import total_of_round

COSTS = ("rounds", "time", "bytes", "joules", "grams", "cost")


def until(rows: Sequence[Mapping[str, Any]], accuracy: float) -> dict[str, float | int | None]:
    """Rounds, time (s), bytes, joules, grams and money until a test first showed the accuracy; None where none did.

    Args:
        rows: those of ``rounds.parquet``.
        accuracy: 0..1.
    """
    moved = 0.0
    for row in rows:
        moved += total_of_round(row)
        if row["accuracy"] is not None and row["accuracy"] >= accuracy:
            drawn = (_sum_until(rows, row["round"], name) for name in COSTS[3:])
            return dict(zip(COSTS, (row["round"] + 1, row["time"], moved, *drawn), strict=True))
    return dict.fromkeys(COSTS)


def within(rows: Sequence[Mapping[str, Any]], budget: Mapping[str, float]) -> float | None:
    """The best accuracy that a test showed while none of the costs was above its limit; None where no test did.

    Args:
        rows: those of ``rounds.parquet``.
        budget: limits by cost, ``COSTS`` without rounds.
    """
    spent, best = dict.fromkeys(COSTS[2:], 0.0), None
    for row in rows:
        spent["time"], spent["bytes"] = row["time"], spent["bytes"] + total_of_round(row)
        for name in COSTS[3:]:
            spent[name] += math.inf if row.get(name) is None else row[name]
        if any(spent[name] > limit for name, limit in budget.items()):
            break
        if row["accuracy"] is not None:
            best = max(best or 0.0, row["accuracy"])
    return best


def costs_to(rows: Sequence[Mapping[str, Any]], accuracy: float) -> dict[str, float]:
    """The same for notebooks: what was not reached, or not counted, is not a number, so that it can be drawn."""
    return {name: math.nan if value is None else value for name, value in until(rows, accuracy).items()}


def _sum_until(rows: Sequence[Mapping[str, Any]], last: int, name: str) -> float | None:
    """The sum of a column up to a round; None where it has none, or the run is older than it."""
    values = [row.get(name) for row in rows if row["round"] <= last]
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None
