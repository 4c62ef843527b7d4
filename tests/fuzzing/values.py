"""Odd values that a file may hold though nobody would write them, tables as TOML or JSON, and
files damaged.
"""

import datetime
import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

NUMBERS = (
    *(
        0,
        1,
        2,
        7,
        -1,
        -0.0,
        True,
        5e-324,
        1e-320,
        1e-30,
        0.1,
        1.5,
        1e30,
        1e300,
        1.7976931348623157e308,
    ),
    *(
        math.inf,
        -math.inf,
        math.nan,
        2**31 - 1,
        2**31,
        2**32,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
        -(2**63),
    ),
)
CONTROLS = (
    *("\x1b]0;owned\x07", "\x1b[31;47;5mred", "\x9b2J", "\x85next"),
    *("left\u202etfel", "\u2066iso\u2069", "zero\u200bwide", "\x7f"),
)
"""Texts that a terminal obeys, or shows as something else: C0, C1, escapes, controls of
direction, what has no width.
"""
CODE = (
    "os:system",
    "subprocess:run",
    "witness:Witness",
    "./witness.py:Witness",
    "builtins:exec",
    "witness",
    "a:b",
    ":",
)
TEXTS = (
    *(
        "",
        " ",
        "x",
        "é",
        "\x00",
        "\r\n",
        "[red]x[/red]",
        "[/]",
        "=1+1",
        "../../etc/passwd",
        "/dev/zero",
        "~",
    ),
    *("a" * 300, "<b>&amp;'\""),
)
DATES = (
    *(
        datetime.date(2020, 2, 29),
        datetime.time(1),
        datetime.datetime(1, 1, 1),  # noqa: DTZ001
        datetime.datetime(9999, 12, 31, 23, 59, 59),  # noqa: DTZ001
    ),
    datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC),
)
LONG = "x" * 200_000

RAW = {
    "<lists in lists>": "[" * 200 + "]" * 200,
    "<deep list>": "[" * 3000 + "]" * 3000,
    "<deep table>": "{a=" * 3000 + "1" + "}" * 3000,
    "<digits>": "9" * 5000,
    "<many digits>": "9" * 100_000,
    "<bits>": "0b" + "1" * 100_000,
    "<hexadecimal>": "0x" + "f" * 100_000,
    "<dotted>": "{" + "a." * 20_000 + "a = 1}",
    "<exponent>": "1e" + "9" * 300,
}
"""Stands in tables for text that no writer of TOML would write."""


def text(draw: random.Random) -> str:
    return draw.choice(draw.choice([CONTROLS, CODE, TEXTS, (LONG,), tuple(RAW)]))


def anything(draw: random.Random) -> Any:
    return draw.choice(
        [
            lambda: draw.choice(NUMBERS),
            lambda: text(draw),
            lambda: draw.choice(
                [[], {}, [[]], [{}], {"": 1}, {"kind": text(draw)}, [1] * 100_000, ["x", 1]]
            ),
            lambda: [anything(draw) for _ in range(draw.randrange(3))],
            lambda: {text(draw)[:50]: anything(draw)},
            lambda: draw.choice([True, False, *DATES]),
        ]
    )()


def spoil(draw: random.Random, value: Any) -> Any:
    """A copy of nested lists and tables with one thing in it changed: a value, the number of
    entries, or their order.
    """
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        match draw.randrange(8):
            case 0:
                return {name: item for name, item in value.items() if name != key}
            case 1:
                return value | {text(draw)[:50]: value[key]}
            case 2:
                return value | {key: value[draw.choice(list(value))]}
        return value | {key: spoil(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        match draw.randrange(8):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return [*value[:place], value[place], *value[place:]]
            case 2:
                return value[::-1]
        return [*value[:place], spoil(draw, value[place]), *value[place + 1 :]]
    if isinstance(value, bool | str) or value is None or draw.random() < 0.3:
        return anything(draw)
    return draw.choice(
        [*NUMBERS, *([value + 1, -value, value * 2] if isinstance(value, int | float) else [])]
    )


def as_toml(tables: Any) -> str:
    """Tables as TOML: what is None is left out, and what stands for raw text becomes it."""
    return _with_raw(tomli_w.dumps(_said(tables if isinstance(tables, dict) else {"": tables})))


def as_json(value: Any) -> str:
    """A value as JSON, or as what most readers take for it; what stands for raw text becomes it."""
    return _with_raw(json.dumps(value, indent=1, default=str))


def _with_raw(text: str) -> str:
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return [_said(item) for item in value if item is not None] if isinstance(value, list) else value


def damage(draw: random.Random, path: Path) -> str:
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
    more = draw.choice(
        [b"\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\x1b[2J", draw.randbytes(100), b"[" * 100_000]
    )
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
