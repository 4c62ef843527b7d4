"""Parquet tables that grow while a run goes on, in parts, since a killed Parquet file has no footer and cannot be read.

Full batches, and what there is when a checkpoint is taken, go to part files beside the table; ``close`` joins them into the one
file of the contract, written beside and renamed. What a killed run leaves is its finished parts. The file is the same however
the rows were parted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.errors import CheckpointError

_ROWS_A_PART = 100_000


class TableWriter:
    """Collects rows of one table.

    Args:
        path: the table's file.
        schema: its columns; a row is a tuple in their order.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._parts: list[Path] = []

    def append(self, row: tuple[Any, ...]) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_A_PART:
            self._write_part()

    def flush(self) -> int:
        """Bring all rows into parts; returns how many parts there are."""
        if self._rows:
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
        self._rows = []
        for path in sorted(self._path.parent.glob(f"{self._path.stem}.part-*")):
            if path not in self._parts:
                path.unlink()

    def close(self) -> None:
        """Join everything into the table's file. The parts stay until ``drop_parts``: a run that is killed now can go on."""
        beside = self._path.with_suffix(".writing")
        with pq.ParquetWriter(beside, self._schema, compression="zstd") as writer:
            waiting = self._schema.empty_table()
            for table in self._tables():
                waiting = pa.concat_tables([waiting, table])
                while len(waiting) >= _ROWS_A_PART:
                    writer.write_table(waiting.slice(0, _ROWS_A_PART).combine_chunks())
                    waiting = waiting.slice(_ROWS_A_PART)
            writer.write_table(waiting.combine_chunks())
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
        for part in self._parts:
            yield pq.read_table(part, schema=self._schema)
        yield self._table()

    def _part(self, number: int) -> Path:
        return self._path.with_suffix(f".part-{number:05d}.parquet")

    def _write_part(self) -> None:
        part = self._part(len(self._parts))
        beside = part.with_suffix(".writing")
        pq.write_table(self._table(), beside, compression="zstd")
        beside.replace(part)
        self._parts.append(part)
        self._rows = []

    def _table(self) -> pa.Table:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(self._schema)
        arrays = [pa.array(values, type=field.type) for values, field in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)
