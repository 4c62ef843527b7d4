"""A run as Chrome trace JSON, which Perfetto opens: a lane per device, a lane for the server,
and counters.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.common.harmless import harmless
from fedsim.lab.reading.history import History, parsed
from fedsim.lab.trackers.link_load import link_load, summed, thinned
from fedsim.records import schema
from fedsim.records.folder import writing
from fedsim.records.reading import RunFolder, making_sense

_SERVER = 1
_DEVICES = 2
_EDGES = 3
# changes of a link's load: more than a screen shows, and a tenth of the file even of a long run
_MOST_LOADS = 20_000

_LOSSES = {"lost": "disconnected", "left": "left for good", "battery": "battery flat"}
_DECISIONS = ("cluster-split", "cluster", "clustering", "tiers")

TraceEvent = dict[str, Any]


def write_trace(run: RunFolder, path: Path) -> int:
    """Write the trace of ``run``; returns how many events it has.

    ``RunFolderError``: a damaged table, or no place to write.
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
    """All of a trace, lane by lane. ``RunFolderError``: a table is missing or damaged.

    Lanes of devices: steps and phases of absence as slices; losses, arrivals, departures, data
    shifts, groups and acts of processes as instants; messages to other devices as asynchronous
    events. Server's lane: rounds as slices (versions as instants), deadlines, decisions about
    groups. Lanes of edge servers: messages from and to the server, and losses. Counters: devices at
    work, accuracy, and the load of the server's link both ways (bytes/s).
    """
    history = History(run)
    entries = [*_steps(history), *_instants(history), *_messages(history), *_of_edges(history)]
    devices, edges = (
        sorted({entry["tid"] for entry in entries if entry["pid"] == kind})
        for kind in (_DEVICES, _EDGES)
    )
    yield _named("process_name", _SERVER, 0, f"server ({run.summary['strategy']})")
    for kind, name, lanes in ((_DEVICES, "device", devices), (_EDGES, "edge server", edges)):
        yield _named("process_name", kind, 0, f"{name}s")
        for lane in lanes:
            yield _named("thread_name", kind, lane, f"{name} {lane}")
            yield _named("thread_sort_index", kind, lane, lane)
    yield from entries
    for device, start, end in history.away[history.away["device"].isin(devices)].itertuples(
        index=False
    ):
        yield _slice("cannot be reached", _DEVICES, device, start, end, {})
    yield from _of_server(history)
    tasks = history.of("task-start", "task-end")
    work = summed(tasks["time"].to_numpy(), np.where(tasks["kind"] == "task-start", 1.0, -1.0))
    changed = np.diff(work.values, prepend=0.0) != 0
    for time, count in zip(
        work.times[changed].tolist(), work.values[changed].tolist(), strict=True
    ):
        yield _counter("devices at work", time, round(count))
    for way in ("down", "up"):
        load = thinned(link_load(run, way), _MOST_LOADS)
        for time, rate in zip(load.times.tolist(), load.values.tolist(), strict=True):
            yield _counter(f"server link {way} (bytes/s)", time, round(max(0.0, rate), 1))


def _steps(history: History) -> Iterator[TraceEvent]:
    for row in history.steps.to_dict("records"):
        data = parsed(row["data"])
        facts = _facts(row["round"], data) if "payloads" in data else {"round": row["round"]} | data
        name = _ended(row["step"], row["ended"])
        yield _slice(
            name, _DEVICES, row["device"], row["start"], row["end"], {"task": row["task"]} | facts
        )


def _instants(history: History) -> Iterator[TraceEvent]:
    """Things that happen to devices, and acts of processes on anything else."""
    acts = [kind for kind in history.events["kind"].unique() if schema.is_act(kind)]
    for row in history.data("task-end", "arrival", "departure", "shift", "assign", *acts):
        kind = row["kind"]
        data = row["data"]
        group = row["group"]
        names = {
            "task-end": _LOSSES.get(row["outcome"], ""),
            "arrival": "arrives",
            "departure": "leaves for good",
            "shift": f"data shift ({data.get('what')})",
            "assign": f"out of group {data.get('before')}"
            if group is None
            else f"into group {group:.0f}",
        }
        if row["device"] is None:
            yield _instant(kind, _SERVER, 0, row["time"], {})
        elif name := names.get(kind, kind):
            yield _instant(name, _DEVICES, int(row["device"]), row["time"], data)


def _messages(history: History) -> Iterator[TraceEvent]:
    """Many may be under way from one device at a time, so they are no slices, which would have
    to lie in one another.
    """
    for count, row in enumerate(history.data("message"), start=1):
        data = row["data"]
        time = row["time"]
        kind, _, number = data["source"].partition(" ")
        lane = (_DEVICES, int(number)) if kind == "device" else (_SERVER, 0)
        name = _ended(f"{data['source']} to {data['destination']}", row["outcome"])
        yield _entry(
            name, "b", *lane, data["start"], _facts(row["round"], data), cat="message", id=count
        )
        yield _entry(name, "e", *lane, time, {}, cat="message", id=count)


def _of_edges(history: History) -> Iterator[TraceEvent]:
    for row in history.data("edge-transfer"):
        data = row["data"]
        name = _ended(
            "from the server" if data["direction"] == "down" else "to the server", row["outcome"]
        )
        yield _slice(
            name, _EDGES, data["edge"], data["start"], row["time"], _facts(row["round"], data)
        )
    for edge, start, end in history.lost_edges.itertuples(index=False):
        yield _slice("lost", _EDGES, edge, start, end, {})


def _of_server(history: History) -> Iterator[TraceEvent]:
    starts = {row["round"]: row for row in history.data("round-start")}
    for row in history.data(*_DECISIONS, "round"):
        time = row["time"]
        data = row["data"]
        begun = starts.get(row["round"])
        if row["kind"] != "round":
            yield _instant(row["kind"], _SERVER, 0, time, {})
            continue
        if begun is None:  # a strategy without rounds: each aggregation is a version of the model
            yield _instant(f"version {row['round']:.0f}", _SERVER, 0, time, data)
        else:
            yield _slice(f"round {row['round']:.0f}", _SERVER, 0, begun["time"], time, data)
            if (deadline := begun["data"].get("deadline")) is not None and deadline <= time:
                yield _instant("deadline", _SERVER, 0, deadline, {})
        if (accuracy := data.get("accuracy")) is not None and math.isfinite(accuracy):
            yield _counter("accuracy", time, accuracy)


def _ended(name: str, outcome: str) -> str:
    return name if outcome == "done" else f"{name} ({outcome})"


def _facts(number: float | None, data: TraceEvent) -> TraceEvent:
    purpose = " + ".join(str(purpose) for purpose, _ in data["payloads"])
    delivered = None if data["delivered"] == data["bytes"] else data["delivered"]
    return (
        {"round": number}
        | data
        | {"bytes": round(data["bytes"]), "purpose": purpose, "delivered": delivered}
    )


def _entry(
    name: str,
    phase: str,
    process: int,
    lane: int,
    time: float,
    data: Mapping[str, Any],
    **more: Any,
) -> TraceEvent:
    """An entry with the texts and the finite numbers of ``data``; its time is in microseconds."""
    facts = {
        key: value
        for key, value in data.items()
        if isinstance(value, str | int) or _is_finite(value)
    }
    facts |= {"round": int(facts["round"])} if "round" in facts else {}
    return {
        "name": name,
        "ph": phase,
        "pid": process,
        "tid": lane,
        "ts": _micro(time),
        **more,
        "args": facts,
    }


def _slice(
    name: str, process: int, lane: int, begin: float, end: float, data: Mapping[str, Any]
) -> TraceEvent:
    return _entry(name, "X", process, lane, begin, data, dur=round(_micro(end) - _micro(begin), 3))


def _instant(
    name: str, process: int, lane: int, time: float, data: Mapping[str, Any]
) -> TraceEvent:
    return _entry(name, "i", process, lane, time, data, s="t")


def _counter(name: str, time: float, value: float) -> TraceEvent:
    return {
        "name": name,
        "ph": "C",
        "pid": _SERVER,
        "tid": 0,
        "ts": _micro(time),
        "args": {name: value},
    }


def _named(kind: str, process: int, lane: int, name: str | int) -> TraceEvent:
    key = "sort_index" if isinstance(name, int) else "name"
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {key: name}}


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _micro(time: float) -> float:
    return round(time * 1e6, 3)  # thousandths: as fine as the simulated clock
