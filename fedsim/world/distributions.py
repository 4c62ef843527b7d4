"""A quantity of every device, with units in the text: drawn from a distribution, or listed, or
from a user's CSV or Parquet.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from fedsim.common.arrays import AnyArray, Floats
from fedsim.common.errors import DataError, ScenarioError, nearest, shown
from fedsim.common.files import SOUGHT, open_file, regular, sought
from fedsim.common.notes import note
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, find_wrong_entry, returns
from fedsim.common.spec import Spec
from fedsim.common.units import LinkRate, Quantity, SamplesPerSecond, Seconds
from fedsim.common.wording import in_words
from fedsim.world.columns import alike

_BARE = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|inf")
_NEEDED: Any = object()
_DIGITS = re.compile("([0-9]+)")
_STEMS = ("device", "client", "node", "user", "phone", "worker", "participant")
_ALONE = ("id", "Id", "ID", "cid", "uid", "index", "Index")
_OF_PANDAS = ("", "Unnamed: 0", "__index_level_0__")  # as it writes its own index


def _id_names() -> Iterator[str]:
    yield "device"
    for stem in _STEMS:
        for form in (stem, stem.capitalize(), stem.upper()):
            yield from (form, f"{form}id", f"{form}Id", f"{form}ID")
            for between in "_- ":
                yield from (f"{form}{between}id", f"{form}{between}Id", f"{form}{between}ID")
    yield from (*_ALONE, *_OF_PANDAS)


IDS = tuple(dict.fromkeys(_id_names()))
"""Names of columns by which rows have an order, the first that is there; numbers of devices if
they are 0, 1 and so on.
"""


class DeviceTable:
    """A user's table, Parquet or CSV, with ``columns`` and perhaps ``more``; ``DataError`` at
    ``key``: malformed or empty.

    ``others``: names of further columns that may be there; any other one is refused. None: all
    may be there.
    """

    def __init__(
        self,
        key: str,
        path: Path,
        columns: Sequence[str],
        more: Sequence[str] = (),
        others: Sequence[str] | None = None,
    ) -> None:
        import pyarrow as pa

        self._key = key
        self._path = path
        try:
            names, table = _read(path, dict.fromkeys([*columns, *more]))
        except FileNotFoundError:
            raise DataError(f"{key}: there is no file {str(path)!r}; {SOUGHT}") from None
        except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
            raise DataError(
                f"{key}: {str(path)!r} cannot be read: {str(error).splitlines()[0]}"
            ) from None
        for column in columns:
            if column not in names:
                known = f"it has {', '.join(names)}{nearest(column, names)}"
                raise DataError(f"{key}: {str(path)!r} has no column {column!r}; {known}")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(
                f"{key}: {str(path)!r} has the column {twice[0]!r} twice; allowed is once"
            )
        used = [*columns, *more]
        for column in names if others is not None else ():
            if column not in (*used, *(others or ())):
                known = f"known are {', '.join((*used, *(others or ())))}{nearest(column, used)}"
                raise DataError(
                    f"{key}: {str(path)!r} has the column {column!r}, which nothing uses; {known}"
                )
        self.rows: int = table.num_rows
        if not self.rows:
            raise DataError(f"{key}: {str(path)!r} has no rows")
        self._names = names
        self.cells = {
            name: [_stripped(cell) for cell in table.column(name).to_pylist()]
            for name in table.column_names
        }

    def note(self, meaning: str) -> None:
        """Say for people what the table was taken for."""
        note(
            f"{self._key} from {str(self._path)!r} (columns "
            f"{', '.join(map(repr, self._names))}): {meaning}"
        )

    def wrong(self, row: int, column: str, why: str) -> DataError:
        """The error for a cell; ``row`` counts from 0, in the message from 1 without the header."""
        cell = f"{column} is {shown(self.cells[column][row])}"
        return DataError(f"{self._key}: row {row + 1} of {str(self._path)!r}: {cell}: {why}")

    def values(
        self, column: str, kind: Any, unit: str | None = None, empty: Any = _NEEDED
    ) -> list[Any]:
        """A column's values of type ``kind``, [rows]; bare numbers have the ``unit``, empty
        cells are ``empty`` or refused.
        """
        cells = self.cells[column]
        full = [row for row, cell in enumerate(cells) if cell is not None]
        if len(full) < len(cells) and empty is _NEEDED:
            raise self.wrong(cells.index(None), column, "every row needs a value")
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
        values = dict(zip(full, found, strict=True))
        return [values.get(row, empty) for row in range(len(cells))]

    def devices(self, devices: int) -> list[int]:
        """The device of each row, [rows]."""
        numbers = self.values("device", int)
        for row, number in enumerate(numbers):
            if not 0 <= number < devices:
                raise self.wrong(row, "device", f"allowed are 0 to {devices - 1}")
        return numbers

    def by_device(
        self, column: str, devices: int, kind: Any, unit: str | None = None, empty: Any = _NEEDED
    ) -> list[Any]:
        """A column's values in order of devices, [devices]; ``DataError`` unless each device has
        one row.
        """
        values = self.values(column, kind, unit, empty)
        where = f"{self._key}: {str(self._path)!r}"
        if self._order_column(column) is None:
            self.note(f"column {column!r}, a row for each device in their order")
        else:
            self.note(f"column {column!r}, rows by {self._order_column(column)!r}")
        if "device" in self.cells:
            rows: dict[int, int] = {}
            for row, device in enumerate(self.devices(devices)):
                if rows.setdefault(device, row) != row:
                    raise self.wrong(
                        row,
                        "device",
                        f"row {rows[device] + 1} is of the same device; allowed is one a device",
                    )
            missing = [device for device in range(devices) if device not in rows]
            if missing:
                raise DataError(
                    f"{where} has no row for device {missing[0]}; allowed is one for each of 0 "
                    f"to {devices - 1}"
                )
            return [values[rows[device]] for device in range(devices)]
        if self.rows != devices:
            raise DataError(
                f"{where} has {self.rows} rows for {devices} devices; allowed is one a device"
            )
        name = self._order_column(column)
        order = None if name is None else self._order(name)
        return values if order is None else [values[row] for row in order]

    def _order_column(self, column: str) -> str | None:
        """The column that gives the rows their order, other than ``column``; None: they have
        none.
        """
        names = [name for name in self.cells if name != column and name in IDS]
        return min(names, key=IDS.index, default=None)

    def _order(self, name: str) -> list[int] | None:
        """The row of each device by the column ``name``; None for the order of the rows.

        ``DataError``: its values are not the devices' numbers, and the rows are not in their order.
        """
        places: dict[str, int] = {}
        for row, cell in enumerate(self.cells[name]):
            if cell is None:
                raise self.wrong(row, name, "every row needs a value, or the column is left out")
            text = str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
            if places.setdefault(text, row) != row:
                raise self.wrong(
                    row, name, f"row {places[text] + 1} has the same; allowed is one a device"
                )
        numbers = [str(device) for device in range(self.rows)]
        if places.keys() == {*numbers}:
            return [places[number] for number in numbers]
        texts = list(places)
        for row, (before, after) in enumerate(pairwise(texts), 1):
            if _natural(after) < _natural(before):
                why = (
                    f"it comes after {shown(before)}, and these are not the numbers of the "
                    f"devices, 0 to {self.rows - 1}"
                )
                raise self.wrong(
                    row,
                    name,
                    f"{why}; sort the rows, or name the device of each in a column 'device'",
                )
        return None


def _natural(text: str) -> list[tuple[int, str]]:
    """A key by which "c2" comes before "c10"."""
    parts = _DIGITS.split(text)
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (-1, part)
        for part in parts
    ]


def _read(path: Path, wanted: Iterable[str]) -> tuple[list[str], Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv as arrow

    if path.suffix == ".parquet":
        with pq.ParquetFile(regular(path)) as file:
            names = list(file.schema_arrow.names)
            return names, file.read(columns=[name for name in wanted if name in names])
    with TextIOWrapper(open_file(path), encoding="utf-8-sig", newline="") as lines:
        names = next(csv.reader(lines), [])
    how = arrow.ConvertOptions(
        include_columns=[name for name in wanted if name in names] or names[:1],
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    return names, arrow.read_csv(
        regular(path), arrow.ReadOptions(use_threads=False), convert_options=how
    )


def _stripped(cell: Any) -> Any:
    return (cell.strip() or None) if isinstance(cell, str) else None if cell != cell else cell


def _quantity(cell: Any, unit: str | None) -> Any:
    bare = cell if isinstance(cell, str) else repr(cell) if isinstance(cell, int | float) else None
    return (
        f"{bare} {unit}"
        if bare is not None and unit is not None and _BARE.fullmatch(bare)
        else cell
    )


Q = TypeVar("Q")

_BLOCK = 1 << 15  # numbers at once, which fit into a core's own cache


_KEYED = "the given 'generator'"
_is_speed = find_outside(above=0.0, infinite=True)


def _find_wrong_draw(
    values: AnyArray,
    distribution: Any,
    generator: np.random.Generator,
    size: int,
) -> str:
    return find_wrong_entry(values, size, _is_speed)


def _find_wrong_value(
    values: AnyArray,
    distribution: Any,
    key: str,
    generator: np.random.Generator,
    devices: int,
    root: Path | None,
) -> str:
    return find_wrong_entry(values, devices, _is_speed)


class Distribution(Spec):
    """The base of every distribution.

    A distribution of your own is for ``population.speed``: keys that are speeds are
    ``SamplesPerSecond``.
    """

    @returns("an array of 'size' numbers above 0", _find_wrong_draw, keyed=_KEYED)
    def draw(self, generator: np.random.Generator, size: int) -> AnyArray:
        """Draw values.

        Args:
            generator: the random generator.
            size: number of values.

        Returns:
            Values in the base unit of the key, float64 [size].
        """
        raise NotImplementedError

    @returns("an array of a number above 0 for each device", _find_wrong_value, keyed=_KEYED)
    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        """Return each device's value.

        Args:
            key: name of the key, for error messages.
            generator: the random generator.
            devices: number of devices.
            root: folder of data files; None for the working directory.

        Returns:
            Values in the base unit of the key, float64 [devices].
        """
        return self.draw(generator, devices)


class Constant(Distribution, Generic[Q]):
    """The same value everywhere. In a scenario a bare quantity means this."""

    kind: Literal["constant"] = "constant"
    value: Q

    def draw(self, generator: np.random.Generator, size: int) -> AnyArray:
        return alike(self.value, size)


class Uniform(Distribution, Generic[Q]):
    """Uniform between two values."""

    kind: Literal["uniform"] = "uniform"
    low: Q
    high: Q

    @model_validator(mode="after")
    def _ordered(self) -> "Uniform[Q]":
        if self.low > self.high:  # type: ignore[operator]
            raise ValueError("'low' is above 'high'")
        if self.high == math.inf:
            raise ValueError(
                "a uniform distribution cannot reach up to infinity; 'high' must be finite"
            )
        return self

    def draw(self, generator: np.random.Generator, size: int) -> Floats:
        return generator.uniform(self.low, self.high, size)  # type: ignore[call-overload, no-any-return]


class LogNormal(Distribution, Generic[Q]):
    """Lognormal by its median and its spread, the factor by which one standard deviation
    multiplies (exp of sigma).
    """

    kind: Literal["lognormal"] = "lognormal"
    median: Q
    spread: float = Field(ge=1.0, le=1e6)

    def draw(self, generator: np.random.Generator, size: int) -> Floats:
        values = generator.standard_normal(size)
        values *= math.log(self.spread)  # in place: there may be 100 million
        # numpy's exp of real numbers has other last bits where there is AVX-512; that of complex
        # ones is the C library's.
        for block in np.array_split(values, 1 + size // _BLOCK):
            block[:] = np.exp(block.astype(np.complex128)).real
        return np.multiply(self.median, values, out=values)  # type: ignore[call-overload, no-any-return]


class Choice(Distribution, Generic[Q]):
    """One of several values, with given shares (equal when none are given)."""

    kind: Literal["choice"] = "choice"
    values: list[Q] = Field(min_length=1)
    shares: list[float] | None = None

    @model_validator(mode="after")
    def _matching(self) -> "Choice[Q]":
        if self.shares is not None and (
            len(self.shares) != len(self.values) or min(self.shares) < 0 or sum(self.shares) <= 0
        ):
            raise ValueError("'shares' must be as many as 'values', none negative, not all zero")
        return self

    def draw(self, generator: np.random.Generator, size: int) -> AnyArray:
        shares = None if self.shares is None else np.array(self.shares) / sum(self.shares)
        return generator.choice(np.array(self.values), size, p=shares)


class Listed(Distribution, Generic[Q]):
    """A value for each device, in order of their numbers. In a scenario a bare list means this."""

    kind: Literal["list"] = "list"
    values: list[Q] = Field(min_length=1)

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        if len(self.values) != devices:
            raise ScenarioError(
                f"{key} lists {len(self.values)} values for {devices} devices; allowed is one "
                "a device"
            )
        return np.array(self.values)


class FileColumn(Spec):
    """The base of values by device from a file."""

    kind: Literal["file"] = "file"
    file: str
    """the file; a relative path starts from ``data.root``, else the working directory, else
    ``$FEDSIM_DATA``.
    """
    column: str
    """the column's name."""
    unit: str | None = None
    """of the cells that are bare numbers, such as ``"s"``; others carry their own."""

    def cells(
        self, key: str, devices: int, root: Path | None, quantity: Any, **empty: Any
    ) -> AnyArray:
        table = DeviceTable(key, sought(self.file, root), (self.column,), IDS)
        return np.array(table.by_device(self.column, devices, quantity, self.unit, **empty))


class FromFile(FileColumn, Distribution, Generic[Q]):
    """A column of a CSV or Parquet file with a row a device, in order of their numbers or as its
    column ``device`` says.

    Without ``device``, a column such as ``id``, ``client`` or an index that pandas has written
    gives the order: the numbers of the devices in any order, or other names in ascending order.
    """

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        return self.cells(key, devices, root, type(self).__pydantic_generic_metadata__["args"][0])


Jitter = Annotated[float, Field(ge=0.0, le=100.0)]
Factor = Annotated[float, Field(ge=1e-6, le=1.0)]  # below, times overflow
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


def by_device(quantity: Any, *drawn: type[Distribution], base: str = "", key: str = "") -> Registry:
    """The distributions of a quantity.

    Short forms: a bare value for a constant, a list with one value per device, a file.
    """
    specs: Any = [form[quantity] for form in (*drawn, Listed, FromFile)]  # type: ignore[index]
    short: dict[str, Any] = {"usual": "constant", "bare": "value", "by_device": True}
    return Registry.of("distribution", *specs, base=base, key=key, **short)


_BASE = "fedsim.world.distributions:Distribution"
_KEY = "population.speed"
SPEEDS = by_device(SamplesPerSecond, Constant, Uniform, LogNormal, Choice, base=_BASE, key=_KEY)
SpeedDistribution = Annotated[Distribution, SPEEDS]
RateDistribution = Annotated[
    Distribution, by_device(LinkRate, Constant, Uniform, LogNormal, Choice)
]
TimeDistribution = Annotated[Distribution, by_device(Seconds, Constant, Uniform, LogNormal, Choice)]
JitterDistribution = Annotated[
    Distribution, by_device(Jitter, Constant, Uniform, LogNormal, Choice)
]
FactorDistribution = Annotated[Distribution, by_device(Factor, Constant, Uniform, Choice)]
NameDistribution = Annotated[Distribution, by_device(str, Constant, Choice)]
