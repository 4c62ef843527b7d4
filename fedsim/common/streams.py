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
    """The random numbers of one run, each a function of the seed and of a name.

    A stream's name is a purpose (``world/...`` is the same for every strategy) and numbers, such as
    a device's. So draws depend on no order, and equal names give equal numbers.

    Args:
        seed: seed of the run, 0 or more.

    Example:
        >>> from fedsim.plugin import Streams
        >>> streams = Streams(seed=1)
        >>> number = streams.uniform("world/arrival", entity=3)
        >>> number == Streams(seed=1).uniform("world/arrival", entity=3)
        True
        >>> number == streams.uniform("world/arrival", entity=4)
        False
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def word(self, purpose: str, entity: Any = 0, count: Any = 0) -> Any:
        """Return 64 random bits, a function of the seed and the arguments.

        Args:
            purpose: name of the stream.
            entity: number of the device or another entity; an int, or uint64 [...].
            count: number of the draw; an int, or uint64 [...].

        Returns:
            An int, or uint64 [...] if an argument is an array.
        """
        z = _mix((_root(self.seed, purpose) + (entity + 1) * _ID_STEP) & _MASK)
        return _mix((z + (count + 1) * _GOLDEN) & _MASK)

    def uniform(self, purpose: str, entity: int = 0, count: int = 0) -> float:
        """Return a number between 0 and 1, never 0 and never 1, so that its logarithm exists.

        Args:
            purpose: name of the stream.
            entity: number of the device or another entity.
            count: number of the draw.
        """
        return ((self.word(purpose, entity, count) >> 11) + 0.5) * _UNIT  # type: ignore[no-any-return]

    def normal(self, purpose: str, entity: int = 0, count: int = 0) -> float:
        """Return a standard normal draw (Box-Muller on two words of the stream).

        Args:
            purpose: name of the stream.
            entity: number of the device or another entity.
            count: number of the draw.
        """
        radius = math.sqrt(-2.0 * math.log(self.uniform(purpose, entity, 2 * count)))
        return radius * math.cos(2.0 * math.pi * self.uniform(purpose, entity, 2 * count + 1))

    def uniforms(
        self, purpose: str, entities: NDArray[np.int64], count: int | NDArray[np.int64] = 0
    ) -> NDArray[np.float64]:
        """Return the numbers of ``uniform`` for many entities and counts, vectorised.

        Args:
            purpose: name of the stream.
            entities: int64 [n].
            count: number of the draw; an int, or int64 that broadcasts with ``entities``.

        Returns:
            float64, in the shape to which both broadcast.
        """
        with np.errstate(over="ignore"):
            words = self.word(
                purpose, entities.astype(np.uint64), np.atleast_1d(count).astype(np.uint64)
            )
        return ((words >> 11).astype(np.float64) + 0.5) * _UNIT  # type: ignore[no-any-return]

    def generator(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a numpy generator at the start of a stream, for an array of draws.

        A generator is never kept between two uses: equal arguments give equal draws.

        Args:
            purpose: name of the stream.
            ids: further numbers that name the stream, such as the round and the device.

        Example:
            >>> from fedsim.plugin import Streams
            >>> streams = Streams(seed=1)
            >>> order = streams.generator("world/example", 5).permutation(6)
            >>> order.tolist() == streams.generator("world/example", 5).permutation(6).tolist()
            True
            >>> sorted(order.tolist())
            [0, 1, 2, 3, 4, 5]
        """
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
