"""Tables as dotted keys."""

from collections.abc import Mapping
from typing import Any


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables as dotted keys, in order."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found
