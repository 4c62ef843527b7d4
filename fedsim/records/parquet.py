"""Parquet tables that grow during a run, in parts.

A Parquet file that is cut off has no footer and cannot be read. So rows go to part files next to the
table: every ``_ROWS_A_PART`` rows, and at each checkpoint. At the end of the run the parts are
joined into one file. A killed run leaves its finished parts. The final file does not depend on how
the rows were split into parts, because names are encoded by dictionaries only at the end, with one
dictionary for each row group.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.common.errors import CheckpointError
from fedsim.common.files import replacing, require_regular
from fedsim.records import folder as files
from fedsim.records.schema import DEVICES, OWN_TRAINING, column, names_column, typed, with_columns
from fedsim.world.meters.base import Meters

_ROWS_A_BATCH = 4_096
_ROWS_AT_ONCE = 131_072  # rows of a row group, in tables that one call writes as a whole
_ROWS_A_PART = 100_000  # rows of a part, and of a row group of the final file


class TableWriter:
    """Writer of a Parquet table that grows during a run.

    Rows are collected in memory. From time to time they are written to a new file, a part of the
    table, so that a killed run leaves most of its rows. At the end the parts become the final file.

    Args:
        path: path of the final file; the parts are in the same folder.
        schema: columns of the table.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        # Only columns of names get a dictionary: other values rarely repeat within a row group, and
        # take less time and less space without one.
        name_columns = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        self._name_columns = frozenset(name_columns)
        self._options = {"compression": "zstd", "use_dictionary": name_columns or False}
        plain_columns = []
        for field in schema:
            is_name = field.name in name_columns
            plain_columns.append((field.name, pa.string() if is_name else field.type))
        self._plain = pa.schema(plain_columns)  # the schema without dictionaries
        # ``pa.Schema.empty_table`` would load pandas, which takes long
        self._empty_table = pa.Table.from_batches([], schema=self._plain)
        # A row is first in ``_rows``, then as columns in ``_packed``, and at last in a part file.
        self._rows: list[tuple[object, ...]] = []
        self._packed = self._empty_table
        self._parts: dict[Path, str] = {}  # path of a part file -> its SHA-256

    def extend(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Append rows to the table.

        Args:
            rows: tuples in the order of the schema's columns.
        """
        self._rows += rows
        if len(self._rows) >= _ROWS_A_BATCH:
            self._pack()

    @property
    def parts(self) -> Sequence[Path]:
        """Paths of the part files, which have the rows written so far, in order of the rows."""
        return list(self._parts)

    def flush(self) -> list[str]:
        """Write the rows in memory to a part file; return each part file's SHA-256, in order."""
        self._pack()
        if len(self._packed):
            self._write_part()
        return list(self._parts.values())

    def adopt(self, fingerprints: Sequence[str]) -> None:
        """Continue the table of a killed run after the rows that the run had written to part files.

        Args:
            fingerprints: SHA-256 of each part file in order, as ``flush`` returned them.

        Raises:
            CheckpointError: a part file is missing, or its SHA-256 differs.
        """
        self._parts = {}
        for number, sha256 in enumerate(fingerprints):
            self._parts[self._part(number)] = sha256
        for part, sha256 in self._parts.items():
            problem = ""
            if not part.is_file():
                problem = "is missing"
            elif files.fingerprint(part) != sha256:
                problem = "is not what was written"
            if problem:
                raise CheckpointError(
                    f"{str(part)!r} {problem}, and the checkpoint counts on it; put the file back, "
                    "or remove the checkpoint to resume from the one before"
                )
        self._rows = []
        self._packed = self._empty_table

    def copy_to(self, path: Path) -> None:
        """Write all rows so far to a single Parquet file; the table can still grow.

        Args:
            path: path of the file; an existing file is replaced.
        """
        self._pack()  # before the loop over the parts, because packing may write another part
        with (
            replacing(path) as beside,
            pq.ParquetWriter(beside, self._schema, **self._options) as writer,
        ):
            waiting = self._empty_table  # rows that do not fill a row group yet
            # ``ParquetFile`` is several times as fast as ``read_table`` for one small file.
            part_tables = (pq.ParquetFile(require_regular(part)).read() for part in self._parts)
            for table in chain(part_tables, [self._packed]):
                waiting = pa.concat_tables([waiting, table])
                while len(waiting) >= _ROWS_A_PART:
                    writer.write_table(self._encode_names(waiting.slice(0, _ROWS_A_PART)))
                    waiting = waiting.slice(_ROWS_A_PART)
            writer.write_table(self._encode_names(waiting))

    def _part(self, number: int) -> Path:
        return self._path.with_suffix(f".part-{number:05d}.parquet")

    def _pack(self) -> None:
        """Convert the collected rows to columns, and write a part file if there are enough rows."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = []
            for values, field in zip(columns, self._plain, strict=True):
                if field.name in self._name_columns:
                    arrays.append(names_column(values))
                else:
                    arrays.append(column(values, field.type))
            table = pa.Table.from_arrays(arrays, schema=self._plain)
            self._packed = pa.concat_tables([self._packed, table])
            self._rows = []
        if len(self._packed) >= _ROWS_A_PART:
            self._write_part()

    def _write_part(self) -> None:
        part = self._part(len(self._parts))
        with replacing(part) as beside:
            pq.write_table(self._packed, beside, **self._options)
        self._parts[part] = files.fingerprint(part)
        self._packed = self._empty_table

    def _encode_names(self, table: pa.Table) -> pa.Table:
        """Return a table whose columns of names are dictionary columns, as in the schema.

        The entries of a dictionary are in the order in which they occur in the table.

        Args:
            table: the table with columns of text.
        """
        columns = []
        for cells, field in zip(table.combine_chunks().columns, self._schema, strict=True):
            if pa.types.is_dictionary(field.type):
                encoded = cells.combine_chunks().dictionary_encode()
                indices = encoded.indices.cast(field.type.index_type)
                cells = pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
            columns.append(cells)
        return pa.Table.from_arrays(columns, schema=self._schema)


def write_devices(folder: Path, columns: Mapping[str, Any], meters: Meters) -> None:
    """Write ``devices.parquet``, a table with one row per device, to a run folder.

    Args:
        folder: the run folder.
        columns: columns by name, with one entry per device.
        meters: objects that count quantities such as energy; they add their own columns.
    """
    local_columns = [column for column in OWN_TRAINING.values() if column.name in columns]
    schema = with_columns(DEVICES, [*local_columns, *meters.columns("device")])
    all_columns = {**columns, **meters.of_devices(columns["device"])}
    write_columns(folder / files.DEVICES, all_columns, schema)


def write_meters(folder: Path, meters: Meters) -> None:
    """Write the tables of meters to files of the run folder.

    A table with columns becomes a Parquet file, any other content a JSON file.

    Args:
        folder: the run folder.
        meters: objects that count quantities such as energy during the run.
    """
    for name, content, columns in meters.files():
        if columns:
            write_columns(folder / name, content, typed(columns))
        else:
            files.write_text(folder / name, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_columns(path: Path, columns: Mapping[str, Any], schema: pa.Schema) -> None:
    """Write a whole table to a Parquet file.

    Args:
        path: path of the file.
        columns: columns by name, all of equal length. The first column of the schema is among them;
            any other missing column is filled with empty cells.
        schema: columns of the table.
    """
    rows = len(columns[schema.names[0]])
    empty_cells = [None] * rows
    with (
        replacing(path) as beside,
        pq.ParquetWriter(beside, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for begin in range(0, max(rows, 1), _ROWS_AT_ONCE):  # one pass even if there are no rows
            row_group = slice(begin, begin + _ROWS_AT_ONCE)
            arrays = []
            for field in schema:
                values = columns.get(field.name, empty_cells)
                arrays.append(column(values[row_group], field.type))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
