"""Columns of a population that take little room; a column of equal entries stores one number
(stride 0).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray, Floats, Ints

MANY = 2_000_000
"""Above this number only devices that were ever looked at have rows in caches and in
``devices.parquet``.
"""

ALL = slice(None)

_PIECE = 262_144  # entries that are reckoned with at a time
_ROOM = 4_096  # rows that such a table begins with


def alike(value: Any, devices: int) -> AnyArray:
    """The same value for so many devices."""
    return np.broadcast_to(np.asarray(value), (devices,))


def each(function: Callable[[AnyArray], AnyArray], column: AnyArray) -> AnyArray:
    """Apply a function to each entry of a column; called once where all entries are shared."""
    return (
        alike(function(column[:1])[0], len(column))
        if column.strides == (0,) and len(column)
        else function(column)
    )


def distinct(column: AnyArray) -> tuple[AnyArray, NDArray[np.integer]]:
    """The different entries of a column, ascending, and the place of each device's among them."""
    if column.strides == (0,) and len(column):
        return column[:1], alike(0, len(column))
    values, which = np.unique(column, return_inverse=True)
    return values, which


def pieces(devices: int) -> Iterator[slice]:
    """All devices, some at a time, to bound memory."""
    return (slice(begin, begin + _PIECE) for begin in range(0, devices, _PIECE))


def mean(entries: Callable[[slice], Floats], devices: int) -> float:
    """Mean of a column that is made piece by piece; to the bit ``np.mean``, which adds up halves
    of halves.
    """

    def total(begin: int, end: int) -> float:
        half = (end - begin) // 2
        if half < _PIECE:
            return float(np.add.reduce(entries(slice(begin, end))))
        middle = begin + half - half % 8
        return total(begin, middle) + total(middle, end)

    return total(0, devices) / devices


class DeviceRows:
    """Row of each device in columns of ``room`` entries: its number, or the next free row if
    there are more than ``MANY``.
    """

    def __init__(self, devices: int) -> None:
        self.all = devices <= MANY
        self.room = devices if self.all else _ROOM
        self._rows: dict[int, int] = {}

    def of(self, devices: Ints) -> Ints:
        """Rows of devices, int64 [len(devices)]; columns may have to grow then."""
        if self.all:
            return devices
        rows = self._rows
        found = np.array(
            [rows.setdefault(device, len(rows)) for device in devices.tolist()], dtype=np.int64
        )
        while len(rows) > self.room:
            self.room *= 2
        return found

    def grown(self, column: AnyArray) -> AnyArray:
        return np.concatenate([column, np.zeros(self.room - len(column), column.dtype)])
