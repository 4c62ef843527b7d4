"""Arrays cut into buckets that share a scale, and small whole numbers packed into bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def count_of(size: int, bucket: int | None) -> int:
    """Number of buckets that ``size`` numbers fill."""
    return -(-size // (bucket or max(size, 1)))


def in_buckets(array: NDArray[Any], bucket: int | None) -> NDArray[np.float64]:
    """The array as rows of ``bucket`` numbers (None: one row), the last one filled with 0; float64 [buckets, bucket]."""
    rows = np.zeros((count_of(len(array), bucket), max(1, min(bucket or len(array), len(array)))))
    rows.reshape(-1)[: len(array)] = array
    return rows


def joined(rows: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The array [size] of which ``in_buckets`` has made rows."""
    return rows.reshape(-1)[:size]


def pack(numbers: NDArray[Any], bits: int) -> bytes:
    """Whole numbers from 0 to 2^bits - 1, so many bits each, the last byte filled with 0."""
    shifts = np.arange(bits - 1, -1, -1, dtype=np.uint32)
    return np.packbits((numbers.astype(np.uint32)[:, None] >> shifts).astype(np.uint8) & 1).tobytes()


def unpack(written: bytes, size: int, bits: int) -> NDArray[np.int64]:
    """The numbers [size] that ``pack`` has written."""
    found = np.unpackbits(np.frombuffer(written, np.uint8), count=size * bits).reshape(size, bits)
    numbers: NDArray[np.int64] = found @ (1 << np.arange(bits - 1, -1, -1, dtype=np.int64))
    return numbers
