"""Do the books balance: records, transfers, ledger, summary?"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats
from fedsim.records.audit.columns import NOTHING, Sequences, shown
from fedsim.records.audit.events import FLOWS
from fedsim.records.audit.evidence import Evidence
from fedsim.records.ledger import Ledger

_ENDS = ("sender", "receiver")
_ROUNDING = 1e-12
_SIZES = ("bytes", "delivered", "wire_bytes")
_COLUMNS = ("start", "end", "device", "round", "task", "direction", "outcome", *_SIZES, "payloads", *_ENDS)


def _close(left: float, right: float) -> bool:
    """Equal up to the rounding of a sum."""
    return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6)


def transfers_agree(evidence: Evidence) -> Iterator[str]:
    """The transfers are the downloads and uploads of the records, one for one."""
    transfers, messages = evidence.transfers, evidence.events.messages
    if len(messages.at) != transfers.count:
        yield f"there are {len(messages.at)} messages in the records and {transfers.count} in the transfers"
    both = min(len(messages.at), transfers.count)
    told = {name: column[:both] for name, column in _told(evidence).items()}
    wrong = {name: transfers[name][:both] != told[name] for name in _COLUMNS}
    for row in np.flatnonzero(np.logical_or.reduce(list(wrong.values()))).tolist():
        for name in (name for name, mask in wrong.items() if mask[row]):
            here, there = (_shown(evidence, name, values.item(row)) for values in (transfers[name], told[name]))
            yield f"transfer {row}: {name} is {here!r}, the records say {there!r}"
    yield from _purposes(evidence)


def _told(evidence: Evidence) -> dict[str, NDArray[Any]]:
    """The transfers' columns as the records have them; [messages] each."""
    events, messages, words = evidence.events, evidence.events.messages, evidence.words
    own, of_edge, of_peers = (events.are(kind)[messages.at] for kind in ("step-end", *FLOWS))
    at_once = ~(own | of_edge | of_peers)  # what other parts of the server's side send each other begins and ends in its record
    time = events["time"][messages.at]
    down = np.where(own, events["step"][messages.at] == words["download"], of_edge & (messages.sender == words["server"]))
    return {
        "start": np.where(own, _starts(evidence), np.where(at_once, time, messages.start)),
        "end": time,
        **{name: events[name][messages.at] for name in ("device", "round", "task")},
        "direction": np.where(of_peers, words["peer"], np.where(down, words["down"], words["up"])),
        "outcome": np.where(at_once, words["done"], events["outcome"][messages.at]),
        **{name: getattr(messages, name) for name in (*_SIZES, "payloads", *_ENDS)},
    }


def _starts(evidence: Evidence) -> Floats:
    """When the step that ends with each message began: the latest of its task; NaN where none did; float64 [messages]."""
    events = evidence.events
    begins = events.are("step-start")
    rows = np.concatenate([np.flatnonzero(begins), events.messages.at])
    rows.sort()
    lives = Sequences(events["task"][rows])
    rows = rows[lives.order]
    latest = lives.latest_before(begins[rows])
    result = np.full(events.count, math.nan)
    result[rows] = np.where(latest >= 0, events["time"][rows[latest]], math.nan)
    return result[events.messages.at]


def _shown(evidence: Evidence, name: str, value: Any) -> Any:
    if name == "payloads":
        return evidence.payloads.parts[value]
    if name in ("direction", "outcome", *_ENDS):
        return evidence.words.name(value)
    return shown(value)


def _purposes(evidence: Evidence) -> Iterator[str]:
    """A transfer names the purposes of its payloads."""
    transfers = evidence.transfers
    purposes = np.array([evidence.words[purpose] for purpose in evidence.payloads.purposes()], dtype=np.int32)
    wanted = purposes[transfers["payloads"]]
    for row in np.flatnonzero(transfers["purpose"] != wanted).tolist():
        here, there = transfers.name("purpose", row), evidence.words.name(wanted.item(row))
        yield f"transfer {row}: purpose is {here!r}, its payloads say {there!r}"


def delivered_at_most_sent(evidence: Evidence) -> Iterator[str]:
    """0 <= delivered <= bytes, all of them exactly when the transfer was done; a message is as long as its payloads."""
    transfers = evidence.transfers
    size, delivered = transfers["bytes"], transfers["delivered"]
    too_much = ~((delivered >= 0) & (delivered <= size))
    not_all = (transfers["outcome"] == evidence.words["done"]) & (delivered != size)
    other_sum = evidence.payloads.sums()[transfers["payloads"]] != size
    backwards = ~(transfers["end"] >= transfers["start"])
    for row in np.flatnonzero(too_much | not_all | other_sum | backwards).tolist():
        if too_much[row]:
            yield f"transfer {row}: {delivered.item(row)!r} bytes were delivered of {size.item(row)!r}"
        if not_all[row]:
            yield f"transfer {row}: it is done, but {delivered.item(row)!r} of {size.item(row)!r} bytes were delivered"
        if other_sum[row]:
            yield f"transfer {row}: its payloads do not add up to {size.item(row)!r} bytes"
        if backwards[row]:
            yield f"transfer {row} ends before it starts"


def headers_counted(evidence: Evidence) -> Iterator[str]:
    """What went over a link was as many bytes as its protocol makes of it; of an own protocol, no fewer."""
    transfers = evidence.transfers
    on_links = (
        (transfers["device"] != NOTHING) | (transfers.edge != NOTHING) | (transfers["direction"] == evidence.words["peer"])
    )
    due = np.where(on_links, transfers["delivered"], 0.0) * evidence.overhead
    wire = transfers["wire_bytes"]
    right = wire >= due * (1 - _ROUNDING) if evidence.has_own_protocol else np.isclose(wire, due, rtol=_ROUNDING, atol=0.0)
    for row in np.flatnonzero(~right).tolist():
        yield f"transfer {row}: wire_bytes is {wire.item(row)!r}, its protocol makes {due.item(row)!r} of what was delivered"


def ledgers_agree(evidence: Evidence) -> Iterator[str]:
    """Totals by direction and purpose, and the waste, are the same in transfers, rounds and summary."""
    ledger = _ledger(evidence).summary()
    stated = evidence.run.summary["bytes"]
    for key in ("down", "up", "peer", "wasted", "paper"):
        if not _close(ledger.get(key, 0.0), stated.get(key, 0.0)):
            yield f"bytes.{key} is {stated.get(key)!r} in the summary, the transfers add up to {ledger.get(key)!r}"
    if ledger["by_purpose"].keys() != stated["by_purpose"].keys():
        yield f"the summary's purposes are {sorted(stated['by_purpose'])}, the transfers' {sorted(ledger['by_purpose'])}"
    for purpose, value in ledger["by_purpose"].items():
        if not _close(value, stated["by_purpose"].get(purpose, math.nan)):
            yield f"bytes.by_purpose.{purpose} is not the {value!r} that the transfers add up to"
    yield from _rounds(evidence)


def _rounds(evidence: Evidence) -> Iterator[str]:
    """Each round has the bytes that moved since the record of the one before."""
    events, messages, told = evidence.events, evidence.events.messages, evidence.rounds
    if told.count != len(events.rounds):
        return  # which another check tells
    direction = _told(evidence)["direction"]
    place = np.searchsorted([at for at, _ in events.rounds], messages.at)
    for way in ("down", "up", "peer"):
        moved = np.where(direction == evidence.words[way], messages.delivered, 0.0)
        found = np.bincount(place, moved, told.count + 1)[:-1]
        for row in np.flatnonzero(~np.isclose(np.nan_to_num(told[f"bytes_{way}"]), found, rtol=1e-9, atol=1e-6)).tolist():
            yield f"round {row}: bytes_{way} is {told[f'bytes_{way}'].item(row)!r}, the records say {found.item(row)!r}"


def _ledger(evidence: Evidence) -> Ledger:
    """The ledger that follows from the transfers, and from how the records say that each task ended."""
    transfers, words, kinds = evidence.transfers, evidence.words, evidence.payloads
    size, delivered, payloads = transfers["bytes"], transfers["delivered"], transfers["payloads"]
    whole = (delivered == size) & (kinds.sums()[payloads] == size)
    ledger = Ledger()
    for kind, count in enumerate(np.bincount(payloads[whole], minlength=len(kinds.parts)).tolist()):
        for purpose, part in kinds.parts[kind] if count else ():
            ledger.by_purpose[purpose] = ledger.by_purpose.get(purpose, 0.0) + count * part
    for kind, part in zip(payloads[~whole].tolist(), delivered[~whole].tolist(), strict=True):
        ledger.add(None, "down", kinds.parts[kind], part)
    ways = {way: transfers["direction"] == words[way] for way in ("down", "peer")}
    ledger.down, ledger.peer = (delivered[of_way].sum().item() for of_way in ways.values())
    ledger.up = delivered[~(ways["down"] | ways["peer"])].sum().item()
    ledger.wasted = _wasted(evidence)
    return ledger


def _wasted(evidence: Evidence) -> float:
    """What was moved by tasks that ended otherwise than done, trained for nothing, or were lost with an edge server; bytes."""
    events, transfers = evidence.events, evidence.transfers
    ends = np.flatnonzero(events.are("task-end"))
    lives = Sequences(events["task"][ends])
    final = ends[lives.order][lives.last]
    idle = np.isin(events["task"][final], events["task"][events.idle])
    in_vain = events["task"][final[idle | (events["outcome"][final] != evidence.words["done"])]]
    in_vain = np.concatenate([in_vain[in_vain != NOTHING], events.lost_updates[0]])
    return float(transfers["delivered"][np.isin(transfers["task"], in_vain)].sum())
