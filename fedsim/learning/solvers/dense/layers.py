"""The layers of a flat model."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = TypeVar("Array", NDArray[np.floating], Tensor)


def split(flat: Array, sizes: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Kernels [..., outputs, inputs] and biases [..., outputs] within flat models [..., d].

    Args:
        flat: one model or several.
        sizes: features, then the outputs of each layer.
    """
    at = 0
    for inputs, outputs in pairwise(sizes):
        kernel = flat[..., at : at + inputs * outputs].reshape(*flat.shape[:-1], outputs, inputs)
        at += inputs * outputs
        yield kernel, flat[..., at : at + outputs]
        at += outputs
