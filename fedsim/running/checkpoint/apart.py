"""Large arrays of checkpoints in files of their own, which later checkpoints share by hard links.

The weights of a computed model never change. A model that is in two checkpoints therefore lies on
the disk once, and a model that was on disk for lack of memory is read from the checkpoint later.
"""

import os
import weakref
from pathlib import Path
from typing import TypeGuard

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.files import sync
from fedsim.common.tensor_files import AnyTensor, StoredTensor, open_tensors, write_tensors
from fedsim.learning.refs import Ref
from fedsim.learning.scratch import Written
from fedsim.running.checkpoint.codec import Encoder

LEAST_BYTES = 1 << 20
"""Least size (bytes) of an array that has a separate file; each file takes time to sync."""

_NAME = "weights"  # name of the tensor in a file


class LinkedTensor(StoredTensor):
    """Large array of a checkpoint in a file of its own, which checkpoints share by hard links.

    Args:
        path: the array's file in the newest checkpoint that has the array.
        dtype: type of the elements.
        shape: the shape.
        sha256: SHA-256 of the file, as hexadecimal digits.

    Attributes:
        path: the file from which the array is read now; ``move`` changes it.
        sha256: the argument of this name.
    """

    __slots__ = ("_open", "path", "sha256")

    def __init__(
        self, path: Path, dtype: "np.dtype[np.generic]", shape: tuple[int, ...], sha256: str
    ) -> None:
        super().__init__(dtype, shape)
        self.path = path
        self.sha256 = sha256
        self._open: StoredTensor | None = None

    @classmethod
    def of_file(cls, path: Path) -> "LinkedTensor":
        """Make a ``LinkedTensor`` of an array's file, which is read once to compute its SHA-256.

        Args:
            path: the file.

        Raises:
            OSError, ValueError, KeyError: the file cannot be read, or is no file of an array.
        """
        content = open_tensors(path, hashed=True)
        tensor = content.tensors[_NAME]
        assert content.sha256 is not None
        return cls(path, tensor.dtype, tensor.shape, content.sha256)

    def read(self) -> AnyArray:
        tensor = self._open or open_tensors(self.path).tensors[_NAME]
        return tensor.read()

    def move(self, path: Path) -> None:
        """Read the array from another hard link to its file from now on.

        Args:
            path: path of the hard link.
        """
        self.path = path
        self._open = None

    def keep_open(self) -> None:
        """Open the file, so that the array can be read after the last link is removed."""
        self._open = open_tensors(self.path).tensors[_NAME]


def is_apart(tensor: AnyTensor) -> TypeGuard[AnyTensor]:
    """Return whether an array is stored in a separate file, which later checkpoints can share.

    True for large arrays that never change.
    """
    if tensor.nbytes < LEAST_BYTES:
        return False
    return isinstance(tensor, StoredTensor) or not tensor.flags.writeable


class LinkedTensors:
    """Register of the large arrays of a run's checkpoints, each of which has a separate file.

    A later checkpoint that has one of these arrays gets a hard link to the file.

    Attributes:
        newest: ``id()`` of each array that ``add_written`` has registered for the checkpoint that
            is being written -> the array's file. ``replace_written`` empties the dict.
    """

    def __init__(self) -> None:
        self.newest: dict[int, LinkedTensor] = {}
        self._of_arrays: dict[int, tuple[weakref.ref[AnyTensor], LinkedTensor]] = {}
        self._all: weakref.WeakSet[LinkedTensor] = weakref.WeakSet()

    def add(self, tensor: LinkedTensor) -> None:
        """Register an array of the checkpoint from which a run is resumed.

        Later checkpoints link to its file. Before that checkpoint is removed, the file is opened,
        so that the array stays readable.
        """
        self._all.add(tensor)

    def find(self, tensor: AnyTensor) -> LinkedTensor | None:
        """Return the file of an array in an earlier checkpoint; None if no checkpoint has it."""
        if isinstance(tensor, LinkedTensor):
            return tensor
        reference, linked = self._of_arrays.get(id(tensor), (None, None))
        # another array, which no longer exists, may have had this ``id()``
        if reference is None or reference() is not tensor:
            return None
        return linked

    def write(self, path: Path, tensor: AnyTensor) -> str:
        """Write an array to a file, or a hard link if an earlier checkpoint has the array.

        Args:
            path: path of the new file or link.
            tensor: the array.

        Returns:
            SHA-256 of the file, as hexadecimal digits.

        Raises:
            OSError: the disk is full, for example.
        """
        linked = self.find(tensor)
        if linked is not None:
            try:
                os.link(linked.path, path)
            except OSError:  # the file system lacks hard links, or the file was removed
                tensor = linked  # elements are read from the earlier file, and written anew
            else:
                return linked.sha256
        sha256 = write_tensors(path, {_NAME: tensor})
        sync(path)
        return sha256

    def add_written(self, path: Path, tensor: AnyTensor, sha256: str) -> None:
        """Register an array that was just written to a new checkpoint.

        Args:
            path: the array's file in the checkpoint.
            tensor: the array.
            sha256: SHA-256 of the file, as hexadecimal digits.
        """
        linked = self.find(tensor)
        if linked is None:
            linked = LinkedTensor(path, tensor.dtype, tensor.shape, sha256)
            self._all.add(linked)
            self._add_array(tensor, linked)
        linked.move(path)  # the file in an earlier checkpoint is removed with that checkpoint
        self.newest[id(tensor)] = linked  # stored for ``replace_written``

    def _add_array(self, tensor: AnyTensor, linked: LinkedTensor) -> None:
        """Register the file of an array as long as the array is in memory."""
        key = id(tensor)
        reference = weakref.ref(tensor, lambda _: self._of_arrays.pop(key, None))
        self._of_arrays[key] = reference, linked

    def replace_written(self, encoder: Encoder) -> None:
        """Let models in the scratch file read their weights from the new checkpoint from now on.

        The scratch file stores weights that do not fit into memory. Its space for these models
        becomes free.

        Args:
            encoder: encoder of the new checkpoint; its ``objects`` contain the models.
        """
        for model in encoder.objects:
            if not isinstance(model, Ref):
                continue
            weights = model.held
            if isinstance(weights, Written):  # the weights are in the scratch file
                model.held = self.newest.get(id(weights), weights)
        self.newest.clear()

    def keep_readable(self, folder: Path) -> None:
        """Open the files of arrays that are in a checkpoint which is about to be removed.

        An open file can be read after its last name is removed.

        Args:
            folder: folder of the checkpoint, which the caller removes afterwards.
        """
        for tensor in list(self._all):
            if folder in tensor.path.parents:
                tensor.keep_open()
