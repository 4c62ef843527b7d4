"""Points of a grid for people: short keys, and values as they are written."""

from collections.abc import Iterable, Mapping
from typing import Any


def short_key(key: str, keys: Iterable[str]) -> str:
    """The last part of a dotted key, where no other of the keys ends so; else all of it."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def shown(value: Any) -> str:
    """A value of a grid for people: numbers and texts as they are, tables as TOML writes them."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
