"""Files of cases: tables as TOML or JSON, and files damaged."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from tests.fuzzing import values


def as_toml(tables: Any) -> str:
    """Tables as TOML: what is None is left out, and what stands for raw text becomes it."""
    return _with_raw(tomli_w.dumps(_said(tables if isinstance(tables, dict) else {"": tables})))


def as_json(value: Any) -> str:
    """A value as JSON, or as what most readers take for it; what stands for raw text becomes it."""
    return _with_raw(json.dumps(value, indent=1, default=str))


def _with_raw(text: str) -> str:
    for name, raw in values.RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return [_said(item) for item in value if item is not None] if isinstance(value, list) else value


def damage(draw: random.Random, path: Path) -> str:
    """Damage the bytes of a file, or put something else in its place; what was done."""
    what = draw.choice([*_CHANGED, *_REPLACED])
    if what in _CHANGED:
        path.write_bytes(_CHANGED[what](draw, path.read_bytes()))
    else:
        path.unlink()
        _REPLACED[what](draw, path)
    return what


def _flipped(draw: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 20]) if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _inserted(draw: random.Random, content: bytes) -> bytes:
    place = draw.choice([0, len(content), draw.randrange(len(content) + 1)])
    more = draw.choice([b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\x1b[2J", draw.randbytes(100), b"[" * 100_000])
    return content[:place] + more + content[place:]


_LINKS = ("/dev/zero", "/dev/null", "/etc/passwd", "nowhere", ".")
_REPLACED: dict[str, Callable[[random.Random, Path], object]] = {
    "deleted": lambda draw, path: None,
    "replaced by a folder": lambda draw, path: path.mkdir(),
    "replaced by a FIFO": lambda draw, path: os.mkfifo(path),
    "replaced by a link": lambda draw, path: path.symlink_to(draw.choice([*_LINKS, path.name])),
}
_CHANGED: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "truncated": lambda draw, content: content[: draw.randrange(max(1, len(content)))],
    "emptied": lambda draw, content: b"",
    "bits flipped": _flipped,
    "bytes put in": _inserted,
    "last byte dropped": lambda draw, content: content[:-1],
    "replaced by noise": lambda draw, content: draw.randbytes(draw.choice([1, 100, 100_000])),
}
