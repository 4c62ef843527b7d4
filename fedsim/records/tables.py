"""Parquet tables that grow while a run goes on, in parts, since a killed Parquet file has no footer and cannot be read.

Full batches go to part files beside the table; ``close`` joins them into the one file of the contract, written beside and
renamed. What a killed run leaves is its finished parts.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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

    def close(self) -> None:
        """Join everything into the table's file."""
        beside = self._path.with_suffix(".writing")
        with pq.ParquetWriter(beside, self._schema, compression="zstd") as writer:
            for part in self._parts:
                writer.write_table(pq.read_table(part, schema=self._schema))
            writer.write_table(self._table())
        beside.replace(self._path)
        for part in self._parts:
            part.unlink()

    def _write_part(self) -> None:
        part = self._path.with_suffix(f".part-{len(self._parts):05d}.parquet")
        pq.write_table(self._table(), part, compression="zstd")
        self._parts.append(part)
        self._rows = []

    def _table(self) -> pa.Table:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(self._schema)
        arrays = [pa.array(values, type=field.type) for values, field in zip(columns, self._schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self._schema)
