"""Reader of a user's CSV or Parquet table, with one row per device or per event of a device."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import TypeAdapter, ValidationError

from fedsim.common.device_names import device_name, naming_rule, natural_key, number_devices
from fedsim.common.errors import DataError, nearest, show_value
from fedsim.common.files import SEARCH_RULE, open_file, require_regular
from fedsim.common.notes import note
from fedsim.common.units import Quantity
from fedsim.common.wording import in_words

if TYPE_CHECKING:
    import pyarrow

_BARE = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf")
_REFUSED = object()  # default of ``empty``: an empty cell is an error
_STEMS = ("device", "client", "node", "user", "phone", "worker", "participant")
_SHORT_IDS = ("id", "Id", "ID", "cid", "uid", "index", "Index")
_PANDAS_INDEXES = ("", "Unnamed: 0", "__index_level_0__")


def _id_names() -> Iterator[str]:
    yield "device"
    for stem in _STEMS:
        for form in (stem, stem.capitalize(), stem.upper()):
            yield from (form, f"{form}id", f"{form}Id", f"{form}ID")
            for between in "_- ":
                yield from (f"{form}{between}id", f"{form}{between}Id", f"{form}{between}ID")
    yield from (*_SHORT_IDS, *_PANDAS_INDEXES)


IDS = tuple(dict.fromkeys(_id_names()))
"""Names of columns whose values assign rows to devices, by decreasing precedence.

Values 0, 1 and so on are indices of devices.
"""


class DeviceTable:
    """User's table of devices or of their events, read from a CSV or Parquet file.

    Args:
        key: the key of the scenario that names the file, for error messages.
        path: the file, Parquet (``.parquet``) or CSV.
        columns: names of the columns that the table must have.
        optional: names of optional columns, which are read if the table has them.
        others: names of other columns that are accepted and not read; None: all columns are
            accepted.

    Attributes:
        rows: count of rows.
        cells: column name -> cells in order of the rows. Text is stripped; an empty cell is None.

    Raises:
        DataError: the file is missing, malformed or empty, or its columns are wrong.
    """

    def __init__(
        self,
        key: str,
        path: Path,
        columns: Sequence[str],
        optional: Sequence[str] = (),
        others: Sequence[str] | None = None,
    ) -> None:
        self._key = key
        self._path = path
        self._label = f"{key}: {str(path)!r}"  # begin of error messages
        read_columns = [*columns, *optional]
        # names of all columns of the file, also those that are not read
        self._names, table = self._read(read_columns)
        self._refuse_columns(columns)
        if others is not None:
            self._refuse_unused(read_columns, others)
        self.rows: int = table.num_rows
        if not self.rows:
            raise DataError(f"{self._label} has no rows")
        self.cells: dict[str, list[object]] = {}
        for name in table.column_names:
            self.cells[name] = [_clean(cell) for cell in table.column(name).to_pylist()]

    def _read(self, columns: Sequence[str]) -> tuple[list[str], "pyarrow.Table"]:
        """Return the names of all columns of the file, and the table of the columns in ``columns``."""
        import pyarrow as pa

        try:
            return _read_table(self._path, dict.fromkeys(columns))
        except FileNotFoundError:
            raise DataError(
                f"{self._key}: there is no file {str(self._path)!r}; {SEARCH_RULE}"
            ) from None
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise DataError(f"{self._label} cannot be read: {str(error).splitlines()[0]}") from None

    def _refuse_columns(self, needed: Sequence[str]) -> None:
        """Raise ``DataError`` if a needed column is missing, or if two columns have one name."""
        names = self._names
        for column in needed:
            if column not in names:
                raise DataError(
                    f"{self._label} has no column {column!r}; it has "
                    f"{', '.join(names)}{nearest(column, names)}"
                )
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise DataError(f"{self._label} has the column {repeated[0]!r} twice; allowed is once")

    def _refuse_unused(self, read_columns: Sequence[str], others: Sequence[str]) -> None:
        allowed = (*read_columns, *others)
        for name in self._names:
            if name not in allowed:
                raise DataError(
                    f"{self._label} has the column {name!r}, which nothing uses; known are "
                    f"{', '.join(allowed)}{nearest(name, read_columns)}"
                )

    def note(self, meaning: str) -> None:
        """Show the user a note on how the table is read, such as which column orders the rows.

        Args:
            meaning: text of the note, to which the path of the file and its columns' names are
                prepended.
        """
        columns = ", ".join(map(repr, self._names))
        note(f"{self._key} from {str(self._path)!r} (columns {columns}): {meaning}")

    def wrong(self, row: int, column: str, why: str) -> DataError:
        """Make the error for a wrong cell, which the caller raises.

        Args:
            row: index of the row from 0; the message counts from 1, without the header.
            column: name of the column.
            why: reason why the cell is wrong; the message ends with it.
        """
        cell = f"{column} is {show_value(self.cells[column][row])}"
        return DataError(f"{self._key}: row {row + 1} of {str(self._path)!r}: {cell}: {why}")

    def values(
        self, column: str, kind: Any, unit: str | None = None, empty: object = _REFUSED
    ) -> list[Any]:
        """Parse the cells of a column, in order of the rows, [rows].

        Args:
            column: name of the column.
            kind: type of the values, such as ``int`` or ``Seconds``.
            unit: unit of cells that are bare numbers.
            empty: value of empty cells; if it is not given, an empty cell is an error.

        Raises:
            DataError: a cell has no value of this type.
        """
        # empty cells are left out here, and put in again at the end
        cells = self.cells[column]
        full_rows = [row for row, cell in enumerate(cells) if cell is not None]
        if len(full_rows) < len(cells) and empty is _REFUSED:
            raise self.wrong(cells.index(None), column, "every row needs a value")
        texts = [cells[row] for row in full_rows]
        # types of quantities, such as ``Seconds``, are annotated with a ``Quantity``
        has_unit = any(isinstance(part, Quantity) for part in get_args(kind))
        if has_unit and unit is not None:
            texts = [_with_unit(cell, unit) for cell in texts]
        try:
            full_values = TypeAdapter(list[kind]).validate_python(texts)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            # ``loc`` begins with the index in ``texts``
            row = full_rows[int(problem["loc"][0])]
            reason = in_words(problem)
            if has_unit and unit is None and _BARE.fullmatch(str(cells[row])):
                reason += ", or give the 'unit' of all of them in the scenario"
            raise self.wrong(row, column, reason) from None
        values = [empty] * len(cells)
        for row, value in zip(full_rows, full_values, strict=True):
            values[row] = value
        return values

    @property
    def id_column(self) -> str:
        """Name of the column that names the device of each row, such as ``device`` or ``phone``.

        Raises:
            DataError: the table has no such column.
        """
        id_names = [name for name in self.cells if name in IDS]
        name = min(id_names, key=IDS.index, default=None)  # ``IDS`` is in order of precedence
        if name is None:
            raise DataError(
                f"{self._label} has no column 'device'; it has "
                f"{', '.join(self._names)}{nearest('device', self._names)}"
            )
        return name

    def devices(self, devices: int) -> list[int]:
        """Return the device index of each row, [rows], by the column that names devices.

        If each name is a number from 0 to ``devices`` - 1, it is the index, and devices may be
        missing. Otherwise there must be as many different names as devices, which are numbered in
        natural order ("c2" comes before "c10"). None of these may be ``0``, because a name ``0``
        shows that the names are meant as indices.

        Args:
            devices: count of devices.

        Raises:
            DataError: a row has no name, or the names break this rule.
        """
        column = self.id_column
        names = []
        for row, cell in enumerate(self.cells[column]):
            if cell is None:
                raise self.wrong(row, column, "every row needs a value")
            names.append(device_name(cell))
        indices = number_devices(names, devices)
        if isinstance(indices, str):  # text: the first name that breaks the rule
            raise self.wrong(names.index(indices), column, naming_rule(devices))
        return [indices[name] for name in names]

    def by_device(
        self,
        column: str,
        devices: int,
        kind: Any,
        unit: str | None = None,
        empty: object = _REFUSED,
    ) -> list[Any]:
        """Parse the cells of a column with one row per device, in order of the devices, [devices].

        Args:
            column: name of the column.
            devices: count of devices.
            kind: type of the values, such as ``int`` or ``Seconds``.
            unit: unit of cells that are bare numbers.
            empty: value of empty cells; if it is not given, an empty cell is an error.

        Raises:
            DataError: a cell has no value of this type, or a device has no row or several rows.
        """
        values = self.values(column, kind, unit, empty)
        order_column = self._order_column(column)
        if order_column is None:
            self.note(f"column {column!r}, a row for each device in their order")
        else:
            self.note(f"column {column!r}, rows by {order_column!r}")
        # three cases: rows have numbers of devices, have other IDs, or are in order of the devices
        if "device" in self.cells:
            return [values[row] for row in self._rows_by_number(devices)]
        if self.rows != devices:
            raise DataError(
                f"{self._label} has {self.rows} rows for {devices} devices; allowed is one a device"
            )
        rows = None if order_column is None else self._rows_by_id(order_column)
        if rows is None:  # the rows are in order of the devices
            return values
        return [values[row] for row in rows]

    def _rows_by_number(self, devices: int) -> list[int]:
        """Find the row index of each device by the column ``device``, [devices].

        Raises:
            DataError: a device has no row or several rows.
        """
        row_of: dict[int, int] = {}
        for row, device in enumerate(self.devices(devices)):
            first_row = row_of.setdefault(device, row)
            if first_row != row:
                raise self.wrong(
                    row,
                    "device",
                    f"row {first_row + 1} is of the same device; allowed is one a device",
                )
        for device in range(devices):
            if device not in row_of:
                raise DataError(
                    f"{self._label} has no row for device {device}; allowed "
                    f"is one for each of 0 to {devices - 1}"
                )
        return [row_of[device] for device in range(devices)]

    def _order_column(self, column: str) -> str | None:
        """Return the name of the column that identifies devices, such as ``id``; None without one.

        Such a column has a name in ``IDS``.

        Args:
            column: name of the column with the values, which cannot identify devices as well.
        """
        names = [name for name in self.cells if name != column and name in IDS]
        return min(names, key=IDS.index, default=None)

    def _rows_by_id(self, name: str) -> list[int] | None:
        """Find the row index of each device by a column of IDs.

        Args:
            name: name of the column.

        Returns:
            Row indices, [devices], if the IDs are the indices of the devices; None if they are other
            names in ascending order, so that the rows are in order of the devices.

        Raises:
            DataError: an ID is missing or repeated, or the IDs are neither indices nor ascending.
        """
        row_of: dict[str, int] = {}
        for row, cell in enumerate(self.cells[name]):
            if cell is None:
                raise self.wrong(row, name, "every row needs a value, or the column is left out")
            text = device_name(cell)
            first_row = row_of.setdefault(text, row)
            if first_row != row:
                raise self.wrong(
                    row, name, f"row {first_row + 1} has the same; allowed is one a device"
                )
        # case 1: the IDs are the indices of the devices, in any order
        numbers = [str(device) for device in range(self.rows)]
        if row_of.keys() == {*numbers}:
            return [row_of[number] for number in numbers]
        # case 2: the IDs are other names, which must ascend; IDs are all different here, so that
        # ``row_of`` has them in order of the rows
        for row, (before, after) in enumerate(pairwise(row_of), 1):
            if natural_key(after) < natural_key(before):
                raise self.wrong(
                    row,
                    name,
                    f"it comes after {show_value(before)}, and these are not the numbers of the "
                    f"devices, 0 to {self.rows - 1}; sort the rows, or name the device of each in "
                    "a column 'device'",
                )
        return None


def _read_table(path: Path, columns: Iterable[str]) -> tuple[list[str], "pyarrow.Table"]:
    """Read columns of a CSV or Parquet file.

    Returns:
        The names of all columns of the file, and the table of the columns in ``columns``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv as arrow

    if path.suffix == ".parquet":
        with pq.ParquetFile(require_regular(path)) as file:
            names = list(file.schema_arrow.names)
            return names, file.read(columns=[name for name in columns if name in names])
    # The header is read first: Arrow refuses the names of columns that the file lacks. All cells
    # are read as text, which ``DeviceTable.values`` parses.
    with TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="") as lines:
        names = next(csv.reader(lines), [])
    present = [name for name in columns if name in names]
    options = arrow.ConvertOptions(
        include_columns=present or names[:1],  # at least one column is read, to count the rows
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    read_options = arrow.ReadOptions(use_threads=False)
    return names, arrow.read_csv(require_regular(path), read_options, convert_options=options)


def _clean(cell: object) -> object:
    """Return a cell, stripped if it is text, or None if it is empty text or NaN."""
    if isinstance(cell, str):
        return cell.strip() or None
    is_nan = cell != cell
    return None if is_nan else cell


def _with_unit(cell: object, unit: str) -> object:
    """Append the unit to a cell that is a bare number; return any other cell unchanged."""
    text = repr(cell) if isinstance(cell, int | float) else cell
    if isinstance(text, str) and _BARE.fullmatch(text):
        return f"{text} {unit}"
    return cell
