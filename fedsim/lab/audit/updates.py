"""Checks that every update counts, and counts once: in aggregations and in the rounds' counts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import NOTHING, latest, plain_value
from fedsim.records import folder as files
from fedsim.records.schema import OF_PEERS

_FIGURES = (
    "accuracy",
    "loss",
    "train_loss",
    "discrepancy",
    "discrepancy_start",
    "purity",
    "ari",
    "nmi",
    "epsilon",
)
_COUNTS = ("valid", "slow", "disconnected", "selected")
_COUNT_OF = {
    "late": "slow",
    "memory": "slow",
    "lost": "disconnected",
    "left": "disconnected",
    "battery": "disconnected",
    "done": "valid",
}
"""The count of a round in which an outcome of a task counts."""

_NOT_MEASURED = dict.fromkeys((*_FIGURES, *OF_PEERS, "selected", "valid", "slow", "disconnected"))
"""Columns of rounds that are empty if the round's record does not have them."""


def rounds_of_updates(evidence: Evidence) -> Iterator[str]:
    """Updates are as many rounds older than their aggregation as its staleness states.

    An update or an aggregation without a round has no age.
    """
    events = evidence.events
    starts = events[events["kind"] == "task-start"].drop_duplicates("task")
    round_of = starts.set_index("task")["round"].to_dict()
    aggregates = evidence.data_of("aggregate").join(events["round"])
    aggregates = aggregates[["tasks", "staleness", "round"]]
    for row, tasks, staleness, number in zip(
        aggregates.index.tolist(),
        aggregates["tasks"].tolist(),
        aggregates["staleness"].tolist(),
        aggregates["round"].tolist(),
        strict=True,
    ):
        if number == NOTHING:
            continue
        stated = staleness or [0] * len(tasks)
        due = [_age(number, round_of.get(task, NOTHING)) for task in tasks]
        if stated != due:
            yield (
                f"record {row} (aggregate): the updates are {due} rounds old, the record says "
                f"{stated}"
            )


def _age(number: int, start_round: int) -> int:
    return 0 if start_round == NOTHING else number - start_round


def aggregated_once(evidence: Evidence) -> Iterator[str]:
    """Aggregations name only tasks that have ended done, each once, and leave none out.

    A training of which no epoch counts has nothing to aggregate, and must not be aggregated. A
    task without a round (profiling) may be left out, and so may a task that only prepared its
    device for the next one, or whose update was lost with an edge server. Updates that arrive
    after the last aggregation may wait for the next one. Without rounds, so may updates of the
    same instant, and updates of another group than the aggregation's.
    """
    events = evidence.events
    aggregates = evidence.data_of("aggregate")
    tasks_of = aggregates["tasks"].to_dict()
    in_rounds = aggregates["rounds"].to_dict()
    lost_tasks = evidence.data_of("updates-lost")["tasks"].to_dict()
    idle_rows = set(np.flatnonzero(evidence.is_idle_training).tolist())
    continued = _continued_tasks(evidence)
    kinds = events["kind"]
    relevant = kinds.isin(("aggregate", "round", "updates-lost"))
    relevant |= events.index.isin([*continued])
    relevant |= (kinds == "task-end") & (events["outcome"] == "done")
    relevant |= (kinds == "step-end") & (events["step"] == "train")
    records = events[relevant]
    book = _UpdateBook()
    for row, time, kind, task, number, group in zip(
        records.index.tolist(),
        records["time"].tolist(),
        records["kind"].tolist(),
        records["task"].tolist(),
        records["round"].tolist(),
        records["group"].tolist(),
        strict=True,
    ):
        if kind == "step-end":
            book.train(task, row in idle_rows, number)
        elif kind == "task-start":
            book.excuse(continued[row])
        elif kind == "task-end":
            book.finish(task, time, group)
        elif kind == "updates-lost":
            book.lose(lost_tasks[row])
        elif kind == "aggregate":
            yield from book.aggregate(tasks_of[row], in_rounds[row], group)
        elif kind == "round":
            yield from book.close_round(time)


def _continued_tasks(evidence: Evidence) -> dict[int, int]:
    """The task that each continuation continues, by the record that begins the continuation."""
    starts = evidence.events[evidence.events["kind"] == "task-start"]
    before = starts.groupby("device")["task"].shift()
    before = before[evidence.is_continuation[starts.index]].dropna().astype(np.int64)
    return {int(start): int(task) for start, task in zip(before.index, before, strict=True)}


class _UpdateBook:
    """The updates that may be aggregated, and the updates that have to be aggregated."""

    def __init__(self) -> None:
        self._idle = set[int]()
        self._trained = set[int]()
        self._ended = set[int]()
        self._counted = set[int]()
        # the time and the group of tasks that trained for a round and ended done
        self._owed: dict[int, tuple[float, int]] = {}
        self._all_due = True
        self._group = NOTHING

    def train(self, task: int, is_idle: bool, number: int) -> None:
        """End a training; ``is_idle``: no epoch counts; ``number``: of its round."""
        if is_idle:
            self._idle.add(task)
        elif number != NOTHING:
            self._trained.add(task)

    def excuse(self, task: int) -> None:
        """Excuse a task whose continuation begins."""
        self._trained.discard(task)
        self._owed.pop(task, None)

    def finish(self, task: int, time: float, group: int) -> None:
        """End a task as done."""
        if task in self._idle:
            return
        self._ended.add(task)
        self._counted.discard(task)
        if task in self._trained:
            self._owed[task] = time, group

    def lose(self, tasks: Iterable[int]) -> None:
        """Lose updates with an edge server."""
        for task in tasks:
            self._ended.discard(task)
            self._owed.pop(task, None)

    def aggregate(self, tasks: Iterable[int], in_rounds: bool, group: int) -> Iterator[str]:
        """Count the updates of an aggregation; ``in_rounds``: all updates are due at once."""
        self._all_due = in_rounds
        self._group = group
        for task in tasks:
            if task in self._counted:
                yield f"task {task} is aggregated twice"
            elif task not in self._ended:
                yield (
                    f"an aggregation counts task {task}, which had not ended done, with "
                    "something trained, by then"
                )
            self._owed.pop(task, None)
            self._counted.add(task)

    def close_round(self, time: float) -> Iterator[str]:
        """Report the updates that the round's aggregation has left out."""
        for task, (since, group) in [*self._owed.items()]:
            is_due = self._all_due or (since < time and self._group in (NOTHING, group))
            if is_due:
                del self._owed[task]
                yield f"task {task} was done in time, but no aggregation counts it"


def round_counts(evidence: Evidence) -> Iterator[str]:
    """Each round's counts agree with its tasks, and the rounds' table with the records."""
    events = evidence.events
    summary = evidence.run.summary
    recorded = evidence.data_of("round")["data"].to_dict()
    table = evidence.run.table(files.ROUNDS)
    agree = len(recorded) == len(table) == summary["rounds"]
    rows = iter(table.to_pylist())
    # a task that trained nothing is slow, even if it was carried out to its end
    idle = latest(evidence.is_idle_training, events["task"]) >= 0
    slow = idle & (events["outcome"] == "done").to_numpy()
    ends = (events["kind"] == "task-end") & (events["round"] != NOTHING)
    relevant = ends | (events["kind"] == "round") | evidence.is_continuation
    records = events.assign(outcome=np.where(slow, "late", events["outcome"]))[relevant]
    ended: dict[int, Counter[str]] = defaultdict(Counter)
    columns = ["time", "kind", "task", "round", "outcome"]
    for row, time, kind, task, number, outcome in records[columns].itertuples():
        name = plain_value(number)
        if kind == "task-end":
            ended[number]["selected"] += 1
            ended[number][_COUNT_OF.get(outcome, outcome)] += 1
        elif kind == "task-start":  # a task and its continuation count as one
            if number not in ended:
                yield f"task {task} goes on with one of round {name}, of which none has ended"
            ended[number].subtract(("selected", "valid"))
        else:
            data = recorded[row]
            yield from _check_counts(name, data, ended.pop(number, Counter()))
            cells: Mapping[str, object] = next(rows, {})
            if agree:
                yield from _check_cells(name, cells, {"round": name, "time": time, **data})
    if not agree:
        yield (
            f"there are {len(recorded)} recorded rounds, {len(table)} in the table, "
            f"{summary['rounds']} in the summary"
        )


def _check_counts(name: object, data: Mapping[str, int], counts: Counter[str]) -> Iterator[str]:
    for key in _COUNTS:
        if key not in data:
            continue
        differs = data[key] != counts[key]
        if key == "disconnected" and "selected" not in data:
            # a strategy that does not wait for its clients may hear of a loss after the round
            differs = data[key] > counts[key]
        if differs:
            yield f"round {name}: {key} is {data[key]}, its tasks say {counts[key]}"


def _check_cells(
    name: object, cells: Mapping[str, object], data: Mapping[str, object]
) -> Iterator[str]:
    """Compare a row of the rounds' table with the data of the round's record."""
    for key, value in {**_NOT_MEASURED, **data}.items():
        cell = cells.get(key, "missing")
        if cell != value:
            yield (
                f"round {name}: {key} is {cells.get(key)!r} in the table and {value!r} in "
                "the records"
            )
