"""The records' chain of fingerprints, computed from columns: as ``EventChain`` computes it, several times as fast.

A chain cannot be spared one sha256 a record; what takes most time is to write each record as text. Here whole columns become
text at once.
"""

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.records.reading import RunFolder
from fedsim.records.schema import EVENT_COLUMNS, EVENTS

_NO_PLAIN_TEXT = (  # all but printable ASCII without ' and \: what ``repr`` may change, or quote otherwise
    r"[^ -&(-\[\]-~]"  # what ``repr`` of a text changes, and which quotes it uses: all but plain ASCII without ' and \
)


def chain_of(run: RunFolder, name: str) -> str:
    """The chain's head, in hexadecimal digits, over all records of a table of events.

    Raises:
        RunFolderError: the table is missing or damaged.
    """
    state, sha256 = b"", hashlib.sha256
    for table in run.batches(name, EVENTS):
        for line in lines(table):
            state = sha256(state + line).digest()
    return state.hex()


def lines(table: pa.Table) -> Iterator[bytes]:
    """Each record as ``EventChain`` takes it in: ``repr`` of its row."""
    columns = [_written(table.column(column).combine_chunks()) for column in ("time", *EVENT_COLUMNS, "data")]
    joined = pc.binary_join_element_wise(*columns, ", ")
    bodies = joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
    _, ends, content = bodies.buffers()
    offsets = np.frombuffer(ends, dtype=np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    whole = b"" if content is None else content.to_pybytes()
    for begin, end in pairwise(offsets):
        yield b"(" + whole[begin:end] + b")"


def _written(column: Any) -> Any:
    """``repr`` of each value, as a ``pyarrow`` array of texts."""
    if pa.types.is_dictionary(column.type):
        names = [repr(name) for name in column.dictionary.to_pylist()]
        return pa.array([*names, "None"]).take(column.indices.fill_null(len(names)))
    if pa.types.is_floating(column.type):  # Arrow writes some of them otherwise than Python
        return _written_times(column)
    if pa.types.is_string(column.type):
        if pc.any(pc.match_substring_regex(column, _NO_PLAIN_TEXT)).as_py():
            return pa.array([repr(text) for text in column.to_pylist()])
        return pc.fill_null(pc.binary_join_element_wise("'", column, "'", ""), "None")
    return pc.fill_null(column.cast(pa.string()), "None")


def _written_times(column: Any) -> Any:
    """The same of times: what many records in a row have in common is written once."""
    values = column.to_numpy(zero_copy_only=False)
    bits, missing = values.view(np.int64), column.is_null().to_numpy(zero_copy_only=False)
    new = np.ones(len(values), dtype=bool)
    new[1:] = (bits[1:] != bits[:-1]) | (missing[1:] != missing[:-1])
    texts = [repr(value) for value in column.filter(pa.array(new)).to_pylist()]
    return pa.array(texts, type=pa.string()).take(pa.array(np.cumsum(new) - 1))
