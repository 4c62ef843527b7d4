"""Do the books balance: files and their fingerprints, records, transfers, ledger, meters,
summary?
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedsim.clock.simulation import Record
from fedsim.common.errors import ScenarioError
from fedsim.common.files import flat
from fedsim.common.streams import Streams
from fedsim.lab.audit.evidence import NOTHING, Evidence, close, differing, findings, read
from fedsim.records import folder as files
from fedsim.records.ledger import Ledger, split_by_purpose
from fedsim.records.reading import as_list
from fedsim.records.schema import EVENTS, OF_TASKS, EventChain, models_digest
from fedsim.world.meters.base import Meter, MeterContext, Meters
from fedsim.world.meters.spec import METERS, CostsSpec

_STATUSES = ("done", "interrupted", "failed")
_ROUNDING = 1e-12
_COLUMNS = (
    *(
        "start",
        "end",
        "device",
        "round",
        "task",
        "direction",
        "outcome",
        "bytes",
        "delivered",
        "wire_bytes",
        "payloads",
    ),
    *("sender", "receiver"),
)


def sealed(evidence: Evidence) -> Iterator[str]:
    """Each file has the sha256 that the summary states, none is missing and none was added; the
    summary is as written.
    """
    yield from files.changes(evidence.run.path)


def records_intact(evidence: Evidence) -> Iterator[str]:
    """Chain and count of the records are the summary's; the last one's time is the simulated
    time; each has readable data.
    """
    summary = evidence.run.summary
    times = evidence.events["time"].tolist()
    chain = EventChain()
    for batch in evidence.run.table(files.EVENTS, EVENTS.names).to_batches(65_536):
        chain.extend(zip(*map(as_list, batch.columns), strict=True))
    last = times[-1] if times else summary["simulated_s"]
    for key, found in (
        ("events", len(times)),
        ("events_sha256", chain.hexdigest()),
        ("simulated_s", last),
    ):
        if summary[key] != found:
            yield f"{key} is {json.dumps(summary[key])} in the summary, by the records {found!r}"
    evidence.parse_others()


def ended_so(evidence: Evidence) -> Iterator[str]:
    """Status and reason are those that the record of the run's end tells."""
    status = evidence.run.summary["status"]
    stopped = evidence.run.summary["stopped"]
    if status not in _STATUSES:
        yield f"status is {json.dumps(status)} in the summary; there are only {', '.join(_STATUSES)}"
    for reason in evidence.said("run-end")["reason"]:
        if stopped != reason:
            yield (
                f"stopped is {json.dumps(stopped)} in the summary and {json.dumps(reason)} in the "
                "records"
            )
        if status != "failed" and (status == "interrupted") != (reason == "interrupted"):
            yield (
                f"status is {json.dumps(status)} in the summary, but the run stopped as "
                f"{json.dumps(reason)} in the records"
            )


def models_intact(evidence: Evidence) -> Iterator[str]:
    """The models' fingerprint is the summary's."""
    if models_digest(evidence.run.models()) != evidence.run.summary["models_sha256"]:
        yield "the models' fingerprint is not the summary's models_sha256"


def scenario_agrees(evidence: Evidence) -> Iterator[str]:
    """Seed, name and strategy are the summary's."""
    scenario = evidence.run.scenario
    summary = evidence.run.summary
    for key, value in {
        "strategy": scenario["strategy"]["kind"],
        "seed": scenario["seed"],
        "name": scenario["name"],
    }.items():
        if summary[key] != value:
            yield (
                f"{key} is {json.dumps(value)} in the scenario and {json.dumps(summary[key])} in "
                "the summary"
            )


def transfers_agree(evidence: Evidence) -> Iterator[str]:
    """The transfers are the downloads and uploads of the records, one for one."""
    transfers = evidence.transfers
    told = evidence.moved
    if len(told) != len(transfers):
        yield f"there are {len(told)} messages in the records and {len(transfers)} in the transfers"
    count = min(len(told), len(transfers))
    lists = [*evidence.payloads]
    for name in _COLUMNS:
        one, other = (np.asarray(table[name])[:count] for table in (transfers, told))
        wrong = np.flatnonzero(one != other)
        if len(wrong):
            both = pd.DataFrame({"one": one[wrong], "other": other[wrong]}, wrong)
            both = both.map(lists.__getitem__) if name == "payloads" else both
            yield from findings(
                f"transfer {{row}}: {name} is {{one!r}}, the records say {{other!r}}", both
            )
    due = np.array(["+".join(purpose for purpose, _ in parts) for parts in lists], dtype=object)[
        transfers["payloads"]
    ]
    text = "transfer {row}: purpose is {purpose!r}, its payloads say {due!r}"
    yield from findings(text, transfers.assign(due=due), np.asarray(transfers["purpose"]) != due)


def delivered_at_most_sent(evidence: Evidence) -> Iterator[str]:
    """0 <= delivered <= bytes, all of them exactly when the transfer was done; a message is as
    long as its payloads.
    """
    told = evidence.transfers
    size = told["bytes"]
    delivered = told["delivered"]
    text = "transfer {row}: {delivered!r} bytes were delivered of {bytes!r}"
    yield from findings(text, told, ~((delivered >= 0) & (delivered <= size)))
    text = "transfer {row}: it is done, but {delivered!r} of {bytes!r} bytes were delivered"
    yield from findings(text, told, (told["outcome"] == "done") & (delivered != size))
    text = "transfer {row}: its payloads do not add up to {bytes!r} bytes"
    sums = np.array(
        [sum(part for _, part in parts) for parts in evidence.payloads], dtype=np.float64
    )
    yield from findings(text, told, sums[told["payloads"]] != size)
    yield from findings(
        "transfer {row} ends before it starts", told, ~(told["end"] >= told["start"])
    )


def headers_counted(evidence: Evidence) -> Iterator[str]:
    """Bytes over a link are those that its protocol makes of the message; of an own protocol, no
    fewer.
    """
    told = evidence.transfers
    on_links = (
        (told["device"] != NOTHING) | (told["edge"] != NOTHING) | (told["direction"] == "peer")
    )
    due = told["delivered"].where(on_links, 0.0) * evidence.overhead
    wire = told["wire_bytes"]
    right = (
        wire >= due * (1 - _ROUNDING)
        if evidence.has_own_protocol
        else np.isclose(wire, due, rtol=_ROUNDING, atol=0.0)
    )
    text = (
        "transfer {row}: wire_bytes is {wire_bytes!r}, its protocol makes {due!r} of what was "
        "delivered"
    )
    yield from findings(text, told.assign(due=due), ~right)


def ledgers_agree(evidence: Evidence) -> Iterator[str]:
    """Totals by direction and purpose, and the waste, are the same in transfers and summary;
    each round has its own bytes.
    """
    ledger = flat(_ledger(evidence).summary())
    stated = flat(evidence.run.summary["bytes"])
    for key in sorted({*ledger, *stated}):
        missing = math.nan if "." in key else 0.0  # every purpose is in both
        if not close(ledger.get(key, missing), stated.get(key, missing)):
            yield (
                f"bytes.{key} is {stated.get(key)!r} in the summary, the transfers add up to "
                f"{ledger.get(key)!r}"
            )
    told = evidence.moved
    recorded = evidence.said("round").index
    place = np.searchsorted(recorded, told.index)  # the round whose record comes next
    due = {
        f"bytes_{way}": np.bincount(
            place, told["delivered"].where(told["direction"] == way, 0.0), len(recorded) + 1
        )[:-1]
        for way in ("down", "up", "peer")
    }
    yield from differing(
        "round {row}: {name} is {told!r}, the records say {due!r}", evidence.rounds.fillna(0.0), due
    )


def _ledger(evidence: Evidence) -> Ledger:
    """The ledger that follows from the transfers, and from how the records say that each task
    ended.
    """
    transfers = evidence.transfers
    lists = [*evidence.payloads]
    ledger = Ledger()
    alike = transfers.value_counts(["payloads", "delivered"], sort=False).reset_index()
    for kind, delivered, count in alike.itertuples(index=False):
        for purpose, part in split_by_purpose(lists[kind], delivered).items():
            ledger.by_purpose[purpose] = ledger.by_purpose.get(purpose, 0.0) + count * part
    moved = transfers.groupby("direction", observed=True)["delivered"].sum()
    ledger.down, ledger.peer = (float(moved.get(way, 0.0)) for way in ("down", "peer"))
    ledger.up = float(moved.drop(["down", "peer"], errors="ignore").sum())
    ledger.wasted = float(
        transfers["delivered"][transfers["task"].isin(evidence.in_vain["task"])].sum()
    )
    return ledger


def meters_agree(evidence: Evidence) -> Iterator[str]:
    """The bill and the user's own meters have the columns and entries that they count again from
    the records.

    One's own are left out where their code may not be imported. Energy has a check that shares
    no code with its meter.
    """
    scenario = evidence.run.scenario
    summary = evidence.run.summary
    if ("costs" in summary) != ("costs" in scenario):
        yield "the scenario and the summary do not agree on whether there are costs"
        return
    devices = scenario["population"]["devices"]
    streams = Streams(scenario["seed"])
    context = MeterContext(devices, evidence.cells or None, streams, evidence.overhead)
    sections = (
        {"costs": read(CostsSpec, scenario["costs"]).build(context)} if "costs" in scenario else {}
    )
    meters = Meters(sections, [*_own_meters(evidence, context)])
    if not meters:
        return
    rounds = []
    for record in _records(evidence):
        meters.take(record)
        if record.kind == "round":
            rounds.append(meters.of_round(record.time))
    meters.close(summary["simulated_s"])
    names = meters.names("round")
    of_devices = meters.of_devices(evidence.devices["device"].to_numpy(np.int64))
    for file, due in (
        (files.ROUNDS, pd.DataFrame(rounds, columns=names).astype(float)),
        (files.DEVICES, pd.DataFrame(of_devices)),
    ):
        text = f"{{name}} is {{told!r}} in row {{row}} of {file}, the records say {{due!r}}"
        yield from differing(text, evidence.frame(file, [*due]), due, atol=1e-9, equal_nan=True)
    told = flat(summary)
    for name, entry in flat(meters.summary()).items():
        here = told.get(name)
        numbers = isinstance(told.get(name), float | int) and isinstance(entry, float | int)
        if not (close(here, entry, 1e-9) if numbers else here == json.loads(json.dumps(entry))):
            yield f"{name} is {here!r} in the summary, the records say {entry!r}"


def nothing_uncounted(evidence: Evidence) -> Iterator[str]:
    """Columns of energy and costs are empty where the scenario does not count them."""
    scenario = evidence.run.scenario
    counted = {"joules": "energy", "grams": "energy", "cost": "costs"}
    for frame, table in ((evidence.rounds, files.ROUNDS), (evidence.devices, files.DEVICES)):
        for name, section in counted.items():
            if section not in scenario and name in frame:
                text = (
                    f"{name} of row {{row}} of {table} is {{value!r}}, and the scenario has no "
                    f"{section}"
                )
                column = frame[name].astype(np.float64)
                yield from findings(text, pd.DataFrame({"value": column}), ~np.isnan(column))


def _own_meters(evidence: Evidence, context: MeterContext) -> Iterator[Meter]:
    for told in evidence.run.scenario.get("meters", ()):
        try:
            yield METERS.spec(told["kind"]).model_validate(told).build(context)  # type: ignore[attr-defined]
        except ScenarioError:
            continue  # its code may not be imported, or cannot be here


def _records(evidence: Evidence) -> Iterator[Record]:
    for row in evidence.run.events:
        kind = row["kind"]
        data = dict(row["data"])
        if "payloads" in data:
            data["payloads"] = tuple((purpose, size) for purpose, size in data["payloads"])
        said = {
            name: value
            for name, value in row.items()
            if value is not None and name not in ("time", "kind", "data")
        }
        absent: dict[str, Any] = (
            dict.fromkeys(("device", "round", "group", "task")) if kind in OF_TASKS else {}
        )
        yield Record(row["time"], kind, absent | said | data)
