"""Checks that a run's recorded figures agree with each other: hashes, records, bytes and meters."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from fedsim.clock.simulation import Record
from fedsim.common.errors import ScenarioError
from fedsim.common.files import flatten
from fedsim.common.streams import Streams
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audit.frames import (
    NOTHING,
    is_close,
    read_quantity,
    report_differences,
    report_rows,
)
from fedsim.records import folder as files
from fedsim.records.chain import ROWS_A_BLOCK, EventChain, RowChain
from fedsim.records.ledger import Ledger, split_by_purpose
from fedsim.records.reading import as_list
from fedsim.records.schema import EVENTS, OF_TASKS, models_digest
from fedsim.world.meters.base import Meter, MeterContext, Meters
from fedsim.world.meters.spec import METERS, CostsSpec

_STATUSES = ("done", "interrupted", "failed")
_ROUNDING = 1e-12
_COMPARED_COLUMNS = (
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
    "sender",
    "receiver",
)
"""Columns of transfers that are also in the records."""

_SECTION_OF_COLUMN = {"joules": "energy", "grams": "energy", "cost": "costs"}
"""Dict from column of a meter to the section of the scenario that makes the run count it."""


def check_file_hashes(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each file of the run folder that is missing, additional or was changed.

    A file was changed if its hash differs from the hash that the folder's summary has for it.
    """
    yield from files.changes(evidence.run.path)


def check_record_hashes(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the run's records do not agree with the folder's summary.

    The summary has the count of records, the time of the last record, and a hash chain over all
    records in order. The chain hashes blocks of records; in folders of older versions, whose
    summary has no ``events_block``, it hashes single records.

    Raises:
        RunFolderError: the ``data`` of a record is not a JSON object. This check also parses the
            ``data`` of kinds of records that no other check reads.
    """
    summary = evidence.run.summary
    times = evidence.events["time"].tolist()
    is_older = "events_block" not in summary
    chain = RowChain() if is_older else EventChain()
    for batch in evidence.run.table(files.EVENTS, EVENTS.names).to_batches(65_536):
        chain.extend(zip(*map(as_list, batch.columns), strict=True))
    expected = {
        "events": len(times),
        "events_sha256": chain.hexdigest(),
        "simulated_s": times[-1] if times else summary["simulated_s"],
    }
    if not is_older:
        expected["events_block"] = ROWS_A_BLOCK
    for key, value in expected.items():
        if summary[key] != value:
            yield f"{key} is {json.dumps(summary[key])} in the summary, by the records {value!r}"
    evidence.parse_rest()


def check_stop_reason(evidence: Evidence) -> Iterator[str]:
    """Yield findings if the summary's status is unknown, or if ``run-end`` contradicts the summary.

    The record ``run-end`` has the reason why the run stopped. The summary has it too, and a status.
    """
    status = evidence.run.summary["status"]
    stopped = evidence.run.summary["stopped"]
    if status not in _STATUSES:
        allowed = ", ".join(_STATUSES)
        yield f"status is {json.dumps(status)} in the summary; there are only {allowed}"
    for reason in evidence.data_of("run-end")["reason"]:
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


def check_model_hashes(evidence: Evidence) -> Iterator[str]:
    """Yield a finding if the hash of the run's saved models differs from the summary's."""
    if models_digest(evidence.models) != evidence.run.summary["models_sha256"]:
        yield "the models' fingerprint is not the summary's models_sha256"


def check_scenario_entries(evidence: Evidence) -> Iterator[str]:
    """Yield a finding if the summary's seed, name or strategy differs from the scenario's."""
    scenario = evidence.run.scenario
    summary = evidence.run.summary
    stated = {
        "strategy": scenario["strategy"]["kind"],
        "seed": scenario["seed"],
        "name": scenario["name"],
    }
    for key, value in stated.items():
        if summary[key] != value:
            yield (
                f"{key} is {json.dumps(value)} in the scenario and {json.dumps(summary[key])} in "
                "the summary"
            )


def check_transfers(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each row of ``transfers.parquet`` that differs from the run's records.

    The table has a row for each message, and its n-th row has to equal the n-th record that ends a
    message. A message's parts (payloads) have a purpose each, such as ``update``; the row's text
    ``purpose`` has to name them in order.
    """
    transfers = evidence.transfers
    recorded = evidence.recorded_transfers
    if len(recorded) != len(transfers):
        yield (
            f"there are {len(recorded)} messages in the records and {len(transfers)} in the "
            "transfers"
        )
    count = min(len(recorded), len(transfers))
    payload_lists = evidence.payloads.lists  # columns ``payloads`` have indices into this list
    for name in _COMPARED_COLUMNS:
        stated = np.asarray(transfers[name])[:count]
        expected = np.asarray(recorded[name])[:count]
        wrong_rows = np.flatnonzero(stated != expected)
        if not len(wrong_rows):
            continue
        wrong = pd.DataFrame(
            {"stated": stated[wrong_rows], "expected": expected[wrong_rows]}, wrong_rows
        )
        if name == "payloads":  # findings show the payload lists instead of their indices
            wrong = wrong.map(payload_lists.__getitem__)
        template = f"transfer {{row}}: {name} is {{stated!r}}, the records say {{expected!r}}"
        yield from report_rows(template, wrong)
    purposes = ["+".join(purpose for purpose, _ in payloads) for payloads in payload_lists]
    expected = np.array(purposes, dtype=object)[transfers["payloads"]]
    wrong_purpose = np.asarray(transfers["purpose"]) != expected
    template = "transfer {row}: purpose is {purpose!r}, its payloads say {expected!r}"
    yield from report_rows(template, transfers.assign(expected=expected), wrong_purpose)


def check_delivered_bytes(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each transfer with impossible bytes or times.

    A transfer delivers at most the bytes of its payloads, and all of them if it is ``done``.
    """
    transfers = evidence.transfers
    size = transfers["bytes"]
    delivered = transfers["delivered"]
    is_possible = (delivered >= 0) & (delivered <= size)  # False also for NaN
    template = "transfer {row}: {delivered!r} bytes were delivered of {bytes!r}"
    yield from report_rows(template, transfers, ~is_possible)
    is_short = (transfers["outcome"] == "done") & (delivered != size)
    template = "transfer {row}: it is done, but {delivered!r} of {bytes!r} bytes were delivered"
    yield from report_rows(template, transfers, is_short)
    payload_sums = [sum(part for _, part in payloads) for payloads in evidence.payloads.lists]
    expected = np.array(payload_sums, dtype=np.float64)[transfers["payloads"]]
    template = "transfer {row}: its payloads do not add up to {bytes!r} bytes"
    yield from report_rows(template, transfers, expected != size)
    is_in_order = transfers["end"] >= transfers["start"]  # False also for NaN
    template = "transfer {row} ends before it starts"
    yield from report_rows(template, transfers, ~is_in_order)


def check_header_bytes(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each transfer whose bytes on the wire contradict the scenario's protocol.

    The bytes on the wire are the delivered bytes times the protocol's overhead for headers, or 0 if
    the message uses no link. A user's own protocol may send more bytes than that, but not fewer.
    """
    transfers = evidence.transfers
    of_devices = transfers["device"] != NOTHING
    of_edges = transfers["edge"] != NOTHING
    on_links = of_devices | of_edges | (transfers["direction"] == "peer")
    expected = transfers["delivered"].where(on_links, 0.0) * evidence.overhead
    wire_bytes = transfers["wire_bytes"]
    if evidence.has_own_protocol:
        is_right = wire_bytes >= expected * (1 - _ROUNDING)
    else:
        is_right = pd.Series(
            np.isclose(wire_bytes, expected, rtol=_ROUNDING, atol=0.0), index=wire_bytes.index
        )
    template = (
        "transfer {row}: wire_bytes is {wire_bytes!r}, its protocol makes {expected!r} of what was "
        "delivered"
    )
    yield from report_rows(template, transfers.assign(expected=expected), ~is_right)


def check_ledgers(evidence: Evidence) -> Iterator[str]:
    """Yield findings if byte counts of the summary or of rounds differ from sums over transfers.

    The summary counts bytes by direction, by purpose, and wasted bytes; a round counts bytes by
    direction.
    """
    ledger = flatten(_compute_ledger(evidence).summary())
    stated = flatten(evidence.run.summary["bytes"])
    for key in sorted({*ledger, *stated}):
        # Dotted keys are purposes, which ledger and summary both have to list. A direction may be
        # missing, and then has 0 bytes.
        missing = math.nan if "." in key else 0.0
        if not is_close(ledger.get(key, missing), stated.get(key, missing)):
            yield (
                f"bytes.{key} is {stated.get(key)!r} in the summary, the transfers add up to "
                f"{ledger.get(key)!r}"
            )
    transfers = evidence.recorded_transfers
    # a transfer counts for the first round whose record follows the record of its end
    round_rows = evidence.data_of("round").index
    next_round = np.searchsorted(round_rows, transfers.index)
    expected = {}
    for direction in ("down", "up", "peer"):
        delivered = transfers["delivered"].where(transfers["direction"] == direction, 0.0)
        sums = np.bincount(next_round, delivered, len(round_rows) + 1)
        expected[f"bytes_{direction}"] = sums[:-1]  # without messages after the last round
    template = "round {row}: {name} is {stated!r}, the records say {expected!r}"
    yield from report_differences(template, evidence.rounds.fillna(0.0), expected)


def _compute_ledger(evidence: Evidence) -> Ledger:
    """Compute the run's bytes by direction, by purpose and wasted, from its recorded transfers.

    A transfer's bytes are wasted if its task is one of ``Evidence.wasted_tasks``: the server used
    no update of this task.
    """
    transfers = evidence.transfers
    payload_lists = evidence.payloads.lists
    ledger = Ledger()
    # equal transfers are counted, so that each payload list is split once
    counts = transfers.value_counts(["payloads", "delivered"], sort=False).reset_index()
    for list_index, delivered, count in counts.itertuples(index=False):
        for purpose, size in split_by_purpose(payload_lists[list_index], delivered).items():
            ledger.by_purpose[purpose] = ledger.by_purpose.get(purpose, 0.0) + count * size
    sums = transfers.groupby("direction", observed=True)["delivered"].sum()
    ledger.down = float(sums.get("down", 0.0))
    ledger.peer = float(sums.get("peer", 0.0))
    ledger.up = float(sums.drop(["down", "peer"], errors="ignore").sum())
    wasted = transfers["task"].isin(evidence.wasted_tasks["task"])
    ledger.wasted = float(transfers["delivered"][wasted].sum())
    return ledger


def check_meters(evidence: Evidence) -> Iterator[str]:
    """Recount the run's costs and the values of the user's meters, and yield each difference.

    A meter is an object that computes values, such as costs, from the run's records. The recount
    feeds the records to new meters, and compares their values with the tables of rounds and devices
    and with the summary. A user's meters are skipped if their code may not be imported. Energy has
    a separate check, which shares no code with its meter.
    """
    scenario = evidence.run.scenario
    summary = evidence.run.summary
    if ("costs" in summary) != ("costs" in scenario):
        yield "the scenario and the summary do not agree on whether there are costs"
        return
    devices = scenario["population"]["devices"]
    streams = Streams(scenario["seed"])
    context = MeterContext(devices, evidence.cells or None, streams, evidence.overhead)
    sections = {}
    if "costs" in scenario:
        sections["costs"] = read_quantity(CostsSpec, scenario["costs"]).build(context)
    meters = Meters(sections, [*_build_user_meters(evidence, context)])
    if not meters:
        return
    rounds = []
    for record in _read_records(evidence):
        meters.take(record)
        if record.kind == "round":
            rounds.append(meters.of_round(record.time))
    meters.close(summary["simulated_s"])
    of_rounds = pd.DataFrame(rounds, columns=meters.names("round")).astype(float)
    of_devices = meters.of_devices(evidence.devices["device"].to_numpy(np.int64))
    yield from _check_columns(evidence, files.ROUNDS, of_rounds)
    yield from _check_columns(evidence, files.DEVICES, pd.DataFrame(of_devices))
    yield from _check_entries(flatten(summary), flatten(meters.summary()))


def _check_columns(evidence: Evidence, file: str, expected: pd.DataFrame) -> Iterator[str]:
    """Yield a finding for each cell of a table of the folder that differs from a recount."""
    template = f"{{name}} is {{stated!r}} in row {{row}} of {file}, the records say {{expected!r}}"
    table = evidence.frame(file, [*expected])
    yield from report_differences(template, table, expected, atol=1e-9, equal_nan=True)


def _check_entries(summary: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Yield a finding for each entry of the summary that differs from a recount.

    Args:
        summary: the summary, as a dict from dotted name to value.
        expected: dict from dotted name to the value that the recount gave; only these names are
            compared.
    """
    for name, recounted in expected.items():
        stated = summary.get(name)
        if isinstance(stated, float | int) and isinstance(recounted, float | int):
            agree = is_close(stated, recounted, atol=1e-9)
        else:  # the summary has the value as JSON, which has a list in place of a tuple
            agree = stated == json.loads(json.dumps(recounted))
        if not agree:
            yield f"{name} is {stated!r} in the summary, the records say {recounted!r}"


def check_uncounted(evidence: Evidence) -> Iterator[str]:
    """Yield a finding for each energy or cost that is stated though the scenario counts none.

    Without the section ``[energy]`` or ``[costs]``, the columns of this section in the tables of
    rounds and devices have to be empty.
    """
    scenario = evidence.run.scenario
    for frame, file in ((evidence.rounds, files.ROUNDS), (evidence.devices, files.DEVICES)):
        for name, section in _SECTION_OF_COLUMN.items():
            if section in scenario or name not in frame:
                continue
            column = frame[name].astype(np.float64)
            template = (
                f"{name} of row {{row}} of {file} is {{value!r}}, and the scenario has no {section}"
            )
            yield from report_rows(template, pd.DataFrame({"value": column}), ~np.isnan(column))


def _build_user_meters(evidence: Evidence, context: MeterContext) -> Iterator[Meter]:
    """Build the user's meters that the scenario names by import path, if they may be imported."""
    for section in evidence.run.scenario.get("meters", ()):
        try:
            spec: Any = METERS.spec(section["kind"])
            yield spec.model_validate(section).build(context)
        except ScenarioError:
            continue


def _read_records(evidence: Evidence) -> Iterator[Record]:
    """Yield the run's records as ``Record`` objects, as the run passed them to its meters."""
    for row in evidence.run.events:
        kind = row["kind"]
        fields: dict[str, Any] = {}
        if kind in OF_TASKS:
            fields = dict.fromkeys(("device", "round", "group", "task"))
        for name, value in row.items():
            if value is not None and name not in ("time", "kind", "data"):
                fields[name] = value
        fields.update(row["data"])
        if "payloads" in fields:
            fields["payloads"] = tuple((purpose, size) for purpose, size in fields["payloads"])
        yield Record(row["time"], kind, fields)
