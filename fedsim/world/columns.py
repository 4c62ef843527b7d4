"""Columns of a population, one entry a device, that take little room: for what all devices share, and for what few were asked.

A column that all share is an array with one number behind all entries (stride 0), which cannot be written to.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats, Ints

MANY = 2_000_000
"""Of more devices than these, only those that were ever looked at have rows: in caches, and in ``devices.parquet``."""

ALL = slice(None)

_PIECE = 262_144  # entries that are reckoned with at a time
_ROOM = 4_096  # rows that such a table begins with


def alike(value: Any, devices: int) -> NDArray[Any]:
    """The same value for so many devices."""
    return np.broadcast_to(np.asarray(value), (devices,))


def each(function: Callable[[NDArray[Any]], NDArray[Any]], column: NDArray[Any]) -> NDArray[Any]:
    """Apply a function to each entry of a column; called once where all entries are shared."""
    return alike(function(column[:1])[0], len(column)) if column.strides == (0,) and len(column) else function(column)


def distinct(column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.integer]]:
    """The different entries of a column, ascending, and the place of each device's among them."""
    if column.strides == (0,) and len(column):
        return column[:1], alike(0, len(column))
    values, which = np.unique(column, return_inverse=True)
    return values, which


def pieces(devices: int) -> Iterator[slice]:
    """All devices, some at a time: what is found of each of them piece by piece is never in memory as a whole."""
    return (slice(begin, begin + _PIECE) for begin in range(0, devices, _PIECE))


def mean(entries: Callable[[slice], Floats], devices: int) -> float:
    """The mean of a column that is made piece by piece; to the bit ``np.mean`` of the whole, which adds up halves of halves."""

    def total(begin: int, end: int) -> float:
        half = (end - begin) // 2
        if half < _PIECE:
            return float(np.add.reduce(entries(slice(begin, end))))
        middle = begin + half - half % 8
        return total(begin, middle) + total(middle, end)

    return total(0, devices) / devices


class DeviceRows:
    """Row of each device in the columns of a table: its own number for few devices (``all``), the next free row for more than
    ``MANY``. Columns need ``room`` entries.
    """

    def __init__(self, devices: int) -> None:
        self.all = devices <= MANY
        self.room = devices if self.all else _ROOM
        self._rows: dict[int, int] = {}

    def of(self, devices: Ints) -> Ints:
        """The rows of some devices; int64, as many. Columns may have to grow then."""
        if self.all:
            return devices
        rows = self._rows
        found = np.array([rows.setdefault(device, len(rows)) for device in devices.tolist()], dtype=np.int64)
        while len(rows) > self.room:
            self.room *= 2
        return found

    def grown(self, column: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([column, np.zeros(self.room - len(column), column.dtype)])
