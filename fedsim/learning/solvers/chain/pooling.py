"""Max pooling, with ReLU in the same pass where they are neighbours.

A maximum is the same before and after ReLU, and so is the pixel that the error goes back to: where the maximum is positive it
is the same one, elsewhere ReLU lets no error through.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.learning.solvers.chain.room import Numbers, Room, Sides, flat, sides
from fedsim.learning.solvers.compiled import compiled_entry


class MaxPool:
    """The maximum over windows that do not overlap.

    Args:
        size: side of a window.
        rectify: whether ReLU goes before or after.
        dtype: of the numbers.
    """

    def __init__(self, size: int, rectify: bool, dtype: torch.dtype) -> None:
        self._size = size
        self._rectify = rectify
        self._out, self._winner, self._below = Room(dtype), Room(torch.int32), Room(dtype)
        self._shape: Sides = (0, 0, 0, 0)

    def forward(self, x: Tensor) -> Tensor:
        """Maxima of [n, height, width, channels]."""
        n, height, width, channels = self._shape = sides(x)
        shape = n, height // self._size, width // self._size, channels
        out, self._winners = self._out.of(*shape), self._winner.of(*shape)
        _pool(flat(x), self._shape, self._size, self._rectify, flat(out), flat(self._winners))
        return out

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """The error of each maximum to where it came from."""
        below = self._below.of(*self._shape)
        if onward:
            _unpool(flat(error), flat(self._winners), self._shape, self._size, flat(below))
        return below


@compiled_entry
def _pool(x: Numbers, shape: Sides, side: int, rectify: bool, out: Numbers, winner: NDArray[np.int32]) -> None:
    """Maxima and their positions within their windows (-1: ReLU lets nothing back).

    Like torch's, the first of equals, and NaN where there is one. Windows of side 2 are read once.
    """
    n, height, width, channels = shape
    c = np.uint64(channels)
    line = np.uint64(width * channels)
    rows, columns = height // side, width // side
    for place in range(n * rows * columns):
        at, rest = divmod(place, rows * columns)
        row, column = divmod(rest, columns)
        o = np.uint64(place * channels)
        p = np.uint64(((at * height + row * side) * width + column * side) * channels)
        if side == 2:
            q, r, s = p + c, p + line, p + line + c
            for z in range(c):
                best, new, position = x[p + z], x[q + z], 0
                wins = (new > best) | (new != new)
                best, position, new = new if wins else best, 1 if wins else position, x[r + z]
                wins = (new > best) | (new != new)
                best, position, new = new if wins else best, 2 if wins else position, x[s + z]
                wins = (new > best) | (new != new)
                best, position = new if wins else best, 3 if wins else position
                none = rectify & (best <= 0)
                out[o + z] = 0 if none else best
                winner[o + z] = -1 if none else position
            continue
        for z in range(c):
            out[o + z] = x[p + z]
            winner[o + z] = 0
        for position in range(1, side * side):
            q = p + np.uint64(position // side) * line + np.uint64(position % side) * c
            for z in range(c):
                new, best = x[q + z], out[o + z]
                wins = (new > best) | (new != new)
                out[o + z] = new if wins else best
                winner[o + z] = position if wins else winner[o + z]
        for z in range(c):
            none = rectify & (out[o + z] <= 0)
            out[o + z] = 0 if none else out[o + z]
            winner[o + z] = -1 if none else winner[o + z]


@compiled_entry
def _unpool(error: Numbers, winner: NDArray[np.int32], shape: Sides, side: int, below: Numbers) -> None:
    """Errors to the winners, 0 to all others."""
    n, height, width, channels = shape
    c = np.uint64(channels)
    line = np.uint64(width * channels)
    rows, columns = height // side, width // side
    if height % side or width % side:
        below[:] = 0
    for place in range(n * rows * columns):
        at, rest = divmod(place, rows * columns)
        row, column = divmod(rest, columns)
        o = np.uint64(place * channels)
        p = np.uint64(((at * height + row * side) * width + column * side) * channels)
        for position in range(side * side):
            q = p + np.uint64(position // side) * line + np.uint64(position % side) * c
            for z in range(c):
                below[q + z] = error[o + z] if winner[o + z] == position else 0
