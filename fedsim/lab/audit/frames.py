"""Helpers for run folders' tables: columns as NumPy arrays, and findings for rows that differ.

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
    """Convert a column of a ``pyarrow.Table`` to a NumPy array, or to a Categorical for names.

    Missing cells become False (bool), NaN (floats), ``""`` (names) or ``NOTHING`` (integers), a
    negative number that no column has.
    """
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


def report_rows(template: str, rows: pd.DataFrame, wrong: ArrayLike | None = None) -> Iterator[str]:
    """Yield a finding (str) for each wrong row of a table.

    Args:
        template: format string of the finding. Braces may contain column names, and ``row`` (the
            index).
        rows: the checked rows.
        wrong: whether each row is wrong; bool [rows]. By default all rows are.
    """
    if wrong is not None:
        if not np.any(wrong):
            return
        rows = rows[np.asarray(wrong, dtype=np.bool_)]
    for row, *values in rows.itertuples():
        cells = dict(zip(rows.columns, map(plain_value, values), strict=True))
        yield template.format(row=row, **cells)


def report_differences(
    template: str,
    table: pd.DataFrame,
    expected: Mapping[str, ArrayLike] | pd.DataFrame,
    **tolerance: Any,
) -> Iterator[str]:
    """Yield a finding (str) for each cell of a table that differs from its expected value.

    Args:
        template: format string of the finding. Braces may contain ``name`` (of the column),
            ``row``, ``stated`` and ``expected``.
        table: the table as the folder has it.
        expected: dict from column name to expected values [rows].
        tolerance: keyword arguments of ``is_close``.
    """
    for column, expected_column in expected.items():
        name = str(column)
        values = np.asarray(expected_column)
        stated = np.asarray(table[name])
        if len(stated) != len(values):
            yield f"there are {len(stated)} rows with {name}; due are {len(values)}"
            continue
        rows = pd.DataFrame({"name": name, "stated": stated, "expected": values})
        yield from report_rows(
            template, rows, ~is_close(rows["stated"], rows["expected"], **tolerance)
        )


def plain_value(value: object) -> object:
    """Convert a cell to a plain Python value for a finding; None if the cell is missing."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain in (NOTHING, "") else plain


def last_marked_rows(mask: ArrayLike, keys: ArrayLike) -> Ints:
    """Return, for each row, the last marked row with the same key up to that row.

    For example, if the mask marks the records that begin a task and the key is the device, this is
    the begin of the device's current task.

    Args:
        mask: whether each row is marked; bool [n].
        keys: key of each row; [n].

    Returns:
        Row positions, -1 if no marked row has the key so far; int64 [n].
    """
    is_masked = np.asarray(mask)
    marked_rows = pd.Series(np.where(is_masked, np.arange(len(is_masked)), np.nan))
    last_rows = marked_rows.groupby(np.asarray(keys)).ffill().fillna(-1)
    return last_rows.to_numpy().astype(np.int64)


def values_at_rows(values: ArrayLike, rows: Ints) -> Floats:
    """Return the values in given rows, and NaN for row -1; float64 [rows].

    Args:
        values: the values; [n].
        rows: position of each result in ``values``, or -1; int64 [rows].
    """
    return np.append(np.asarray(values, dtype=np.float64), np.nan)[rows]


def is_close(
    stated: ArrayLike, expected: ArrayLike, atol: float = 1e-6, equal_nan: bool = False
) -> Flags:
    """Return whether numbers of a folder equal their expected values up to rounding errors.

    Args:
        stated: numbers of the folder; of any shape.
        expected: numbers that follow from the records or the scenario; of the same shape.
        atol: absolute tolerance, which is added to a relative tolerance of 1e-9.
        equal_nan: whether NaN equals NaN.

    Returns:
        bool, of the shape of the numbers.
    """
    return np.isclose(stated, expected, rtol=1e-9, atol=atol, equal_nan=equal_nan)


_adapter = cache(TypeAdapter[Any])


def read_quantity(kind: object, text: object) -> Any:
    """Parse a quantity of a scenario, such as ``"2 MB"``, to a number in its base unit.

    Args:
        kind: type of the quantity, such as ``Bytes``.
        text: the quantity as the scenario has it.
    """
    return _adapter(kind).validate_python(text)


def endpoint_numbers(names: "pd.Series[str]", kind: str) -> Ints:
    """Return the index in the name of each message's endpoint, such as 3 for ``edge 3``.

    Args:
        names: names of endpoints; [n].
        kind: ``device`` or ``edge``.

    Returns:
        Indices, ``NOTHING`` (a negative number) for endpoints of a different kind; int64 [n].
    """
    codes, distinct = pd.factorize(names)
    numbers = np.full(len(distinct), NOTHING, dtype=np.int64)
    for code, name in enumerate(distinct):
        match = re.fullmatch(rf"{kind} ([0-9]{{1,9}})", str(name))
        if match is not None:
            numbers[code] = int(match[1])
    return numbers[codes]


def grain_s(times: ArrayLike) -> Floats:
    """Return the resolution of simulated time at given times (s); float64, of their shape.

    This is the least difference of two distinct times: one tick of the clock or, beyond 97 days,
    the spacing of float64 numbers.
    """
    return np.maximum(TICK_S, np.spacing(np.asarray(times, dtype=np.float64)))
