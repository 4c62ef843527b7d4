"""Do the rounds say of their tasks what their tasks' records say?"""

import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Ints
from fedsim.records import folder as files
from fedsim.records.audit.columns import NOTHING, Mask, Sequences
from fedsim.records.audit.events import Events
from fedsim.records.audit.evidence import Evidence
from fedsim.records.schema import ROUNDS

_OUTCOMES = ("done", "late", "lost", "left", "memory", "battery")


def round_counts(evidence: Evidence) -> Iterator[str]:
    """Each round's counts are those of its tasks, and the rounds' table says what the records say."""
    events, summary = evidence.events, evidence.run.summary
    table = evidence.rounds
    counts = _Counts(evidence)
    agree = len(events.rounds) == table.count == summary["rounds"]
    rows = _rows(evidence) if agree else repeat({})
    for place, ((at, text), row) in enumerate(zip(events.rounds, rows, strict=False)):
        data, number = json.loads(text), events.shown("round", at)
        yield from _count_problems(number, data, counts.of(place))
        told = {"round": number, "time": events["time"].item(at)} | data
        for key, value in told.items() if agree else ():
            here = row.get(key, "missing")
            if here != value:
                yield f"round {number}: {key} is {here!r} in the table and {value!r} in the records"
    yield from counts.without_cause
    if not agree:
        yield f"there are {len(events.rounds)} recorded rounds, {table.count} in the table, {summary['rounds']} in the summary"
        return
    measured = table["accuracy"][~np.isnan(table["accuracy"])]
    stated = summary["accuracy"]
    if len(measured) and (stated["final"] != measured[-1] or stated["best"] != measured.max()):
        last, best = measured[-1].item(), measured.max().item()
        yield f"the summary's accuracy is {stated}, the rounds' last {last!r} and best {best!r}"


def _rows(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for table in evidence.run.batches(files.ROUNDS, ROUNDS, 4_096):
        yield from table.to_pylist()


class _Counts:
    """How the tasks of each round ended, up to the record of the round.

    Attributes:
        without_cause: what is said of tasks that go on with one of a round in which none has ended.
    """

    def __init__(self, evidence: Evidence) -> None:
        events, words = evidence.events, evidence.words
        of_round = events["round"] != NOTHING
        ends = events.are("task-end") & of_round
        rounds = events.are("round")
        rows = np.flatnonzero(ends | rounds | events.continues)
        order = Sequences(events["round"][rows])
        rows = rows[order.order]
        closes = rounds[rows]
        first = order.first | np.concatenate([[False], closes])[:-1]  # of what a record of a round counts
        part = np.cumsum(first) - 1
        idle = _idle_by_then(evidence, ends)[rows]
        outcome = events["outcome"][rows]
        outcome = np.where(idle & (outcome == words["done"]), words["late"], outcome)
        weight = np.where(ends[rows], 1, np.where(events.continues[rows], -1, 0))
        outcome = np.where(weight < 0, words["done"], outcome)  # the task that prepared the device and this one count as one
        counted = {name: _sums(part, weight * (outcome == words[name])) for name in _OUTCOMES} | {"all": _sums(part, weight)}
        close = np.flatnonzero(closes)
        self._counted = {name: sums[part[close[np.argsort(rows[close])]]].tolist() for name, sums in counted.items()}
        self.without_cause = self._find_without_cause(events, rows, order, first, ends[rows])

    def of(self, place: int) -> dict[str, int]:
        """The counts up to a record of a round, by its place among them."""
        return {name: counts[place] for name, counts in self._counted.items()}

    @staticmethod
    def _find_without_cause(events: Events, rows: Ints, order: Sequences, first: Mask, ends: Mask) -> list[str]:
        begin = np.flatnonzero(first)[np.cumsum(first) - 1] if len(rows) else order.begin
        wrong = rows[events.continues[rows] & (order.latest_before(ends) < begin)]
        names = ((events.shown("task", row), events.shown("round", row)) for row in np.sort(wrong).tolist())
        return [f"task {task} goes on with one of round {number}, of which none has ended" for task, number in names]


def _idle_by_then(evidence: Evidence, ends: Mask) -> Mask:
    """Which ends of tasks are of tasks with no epoch that counts: slow, even if they were carried out to their end."""
    events = evidence.events
    idle = events.idle
    result = np.zeros(events.count, dtype=bool)
    if idle.any():
        rows = np.flatnonzero(idle | ends)
        lives = Sequences(events["task"][rows])
        rows = rows[lives.order]
        result[rows] = lives.latest_before(idle[rows]) >= 0
    return result & ends


def _sums(part: Ints, values: NDArray[Any]) -> Ints:
    return np.bincount(part, weights=values).astype(np.int64)


def _count_problems(number: int, told: dict[str, int], ended: dict[str, int]) -> Iterator[str]:
    counted = {
        "valid": ended["done"],
        "slow": ended["late"] + ended["memory"],
        "disconnected": ended["lost"] + ended["left"] + ended["battery"],
        "selected": ended["all"],
    }
    for key, value in counted.items():
        waits = "selected" in told or key != "disconnected"  # a round that does not wait may close before it hears of a loss
        if key in told and (told[key] != value if waits else told[key] > value):
            yield f"round {number}: {key} is {told[key]}, its tasks say {value}"
