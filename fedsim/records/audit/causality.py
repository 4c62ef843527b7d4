"""Do causes precede effects, and is every device in one place?"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedsim.arrays import Ints
from fedsim.records.audit.columns import Mask, Sequences, grain_s
from fedsim.records.audit.evidence import Evidence

_OF_TASKS = ("task-start", "step-start", "step-end", "task-end")


def time_order(evidence: Evidence) -> Iterator[str]:
    """Times never decrease, the first is not before 0, and the record of the run's end is the last."""
    events = evidence.events
    times = events["time"]
    before = np.concatenate([[0.0], times])[:-1]
    early = ~(times >= before)
    last = events.are("run-end")
    over = last.copy()
    over[-1:] = False
    for row in np.flatnonzero(early | over).tolist():
        if early[row]:
            yield f"record {row} ({events.name('kind', row)}) is at {times.item(row)!r} s, after one at {before.item(row)!r} s"
        if over[row]:
            yield f"record {row} says that the run is over, but {events.count - 1 - row} follow"
    if evidence.run.summary["status"] != "failed" and not last[-1:].any():
        yield "the run's end is not recorded"


def task_lives(evidence: Evidence) -> Iterator[str]:
    """task-start, then step-start and step-end in turn, then task-end with the outcome of the last step; and nothing after."""
    events = evidence.events
    rows = np.flatnonzero(events.are_any(_OF_TASKS))
    lives = Sequences(events["task"][rows])
    rows = rows[lives.order]
    for life in lives.parts_with(_irregular(evidence, rows, lives)):
        told = [events.row(row) for row in rows[life].tolist()]
        yield from (f"task {told[0]['task']}: {problem}" for problem in _life_problems(told, evidence.run.summary["status"]))


def _irregular(evidence: Evidence, rows: Ints, lives: Sequences) -> Mask:
    """Which records of tasks, those of a task in a row, are not as they must be; bool [rows].

    It only says where to look, at a price of a few passes over the columns: what is wrong there ``_life_problems`` says.
    """
    events, words = evidence.events, evidence.words
    kind, step, outcome, device = (events[name][rows] for name in ("kind", "step", "outcome", "device"))
    start, begin, end, over = (words[name] for name in _OF_TASKS)
    place, length = lives.places(), lives.lengths()
    between = ~lives.first & ~lives.last
    ends = between & (place % 2 == 0)
    wanted = np.where(ends, np.int32(end), np.int32(begin))
    wanted[lives.last], wanted[lives.first] = over, start
    before = np.maximum(np.arange(len(rows)) - 1, 0)
    return (  # type: ignore[no-any-return]
        (kind != wanted)
        | (length % 2 == 1)
        | (ends & (step != step[before]))
        | (ends & (place != length - 2) & (outcome != words["done"]))
        | (lives.last & (length > 2) & (outcome != outcome[before]))
        | (device != device[lives.begin])
    )


def _life_problems(life: list[dict[str, Any]], status: str) -> Iterator[str]:
    kinds = [event["kind"] for event in life]
    middle = kinds[1:-1]
    if kinds[0] != "task-start":
        yield f"begins with {kinds[0]}"
    if kinds[-1] != "task-end":
        if status != "failed":
            yield "never ends"
        return
    if middle != ["step-start", "step-end"] * (len(middle) // 2):
        yield "its steps do not begin and end in turn"
    for start, end in zip(life[1:-1:2], life[2:-1:2], strict=False):
        if start["step"] != end["step"]:
            yield f"{start['step']} begins and {end['step']} ends"
        if end is not life[-2] and end["outcome"] != "done":
            yield f"goes on after {end['step']} ended {end['outcome']}"
    if len(life) > 2 and life[-1]["outcome"] != life[-2]["outcome"]:
        yield f"ended {life[-1]['outcome']}, but its last step {life[-2]['outcome']}"
    if len({event["device"] for event in life}) > 1:
        yield "moves from one device to another"


def one_place(evidence: Evidence) -> Iterator[str]:
    """A device has at most one task at a time."""
    events, words = evidence.events, evidence.words
    rows = np.flatnonzero(events.are_any(_OF_TASKS))
    days = Sequences(events["device"][rows])
    rows = rows[days.order]
    kind, task = events["kind"][rows], events["task"][rows]
    starts = kind == words["task-start"]
    latest = days.latest_before(starts)  # the task that the device has, unless that task has ended since
    its_own = (latest >= 0) & (task == task[latest])
    ended = days.latest_before((kind == words["task-end"]) & its_own) > latest
    busy = (latest >= 0) & ~ended
    steps = (kind == words["step-start"]) | (kind == words["step-end"])
    wrong = np.flatnonzero((starts & busy) | (steps & ~(busy & its_own)))
    for place in wrong[np.argsort(rows[wrong])].tolist():
        event = events.row(rows[place])
        who, when = f"device {event['device']}", f"task {event['task']} at {event['time']!r} s"
        if starts[place]:
            yield f"{who} begins {when} while it still has task {events.shown('task', rows[latest[place]])}"
        else:
            yield f"{who} works on {when} without having it"


def deadlines(evidence: Evidence) -> Iterator[str]:
    """No task of a round is running, and none counts as done, after its deadline; no training is longer than its limit."""
    yield from _ended_late(evidence)
    yield from _trained_long(evidence)


def _ended_late(evidence: Evidence) -> Iterator[str]:
    events, limits = evidence.events, evidence.events.limits
    said = ~np.isnan(limits.deadline)
    ends = np.flatnonzero(events.are("task-end"))
    limit = _limit_of(evidence, ends, limits.at[said], limits.deadline[said])
    for place in np.flatnonzero(events["time"][ends] > limit).tolist():
        event, deadline = events.row(ends[place]), limit.item(place)
        yield f"task {event['task']} ended {event['outcome']} at {event['time']!r} s, after its deadline {deadline!r} s"


def _trained_long(evidence: Evidence) -> Iterator[str]:
    events, limits = evidence.events, evidence.events.limits
    rows = np.flatnonzero(events.are_any(("step-start", "step-end")) & (events["step"] == evidence.words["train"]))
    lives = Sequences(events["task"][rows])
    rows = rows[lives.order]
    ends = np.flatnonzero(events.are("step-end")[rows])
    begun = lives.latest_before(~events.are("step-end")[rows])[ends]
    end = events["time"][rows[ends]]
    took = end - events["time"][rows[begun]]
    limit = _limit_of(evidence, rows[ends], limits.at, limits.training)
    wrong = np.flatnonzero((begun < 0) | (took > limit + grain_s(end)))
    for place in wrong[np.argsort(rows[ends[wrong]])].tolist():
        task = events.shown("task", rows[ends[place]])
        if begun[place] < 0:
            yield f"task {task} ends a training that it has not begun"
        else:
            yield f"task {task} trained for {took.item(place)!r} s, longer than its limit of {limit.item(place)!r} s"


def _limit_of(evidence: Evidence, rows: Ints, at: Ints, values: Any) -> Any:
    """What the latest begin of its round said before each record; infinity where none did; float64 [rows]."""
    events = evidence.events
    both = np.concatenate([at, rows])
    order = np.argsort(both, kind="stable")
    sequences = Sequences(events["round"][both[order]])
    order = order[sequences.order]
    latest = sequences.latest_before(order < len(at))
    found = np.where(latest >= 0, np.concatenate([values, np.full(len(rows), np.inf)])[order[latest]], np.inf)
    result = np.empty(len(both))
    result[order] = found
    return result[len(at) :]
