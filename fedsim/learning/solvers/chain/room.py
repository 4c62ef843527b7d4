"""Memory that is used again in each step, and how compiled loops see it."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.floating[Any]]

Sides = tuple[int, int, int, int]
"""Shape of images: n, height, width, channels."""


def flat(x: Tensor) -> NDArray[Any]:
    """The numbers of a contiguous tensor."""
    return x.view(-1).numpy()


def sides(x: Tensor) -> Sides:
    """The shape of images."""
    n, height, width, channels = x.shape
    return n, height, width, channels


class Room:
    """One array of any shape at a time, always in the same memory once that is large enough.

    It begins where torch lets memory begin, so that no result depends on whose arrays were there before.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._flat = torch.empty(0, dtype=dtype)

    def of(self, *shape: int) -> Tensor:
        """An array of this shape, with whatever the memory held."""
        size = math.prod(shape)
        if len(self._flat) < size:
            self._flat = torch.empty(size, dtype=self._flat.dtype)
        return self._flat[:size].view(shape)
