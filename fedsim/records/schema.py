"""The tables of a run folder, for writers and readers: columns, types, and fingerprints.

All records have the same named columns; other fields of a kind are in ``data``, as JSON with sorted
keys. A transfer within the server's side has ``sender`` and ``receiver`` instead of device and
task: one with an edge server is a flow like others, others take no time, are on no link and count
as up. A transfer between a device and its edge server names that server as sender or receiver. A
transfer between any other two endpoints, such as two devices, has the direction ``peer`` and names
both.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fedsim.common.errors import ScenarioError
from fedsim.world.meters import OF_SECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fedsim.clock.simulation import Record
    from fedsim.common.arrays import AnyArray
    from fedsim.world.meters.base import Column

EVENT_COLUMNS = ("kind", "device", "round", "group", "task", "step", "outcome")
_FIELDS_WITH_COLUMN = frozenset(EVENT_COLUMNS[1:])

_ACTS = ("link-rate", "pace", "queue", "switch-off", "switch-on")


def is_act(kind: str) -> bool:
    """Whether such a record tells what a process of the world did."""
    return kind in _ACTS or kind.startswith("process:")


OF_TASKS = ("task-start", "step-start", "step-end", "task-end")
"""The most frequent records: they carry device, round, group and task, and their fields are
never changed afterwards.
"""


def _of(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names]


def _metered(table: str) -> list[str]:
    return [column.name for meter in OF_SECTIONS for column in getattr(meter, f"{table}_columns")]


_name = pa.dictionary(pa.int16(), pa.string())
_whole = pa.int32()
_quantity = pa.float64()

EVENTS = pa.schema(
    [
        ("time", _quantity),
        ("kind", _name),
        *_of(_whole, "device", "round", "group", "task"),
        *_of(_name, "step", "outcome"),
        ("data", pa.string()),
    ]
)

TRANSFERS = pa.schema(
    [
        *_of(_quantity, "start", "end"),
        ("device", _whole),
        *_of(_name, "direction", "purpose"),
        *_of(_quantity, "bytes", "delivered", "wire_bytes"),
        ("outcome", _name),
        *_of(_whole, "round", "task"),
        ("payloads", pa.string()),
        *_of(_name, "sender", "receiver"),
    ]
)

OF_PEERS = ("mean_accuracy", "consensus")
"""Columns of rounds that only strategies without a server fill."""

ROUNDS = pa.schema(
    [
        ("round", _whole),
        *_of(
            _quantity, "time", "accuracy", "loss", "train_loss", "discrepancy", "discrepancy_start"
        ),
        *_of(_quantity, "purity", "ari", "nmi", "epsilon"),
        *_of(_whole, "selected", "valid", "slow", "disconnected"),
        *_of(_quantity, "bytes_down", "bytes_up", *_metered("round"), "bytes_peer", *OF_PEERS),
    ]
)

LATER = {"wire_bytes": "delivered"} | dict.fromkeys(
    ("epsilon", *_metered("round"), "bytes_peer", *OF_PEERS)
)
"""Columns that tables of older versions lack, and the column that they then equal; None: all of
their cells are empty.
"""

DEVICES = pa.schema(
    [
        ("device", _whole),
        *_of(_quantity, "speed", "link_down", "link_up", "latency"),
        *_of(pa.int64(), "samples", "test_samples"),
        *_of(_quantity, "arrival", "departure"),
        *_of(_whole, "group", "selected"),
        *_of(_quantity, "accuracy", *_metered("device")),
    ]
)

ASKED = "asked"
"""Value of ``device_rows`` in a summary if only devices ever asked have rows (very many
devices); else all do.
"""

AVAILABILITY = pa.schema([("device", pa.int32()), ("time", pa.float64()), ("on", pa.bool_())])


def typed(columns: "Mapping[str, type]") -> pa.Schema:
    """The columns of a meter's own table: ``int`` or ``float`` by name."""
    return pa.schema(
        [(name, pa.int32() if kind is int else pa.float64()) for name, kind in columns.items()]
    )


OF_METERS = {
    name: typed(columns) for meter in OF_SECTIONS for name, columns in meter.tables.items()
}
"""The tables of meters that have a section of the scenario, by file."""


def with_columns(schema: pa.Schema, columns: "Iterable[Column]") -> pa.Schema:
    """A table with columns of meters besides, with metadata; ``ScenarioError``: it has a column
    of that name.
    """
    for one in columns:
        if one.name in schema.names:
            raise ScenarioError(
                f"meters: the column {one.name!r} is in the table already, beside "
                f"{', '.join(schema.names)}"
            )
        schema = schema.append(
            pa.field(one.name, pa.float64(), metadata={"unit": one.unit, "about": one.about})
        )
    return schema


def column(values: "Sequence[Any] | AnyArray", kind: pa.DataType) -> pa.Array:
    """Strings or numbers as a column, None as an empty cell: what ``pyarrow.array`` gives, which
    would load pandas first.
    """
    if isinstance(values, tuple) and values.count(None) == len(values):
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


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)
_MAKE_CHUNKS = vars(json.encoder).get("c_make_encoder")


def _encoding() -> "Callable[[object], str]":
    """The function ``encode``.

    ``JSONEncoder.encode`` makes an encoder at every call, which takes longer than to encode a
    record. The encoder that it would make is made once here.
    """
    if _MAKE_CHUNKS is None:  # a Python without the C part of json
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
"""A value as JSON, without spaces and with sorted keys."""

EventRow = tuple[
    float, str, int | None, int | None, int | None, int | None, str | None, str | None, str | None
]


def event_row(record: "Record") -> EventRow:
    """A record as a row of ``EVENTS``."""
    time, kind, fields = record
    get = fields.get
    data = None
    if not fields.keys() <= _FIELDS_WITH_COLUMN:
        rest = [item for item in fields.items() if item[0] not in _FIELDS_WITH_COLUMN]
        data = encode(dict(rest))
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


def models_digest(models: "Mapping[str, Mapping[str, AnyArray]]") -> str:
    """sha256 over all tensors by file and name, each as name, shape and bytes (and its type
    where it is not float32).
    """
    digest = hashlib.sha256()
    for name in sorted(models):
        for tensor, values in sorted(models[name].items()):
            told = "" if values.dtype == np.float32 else f"/{values.dtype}"
            digest.update(f"{name}/{tensor}/{list(values.shape)}{told}\n".encode())
            digest.update(
                np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<")).tobytes()
            )
    return digest.hexdigest()
