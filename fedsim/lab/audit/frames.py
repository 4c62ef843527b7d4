"""Columns of a run folder's tables as NumPy arrays, and findings of rows that differ.

A missing whole number is ``NOTHING``, a missing quantity NaN, a missing name ``""``.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike
from pydantic import TypeAdapter

from fedsim.common.arrays import AnyArray, Flags, Floats, Ints
from fedsim.common.units import TICK_S

NOTHING = -(2**31)


def column_values(column: pa.ChunkedArray) -> AnyArray | pd.Categorical:
    """Convert a column of a ``pyarrow.Table`` to an array, or to a categorical for names."""
    if pa.types.is_dictionary(column.type):
        names = column.unify_dictionaries().combine_chunks()
        categories = list(dict.fromkeys([*names.dictionary.to_pylist(), ""]))
        codes = names.indices.fill_null(categories.index(""))
        return pd.Categorical.from_codes(codes, pd.Index(categories, dtype=object))
    if pa.types.is_integer(column.type):
        return np.asarray(column.fill_null(NOTHING).to_numpy())
    if pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False).to_numpy())
    return np.asarray(column.to_numpy())


def report(text: str, rows: pd.DataFrame, wrong: ArrayLike | None = None) -> Iterator[str]:
    """Yield a finding for each wrong row.

    Args:
        text: the finding, with the names of columns, and ``row`` (the index), in braces.
        rows: the rows that were checked.
        wrong: whether each row is wrong; bool [rows]. By default all are.
    """
    if wrong is not None:
        if not np.any(wrong):
            return
        rows = rows[np.asarray(wrong, dtype=np.bool_)]
    for row, *values in rows.itertuples():
        cells = dict(zip(rows.columns, map(plain_value, values), strict=True))
        yield text.format(row=row, **cells)


def report_differences(
    text: str,
    table: pd.DataFrame,
    due: Mapping[str, ArrayLike] | pd.DataFrame,
    **tolerance: Any,
) -> Iterator[str]:
    """Yield a finding for each cell of a table that differs from the due one, by column.

    Args:
        text: the finding, with ``name`` (of the column), ``row``, ``stated`` and ``due`` in braces.
        table: the table as the folder has it.
        due: the due values by column.
        tolerance: arguments of ``is_close``.
    """
    for column, due_column in due.items():
        name = str(column)
        values = np.asarray(due_column)
        stated = np.asarray(table[name])
        if len(stated) != len(values):
            yield f"there are {len(stated)} rows with {name}; due are {len(values)}"
            continue
        rows = pd.DataFrame({"name": name, "stated": stated, "due": values})
        yield from report(text, rows, ~is_close(rows["stated"], rows["due"], **tolerance))


def plain_value(value: object) -> object:
    """A cell as findings show it: a number of Python; None if the cell is missing."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain in (NOTHING, "") else plain


def latest(mask: ArrayLike, keys: ArrayLike) -> Ints:
    """Find for each row the last masked row with its key, at or before it.

    Args:
        mask: the rows to find; bool [n].
        keys: of each row; [n].

    Returns:
        Places of rows, -1 for none; int64 [n].
    """
    is_masked = np.asarray(mask)
    places = pd.Series(np.where(is_masked, np.arange(len(is_masked)), np.nan))
    last_places = places.groupby(np.asarray(keys)).ffill().fillna(-1)
    return last_places.to_numpy().astype(np.int64)


def at_places(values: ArrayLike, places: Ints) -> Floats:
    """The values at some places, NaN at place -1; float64 [places].

    Args:
        values: the values; [n].
        places: a place for each result, -1 for none; int64 [places].
    """
    return np.append(np.asarray(values, dtype=np.float64), np.nan)[places]


def is_close(
    stated: ArrayLike, due: ArrayLike, atol: float = 1e-6, equal_nan: bool = False
) -> Flags:
    """Whether numbers are equal up to the rounding of sums; bool, of their shape.

    Args:
        stated: the numbers of the folder.
        due: the numbers by the records or the scenario.
        atol: the absolute tolerance, in addition to a relative one of 1e-9.
        equal_nan: whether NaN equals NaN.
    """
    return np.isclose(stated, due, rtol=1e-9, atol=atol, equal_nan=equal_nan)


_adapter = cache(TypeAdapter[Any])


def read(kind: object, text: object) -> Any:
    """Parse a quantity of the scenario, of a ``kind`` such as ``Bytes``, in its base unit.

    Args:
        kind: the type of the quantity.
        text: the quantity, as in a scenario.
    """
    return _adapter(kind).validate_python(text)


def endpoint_numbers(names: "pd.Series[str]", kind: str) -> Ints:
    """Numbers of the endpoints of a kind, such as 3 of ``edge 3``.

    Args:
        names: of endpoints; [n].
        kind: ``device`` or ``edge``.

    Returns:
        The numbers, ``NOTHING`` for endpoints of another kind; int64 [n].
    """
    codes, distinct = pd.factorize(names)
    numbers = np.full(len(distinct), NOTHING, dtype=np.int64)
    for code, name in enumerate(distinct):
        match = re.fullmatch(rf"{kind} ([0-9]{{1,9}})", str(name))
        if match is not None:
            numbers[code] = int(match[1])
    return numbers[codes]


def grain_s(times: ArrayLike) -> Floats:
    """Resolution of the clock at some times (s).

    A tick, or beyond 97 days the spacing of float64.
    """
    return np.maximum(TICK_S, np.spacing(np.asarray(times, dtype=np.float64)))
