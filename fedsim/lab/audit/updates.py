"""Checks that every update is aggregated once, and that the rounds' counts agree with the tasks."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pandas as pd

from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import NOTHING, last_marked_rows, plain_value
from fedsim.lab.audit.strategies import UPDATES_WAIT
from fedsim.records import folder as files
from fedsim.records.schema import OF_PEERS, ROUNDS

_METRICS = (
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
_COUNT_OF_OUTCOME = {
    "late": "slow",
    "memory": "slow",
    "lost": "disconnected",
    "left": "disconnected",
    "battery": "disconnected",
    "done": "valid",
}
"""Dict from outcome of a task to the name of the round's count that includes the task."""

_EMPTY_ROUND = dict.fromkeys((*_METRICS, *OF_PEERS, "selected", "valid", "slow", "disconnected"))
"""Dict from column of rounds to None, its value if the record of the round lacks the field."""


def check_staleness(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each aggregation that records a wrong staleness of its updates.

    Staleness is the aggregation's round minus the round of the update's task, and 0 if the task
    belongs to no round. An aggregation without a round is not checked.
    """
    events = evidence.events
    starts = events[events["kind"] == "task-start"].drop_duplicates("task")
    round_of_task = starts.set_index("task")["round"].to_dict()
    aggregates = evidence.data_of("aggregate").join(events["round"])
    aggregates = aggregates[["tasks", "staleness", "round"]]
    for row, tasks, staleness, number in aggregates.itertuples(name=None):
        if number == NOTHING:
            continue
        stated = staleness or [0] * len(tasks)
        expected = [_staleness(number, round_of_task.get(task, NOTHING)) for task in tasks]
        if stated != expected:
            yield (
                f"record {row} (aggregate): the updates are {expected} rounds old, the record says "
                f"{stated}"
            )


def _staleness(number: int, start_round: int) -> int:
    """Return the staleness of an update (rounds); 0 if its task belongs to no round.

    Args:
        number: round of the aggregation.
        start_round: round of the update's task, ``NOTHING`` for none.
    """
    return 0 if start_round == NOTHING else number - start_round


def check_aggregated_once(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each task whose update is aggregated twice, wrongly, or not at all.

    Every aggregated task has to have ended ``done`` and to have finished an epoch. Every task that
    ended so has to be aggregated, with these exceptions:

    - A task without a round (profiling), or a task that the device's next task continues.
    - A task whose answer has no model (record ``no-update``).
    - An update that was lost with an edge server.
    - An update that arrives after the last aggregation.
    - If the strategy has no rounds: an update that arrives in the instant in which the server
      records a version, or an update of another group than that of the last aggregation.
    - If the strategy lets updates wait (``UPDATES_WAIT``): an update that waits at the end.
    """
    events = evidence.events
    # the following dicts have rows of ``events`` as keys, and ``idle_rows`` is a set of rows
    aggregates = evidence.data_of("aggregate")
    aggregated_tasks = aggregates["tasks"].to_dict()
    has_rounds = aggregates["has_rounds"].to_dict()
    lost_tasks = evidence.data_of("updates-lost")["tasks"].to_dict()
    tasks_without_model = evidence.data_of("no-update")["tasks"].to_dict()
    idle_rows = set(np.flatnonzero(evidence.is_idle_training).tolist())
    continued = _continued_tasks(evidence)
    kinds = events["kind"]
    ends_training = (kinds == "step-end") & (events["step"] == "train")
    begins_continuation = events.index.isin([*continued])
    ends_done = (kinds == "task-end") & (events["outcome"] == "done")
    is_of_server = kinds.isin(("no-update", "updates-lost", "aggregate", "round"))
    records = events[ends_training | begins_continuation | ends_done | is_of_server]
    records = records[["time", "kind", "task", "round", "group"]]
    book = _UpdateBook()
    lets_wait = evidence.run.scenario["strategy"]["kind"] in UPDATES_WAIT
    for row, time, kind, task, number, group in records.itertuples(name=None):
        if kind == "step-end":
            book.note_training(task, row in idle_rows, number)
        elif kind == "task-start":
            book.note_continuation(continued[row])
        elif kind == "task-end":
            book.note_done(task, time, group)
        elif kind == "no-update":
            yield from book.note_without_model(tasks_without_model[row])
        elif kind == "updates-lost":
            book.note_lost(lost_tasks[row])
        elif kind == "aggregate":
            yield from book.aggregate(aggregated_tasks[row], has_rounds[row], group)
        elif kind == "round" and not lets_wait:
            yield from book.close_round(time)


def _continued_tasks(evidence: Evidence) -> dict[int, int]:
    """Return the continued task for each task that continues another task.

    Returns:
        Dict from the row of the record that begins the continuing task to the ID of the continued
        task, the device's previous one.
    """
    starts = evidence.events[evidence.events["kind"] == "task-start"]
    previous = starts.groupby("device")["task"].shift()
    previous = previous[evidence.is_continuation[starts.index]].dropna().astype(np.int64)
    return dict(zip(previous.index.tolist(), previous.tolist(), strict=True))


class _UpdateBook:
    """Bookkeeping of updates: which may be aggregated, and which have to be aggregated.

    The audit calls a method for each record of the run, in their order. The ``note_`` methods
    remember which updates may or must be aggregated. ``note_without_model``, ``aggregate`` and
    ``close_round`` yield findings.
    """

    def __init__(self) -> None:
        self._without_epoch = set[int]()  # tasks that finished no epoch
        self._trained_in_round = set[int]()
        self._with_update = set[int]()  # tasks whose update may be aggregated
        self._aggregated = set[int]()  # tasks whose update was aggregated
        # task whose update must still be aggregated -> end (s) and group of the task
        self._must_aggregate: dict[int, tuple[float, int]] = {}
        self._has_rounds = True  # whether the last aggregation was of a strategy with rounds
        self._last_group = NOTHING  # group of the last aggregation

    def note_training(self, task: int, is_idle: bool, number: int) -> None:
        """Note that a task's training has ended.

        ``note_done`` then knows whether the task has an update, and whether this update is due.

        Args:
            task: ID of the task.
            is_idle: whether the training finished no epoch, so that there is no update.
            number: index of the task's round, or ``NOTHING``.
        """
        if is_idle:
            self._without_epoch.add(task)
        elif number != NOTHING:
            self._trained_in_round.add(task)

    def note_continuation(self, task: int) -> None:
        """Note that another task continues a task, so that the task need not be aggregated."""
        self._trained_in_round.discard(task)
        self._must_aggregate.pop(task, None)

    def note_done(self, task: int, time: float, group: int) -> None:
        """Note that a task ended ``done``, so that its update may be aggregated from now on.

        If the task trained in a round, its update has to be aggregated before the round ends.

        Args:
            task: ID of the task.
            time: simulated time of the end (s).
            group: the task's group, or ``NOTHING``.
        """
        if task in self._without_epoch:
            return
        self._with_update.add(task)
        self._aggregated.discard(task)
        if task in self._trained_in_round:
            self._must_aggregate[task] = time, group

    def note_without_model(self, tasks: Iterable[int]) -> Iterator[str]:
        """Note that the answers of tasks have no model, so that no aggregation has to count them.

        Yield a finding for each task whose update was not due: it has ended otherwise, has trained
        nothing, or an aggregation has counted it already.

        Args:
            tasks: IDs of the tasks.
        """
        for task in tasks:
            if self._must_aggregate.pop(task, None) is None:
                yield (
                    f"a record no-update lists task {task}, of which no aggregation had to count "
                    "an update by then"
                )

    def note_lost(self, tasks: Iterable[int]) -> None:
        """Note that the updates of tasks were lost with an edge server.

        From now on, these updates must not be aggregated.

        Args:
            tasks: IDs of the tasks.
        """
        for task in tasks:
            self._with_update.discard(task)
            self._must_aggregate.pop(task, None)

    def aggregate(self, tasks: Iterable[int], has_rounds: bool, group: int) -> Iterator[str]:
        """Note that updates were aggregated, and yield a finding for each that must not be.

        Args:
            tasks: IDs of the aggregated tasks.
            has_rounds: whether the strategy has rounds, so that no update may wait.
            group: the aggregation's group, or ``NOTHING``.
        """
        self._has_rounds = has_rounds
        self._last_group = group
        for task in tasks:
            if task in self._aggregated:
                yield f"task {task} is aggregated twice"
            elif task not in self._with_update:
                yield (
                    f"an aggregation counts task {task}, which had not ended done, with "
                    "something trained, by then"
                )
            self._must_aggregate.pop(task, None)
            self._aggregated.add(task)

    def close_round(self, time: float) -> Iterator[str]:
        """Note that a round has ended, and yield a finding for each update that it left out.

        If the strategy has no rounds, updates of other groups, and updates that arrived in this
        instant, may be left out.

        Args:
            time: end of the round (s).
        """
        for task, (ended_at, group) in [*self._must_aggregate.items()]:
            is_earlier = ended_at < time
            has_same_group = self._last_group in (NOTHING, group)
            if self._has_rounds or (is_earlier and has_same_group):
                del self._must_aggregate[task]
                yield f"task {task} was done in time, but no aggregation counts it"


def check_round_counts(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each count in the table of rounds that contradicts the round's tasks.

    A round counts its selected clients, and how many of these were valid, slow or disconnected. All
    cells of the table also have to agree with the record of the round.
    """
    summary = evidence.run.summary
    recorded = evidence.data_of("round")["data"].to_dict()  # fields of each round, by row
    table = evidence.run.table(files.ROUNDS)
    counts_agree = len(recorded) == len(table) == summary["rounds"]
    table_rows = iter(table.to_pylist())  # in the order of the rounds' records
    tallies: dict[int, Counter[str]] = defaultdict(Counter)  # counts of tasks by round
    for row, time, kind, task, number, outcome in _round_records(evidence).itertuples():
        name = plain_value(number)  # index of the round for findings; None for no round
        if kind == "task-end":
            tallies[number]["selected"] += 1
            tallies[number][_COUNT_OF_OUTCOME.get(outcome, outcome)] += 1
        elif kind == "task-start":
            # This task continues an earlier task. Both count as one task, at the end of the later
            # task, so the count of the earlier task is taken back.
            if number not in tallies:
                yield f"task {task} goes on with one of round {name}, of which none has ended"
            tallies[number].subtract(("selected", "valid"))
        else:
            data = recorded[row]
            yield from _check_counts(name, data, tallies.pop(number, Counter()))
            cells: Mapping[str, object] = next(table_rows, {})
            if counts_agree:
                yield from _check_cells(name, cells, {"round": name, "time": time, **data})
    if not counts_agree:
        yield (
            f"there are {len(recorded)} recorded rounds, {len(table)} in the table, "
            f"{summary['rounds']} in the summary"
        )


def _round_records(evidence: Evidence) -> pd.DataFrame:
    """Return the records from which the counts of rounds follow.

    These are the ends of rounds and of their tasks, and the starts of tasks that continue another
    one.

    Returns:
        DataFrame with ``time`` (s), ``kind``, ``task``, ``round`` and ``outcome``, indexed by row
        of ``events``. The outcome of a task that trained nothing is ``late``, even if it was
        carried out to its end.
    """
    events = evidence.events
    is_idle = last_marked_rows(evidence.is_idle_training, events["task"]) >= 0
    counts_as_late = is_idle & (events["outcome"] == "done").to_numpy()
    records = events.assign(outcome=np.where(counts_as_late, "late", events["outcome"]))
    ends = (events["kind"] == "task-end") & (events["round"] != NOTHING)
    relevant = ends | (events["kind"] == "round") | evidence.is_continuation
    return records.loc[relevant, ["time", "kind", "task", "round", "outcome"]]


def _check_counts(name: object, data: Mapping[str, int], counts: Counter[str]) -> Iterator[str]:
    """Yield a finding for each count in a round's record that differs from the count of its tasks.

    Args:
        name: index of the round, for the finding.
        data: fields of the round's record.
        counts: tasks of the round, counted by ``valid``, ``slow``, ``disconnected`` and
            ``selected``.
    """
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
    """Yield a finding for each cell of the rounds' table that differs from the round's record.

    Args:
        name: index of the round, for the finding.
        cells: row of the table.
        data: fields of the round's record.
    """
    for key, value in {**_EMPTY_ROUND, **data}.items():
        if key not in cells and key not in ROUNDS.names:
            continue  # a field of a strategy that is only in the record
        cell = cells.get(key, "missing")
        if cell != value:
            yield (
                f"round {name}: {key} is {cells.get(key)!r} in the table and {value!r} in "
                "the records"
            )
