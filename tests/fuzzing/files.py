"""Files of cases: tables as TOML or JSON, and files damaged."""

import json
import os
import random
from pathlib import Path
from typing import Any

import tomli_w

from tests.fuzzing import values


def as_toml(tables: Any) -> str:
    """Tables as TOML: what is None is left out, and what stands for raw text becomes it."""
    text = tomli_w.dumps(_said(tables if isinstance(tables, dict) else {"": tables}))
    for name, raw in values.RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return [_said(item) for item in value if item is not None] if isinstance(value, list) else value


def as_json(value: Any) -> str:
    """A value as JSON, or as what most readers take for it; what stands for raw text becomes it."""
    text = json.dumps(value, indent=1, default=str)
    for name, raw in values.RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text


def damage(draw: random.Random, path: Path) -> str:
    """Damage the bytes of a file, or put something else in its place; what was done."""
    what, do = draw.choice(list(_DAMAGES.items()))
    do(draw, path)
    return what


def _truncate(draw: random.Random, path: Path) -> None:
    os.truncate(path, draw.randrange(max(1, path.stat().st_size)))


def _empty(draw: random.Random, path: Path) -> None:
    os.truncate(path, 0)


def _flip(draw: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 1, 20]) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _insert(draw: random.Random, path: Path) -> None:
    content = path.read_bytes()
    place = draw.choice([0, len(content), draw.randrange(len(content) + 1)])
    more = draw.choice([b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\x1b[2J", draw.randbytes(100), b"[" * 100_000])
    path.write_bytes(content[:place] + more + content[place:])


def _drop_last(draw: random.Random, path: Path) -> None:
    os.truncate(path, max(0, path.stat().st_size - 1))


def _noise(draw: random.Random, path: Path) -> None:
    path.write_bytes(draw.randbytes(draw.choice([1, 100, 100_000])))


def _delete(draw: random.Random, path: Path) -> None:
    path.unlink()


def _folder(draw: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(draw: random.Random, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(draw: random.Random, path: Path) -> None:
    path.unlink()
    path.symlink_to(draw.choice(["/dev/zero", "/dev/null", "/etc/passwd", "nowhere", path.name, "."]))


_DAMAGES = {
    "truncated": _truncate,
    "emptied": _empty,
    "bits flipped": _flip,
    "bytes put in": _insert,
    "last byte dropped": _drop_last,
    "replaced by noise": _noise,
    "deleted": _delete,
    "replaced by a folder": _folder,
    "replaced by a FIFO": _fifo,
    "replaced by a link": _link,
}
