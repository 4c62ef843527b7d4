"""Keyed randomness: every draw comes from a stream named by (seed, purpose, ids).

No draw depends on another. Scalars come from a counter hash (a microsecond), arrays from numpy's
Philox (25 to make). Purposes begin with ``"world/"`` or ``"strategy/"``: one seed gives every
strategy the same world.
"""

import hashlib
import math
import random
import sys
from functools import lru_cache
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_ID_STEP = 0xD1342543DE82EF95  # an odd multiplier, so that consecutive ids land far apart
_UNIT = 2.0**-53

shared_generators = RLock()
"""Held while fedsim sets a generator of the process to a state of its own."""


def generator_states() -> dict[str, Any]:
    """States of the process's own generators by name, as values that compare; torch's if loaded."""
    with shared_generators:
        kind, words, *counts = np.random.get_state()  # noqa: NPY002
        states: dict[str, Any] = {
            "Python's random": random.getstate(),
            "numpy.random": (kind, np.asarray(words).tobytes(), *counts),
        }
        if (torch := sys.modules.get("torch")) is not None:
            states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _mix(z: Any) -> Any:
    """The finaliser of splitmix64: a bijection of 64-bit words (int, or uint64 arrays), each bit
    of which moves all others.
    """
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=4096)
def _root(seed: int, purpose: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class Streams:
    """All random streams of one run, of a ``seed`` of 0 or more."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def word(self, purpose: str, entity: Any = 0, count: Any = 0) -> Any:
        """64 random bits, the same for the same (seed, purpose, entity, count): an int, or
        uint64 for arrays of uint64.
        """
        z = _mix((_root(self.seed, purpose) + (entity + 1) * _ID_STEP) & _MASK)
        return _mix((z + (count + 1) * _GOLDEN) & _MASK)

    def uniform(self, purpose: str, entity: int = 0, count: int = 0) -> float:
        """A number in (0, 1): never 0 and never 1, so that its logarithm exists."""
        return ((self.word(purpose, entity, count) >> 11) + 0.5) * _UNIT  # type: ignore[no-any-return]

    def normal(self, purpose: str, entity: int = 0, count: int = 0) -> float:
        """A standard normal draw (Box-Muller on two words of the stream)."""
        radius = math.sqrt(-2.0 * math.log(self.uniform(purpose, entity, 2 * count)))
        return radius * math.cos(2.0 * math.pi * self.uniform(purpose, entity, 2 * count + 1))

    def uniforms(
        self, purpose: str, entities: NDArray[np.int64], count: int | NDArray[np.int64] = 0
    ) -> NDArray[np.float64]:
        """``uniform`` for many entities and counts at once: the same numbers, vectorised.

        Shape as both, broadcast.
        """
        with np.errstate(over="ignore"):
            words = self.word(
                purpose, entities.astype(np.uint64), np.atleast_1d(count).astype(np.uint64)
            )
        return ((words >> 11).astype(np.float64) + 0.5) * _UNIT  # type: ignore[no-any-return]

    def generator(self, purpose: str, *ids: int) -> np.random.Generator:
        """A numpy generator of its own for an array of draws; never kept between two uses."""
        entropy = [_root(self.seed, purpose), *(i + 1 for i in ids)]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


class Shuffle:
    """A random permutation of 0 to n - 1 (Fisher and Yates's), drawn number by number;
    ``remaining``, at first n, are left.
    """

    def __init__(self, generator: np.random.Generator, remaining: int) -> None:
        self.remaining = remaining
        self._generator = generator
        self._moved = dict[int, int]()

    def draw(self, count: int) -> list[int]:
        """The next ``count`` numbers, or all that remain."""
        moved = self._moved
        remaining = self.remaining
        numbers = []
        for draw in self._generator.random(min(remaining, count)).tolist():
            position = int(draw * remaining)
            numbers.append(moved.get(position, position))
            remaining -= 1
            moved[position] = moved.pop(remaining, remaining)
        self.remaining = remaining
        return numbers
