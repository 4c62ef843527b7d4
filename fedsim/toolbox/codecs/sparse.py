"""A few entries of an array: those of largest magnitude (``top-k``), or at random positions (``random-k``).

Sources: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory" (NeurIPS 2018); without memory the random mask of Konecny et
al., "Federated learning: strategies for improving communication efficiency" (2016).
"""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.arrays import Floats32
from fedsim.federation.codecs.lossy import Lossy
from fedsim.learning.functions import Function, pure

_APART = 16  # of so many entries one is in the sample
_SEED_BYTES = 8


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


class Sparse(Lossy):
    """A codec that sends k of d entries.

    Attributes:
        share: k / d; at least one entry is sent. With 1 nothing is lost.
    """

    ways: ClassVar[tuple[str, ...]] = ("up",)
    share: float = Field(default=0.01, gt=0.0, le=1.0)

    @property
    def sends(self) -> float:
        return self.share

    def k(self, parameters: int) -> int:
        """Number of entries that are sent out of ``parameters``."""
        return min(max(1, round(self.share * parameters)), parameters)

    def bytes(self, parameters: int) -> float:
        """Values, and the shorter way to say where they are; what ``write`` writes."""
        return size(parameters, self.k(parameters))

    def loses_nothing(self, parameters: int) -> bool:
        return self.k(parameters) == parameters


def largest(array: Floats32, k: int) -> NDArray[np.int64]:
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


@pure
def largest_through(models: list[Floats32], k: int) -> Floats32:
    """The array as it arrives."""
    return read(write(models[0], largest(models[0], k)), len(models[0]), k)


class TopK(Sparse):
    """Of what an update has changed, the ``share`` of entries that changed most is sent; of other contents, their largest.

    What is sent and what is kept are together what was meant, to the bit.
    """

    kind: Literal["top-k"] = "top-k"
    error_feedback: bool = True

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return largest_through, {"k": self.k(parameters)}


def positions_of(seed: int, size: int, k: int) -> NDArray[np.int64]:
    """The k of ``size`` positions that a seed stands for, ascending: what both sides find from it."""
    found: NDArray[np.int64] = np.sort(np.random.default_rng(seed).choice(size, k, replace=False))
    return found


def write_drawn(array: Floats32, k: int, seed: int, seeded: bool) -> bytes:
    """The entries at the positions of a seed, and after them the seed, or the positions themselves."""
    positions = positions_of(seed, len(array), k)
    if seeded:
        return array[positions].astype("<f4").tobytes() + seed.to_bytes(_SEED_BYTES, "little")
    return write(array, positions)


def read_drawn(written: bytes, size: int, k: int, seeded: bool) -> Floats32:
    """The array [size] that ``write_drawn`` has written, 0 where nothing was sent."""
    if not seeded:
        return read(written, size, k)
    array = np.zeros(size, dtype=np.float32)
    positions = positions_of(int.from_bytes(written[4 * k :], "little"), size, k)
    array[positions] = np.frombuffer(written, "<f4", k)
    return array


@pure
def drawn_through(models: list[Floats32], k: int, seeded: bool, scale: float, rng: np.random.Generator) -> Floats32:
    """The array as it arrives, scaled by its receiver."""
    size = len(models[0])
    arrived = read_drawn(write_drawn(models[0], k, int(rng.integers(2**63)), seeded), size, k, seeded)
    return arrived * np.float32(scale)


class RandomK(Sparse):
    """A ``share`` of the entries of a change is sent, drawn uniformly without replacement.

    Without error feedback the receiver scales them by d / k, which makes the mean over all draws what was meant; with it they
    arrive as they are, and what is sent and what is kept are together what was meant, to the bit.

    Attributes:
        positions: ``sent`` with the values, as a bitmap or as numbers; or found by both sides from a ``seed`` of 8 bytes.
    """

    kind: Literal["random-k"] = "random-k"
    positions: Literal["sent", "seed"] = "sent"

    @property
    def draws(self) -> bool:
        return True

    def bytes(self, parameters: int) -> float:
        seeded = self.positions == "seed" and not self.loses_nothing(parameters)
        return 4 * self.k(parameters) + _SEED_BYTES if seeded else super().bytes(parameters)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        k = self.k(parameters)
        scale = 1.0 if self.error_feedback else parameters / max(k, 1)
        return drawn_through, {"k": k, "seeded": self.positions == "seed", "scale": scale}
