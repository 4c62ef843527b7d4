"""Do the books balance: records, transfers, ledger, summary?"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedsim.audit.evidence import NOTHING, Evidence, close, findings
from fedsim.records.ledger import Ledger, split_by_purpose

_ROUNDING = 1e-12
_COLUMNS = (
    *("start", "end", "device", "round", "task", "direction", "outcome", "bytes", "delivered", "wire_bytes", "payloads"),
    *("sender", "receiver"),
)


def transfers_agree(evidence: Evidence) -> Iterator[str]:
    """The transfers are the downloads and uploads of the records, one for one."""
    transfers, told = evidence.transfers, evidence.moved
    if len(told) != len(transfers):
        yield f"there are {len(told)} messages in the records and {len(transfers)} in the transfers"
    count, lists = min(len(told), len(transfers)), [*evidence.payloads]
    for name in _COLUMNS:
        one, other = (np.asarray(table[name])[:count] for table in (transfers, told))
        wrong = np.flatnonzero(one != other)
        if len(wrong):
            both = pd.DataFrame({"one": one[wrong], "other": other[wrong]}, wrong)
            both = both.map(lists.__getitem__) if name == "payloads" else both
            yield from findings(f"transfer {{row}}: {name} is {{one!r}}, the records say {{other!r}}", both)
    due = np.array(["+".join(purpose for purpose, _ in parts) for parts in lists], dtype=object)[transfers["payloads"]]
    text = "transfer {row}: purpose is {purpose!r}, its payloads say {due!r}"
    yield from findings(text, transfers.assign(due=due), np.asarray(transfers["purpose"]) != due)


def delivered_at_most_sent(evidence: Evidence) -> Iterator[str]:
    """0 <= delivered <= bytes, all of them exactly when the transfer was done; a message is as long as its payloads."""
    told = evidence.transfers
    size, delivered = told["bytes"], told["delivered"]
    text = "transfer {row}: {delivered!r} bytes were delivered of {bytes!r}"
    yield from findings(text, told, ~((delivered >= 0) & (delivered <= size)))
    text = "transfer {row}: it is done, but {delivered!r} of {bytes!r} bytes were delivered"
    yield from findings(text, told, (told["outcome"] == "done") & (delivered != size))
    text = "transfer {row}: its payloads do not add up to {bytes!r} bytes"
    sums = np.array([sum(part for _, part in parts) for parts in evidence.payloads], dtype=np.float64)
    yield from findings(text, told, sums[told["payloads"]] != size)
    yield from findings("transfer {row} ends before it starts", told, ~(told["end"] >= told["start"]))


def headers_counted(evidence: Evidence) -> Iterator[str]:
    """Bytes over a link are those that its protocol makes of the message; of an own protocol, no fewer."""
    told = evidence.transfers
    on_links = (told["device"] != NOTHING) | (told["edge"] != NOTHING) | (told["direction"] == "peer")
    due, wire = told["delivered"].where(on_links, 0.0) * evidence.overhead, told["wire_bytes"]
    right = wire >= due * (1 - _ROUNDING) if evidence.has_own_protocol else np.isclose(wire, due, rtol=_ROUNDING, atol=0.0)
    text = "transfer {row}: wire_bytes is {wire_bytes!r}, its protocol makes {due!r} of what was delivered"
    yield from findings(text, told.assign(due=due), ~right)


def ledgers_agree(evidence: Evidence) -> Iterator[str]:
    """Totals by direction and purpose, and the waste, are the same in transfers, rounds and summary."""
    ledger, stated = _ledger(evidence).summary(), evidence.run.summary["bytes"]
    for key in ("down", "up", "peer", "wasted", "paper"):
        if not close(ledger.get(key, 0.0), stated.get(key, 0.0)):
            yield f"bytes.{key} is {stated.get(key)!r} in the summary, the transfers add up to {ledger.get(key)!r}"
    if ledger["by_purpose"].keys() != stated["by_purpose"].keys():
        yield f"the summary's purposes are {sorted(stated['by_purpose'])}, the transfers' {sorted(ledger['by_purpose'])}"
    for purpose, value in ledger["by_purpose"].items():
        if not close(value, stated["by_purpose"].get(purpose, math.nan)):
            yield f"bytes.by_purpose.{purpose} is not the {value!r} that the transfers add up to"
    yield from _rounds(evidence)


def _rounds(evidence: Evidence) -> Iterator[str]:
    """Each round has the bytes that moved since the record of the one before."""
    stated, recorded, told = evidence.rounds, evidence.said("round").index, evidence.moved
    if len(stated) != len(recorded):
        return  # a finding of another check
    place = np.searchsorted(recorded, told.index)
    for way in ("down", "up", "peer"):
        name = f"bytes_{way}"
        found = np.bincount(place, told["delivered"].where(told["direction"] == way, 0.0), len(stated) + 1)[:-1]
        text = f"round {{row}}: {name} is {{{name}!r}}, the records say {{found!r}}"
        yield from findings(text, stated.assign(found=found), ~close(stated[name].fillna(0.0), found))


def _ledger(evidence: Evidence) -> Ledger:
    """The ledger that follows from the transfers, and from how the records say that each task ended."""
    transfers, lists, ledger = evidence.transfers, [*evidence.payloads], Ledger()
    alike = transfers.value_counts(["payloads", "delivered"], sort=False).reset_index()
    for kind, delivered, count in alike.itertuples(index=False):
        for purpose, part in split_by_purpose(lists[kind], delivered).items():
            ledger.by_purpose[purpose] = ledger.by_purpose.get(purpose, 0.0) + count * part
    moved = transfers.groupby("direction", observed=True)["delivered"].sum()
    ledger.down, ledger.peer = (float(moved.get(way, 0.0)) for way in ("down", "peer"))
    ledger.up = float(moved.drop(["down", "peer"], errors="ignore").sum())
    ledger.wasted = float(transfers["delivered"][transfers["task"].isin(evidence.in_vain["task"])].sum())
    return ledger
