"""Do causes precede effects, and is every device in one place?"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import pandas as pd

from fedsim.arrays import Floats
from fedsim.audit.evidence import Evidence, at_places, findings, grain_s, latest, shown
from fedsim.records.schema import OF_TASKS


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
    lives = events[events["kind"].isin(OF_TASKS)].sort_values("task", kind="stable")
    rows = zip(*(lives[name].tolist() for name in ("task", "kind", "device", "step", "outcome")), strict=True)
    for task, life in groupby(rows, itemgetter(0)):
        _, kinds, devices, steps, outcomes = zip(*life, strict=True)
        found = _problems(kinds, devices, steps, outcomes, evidence.run.summary["status"])
        yield from (f"task {shown(task)}: {problem}" for problem in found)


def _problems(
    kinds: tuple[str, ...], devices: Sequence[int], steps: tuple[str, ...], outcomes: tuple[str, ...], status: str
) -> Iterator[str]:
    last = len(kinds) - 1
    if kinds[0] != "task-start":
        yield f"begins with {kinds[0]}"
    if kinds[last] != "task-end":
        if status != "failed":
            yield "never ends"
        return
    if kinds[1:last] != ("step-start", "step-end") * ((last - 1) // 2):
        yield "its steps do not begin and end in turn"
    for end in range(2, last, 2):
        if steps[end - 1] != steps[end]:
            yield f"{shown(steps[end - 1])} begins and {shown(steps[end])} ends"
        if end != last - 1 and outcomes[end] != "done":
            yield f"goes on after {shown(steps[end])} ended {shown(outcomes[end])}"
    if last > 1 and outcomes[last] != outcomes[last - 1]:
        yield f"ended {shown(outcomes[last])}, but its last step {shown(outcomes[last - 1])}"
    if len(set(devices)) > 1:
        yield "moves from one device to another"


def one_place(evidence: Evidence) -> Iterator[str]:
    """A device has at most one task at a time."""
    events = evidence.events[evidence.events["kind"].isin(OF_TASKS)]
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
