"""Writers of the published formats of images, for tests of their readers."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ByteArray = NDArray[np.uint8]


def write_idx(path: Path, array: ByteArray) -> None:
    """Write an array as an IDX file, packed by gzip if the name ends in ``.gz``.

    Args:
        path: the file.
        array: the array, uint8 of any shape.
    """
    magic = bytes([0, 0, 8, array.ndim])
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    content = magic + shape + np.ascontiguousarray(array).tobytes()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


def write_batch(path: Path, images: ByteArray, labels: ByteArray) -> None:
    """Write images, uint8 [n, 3, 32, 32], and labels, uint8 [n], as a binary batch of CIFAR-10."""
    records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    path.write_bytes(records.tobytes())
