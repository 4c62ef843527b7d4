"""The tables of a run folder: their columns and types, in one place for who writes and who reads.

Every record of a run has the same named columns; what a kind needs beyond them stands in ``data`` as JSON with sorted keys.
A transfer between two parts of the server's side (group servers, an auxiliary server) has ``sender`` and ``receiver`` instead
of a device and a task, and counts as up.
"""

import json

import pyarrow as pa

from fedsim.simulation import Record

EVENT_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")

_name = pa.dictionary(pa.int16(), pa.string())

EVENTS = pa.schema(
    [
        ("time", pa.float64()),
        ("kind", _name),
        ("device", pa.int32()),
        ("round", pa.int32()),
        ("group", pa.int32()),
        ("task", pa.int32()),
        ("step", _name),
        ("outcome", _name),
        ("data", pa.string()),
    ]
)

TRANSFERS = pa.schema(
    [
        ("start", pa.float64()),
        ("end", pa.float64()),
        ("device", pa.int32()),
        ("direction", _name),
        ("purpose", _name),
        ("bytes", pa.float64()),
        ("delivered", pa.float64()),
        ("outcome", _name),
        ("round", pa.int32()),
        ("task", pa.int32()),
        ("payloads", pa.string()),
        ("sender", _name),
        ("receiver", _name),
    ]
)

ROUNDS = pa.schema(
    [
        ("round", pa.int32()),
        ("time", pa.float64()),
        ("accuracy", pa.float64()),
        ("loss", pa.float64()),
        ("train_loss", pa.float64()),
        ("discrepancy", pa.float64()),
        ("discrepancy_start", pa.float64()),
        ("purity", pa.float64()),
        ("ari", pa.float64()),
        ("nmi", pa.float64()),
        ("selected", pa.int32()),
        ("valid", pa.int32()),
        ("slow", pa.int32()),
        ("disconnected", pa.int32()),
        ("bytes_down", pa.float64()),
        ("bytes_up", pa.float64()),
    ]
)

DEVICES = pa.schema(
    [
        ("device", pa.int32()),
        ("speed", pa.float64()),
        ("link_down", pa.float64()),
        ("link_up", pa.float64()),
        ("latency", pa.float64()),
        ("samples", pa.int64()),
        ("test_samples", pa.int64()),
        ("arrival", pa.float64()),
        ("departure", pa.float64()),
        ("group", pa.int32()),
        ("selected", pa.int32()),
        ("accuracy", pa.float64()),
    ]
)

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

Row = tuple[float, str, int | None, int | None, int | None, int | None, str | None, str | None, str | None]


def event_row(record: Record) -> Row:
    """A record as a row of ``EVENTS``. Written out column by column, since every event of every run passes here."""
    rest = dict(record.fields)
    take = rest.pop
    columns = (take("device", None), take("round", None), take("group", None), take("task", None))
    step, outcome = take("step", None), take("outcome", None)
    return (record.time, record.kind, *columns, step, outcome, _encode(rest) if rest else None)


def event_line(row: Row) -> bytes:
    """The bytes by which a row enters ``events_sha256``: the same whether it was just emitted or read back from Parquet."""
    return repr(row).encode()
