"""Did secure aggregation exchange the keys and shares of its protocol?"""

import math
from collections.abc import Iterator

import pandas as pd

from fedsim.common.units import Bytes
from fedsim.lab.audit.evidence import Evidence, findings, read

_PHASES = ("secure-keys", "secure-shares", "secure-unmask")


def secure_as_said(evidence: Evidence) -> Iterator[str]:
    """Keys and shares have the scenario's sizes, and go to as many neighbours as its graph gives
    each client.
    """
    section = evidence.run.scenario["strategy"].get("secure_aggregation")
    parts = _parts(evidence)
    if section is None:
        yield from findings(
            "transfer {row} has {purpose}, and the scenario has no secure aggregation", parts
        )
        return
    if len(evidence.said("aggregate")) and not len(parts):
        yield "the scenario has secure aggregation, and there are no messages of it"
    key = read(Bytes, section["key"])
    share = read(Bytes, section["share"])
    most = section.get("neighbours") or evidence.run.scenario["population"]["devices"] - 1
    told = parts.assign(near=_neighbours(parts, section.get("neighbours")))
    for (way, purpose), own in told.groupby(["direction", "purpose"]):
        unit = 2 * key if purpose == "secure-keys" else share
        near = own["near"]
        match way, purpose:
            case "up", "secure-keys":
                least = near * 0 + unit
                greatest = near * 0 + unit
            case "down", "secure-keys":
                least = unit * near
                greatest = unit * near
            case "up", "secure-shares":
                least = 2 * unit * near
                greatest = 2 * unit * near
            case _:  # shares of clients that may have dropped out
                least = near * 0 + unit
                greatest = near * 0 + 2 * unit * most
        wrong = (
            (own["bytes"] < least.fillna(0.0))
            | (own["bytes"] > greatest.fillna(math.inf))
            | (own["bytes"] % unit > 0)
        )
        text = (
            "transfer {row} {direction} has {bytes!r} bytes of {purpose}; by the scenario "
            "{least:g} to {greatest:g}"
        )
        yield from findings(text, own.assign(least=least, greatest=greatest), wrong)


def _parts(evidence: Evidence) -> pd.DataFrame:
    """The parts of messages that are of secure aggregation, by the row of their transfer, in
    order of their ends.
    """
    transfers = evidence.transfers[["direction", "payloads", "start", "end", "outcome", "task"]]
    found = [
        transfers[transfers["payloads"] == code].assign(purpose=purpose, bytes=size)
        for code, parts in enumerate(evidence.payloads)
        for purpose, size in parts
        if purpose in _PHASES
    ]
    empty = transfers.iloc[:0].assign(purpose="", bytes=0.0)
    return (
        pd.concat([empty, *found]).astype({"direction": object}).sort_values("end", kind="stable")
    )


def _neighbours(parts: pd.DataFrame, wanted: int | None) -> "pd.Series[float]":
    """Neighbours of each client in the phase of shares: of those that sent keys since the phase
    before, as the graph has.
    """
    keys = (
        (parts["direction"] == "up")
        & (parts["purpose"] == "secure-keys")
        & (parts["outcome"] == "done")
    )
    begins = (parts["direction"] == "down") & (parts["purpose"] == "secure-keys")
    near: dict[int, float] = {}
    sent = 0
    since = -1.0
    count = 0
    order = parts.assign(at=parts["start"].where(begins, parts["end"])).sort_values(
        ["at"], kind="stable"
    )
    first_keys = keys.reindex(order.index)
    first_begins = begins.reindex(order.index)
    of_task: dict[int, float] = {}
    for row, at, is_key, is_begin, task in zip(
        order.index, order["at"], first_keys, first_begins, order["task"], strict=True
    ):
        if is_key:
            sent += 1
        elif is_begin:
            if at != since:
                since = at
                count = sent
                sent = 0
            near[row] = count - 1 if wanted is None or wanted >= count else wanted
            of_task[task] = near[row]
    for row, task in zip(parts.index, parts["task"], strict=True):
        near.setdefault(row, of_task.get(task, float("nan")))
    return pd.Series(near).reindex(parts.index)
