"""A run as Chrome trace JSON, which Perfetto opens: a lane a device, a lane for the server, and counters."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedsim.records.folder import write_text
from fedsim.records.reading import RunFolder

_MICRO = 1e6  # the format counts in microseconds
_SERVER, _DEVICES = 1, 2


def write_trace(run: RunFolder, path: Path) -> int:
    """Write the trace of ``run`` to ``path``; returns the number of trace events."""
    events = list(trace_events(run))
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":")))
    return len(events)


def trace_events(run: RunFolder) -> Iterator[dict[str, Any]]:
    """Steps as slices on their device's lane, rounds as slices of the server, accuracy and working devices as counters."""
    yield _named("process_name", _SERVER, 0, f"server ({run.summary['strategy']})")
    yield _named("process_name", _DEVICES, 0, "devices")
    yield from (
        _named("thread_name", _DEVICES, row["device"], f"device {row['device']}") for row in run.devices if row["selected"]
    )
    begins: dict[int, float] = {}
    round_begin: float | None = None
    working = 0
    for event in run.events:
        time, data = event["time"], event["data"]
        match event["kind"]:
            case "step-start":
                begins[event["task"]] = time
            case "step-end":
                arguments = {"task": event["task"], "round": event["round"], "outcome": event["outcome"]} | data
                arguments.pop("epoch_ends", None)
                name = event["step"] if event["outcome"] == "done" else f"{event['step']} ({event['outcome']})"
                yield _slice(name, _DEVICES, event["device"], begins[event["task"]], time, arguments)
            case "task-start" | "task-end":
                working += 1 if event["kind"] == "task-start" else -1
                yield _counter("devices at work", time, working)
            case "round-start":
                round_begin = time
                if data.get("deadline") is not None:
                    yield {"name": "deadline", "ph": "i", "s": "p", "pid": _SERVER, "tid": 0, "ts": data["deadline"] * _MICRO}
            case "round":
                begin = time if round_begin is None else round_begin
                yield _slice(f"round {event['round']}", _SERVER, 0, begin, time, data)
                if data["accuracy"] is not None:
                    yield _counter("accuracy", time, data["accuracy"])


def _slice(name: str, process: int, lane: int, begin: float, end: float, arguments: dict[str, Any]) -> dict[str, Any]:
    micro = {"ts": begin * _MICRO, "dur": (end - begin) * _MICRO}
    return {"name": name, "ph": "X", "pid": process, "tid": lane, **micro, "args": arguments}


def _counter(name: str, time: float, value: float) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": _SERVER, "tid": 0, "ts": time * _MICRO, "args": {name: value}}


def _named(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
