"""The ``data`` of records as cells of columns."""

import math
from collections.abc import Callable, Mapping
from typing import Any

Data = dict[str, Any]
"""The parsed ``data`` of a record."""

TableReader = tuple[Mapping[str, type], Callable[[Data], tuple[Any, ...]]]
"""Columns that ``data`` make, and the function that gives their cells."""


def number(value: object) -> float:
    """A quantity of a record.

    Raises:
        TypeError: it is no number.
    """
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)  # type: ignore[arg-type]


def _training(data: Data) -> tuple[Any, ...]:
    return number(data["epochs"]), number(data["asked"]), "part" in data, [number(end) for end in data["epoch_ends"]]


def _tasks(data: Data) -> list[int]:
    for task in data["tasks"]:
        if type(task) is not int:
            raise TypeError(f"{task!r} is no task")
    return list(data["tasks"])


def _limits(data: Data) -> tuple[float, float]:
    deadline = data.get("deadline")
    return math.nan if deadline is None else number(deadline), number(data.get("training_limit", math.inf))


def _battery(data: Data) -> tuple[Any, ...]:
    levels = [number(data["level"]), *(number(level) for _, level in data["path"])]
    return bool(data["flat"]), *(number(data[key]) for key in _LEVELS), min(levels), max(levels), len(levels) - 1


_LEVELS = ("level", "charged", "idle", "drawn")
READERS: dict[str, TableReader] = {
    "step-end of train": ({"epochs": float, "asked": float, "in_part": bool, "ends": object}, _training),
    "step-end of train or evaluate or compute": (
        {"core_s": float},
        lambda data: (number(data["core_s"]) if "core_s" in data else math.nan,),
    ),
    "task-start": ({"continues": bool}, lambda data: ("continues" in data,)),
    "edge-off": ({"edge": int}, lambda data: (int(data["edge"]),)),
    "updates-lost": ({"tasks": object}, lambda data: (_tasks(data),)),
    "aggregate": (
        {"tasks": object, "rounds": bool, "at_edge": bool},
        lambda data: (_tasks(data), "staleness" not in data, "edge" in data),
    ),
    "round-start": ({"deadline": float, "training": float}, _limits),
    "round": ({"data": object}, lambda data: (data,)),
    "battery": ({"flat": bool, **dict.fromkeys((*_LEVELS, "least", "most", "points"), float)}, _battery),
    "run-end": ({"reason": object}, lambda data: (data["reason"],)),
    "link-rate": (
        {"link": object, "rate": float},
        lambda data: (str(data["link"]), math.inf if data["rate"] is None else number(data["rate"])),
    ),
}
"""How the ``data`` of each kind of record are read."""
