"""Do causes precede effects, and is every device in one place?"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.arrays import Flags, Floats
from fedsim.records.audit.evidence import Evidence, at_places, findings, grain_s, latest, shown

_OF_TASKS = ("task-start", "step-start", "step-end", "task-end")


def time_order(evidence: Evidence) -> Iterator[str]:
    """Times never decrease, the first is not before 0, and the record of the run's end is the last."""
    events = evidence.events
    before = events["time"].shift(fill_value=0.0)
    early = ~(events["time"] >= before)
    yield from findings(
        "record {row} ({kind}) is at {time!r} s, after one at {before!r} s", events.assign(before=before), early
    )
    ends = events[events["kind"] == "run-end"]
    follow = (len(events) - 1 - ends.index).to_numpy()
    yield from findings("record {row} says that the run is over, but {follow} follow", ends.assign(follow=follow), follow > 0)
    if evidence.run.summary["status"] != "failed" and 0 not in follow:
        yield "the run's end is not recorded"


def task_lives(evidence: Evidence) -> Iterator[str]:
    """task-start, then step-start and step-end in turn, then task-end with the outcome of the last step; and nothing after."""
    events = evidence.events
    lives = events[events["kind"].isin(_OF_TASKS)].sort_values("task", kind="stable")
    doubtful = lives[lives["task"].isin(lives["task"][_irregular(lives)])]
    for task, life in doubtful.groupby("task", sort=False):
        told = life[["kind", "device", "step", "outcome"]].to_dict("records")
        yield from (f"task {shown(task)}: {problem}" for problem in _problems(told, evidence.run.summary["status"]))


def _irregular(lives: pd.DataFrame) -> Flags:
    """Which records do not follow from the one before: where to look for ``_problems``, in a few passes over the columns."""
    task, kind, step, outcome = (lives[name].to_numpy() for name in ("task", "kind", "step", "outcome"))
    changes = task[1:] != task[:-1]
    first, last = np.append(True, changes), np.append(changes, True)
    before, ended = np.roll(kind, 1), np.roll(kind, 1) == "step-end"
    same_outcome = outcome == np.roll(outcome, 1)
    right = np.select(
        [first, kind == "step-start", kind == "step-end"],
        [
            kind == "task-start",
            (before == "task-start") | (ended & (np.roll(outcome, 1) == "done")),
            (before == "step-start") & (step == np.roll(step, 1)),
        ],
        (kind == "task-end") & ((before == "task-start") | (ended & same_outcome)),
    )
    moved = ~first & (lives["device"].to_numpy() != np.roll(lives["device"], 1))
    return np.asarray(~right.astype(bool) | moved | (last & (kind != "task-end")))


def _problems(life: list[dict[Any, Any]], status: str) -> Iterator[str]:
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
            yield f"{shown(start['step'])} begins and {shown(end['step'])} ends"
        if end is not life[-2] and end["outcome"] != "done":
            yield f"goes on after {shown(end['step'])} ended {shown(end['outcome'])}"
    if len(life) > 2 and life[-1]["outcome"] != life[-2]["outcome"]:
        yield f"ended {shown(life[-1]['outcome'])}, but its last step {shown(life[-2]['outcome'])}"
    if len({event["device"] for event in life}) > 1:
        yield "moves from one device to another"


def one_place(evidence: Evidence) -> Iterator[str]:
    """A device has at most one task at a time."""
    events = evidence.events[evidence.events["kind"].isin(_OF_TASKS)]
    device, task, starts = (one.to_numpy() for one in (events["device"], events["task"], events["kind"] == "task-start"))
    begun = pd.Series(latest(starts, device)).groupby(device).shift(fill_value=-1).to_numpy()
    begun = np.where(starts, begun, latest(starts, device))  # the start before of the same device
    had = np.append(task, 0)[begun]
    own = (begun >= 0) & (task == had)
    busy = (begun >= 0) & (latest((events["kind"] == "task-end") & own, device) <= begun)
    at_work = events["kind"].isin(("step-start", "step-end"))
    told = events.assign(had=had)
    text = "device {device} begins task {task} at {time!r} s while it still has task {had}"
    yield from findings(text, told, starts & busy)
    yield from findings("device {device} works on task {task} at {time!r} s without having it", told, at_work & ~(busy & own))


def deadlines(evidence: Evidence) -> Iterator[str]:
    """No task of a round is running, and none counts as done, after its deadline; no training is longer than its limit."""
    events = evidence.events
    ended = events.assign(limit=_limits(evidence, "deadline"))[events["kind"] == "task-end"]
    text = "task {task} ended {outcome} at {time!r} s, after its deadline {limit!r} s"
    yield from findings(text, ended, ended["time"] > ended["limit"])
    trains = (events["step"] == "train").to_numpy()
    begun = latest(trains & (events["kind"] == "step-start"), events["task"])
    took = events["time"] - at_places(events["time"], begun)
    told = events.assign(begun=begun, took=took, limit=_limits(evidence, "training"))[trains & (events["kind"] == "step-end")]
    yield from findings("task {task} ends a training that it has not begun", told, told["begun"] < 0)
    long = (told["begun"] >= 0) & (told["took"] > told["limit"] + grain_s(told["time"]))
    yield from findings("task {task} trained for {took!r} s, longer than its limit of {limit!r} s", told, long)


def _limits(evidence: Evidence, name: str) -> Floats:
    """The latest limit of each record's round; infinity where there is none; float64 [records]."""
    events = evidence.events
    said = evidence.said("round-start")[name].reindex(events.index)
    return said.groupby(events["round"]).ffill().fillna(np.inf).to_numpy()
