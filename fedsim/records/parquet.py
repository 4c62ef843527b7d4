"""Parquet tables that grow while a run goes on, in parts, since a killed Parquet file has no
footer and cannot be read.

Rows become columns every few thousand rows; so many of them, and what there is when a checkpoint is
taken, go to part files beside the table. In the end they are joined into the one file of the
contract. A killed run leaves its finished parts. The file is the same however the rows were parted:
names get their dictionaries only then, one a row group.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.common.errors import CheckpointError
from fedsim.common.files import regular, replacing
from fedsim.records import folder as files
from fedsim.records.schema import DEVICES, column, typed, with_columns
from fedsim.world.meters.base import Meters

_ROWS_A_BATCH = 4_096
_ROWS_AT_ONCE = 131_072  # of tables that are written at once: a row group
_ROWS_A_PART = 100_000  # also of a row group of the file


class TableWriter:
    """Collects rows of one table, whose parts are beside ``path``; a row is a tuple in the order
    of the schema's columns.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        names = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        # Values other than names rarely repeat within a row group: without a dictionary they take
        # less time and less space.
        self._how = {"compression": "zstd", "use_dictionary": names or False}
        self._plain = pa.schema(
            [(field.name, pa.string() if field.name in names else field.type) for field in schema]
        )
        # ``empty_table`` would load pandas
        self._nothing = pa.Table.from_batches([], schema=self._plain)
        self._rows: list[tuple[Any, ...]] = []
        self._packed = self._nothing
        self._parts: dict[Path, str] = {}  # and their sha256

    def extend(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows += rows
        if len(self._rows) >= _ROWS_A_BATCH:
            self._pack()

    @property
    def parts(self) -> Sequence[Path]:
        return list(self._parts)

    def flush(self) -> list[str]:
        """Bring all rows into parts; returns the sha256 of each part."""
        self._pack(at_least=1)
        return list(self._parts.values())

    def adopt(self, fingerprints: Sequence[str]) -> None:
        """Go on after the parts of these sha256; ``CheckpointError``: one is missing, or is not
        what was written.
        """
        self._parts = {self._part(number): sha256 for number, sha256 in enumerate(fingerprints)}
        for part, sha256 in self._parts.items():
            if not part.is_file() or files.fingerprint(part) != sha256:
                raise CheckpointError(
                    f"{str(part)!r} "
                    f"{'is not what was written' if part.is_file() else 'is missing'}, and the "
                    "checkpoint counts "
                    "on it; put the file back, or remove the checkpoint to resume from the one "
                    "before"
                )
        self._rows = []
        self._packed = self._nothing

    def copy_to(self, path: Path) -> None:
        self._pack()  # first: it may make another part
        with (
            replacing(path) as beside,
            pq.ParquetWriter(beside, self._schema, **self._how) as writer,
        ):
            waiting = self._nothing
            for part in (*self._parts, None):
                # ``ParquetFile`` is several times as fast as ``read_table`` for one small file.
                waiting = pa.concat_tables(
                    [
                        waiting,
                        self._packed if part is None else pq.ParquetFile(regular(part)).read(),
                    ]
                )
                while len(waiting) >= _ROWS_A_PART:
                    writer.write_table(self._named(waiting.slice(0, _ROWS_A_PART)))
                    waiting = waiting.slice(_ROWS_A_PART)
            writer.write_table(self._named(waiting))

    def _part(self, number: int) -> Path:
        return self._path.with_suffix(f".part-{number:05d}.parquet")

    def _pack(self, at_least: int = 0) -> None:
        """Turn the waiting rows into columns, and so many of them (a part's worth) into a part."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [
                column(values, field.type)
                for values, field in zip(columns, self._plain, strict=True)
            ]
            self._packed = pa.concat_tables(
                [self._packed, pa.Table.from_arrays(arrays, schema=self._plain)]
            )
            self._rows = []
        if len(self._packed) >= (at_least or _ROWS_A_PART):
            part = self._part(len(self._parts))
            with replacing(part) as beside:
                pq.write_table(self._packed, beside, **self._how)
            self._parts[part] = files.fingerprint(part)
            self._packed = self._nothing

    def _named(self, table: pa.Table) -> pa.Table:
        """Rows with the names of the schema's dictionaries, in the order in which they occur in
        these rows.
        """
        columns = []
        for cells, field in zip(table.combine_chunks().columns, self._schema, strict=True):
            if pa.types.is_dictionary(field.type):
                names = cells.combine_chunks().dictionary_encode()
                cells = pa.DictionaryArray.from_arrays(
                    names.indices.cast(field.type.index_type), names.dictionary
                )
            columns.append(cells)
        return pa.Table.from_arrays(columns, schema=self._schema)


def write_devices(folder: Path, columns: Mapping[str, Any], meters: Meters) -> None:
    """Write ``devices.parquet``; each column has one entry a device, and meters have theirs
    besides.
    """
    schema = with_columns(DEVICES, meters.columns("device"))
    write_columns(
        folder / files.DEVICES, {**columns, **meters.of_devices(columns["device"])}, schema
    )


def write_meters(folder: Path, meters: Meters) -> None:
    """Write the files that meters have of their own."""
    for name, content, columns in meters.files():
        if columns:
            write_columns(folder / name, content, typed(columns))
        else:
            files.write_text(folder / name, json.dumps(content, indent=1, allow_nan=False) + "\n")


def write_columns(path: Path, columns: Mapping[str, Any], schema: pa.Schema) -> None:
    """Write a table at once; the columns, empty where they lack, are as long as the schema's
    first one.
    """
    rows = len(columns[schema.names[0]])
    empty = [None] * rows
    with (
        replacing(path) as beside,
        pq.ParquetWriter(beside, schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for begin in range(0, max(rows, 1), _ROWS_AT_ONCE):
            piece = slice(begin, begin + _ROWS_AT_ONCE)
            arrays = [column(columns.get(field.name, empty)[piece], field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
