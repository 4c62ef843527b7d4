"""Dropout with the masks of ``KeyedDropout``, made by a compiled loop."""

import numpy as np
import torch
from torch import Tensor

from fedsim.learning.solvers.chain.room import Numbers, Room, flat
from fedsim.learning.solvers.compiled import compiled, compiled_entry
from fedsim.learning.solvers.dropout import KeyedDropout

_WORD = (1 << 64) - 1
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


class Dropout:
    """Dropout by a counter hash of the element's position, under a key that is set before each step.

    Args:
        rate: probability of a zero.
        place: number of this layer among the dropout layers of the model.
        dtype: of the numbers.

    Attributes:
        key: of the step, see ``step_key``.
    """

    def __init__(self, rate: float, place: int, dtype: torch.dtype) -> None:
        like = KeyedDropout(rate, place)
        self.key = 0
        self._rate, self._salt = rate, like.salt
        self._scale = 0.0 if rate >= 1.0 else 1.0 / (1.0 - rate)
        self._mask = Room(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Zeros in a part of ``x``, in place, the rest scaled up."""
        n, pixels, channels = len(x), x.shape[1:-1].numel(), x.shape[-1]
        self._factors = self._mask.of(*x.shape)
        words = np.uint64(self.key + self._salt & _WORD), np.uint64(self.key & _WORD)
        _draw(*words, round(self._rate * (1 << 24)), self._scale, n, pixels, channels, flat(self._factors))
        return x.mul_(self._factors)

    def backward(self, error: Tensor, onward: bool) -> Tensor:
        """See ``Layer``."""
        return error.mul_(self._factors)


@compiled
def _mixed(word: np.uint64) -> np.uint64:
    """The finaliser of splitmix64."""
    word = (word ^ (word >> np.uint64(30))) * _MIX1
    word = (word ^ (word >> np.uint64(27))) * _MIX2
    return word ^ (word >> np.uint64(31))


@compiled_entry
def _draw(
    first: np.uint64, second: np.uint64, least: int, scale: float, n: int, pixels: int, channels: int, factors: Numbers
) -> None:
    """Factors [n, pixels, channels]: 0 or ``scale``; positions count channel by channel."""
    threshold, between = np.uint64(least), np.uint64(pixels) * _STEP
    for at in range(n):
        for pixel in range(pixels):
            o = np.uint64((at * pixels + pixel) * channels)
            word = np.uint64(at * channels * pixels + pixel + 1) * _STEP + first
            for z in range(np.uint64(channels)):
                random = _mixed(_mixed(word + z * between) + second)
                factors[o + z] = scale if (random >> np.uint64(40)) >= threshold else 0.0
