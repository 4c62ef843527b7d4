"""Detection of draws from the operating system's entropy, which no seed can repeat.

``numpy.random.default_rng()``, ``random.Random()`` without a seed, ``secrets``, ``uuid.uuid4`` and
``os.urandom`` all draw from this entropy. A repetition of a few steps finds such a draw only if the
drawn number changes a result. ``entropy_watched`` finds the draw itself, however rare its effect.
"""

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import ClassVar

from fedsim.learning.hidden_memory import is_of_user

# modules whose draws are attributed to their caller
_GENERATORS = ("numpy", "random", "secrets", "uuid")

_lock = threading.Lock()
_thread = threading.local()
_urandom = os.urandom
_seed = random.Random.seed


@contextmanager
def entropy_watched() -> Iterator[list[str]]:
    """Return a context that notes where a user's code draws from the operating system's entropy.

    Only the calling thread is watched. Draws by Python's library and by installed packages, such as
    the name of a temporary file, are not listed.

    Yields:
        The list of the draws so far, as files and lines such as ``nets.py:12``.
    """
    places: list[str] = []
    outer_places = getattr(_thread, "places", None)  # the list of a surrounding context
    _thread.places = places
    _patch_sources()
    try:
        yield places
    finally:
        _restore_sources()
        _thread.places = outer_places


def _patch_sources() -> None:
    """Replace the functions that draw entropy by watched ones, unless they are replaced already."""
    with _lock:
        _Patches.watches += 1
        if _Patches.watches > 1:
            return
        for owner, name, watched in _SOURCES:
            _Patches.originals.append(getattr(owner, name))
            setattr(owner, name, watched)


def _restore_sources() -> None:
    with _lock:
        _Patches.watches -= 1
        if _Patches.watches > 0:
            return
        for (owner, name, watched), original in zip(_SOURCES, _Patches.originals, strict=True):
            if vars(owner)[name] is watched:  # no other code has patched the source since
                setattr(owner, name, original)
        _Patches.originals.clear()


def _watched_urandom(size: int, /) -> bytes:
    _record(sys._getframe(1))
    return _urandom(size)


def _watched_seed(
    generator: random.Random,
    a: int | float | str | bytes | bytearray | None = None,
    version: int = 2,
) -> None:
    if a is None:
        _record(sys._getframe(1))
    _seed(generator, a, version)


_SOURCES = (
    (os, "urandom", _watched_urandom),
    (random, "_urandom", _watched_urandom),
    (random.Random, "seed", _watched_seed),
)


class _Patches:
    """State of the replaced functions that draw entropy, common to all threads.

    ``watches`` counts the open contexts ``entropy_watched``; the last one to end puts the original
    functions back. ``originals`` has these functions, in the order of ``_SOURCES``.
    """

    watches: ClassVar[int] = 0
    originals: ClassVar[list[object]] = []


def _record(frame: FrameType | None) -> None:
    """Add a draw from entropy to the thread's list, if the code that requested it is a user's.

    Args:
        frame: frame of the code that called the source of entropy.
    """
    places: list[str] | None = getattr(_thread, "places", None)
    while frame is not None and _module_of(frame).partition(".")[0] in _GENERATORS:
        frame = frame.f_back
    if places is None or frame is None or not is_of_user(_module_of(frame)):
        return
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    if place not in places:
        places.append(place)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
