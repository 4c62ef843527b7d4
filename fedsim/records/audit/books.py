"""Do the books balance: records, transfers, ledger, summary, devices?"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fedsim.records.ledger import ledger_of
from fedsim.records.reading import RunFolder

_DIRECTIONS = {"download": "down", "upload": "up"}


def _close(left: float, right: float) -> bool:
    """Equal up to the rounding of a sum."""
    return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)


def transfers_agree(run: RunFolder) -> Iterator[str]:
    """The transfers are the downloads and uploads of the records, one for one."""
    told = list(_told_transfers(run))
    if len(told) != len(run.transfers):
        yield f"there are {len(told)} messages in the records and {len(run.transfers)} in the transfers"
    for number, (message, row) in enumerate(zip(told, run.transfers, strict=False)):
        for key, value in message.items():
            if row[key] != value:
                yield f"transfer {number}: {key} is {row[key]!r}, the records say {value!r}"


def _told_transfers(run: RunFolder) -> Iterator[dict[str, Any]]:
    starts: dict[int, float] = {}
    for event in run.events:
        if event["kind"] == "step-start":
            starts[event["task"]] = event["time"]
        elif event["kind"] == "server-transfer":
            size = event["data"]["bytes"]
            yield {
                "start": event["time"],
                "end": event["time"],
                "direction": "up",
                "outcome": "done",
                **{key: event[key] for key in ("device", "round", "task")},
                **{key: event["data"][key] for key in ("bytes", "sender", "receiver")},
                "delivered": size,
                "payloads": [[event["data"]["purpose"], size]],
            }
        elif event["kind"] == "step-end" and event["step"] in _DIRECTIONS:
            yield {
                "start": starts[event["task"]],
                "end": event["time"],
                "direction": _DIRECTIONS[event["step"]],
                **{key: event[key] for key in ("device", "round", "task", "outcome")},
                **{key: event["data"][key] for key in ("bytes", "delivered", "payloads")},
            }


def delivered_at_most_sent(run: RunFolder) -> Iterator[str]:
    """0 <= delivered <= bytes, all of them exactly when the transfer was done; a message is as long as its payloads."""
    for number, row in enumerate(run.transfers):
        size, delivered = row["bytes"], row["delivered"]
        if not 0 <= delivered <= size:
            yield f"transfer {number}: {delivered!r} bytes were delivered of {size!r}"
        if row["outcome"] == "done" and delivered != size:
            yield f"transfer {number}: it is done, but {delivered!r} of {size!r} bytes were delivered"
        if sum(part for _, part in row["payloads"]) != size:
            yield f"transfer {number}: its payloads do not add up to {size!r} bytes"
        if row["end"] < row["start"]:
            yield f"transfer {number} ends before it starts"


def ledgers_agree(run: RunFolder) -> Iterator[str]:
    """Totals by direction and purpose, and the waste, are the same in transfers, rounds and summary."""
    outcomes = {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}
    ledger = ledger_of(run.transfers, outcomes).summary()
    stated = run.summary["bytes"]
    for key in ("down", "up", "wasted", "paper"):
        if not _close(ledger[key], stated[key]):
            yield f"bytes.{key} is {stated[key]!r} in the summary, the transfers add up to {ledger[key]!r}"
    if ledger["by_purpose"].keys() != stated["by_purpose"].keys():
        yield f"the summary's purposes are {sorted(stated['by_purpose'])}, the transfers' {sorted(ledger['by_purpose'])}"
    for purpose, value in ledger["by_purpose"].items():
        if not _close(value, stated["by_purpose"].get(purpose, math.nan)):
            yield f"bytes.by_purpose.{purpose} is not the {value!r} that the transfers add up to"
    last = run.rounds[-1]["time"] if run.rounds else -1.0
    for direction in ("down", "up"):
        before = sum(row["delivered"] for row in run.transfers if row["direction"] == direction and row["end"] <= last)
        told = sum(row[f"bytes_{direction}"] for row in run.rounds)
        if told > before * (1 + 1e-9) + 1e-6 or not _close(told, _until_last_round(run, direction)):
            yield f"the rounds' bytes_{direction} add up to {told!r}, not to what had moved by the last of them"


def _until_last_round(run: RunFolder, direction: str) -> float:
    total, settled = 0.0, 0.0
    for event in run.events:
        if event["kind"] == "step-end" and _DIRECTIONS.get(event["step"]) == direction:
            total += event["data"]["delivered"]
        elif event["kind"] == "server-transfer" and direction == "up":
            total += event["data"]["bytes"]
        elif event["kind"] == "round":
            settled = total
    return settled


def devices_agree(run: RunFolder) -> Iterator[str]:
    """One row a device, selected for a round as often as the records say, and at work only while it was there."""
    devices = run.devices
    if len(devices) != run.scenario["population"]["devices"]:
        yield f"there are {len(devices)} devices, the scenario says {run.scenario['population']['devices']}"
    asked = Counter(
        event["device"]
        for event in run.events
        if event["kind"] == "task-start" and event["round"] is not None and "continues" not in event["data"]
    )
    for number, row in enumerate(devices):
        if row["device"] != number:
            yield f"row {number} is device {row['device']}"
        if row["selected"] != asked[number]:
            yield f"device {number} was selected {row['selected']} times, the records say {asked[number]}"
    gone = {event["task"] for event in run.events if event["kind"] == "task-end" and event["outcome"] == "left"}
    for event in run.events:
        if event["device"] is None or event["kind"] not in ("task-start", "task-end") or event["task"] in gone:
            continue  # a server may ask one of whose leaving it has not heard: that task ends at once
        if not 0 <= event["device"] < len(devices):
            yield f"task {event['task']} is on device {event['device']}, which does not exist"
            continue
        row = devices[event["device"]]
        if not row["arrival"] <= event["time"] <= row["departure"]:
            yield f"device {event['device']} works at {event['time']!r} s, when it is not there"
