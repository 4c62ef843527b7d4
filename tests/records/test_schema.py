"""Records as rows and as what is fingerprinted, and columns as those of ``pyarrow``."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedsim.records.schema import EventChain, EventRow, column, event_row
from fedsim.simulation import Record
from fedsim.world.task import Payload


@pytest.mark.parametrize(
    ("kind", "fields", "row"),
    [
        ("task-start", {"device": 3, "round": 0, "group": None, "task": 7}, (3, 0, None, 7, None, None, None)),
        (
            "step-end",
            {"outcome": "done", "task": 7, "payloads": (Payload('a"b', 8), Payload("id", 4.0)), "bytes": 9.0, "step": "upload"},
            (None, None, None, 7, "upload", "done", '{"bytes":9.0,"payloads":[["a\\"b",8],["id",4.0]]}'),
        ),
        ("aggregate", {"tasks": [7], "group": 1}, (None, None, 1, None, None, None, '{"tasks":[7]}')),
    ],
)
def test_a_field_without_a_column_stands_in_the_data(kind: str, fields: dict[str, Any], row: tuple[Any, ...]) -> None:
    kept = dict(fields)
    assert event_row(Record(1.5, kind, fields)) == (1.5, kind, *row)
    assert fields == kept


def test_the_chain_is_over_the_rows_as_python_writes_them_wherever_it_was_saved() -> None:
    rows: list[EventRow] = [
        (number / 3, "it's é", None, number, None, None, '"', None, "{}" if number else None) for number in range(4)
    ]
    state = b""
    for row in rows:
        state = hashlib.sha256(state + repr(row).encode()).digest()
    for cut in range(5):
        first = EventChain()
        first.extend(rows[:cut])
        rest = EventChain(first.state, first.count)
        rest.extend(iter(rows[cut:]))
        assert (rest.hexdigest(), rest.count) == (state.hex(), len(rows))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.5, None, 3], pa.float64()),
        ((None, None), pa.float64()),
        ((4, None, -1), pa.int32()),
        ([], pa.int32()),
        (("a", None, "ü", ""), pa.string()),
        ([True, None, False], pa.bool_()),
        (np.arange(20) % 3 == 0, pa.bool_()),
        (np.broadcast_to(5, 7), pa.float64()),
        (np.arange(9)[::2], pa.int32()),
        (np.array([2**53, None, 1], object), pa.int64()),
    ],
)
def test_columns_are_those_of_pyarrow(values: Any, kind: pa.DataType) -> None:
    assert column(values, kind).equals(pa.array(values, type=kind))


def test_what_is_not_a_number_is_not_empty() -> None:
    assert column([1.0, float("nan"), None], pa.float64()).null_count == 1


def test_a_number_that_is_too_large_for_its_column_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        column([2**40, None], pa.int32())
