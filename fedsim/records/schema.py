"""The tables of a run folder, for writers and readers: columns, types, and fingerprints.

Records of all kinds have the same columns in ``events.parquet``. A record's fields without a column
are in the column ``data``, as JSON with sorted keys.

A transfer between a device and its edge server names the edge server as ``sender`` or ``receiver``.
A transfer within the server's side has ``sender`` and ``receiver`` instead of device and task. If
one of these is an edge server, the transfer is a flow in the network. Otherwise the transfer takes
no time, uses no link and counts as ``up``. A transfer between any other two endpoints, such as two
devices, has ``sender``, ``receiver`` and the direction ``peer``.
"""

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fedsim.common.errors import ScenarioError
from fedsim.common.tensor_files import array_of, bytes_of
from fedsim.world.meters import OF_SECTIONS
from fedsim.world.meters.base import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fedsim.clock.simulation import Record
    from fedsim.common.arrays import AnyArray
    from fedsim.common.tensor_files import AnyTensor
    from fedsim.world.meters.ended import Payloads

EVENT_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")

_ACTS = ("link-rate", "pace", "queue", "switch-off", "switch-on")


def is_act(kind: str) -> bool:
    """Return whether records of a kind say that a device or the network has changed.

    Examples are a new rate of a link, and a device that is switched off. Processes of the
    scenario's section ``[world]``, such as an outage, emit such records.

    Args:
        kind: name of the kind of records.
    """
    return kind in _ACTS or kind.startswith("process:")


OF_TASKS = ("task-start", "step-start", "step-end", "task-end")
"""Kinds of the most frequent records, which are about tasks.

Their fields include device, round, group and task, and are not changed after they are emitted.
"""


def _columns(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    """Return a pair (name, type) for each name, for columns that all have one type."""
    return [(name, kind) for name in names]


def _meter_columns(table: str) -> list[str]:
    """Return the names of the columns that meters, such as the energy meter, add to a table.

    Args:
        table: ``round`` or ``device``.
    """
    return [column.name for meter in OF_SECTIONS for column in getattr(meter, f"{table}_columns")]


_name = pa.dictionary(pa.int16(), pa.string())
_whole = pa.int32()
_quantity = pa.float64()

EVENTS = pa.schema(
    [
        ("time", _quantity),
        ("kind", _name),
        *_columns(_whole, "device", "round", "group", "task"),
        *_columns(_name, "step", "outcome"),
        ("data", pa.string()),
    ]
)

TRANSFERS = pa.schema(
    [
        *_columns(_quantity, "start", "end"),
        ("device", _whole),
        *_columns(_name, "direction", "purpose"),
        *_columns(_quantity, "bytes", "delivered", "wire_bytes"),
        ("outcome", _name),
        *_columns(_whole, "round", "task"),
        ("payloads", pa.string()),
        *_columns(_name, "sender", "receiver"),
    ]
)

OF_PEERS = ("mean_accuracy", "consensus")
"""Columns of ``ROUNDS`` that only strategies without a server fill."""

ROUNDS = pa.schema(
    [
        ("round", _whole),
        *_columns(
            _quantity, "time", "accuracy", "loss", "train_loss", "discrepancy", "discrepancy_start"
        ),
        *_columns(_quantity, "purity", "ari", "nmi", "epsilon"),
        *_columns(_whole, "selected", "valid", "slow", "disconnected"),
        *_columns(
            _quantity, "bytes_down", "bytes_up", *_meter_columns("round"), "bytes_peer", *OF_PEERS
        ),
    ]
)

LATER = {"wire_bytes": "delivered"} | dict.fromkeys(
    ("epsilon", *_meter_columns("round"), "bytes_peer", *OF_PEERS)
)
"""Column that tables of older versions may lack -> column from which it is then read.

None if the missing column is read as empty cells.
"""

DEVICES = pa.schema(
    [
        ("device", _whole),
        *_columns(_quantity, "speed", "link_down", "link_up", "latency"),
        *_columns(pa.int64(), "samples", "test_samples"),
        *_columns(_quantity, "arrival", "departure"),
        *_columns(_whole, "group", "selected"),
        *_columns(_quantity, "accuracy", *_meter_columns("device")),
    ]
)

ASKED = "asked"
"""Value of ``device_rows`` in a summary if only devices that were sent a task have rows in ``DEVICES``.

This holds for runs with very many devices. In any other run each device has a row.
"""

AVAILABILITY = pa.schema([("device", pa.int32()), ("time", pa.float64()), ("on", pa.bool_())])

TRACES = pa.schema(
    [
        ("trace", pa.int32()),
        ("name", pa.string()),
        ("length", pa.float64()),
        ("loops", pa.bool_()),
        ("since", pa.float64()),
        ("value", pa.float64()),
    ]
)
"""Pieces of the traces that links follow: a row for each time from which a value holds.

A value is a rate (bytes/s), a latency (s) or a share of lost packets.
"""

TRACED_LINKS = pa.schema(
    [
        ("device", pa.int64()),
        ("link", pa.string()),
        ("trace", pa.int32()),
        ("ahead", pa.float64()),
    ]
)
"""Links that follow traces: ``down``, ``up``, ``latency`` or ``loss`` of a device, or the name of a
shared link (device -1).

``ahead`` is the place in the trace at simulated time 0 (s).
"""


OWN_TRAINING = {
    "epochs": Column("local_epochs", "", "epochs of a training, in place of strategy.local_epochs"),
    "steps": Column("local_steps", "", "SGD steps of a training, in place of epochs"),
    "batch_size": Column("batch_size", "", "samples in a batch, in place of training.batch_size"),
    "lr": Column("lr", "", "learning rate, in place of training.lr"),
}
"""Key of ``[population.local]`` -> column of ``devices.parquet``.

A cell is NaN if the device has the scenario's value.
"""


def typed(columns: "Mapping[str, type]") -> pa.Schema:
    """Return the ``pyarrow`` schema of a table of numbers, with columns of int32 and float64.

    Args:
        columns: type of each column, ``int`` or ``float``, by name.
    """
    return pa.schema(
        [(name, pa.int32() if kind is int else pa.float64()) for name, kind in columns.items()]
    )


OF_METERS = {
    name: typed(columns) for meter in OF_SECTIONS for name, columns in meter.tables.items()
}
"""File name -> schema of a table of the meters that have a scenario section."""


def with_columns(schema: pa.Schema, columns: "Iterable[Column]") -> pa.Schema:
    """Return a table's schema with additional columns, which meters such as the energy meter fill.

    An additional column is float64, with its unit and meaning as metadata.

    Args:
        schema: the schema.
        columns: names, units and meanings of the additional columns.

    Raises:
        ScenarioError: the schema has a column of the same name.
    """
    for meter_column in columns:
        if meter_column.name in schema.names:
            raise ScenarioError(
                f"meters: the column {meter_column.name!r} is in the table already, beside "
                f"{', '.join(schema.names)}"
            )
        metadata = {"unit": meter_column.unit, "about": meter_column.about}
        schema = schema.append(pa.field(meter_column.name, pa.float64(), metadata=metadata))
    return schema


def column(values: "Sequence[object] | AnyArray", kind: pa.DataType) -> pa.Array:
    """Convert strings or numbers to a ``pyarrow`` column; None becomes an empty cell.

    The result equals ``pyarrow.array(values, kind)``, but pandas is not loaded.

    Args:
        values: the cells, in order.
        kind: type of the column.
    """
    if isinstance(values, tuple) and values[:1] == (None,) and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    if pa.types.is_string(kind):
        strings = pa.lib.StringBuilder()
        strings.append_values(values)
        return strings.finish()
    cells = np.ascontiguousarray(values)
    filled = None
    if cells.dtype == object:
        empty = cells == np.array(None)
        filled = pa.py_buffer(np.packbits(~empty, bitorder="little"))
        cells = np.where(empty, 0.0, cells).astype(float)
    content = np.packbits(cells, bitorder="little") if cells.dtype == bool else cells
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(cells.dtype), len(cells), [filled, pa.py_buffer(content)]
    ).cast(kind)


def names_column(values: "Sequence[str | None]") -> pa.Array:
    """Convert many strings, with few distinct values, to a ``pyarrow`` column.

    The result equals ``column(values, pa.string())`` and takes half of the time, because each
    distinct string is converted only once.

    Args:
        values: the cells, in order; None becomes an empty cell.
    """
    places = {name: place for place, name in enumerate(dict.fromkeys(values))}
    indices = np.fromiter(map(places.__getitem__, values), np.int32, len(values))
    names = column(list(places), pa.string())
    encoded = pa.DictionaryArray.from_arrays(column(indices, pa.int32()), names)
    return encoded.cast(pa.string())


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)
_MAKE_CHUNKS = vars(json.encoder).get("c_make_encoder")


def _encoding() -> "Callable[[object], str]":
    """Return a function that encodes an object as JSON text.

    It creates Python's C encoder once; ``JSONEncoder.encode`` creates one at every call, which takes
    longer than encoding a record.
    """
    if _MAKE_CHUNKS is None:  # this Python lacks the C part of json
        return _ENCODER.encode
    make_chunks = _MAKE_CHUNKS(
        None,
        _ENCODER.default,
        json.encoder.encode_basestring_ascii,
        _ENCODER.indent,
        _ENCODER.key_separator,
        _ENCODER.item_separator,
        _ENCODER.sort_keys,
        _ENCODER.skipkeys,
        _ENCODER.allow_nan,
    )
    return lambda value: "".join(make_chunks(value, 0))


encode = _encoding()
"""Function that returns a value as JSON, without spaces and with sorted keys."""

_FIELDS_OF_MESSAGE = (
    "task",
    "device",
    "round",
    "group",
    "step",
    "outcome",
    "bytes",
    "delivered",
    "payloads",
)

EventRow = tuple[
    float, str, int | None, int | None, int | None, int | None, str | None, str | None, str | None
]


_COLUMNS_OF_FIELDS = frozenset(("device", "round", "group", "task", "step", "outcome"))


def event_row(record: "Record") -> EventRow:
    """Convert a record to a row of ``events.parquet``, a tuple in the order of the columns."""
    time, kind, fields = record
    get = fields.get
    data = None if _COLUMNS_OF_FIELDS.issuperset(fields) else _data(record)
    return (
        time,
        kind,
        get("device"),
        get("round"),
        get("group"),
        get("task"),
        get("step"),
        get("outcome"),
        data,
    )


def _data(record: "Record") -> str:
    """Return the fields of a record that have no column, as JSON."""
    fields = record.fields
    names = tuple(fields)
    # most records are messages, whose JSON is joined from cached parts
    if names == _FIELDS_OF_MESSAGE:
        payloads = encode_payloads(fields["payloads"])
        size = fields["bytes"]
        delivered = fields["delivered"]
        size_text = _number(size)
        # in the record of a complete message, size and delivered bytes are one object
        delivered_text = size_text if delivered is size else _number(delivered)
        return f'{{"bytes":{size_text},"delivered":{delivered_text},"payloads":{payloads}}}'
    others = {name: fields[name] for name in names if name not in _COLUMNS_OF_FIELDS}
    return encode(others)


def _number(value: float) -> str:
    return float.__repr__(value) if isinstance(value, float) else encode(value)


@lru_cache(maxsize=4096, typed=True)  # typed, because 8 and 8.0 are different texts
def _encode_payload(purpose: str, size: float) -> str:
    return encode((purpose, size))


def encode_payloads(payloads: "Payloads") -> str:
    """Return the payloads of a message as JSON, a list of pairs ``[purpose, bytes]``.

    The text of a payload is cached, as many messages have equal payloads.
    """
    if len(payloads) == 1:
        return f"[{_encode_payload(*payloads[0])}]"
    return f"[{','.join([_encode_payload(*payload) for payload in payloads])}]"


def models_digest(models: "Mapping[str, Mapping[str, AnyTensor]]") -> str:
    """Return the SHA-256 over all tensors of models, in the order of file and tensor names.

    Each tensor contributes the names of its file and of itself, its shape, its type (if it is not
    float32) and its little-endian bytes.

    Args:
        models: tensors by name, for each file name. Stored tensors are read one at a time.
    """
    digest = hashlib.sha256()
    for name in sorted(models):
        for tensor, values in sorted(models[name].items()):
            suffix = "" if values.dtype == np.float32 else f"/{values.dtype}"
            digest.update(f"{name}/{tensor}/{list(values.shape)}{suffix}\n".encode())
            digest.update(bytes_of(array_of(values)))
    return digest.hexdigest()
