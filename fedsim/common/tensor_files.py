"""Files of tensors in the format of safetensors, which are written and read tensor by tensor.

The files have the bytes that ``safetensors.numpy.save_file`` writes. That function needs all
tensors of a file in memory; the functions of this module need only one tensor.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.files import open_file

# numpy's name of a type -> its code; a file has the tensors in the order of these types
_CODES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {code: np.dtype(name) for name, code in _CODES.items()}
_RANKS = {name: rank for rank, name in enumerate(_CODES)}
_ALIGNMENT = 8  # the length of the header is a multiple of this number (bytes)
_LENGTH_BYTES = 8  # size of the number that states the length of the header
_LONGEST_HEADER = 100_000_000  # greatest length of a header that the format allows (bytes)


class StoredTensor:
    """Base of tensors whose elements are in a file and not in memory; each use reads them.

    Args:
        dtype: type of the elements.
        shape: the shape.
    """

    __slots__ = ("__weakref__", "dtype", "shape")

    def __init__(self, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Size of the elements (bytes)."""
        return int(self.dtype.itemsize) * math.prod(self.shape)

    def read(self) -> AnyArray:
        """Read the tensor into a new array."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (self.read(),)


AnyTensor = AnyArray | StoredTensor


def array_of(tensor: AnyTensor) -> AnyArray:
    """Return a tensor as an array; the elements of a stored tensor are read."""
    return tensor.read() if isinstance(tensor, StoredTensor) else tensor


def bytes_of(array: AnyArray) -> memoryview:
    """Return the elements of an array in C order, as little-endian bytes."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def write_tensors(path: Path, tensors: Mapping[str, AnyTensor]) -> str:
    """Write tensors to a ``.safetensors`` file, one after the other.

    Args:
        path: the file.
        tensors: name -> tensor. A stored tensor is read when it is written.

    Returns:
        SHA-256 of the file, as hexadecimal digits.

    Raises:
        ValueError: the format lacks a tensor's type, or does not allow as many tensors in a file.
        OSError: the disk is full, for example.
    """
    # sorted by type, so that each tensor is aligned in the file, and then by name
    order = sorted(tensors, key=lambda name: (_rank(name, tensors[name]), name))
    digest = hashlib.sha256()
    with path.open("wb") as file:
        header = _header(order, tensors)
        file.write(header)
        digest.update(header)
        for name in order:
            content = bytes_of(array_of(tensors[name]))
            file.write(content)
            digest.update(content)
    return digest.hexdigest()


def _rank(name: str, tensor: AnyTensor) -> int:
    try:
        return _RANKS[tensor.dtype.name]
    except KeyError:
        raise ValueError(
            f"the tensor {name!r} is of type {tensor.dtype.name}; allowed are {', '.join(_CODES)}"
        ) from None


def _header(order: list[str], tensors: Mapping[str, AnyTensor]) -> bytes:
    """Return the first bytes of a file: length of the table of tensors, and the table.

    The table is JSON, padded by spaces.

    Args:
        order: names of the tensors, in the order in which their elements follow.
        tensors: name -> tensor.

    Raises:
        ValueError: the table is longer than the format allows.
    """
    table = {}
    end = 0  # end of the last tensor, counted from the end of the table (bytes)
    for name in order:
        tensor = tensors[name]
        begin = end
        end += tensor.nbytes
        table[name] = {
            "dtype": _CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    padding = -len(text) % _ALIGNMENT  # count of bytes up to the next multiple of ``_ALIGNMENT``
    text += b" " * padding
    if len(text) > _LONGEST_HEADER:
        raise ValueError(
            f"a file of {len(order)} tensors has a table of {len(text)} bytes; the format allows "
            f"{_LONGEST_HEADER}"
        )
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


class _FileTensor(StoredTensor):
    """Tensor whose elements are read from a part of a file at each use.

    Args:
        file: the file.
        dtype: type of the elements.
        shape: the shape.
        offset: offset of the first byte in the file.
    """

    __slots__ = ("_file", "_offset")

    def __init__(
        self, file: "_OpenFile", dtype: "np.dtype[Any]", shape: tuple[int, ...], offset: int
    ) -> None:
        super().__init__(dtype, shape)
        self._file = file
        self._offset = offset

    def read(self) -> AnyArray:
        return read_array(self._file.descriptor, self._offset, self.shape, self.dtype)


class _OpenFile:
    """File that stays open as long as a tensor is read from it.

    Args:
        path: path of the file.

    Raises:
        OSError: the file cannot be read, or is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_file(path)
        self.descriptor = self._file.fileno()

    def hash(self) -> str:
        """Return the SHA-256 of the file, as hexadecimal digits."""
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class TensorFile(NamedTuple):
    """Content of a ``.safetensors`` file: its tensors by name, and perhaps its SHA-256.

    The file can be read as long as one of the tensors is in use, even if it is deleted meanwhile.

    Attributes:
        tensors: name -> tensor.
        sha256: SHA-256 of the file, as hexadecimal digits; None if it was not computed.
    """

    tensors: dict[str, StoredTensor]
    sha256: str | None


def open_tensors(path: Path, *, hashed: bool = False) -> TensorFile:
    """Open a ``.safetensors`` file; the elements of its tensors are read when they are used.

    Args:
        path: the file.
        hashed: whether the file is read once to compute its SHA-256.

    Raises:
        OSError: the file cannot be read, or is no regular file.
        ValueError: the file is not in the format, or has a type of tensors that numpy lacks.
    """
    file = _OpenFile(path)
    sha256 = file.hash() if hashed else None
    size = os.fstat(file.descriptor).st_size
    # the file begins with the length of the table of tensors, and the table
    length = int.from_bytes(os.pread(file.descriptor, _LENGTH_BYTES, 0), "little")
    if length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
        raise ValueError(f"its table of tensors is said to have {length} bytes")
    table = json.loads(_read_bytes(file.descriptor, _LENGTH_BYTES, length))
    table.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    table_end = _LENGTH_BYTES + length
    for name, dtype, shape, offset in _entries(table, table_end, size):
        tensors[name] = _FileTensor(file, dtype, shape, offset)
    return TensorFile(tensors, sha256)


def _entries(
    table: Any, start: int, size: int
) -> "Iterator[tuple[str, np.dtype[Any], tuple[int, ...], int]]":
    """Yield name, type, shape and offset of each tensor in a safetensors file.

    Args:
        table: the table of tensors at the file's beginning, as parsed JSON.
        start: offset of the first byte after the table; offsets in the table count from there.
        size: size of the file (bytes).

    Raises:
        ValueError: the table is malformed, or has a tensor that is not within the file.
    """
    try:
        for name, entry in table.items():
            dtype = _DTYPES[entry["dtype"]]
            shape = tuple(map(int, entry["shape"]))
            begin, end = map(int, entry["data_offsets"])
            is_within = 0 <= begin <= end <= size - start
            has_negative_length = min(shape, default=0) < 0
            if has_negative_length or not is_within:
                raise ValueError(f"the tensor {name!r} lies outside of the file")
            if end - begin != dtype.itemsize * math.prod(shape):
                raise ValueError(f"the tensor {name!r} has another size than its shape")
            yield name, dtype, shape, start + begin
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its table of tensors is malformed: {error!r}") from None


def _read_bytes(descriptor: int, offset: int, length: int) -> bytes:
    return read_array(descriptor, offset, (length,), np.dtype(np.uint8)).tobytes()


def read_array(
    descriptor: int, offset: int, shape: tuple[int, ...], dtype: "np.dtype[Any]"
) -> AnyArray:
    """Read an array from an open file into a new array.

    Args:
        descriptor: file descriptor.
        offset: offset of the first byte.
        shape: shape of the array.
        dtype: type of its elements, which are little-endian in the file.

    Raises:
        OSError: the file ends before the array does.
    """
    array = np.empty(shape, dtype=dtype.newbyteorder("<"))
    content = array.reshape(-1).view(np.uint8).data  # the part that is not read yet
    while content:  # the system may read less than it is asked for
        size = os.preadv(descriptor, [content], offset)
        if not size:
            raise OSError("the file ends before its last tensor does")
        content = content[size:]
        offset += size
    return array.astype(dtype, copy=False)
