"""Checks that the records are in a possible order, and that tasks keep to the deadlines."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.common.units import Seconds
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import (
    grain_s,
    last_marked_rows,
    read_quantity,
    report_rows,
    values_at_rows,
)
from fedsim.records.schema import OF_TASKS

_ALLOWED_PAIRS = (
    ("task-start", ""),
    ("step-start", "task-start"),
    ("step-start", "step-end"),
    ("step-end", "step-start"),
    ("task-end", "task-start"),
    ("task-end", "step-end"),
)
"""Pairs of kinds of a task's records: a kind, and the kind of the record before; "" for none."""


def check_time_order(evidence: Evidence) -> Iterator[str]:
    """Yield findings if a record is earlier than the one before, or ``run-end`` is not the last."""
    events = evidence.events
    records = events.assign(previous_time=events["time"].shift(fill_value=0.0))
    template = "record {row} ({kind}) is at {time!r} s, after one at {previous_time!r} s"
    yield from report_rows(template, records, ~(records["time"] >= records["previous_time"]))
    ends = events[events["kind"] == "run-end"]
    later_records = (len(events) - 1 - ends.index).to_numpy()
    template = "record {row} says that the run is over, but {later_records} follow"
    yield from report_rows(template, ends.assign(later_records=later_records), later_records > 0)
    if evidence.run.summary["status"] != "failed" and 0 not in later_records:
        yield "the run's end is not recorded"


def check_task_steps(evidence: Evidence) -> Iterator[str]:
    """Yield findings for tasks whose records lack a begin, a step or an end, or are out of order.

    A task starts, takes its steps (such as ``train``) one after another on one device, and ends
    with the outcome of its last step.
    """
    names = ["kind", "step", "outcome", "device"]
    of_tasks = evidence.events[evidence.events["kind"].isin(OF_TASKS)]
    task_records = of_tasks.astype(dict.fromkeys(names, object))
    # ``last_kind``, ``last_step`` and so on are of the task's previous record, "" for none
    previous = task_records.groupby("task")[names].shift().fillna("").add_prefix("last_")
    records = task_records.join(previous)
    in_turn = pd.MultiIndex.from_frame(records[["kind", "last_kind"]]).isin(_ALLOWED_PAIRS)
    yield from report_rows("task {task}: {kind} follows {last_kind}", records, ~in_turn)
    step_ends = records["kind"] == "step-end"
    template = "task {task}: {last_step} begins and {step} ends"
    yield from report_rows(template, records, step_ends & (records["step"] != records["last_step"]))
    after_step = records["last_kind"] == "step-end"
    next_begins = after_step & (records["kind"] == "step-start")
    template = "task {task}: goes on after {last_step} ended {last_outcome}"
    yield from report_rows(template, records, next_begins & (records["last_outcome"] != "done"))
    task_ends = after_step & (records["kind"] == "task-end")
    template = "task {task}: ended {outcome}, but its last step {last_outcome}"
    yield from report_rows(
        template, records, task_ends & (records["outcome"] != records["last_outcome"])
    )
    moves = (records["last_kind"] != "") & (records["device"] != records["last_device"])
    yield from report_rows(
        "task {task}: moves from device {last_device} to {device}", records, moves
    )
    if evidence.run.summary["status"] != "failed":
        last = task_records.drop_duplicates("task", keep="last")
        yield from report_rows("task {task}: never ends", last, last["kind"] != "task-end")


def check_one_task_at_a_time(evidence: Evidence) -> Iterator[str]:
    """Yield findings for devices that do two things at the same time.

    A device may not begin a task before its previous one has ended, and may not record steps of any
    task but its current one.
    """
    events = evidence.events[evidence.events["kind"].isin(OF_TASKS)]
    device = events["device"].to_numpy()
    task = events["task"].to_numpy()
    starts = (events["kind"] == "task-start").to_numpy()
    latest_start = last_marked_rows(starts, device)
    previous_start = pd.Series(latest_start).groupby(device).shift(fill_value=-1).to_numpy()
    # row of the device's last task-start before this record, or -1
    begin_row = np.where(starts, previous_start, latest_start)
    current = np.append(task, 0)[begin_row]  # the device's current task; 0 for row -1
    is_current = (begin_row >= 0) & (task == current)
    ends = (events["kind"] == "task-end") & is_current
    # busy: no record after ``begin_row``, up to this record, ends the device's current task
    is_busy = (begin_row >= 0) & (last_marked_rows(ends, device) <= begin_row)
    is_step = events["kind"].isin(("step-start", "step-end"))
    template = "device {device} begins task {task} at {time!r} s while it still has task {current}"
    yield from report_rows(template, events.assign(current=current), starts & is_busy)
    template = "device {device} works on task {task} at {time!r} s without having it"
    yield from report_rows(template, events, is_step & ~(is_busy & is_current))


def check_deadlines_kept(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each task that ended after its round's deadline.

    A training that took longer than its round's limit for trainings is a finding, too.
    """
    events = evidence.events
    ends = events.assign(limit=_round_limits(evidence, "deadline"))[events["kind"] == "task-end"]
    template = "task {task} ended {outcome} at {time!r} s, after its deadline {limit!r} s"
    yield from report_rows(template, ends, ends["time"] > ends["limit"])
    of_trainings = (events["step"] == "train").to_numpy()
    begin_row = last_marked_rows(of_trainings & (events["kind"] == "step-start"), events["task"])
    trainings = events.assign(
        begin_row=begin_row,
        took=events["time"] - values_at_rows(events["time"], begin_row),
        limit=_round_limits(evidence, "training"),
    )
    trainings = trainings[of_trainings & (events["kind"] == "step-end")]
    has_begun = trainings["begin_row"] >= 0
    yield from report_rows(
        "task {task} ends a training that it has not begun", trainings, ~has_begun
    )
    is_long = trainings["took"] > trainings["limit"] + grain_s(trainings["time"])
    template = "task {task} trained for {took!r} s, longer than its limit of {limit!r} s"
    yield from report_rows(template, trainings, has_begun & is_long)


def _round_limits(evidence: Evidence, name: str) -> Floats:
    """Return the time limit of the round to which each record belongs (s); float64 [records].

    Args:
        evidence: the run folder.
        name: ``deadline`` (a simulated time) or ``training`` (a duration), a field of the record of
            the round's begin.

    Returns:
        Limits, infinity for a record whose round has no limit.
    """
    events = evidence.events
    limits = evidence.data_of("round-start")[name].reindex(events.index)
    return limits.groupby(events["round"]).ffill().fillna(np.inf).to_numpy()


def check_round_begins(evidence: Evidence) -> Iterator[str]:
    """Yield findings for rounds that are out of order, or that select a wrong count of clients.

    The record of a round's begin states the count of selected clients, which has to be the count of
    clients with a task in the round. With edge servers, fewer may have a task.
    """
    events = evidence.events
    begins = evidence.data_of("round-start").join(events[["time", "round"]])
    rounds = begins.assign(previous=begins["round"].shift(fill_value=-1))
    template = "record {row} begins round {round}, after round {previous}"
    yield from report_rows(template, rounds, rounds["round"] <= rounds["previous"])
    starts = events[(events["kind"] == "task-start") & ~evidence.is_continuation]
    counts = starts.groupby("round")["task"].nunique()
    rounds = begins.dropna(subset="selected")
    rounds = rounds.assign(asked=rounds["round"].map(counts).fillna(0.0))
    if "edge" in evidence.run.scenario["network"]:
        differs = rounds["asked"] > rounds["selected"]
    else:
        differs = rounds["asked"] != rounds["selected"]
    if evidence.run.summary["status"] != "done":
        differs &= rounds["round"] != rounds["round"].max()  # the last round may be incomplete
    template = "round {round} begins with {selected:g} clients, and {asked:g} are asked"
    yield from report_rows(template, rounds, differs)


def check_deadline_values(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each round whose recorded deadline is not the one that the scenario sets.

    Scenarios without a deadline, or with a fixed one, are checked. A fixed deadline is a duration
    that counts from the round's begin. If the round also limits the time of each training, the
    limit has to be the same duration. A user's own strategy is not checked.
    """
    strategy = evidence.run.scenario["strategy"]
    rule = strategy.get("deadline")
    if ":" in strategy["kind"]:
        return
    if isinstance(rule, dict) and rule["kind"] != "fixed":
        return
    begins = evidence.data_of("round-start").join(evidence.events[["time", "round"]])
    bounds_training = np.isfinite(begins["training"])
    if rule is None:
        template = "round {round} has the deadline {deadline!r} s, and the scenario has none"
        yield from report_rows(template, begins, begins["deadline"].notna() | bounds_training)
        return
    time = rule["time"] if isinstance(rule, dict) else rule
    expected = read_quantity(Seconds, time)
    rounds = begins.assign(limit=begins["deadline"] - begins["time"], expected=expected)
    template = "round {round} has {limit!r} s until its deadline, by the scenario {expected!r} s"
    yield from report_rows(
        template, rounds, np.abs(rounds["limit"] - expected) > grain_s(rounds["time"])
    )
    template = "round {round} bounds trainings by {training!r} s, by the scenario by {expected!r} s"
    yield from report_rows(template, rounds, bounds_training & (rounds["training"] != expected))
