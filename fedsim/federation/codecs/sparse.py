"""A few entries of an array on the wire: their values, and where they are."""

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats32


def size(parameters: int, k: int) -> int:
    """Number of bytes that ``write`` makes of k entries out of ``parameters``."""
    return 4 * k + (min(4 * k, -(-parameters // 8)) if k < parameters else 0)


def write(array: Floats32, positions: NDArray[np.integer]) -> bytes:
    """The entries at ``positions``, which ascend: 4 bytes each.

    Positions are written as a bitmap of d bits or as k numbers of 4 bytes, whatever is shorter; not at all where k = d.
    """
    values: bytes = array[positions].astype("<f4").tobytes()
    if len(positions) == len(array):
        return values
    if 4 * len(positions) <= -(-len(array) // 8):
        return values + positions.astype("<u4").tobytes()
    taken = np.zeros(len(array), dtype=np.bool_)
    taken[positions] = True
    return values + np.packbits(taken).tobytes()


def read(written: bytes, parameters: int, k: int) -> Floats32:
    """The array [parameters] of which ``write`` has written k entries, 0 elsewhere."""
    array = np.zeros(parameters, dtype=np.float32)
    values = np.frombuffer(written, "<f4", k)
    rest = written[4 * k :]
    if k == parameters:
        array[:] = values
    elif 4 * k <= -(-parameters // 8):
        array[np.frombuffer(rest, "<u4")] = values
    else:
        array[np.unpackbits(np.frombuffer(rest, np.uint8), count=parameters).astype(np.bool_)] = values
    return array
