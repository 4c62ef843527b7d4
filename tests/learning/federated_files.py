"""Writers of the formats in which federated data sets are published: TFF's SQLite, LEAF, FLAIR."""

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import numpy as np

Values = list[bytes] | list[float] | list[int]


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    content = bytearray()
    while number >= 0x80:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


def _part(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def example(features: dict[str, Values], *, packed: bool = True) -> bytes:
    """A serialised ``tf.train.Example``, as TensorFlow writes it; or with integers one by one, as
    other writers may have them.
    """
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            kind = _part(1, b"".join(_part(1, bytes(value)) for value in values))
        elif isinstance(values[0], float):
            kind = _part(2, _part(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            numbers = [_varint(int(value)) for value in values]
            one_by_one = b"".join(b"\x08" + number for number in numbers)
            kind = _part(3, _part(1, b"".join(numbers)) if packed else one_by_one)
        entries += _part(1, _part(1, name.encode()) + _part(2, kind))
    return _part(1, entries)


def write_tff(path: Path, parts: dict[str, dict[str, list[bytes]]]) -> None:
    """Write the SQLite file of TensorFlow Federated: part -> user -> serialised examples."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL);"
            "CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);"
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, "
            "num_examples INTEGER NOT NULL);"
        )
        for part, users in parts.items():
            for user, messages in users.items():
                rows = [(part, user, message) for message in messages]
                connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
                size = (user, part, len(messages))
                connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", size)
        connection.commit()


def write_flair(folder: Path, users: dict[str, tuple[str, list[list[str]]]]) -> None:
    """Write FLAIR's folder: user -> part and the labels of each image, which is of 256 x 256."""
    from PIL import Image

    (folder / "small_images").mkdir(parents=True)
    entries = []
    for user, (part, labels) in users.items():
        for number, names in enumerate(labels):
            image = f"{user}{number}"
            shade = np.full((256, 256, 3), 40 * number, np.uint8)
            Image.fromarray(shade).save(folder / "small_images" / f"{image}.jpg")
            fine = [f"{name} of some kind" for name in names]
            entry = {"image_id": image, "user_id": user, "partition": part}
            entries.append(entry | {"labels": names, "fine_grained_labels": fine})
    (folder / "labels_and_metadata.json").write_text(json.dumps(entries))
