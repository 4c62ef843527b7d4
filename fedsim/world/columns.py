"""Columns of a population that take little memory.

A column of equal entries stores one number (stride 0).
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray, Floats, Ints

MANY = 2_000_000
"""In a larger population only devices that a run has looked up have rows in caches and in
``devices.parquet``.
"""

ALL = slice(None)

_PIECE = 262_144  # entries that are in memory at a time
_ROOM = 4_096  # first number of rows in columns of a large population


def alike(value: object, devices: int) -> AnyArray:
    """A column with one value for all devices, [devices], which stores the value once."""
    return np.broadcast_to(np.asarray(value), (devices,))


def _is_shared(column: AnyArray) -> bool:
    """Whether a column stores one value for all devices."""
    return column.strides == (0,) and len(column) > 0


def each(function: Callable[[AnyArray], AnyArray], column: AnyArray) -> AnyArray:
    """Apply a function to the entries of a column, [devices].

    Args:
        function: a function of an array, entry by entry; called with one entry if the column
            stores one value for all devices.
        column: the column, [devices].
    """
    if _is_shared(column):
        return alike(function(column[:1])[0], len(column))
    return function(column)


def distinct(column: AnyArray) -> tuple[AnyArray, NDArray[np.integer]]:
    """The different entries of a column.

    Returns:
        The entries, ascending, [n], and the position of each device's entry, int [devices].
    """
    if _is_shared(column):
        return column[:1], alike(0, len(column))
    values, positions = np.unique(column, return_inverse=True)
    return values, positions


def pieces(devices: int) -> Iterator[slice]:
    """Slices that cover all devices, each short enough to bound memory."""
    return (slice(begin, begin + _PIECE) for begin in range(0, devices, _PIECE))


def mean(entries: Callable[[slice], Floats], devices: int) -> float:
    """Mean of a column that is computed piece by piece.

    It equals ``np.mean`` in all bits, because it adds up halves of halves in the same way.

    Args:
        entries: computes the column's entries of a slice.
        devices: number of devices.
    """

    def total(begin: int, end: int) -> float:
        half = (end - begin) // 2
        if half < _PIECE:
            return float(np.add.reduce(entries(slice(begin, end))))
        middle = begin + half - half % 8
        return total(begin, middle) + total(middle, end)

    return total(0, devices) / devices


class DeviceRows:
    """The row of each device in columns of a cache.

    It is the device's number. In a population larger than ``MANY`` it is the next free row.

    Args:
        devices: number of devices.

    Attributes:
        all: whether every device has a row.
        room: number of rows.
    """

    def __init__(self, devices: int) -> None:
        self.all = devices <= MANY
        self.room = devices if self.all else _ROOM
        self._rows: dict[int, int] = {}

    def of(self, devices: Ints) -> Ints:
        """Rows of devices, int64 [len(devices)].

        ``room`` may grow; the caller then extends its columns by ``grown``.
        """
        if self.all:
            return devices
        row_of = self._rows
        rows = [row_of.setdefault(device, len(row_of)) for device in devices.tolist()]
        while len(row_of) > self.room:
            self.room *= 2
        return np.array(rows, dtype=np.int64)

    def grown(self, column: AnyArray) -> AnyArray:
        """A column extended by zeros to ``room`` rows."""
        return np.concatenate([column, np.zeros(self.room - len(column), column.dtype)])
