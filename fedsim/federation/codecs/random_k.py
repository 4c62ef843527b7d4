"""Random sparsification: rand_k of Stich, Cordonnier and Jaggi, "Sparsified SGD with memory" (NeurIPS 2018); without memory the
random mask of Konecny et al., "Federated learning: strategies for improving communication efficiency" (2016).
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats32
from fedsim.federation.codecs import sparse
from fedsim.federation.codecs.top_k import Sparse
from fedsim.learning.functions import Function, pure

_SEED_BYTES = 8


def positions_of(seed: int, size: int, k: int) -> NDArray[np.int64]:
    """The k of ``size`` positions that a seed stands for, ascending: what both sides find from it."""
    found: NDArray[np.int64] = np.sort(np.random.default_rng(seed).choice(size, k, replace=False))
    return found


def encode(array: Floats32, k: int, seed: int, seeded: bool) -> bytes:
    """The entries at the positions of a seed, and after them the seed, or the positions themselves."""
    positions = positions_of(seed, len(array), k)
    if seeded:
        return array[positions].astype("<f4").tobytes() + seed.to_bytes(_SEED_BYTES, "little")
    return sparse.write(array, positions)


def decode(written: bytes, size: int, k: int, seeded: bool) -> Floats32:
    """The array [size] that ``encode`` has written, 0 where nothing was sent."""
    if not seeded:
        return sparse.read(written, size, k)
    array = np.zeros(size, dtype=np.float32)
    positions = positions_of(int.from_bytes(written[4 * k :], "little"), size, k)
    array[positions] = np.frombuffer(written, "<f4", k)
    return array


@pure
def through_the_wire(models: list[Floats32], k: int, seeded: bool, scale: float, rng: np.random.Generator) -> Floats32:
    """The array as it arrives, scaled by its receiver."""
    size = len(models[0])
    arrived = decode(encode(models[0], k, int(rng.integers(2**63)), seeded), size, k, seeded)
    return arrived * np.float32(scale)


class RandomK(Sparse):
    """A ``share`` of the entries of a change is sent, drawn uniformly without replacement.

    Without error feedback the receiver scales them by d / k, which makes the mean over all draws what was meant; with it they
    arrive as they are, and what is sent and what is kept are together what was meant, to the bit.

    Attributes:
        share: k / d; at least one entry is sent. With 1 nothing is lost.
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
        return through_the_wire, {"k": k, "seeded": self.positions == "seed", "scale": scale}
