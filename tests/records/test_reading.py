"""Tables as Python's lists and dicts: what ``pyarrow`` would give, only sooner."""

import pyarrow as pa
import pytest

from fedsim.records.reading import as_list, as_rows

NAMES = pa.dictionary(pa.int16(), pa.string())


def table(*batches: tuple[list[float | None], list[str | None]]) -> pa.Table:
    """Times and names; each batch has a dictionary of its own."""
    schema = pa.schema([("time", pa.float64()), ("kind", NAMES)])
    columns = [(pa.array(times, pa.float64()), pa.array(kinds, pa.string()).dictionary_encode()) for times, kinds in batches]
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays([times, kinds.cast(NAMES)], schema=schema) for times, kinds in columns], schema=schema
    )


@pytest.mark.parametrize(
    "found",
    [
        table(),
        table(([], [])),
        table(([1.0, None, 3.0], ["a", None, "b"])),
        table(([1.0], ["b"]), ([], []), ([2.0, 3.0, 4.0], ["a", "b", "a"]), ([5.0], [None])),
        table(([1.0, None, 3.0], ["a", None, "b"])).slice(1),
    ],
    ids=["no batch", "empty", "missing values", "dictionaries that differ", "a slice"],
)
def test_lists_and_rows_are_those_of_pyarrow(found: pa.Table) -> None:
    assert [as_list(column) for column in found.columns] == [column.to_pylist() for column in found.columns]
    assert as_rows(found) == found.to_pylist()
    for batch in found.to_batches():
        assert as_rows(batch) == batch.to_pylist()
