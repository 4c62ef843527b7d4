"""Computed models that a run still names, beyond the room for them in memory.

They lie in a file without a name in the folder for temporary files (``TMPDIR``). The file ends with
the process, however the process ends.
"""

import os
import tempfile
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]

ROOM = 1 << 28
"""Memory (bytes) of models that are computed in waves, and of models that lie in ``Scratch``."""

_SMALL = 1 << 16  # bytes of an array that stays in memory in any case


class Written:
    """Weights in a scratch file, float32 [d].

    Args:
        scratch: the file.
        place: position of the first byte.
        length: number of weights, d.
    """

    __slots__ = ("_length", "_place", "_scratch")

    def __init__(self, scratch: "Scratch", place: int, length: int) -> None:
        self._scratch = scratch
        self._place = place
        self._length = length

    def read(self) -> Weights:
        """The weights, in new memory, read-only."""
        return self._scratch.read(self._place, self._length)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (self.read(),)

    def __del__(self) -> None:
        self._scratch.release(self._place, self._length)


class Scratch:
    """Holds models: in memory as long as there is room, then on disk.

    Args:
        room: memory for models (bytes).

    Attributes:
        written_bytes: bytes written so far.
    """

    def __init__(self, room: float) -> None:
        self.written_bytes = 0
        self._room = room
        self._used = 0
        self._in_memory: dict[int, weakref.ref[Any]] = {}  # by the id of a ref
        self._file: list[int] = []  # its descriptor, once it is open
        weakref.finalize(self, _close, self._file).atexit = False
        self._end = 0
        self._free: dict[int, list[int]] = {}  # places of released weights, by their number
        self._live = 0

    def hold(self, ref: Any) -> None:
        """Hold a computed model, from now on as ``ref.held``: an array, or ``Written``.

        Args:
            ref: the model, a ``Ref``. Its room in memory is free again when the ref is.

        Raises:
            OSError: the disk is full.
        """
        weights = ref.held
        if not isinstance(weights, np.ndarray) or weights.nbytes <= _SMALL:
            return
        key = id(ref)
        if key in self._in_memory:
            return
        if self._used + weights.nbytes <= self._room:
            self._used += weights.nbytes
            forget = partial(self._forget, key, weights.nbytes)
            self._in_memory[key] = weakref.ref(ref, forget)
        else:
            ref.held = self._write(weights)

    def _forget(self, key: int, size: int, _: object) -> None:
        del self._in_memory[key]
        self._used -= size

    def _write(self, weights: Weights) -> Written:
        length = len(weights)
        places = self._free.get(length)
        if places:
            place = places.pop()
        else:
            place = self._end
            self._end += weights.nbytes
        self._live += 1
        written = Written(self, place, length)  # which gives the place back if writing fails
        content = np.ascontiguousarray(weights).data.cast("B")
        try:
            while content:
                size = os.pwrite(self._descriptor(), content, place)
                content = content[size:]
                place += size
        except OSError as error:
            folder = Path(tempfile.gettempdir())
            raise OSError(error.errno, error.strerror, str(folder / "scratch")) from error
        self.written_bytes += weights.nbytes
        return written

    def _descriptor(self) -> int:
        if not self._file:
            descriptor, name = tempfile.mkstemp(prefix="fedsim-")
            Path(name).unlink()
            self._file.append(descriptor)
        return self._file[0]

    def read(self, place: int, length: int) -> Weights:
        """Weights from the file.

        Args:
            place: position of the first byte.
            length: number of weights.
        """
        weights = np.empty(length, dtype=np.float32)
        content = weights.data.cast("B")
        while content:
            size = os.preadv(self._descriptor(), [content], place)
            if not size:
                raise OSError(f"the scratch file in {tempfile.gettempdir()!r} was cut off")
            content = content[size:]
            place += size
        weights.setflags(write=False)
        return weights

    def release(self, place: int, length: int) -> None:
        """Let other weights use a place of the file; without any in use the file becomes empty."""
        self._live -= 1
        if self._live:
            self._free.setdefault(length, []).append(place)
            return
        self._free.clear()
        self._end = 0
        if self._file:
            os.ftruncate(self._file[0], 0)


def _close(file: list[int]) -> None:
    while file:
        os.close(file.pop())
