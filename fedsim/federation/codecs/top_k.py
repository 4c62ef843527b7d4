"""Top-k sparsification with error feedback (Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018)."""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats32
from fedsim.federation.codecs import sparse
from fedsim.federation.codecs.lossy import Lossy
from fedsim.learning.functions import Function, pure

_APART = 16  # of so many entries one is in the sample


def encode(array: Floats32, k: int) -> bytes:
    """The k entries of largest magnitude, of equals the first: their values, and where they are."""
    return sparse.write(array, _largest(array, k))


def _largest(array: Floats32, k: int) -> NDArray[np.int64]:
    """Positions of the k entries of largest magnitude, of equals the first; ascending."""
    sizes = -np.abs(array)
    nearby, about = np.arange(len(array)), k // _APART * 3 // 2 + _APART
    if about * _APART < len(array):  # a sample says which entries are worth a closer look
        chosen = np.flatnonzero(sizes <= np.partition(sizes[::_APART], about)[about])
        nearby = chosen if len(chosen) >= k else nearby
    near = sizes[nearby]
    last = np.partition(near, k - 1)[k - 1]
    taken = near < last
    taken[np.flatnonzero(near == last)[: k - np.count_nonzero(taken)]] = True
    found: NDArray[np.int64] = nearby[taken]
    return found


def decode(written: bytes, size: int, k: int) -> Floats32:
    """The array [size] that ``encode`` has written, 0 where nothing was sent."""
    return sparse.read(written, size, k)


@pure
def through_the_wire(models: list[Floats32], k: int) -> Floats32:
    """The array as it arrives."""
    return decode(encode(models[0], k), len(models[0]), k)


class Sparse(Lossy):
    """A codec that sends k of d entries.

    Attributes:
        share: k / d; at least one entry is sent. With 1 nothing is lost.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    share: float = Field(default=0.01, gt=0.0, le=1.0)

    def k(self, parameters: int) -> int:
        """Number of entries that are sent out of ``parameters``."""
        return min(max(1, round(self.share * parameters)), parameters)

    def bytes(self, parameters: int) -> float:
        """Values, and the shorter way to say where they are; what ``sparse.write`` writes."""
        return sparse.size(parameters, self.k(parameters))

    def loses_nothing(self, parameters: int) -> bool:
        return self.k(parameters) == parameters


class TopK(Sparse):
    """Of what an update has changed, the ``share`` of entries that changed most is sent; of other contents, their largest.

    What is sent and what is kept are together what was meant, to the bit.

    Attributes:
        share: k / d; at least one entry is sent. With 1 nothing is lost.
    """

    kind: Literal["top-k"] = "top-k"
    error_feedback: bool = True

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return through_the_wire, {"k": self.k(parameters)}
