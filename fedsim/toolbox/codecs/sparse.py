"""A few entries of an array: those of largest magnitude (``top-k``), or at random positions (``random-k``).

Sources: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory" (NeurIPS 2018); without memory the random mask of Konecny et
al., "Federated learning: strategies for improving communication efficiency" (2016).
"""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsim.arrays import Floats32, Ints
from fedsim.learning.functions import Function, pure
from fedsim.toolbox.codecs.lossy import Lossy

_APART = 16  # of so many entries one is in the sample
_SEED_BYTES = 8


class Sparse(Lossy):
    """A codec that sends k of d entries, 4 bytes each.

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
        """Values, and positions as a bitmap of d bits or as k numbers of 4 bytes, whatever is shorter; none where k = d."""
        k = self.k(parameters)
        return 4 * k + (min(4 * k, -(-parameters // 8)) if k < parameters else 0)

    def loses_nothing(self, parameters: int) -> bool:
        return self.k(parameters) == parameters


def _at(array: Floats32, positions: Ints) -> Floats32:
    """The entries at some positions, 0 elsewhere."""
    found = np.zeros_like(array)
    found[positions] = array[positions]
    return found


def largest(array: Floats32, k: int) -> Ints:
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
    found: Ints = nearby[taken]
    return found


@pure
def largest_alone(models: list[Floats32], k: int) -> Floats32:
    """The k entries of largest magnitude."""
    return _at(models[0], largest(models[0], k))


class TopK(Sparse):
    """Of what an update has changed, the ``share`` of entries that changed most is sent; of other contents, their largest.

    What is sent and what is kept are together what was meant, to the bit.
    """

    kind: Literal["top-k"] = "top-k"
    error_feedback: bool = True

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        return largest_alone, {"k": self.k(parameters)}


@pure
def drawn_alone(models: list[Floats32], k: int, scale: float, rng: np.random.Generator) -> Floats32:
    """The entries at k positions that both sides find from a seed, scaled by the receiver."""
    seed = int(rng.integers(2**63))
    positions = np.sort(np.random.default_rng(seed).choice(len(models[0]), k, replace=False))
    return _at(models[0], positions) * np.float32(scale)


class RandomK(Sparse):
    """A ``share`` of the entries of a change is sent, drawn uniformly without replacement.

    Without error feedback the receiver scales them by d / k, which makes the mean over all draws what was meant; with it they
    arrive as they are, and what is sent and what is kept are together what was meant, to the bit.

    Attributes:
        positions: ``sent`` with the values, as a bitmap or as numbers; or found by both sides from a ``seed`` of 8 bytes.
    """

    draws: ClassVar[bool] = True
    kind: Literal["random-k"] = "random-k"
    positions: Literal["sent", "seed"] = "sent"

    def bytes(self, parameters: int) -> float:
        seeded = self.positions == "seed" and not self.loses_nothing(parameters)
        return 4 * self.k(parameters) + _SEED_BYTES if seeded else super().bytes(parameters)

    def rule(self, parameters: int) -> tuple[Function, dict[str, Any]]:
        k = self.k(parameters)
        return drawn_alone, {"k": k, "scale": 1.0 if self.error_feedback else parameters / max(k, 1)}
