"""Records as rows and as what is fingerprinted, columns as those of ``pyarrow``, and tables that
grow in parts.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clock.simulation import Record
from fedsim.common.errors import CheckpointError
from fedsim.records import parquet
from fedsim.records.chain import ROWS_A_BLOCK, EventChain, RowChain
from fedsim.records.parquet import TableWriter
from fedsim.records.schema import TRANSFERS, EventRow, column, event_row, names_column
from fedsim.world.meters.ended import Transfer
from fedsim.world.steps import Payload


@pytest.mark.parametrize(
    ("kind", "fields", "row"),
    [
        (
            "task-start",
            {"device": 3, "round": 0, "group": None, "task": 7},
            (3, 0, None, 7, None, None, None),
        ),
        (
            "step-end",
            {
                "outcome": "done",
                "task": 7,
                "payloads": (Payload('a"b', 8), Payload("id", 4.0)),
                "bytes": 9.0,
                "step": "upload",
            },
            (
                None,
                None,
                None,
                7,
                "upload",
                "done",
                '{"bytes":9.0,"payloads":[["a\\"b",8],["id",4.0]]}',
            ),
        ),
        (
            "aggregate",
            {"tasks": [7], "group": 1},
            (None, None, 1, None, None, None, '{"tasks":[7]}'),
        ),
    ],
)
def test_a_field_without_a_column_stands_in_the_data(
    kind: str, fields: dict[str, Any], row: tuple[Any, ...]
) -> None:
    kept = dict(fields)
    assert event_row(Record(1.5, kind, fields)) == (1.5, kind, *row)
    assert fields == kept


def _rows(count: int) -> list[EventRow]:
    return [
        (number / 3, "it's é", None, number, None, None, '"', None, "{}" if number else None)
        for number in range(count)
    ]


def test_the_chain_is_over_blocks_of_columns_wherever_it_was_saved() -> None:
    rows = _rows(2 * ROWS_A_BLOCK + 3)
    state = b""
    for begin in range(0, len(rows), ROWS_A_BLOCK):
        times, *columns = zip(*rows[begin : begin + ROWS_A_BLOCK], strict=True)
        block = struct.pack(f"<{len(times)}d", *times) + repr(columns).encode()
        state = hashlib.sha256(state + block).digest()
    for cut in (0, 1, ROWS_A_BLOCK - 1, ROWS_A_BLOCK, ROWS_A_BLOCK + 5, len(rows)):
        first = EventChain()
        first.extend(rows[:cut])
        rest = EventChain()
        rest.restore(json.loads(json.dumps(first.snapshot())))
        assert rest.hexdigest() == first.hexdigest()
        rest.extend(iter(rows[cut:]))
        assert (rest.hexdigest(), rest.count) == (state.hex(), len(rows))


def test_the_chain_does_not_depend_on_how_many_rows_it_gets_at_once() -> None:
    rows = _rows(ROWS_A_BLOCK + 7)
    one = EventChain()
    for row in rows:
        one.extend([row])
        one.hexdigest()
    every = EventChain()
    every.extend(rows)
    assert one.hexdigest() == every.hexdigest()


@pytest.mark.parametrize("place", range(9))
def test_the_chain_tells_any_cell_from_another(place: int) -> None:
    row = _rows(2)[1]
    chains = []
    for cell in (row[place], None if place else 0.5, "None" if place else -1.0):
        chain = EventChain()
        chain.extend([(*row[:place], cell, *row[place + 1 :])])  # type: ignore[list-item]
        chains.append(chain.hexdigest())
    assert len(set(chains)) == len({row[place], None, "None"})


def test_the_chain_of_older_folders_is_over_rows_as_python_writes_them() -> None:
    rows = _rows(4)
    state = b""
    for row in rows:
        state = hashlib.sha256(state + repr(row).encode()).digest()
    chain = RowChain()
    chain.extend(rows)
    assert (chain.hexdigest(), chain.count) == (state.hex(), len(rows))


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


@pytest.mark.parametrize("values", [("a", None, "ü", "a"), ("b", "b"), (None, None), ()])
def test_columns_of_names_are_those_of_pyarrow(values: Any) -> None:
    assert names_column(values).equals(pa.array(values, type=pa.string()))


def test_what_is_not_a_number_is_not_empty() -> None:
    assert column([1.0, float("nan"), None], pa.float64()).null_count == 1


def test_a_number_that_is_too_large_for_its_column_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        column([2**40, None], pa.int32())


SCHEMA = pa.schema(
    [
        ("time", pa.float64()),
        ("kind", pa.dictionary(pa.int16(), pa.string())),
        ("data", pa.string()),
    ]
)
Row = tuple[Any, ...]


def rows(count: int) -> list[Row]:
    """Rows whose names change on the way: a group of rows has some that another has not."""
    return [
        (number / 3, None if number % 7 == 0 else f"kind {number // 10 % 13}", f"{{{number}}}")
        for number in range(count)
    ]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROWS_A_BATCH", 8)
    monkeypatch.setattr(parquet, "_ROWS_A_PART", 50)


def write(path: Path, content: list[Row], flush_at: set[int] = frozenset(), step: int = 1) -> bytes:  # type: ignore[assignment]
    writer = TableWriter(path, SCHEMA)
    for number in range(0, len(content), step):
        if step == 1:
            writer.extend([content[number]])
        else:
            writer.extend(content[number : number + step])
        if number in flush_at:
            writer.flush()
    writer.copy_to(path)
    for part in writer.parts:
        part.unlink()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return path.read_bytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 333), st.sets(st.integers(0, 333)), st.sampled_from([1, 3, 60]))
def test_the_file_is_the_same_however_the_rows_were_parted(
    tmp_path_factory: pytest.TempPathFactory, count: int, flush_at: set[int], step: int
) -> None:
    content, folder = rows(count), tmp_path_factory.mktemp("table")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    whole = write(folder / "a" / "t.parquet", content)
    assert write(folder / "b" / "t.parquet", content, flush_at, step) == whole
    table = pq.read_table(folder / "a" / "t.parquet")
    assert table.schema.equals(SCHEMA)
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == content


def test_it_goes_on_after_some_parts_and_forgets_the_rest(tmp_path: Path) -> None:
    content = rows(180)
    (tmp_path / "whole").mkdir()
    whole = write(tmp_path / "whole" / "t.parquet", content)
    writer = TableWriter(tmp_path / "t.parquet", SCHEMA)
    writer.extend(content[:70])
    parts = writer.flush()
    writer.extend(rows(300)[200:])  # of a run that was killed later
    writer.flush()
    again = TableWriter(tmp_path / "t.parquet", SCHEMA)
    again.extend([content[0]])  # what it held is forgotten too
    again.adopt(parts)
    again.copy_to(tmp_path / "copy")
    assert [tuple(row.values()) for row in pq.read_table(tmp_path / "copy").to_pylist()] == content[
        :70
    ]
    again.extend(content[70:])
    again.copy_to(tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").read_bytes() == whole
    (tmp_path / "t.part-00000.parquet").unlink()
    with pytest.raises(CheckpointError, match="part-00000"):
        TableWriter(tmp_path / "t.parquet", SCHEMA).adopt(parts)


def test_the_columns_of_messages_are_the_fields_of_a_message() -> None:
    assert Transfer._fields == tuple(TRANSFERS.names)
