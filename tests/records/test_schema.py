"""Records as rows and as what is fingerprinted: written fast, and to the same bytes as written plainly."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.records.digest import EventChain
from fedsim.records.schema import EVENT_COLUMNS, EventRow, column, encode, encode_payloads, event_row
from fedsim.simulation import Record
from fedsim.world.task import Payload

numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.sampled_from([0, 0.0, 8, 8.0, 1, True, 1e22, 1e-9])
texts = st.text(max_size=6) | st.sampled_from(['"', "'", "\\", "é", "\n"])
values = st.recursive(st.none() | st.booleans() | numbers | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
about = {"task": st.integers(0, 99), "device": st.integers(0, 99), "round": st.none() | st.integers(0, 9), "group": st.none()}
plain_payloads = st.lists(
    st.builds(Payload, st.sampled_from(["model", 'a"b']), st.sampled_from([8, 8.0, 4.5, 1e16])), max_size=3
).map(tuple)


def plainly(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def plain_row(record: Record) -> EventRow:
    rest = {name: value for name, value in record.fields.items() if name not in EVENT_COLUMNS}
    columns = [record.fields.get(name) for name in EVENT_COLUMNS[1:]]
    return (record.time, record.kind, *columns, plainly(rest) if rest else None)  # type: ignore[return-value]


@given(st.dictionaries(texts, values, max_size=4))
def test_json_is_that_of_the_standard_library(value: dict[str, Any]) -> None:
    assert encode(value) == plainly(value)


@given(plain_payloads)
def test_payloads_too_whole_numbers_or_not(parts: tuple[Payload, ...]) -> None:
    assert encode_payloads(parts) == plainly(parts)


def fields(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


kinds = st.sampled_from(["task-start", "step-start", "step-end", "task-end"])
sizes = numbers.filter(lambda value: not isinstance(value, bool) and math.isfinite(value))
message = {"outcome": st.just("done"), "bytes": sizes, "delivered": sizes, "payloads": plain_payloads}
ends = st.lists(st.floats(0, 1e9))
training = {"outcome": st.just("late"), "epochs": st.integers(0, 9), "asked": st.just(5), "epoch_ends": ends}
steps = fields(about, step=st.just("train"), outcome=st.sampled_from(["done", None]), epochs=numbers)
records = st.one_of(
    st.tuples(kinds, steps),
    st.tuples(st.just("step-end"), fields(about | message | {"step": st.sampled_from(["download", "upload"])})),
    st.tuples(st.just("step-end"), fields(about | training | {"step": st.just("train")}, part=st.just([1, 4, 25]))),
    st.tuples(st.just("aggregate"), st.dictionaries(st.sampled_from([*EVENT_COLUMNS[1:], "a", "b"]), values, max_size=5)),
)


@settings(max_examples=400)
@given(records)
def test_rows_are_as_written_plainly(told: tuple[str, dict[str, Any]]) -> None:
    record, kept = Record(1.5, *told), dict(told[1])
    assert event_row(record) == plain_row(record)
    assert record.fields == kept


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.1, 1 / 3, 1e17]),
            st.sampled_from(["round", "it's", "é"]),
            *[st.none() | st.integers(0, 9)] * 4,
            *[st.none() | texts] * 3,
        ),
        max_size=8,
    ),
    st.integers(0, 8),
)
def test_the_chain_is_over_the_rows_as_python_writes_them(rows: list[EventRow], cut: int) -> None:
    state = b""
    for row in rows:
        state = hashlib.sha256(state + repr(row).encode()).digest()
    whole = EventChain()
    whole.extend(rows)
    assert (whole.hexdigest(), whole.count) == (state.hex(), len(rows))
    first = EventChain()
    first.extend(rows[:cut])
    rest = EventChain(first.state, first.count)  # saved and continued
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
