"""Can it have happened in this order: do causes precede effects, and did every update count, and count once?"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.arrays import Floats
from fedsim.audit.evidence import NOTHING, Evidence, at_places, findings, grain_s, latest, shown
from fedsim.records import folder as files
from fedsim.records.schema import OF_TASKS

_COUNTS = {
    **dict.fromkeys(("late", "memory"), "slow"),
    **dict.fromkeys(("lost", "left", "battery"), "disconnected"),
    "done": "valid",
}
_IN_TURN = (
    *((kind, before) for kind in ("step-start", "task-end") for before in ("task-start", "step-end")),
    ("task-start", ""),
    ("step-end", "step-start"),
)
"""Kinds of records of a task that may follow each other."""


def time_order(evidence: Evidence) -> Iterator[str]:
    """Times never decrease, the first is not before 0, and the record of the run's end is the last."""
    events = evidence.events
    told = events.assign(before=events["time"].shift(fill_value=0.0))
    text = "record {row} ({kind}) is at {time!r} s, after one at {before!r} s"
    yield from findings(text, told, ~(told["time"] >= told["before"]))
    ends = events[events["kind"] == "run-end"]
    follow = (len(events) - 1 - ends.index).to_numpy()
    yield from findings("record {row} says that the run is over, but {follow} follow", ends.assign(follow=follow), follow > 0)
    if evidence.run.summary["status"] != "failed" and 0 not in follow:
        yield "the run's end is not recorded"


def task_lives(evidence: Evidence) -> Iterator[str]:
    """task-start, then step-start and step-end in turn, then task-end with the outcome of the last step; and nothing after."""
    names = ["kind", "step", "outcome", "device"]
    lives = evidence.events[evidence.events["kind"].isin(OF_TASKS)].astype(dict.fromkeys(names, object))
    told = lives.join(lives.groupby("task")[names].shift().fillna("").add_prefix("last_"))
    ends, goes_on = told["kind"] == "step-end", told["last_kind"] == "step-end"
    in_turn = pd.MultiIndex.from_frame(told[["kind", "last_kind"]]).isin(_IN_TURN)
    yield from findings("task {task}: {kind} follows {last_kind}", told, ~in_turn)
    yield from findings("task {task}: {last_step} begins and {step} ends", told, ends & (told["step"] != told["last_step"]))
    text = "task {task}: goes on after {last_step} ended {last_outcome}"
    yield from findings(text, told, goes_on & (told["kind"] == "step-start") & (told["last_outcome"] != "done"))
    text = "task {task}: ended {outcome}, but its last step {last_outcome}"
    yield from findings(text, told, goes_on & (told["kind"] == "task-end") & (told["outcome"] != told["last_outcome"]))
    moves = (told["last_kind"] != "") & (told["device"] != told["last_device"])
    yield from findings("task {task}: moves from device {last_device} to {device}", told, moves)
    if evidence.run.summary["status"] != "failed":
        last = lives.drop_duplicates("task", keep="last")
        yield from findings("task {task}: never ends", last, last["kind"] != "task-end")


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


def aggregated_once(evidence: Evidence) -> Iterator[str]:
    """Tasks named by an aggregation had ended done, before it, and are named once; and no done training is left out.

    A training of which no epoch counts has nothing to aggregate, and must not be; one that belongs to no round (profiling), or
    that only prepared its device for the task that continues it, owes nothing. Updates that came after the last aggregation may
    still have been waiting for the next one. Without rounds, so may updates of the same instant, and those of another group
    than the aggregation's. Updates that were lost with an edge server are not left out either.
    """
    events, aggregates = evidence.events, evidence.said("aggregate")
    done = evidence.tasks[evidence.tasks["outcome"] == "done"]
    done = done[~done["task"].isin(events["task"][evidence.idle])].drop_duplicates("task")
    ended = pd.Series(done.index, done["task"])
    named, lost = (
        of.explode().dropna().astype(np.int64) for of in (aggregates["tasks"], evidence.said("updates-lost")["tasks"])
    )
    gone = pd.Series(lost.index, lost).groupby(level=0).min()
    once = named[~named.duplicated()].to_frame("task").assign(at=lambda own: own.index)
    yield from findings("task {task} is aggregated twice", named[named.duplicated()].to_frame("task"))
    known = (ended.reindex(once["task"]).to_numpy() < once["at"]) & ~(gone.reindex(once["task"]).to_numpy() < once["at"])
    text = "an aggregation counts task {task}, which had not ended done, with something trained, by then"
    yield from findings(text, once, ~known)

    starts = events[events["kind"] == "task-start"]
    prepared = starts.groupby("device")["task"].shift()[evidence.continues[starts.index]].dropna()
    trained = events["task"][(events["kind"] == "step-end") & (events["step"] == "train") & (events["round"] != NOTHING)]
    due = done[done["task"].isin(trained)]
    settled = pd.concat([pd.Series(of.index, of) for of in (once["task"], lost, prepared)]).groupby(level=0).min()
    rounds = events[events["kind"] == "round"]
    last = latest(events["kind"] == "aggregate", np.zeros(len(events)))[rounds.index]  # -1: there is none before
    in_rounds = np.append(aggregates["rounds"].reindex(events.index, fill_value=True), True)[last]
    of_group = np.append(events["group"], NOTHING)[last]
    found = pd.Series(len(events), due.index)  # the first record of a round by which each was to be aggregated
    for group in due["group"].unique():
        own = due[due["group"] == group]
        for waits in (False, True):
            fits = ~in_rounds & np.isin(of_group, (NOTHING, group)) if waits else in_rounds
            place = np.searchsorted(rounds.index[fits], own.index)
            if waits:
                place = np.maximum(place, np.searchsorted(rounds["time"][fits], own["time"], side="right"))
            found[own.index] = np.minimum(found[own.index], np.append(rounds.index[fits], len(events))[place])
    left = found.to_numpy() < settled.reindex(due["task"]).fillna(len(events)).to_numpy()
    yield from findings("task {task} was done in time, but no aggregation counts it", due, left)


def round_counts(evidence: Evidence) -> Iterator[str]:
    """Each round's counts are those of its tasks, and the rounds' table says what the records say."""
    events, summary, recorded = evidence.events, evidence.run.summary, evidence.said("round")["data"]
    table = evidence.run.table(files.ROUNDS).to_pylist()
    agree = len(recorded) == len(table) == summary["rounds"]
    ends, goes_on = evidence.tasks[evidence.tasks["round"] != NOTHING], events[evidence.continues]
    first = pd.Series(ends.index, ends["round"]).groupby(level=0).min().reindex(goes_on["round"]).to_numpy()
    text = "task {task} goes on with one of round {round}, of which none has ended"
    closes = pd.Series(recorded.index, events["round"][recorded.index]).groupby(level=0).min()
    over = closes.reindex(goes_on["round"]).to_numpy() < goes_on.index
    yield from findings(text, goes_on, ~(first < goes_on.index) | over)
    idle = latest(evidence.idle, events["task"])[ends.index] >= 0  # slow, even if they were carried out to their end
    outcomes = ends["outcome"].astype(object).mask(idle & (ends["outcome"] == "done"), "late").map(_COUNTS)
    parts = [ends.assign(key=outcomes, by=1), goes_on.assign(key="valid", by=-1)]  # both count as one
    told = pd.concat([*parts, *(part.assign(key="selected") for part in parts)])
    told = told[told.index < closes.reindex(told["round"]).to_numpy()]
    counts = told.groupby(["round", "key"])["by"].sum().to_dict()
    for at, (row, data) in enumerate(zip(recorded.index.tolist(), recorded, strict=True)):
        number, time = (shown(events[name].iat[row]) for name in ("round", "time"))
        for key in ("valid", "slow", "disconnected", "selected"):
            waits, count = "selected" in data or key != "disconnected", counts.get((number, key), 0)
            if key in data and (data[key] != count if waits else data[key] > count):  # others close before they hear of a loss
                yield f"round {number}: {key} is {data[key]}, its tasks say {count}"
        for key, value in ({"round": number, "time": time} | data).items() if agree else ():
            if table[at].get(key, "missing") != value:
                yield f"round {number}: {key} is {table[at].get(key)!r} in the table and {value!r} in the records"
    if not agree:
        yield f"there are {len(recorded)} recorded rounds, {len(table)} in the table, {summary['rounds']} in the summary"
        return
    measured, stated = evidence.rounds["accuracy"].dropna(), summary["accuracy"]
    if len(measured) and (stated["final"] != measured.iat[-1] or stated["best"] != measured.max()):
        last, best = shown(measured.iat[-1]), shown(measured.max())
        yield f"the summary's accuracy is {stated}, the rounds' last {last!r} and best {best!r}"
