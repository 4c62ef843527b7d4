"""Tables of the user's own about devices: CSV or Parquet, with a row a device or several.

A message about a cell names the file, the row (counted from 1, without a header), what is there and what is allowed.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from fedsim.errors import DataError, nearest, shown
from fedsim.files import SOUGHT, regular
from fedsim.language.units import Quantity
from fedsim.language.wording import in_words

_BARE = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf")
_NEEDED: Any = object()


class DeviceTable:
    """Columns of a table; cells of a CSV are text, an empty one is None.

    A file that ends in ``.parquet`` is Parquet, any other CSV with a header. It must have ``columns`` and may have ``more``;
    ``key`` is where the scenario names it. ``DataError``: it is missing or malformed, has no rows, or lacks a column.
    """

    def __init__(self, key: str, path: Path, columns: Sequence[str], more: Sequence[str] = ()) -> None:
        import pyarrow as pa

        self._key, self._path = key, path
        try:
            regular(path)
            read = _parquet if path.suffix == ".parquet" else _csv
            names, table = read(path, [*columns, *more])
        except FileNotFoundError:
            raise DataError(f"{key}: there is no file {str(path)!r}; {SOUGHT}") from None
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise DataError(f"{key}: {str(path)!r} cannot be read: {str(error).splitlines()[0]}") from None
        for column in columns:
            if column not in names:
                raise DataError(
                    f"{key}: {str(path)!r} has no column {column!r}; it has {', '.join(names)}{nearest(column, names)}"
                )
        self.rows: int = table.num_rows
        if not self.rows:
            raise DataError(f"{key}: {str(path)!r} has no rows")
        self._cells = {name: [_stripped(cell) for cell in table.column(name).to_pylist()] for name in table.column_names}

    def cells(self, column: str) -> list[Any]:
        return self._cells[column]

    def wrong(self, row: int, column: str, why: str) -> DataError:
        """The error that says what is wrong with a cell; ``row`` is counted from 0."""
        said = f"{column} is {shown(self._cells[column][row])}" if column else "it"
        return DataError(f"{self._key}: row {row + 1} of {str(self._path)!r}: {said}{': ' if column else ' '}{why}")

    def values(self, column: str, kind: Any, unit: str | None = None, empty: Any = _NEEDED) -> list[Any]:
        """A column's cells as values of a type, [rows]; ``DataError`` names the first row whose cell is not allowed.

        ``unit`` is that of bare numbers where ``kind`` is a quantity; ``empty`` is for empty cells, else refused.
        """
        cells = self._cells[column]
        full = [row for row, cell in enumerate(cells) if cell is not None]
        if len(full) < len(cells) and empty is _NEEDED:
            row = next(row for row, cell in enumerate(cells) if cell is None)
            raise self.wrong(row, column, "every row needs a value")
        carries_unit = any(isinstance(part, Quantity) for part in get_args(kind))
        said = [_quantity(cells[row], unit) if carries_unit else cells[row] for row in full]
        try:
            found = TypeAdapter(list[kind]).validate_python(said)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            row = full[int(problem["loc"][0])]
            bare = carries_unit and unit is None and _BARE.fullmatch(str(cells[row]))
            hint = ", or give the 'unit' of all of them in the scenario" if bare else ""
            raise self.wrong(row, column, f"{in_words(problem)}{hint}") from None
        if len(full) == len(cells):
            return found
        values = [empty] * len(cells)
        for row, value in zip(full, found, strict=True):
            values[row] = value
        return values

    def devices(self, devices: int) -> list[int]:
        """The device of each row, [rows]; ``DataError`` if it is no number from 0 to ``devices`` - 1."""
        numbers = self.values("device", int)
        for row, number in enumerate(numbers):
            if not 0 <= number < devices:
                raise self.wrong(row, "device", f"allowed are 0 to {devices - 1}")
        return numbers

    def by_device(self, column: str, devices: int, kind: Any, unit: str | None = None, empty: Any = _NEEDED) -> list[Any]:
        """The values of a column in order of devices, [devices]; ``DataError`` if a device has no row, or several."""
        values = self.values(column, kind, unit, empty)
        where = f"{self._key}: {str(self._path)!r}"
        if "device" in self._cells:
            rows: dict[int, int] = {}
            for row, device in enumerate(self.devices(devices)):
                if device in rows:
                    raise self.wrong(row, "device", f"row {rows[device] + 1} is of the same device; allowed is one a device")
                rows[device] = row
            for device in range(devices):
                if device not in rows:
                    raise DataError(f"{where} has no row for device {device}; allowed is one for each of 0 to {devices - 1}")
            return [values[rows[device]] for device in range(devices)]
        if self.rows != devices:
            raise DataError(f"{where} has {self.rows} rows for {devices} devices; allowed is one a device")
        return values


def _csv(path: Path, wanted: list[str]) -> tuple[list[str], Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow

    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file), [])
    columns = [name for name in dict.fromkeys(wanted) if name in names]
    how = arrow.ConvertOptions(
        include_columns=columns or names[:1],
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    return names, arrow.read_csv(path, arrow.ReadOptions(use_threads=False), convert_options=how)


def _parquet(path: Path, wanted: list[str]) -> tuple[list[str], Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = list(file.schema_arrow.names)
        return names, file.read(columns=[name for name in dict.fromkeys(wanted) if name in names])


def _stripped(cell: Any) -> Any:
    """A cell without the blanks around it; None where that leaves nothing, or for what is no number."""
    return (cell.strip() or None) if isinstance(cell, str) else None if cell != cell else cell


def _quantity(cell: Any, unit: str | None) -> Any:
    bare = cell if isinstance(cell, str) else repr(cell) if isinstance(cell, int | float) else None
    return f"{bare} {unit}" if bare is not None and unit is not None and _BARE.fullmatch(bare) else cell
