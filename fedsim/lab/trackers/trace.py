"""A run as Chrome trace JSON, which Perfetto opens: a lane per device, a lane for the server, and counters.

It is written as the events are read, batch by batch, so that a run of millions of events needs no more memory than a small one
(but for the transfers, from which the load of the server's link follows).
"""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.lab.trackers.link_load import link_load, thinned
from fedsim.records import schema
from fedsim.records.folder import AVAILABILITY, DEVICES, EVENTS, writing
from fedsim.records.reading import RunFolder, as_list, as_rows

_SERVER, _DEVICES, _EDGES = 1, 2, 3
_ROWS_A_BATCH = 16_384
_MOST_LOADS = 20_000  # changes of a link's load: more than anybody can see, and a tenth of the file even of a long run

_LOSSES = {"lost": "disconnected", "left": "left for good", "battery": "battery flat"}
_INSTANTS = {"arrival": "arrives", "departure": "leaves for good"}
_DECISIONS = ("cluster-split", "cluster", "clustering", "tiers")
_UNSHOWN = (*_DECISIONS, "aggregate")  # whose data are large
_KEPT = (
    *("task", "round", "purpose", "bytes", "delivered", "epochs", "asked", "models", "what", "partner", "before", "why"),
    *("link", "rate", "factor", "direction", "slots"),
    *("accuracy", "loss", "train_loss", "purity", "selected", "valid", "slow", "disconnected"),
)

TraceEvent = dict[str, Any]


def write_trace(run: RunFolder, path: Path) -> int:
    """Write the trace of ``run`` to ``path``; returns the number of trace events.

    Raises:
        RunFolderError: a table is missing or damaged, or the file cannot be written.
    """
    count = 0
    with writing(path) as beside, beside.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for count, entry in enumerate(trace_events(run), start=1):
            file.write(",\n" if count > 1 else "\n")
            file.write(json.dumps(entry, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")
    return count


def trace_events(run: RunFolder) -> Iterator[TraceEvent]:
    """All of a trace.

    On the lanes of devices: their steps as slices, and the phases in which they could not be reached; as instants when they
    disconnect, arrive, leave for good, have shifted data, are put into a group, and what processes of the world do to them. On
    the server's lane: rounds as slices (versions of a strategy without rounds as instants), deadlines that were reached,
    decisions about groups, and what processes do to links.
    Messages of devices to each other are asynchronous events on the lane of the sender.
    Edge servers, if there are any, have lanes of their own: their messages from and to the server, and when they were lost.
    Counters: devices at work, accuracy, and the load of the server's link both ways (bytes/s).

    Raises:
        RunFolderError: a table is missing or damaged.
    """
    yield _named("process_name", _SERVER, 0, f"server ({run.summary['strategy']})")
    yield _named("process_name", _DEVICES, 0, "devices")
    lanes = _Lanes()
    try:
        for event in _rows(run, EVENTS, schema.EVENTS):
            event["data"] = {} if event["data"] is None or event["kind"] in _UNSHOWN else json.loads(event["data"])
            yield from lanes.take(event)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{EVENTS} of {str(run.path)!r} is missing or damaged: {error}") from None
    yield from _off_phases(run, lanes)
    yield from lanes.close()
    for way in ("down", "up"):
        load = thinned(link_load(run, way), _MOST_LOADS)
        for time, rate in zip(load.times.tolist(), load.values.tolist(), strict=True):
            yield _counter(f"server link {way} (bytes/s)", time, round(max(0.0, rate), 1))


def _rows(run: RunFolder, name: str, columns: Any) -> Iterator[TraceEvent]:
    return (row for piece in run.batches(name, columns, _ROWS_A_BATCH) for row in as_rows(piece))


class _Lanes:
    """State of the open steps while events go by.

    Attributes:
        devices: those that have a lane.
        last: the time of the last event (s).
    """

    def __init__(self) -> None:
        self.devices: set[int] = set()
        self.last = 0.0
        self._begun: dict[int, TraceEvent] = {}  # steps by task
        self._round: TraceEvent | None = None
        self._edges: set[int] = set()
        self._lost: dict[int, float] = {}  # edge servers that are lost, and since when (s)
        self._messages = 0
        self._working = self._counted = 0  # devices, and how many of them the trace knows of
        self._changed = 0.0  # when their number did

    def take(self, event: TraceEvent) -> Iterator[TraceEvent]:
        """The entries that an event makes."""
        time, kind, data, device = event["time"], event["kind"], event["data"], event["device"]
        self.last = time
        if time > self._changed:
            yield from self._count_working()
        match kind:
            case "step-start":
                self._begun[event["task"]] = event
            case "step-end":
                yield self._step(self._begun.pop(event["task"]), time, event["outcome"], data)
            case "task-start" | "task-end":
                self._working += 1 if kind == "task-start" else -1
                self._changed = time
                if event["outcome"] in _LOSSES:
                    yield self._instant(event, _LOSSES[event["outcome"]])
            case "edge-transfer":
                self._edges.add(data["edge"])
                name = _ended("from the server" if data["direction"] == "down" else "to the server", event["outcome"])
                yield _slice(name, _EDGES, data["edge"], data["start"], time, _message(event))
            case "message":
                yield from self._message(event)
            case "edge-off":
                self._lost[data["edge"]] = time
            case "edge-on":
                yield self._edge_lost(data["edge"], time)
            case "arrival" | "departure":
                yield self._instant(event, _INSTANTS[kind])
            case "shift":
                yield self._instant(event, f"data shift ({data.get('what')})")
            case "assign":
                group = event["group"]
                yield self._instant(event, f"out of group {data['before']}" if group is None else f"into group {group}")
            case "round-start":
                self._round = event
            case "round":
                yield from self._end_round(event)
            case _ if schema.is_act(kind) and device is not None:
                yield self._instant(event, kind)
            case _ if schema.is_act(kind) or kind in _DECISIONS:
                yield _instant(kind, _SERVER, 0, time, {})

    def close(self) -> Iterator[TraceEvent]:
        """Close the open steps of a run that was cut off; adds the last count and the names of the lanes."""
        for event in self._begun.values():
            yield self._step(event, self.last, "stopped", {})
        for edge in list(self._lost):
            yield self._edge_lost(edge, self.last)
        yield from self._count_working()
        if self._edges:
            yield _named("process_name", _EDGES, 0, "edge servers")
        for edge in sorted(self._edges):
            yield _named("thread_name", _EDGES, edge, f"edge {edge}")
        for device in sorted(self.devices):
            yield _named("thread_name", _DEVICES, device, f"device {device}")
            yield _named("thread_sort_index", _DEVICES, device, device)

    def _count_working(self) -> Iterator[TraceEvent]:
        """Once an instant, at its end."""
        if self._working != self._counted:
            self._counted = self._working
            yield _counter("devices at work", self._changed, self._working)

    def _step(self, begun: TraceEvent, end: float, outcome: str, data: TraceEvent) -> TraceEvent:
        self.devices.add(begun["device"])
        facts = _message(begun | {"data": data}) if "payloads" in data else {"round": begun["round"]} | data
        return _slice(
            _ended(begun["step"], outcome), _DEVICES, begun["device"], begun["time"], end, {"task": begun["task"]} | facts
        )

    def _message(self, event: TraceEvent) -> Iterator[TraceEvent]:
        """Many may be under way from one device at a time, so they are no slices, which would have to lie in one another."""
        data, self._messages = event["data"], self._messages + 1
        name = _ended(f"{data['source']} to {data['destination']}", event["outcome"])
        kind, _, number = data["source"].partition(" ")
        lane = (_DEVICES, int(number)) if kind == "device" else (_SERVER, 0)
        if kind == "device":
            self.devices.add(int(number))
        begun = _slice(name, *lane, data["start"], event["time"], _message(event))
        begun |= {"cat": "message", "id": self._messages, "ph": "b"}
        del begun["dur"]
        yield begun
        yield begun | {"ph": "e", "ts": _micro(event["time"]), "args": {}}

    def _edge_lost(self, edge: int, time: float) -> TraceEvent:
        self._edges.add(edge)
        return _slice("lost", _EDGES, edge, self._lost.pop(edge), time, {})

    def _instant(self, event: TraceEvent, name: str) -> TraceEvent:
        self.devices.add(event["device"])
        return _instant(name, _DEVICES, event["device"], event["time"], event["data"])

    def _end_round(self, event: TraceEvent) -> Iterator[TraceEvent]:
        time, data, begun = event["time"], event["data"], self._round
        self._round = None
        if begun is None:  # a strategy without rounds: each aggregation is a version of the model
            yield _instant(f"version {event['round']}", _SERVER, 0, time, data)
        else:
            yield _slice(f"round {event['round']}", _SERVER, 0, begun["time"], time, data)
            deadline = begun["data"].get("deadline")
            if deadline is not None and deadline <= time:
                yield _instant("deadline", _SERVER, 0, deadline, {})
        accuracy = data.get("accuracy")
        if accuracy is not None and math.isfinite(accuracy):
            yield _counter("accuracy", time, accuracy)


def _ended(name: str, outcome: str) -> str:
    return name if outcome == "done" else f"{name} ({outcome})"


def _message(event: TraceEvent) -> TraceEvent:
    """The facts of a message's slice."""
    data: TraceEvent = event["data"]
    purpose = " + ".join(str(purpose) for purpose, _ in data["payloads"])
    delivered = None if data["delivered"] == data["bytes"] else data["delivered"]
    return {"round": event["round"]} | data | {"bytes": round(data["bytes"]), "purpose": purpose, "delivered": delivered}


def _off_phases(run: RunFolder, lanes: _Lanes) -> Iterator[TraceEvent]:
    """When devices that have a lane could not be reached, as slices; not before they arrived, nor after they left for good."""
    if not run.has(AVAILABILITY):
        return
    population = run.table(DEVICES).select(["device", "arrival", "departure"])
    lives = {device: life for device, *life in zip(*map(as_list, population.columns), strict=True)}
    begun: tuple[int, float] | None = None  # an off phase that goes on
    for row in chain(_rows(run, AVAILABILITY, schema.AVAILABILITY), [{"device": None, "time": lanes.last, "on": True}]):
        if begun is not None:
            device, start = begun
            arrival, departure = lives[device]
            end = row["time"] if row["device"] == device else lanes.last
            start, end = max(start, arrival), min(end, departure)
            if start < end:
                yield _slice("cannot be reached", _DEVICES, device, start, end, {})
        begun = None if row["on"] or row["device"] not in lanes.devices else (row["device"], row["time"])


def _entry(name: str, phase: str, process: int, lane: int, time: float, data: Mapping[str, Any], **more: Any) -> TraceEvent:
    """An entry with the known facts of ``data``, but for numbers that JSON does not have."""
    facts = {key: value for key, value in data.items() if key in _KEPT and value is not None}
    facts = {key: value for key, value in facts.items() if not isinstance(value, float) or math.isfinite(value)}
    return {"name": name, "ph": phase, "pid": process, "tid": lane, "ts": _micro(time), **more, "args": facts}


def _slice(name: str, process: int, lane: int, begin: float, end: float, data: Mapping[str, Any]) -> TraceEvent:
    return _entry(name, "X", process, lane, begin, data, dur=round(_micro(end) - _micro(begin), 3))


def _instant(name: str, process: int, lane: int, time: float, data: Mapping[str, Any]) -> TraceEvent:
    return _entry(name, "i", process, lane, time, data, s="t")


def _counter(name: str, time: float, value: float) -> TraceEvent:
    return {"name": name, "ph": "C", "pid": _SERVER, "tid": 0, "ts": _micro(time), "args": {name: value}}


def _named(kind: str, process: int, lane: int, name: str | int) -> TraceEvent:
    key = "sort_index" if isinstance(name, int) else "name"
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {key: name}}


def _micro(time: float) -> float:
    """The format's microseconds, to thousandths: as fine as the simulated clock."""
    return round(time * 1e6, 3)
