"""Checks that the table of availability is in order, and that devices worked only while online."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedsim.common.arrays import Flags, Ints
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import (
    NOTHING,
    endpoint_numbers,
    last_marked_rows,
    report_rows,
    values_at_rows,
)


def check_reachability(evidence: Evidence) -> Iterator[str]:
    """Yield findings for work of unreachable devices, and for tasks that were lost without a cause.

    A task may be lost only if its device cannot be reached, is switched off, or loses its edge
    server. The table of availability has the times from which a device can or cannot be reached.
    Devices without a row in this table are not checked. If a row cannot follow the row before, only
    such rows are reported.
    """
    table = evidence.availability
    wrong = _is_impossible(evidence, table)
    template = (
        "row {row} of the availability, device {device} at {time!r} s, is no change after the row "
        "before"
    )
    yield from report_rows(template, table, wrong)
    if wrong.any() or table.empty:
        return
    steps = evidence.steps
    has_begin = steps["begin_row"] >= 0  # -1 for a step whose begin is not recorded
    steps = steps[(steps["device"] != NOTHING) & has_begin]
    template = "task {task} has a step from {start!r} s to {time!r} s, while its device was away"
    yield from report_rows(template, steps, _is_unreachable(table, steps))
    tasks = evidence.tasks
    lost = tasks[tasks["outcome"].isin(("lost", "battery")) & (tasks["device"] != NOTHING)]
    is_online = _is_online(table, _phase_rows(table, lost["device"], lost["time"]))
    has_other_cause = _is_switched_off(evidence)[lost.index] | _is_edge_lost(evidence, lost)
    template = "task {task} was lost at {time!r} s, when its device was there"
    yield from report_rows(template, lost, is_online & ~has_other_cause)
    template = (
        "device {device} sends or receives a message from {start!r} s to {time!r} s, while it was "
        "away"
    )
    for endpoint in ("sender", "receiver"):
        messages = evidence.data_of("message").join(evidence.events["time"])
        messages["device"] = endpoint_numbers(messages[endpoint], "device")
        yield from report_rows(template, messages, _is_unreachable(table, messages))


def _is_impossible(evidence: Evidence, table: pd.DataFrame) -> "pd.Series[bool]":
    """Mask of the rows of the table of availability that cannot follow their previous row.

    Each row states that a device becomes reachable or unreachable at a time. Rows have to be sorted
    by device and time; a device's first row is at time 0, and its rows alternate.
    """
    previous = table.shift()
    device = table["device"]
    time = table["time"]
    is_first = device != previous["device"]
    is_repeat = (time <= previous["time"]) | (table["on"] == previous["on"])
    wrong: pd.Series[bool] = (device < 0) | (device >= evidence.run.population)
    wrong |= ~(time <= evidence.run.summary["simulated_s"])
    wrong |= device < previous["device"]
    wrong |= is_first & (time != 0)
    wrong |= ~is_first & is_repeat
    return wrong


def _is_unreachable(table: pd.DataFrame, spans: pd.DataFrame) -> "pd.Series[bool]":
    """Mask of the time spans in which the device is unreachable at some time; bool [spans].

    Args:
        table: the table of availability.
        spans: DataFrame with ``device``, ``start`` and ``time``, the end of the span (s).

    Returns:
        False for spans of length 0, and for devices without a row in the table.
    """
    phase = _phase_rows(table, spans["device"], spans["start"])
    is_last = table["device"] != table["device"].shift(-1)
    phase_end = table["time"].shift(-1).mask(is_last, np.inf)
    is_online = _is_online(table, phase)
    online_to_end = is_online & (spans["time"] <= values_at_rows(phase_end, phase))
    are_away: pd.Series[bool] = (spans["time"] > spans["start"]) & (phase >= 0) & ~online_to_end
    return are_away


def _is_online(table: pd.DataFrame, rows: Ints) -> Flags:
    """Return whether rows of the table of availability say that a device is online; bool [rows].

    False for row -1, which stands for a device without a row.
    """
    is_online: Flags = values_at_rows(table["on"], rows) == 1
    return is_online


def _phase_rows(table: pd.DataFrame, device: ArrayLike, time: ArrayLike) -> Ints:
    """Return the row of the table of availability that is valid for each device at a given time.

    A row is valid from its time until the device's next row.

    Args:
        table: the table of availability, sorted by device and time.
        device: device IDs; [n].
        time: times (s); [n].

    Returns:
        Row positions, -1 if the table has no row for the device by then; int64 [n].

    Raises:
        ValueError: a time is NaN.
    """
    devices = np.asarray(device, dtype=np.int64)
    times = np.asarray(time, dtype=np.float64)
    if np.isnan(times).any():
        raise ValueError("a time is missing")
    table_devices = table["device"].to_numpy(np.int64)
    table_times = table["time"].to_numpy(np.float64)
    instants = np.unique(table_times)
    # one integer key that sorts by device, then time: device * (instants + 1) + index of instant
    width = len(instants) + 1
    table_keys = table_devices * width + np.searchsorted(instants, table_times, side="right")
    keys = devices * width + np.searchsorted(instants, times, side="right")
    rows = np.searchsorted(table_keys, keys, side="right") - 1
    return np.where((rows >= 0) & (table_devices[rows] == devices), rows, -1)


def _is_switched_off(evidence: Evidence) -> Flags:
    """Mask of the records whose device is off at this time, or was switched off in this instant."""
    events = evidence.events
    device = events["device"]
    switches_off = (events["kind"] == "switch-off").to_numpy()
    last_switch = last_marked_rows(switches_off | (events["kind"] == "switch-on"), device)
    off_time = values_at_rows(events["time"], last_marked_rows(switches_off, device))
    is_same_instant = off_time == events["time"].to_numpy()
    # row -1, for devices that were never switched, gets the appended False
    is_off = np.append(switches_off, False)[last_switch]
    return np.asarray(is_off | is_same_instant)


def _is_edge_lost(evidence: Evidence, ends: pd.DataFrame) -> Flags:
    """Mask of the tasks that end in the instant at which their edge server fails; bool [ends]."""
    outages = evidence.data_of("edge-off")
    layout = evidence.network
    if not len(outages) or layout is None or "edges" not in layout:
        return np.zeros(len(ends), dtype=bool)
    edge_of = np.array(layout["edges"]["of"])
    edges = edge_of[ends["device"] % len(edge_of)]
    times = evidence.events["time"][outages.index]
    failures = pd.MultiIndex.from_arrays([outages["edge"], times])
    return pd.MultiIndex.from_arrays([edges, ends["time"]]).isin(failures)
