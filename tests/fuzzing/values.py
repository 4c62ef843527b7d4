"""Odd values: what a file may hold that nobody would write."""

import datetime
import math
import random
from typing import Any

NUMBERS = (
    *(0, 1, 2, 7, -1, -0.0, True, 5e-324, 1e-320, 1e-30, 0.1, 1.5, 1e30, 1e300, 1.7976931348623157e308),
    *(math.inf, -math.inf, math.nan, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63)),
)
CONTROLS = (
    *("\x1b]0;owned\x07", "\x1b[31;47;5mred", "\x9b2J", "\x85next"),
    *("left\u202etfel", "\u2066iso\u2069", "zero\u200bwide", "\x7f"),
)
"""Texts that a terminal obeys, or shows as something else: C0, C1, escapes, controls of direction, what has no width."""
CODE = ("os:system", "subprocess:run", "witness:Witness", "./witness.py:Witness", "builtins:exec", "witness", "a:b", ":")
TEXTS = (
    *("", " ", "x", "é", "\x00", "\r\n", "[red]x[/red]", "[/]", "=1+1", "../../etc/passwd", "/dev/zero", "~"),
    *("a" * 300, "<b>&amp;'\""),
)
LONG = "x" * 200_000

RAW = {
    "<lists in lists>": "[" * 200 + "]" * 200,
    "<deep list>": "[" * 3000 + "]" * 3000,
    "<deep table>": "{a=" * 3000 + "1" + "}" * 3000,
    "<digits>": "9" * 5000,
    "<exponent>": "1e" + "9" * 300,
}
"""Stands in tables for text that no writer of TOML would write."""


def text(draw: random.Random) -> str:
    """A text that is odd in some way."""
    some = draw.choice([CONTROLS, CODE, TEXTS, (LONG,), tuple(RAW)])
    return draw.choice(some)


def anything(draw: random.Random) -> Any:
    """A value of any type."""
    return draw.choice(
        [
            lambda: draw.choice(NUMBERS),
            lambda: text(draw),
            lambda: draw.choice([[], {}, [[]], [{}], {"": 1}, {"kind": text(draw)}, [1] * 100_000, ["x", 1]]),
            lambda: [anything(draw) for _ in range(draw.randrange(3))],
            lambda: {text(draw)[:50]: anything(draw)},
            lambda: draw.choice([True, False, datetime.date(2020, 2, 29), datetime.time(1)]),
        ]
    )()


def spoil(draw: random.Random, value: Any) -> Any:
    """A copy of nested lists and tables with one thing in it changed: a value, the number of entries, or their order."""
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
    return draw.choice([*NUMBERS, *([value + 1, -value, value * 2] if isinstance(value, int | float) else [])])
