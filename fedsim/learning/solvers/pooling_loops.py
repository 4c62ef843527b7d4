"""Pooling of images whose channels come last, with the ReLU beside it, in one pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.learning.solvers.compiled import compiled, compiled_entry

Numbers = NDArray[np.floating[Any]]
Sides = tuple[int, int, int, int]

_NOBODY = 65535  # as the winner: the maximum is not above zero, and ReLU lets no error pass


@compiled
def _highest(
    image: Numbers, at: int, line: int, channels: int, size: int, out: Numbers, winners: NDArray[np.uint16], to: int
) -> None:
    """One window of an image whose lines are so long."""
    p, o, step, high = np.uint64(at), np.uint64(to), np.uint64(channels), np.uint64(line)
    for c in range(step):
        best, winner = image[p + c], np.uint16(0)
        for k in range(1, size * size):
            value = image[p + np.uint64(k // size) * high + np.uint64(k % size) * step + c]
            higher = (value > best) | (value != value)
            best, winner = (value if higher else best), (np.uint16(k) if higher else winner)
        out[o + c], winners[o + c] = best, winner


@compiled
def _spread(
    error: Numbers, winners: NDArray[np.uint16], at: int, line: int, channels: int, size: int, below: Numbers, to: int
) -> None:
    """The error of one window to its pixels."""
    p, o, step, high = np.uint64(at), np.uint64(to), np.uint64(channels), np.uint64(line)
    zero = error.dtype.type(0)
    for c in range(step):
        for k in range(size * size):
            here = o + np.uint64(k // size) * high + np.uint64(k % size) * step + c
            below[here] = error[p + c] if winners[p + c] == np.uint16(k) else zero


@compiled_entry
def pool(image: Numbers, shape: Sides, size: int, rectified: bool, out: Numbers, winners: NDArray[np.uint16]) -> None:
    """The maximum of each window of ``size`` x ``size``, or 0 if that is larger and it is ``rectified``.

    Args:
        image, shape: [n, height, width, channels].
        size: side of a window, at most 255; what is left of the image at its ends is not looked at.
        rectified: whether a ReLU is included.
        out: [n, height // size, width // size, channels].
        winners: which pixel of its window it was, row by row; the first one of equal ones, or nobody.
    """
    n, height, width, channels = shape
    down, across, zero = height // size, width // size, image.dtype.type(0)
    for window in range(n * down * across):
        column, line = window % across, window // across
        begin = ((line // down * height + line % down * size) * width + column * size) * channels
        if size == 2:
            _highest(image, begin, width * channels, channels, 2, out, winners, window * channels)
        else:
            _highest(image, begin, width * channels, channels, size, out, winners, window * channels)
    if rectified:
        for at in range(np.uint64(len(out))):
            off = out[at] <= zero
            out[at], winners[at] = (zero if off else out[at]), (np.uint16(_NOBODY) if off else winners[at])


@compiled_entry
def give_to_winners(error: Numbers, winners: NDArray[np.uint16], shape: Sides, size: int, below: Numbers) -> None:
    """The error of each maximum to the pixel that it came from, zero to all others: ``below``, of that shape."""
    n, height, width, channels = shape
    down, across, zero = height // size, width // size, error.dtype.type(0)
    if height % size or width % size:
        below[:] = zero
    for window in range(n * down * across):
        column, line = window % across, window // across
        begin = ((line // down * height + line % down * size) * width + column * size) * channels
        if size == 2:
            _spread(error, winners, window * channels, width * channels, channels, 2, below, begin)
        else:
            _spread(error, winners, window * channels, width * channels, channels, size, below, begin)
