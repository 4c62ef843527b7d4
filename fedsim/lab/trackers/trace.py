"""Export of a run as Chrome trace JSON, which Perfetto shows as lanes and counters."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.harmless import harmless
from fedsim.lab.reading.activities import Activities, Mark, MessageEnd, RoundPeriod
from fedsim.lab.reading.attempts import Attempts
from fedsim.lab.reading.history import History
from fedsim.lab.reading.record_data import RecordData
from fedsim.lab.trackers.link_load import link_load, running_sum, thin_out
from fedsim.records.folder import writing
from fedsim.records.reading import RunFolder, making_sense

_SERVER = 1
_DEVICES = 2
_EDGES = 3
_HOSTS = 4
# greatest count of changes of a link's load in a trace: enough for any screen, and at most a tenth
# of a long run's file
_MOST_LOAD_CHANGES = 20_000

_NAME_OF_LOSS = {"lost": "task lost", "left": "left for good", "battery": "battery flat"}

TraceEvent = dict[str, Any]


def write_trace(run: RunFolder, path: Path) -> int:
    """Write the trace of a run as a Chrome trace JSON file.

    Args:
        run: the run folder.
        path: file to write.

    Returns:
        The count of events in the trace.

    Raises:
        RunFolderError: a table is damaged, or the file cannot be written.
    """
    count = 0
    with (
        writing(path) as beside,
        beside.open("w", encoding="utf-8") as file,
        making_sense([run.path]),
    ):
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for count, entry in enumerate(trace_events(run), start=1):
            file.write(",\n" if count > 1 else "\n")
            file.write(json.dumps(harmless(entry), separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")
    return count


def trace_events(run: RunFolder) -> Iterator[TraceEvent]:
    """Yield all events of a run in the format of Chrome traces, for ``write_trace``.

    A lane is a row of the trace viewer. The lanes and counters are:

    - Device: steps of tasks and phases of absence as slices. As instants: lost tasks, arrivals,
      departures, data shifts, splits of data, ends of a training's time limit (T), assignments to
      groups, and changes of the device such as a switch-off. A training that trains no model of a
      round is named ``pre-training``.
    - Server: rounds as slices, or versions as instants. As instants: deadlines, decisions about
      groups, and changes of the network such as a new rate of a link.
    - Edge server: transfers to and from the server, and outages.
    - Host of the network, if it sends or receives messages.
    - Counters: count of devices at work, accuracy, and load of the server's link each way
      (bytes/s).

    A message outside of tasks, such as between devices, is an asynchronous event in the lane of its
    sender and, if bytes arrived, of its receiver.

    Args:
        run: the run folder.

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    activities = Activities(History(run))
    attempts = Attempts(activities)
    entries = [
        *_steps(attempts),
        *_instants(activities),
        *_attempt_instants(attempts),
        *_messages(activities),
        *_edge_servers(activities),
    ]
    # ``_DEVICES``, ``_EDGES`` and so on are IDs of groups of lanes; lanes without entries have no
    # label
    devices = _find_lanes(_DEVICES, entries)
    edges = _find_lanes(_EDGES, entries)
    yield _label("process_name", _SERVER, 0, f"server ({run.summary['strategy']})")
    yield from _lane_names(_DEVICES, "device", devices)
    yield from _lane_names(_EDGES, "edge server", edges)
    hosts = _find_hosts(activities)
    if hosts:
        yield _label("process_name", _HOSTS, 0, "hosts")
    for lane, host in enumerate(hosts):
        yield _label("thread_name", _HOSTS, lane, host)
    yield from entries
    yield from _absences(activities, devices)
    yield from _server_events(activities)
    yield from _devices_at_work(activities)
    for direction in ("down", "up"):
        load = thin_out(link_load(run, direction), _MOST_LOAD_CHANGES)
        for time, rate in zip(load.times.tolist(), load.values.tolist(), strict=True):
            bytes_per_second = round(max(0.0, rate), 1)
            yield _counter(f"server link {direction} (bytes/s)", time, bytes_per_second)


def _find_lanes(process: int, entries: list[TraceEvent]) -> list[int]:
    return sorted({entry["tid"] for entry in entries if entry["pid"] == process})


def _lane_names(process: int, name: str, lanes: list[int]) -> Iterator[TraceEvent]:
    yield _label("process_name", process, 0, f"{name}s")
    for lane in lanes:
        yield _label("thread_name", process, lane, f"{name} {lane}")
        yield _label("thread_sort_index", process, lane, lane)


def _steps(attempts: Attempts) -> Iterator[TraceEvent]:
    for step in attempts.steps:
        name = _with_outcome(step.kind, step.outcome)
        facts = {"task": step.task, **_event_arguments(step.round, step.data)}
        yield _slice(name, _DEVICES, step.device, step.start, step.end, facts)


def _instants(activities: Activities) -> Iterator[TraceEvent]:
    """Yield a trace event for each fact without duration, such as the arrival of a device.

    Each event is in the lane of its device. Changes of the world without a device, such as a new
    rate of a link, are in the server's lane.
    """
    for mark in activities.marks:
        if mark.device is None:
            yield _instant(mark.kind, _SERVER, 0, mark.time, {})
            continue
        name = _mark_name(mark)
        if name is not None:
            yield _instant(name, _DEVICES, mark.device, mark.time, mark.data)


def _attempt_instants(attempts: Attempts) -> Iterator[TraceEvent]:
    """Yield a trace event for the end of each training's time limit (T), and each split of data.

    A time limit that ends after the run has no event.
    """
    for attempt in attempts.all:
        facts = {"task": attempt.task, "round": attempt.round}
        if attempt.limit is not None and attempt.limit <= attempts.history.end:
            name = "T, the deadline of a training"
            yield _instant(name, _DEVICES, attempt.device, attempt.limit, facts)
        if attempt.splits:
            yield _instant("splits its data", _DEVICES, attempt.device, attempt.end, facts)


def _mark_name(mark: Mark) -> str | None:
    """Return the name under which the trace shows an instant of a device.

    None if the trace does not show the instant.
    """
    match mark.kind:
        case "task-end":
            return _NAME_OF_LOSS.get(str(mark.outcome))
        case "noticed":
            return None
        case "arrival":
            return "arrives"
        case "departure":
            return "leaves for good"
        case "shift":
            return f"data shift ({mark.data.get('what')})"
        case "assign" | "move":
            if mark.group is None:
                return f"out of group {mark.data.get('before')}"
            return f"into group {mark.group}"
    return mark.kind


def _messages(activities: Activities) -> Iterator[TraceEvent]:
    """Yield the messages outside of tasks as asynchronous events.

    Each message is in the lanes of its sender and its receiver. The events are no slices, because
    messages may overlap, and slices of a lane may not.
    """
    event_id = 0
    hosts = _find_hosts(activities)
    for message in activities.messages:
        facts = _event_arguments(message.round, message.data)
        for end in message.ends():
            event_id += 1
            route = f"to {end.other}" if end.is_sent else f"from {end.other}"
            name = _with_outcome(route, end.outcome)
            lane = _lane_of(end, hosts)
            yield _entry(name, "b", *lane, end.start, facts, cat="message", id=event_id)
            yield _entry(name, "e", *lane, end.end, {}, cat="message", id=event_id)


def _find_hosts(activities: Activities) -> list[str]:
    """Return the names of the network's hosts that have messages, in the order of the records."""
    names: dict[str, None] = {}
    for message in activities.messages:
        for end in message.ends():
            if end.device < 0 and end.name != "server":
                names[end.name] = None
    return list(names)


def _lane_of(end: MessageEnd, hosts: list[str]) -> tuple[int, int]:
    """Return the lane of the sender or receiver of a message, as (ID of the lane's group, ID).

    Args:
        end: the message as this sender or receiver sees it.
        hosts: names of the network's hosts that have messages; the index in the list is the lane.
    """
    if end.is_of_device:
        return _DEVICES, end.device
    if end.device >= 0:
        return _EDGES, end.device
    if end.name in hosts:
        return _HOSTS, hosts.index(end.name)
    return _SERVER, 0


def _edge_servers(activities: Activities) -> Iterator[TraceEvent]:
    for transfer in activities.edge_transfers:
        route = "from the server" if transfer.source == "server" else "to the server"
        name = _with_outcome(route, transfer.outcome)
        facts = _event_arguments(transfer.round, transfer.data)
        yield _slice(name, _EDGES, transfer.edge, transfer.start, transfer.end, facts)
    for outage in activities.edge_outages:
        yield _slice("lost", _EDGES, outage.device, outage.start, outage.end, {})


def _absences(activities: Activities, devices: list[int]) -> Iterator[TraceEvent]:
    with_lanes = set(devices)
    for span in activities.absences:
        if span.device in with_lanes:
            yield _slice("cannot be reached", _DEVICES, span.device, span.start, span.end, {})


def _server_events(activities: Activities) -> Iterator[TraceEvent]:
    for entry in activities.server:
        if isinstance(entry, RoundPeriod):
            yield from _round_events(entry)
        else:
            yield _instant(entry.kind, _SERVER, 0, entry.time, {})


def _round_events(entry: RoundPeriod) -> Iterator[TraceEvent]:
    if entry.start is None:
        yield _instant(f"version {entry.number}", _SERVER, 0, entry.end, entry.data)
    else:
        yield _slice(f"round {entry.number}", _SERVER, 0, entry.start, entry.end, entry.data)
    if entry.reached_deadline is not None:
        yield _instant("deadline", _SERVER, 0, entry.reached_deadline, {})
    accuracy = entry.data.get("accuracy")
    if accuracy is not None and math.isfinite(accuracy):
        yield _counter("accuracy", entry.end, accuracy)


def _devices_at_work(activities: Activities) -> Iterator[TraceEvent]:
    times_of_changes, changes = activities.open_task_changes()
    open_tasks = running_sum(times_of_changes, changes)
    has_changed = np.diff(open_tasks.values, prepend=0.0) != 0
    times = open_tasks.times[has_changed].tolist()
    counts = open_tasks.values[has_changed].tolist()
    for time, count in zip(times, counts, strict=True):
        yield _counter("devices at work", time, round(count))


def _with_outcome(name: str, outcome: str) -> str:
    return name if outcome == "done" else f"{name} ({outcome})"


def _event_arguments(number: int | None, data: RecordData) -> TraceEvent:
    """Return the details that the trace viewer shows for a step or transfer, by name.

    They are the round, the fields of the record, and, for a message, its size (bytes) and the
    purposes of its parts. ``delivered`` is None if all bytes were delivered, so that the viewer
    does not show it.

    Args:
        number: index of the round, if any.
        data: fields of the record that ends the step or transfer.
    """
    facts = {"round": number, **data}
    if "payloads" not in data:
        return facts
    purposes = [str(purpose) for purpose, _ in data["payloads"]]
    facts["bytes"] = round(data["bytes"])
    facts["purpose"] = " + ".join(purposes)
    if data["delivered"] == data["bytes"]:
        facts["delivered"] = None
    return facts


def _entry(
    name: str,
    phase: str,
    process: int,
    lane: int,
    time: float,
    data: RecordData,
    **fields: object,
) -> TraceEvent:
    """Return an event of the trace format, with its time in microseconds.

    Args:
        name: name of the event.
        phase: type of the event in the format, such as ``X`` for a slice.
        process: ID of the group of lanes.
        lane: ID of the lane.
        time: simulated time (s).
        data: details of the event by name; only texts, integers and finite numbers are kept.
        fields: other fields of the event, as the format names them.
    """
    facts = {
        key: value
        for key, value in data.items()
        if isinstance(value, str | int) or _is_finite(value)
    }
    return {
        "name": name,
        "ph": phase,
        "pid": process,
        "tid": lane,
        "ts": _microseconds(time),
        **fields,
        "args": facts,
    }


def _slice(
    name: str, process: int, lane: int, start: float, end: float, data: RecordData
) -> TraceEvent:
    duration = round(_microseconds(end) - _microseconds(start), 3)
    return _entry(name, "X", process, lane, start, data, dur=duration)


def _instant(name: str, process: int, lane: int, time: float, data: RecordData) -> TraceEvent:
    return _entry(name, "i", process, lane, time, data, s="t")


def _counter(name: str, time: float, value: float) -> TraceEvent:
    return {
        "name": name,
        "ph": "C",
        "pid": _SERVER,
        "tid": 0,
        "ts": _microseconds(time),
        "args": {name: value},
    }


def _label(kind: str, process: int, lane: int, name: str | int) -> TraceEvent:
    key = "sort_index" if isinstance(name, int) else "name"
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {key: name}}


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _microseconds(time: float) -> float:
    return round(time * 1e6, 3)  # 3 decimals are the resolution of the simulated clock
