"""Top-k sparsification with error feedback (Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018)."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.federation.codecs import Arithmetic, Codec, Coded
from fedsim.learning.functions import pure
from fedsim.learning.refs import Ref

Floats = NDArray[np.float32]


def encode(array: Floats, k: int) -> bytes:
    """The k entries of largest magnitude, of equals the first: their values, and where they are.

    Positions are written as a bitmap of d bits or as k numbers of 4 bytes, whatever is shorter; not at all where k = d.
    """
    size = len(array)
    order = np.argsort(-np.abs(array), kind="stable")[:k]
    positions = np.sort(order).astype("<u4")
    values: bytes = array[positions].astype("<f4").tobytes()
    if k == size:
        return values
    if 4 * k <= -(-size // 8):
        return values + positions.tobytes()
    taken = np.zeros(size, dtype=np.bool_)
    taken[positions] = True
    return values + np.packbits(taken).tobytes()


def decode(written: bytes, size: int, k: int) -> Floats:
    """The array [size] that ``encode`` has written, 0 where nothing was sent."""
    array = np.zeros(size, dtype=np.float32)
    values = np.frombuffer(written, "<f4", k)
    rest = written[4 * k :]
    if k == size:
        array[:] = values
    elif 4 * k <= -(-size // 8):
        array[np.frombuffer(rest, "<u4")] = values
    else:
        array[np.unpackbits(np.frombuffer(rest, np.uint8), count=size).astype(np.bool_)] = values
    return array


@pure
def through_the_wire(models: list[Floats], k: int) -> Floats:
    """What arrives of an array."""
    return decode(encode(models[0], k), len(models[0]), k)


@pure
def added(models: list[Floats]) -> NDArray[np.floating]:
    """The sum of two arrays."""
    total: NDArray[np.floating] = models[0].astype(np.float64) + models[1]
    return total


class TopK(Codec):
    """Of what an update has changed, the ``share`` of entries that changed most is sent; of other contents, their largest.

    With ``error_feedback`` the device adds to a change what it has not sent before, and keeps what it does not send now: what
    was sent and what is kept are together exactly what was meant. What is cut off on its way was not sent.

    Attributes:
        share: k / d; at least one entry is sent. With 1 nothing is lost.
        error_feedback: whether devices remember what they have not sent (d numbers a device that was ever asked).
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    kind: Literal["top-k"] = "top-k"
    share: float = Field(default=0.01, gt=0.0, le=1.0)
    error_feedback: bool = True

    def k(self, parameters: int) -> int:
        """How many entries are sent of so many."""
        return max(1, round(self.share * parameters))

    def bytes(self, parameters: int) -> float:
        """Values, and the shorter way to say where they are; what ``encode`` writes."""
        k = self.k(parameters)
        return 4 * k + (min(4 * k, -(-parameters // 8)) if k < parameters else 0)

    def code(self, arithmetic: Arithmetic, parameters: int, value: Ref, base: Ref | None, kept: Ref | None) -> Coded:
        """What arrives, and what the device keeps."""
        k = self.k(parameters)
        if k == parameters:
            return Coded(value)
        change = value if base is None else arithmetic.mix([(value, 1.0), (base, -1.0)])
        meant = change if kept is None else arithmetic.apply(added, [change, kept])
        sent = arithmetic.apply(through_the_wire, [meant], k=k)
        rest = None
        if self.error_feedback:
            # A training that diverged is not remembered: it would be sent again and again.
            nothing = arithmetic.mix([(value if base is None else base, 0.0)])
            rest = arithmetic.mix([(meant, 1.0), (sent, -1.0)], otherwise=nothing if kept is None else kept)
        return Coded(sent if base is None else arithmetic.apply(added, [base, sent]), rest)
