"""Did every update count, and count once?"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pandas as pd

from fedsim.arrays import Ints
from fedsim.audit.evidence import NOTHING, Evidence

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
