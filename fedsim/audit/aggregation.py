"""Did every update count, and count once, and do the rounds say of their tasks what the records say?"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd

from fedsim.arrays import Ints
from fedsim.audit.evidence import NOTHING, Evidence, findings, latest, shown
from fedsim.meters.base import Column
from fedsim.records import folder as files
from fedsim.records.schema import ROUNDS, with_columns

_COUNTS = {
    "valid": ("done",),
    "slow": ("late", "memory"),
    "disconnected": ("lost", "left", "battery"),
}

_DUE_ALL, _DUE_BEFORE = -2, -3  # else: of one group
_CONTINUED, _IDLE, _TRAINED, _DONE, _AGGREGATED, _LOST, _ROUND = range(7)


def aggregated_once(evidence: Evidence) -> Iterator[str]:
    """Tasks named by an aggregation had ended done, before it, and are named once; and no done training is left out.

    A training of which no epoch counts has nothing to aggregate, and must not be; one that belongs to no round (profiling), or
    that only prepared its device for the task that continues it, owes nothing. Updates that came after the last aggregation may
    still have been waiting for the next one. Without rounds, so may updates of the same instant, and those of another group
    than the aggregation's. Updates that were lost with an edge server are not left out either.
    """
    events, named = evidence.events, evidence.said("aggregate")
    rounds = np.flatnonzero(events["kind"] == "round")
    place = np.searchsorted(named.index, rounds) - 1
    by_rounds = np.append(named["rounds"].to_numpy(), True)[place]  # at place -1 True: no aggregation yet
    group = np.append(events["group"].to_numpy()[named.index], NOTHING)[place]
    due = np.where(by_rounds, _DUE_ALL, np.where(group == NOTHING, _DUE_BEFORE, group))
    turns = pd.concat([*_turns(evidence), _turn(_ROUND, due, rounds)]).sort_values("at", kind="stable")
    groups = dict(zip(turns["task"], events["group"].to_numpy()[turns["at"]], strict=True)) if (due >= 0).any() else {}
    times = events["time"].to_numpy()[turns["at"]]
    yield from _follow(zip(turns["what"].tolist(), times.tolist(), turns["task"].tolist(), strict=True), groups)


def _turn(what: int, task: "Ints | pd.Series[int]", at: "Ints | pd.Index[int]") -> pd.DataFrame:
    return pd.DataFrame({"task": np.asarray(task, dtype=np.int64), "what": what, "at": np.asarray(at)})


def _turns(evidence: Evidence) -> Iterator[pd.DataFrame]:
    """Turns of tasks: kind (``what``), task and record (``at``)."""
    events, idle = evidence.events, evidence.idle
    trained = ((events["kind"] == "step-end") & (events["step"] == "train")).to_numpy()
    tasks = evidence.said("aggregate")["tasks"].explode().dropna()
    told = {
        _IDLE: events["task"][trained & idle],
        _TRAINED: events["task"][trained & ~idle & (events["round"] != NOTHING)],
        _DONE: events["task"][(events["kind"] == "task-end") & (events["outcome"] == "done")],
        _CONTINUED: _continued(evidence),
        _AGGREGATED: tasks,
        _LOST: evidence.lost_updates,
    }
    return (_turn(what, task, task.index) for what, task in told.items())


def _continued(evidence: Evidence) -> "pd.Series[int]":
    """Tasks that another went on with, the one before of the same device; by the record that says so."""
    events = evidence.events
    starts = events[events["kind"] == "task-start"]
    before = starts.groupby("device")["task"].shift()
    return before[evidence.continues[starts.index]].dropna().astype(np.int64)


def _is_due(due: int, group: int | None, before: bool) -> bool:
    return due == _DUE_ALL or (before and due in (_DUE_BEFORE, group))


def _follow(turns: Iterable[tuple[int, float, int]], groups: Mapping[int, int]) -> Iterator[str]:
    """Problems of the tasks of some turns.

    Args:
        turns: in order: what it is, when it was (s), and of which task. Of a record of a round it is instead which updates must
            be aggregated by then: all (``_DUE_ALL``), those from before this instant (``_DUE_BEFORE``), or those of one group.
        groups: the group of each task, where some round is of one group.
    """
    trained: set[int] = set()
    idle: set[int] = set()
    done: dict[int, float] = {}  # task -> since when, of those that no aggregation has named
    owed: dict[int, float] = {}  # those of them that trained for a round
    counted: set[int] = set()
    for what, time, task in turns:
        if what == _TRAINED:
            trained.add(task)
            if task in done:
                owed[task] = done[task]
        elif what == _IDLE:
            idle.add(task)
        elif what == _LOST:
            done.pop(task, None)
            owed.pop(task, None)
        elif what == _CONTINUED:
            trained.discard(task)
            owed.pop(task, None)
        elif what == _DONE:
            if task not in idle:
                counted.discard(task)
                done[task] = time
                if task in trained:
                    owed[task] = time
        elif what == _AGGREGATED:
            if task in counted:
                yield f"task {task} is aggregated twice"
            elif task not in done:
                yield f"an aggregation counts task {task}, which had not ended done, with something trained, by then"
            done.pop(task, None)
            owed.pop(task, None)
            counted.add(task)
        else:
            for late in [one for one, since in owed.items() if _is_due(task, groups.get(one), since < time)]:
                del owed[late], done[late]
                yield f"task {late} was done in time, but no aggregation counts it"


def round_counts(evidence: Evidence) -> Iterator[str]:
    """Each round's counts are those of its tasks, and the rounds' table says what the records say."""
    events, summary, table = evidence.events, evidence.run.summary, evidence.rounds
    tasks, recorded = _tasks(evidence), evidence.said("round")["data"]
    counts = _counts(tasks)
    agree = len(recorded) == len(table) == summary["rounds"]
    rows = _rows(evidence) if agree else repeat({})
    for at, data, row in zip(recorded.index.tolist(), recorded, rows, strict=False):
        number = shown(events["round"].iat[at])
        yield from _problems(number, data, counts[at])
        told = {"round": number, "time": shown(events["time"].iat[at])} | data
        for key, value in told.items() if agree else ():
            here = row.get(key, "missing")
            if here != value:
                yield f"round {number}: {key} is {here!r} in the table and {value!r} in the records"
    text = "task {task} goes on with one of round {round}, of which none has ended"
    yield from findings(text, tasks, (tasks["weight"] < 0) & (latest(tasks["weight"] > 0, tasks["part"]) < 0))
    if not agree:
        yield f"there are {len(recorded)} recorded rounds, {len(table)} in the table, {summary['rounds']} in the summary"
        return
    measured, stated = table["accuracy"].dropna(), summary["accuracy"]
    if len(measured) and (stated["final"] != measured.iat[-1] or stated["best"] != measured.max()):
        last, best = shown(measured.iat[-1]), shown(measured.max())
        yield f"the summary's accuracy is {stated}, the rounds' last {last!r} and best {best!r}"


def _tasks(evidence: Evidence) -> pd.DataFrame:
    """Ends of the tasks of rounds, and records of rounds, with what each counts for.

    Columns besides those of the records: ``weight``, -1 for a begin that goes on with another task, as both count as one;
    ``closed``, the record of the round that counts it; ``part``, a number for those that are counted together.
    """
    events = evidence.events
    closes, continues = (events["kind"] == "round").to_numpy(), evidence.continues
    ends = ((events["kind"] == "task-end") & (events["round"] != NOTHING)).to_numpy()
    idle = latest(evidence.idle, events["task"]) >= 0  # slow, even if they were carried out to their end
    outcome = np.asarray(events["outcome"], dtype=object)
    outcome[idle & ends & (outcome == "done")] = "late"
    outcome[continues] = "done"
    closed = events.index.to_series().where(closes).groupby(events["round"]).bfill()
    told = events.assign(outcome=outcome, weight=ends.astype(int) - continues, closed=closed)[ends | closes | continues]
    return told.assign(part=told.groupby(["round", "closed"], dropna=False).ngroup())


def _counts(tasks: pd.DataFrame) -> dict[int, dict[str, int]]:
    """Number of tasks by outcome, by the record of the round that counts them."""
    ended = tasks.groupby(["closed", "outcome"])["weight"].sum().unstack(fill_value=0)
    counts = {key: ended.reindex(columns=outcomes, fill_value=0).sum(axis=1) for key, outcomes in _COUNTS.items()}
    return pd.DataFrame(counts | {"selected": ended.sum(axis=1)}).to_dict("index")  # type: ignore[return-value]


def _problems(number: int | None, told: Mapping[str, Any], counted: Mapping[str, int]) -> Iterator[str]:
    for key, value in counted.items():
        waits = "selected" in told or key != "disconnected"  # a round that does not wait may close before it hears of a loss
        if key in told and (told[key] != value if waits else told[key] > value):
            yield f"round {number}: {key} is {told[key]}, its tasks say {value}"


def _rows(evidence: Evidence) -> Iterator[dict[str, Any]]:
    metrics = [Column(name, "", "a metric") for name in evidence.run.summary.get("metrics", {})]
    for table in evidence.run.batches(files.ROUNDS, with_columns(ROUNDS, metrics), 4_096):
        yield from table.to_pylist()
