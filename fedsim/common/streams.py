"""Keyed random numbers: the seed, a purpose (text) and IDs determine every draw.

No draw depends on another draw. Scalars come from a counter hash (1 us each), arrays from numpy's
Philox (25 us for a generator). The first part of a purpose, such as ``"world/"`` or
``"strategy/"``, separates the draws of the world from all other draws, so that with one seed all
strategies get the same world.
"""

import hashlib
import math
import random
import sys
from functools import lru_cache
from threading import RLock
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arguments import is_text
from fedsim.common.errors import SimulationError, show_value

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: the increment of splitmix64
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_ID_STEP = 0xD1342543DE82EF95  # odd factor of IDs, so that consecutive IDs give distant numbers
_UNIT = 2.0**-53

shared_generators = RLock()
"""Lock that is held while fedsim sets the state of a generator that the process shares."""


def generator_states() -> dict[str, object]:
    """Return the states of the process's global random generators (Python, numpy, torch).

    If the states differ later, code has drawn from a generator in between.

    Returns:
        Name -> state, as a value that can be compared. ``torch`` is present if torch is loaded.
    """
    with shared_generators:
        kind, words, *counts = np.random.get_state()  # noqa: NPY002
        # bytes instead of an array, whose ``==`` gives an array
        numpy_state = (kind, np.asarray(words).tobytes(), *counts)
        states: dict[str, object] = {
            "Python's random": random.getstate(),
            "numpy.random": numpy_state,
        }
        torch = sys.modules.get("torch")
        if torch is not None:
            states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _mix(z: int) -> int:
    """Return a 64-bit number whose bits depend on all bits of ``z`` (finaliser of splitmix64).

    Different numbers give different results.
    """
    z = ((z ^ (z >> 30)) * _MIX1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX2) & _MASK
    return z ^ (z >> 31)


def _hash(root: int, entity: int, count: int) -> int:
    """Return 64 pseudo-random bits as an integer; equal arguments give equal bits.

    Args:
        root: number of the stream.
        entity: number of the entity, such as a device; an int, or uint64 array.
        count: number of the draw; an int, or uint64 array.

    Returns:
        An int, or an array if an argument is an array.
    """
    entity_bits = _mix((root + (entity + 1) * _ID_STEP) & _MASK)
    return _mix((entity_bits + (count + 1) * _GOLDEN) & _MASK)


def _hashes(
    root: int, entities: NDArray[np.uint64], counts: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return ``_hash`` of each pair of an entity and a count, whose arrays are broadcast.

    Products of uint64 wrap around at 2^64, as ``_hash`` cuts off the products of ints.
    """
    with np.errstate(over="ignore"):
        # ``_hash`` is annotated for ints, and arrays have the operators of an int
        words = _hash(root, cast(int, entities), cast(int, counts))
    return cast(NDArray[np.uint64], words)


@lru_cache(maxsize=4096)
def _root(seed: int, purpose: str) -> int:
    if not is_text(purpose):
        raise _name_error((purpose,), _NAMES)
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _to_uint64(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Convert whole numbers to uint64; -1 becomes 2^64 - 1.

    Raises:
        TypeError: an entry is no whole number.
    """
    if numbers.dtype.kind not in "biu":
        raise TypeError
    return numbers.astype(np.uint64)


_NAMES = "a text, and whole numbers"
_MISTAKES = (TypeError, ValueError, OverflowError, AttributeError)


def _name_error(name: tuple[object, ...], allowed: str) -> SimulationError:
    """Return the error for a wrong name of a random draw.

    Args:
        name: the purpose and the numbers.
        allowed: the allowed names, in words.
    """
    return SimulationError(f"a random draw is named {show_value(name)}; allowed are {allowed}")


class Streams:
    """Random numbers of a run, determined by the run's seed and the name of each draw.

    The name of a draw consists of a purpose, such as ``world/arrival``, and of integers, such as
    the index of a device. Equal names give equal draws, in whatever order they are drawn. Purposes
    that begin with ``world/`` are for draws that do not depend on the strategy, so that with one
    seed every strategy meets the same world.

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
        if not isinstance(seed, int | np.integer):
            raise SimulationError(f"the seed is {show_value(seed)}; allowed is a whole number")
        self.seed = seed

    def word(self, purpose: str, entity: int = 0, count: int = 0) -> int:
        """Return 64 random bits as an integer, which the seed and the arguments determine.

        Args:
            purpose: name of the stream.
            entity: index of the device or another entity; an int, or uint64 [...].
            count: index of the draw in the stream; an int, or uint64 [...].

        Returns:
            An int, or uint64 [...] if an argument is an array.

        Raises:
            SimulationError: the purpose is no text, or a number is not whole.
        """
        try:
            return _hash(_root(self.seed, purpose), entity, count)
        except _MISTAKES:
            raise _name_error((purpose, entity, count), _NAMES) from None

    def uniform(self, purpose: str, entity: int = 0, count: int = 0) -> float:
        """Return a uniform draw from the open interval 0 to 1.

        Args:
            purpose: name of the stream.
            entity: index of the device or another entity.
            count: index of the draw in the stream.

        Raises:
            SimulationError: the purpose is no text, or a number is not whole.
        """
        try:
            # as in ``uniforms``: the upper 53 of 64 bits; + 0.5 excludes 0 and 1
            return ((_hash(_root(self.seed, purpose), entity, count) >> 11) + 0.5) * _UNIT
        except _MISTAKES:
            raise _name_error((purpose, entity, count), _NAMES) from None

    def normal(self, purpose: str, entity: int = 0, count: int = 0) -> float:
        """Return a standard normal draw (Box-Muller on two words of the stream).

        Args:
            purpose: name of the stream.
            entity: index of the device or another entity.
            count: index of the draw in the stream.

        Raises:
            SimulationError: the purpose is no text, or a number is not whole.
        """
        try:
            # each normal draw needs two words; + 0 raises an error if ``count`` is a text
            first = 2 * count + 0
            radius = math.sqrt(-2.0 * math.log(self.uniform(purpose, entity, first)))
            angle = 2.0 * math.pi * self.uniform(purpose, entity, first + 1)
            return radius * math.cos(angle)
        except (TypeError, SimulationError):
            raise _name_error((purpose, entity, count), _NAMES) from None

    def uniforms(
        self, purpose: str, entities: NDArray[np.int64], count: int | NDArray[np.int64] = 0
    ) -> NDArray[np.float64]:
        """Return uniform draws for many entities, equal to the draws of ``uniform``.

        Args:
            purpose: name of the stream.
            entities: indices of devices or other entities, int64 [n].
            count: index of the draw; an int, or int64 that broadcasts with ``entities``.

        Returns:
            Draws, float64 in the shape to which ``entities`` and ``count`` broadcast.

        Raises:
            SimulationError: the purpose is no text, or numbers are not whole.
        """
        # always an array, as a product of Python ints would not wrap around at 2^64
        counts = np.atleast_1d(count)
        try:
            words = _hashes(_root(self.seed, purpose), _to_uint64(entities), _to_uint64(counts))
        except _MISTAKES:
            allowed = (
                "a text, an array of whole numbers, and a whole number or an array of its shape"
            )
            raise _name_error((purpose, entities, count), allowed) from None
        # the upper 53 of 64 bits, as a float64 holds 53 bits exactly; + 0.5 excludes 0 and 1
        mantissas = (words >> 11).astype(np.float64)
        uniforms: NDArray[np.float64] = (mantissas + 0.5) * _UNIT
        return uniforms

    def generator(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a numpy generator at the start of a stream, for an array of draws.

        Each call returns a new generator: equal arguments give equal draws.

        Args:
            purpose: name of the stream.
            ids: integers that name the stream too, such as the indices of round and device.

        Raises:
            SimulationError: the purpose is no text, or an ID is no whole number of -1 or more.

        Example:
            >>> from fedsim.plugin import Streams
            >>> streams = Streams(seed=1)
            >>> order = streams.generator("world/example", 5).permutation(6)
            >>> order.tolist() == streams.generator("world/example", 5).permutation(6).tolist()
            True
            >>> sorted(order.tolist())
            [0, 1, 2, 3, 4, 5]
        """
        try:
            # + 1, because an ID may be -1, and numpy's entropy must not be negative
            entropy = [_root(self.seed, purpose), *(number + 1 for number in ids)]
            return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
        except (TypeError, ValueError, SimulationError):
            raise SimulationError(
                f"a random generator is named {show_value((purpose, *ids))}; allowed are a text, "
                "and whole numbers of -1 or more"
            ) from None


class Shuffle:
    """A random permutation of 0 to n - 1 that is drawn number by number, as far as it is needed.

    Args:
        generator: the source of random numbers.
        remaining: the count n of numbers in the permutation.

    Attributes:
        remaining: count of integers that are not drawn yet.
    """

    def __init__(self, generator: np.random.Generator, remaining: int) -> None:
        self.remaining = remaining
        self._generator = generator
        # position -> number at it, only for positions where the two differ
        self._number_at: dict[int, int] = {}

    def draw(self, count: int) -> list[int]:
        """Draw the next integers of the permutation.

        Args:
            count: count of integers to draw. If fewer remain, all of these are drawn.
        """
        number_at = self._number_at
        remaining = self.remaining
        numbers = []
        for variate in self._generator.random(min(remaining, count)).tolist():
            position = int(variate * remaining)
            numbers.append(number_at.get(position, position))
            remaining -= 1
            # Fisher-Yates: the last remaining number moves to the position that was drawn
            number_at[position] = number_at.pop(remaining, remaining)
        self.remaining = remaining
        return numbers
