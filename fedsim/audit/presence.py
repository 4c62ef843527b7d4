"""Do the devices' rows say what the records say, and did devices work only while they could be reached?"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.arrays import Flags, Ints
from fedsim.audit.evidence import NOTHING, Evidence, at_places, findings, latest, numbered


def devices_agree(evidence: Evidence) -> Iterator[str]:
    """One row a device, selected for a round as often as the records say, and at work only while it was there.

    Of very many devices there is one for each that was ever asked.
    """
    events, devices, stated = evidence.events, evidence.devices, evidence.run.scenario["population"]["devices"]
    starts = events["kind"] == "task-start"
    number = np.arange(len(devices))
    if evidence.run.has_all_devices:
        if len(devices) != stated:
            yield f"there are {len(devices)} devices, the scenario says {stated}"
    else:
        number, asked = devices["device"].to_numpy(), np.unique(events["device"][starts])
        if not np.array_equal(asked, number) or not (asked < stated).all():
            yield f"there are rows of {len(devices)} devices; the records ask others, or {len(asked)} of the {stated}"
    yield from findings("row {row} is device {device}", devices, devices["device"] != number)
    of_round = starts & (events["round"] != NOTHING) & ~evidence.continues
    asked = evidence.row_of(events["device"][of_round])
    times = np.bincount(asked[asked >= 0], minlength=len(devices))
    text = "device {number} was selected {selected} times, the records say {times}"
    yield from findings(text, devices.assign(number=number, times=times), devices["selected"] != times)
    nobody = events["kind"].isin(("arrival", "departure", "shift")) & (events["device"] == NOTHING)
    yield from findings("record {row} ({kind}) is of no device", events, nobody)
    ends = events["kind"] == "task-end"
    # A server may ask a device of whose leaving it has not heard: that task ends at once.
    gone = events["task"].isin(events["task"][ends & (events["outcome"] == "left")])
    told = events[(ends | starts) & (events["device"] != NOTHING) & ~gone]
    row = evidence.row_of(told["device"])
    yield from findings("task {task} is on device {device}, which does not exist", told, row < 0)
    there = (at_places(devices["arrival"], row) <= told["time"]) & (told["time"] <= at_places(devices["departure"], row))
    yield from findings("device {device} works at {time!r} s, when it is not there", told, (row >= 0) & ~there)


def reachable(evidence: Evidence) -> Iterator[str]:
    """The table of availability is in order; steps lie within on phases; who is lost or flat has gone off, or was switched off.

    Devices of which the table says nothing are left out.
    """
    if evidence.availability is None:
        return
    table, end = evidence.availability, evidence.run.summary["simulated_s"]
    before, device, time = table.shift(), table["device"], table["time"]
    first = device != before["device"]
    wrong = (device < before["device"]) | (first & (time != 0)) | ~(time <= end)
    wrong |= ~first & ((time <= before["time"]) | (table["on"] == before["on"]))
    wrong |= (device < 0) | (device >= evidence.run.population)
    text = "row {row} of the availability, device {device} at {time!r} s, is no change after the row before"
    yield from findings(text, table, wrong)
    if wrong.any() or table.empty:
        return
    steps = evidence.steps
    steps = steps[(steps["device"] != NOTHING) & (steps["begun"] >= 0)]
    text = "task {task} has a step from {start!r} s to {time!r} s, while its device was away"
    yield from findings(text, steps, _away(table, steps["device"], steps["start"], steps["time"]))
    yield from _losses(evidence, table)
    messages = evidence.said("message").join(evidence.events["time"])
    if messages.empty:
        return
    text = "device {device} sends or receives a message from {start!r} s to {time!r} s, while it was away"
    for end in ("sender", "receiver"):
        told = messages.assign(device=numbered(messages[end], "device"))
        yield from findings(text, told, _away(table, told["device"], told["start"], told["time"]))


def _losses(evidence: Evidence, table: pd.DataFrame) -> Iterator[str]:
    ends = evidence.tasks
    ends = ends[ends["outcome"].isin(("lost", "battery")) & (ends["device"] != NOTHING)]
    on = at_places(table["on"], _state(table, ends["device"], ends["time"])) == 1
    excused = _switched_off(evidence)[ends.index] | _edge_lost(evidence, ends)
    yield from findings("task {task} was lost at {time!r} s, when its device was there", ends, on & ~excused)


def _away(table: pd.DataFrame, device: Any, start: Any, end: Any) -> Any:
    """Whether each device was off at some time from ``start`` to ``end`` (s), if that takes time; bool, as many."""
    state = _state(table, device, start)
    until = table["time"].shift(-1).where(table["device"] == table["device"].shift(-1), np.inf)
    there = (at_places(table["on"], state) == 1) & (end <= at_places(until, state))
    return (state >= 0) & (end > start) & ~there


def _state(table: pd.DataFrame, device: Any, time: Any) -> Ints:
    """The row of the availability that holds for each device at a time (s); -1 where there is none; int64, as many."""
    asked = pd.DataFrame({"device": np.asarray(device, dtype=np.int64), "time": np.asarray(time)})
    changes = table[["device", "time"]].assign(device=table["device"].astype(np.int64), row=table.index)
    found = pd.merge_asof(asked.reset_index().sort_values("time"), changes.sort_values("time"), on="time", by="device")
    return found.set_index("index")["row"].sort_index().fillna(-1).to_numpy(np.int64)


def _switched_off(evidence: Evidence) -> Flags:
    """Whether a process had switched each record's device off, or did so at that instant; bool [records]."""
    events, device = evidence.events, evidence.events["device"]
    off = (events["kind"] == "switch-off").to_numpy()
    act = latest(off | (events["kind"] == "switch-on"), device)
    just_now = at_places(events["time"], latest(off, device)) == events["time"].to_numpy()
    return np.asarray(np.append(off, False)[act] | just_now)


def _edge_lost(evidence: Evidence, ends: pd.DataFrame) -> Flags:
    """Whether the edge server of each record's device was lost at that instant; bool [ends]."""
    lost, layout = evidence.said("edge-off"), evidence.network
    if not len(lost) or layout is None or "edges" not in layout:
        return np.zeros(len(ends), dtype=bool)
    of = np.array(layout["edges"]["of"])
    where = pd.MultiIndex.from_arrays([of[ends["device"] % len(of)], ends["time"]])
    return where.isin(pd.MultiIndex.from_arrays([lost["edge"], evidence.events["time"][lost.index]]))
