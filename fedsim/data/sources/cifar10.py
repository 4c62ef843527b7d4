"""CIFAR-10 in its binary version: rows of one label byte and 3,072 pixel bytes."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.data.dataset import Raw
from fedsim.data.sources.base import Source, checked_labels, find_files
from fedsim.data.sources.idx import write_whole
from fedsim.errors import DataError

FOLDERS = ("cifar10", "cifar-10-batches-bin")
FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32


class Cifar10(Source):
    """50,000 + 10,000 colour images of 32x32 pixels, from the binary batches in ``cifar10/``."""

    kind: Literal["cifar10"] = "cifar10"

    def load(self, root: Path | None) -> Raw:
        """The images as published."""
        batches = [read_batch(path) for path in find_files("cifar10", root, FOLDERS, FILES, packed=False)]
        x_train, y_train = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        return Raw("cifar10", x_train, y_train, *batches[-1], classes=10)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        """Three channels of 32x32 pixels; 10 classes."""
        return _SHAPE, 10


def read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images uint8 [n, 3, 32, 32] and labels int64 [n] of one batch.

    Raises:
        DataError: the file does not consist of whole records, or has a label above 9.
    """
    size = path.stat().st_size
    if size == 0 or size % _RECORD:
        whole = max(1, -(-size // _RECORD))
        raise DataError(
            f"'{path}' is truncated: {whole} records of {_RECORD} bytes are {whole * _RECORD} bytes, {size} are there"
        )
    rows = np.fromfile(path, dtype=np.uint8).reshape(-1, _RECORD)
    return rows[:, 1:].reshape(-1, *_SHAPE), checked_labels(path, rows[:, 0], 10)


def write_batch(path: Path, x: NDArray[np.uint8], y: NDArray[np.uint8]) -> None:
    """Write images [n, 3, 32, 32] and labels [n] as one batch; beside it first, then renamed."""
    rows = np.concatenate([y[:, None], x.reshape(len(x), -1)], axis=1)
    write_whole(path, rows.tobytes())
