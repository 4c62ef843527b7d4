"""Flower's messages as they are sent: how many bytes they have, and copies that share what cannot change."""

import json
from copy import copy
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.common.serde_utils import error_to_proto, metadata_to_proto
from flwr.proto.message_pb2 import Message as MessageProto

_ID = "0" * 64  # as long as an object's id is


def copied(content: RecordDict) -> RecordDict:
    """The same records, which the other side may change; the arrays' bytes, which nobody can, are shared."""
    return _with(content, {name: _copied(record) for name, record in content.items()})


def _with(record: Any, values: dict[str, Any]) -> Any:
    """A copy with these values, which are of the same kinds: Flower would check each anew."""
    made = record.copy()
    made.__dict__["_data"] = values
    return made


def _copied(record: Any) -> Any:
    if isinstance(record, ArrayRecord):
        arrays = {}
        for name, one in record.items():
            arrays[name] = array = Array.__new__(Array)  # its constructor would look at what another has looked at
            array.__dict__.update(dtype=one.dtype, shape=one.shape, stype=one.stype, data=one.data)
        return _with(record, arrays)
    return _with(record, {name: list(value) if isinstance(value, list) else value for name, value in record.items()})


def as_sent(message: Message) -> Message:
    """A message that shares nothing that can be changed with the one that was sent."""
    metadata = copy(message.metadata)
    if message.has_error():
        return make_message(metadata=metadata, error=message.error)
    return make_message(metadata=metadata, content=copied(message.content))


def bytes_of(message: Message, of_content: int | None = None) -> int:
    """The bytes of a message as Flower sends it, every different object once with its head; ``of_content`` if known."""
    proto = metadata_to_proto(message.metadata)
    proto.message_id = ""
    error = error_to_proto(message.error) if message.has_error() else None
    body = len(MessageProto(metadata=proto, content=None, error=error).SerializeToString(deterministic=True))
    if error is not None:
        return _with_head("Message", 0, body)
    return _with_head("Message", 1, body) + (bytes_of_content(message.content) if of_content is None else of_content)


def bytes_of_content(content: RecordDict) -> int:
    """The bytes of a content; arrays are compared, but neither hashed nor copied."""
    different = _Different()
    records = {name: _key_of(record, different) for name, record in content.items()}
    names = len(json.dumps(dict.fromkeys(content, _ID)).encode())
    return _with_head("RecordDict", len(set(records.values())), names) + different.bytes


def _key_of(record: Any, different: "_Different") -> Any:
    """A key that equal records share; the bytes are counted when it is new."""
    if not isinstance(record, ArrayRecord):
        written = record.deflate()
        return different.note(written, len(written))
    arrays = {}
    for name, array in record.items():
        chunks = [different.data(chunk) for chunk in _chunks(array.data)]
        unique = list(dict.fromkeys(chunks))
        facts = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
        body = json.dumps(facts | {"arraychunk_ids": [unique.index(chunk) for chunk in chunks]})
        key = ("Array", body, *unique)
        arrays[name] = different.note(key, _with_head("Array", len(unique), len(body.encode())))
    body = json.dumps(dict.fromkeys(arrays, _ID))
    size = _with_head("ArrayRecord", len(set(arrays.values())), len(body.encode()))
    return different.note(("ArrayRecord", *arrays.items()), size)


def _chunks(data: bytes) -> list[bytes | memoryview]:
    if len(data) <= CHUNK:
        return [data] if data else []
    view = memoryview(data)
    return [view[start : start + CHUNK] for start in range(0, len(data), CHUNK)]


class _Different:
    """The objects of a message that differ, and their bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: dict[Any, int] = {}
        self._data: dict[tuple[int, bytes], list[tuple[int, Any]]] = {}

    def note(self, key: Any, size: int) -> int:
        """The number of an object; counts its bytes the first time."""
        if key not in self._known:
            self._known[key] = len(self._known)
            self.bytes += size
        return self._known[key]

    def data(self, chunk: bytes | memoryview) -> int:
        """The same of a piece of an array; only pieces with the same end are compared."""
        alike = self._data.setdefault((len(chunk), bytes(chunk[-64:])), [])
        for number, known in alike:
            if known is chunk or np.array_equal(np.frombuffer(known, np.uint8), np.frombuffer(chunk, np.uint8)):
                return number
        number = self.note(("data", len(self._known)), _with_head("ArrayChunk", 0, len(chunk)))
        alike.append((number, chunk))
        return number


def _with_head(kind: str, children: int, body: int) -> int:
    """Bytes of an object: its kind, its children's ids, the length of its body, and that body."""
    ids = max(0, children * (len(_ID) + 1) - 1)
    return len(kind) + 1 + ids + 1 + len(str(body)) + 1 + body
