"""Reader of ``tf.train.Example``, the serialised messages of TensorFlow, without TensorFlow.

A message is a sequence of fields, each with a number and a wire type: an integer of variable length
(0), eight bytes (1), a length and as many bytes (2), or four bytes (5).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_VARINT = 0
_EIGHT_BYTES = 1
_LENGTH = 2
_FOUR_BYTES = 5
_LONGEST_VARINT = 10  # bytes of a 64-bit integer, of which each has seven bits
# numbers of the fields of the protobuf message ``Feature``
_BYTES_LIST = 1
_FLOAT_LIST = 2
_INT64_LIST = 3

Feature = list[bytes] | NDArray[np.float32] | NDArray[np.int64]
"""Values of a feature: byte strings, float32 [n] or int64 [n]."""


class _Field(NamedTuple):
    number: int
    wire: int
    integer: int
    content: memoryview


def parse_example(message: bytes) -> dict[str, Feature]:
    """Parse a serialised ``tf.train.Example``, the record of TensorFlow's data files.

    Args:
        message: the serialised bytes.

    Returns:
        Name of a feature -> its values: a list of bytes, float32 [n] or int64 [n].

    Raises:
        ValueError: the message is damaged.
    """
    features: dict[str, Feature] = {}
    # field 1 of ``Example`` is a message whose entries are pairs of a name and a ``Feature``
    for example in _fields(memoryview(message)):
        if example.number != 1:
            continue
        for entry in _fields(example.content):
            name, value = _parse_map_entry(entry.content)
            features[name] = value
    return features


def _parse_map_entry(content: memoryview) -> tuple[str, Feature]:
    name = ""
    value: Feature = []
    for part in _fields(content):
        if part.number == 1:
            name = bytes(part.content).decode()
        elif part.number == 2:
            value = _parse_feature(part.content)
    return name, value


def _parse_feature(content: memoryview) -> Feature:
    """Parse the protobuf message ``Feature``: a list of texts, of floats or of integers.

    An empty message gives an empty list.
    """
    for kind in _fields(content):
        if kind.number == _BYTES_LIST:
            return [bytes(text.content) for text in _fields(kind.content)]
        if kind.number == _FLOAT_LIST:
            parts = [bytes(part.content) for part in _fields(kind.content)]
            return np.frombuffer(b"".join(parts), dtype="<f4").astype(np.float32)
        if kind.number == _INT64_LIST:
            return _parse_integers(kind.content)
    return []


def _parse_integers(content: memoryview) -> NDArray[np.int64]:
    """Parse the protobuf message ``Int64List``, a list of integers.

    Each integer is a field, or all integers are packed into one field.
    """
    numbers = []
    for field in _fields(content):
        if field.wire == _VARINT:
            numbers.append(field.integer)
            continue
        offset = 0
        while offset < len(field.content):  # packed integers
            number, offset = _varint(field.content, offset)
            numbers.append(number)
    # a negative integer is encoded as 2^64 more
    return np.array(numbers, dtype=np.uint64).astype(np.int64)


def _fields(message: memoryview) -> Iterator[_Field]:
    """Yield the fields of a protocol-buffer message in order.

    Raises:
        ValueError: the message is damaged.
    """
    offset = 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        wire = tag & 7  # type of encoding; the other bits of a tag are the number of the field
        integer = 0
        if wire == _VARINT:
            integer, offset = _varint(message, offset)
            size = 0  # size of the field's content (bytes)
        elif wire == _LENGTH:
            size, offset = _varint(message, offset)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if size > len(message) - offset:
            raise ValueError("a field is longer than its message")
        yield _Field(tag >> 3, wire, integer, message[offset : offset + size])
        offset += size


def _varint(message: memoryview, offset: int) -> tuple[int, int]:
    """Decode an integer of variable length, as protocol buffers encode it.

    Args:
        message: the message.
        offset: index of the integer's first byte.

    Returns:
        The integer, below 2^64, and the index of the byte after it.

    Raises:
        ValueError: the integer has no end within ten bytes.
    """
    value = 0
    for position in range(_LONGEST_VARINT):
        if offset + position >= len(message):
            break
        byte = message[offset + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80 and value < 1 << 64:
            return value, offset + position + 1
    raise ValueError("an integer has no end")
