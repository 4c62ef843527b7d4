"""Parquet tables that grow while a run goes on, in parts, since a killed Parquet file has no footer and cannot be read.

Rows become columns every few thousand rows; so many of them, and what there is when a checkpoint is taken, go to part files
beside the table. ``close`` joins them into the one file of the contract, written beside and renamed. A killed run leaves its
finished parts. The file is the same however the rows were parted: names get their dictionaries only then, one a row group.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.errors import CheckpointError

_ROWS_A_BATCH = 4_096
_ROWS_A_PART = 100_000  # also of a row group of the file


class TableWriter:
    """Collects rows of one table.

    Args:
        path: the table's file.
        schema: its columns; a row is a tuple in their order.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        names = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        # What is no name hardly ever comes twice in a row group: without a dictionary it takes less time and less space.
        self._how = {"compression": "zstd", "use_dictionary": names or False}
        self._plain = pa.schema([(field.name, _plain(field.type)) for field in schema])
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []
        self._packed = 0  # rows in the batches
        self._parts: list[Path] = []

    def append(self, row: tuple[Any, ...]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_A_BATCH:
            self._pack()

    def extend(self, rows: list[tuple[Any, ...]]) -> None:
        """Add rows."""
        self._rows += rows
        if len(self._rows) >= _ROWS_A_BATCH:
            self._pack()

    def flush(self) -> int:
        """Bring all rows into parts; returns how many parts there are."""
        self._pack()
        if self._batches:
            self._write_part()
        return len(self._parts)

    def adopt(self, parts: int) -> None:
        """Go on after so many parts of a run that was stopped; what it wrote later is removed.

        Raises:
            CheckpointError: a part is missing.
        """
        self._parts = [self._part(number) for number in range(parts)]
        for part in self._parts:
            if not part.is_file():
                raise CheckpointError(f"{str(part)!r} is missing, which the checkpoint counts on")
        self._rows, self._batches, self._packed = [], [], 0
        for path in sorted(self._path.parent.glob(f"{self._path.stem}.part-*")):
            if path not in self._parts:
                path.unlink()

    def close(self) -> None:
        """Join everything into the table's file. The parts stay until ``drop_parts``: a run that is killed now can go on."""
        beside = self._path.with_suffix(".writing")
        with pq.ParquetWriter(beside, self._schema, **self._how) as writer:
            waiting = self._plain.empty_table()
            for table in self._tables():
                waiting = pa.concat_tables([waiting, table])
                while len(waiting) >= _ROWS_A_PART:
                    writer.write_table(self._named(waiting.slice(0, _ROWS_A_PART)))
                    waiting = waiting.slice(_ROWS_A_PART)
            writer.write_table(self._named(waiting))
        beside.replace(self._path)

    def drop_parts(self) -> None:
        """The run is done: the table's file is all that is needed."""
        for part in self._parts:
            part.unlink()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every row so far, in order, as it was appended (equal up to the types of the schema)."""
        for table in self._tables():
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)

    def _tables(self) -> Iterator[pa.Table]:
        self._pack()  # first: it may make another part
        for part in self._parts:
            yield pq.ParquetFile(part).read()  # several times as fast as ``read_table`` for one small file
        yield pa.Table.from_batches(self._batches, schema=self._plain)

    def _part(self, number: int) -> Path:
        return self._path.with_suffix(f".part-{number:05d}.parquet")

    def _write_part(self) -> None:
        part = self._part(len(self._parts))
        beside = part.with_suffix(".writing")
        pq.write_table(pa.Table.from_batches(self._batches, schema=self._plain), beside, **self._how)
        beside.replace(part)
        self._parts.append(part)
        self._batches, self._packed = [], 0

    def _pack(self) -> None:
        """Turn the waiting rows into columns, a part's worth of them into a part."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(values, type=field.type) for values, field in zip(columns, self._plain, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._plain))
        self._packed += len(self._rows)
        self._rows = []
        if self._packed >= _ROWS_A_PART:
            self._write_part()

    def _named(self, table: pa.Table) -> pa.Table:
        """Rows with the names of the schema's dictionaries, in the order in which they occur in these rows."""
        columns = []
        for column, field in zip(table.combine_chunks().columns, self._schema, strict=True):
            if pa.types.is_dictionary(field.type):
                names = column.combine_chunks().dictionary_encode()
                column = pa.DictionaryArray.from_arrays(names.indices.cast(field.type.index_type), names.dictionary)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self._schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
