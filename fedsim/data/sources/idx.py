"""The IDX format of MNIST and its kin: read with every length checked, and written.

Layout (http://yann.lecun.com/exdb/mnist/): two zero bytes, the type (8 = unsigned byte), the number of dimensions, each
dimension as a big-endian 32-bit integer, then the values, last dimension fastest.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedsim.durable import replacing
from fedsim.errors import DataError
from fedsim.files import regular

_UNSIGNED_BYTE = 8
_CHUNK = 1 << 20


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes, plain or gzip.

    Raises:
        DataError: it is no such file, has another number of dimensions, or is shorter or longer than its header says.
    """
    try:
        with regular(path).open("rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            with gzip.GzipFile(fileobj=plain) if packed else plain as stream:
                return _parse(path, stream, dimensions)
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"'{path}' is a damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}") from None


def _parse(path: Path, stream: IO[bytes] | gzip.GzipFile, dimensions: int) -> NDArray[np.uint8]:
    header = _read(stream, 4 + 4 * dimensions)
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if header[:4] != magic[: len(header[:4])]:
        raise DataError(
            f"'{path}' is no IDX file of {dimensions} dimensions: it begins with {header[:4].hex()}, not {magic.hex()}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"'{path}' is truncated: the header takes {4 + 4 * dimensions} bytes, {len(header)} are there")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    expected = math.prod(shape)
    content = _read(stream, expected + 1)
    if len(content) < expected:
        raise DataError(f"'{path}' is truncated: its header promises {expected} bytes of data, {len(content)} are there")
    if len(content) > expected:
        raise DataError(f"'{path}' is too long: its header promises {expected} bytes of data, and more are there")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(stream: IO[bytes] | gzip.GzipFile, limit: int) -> bytearray:
    """Up to ``limit`` bytes; a gzip file that breaks off gives what it has."""
    content = bytearray()
    try:
        while len(content) < limit and (chunk := stream.read(min(_CHUNK, limit - len(content)))):
            content += chunk
    except EOFError:
        pass
    return content


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write ``array`` as IDX, packed if the name ends in ``.gz``."""
    header = bytes([0, 0, _UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + np.ascontiguousarray(array).tobytes()
    write_whole(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with replacing(path) as beside:
        beside.write_bytes(content)
