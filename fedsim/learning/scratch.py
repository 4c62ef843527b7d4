"""Storage of computed models in memory up to a limit, and in a scratch file beyond it.

The file is in the folder for temporary files (``TMPDIR``). It has no name, so the operating system
deletes it at the end of the process, even after a crash.
"""

import os
import tempfile
import weakref
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.common.tensor_files import StoredTensor, read_array

Weights = NDArray[np.float32]

MEMORY_BYTES = 1 << 28
"""Default of ``training.memory`` (bytes).

It limits the models that are computed together, and the models that ``Scratch`` has in memory.
"""

SMALL = 1 << 16
"""Size up to which a model stays in memory in any case (bytes)."""

_FLOAT32 = np.dtype(np.float32)


class ComputedWeights(StoredTensor):
    """Base of a model's computed weights, float32 [d], that are not an array of the host.

    They lie on a GPU, for example. ``read``, which subclasses define, copies them into an array.

    Args:
        length: count of weights, d.
        finite: whether all weights are finite numbers.

    Attributes:
        finite: as the argument.
    """

    __slots__ = ("finite",)

    def __init__(self, length: int, finite: bool) -> None:
        super().__init__(_FLOAT32, (length,))
        self.finite = finite


class Written(StoredTensor):
    """Weights of a model, float32 [d], in the scratch file instead of in memory.

    The weights' bytes in the file become free when the object is deleted.

    Args:
        scratch: the storage that has the file.
        offset: offset of the first byte in the file.
        length: count of weights, d.
    """

    __slots__ = ("_offset", "_scratch")

    def __init__(self, scratch: "Scratch", offset: int, length: int) -> None:
        super().__init__(_FLOAT32, (length,))
        self._scratch = scratch
        self._offset = offset

    def read(self) -> Weights:
        return self._scratch.read(self._offset, self.shape[0])

    def __del__(self) -> None:
        self._scratch.release(self._offset, self.shape[0])


class _ModelInMemory(NamedTuple):
    """Model whose weights are in memory.

    Attributes:
        reference: weak reference to the model, a ``Ref``.
        size: size of the weights (bytes).
    """

    reference: "weakref.ref[Any]"
    size: int


class Scratch:
    """Storage of computed models: in memory up to a limit; beyond it the oldest ones are in a file.

    Args:
        memory_bytes: memory for models.

    Attributes:
        written_bytes: bytes written to the file so far.
        peak_bytes: greatest size of the file so far (bytes).
        most_used_bytes: greatest size of the models in memory so far (bytes).
        most_held_bytes: greatest size of the models in memory and of the file so far (bytes).
    """

    def __init__(self, memory_bytes: float) -> None:
        # statistics: written to the file; greatest size of file, of memory, and of both together
        self.written_bytes = 0
        self.peak_bytes = 0
        self.most_used_bytes = 0
        self.most_held_bytes = 0
        self._memory_bytes = memory_bytes  # limit of ``_used``
        self._used = 0  # size of the models in memory (bytes)
        self._in_memory: dict[int, _ModelInMemory] = {}  # id(ref) -> model, in the order of storage
        self._substitutes: dict[int, StoredTensor] = {}  # id(ref) -> its substitute
        self._file: list[int] = []  # file descriptor; empty until the file is open
        # does not run at the exit of Python, at which the system closes the file anyway
        weakref.finalize(self, _close, self._file).atexit = False
        self._end = 0  # size of the file (bytes)
        self._free_offsets: dict[int, list[int]] = {}  # count of weights -> free offsets
        self._models_in_file = 0

    def hold(self, ref: Any, substitute: StoredTensor | None = None) -> None:
        """Store the weights of a computed model in memory, and free memory if it is short.

        If the limit of memory is exceeded, arrays are freed until it is not: first the arrays of
        models with a substitute, which takes their place, then all others, whose weights move to
        the file. In both cases the models that were stored first are freed first, because devices
        take turns, and such models are probably needed last. The attribute ``held`` of a freed
        model becomes its substitute, or a ``Written`` for weights in the file. Models of at most
        64 KiB always stay in memory.

        Args:
            ref: the model, a ``Ref``. Its memory counts as free when the ref is garbage collected.
            substitute: an object that computes the same weights from other models at each use,
                such as ``Derived``; None if there is none.

        Raises:
            OSError: the disk is full.
        """
        weights = ref.held
        if not isinstance(weights, np.ndarray) or weights.nbytes <= SMALL:
            return  # not in memory, or so small that they always stay
        key = id(ref)
        if key in self._in_memory:
            return
        self._used += weights.nbytes
        reference = weakref.ref(ref, partial(self._forget, key))  # called when ``ref`` is deleted
        self._in_memory[key] = _ModelInMemory(reference, weights.nbytes)
        if substitute is not None:
            self._substitutes[key] = substitute
        while self._used > self._memory_bytes:
            self._free_one()
        self.most_used_bytes = max(self.most_used_bytes, self._used)
        self.most_held_bytes = max(self.most_held_bytes, self._used + self._end)

    def hold_restored(self, refs: "Iterable[Any]") -> None:
        """Read models from the file of a checkpoint into memory, as many as it has room for.

        The newest models are read. The others remain in the file.

        Args:
            refs: the models, each a ``Ref``.
        """
        stored = [ref for ref in refs if isinstance(ref.held, StoredTensor)]
        free_bytes = self._memory_bytes - self._used
        newest = []
        for ref in sorted(stored, key=lambda ref: -ref.serial):
            free_bytes -= ref.held.nbytes
            if free_bytes < 0:
                break
            newest.append(ref)
        weights_of: dict[StoredTensor, Weights] = {}
        for ref in reversed(newest):  # oldest first, as ``hold`` moves models in this order
            tensor = ref.held
            if tensor not in weights_of:
                weights_of[tensor] = tensor.read()
                weights_of[tensor].setflags(write=False)
            ref.held = weights_of[tensor]
            self.hold(ref)

    def _forget(self, key: int, _: object = None) -> None:
        """Count the memory of a model as free.

        Args:
            key: ``id()`` of the model.
        """
        self._used -= self._in_memory.pop(key).size
        self._substitutes.pop(key, None)

    def _free_one(self) -> None:
        """Free the memory of one model: the oldest one with a substitute, or else the oldest one.

        A substitute computes the weights from other models at each use (``hold``).
        """
        self._free(next(iter(self._substitutes or self._in_memory)))

    def free_substituted(self) -> None:
        """Free the memory of all models whose weights can be computed from other models.

        These are the models that were stored by ``hold`` with a ``substitute``. The substitute
        takes the place of the weights, and computes them at each use.
        """
        for key in list(self._substitutes):
            self._free(key)

    def _free(self, key: int) -> None:
        """Free the memory of a model; its substitute replaces the weights, or they go to the file.

        Args:
            key: ``id()`` of the model.
        """
        ref = self._in_memory[key].reference()
        if ref is not None and isinstance(ref.held, np.ndarray):
            ref.held = self._substitutes.get(key) or self._write(ref.held)
        self._forget(key)

    def _write(self, weights: Weights) -> Written:
        length = len(weights)
        offset = self._allocate(length, weights.nbytes)
        written = Written(self, offset, length)  # its deletion frees the space if writing fails
        try:
            self._put(weights, offset)
        except OSError as error:
            folder = Path(tempfile.gettempdir())
            raise OSError(error.errno, error.strerror, str(folder / "scratch")) from error
        self.written_bytes += weights.nbytes
        return written

    def _allocate(self, length: int, size: int) -> int:
        """Reserve space in the file for the weights of a model, and return its offset.

        Args:
            length: count of weights.
            size: size of the weights (bytes).
        """
        self._models_in_file += 1
        free_offsets = self._free_offsets.get(length)
        if free_offsets:
            return free_offsets.pop()
        offset = self._end
        self._end += size
        self.peak_bytes = max(self.peak_bytes, self._end)
        return offset

    def _put(self, weights: Weights, offset: int) -> None:
        """Write weights to the file, from ``offset`` on."""
        content = np.ascontiguousarray(weights).data.cast("B")
        while content:
            size = os.pwrite(self._descriptor(), content, offset)
            content = content[size:]
            offset += size

    def _descriptor(self) -> int:
        if not self._file:
            descriptor, name = tempfile.mkstemp(prefix="fedsim-")
            Path(name).unlink()
            self._file.append(descriptor)
        return self._file[0]

    def read(self, offset: int, length: int) -> Weights:
        """Read weights from the file into a new array, float32 [length].

        Args:
            offset: offset of the first byte in the file.
            length: count of weights.

        Raises:
            OSError: the file is shorter than expected.
        """
        return read_array(self._descriptor(), offset, (length,), _FLOAT32)

    def release(self, offset: int, length: int) -> None:
        """Free the space of a model's weights in the file.

        The file is emptied if no other weights are in it.

        Args:
            offset: offset of the first byte in the file.
            length: count of weights.
        """
        self._models_in_file -= 1
        if self._models_in_file:
            self._free_offsets.setdefault(length, []).append(offset)
            return
        self._free_offsets.clear()
        self._end = 0
        if self._file:
            os.ftruncate(self._file[0], 0)


def _close(file: list[int]) -> None:
    while file:
        os.close(file.pop())
