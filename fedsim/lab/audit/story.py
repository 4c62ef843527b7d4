"""Can it have happened in this order: do causes precede effects, and did every update count, and
count once?
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.units import Seconds
from fedsim.lab.audit.evidence import (
    NOTHING,
    Evidence,
    at_places,
    findings,
    grain_s,
    latest,
    read,
    shown,
)
from fedsim.records import folder as files
from fedsim.records.schema import OF_PEERS, OF_TASKS

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
_COUNTS = {
    **dict.fromkeys(("late", "memory"), "slow"),
    **dict.fromkeys(("lost", "left", "battery"), "disconnected"),
    "done": "valid",
}
_NOT_MEASURED = dict.fromkeys((*_FIGURES, *OF_PEERS, "selected", "valid", "slow", "disconnected"))
"""Columns of rounds that are empty where the record of the round does not have them."""

_IN_TURN = (
    *(
        (kind, before)
        for kind in ("step-start", "task-end")
        for before in ("task-start", "step-end")
    ),
    ("task-start", ""),
    ("step-end", "step-start"),
)
"""Kinds of records of a task that may follow each other."""


def time_order(evidence: Evidence) -> Iterator[str]:
    """Times never decrease, the first is not before 0, and the record of the run's end is the
    last.
    """
    events = evidence.events
    told = events.assign(before=events["time"].shift(fill_value=0.0))
    text = "record {row} ({kind}) is at {time!r} s, after one at {before!r} s"
    yield from findings(text, told, ~(told["time"] >= told["before"]))
    ends = events[events["kind"] == "run-end"]
    follow = (len(events) - 1 - ends.index).to_numpy()
    yield from findings(
        "record {row} says that the run is over, but {follow} follow",
        ends.assign(follow=follow),
        follow > 0,
    )
    if evidence.run.summary["status"] != "failed" and 0 not in follow:
        yield "the run's end is not recorded"


def task_lives(evidence: Evidence) -> Iterator[str]:
    """task-start, then step-start and step-end in turn, then task-end with the outcome of the
    last step; and nothing after.
    """
    names = ["kind", "step", "outcome", "device"]
    lives = evidence.events[evidence.events["kind"].isin(OF_TASKS)].astype(
        dict.fromkeys(names, object)
    )
    told = lives.join(lives.groupby("task")[names].shift().fillna("").add_prefix("last_"))
    ends = told["kind"] == "step-end"
    goes_on = told["last_kind"] == "step-end"
    in_turn = pd.MultiIndex.from_frame(told[["kind", "last_kind"]]).isin(_IN_TURN)
    yield from findings("task {task}: {kind} follows {last_kind}", told, ~in_turn)
    yield from findings(
        "task {task}: {last_step} begins and {step} ends",
        told,
        ends & (told["step"] != told["last_step"]),
    )
    text = "task {task}: goes on after {last_step} ended {last_outcome}"
    yield from findings(
        text, told, goes_on & (told["kind"] == "step-start") & (told["last_outcome"] != "done")
    )
    text = "task {task}: ended {outcome}, but its last step {last_outcome}"
    yield from findings(
        text,
        told,
        goes_on & (told["kind"] == "task-end") & (told["outcome"] != told["last_outcome"]),
    )
    moves = (told["last_kind"] != "") & (told["device"] != told["last_device"])
    yield from findings("task {task}: moves from device {last_device} to {device}", told, moves)
    if evidence.run.summary["status"] != "failed":
        last = lives.drop_duplicates("task", keep="last")
        yield from findings("task {task}: never ends", last, last["kind"] != "task-end")


def one_place(evidence: Evidence) -> Iterator[str]:
    """A device has at most one task at a time."""
    events = evidence.events[evidence.events["kind"].isin(OF_TASKS)]
    device, task, starts = (
        one.to_numpy() for one in (events["device"], events["task"], events["kind"] == "task-start")
    )
    begun = pd.Series(latest(starts, device)).groupby(device).shift(fill_value=-1).to_numpy()
    begun = np.where(starts, begun, latest(starts, device))  # the start before of the same device
    had = np.append(task, 0)[begun]
    own = (begun >= 0) & (task == had)
    busy = (begun >= 0) & (latest((events["kind"] == "task-end") & own, device) <= begun)
    at_work = events["kind"].isin(("step-start", "step-end"))
    told = events.assign(had=had)
    text = "device {device} begins task {task} at {time!r} s while it still has task {had}"
    yield from findings(text, told, starts & busy)
    yield from findings(
        "device {device} works on task {task} at {time!r} s without having it",
        told,
        at_work & ~(busy & own),
    )


def deadlines(evidence: Evidence) -> Iterator[str]:
    """No task of a round is running, and none counts as done, after its deadline; no training is
    longer than its limit.
    """
    events = evidence.events
    ended = events.assign(limit=_limits(evidence, "deadline"))[events["kind"] == "task-end"]
    text = "task {task} ended {outcome} at {time!r} s, after its deadline {limit!r} s"
    yield from findings(text, ended, ended["time"] > ended["limit"])
    trains = (events["step"] == "train").to_numpy()
    begun = latest(trains & (events["kind"] == "step-start"), events["task"])
    took = events["time"] - at_places(events["time"], begun)
    told = events.assign(begun=begun, took=took, limit=_limits(evidence, "training"))[
        trains & (events["kind"] == "step-end")
    ]
    yield from findings(
        "task {task} ends a training that it has not begun", told, told["begun"] < 0
    )
    long = (told["begun"] >= 0) & (told["took"] > told["limit"] + grain_s(told["time"]))
    yield from findings(
        "task {task} trained for {took!r} s, longer than its limit of {limit!r} s", told, long
    )


def _limits(evidence: Evidence, name: str) -> Floats:
    """The latest limit of each record's round; infinity where there is none; float64 [records]."""
    events = evidence.events
    said = evidence.said("round-start")[name].reindex(events.index)
    return said.groupby(events["round"]).ffill().fillna(np.inf).to_numpy()


def rounds_begin(evidence: Evidence) -> Iterator[str]:
    """A round asks as many clients as the record of its begin says, at that time; where edge
    servers ask, no more.
    """
    begins = evidence.said("round-start").join(evidence.events[["time", "round"]])
    stated = begins.dropna(subset="selected")
    events = evidence.events
    starts = events[(events["kind"] == "task-start") & ~evidence.continues]
    asked = starts.groupby("round")["task"].nunique()
    told = stated.assign(asked=stated["round"].map(asked).fillna(0.0))
    through_edges = "edge" in evidence.run.scenario["network"]
    differs = (
        (told["asked"] > told["selected"]) if through_edges else (told["asked"] != told["selected"])
    )
    failed = evidence.run.summary["status"] != "done"
    last = told["round"] == told["round"].max()
    again = begins.assign(before=begins["round"].shift(fill_value=-1))
    text = "record {row} begins round {round}, after round {before}"
    yield from findings(text, again, again["round"] <= again["before"])
    text = "round {round} begins with {selected:g} clients, and {asked:g} are asked"
    yield from findings(text, told, differs & ~(last & failed))


def deadlines_as_said(evidence: Evidence) -> Iterator[str]:
    """A deadline that the scenario gives as a time is that long after the begin of its round, or
    bounds each training.
    """
    strategy = evidence.run.scenario["strategy"]
    rule = strategy.get("deadline")
    if ":" in strategy["kind"] or (isinstance(rule, dict) and rule["kind"] != "fixed"):
        return
    begins = evidence.said("round-start").join(evidence.events[["time", "round"]])
    if rule is None:
        text = "round {round} has the deadline {deadline!r} s, and the scenario has none"
        yield from findings(
            text, begins, begins["deadline"].notna() | np.isfinite(begins["training"])
        )
        return
    due = read(Seconds, rule["time"] if isinstance(rule, dict) else rule)
    told = begins.assign(given=begins["deadline"] - begins["time"], due=due)
    text = "round {round} has {given!r} s until its deadline, by the scenario {due!r} s"
    yield from findings(text, told, np.abs(told["given"] - due) > grain_s(told["time"]))
    text = "round {round} bounds trainings by {training!r} s, by the scenario by {due!r} s"
    yield from findings(text, told, np.isfinite(told["training"]) & (told["training"] != due))


def rounds_of_updates(evidence: Evidence) -> Iterator[str]:
    """An aggregation is of the round of its updates, or of as many rounds later as its staleness
    says.

    An update or an aggregation without a round has no age.
    """
    events = evidence.events
    aggregates = evidence.said("aggregate")
    starts = (
        events[events["kind"] == "task-start"].drop_duplicates("task").set_index("task")["round"]
    )
    told = aggregates.join(events["round"])[["tasks", "staleness", "round"]]
    began = starts.to_dict()
    columns: tuple[list[Any], ...] = (
        told["tasks"].tolist(),
        told["staleness"].tolist(),
        told["round"].tolist(),
    )
    for row, tasks, staleness, number in zip(told.index.tolist(), *columns, strict=True):
        stale = staleness or [0] * len(tasks)
        if number == NOTHING:
            continue
        asked_in = [began.get(task, NOTHING) for task in tasks]
        due = [0 if start == NOTHING else number - start for start in asked_in]
        if stale != due:
            yield (
                f"record {row} (aggregate): the updates are {due} rounds old, the record says "
                f"{stale}"
            )


def aggregated_once(evidence: Evidence) -> Iterator[str]:
    """Tasks named by an aggregation had ended done, before it, and are named once; and no done
    training is left out.

    A training of which no epoch counts has nothing to aggregate, and must not be; one that belongs
    to no round (profiling), or that only prepared its device for the task that continues it, owes
    nothing. Updates that came after the last aggregation may still have been waiting for the next
    one. Without rounds, so may updates of the same instant, and those of another group than the
    aggregation's. Updates that were lost with an edge server are not left out either.
    """
    events = evidence.events
    aggregates = evidence.said("aggregate")
    named, rounds = (aggregates[name].to_dict() for name in ("tasks", "rounds"))
    lost = evidence.said("updates-lost")["tasks"].to_dict()
    idle_ends = set(np.flatnonzero(evidence.idle).tolist())
    starts = events[events["kind"] == "task-start"]
    before = (
        starts.groupby("device")["task"]
        .shift()[evidence.continues[starts.index]]
        .dropna()
        .astype(np.int64)
        .to_dict()
    )
    wanted = events["kind"].isin(("aggregate", "round", "updates-lost")) | events.index.isin(
        [*before]
    )
    wanted |= (events["kind"] == "task-end") & (events["outcome"] == "done")
    wanted |= (events["kind"] == "step-end") & (events["step"] == "train")
    columns = (events[name][wanted].tolist() for name in ("time", "kind", "task", "round", "group"))
    trained = set[int]()
    idle = set[int]()
    ended = set[int]()
    counted = set[int]()
    # tasks that trained for a round and ended done: when, and of which group
    owed: dict[int, tuple[float, int]] = {}
    all_due = True
    of_group = NOTHING
    for row, time, kind, task, number, group in zip(
        events.index[wanted].tolist(), *columns, strict=True
    ):
        if kind == "step-end":
            if row in idle_ends:
                idle.add(task)
            elif number != NOTHING:
                trained.add(task)
        elif kind == "task-start":
            trained.discard(before[row])
            owed.pop(before[row], None)
        elif kind == "task-end" and task not in idle:
            ended.add(task)
            counted.discard(task)
            if task in trained:
                owed[task] = time, group
        elif kind == "updates-lost":
            for each in lost[row]:
                ended.discard(each)
                owed.pop(each, None)
        elif kind == "aggregate":
            all_due = rounds[row]
            of_group = group
            for each in named[row]:
                if each in counted:
                    yield f"task {each} is aggregated twice"
                elif each not in ended:
                    yield (
                        f"an aggregation counts task {each}, which had not ended done, with "
                        "something trained, by then"
                    )
                owed.pop(each, None)
                counted.add(each)
        elif kind == "round":
            for late, (since, of) in [*owed.items()]:
                if all_due or (since < time and of_group in (NOTHING, of)):
                    del owed[late]
                    yield f"task {late} was done in time, but no aggregation counts it"


def round_counts(evidence: Evidence) -> Iterator[str]:
    """Each round's counts are those of its tasks, and the rounds' table agrees with the records."""
    events = evidence.events
    summary = evidence.run.summary
    recorded = evidence.said("round")["data"].to_dict()
    table = evidence.run.table(files.ROUNDS)
    agree = len(recorded) == len(table) == summary["rounds"]
    rows = iter(table.to_pylist())
    # slow, even if they were carried out to their end
    idle = latest(evidence.idle, events["task"]) >= 0
    slow = idle & (events["outcome"] == "done").to_numpy()
    ends = (events["kind"] == "task-end") & (events["round"] != NOTHING)
    wanted = ends | (events["kind"] == "round") | evidence.continues
    told = events.assign(outcome=np.where(slow, "late", events["outcome"]))[wanted]
    ended: dict[int, Counter[str]] = defaultdict(Counter)
    for row, time, kind, task, of, outcome in told[
        ["time", "kind", "task", "round", "outcome"]
    ].itertuples():
        if kind == "task-end":
            ended[of]["selected"] += 1
            ended[of][_COUNTS.get(outcome, outcome)] += 1
        elif kind == "task-start":  # both count as one
            if of not in ended:
                yield f"task {task} goes on with one of round {shown(of)}, of which none has ended"
            ended[of].subtract(("selected", "valid"))
        else:
            data = recorded[row]
            number = shown(of)
            counts = ended.pop(of, Counter())
            for key in ("valid", "slow", "disconnected", "selected"):
                # others may close before they hear of a loss
                waits = "selected" in data or key != "disconnected"
                if key in data and (data[key] != counts[key] if waits else data[key] > counts[key]):
                    yield f"round {number}: {key} is {data[key]}, its tasks say {counts[key]}"
            here: dict[str, Any] = next(rows, {})
            for key, value in (
                (_NOT_MEASURED | {"round": number, "time": time} | data).items() if agree else ()
            ):
                if here.get(key, "missing") != value:
                    yield (
                        f"round {number}: {key} is {here.get(key)!r} in the table and {value!r} in "
                        "the records"
                    )
    if not agree:
        yield (
            f"there are {len(recorded)} recorded rounds, {len(table)} in the table, "
            f"{summary['rounds']} in the summary"
        )
