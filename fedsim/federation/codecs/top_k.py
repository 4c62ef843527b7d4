"""Top-k sparsification with error feedback (Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018)."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.federation.codecs import sparse
from fedsim.federation.codecs.lossy import Floats, Lossy
from fedsim.learning.functions import Function, pure


def encode(array: Floats, k: int) -> bytes:
    """The k entries of largest magnitude, of equals the first: their values, and where they are."""
    order = np.argsort(-np.abs(array), kind="stable")[:k]
    return sparse.write(array, np.sort(order))


def decode(written: bytes, size: int, k: int) -> Floats:
    """The array [size] that ``encode`` has written, 0 where nothing was sent."""
    return sparse.read(written, size, k)


@pure
def through_the_wire(models: list[Floats], k: int) -> Floats:
    """What arrives of an array."""
    return decode(encode(models[0], k), len(models[0]), k)


class Sparse(Lossy):
    """A codec that sends k of d entries.

    Attributes:
        share: k / d; at least one entry is sent. With 1 nothing is lost.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    share: float = Field(default=0.01, gt=0.0, le=1.0)

    def k(self, parameters: int) -> int:
        """How many entries are sent of so many."""
        return max(1, round(self.share * parameters))

    def bytes(self, parameters: int) -> float:
        """Values, and the shorter way to say where they are; what ``sparse.write`` writes."""
        return sparse.size(parameters, self.k(parameters))

    def loses_nothing(self, parameters: int) -> bool:
        """With k = d."""
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
        """The largest entries."""
        return through_the_wire, {"k": self.k(parameters)}
