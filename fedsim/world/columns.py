"""Arrays over all devices in little memory: an array of equal entries stores only one of them."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import AnyArray, Floats, Ints

MANY = 2_000_000
"""Count of devices up to which every device has a row in caches and in ``devices.parquet``.

In a larger population only the devices that a run has looked up have rows.
"""

ALL = slice(None)

_PIECE = 262_144  # count of entries per slice of ``pieces``
_FIRST_LENGTH = 4_096  # initial count of rows in the caches of a large population


def alike(value: object, devices: int) -> AnyArray:
    """Return a read-only array [devices] of one value, which is stored only once (stride 0)."""
    return np.broadcast_to(np.asarray(value), (devices,))


def _is_shared(column: AnyArray) -> bool:
    """Return whether an array over devices is made by ``alike``: one stored value for all."""
    return column.strides == (0,) and len(column) > 0


def each(function: Callable[[AnyArray], AnyArray], column: AnyArray) -> AnyArray:
    """Apply an elementwise function to an array over devices, once if all entries are one value.

    Args:
        function: elementwise function of an array. It is called with an array of one entry if the
            column stores one value for all devices.
        column: the array, [devices].

    Returns:
        The new array, [devices].
    """
    if _is_shared(column):  # the array stores one value for all devices
        return alike(function(column[:1])[0], len(column))
    return function(column)


def distinct(column: AnyArray) -> tuple[AnyArray, NDArray[np.integer]]:
    """Find the distinct entries of an array over devices.

    Args:
        column: the array, [devices].

    Returns:
        The distinct entries, ascending, [n], and for each device the index of its entry in them,
        int [devices].
    """
    if _is_shared(column):  # the array stores one value for all devices
        return column[:1], alike(0, len(column))
    values, positions = np.unique(column, return_inverse=True)
    return values, positions


def pieces(devices: int) -> Iterator[slice]:
    """Yield consecutive slices that together cover the indices of all devices.

    Callers compute arrays over one slice at a time, to save memory.
    """
    return (slice(begin, begin + _PIECE) for begin in range(0, devices, _PIECE))


def mean(entries: Callable[[slice], Floats], devices: int) -> float:
    """Compute the mean of a value over all devices, one slice at a time to save memory.

    The result equals that of ``np.mean`` to the bit, because both add the values recursively by
    halves.

    Args:
        entries: function that returns the values of the devices in a slice, float64 [slice].
        devices: number of devices.
    """

    def total(begin: int, end: int) -> float:
        half = (end - begin) // 2
        if half < _PIECE:
            return float(np.add.reduce(entries(slice(begin, end))))
        middle = begin + half - half % 8  # numpy's blocks, too, begin at multiples of eight
        return total(begin, middle) + total(middle, end)

    return total(0, devices) / devices


class DeviceRows:
    """Map from devices to rows of arrays that cache values of devices.

    The row is the device's index. In a population of more than ``MANY`` devices only the devices
    that were looked up have a row: a device gets the next free row at its first look-up.

    Args:
        devices: count of devices.

    Attributes:
        has_all: whether every device has a row from the start.
        length: count of rows that the caching arrays must have; ``of`` increases it if more devices
            need a row.
    """

    def __init__(self, devices: int) -> None:
        self.has_all = devices <= MANY
        self.length = devices if self.has_all else _FIRST_LENGTH
        self._rows: dict[int, int] = {}

    def of(self, devices: Ints) -> Ints:
        """Return the rows of devices in the caching arrays, int64 [n].

        A device without a row gets the next free one. If ``length`` is greater after the call, the
        caller must lengthen each of its arrays to ``length`` rows by ``array = rows.lengthen(array)``.

        Args:
            devices: indices of the devices, int64 [n].
        """
        if self.has_all:
            return devices
        row_of = self._rows  # device -> row, for each device that has a row
        rows = [row_of.setdefault(device, len(row_of)) for device in devices.tolist()]
        while len(row_of) > self.length:
            self.length *= 2
        return np.array(rows, dtype=np.int64)

    def lengthen(self, column: AnyArray) -> AnyArray:
        """Return a copy of a caching array, lengthened to ``length`` rows by zeros."""
        return np.concatenate([column, np.zeros(self.length - len(column), column.dtype)])
