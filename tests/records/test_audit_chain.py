"""The chain of fingerprints, computed from columns."""

import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fedsim.records.audit.chain import lines
from fedsim.records.schema import EVENTS

words = st.one_of(st.none(), st.sampled_from(["task-end", "it's", 'a "b"', "\\", "é", "", "\n", "'\""]), st.text(max_size=5))
whole = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))
quantity = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, 1e16, 1e-5, 1e22, 0.1, 5e-324, math.inf]))
records = st.lists(st.tuples(quantity, words, whole, whole, whole, whole, words, words, words), max_size=12)


@given(records, st.integers(0, 12))
def test_columns_become_the_same_text_as_rows(rows: list[tuple[Any, ...]], cut: int) -> None:
    table = pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], schema=EVENTS)
    for part in (table, table.slice(cut), table.slice(0, cut)):
        assert [line.decode() for line in lines(part)] == [repr(tuple(row.values())) for row in part.to_pylist()]
