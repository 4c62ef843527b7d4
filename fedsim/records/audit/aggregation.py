"""Did every update count, and count once?"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fedsim.arrays import Ints
from fedsim.records.audit.columns import NOTHING, Mask, Sequences
from fedsim.records.audit.events import Events
from fedsim.records.audit.evidence import Evidence

_DUE_ALL, _DUE_BEFORE = -2, -3  # else: of one group
_CONTINUED, _IDLE, _TRAINED, _DONE, _AGGREGATED, _LOST, _ROUND = range(7)


def aggregated_once(evidence: Evidence) -> Iterator[str]:
    """Tasks named by an aggregation had ended done, before it, and are named once; and no done training is left out.

    A training of which no epoch counts has nothing to aggregate, and must not be; one that belongs to no round (profiling), or
    that only prepared its device for the task that continues it, owes nothing. What was done after the last aggregation may
    still have been waiting for the next one; so may, without rounds, what was done in the same instant, and what was done for
    another group than that of which an aggregation is. What a lost edge server took with it is not left out either.
    """
    events = evidence.events
    rounds = np.flatnonzero(events.are("round"))
    turns = _turns(evidence)
    turns = turns.only(_doubtful(turns, rounds))
    latest = np.searchsorted(events.aggregations.at, rounds) - 1
    by_rounds = np.concatenate([events.aggregations.rounds, [True]])[latest]  # no aggregation yet is the last, which is True
    of_group = np.concatenate([events["group"][events.aggregations.at], [NOTHING]])[latest]
    due = np.where(by_rounds, _DUE_ALL, np.where(of_group == NOTHING, _DUE_BEFORE, of_group))
    what = np.concatenate([turns.what, np.full(len(rounds), _ROUND)])
    about = np.concatenate([turns.task, due])
    at = np.concatenate([turns.at, rounds])
    order = np.argsort(at, kind="stable")
    columns = (what[order], events["time"][at[order]], about[order])
    groups = dict(zip(turns.task.tolist(), events["group"][turns.at].tolist(), strict=True)) if (due >= 0).any() else {}
    yield from _follow(zip(*(column.tolist() for column in columns), strict=True), groups)


class _Turns(NamedTuple):
    """What happened to tasks that matters here, those of a task in a row and in order.

    Attributes:
        task, what, at: of which task, which of the above, in which record; int64 [n].
    """

    task: Ints
    what: Ints
    at: Ints

    def only(self, wanted: Mask) -> "_Turns":
        """Some of them, as they happened."""
        return _Turns(*(column[wanted] for column in self))


def _turns(evidence: Evidence) -> _Turns:
    events, words, named = evidence.events, evidence.words, evidence.events.aggregations
    trained = events.are("step-end") & (events["step"] == words["train"])
    told = {
        _IDLE: trained & events.idle,
        _TRAINED: trained & ~events.idle & (events["round"] != NOTHING),
        _DONE: events.are("task-end") & (events["outcome"] == words["done"]),
    }
    parts = [(events["task"][mask], np.full(np.count_nonzero(mask), what), np.flatnonzero(mask)) for what, mask in told.items()]
    continued, by = _continued(events)
    parts.append((continued, np.full(len(continued), _CONTINUED), by))
    parts.append((named.tasks, np.full(len(named.tasks), _AGGREGATED), np.repeat(named.at, np.diff(named.begin))))
    lost, by = events.lost_updates
    parts.append((lost, np.full(len(lost), _LOST), by))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[2], columns[0]))
    return _Turns(*(column[order] for column in columns))


def _continued(events: Events) -> tuple[Ints, Ints]:
    """Tasks that others went on with: those that their devices had before; and in which record. Two int64 [n]."""
    if not events.continues.any():
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(events.are("task-start"))
    days = Sequences(events["device"][rows])
    rows = rows[days.order]
    latest = days.latest_before(np.ones(len(rows), dtype=bool))
    continuing = events.continues[rows] & (latest >= 0)
    return events["task"][rows[latest[continuing]]].astype(np.int64), rows[continuing]


def _doubtful(turns: _Turns, rounds: Ints) -> Mask:
    """What must be followed record by record; bool [n]. A task is in order for certain if it

    - trained, was done once and then aggregated once, before the next record of a round, or
    - is in no aggregation, and was never done or never trained for a round.
    """
    tasks = Sequences(turns.task)
    count = [np.bincount(tasks.number, weights=turns.what == what) for what in range(_ROUND)]
    end, use = (_at(tasks, turns, what) for what in (_DONE, _AGGREGATED))
    used = (count[_IDLE] == 0) & (count[_DONE] == 1) & (count[_AGGREGATED] == 1) & (end < use)
    used &= np.searchsorted(rounds, end) == np.searchsorted(rounds, use)
    unused = (count[_AGGREGATED] == 0) & ((count[_DONE] == 0) | (count[_TRAINED] == 0))
    return ~(used | unused)[tasks.number]  # type: ignore[no-any-return]


def _at(tasks: Sequences, turns: _Turns, what: int) -> Ints:
    """In which record it happened to each task, of those to which it happened once; int64 [tasks]."""
    return np.bincount(tasks.number, weights=turns.at * (turns.what == what)).astype(np.int64)


def _is_due(due: int, group: int | None, before: bool) -> bool:
    return due == _DUE_ALL or (before and due in (_DUE_BEFORE, group))


def _follow(turns: Iterable[tuple[int, float, int]], groups: Mapping[int, int]) -> Iterator[str]:
    """What is wrong with the tasks of some turns.

    Args:
        turns: in order: what it is, when it was (s), and of which task; of a record of a round what must be aggregated by then:
            all that is done, what was done before this instant, or that of the tasks of one group alone (its number).
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
