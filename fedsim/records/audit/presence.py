"""Did devices work only while they could be reached?"""

from collections.abc import Iterator

import numpy as np

from fedsim.arrays import Floats, Ints
from fedsim.records.audit.columns import NOTHING, Columns, Mask, Numbers, Sequences
from fedsim.records.audit.evidence import Evidence
from fedsim.records.audit.transfers import numbered


def reachable(evidence: Evidence) -> Iterator[str]:
    """The table of availability is in order; steps lie within on phases; who is lost or flat has gone off, or was switched off.

    Devices of which the table says nothing are left out.
    """
    if not evidence.has_availability:
        return
    table, end = evidence.availability, evidence.run.summary["simulated_s"]
    device, time, on = (table[name] for name in ("device", "time", "on"))
    first = np.ones(table.count, dtype=bool)
    first[1:] = device[1:] != device[:-1]
    after = ~first[1:]
    wrong = np.zeros(table.count, dtype=bool)
    wrong[1:] = (device[1:] < device[:-1]) | (after & ((time[1:] <= time[:-1]) | (on[1:] == on[:-1])))
    wrong |= (first & (time != 0)) | ~(time <= end) | (device < 0) | (device >= evidence.run.population)
    for row in np.flatnonzero(wrong).tolist():
        at = f"device {device.item(row)} at {time.item(row)!r} s"
        yield f"row {row} of the availability, {at}, is no change after the row before"
    if not wrong.any() and table.count:
        yield from _steps(evidence)
        yield from _losses(evidence)
        yield from _messages(evidence)


def _steps(evidence: Evidence) -> Iterator[str]:
    events, table = evidence.events, evidence.availability
    rows = np.flatnonzero(events.are_any(("step-start", "step-end")) & (events["device"] != NOTHING))
    lives = Sequences(events["task"][rows])
    rows = rows[lives.order]
    ends = events.are("step-end")[rows]
    begun = lives.latest_before(~ends)
    ends &= begun >= 0
    start, end = rows[begun[ends]], rows[ends]
    state = _states(evidence, start)
    until = _until(table)
    known = state >= 0
    took = events["time"][end] > events["time"][start]
    off = known & took & ~(table["on"][state] & (events["time"][end] <= until[state]))
    for place in np.flatnonzero(off).tolist():
        task, when = events.shown("task", start[place]), events["time"].item(start[place])
        yield f"task {task} has a step from {when!r} s to {events['time'].item(end[place])!r} s, while its device was away"


def _messages(evidence: Evidence) -> Iterator[str]:
    """What devices send each other takes time only while both can be reached."""
    events, table, messages = evidence.events, evidence.availability, evidence.events.messages
    of_peers = events.are("message")[messages.at] & (events["time"][messages.at] > messages.start)
    until = _until(table)
    start, end = messages.start[of_peers], events["time"][messages.at[of_peers]]
    for names in (messages.sender[of_peers], messages.receiver[of_peers]):
        device = numbered(evidence.words, names, "device")
        state = _state_at(evidence, device, start)
        for row in np.flatnonzero((state >= 0) & ~(table["on"][state] & (end <= until[state]))).tolist():
            when = f"from {start.item(row)!r} s to {end.item(row)!r} s"
            yield f"device {device.item(row)} sends or receives a message {when}, while it was away"


def _losses(evidence: Evidence) -> Iterator[str]:
    events, table = evidence.events, evidence.availability
    gone = np.isin(events["outcome"], [evidence.words["lost"], evidence.words["battery"]])
    ends = np.flatnonzero(events.are("task-end") & gone & (events["device"] != NOTHING))
    state = _states(evidence, ends)
    there = (state >= 0) & (table["on"][state] != 0) & ~_switched_off(evidence, ends) & ~_edge_lost(evidence, ends)
    for place in np.flatnonzero(there).tolist():
        task, when = events.shown("task", ends[place]), events["time"].item(ends[place])
        yield f"task {task} was lost at {when!r} s, when its device was there"


def _states(evidence: Evidence, rows: Ints) -> Ints:
    """The row of the availability that holds for each record's device at its time; -1 where there is none; int64 [rows]."""
    return _state_at(evidence, evidence.events["device"][rows], evidence.events["time"][rows])


def _until(table: Columns) -> Floats:
    """When the state that each row of the availability says ends (s); one more, for -1; float64 [rows + 1]."""
    until = np.full(table.count + 1, np.inf)
    until[: table.count - 1] = np.where(table["device"][1:] == table["device"][:-1], table["time"][1:], np.inf)
    return until


def _state_at(evidence: Evidence, device: Numbers, time: Floats) -> Ints:
    """The row of the availability that holds for each device at a time (s); -1 where there is none; int64 [n]."""
    table = evidence.availability
    times = np.concatenate([table["time"], time])
    _, rank = np.unique(times, return_inverse=True)
    base = len(times)
    keys = table["device"].astype(np.int64) * base + rank[: table.count]
    found = np.searchsorted(keys, device.astype(np.int64) * base + rank[table.count :], side="right") - 1
    known = (found >= 0) & (table["device"][found] == device)
    return np.where(known, found, -1)


def _switched_off(evidence: Evidence, rows: Ints) -> Mask:
    """Whether a process of the world has switched off each record's device, or did so at that instant; bool [rows]."""
    events = evidence.events
    acts = np.flatnonzero(events.are_any(("switch-off", "switch-on")))
    both = np.concatenate([acts, rows])
    order = np.argsort(both, kind="stable")
    sequences = Sequences(events["device"][both[order]])
    order = order[sequences.order]
    times, off = events["time"][both[order]], events.are("switch-off")[both[order]]
    latest, switched = sequences.latest_before(order < len(acts)), sequences.latest_before(off)
    result = np.zeros(len(both), dtype=bool)
    result[order] = ((latest >= 0) & off[latest]) | ((switched >= 0) & (times[switched] == times))
    return result[len(acts) :]


def _edge_lost(evidence: Evidence, rows: Ints) -> Mask:
    """Whether the edge server of each record's device was lost at that instant; bool [rows]."""
    lost, layout = evidence.events.lost_edges, evidence.network
    result = np.zeros(len(rows), dtype=bool)
    if lost and layout is not None and "edges" in layout:
        of = np.array(layout["edges"]["of"])
        edge = of[evidence.events["device"][rows] % len(of)]
        for time, one in lost:
            result |= (edge == one) & (evidence.events["time"][rows] == time)
    return result
