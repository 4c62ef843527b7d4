"""Names of devices in a user's files: one rule for tables, partitions and traces."""

import re
from collections.abc import Iterable

_DIGITS = re.compile("([0-9]+)")
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")  # index of a device


def naming_rule(devices: int) -> str:
    """Return the part of an error's message that says which names of devices a file may have.

    Args:
        devices: count of devices.
    """
    return (
        f"allowed are 0 to {devices - 1}, or names of exactly {devices} devices, none of them 0, "
        "numbered in natural order ('c2' before 'c10')"
    )


def device_name(cell: object) -> str:
    """Return the name of a device in a cell of a table or a key of JSON: ``"3"`` for ``3.0``."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)


def number_devices(names: Iterable[str], devices: int) -> dict[str, int] | str:
    """Return the index of each device that a file names.

    If each name is a number from 0 to ``devices`` - 1, it is the index, and devices may be missing.
    Otherwise the file must name exactly ``devices`` devices, and no name may be ``0``. The names
    are then numbered in natural order, in which "c2" comes before "c10".

    Args:
        names: names of devices; a name may occur several times.
        devices: count of devices.

    Returns:
        Index by name; or the first wrong name if the names break the rule.

    Example:
        >>> number_devices(["1", "0"], 3)
        {'1': 1, '0': 0}
        >>> number_devices(["c10", "c2"], 2)
        {'c2': 0, 'c10': 1}
    """
    distinct = list(dict.fromkeys(names))
    no_indices = [name for name in distinct if not _is_index(name, devices)]
    if not no_indices:
        return {name: int(name) for name in distinct}
    if "0" in distinct or len(distinct) != devices:
        return no_indices[0]
    in_order = sorted(distinct, key=natural_key)
    return {name: index for index, name in enumerate(in_order)}


def _is_index(name: str, devices: int) -> bool:
    return _NUMBER.fullmatch(name) is not None and int(name) < devices


def natural_key(text: str) -> list[tuple[int, str]]:
    """Make a sort key by which "c2" comes before "c10"."""
    key = []
    for part in _DIGITS.split(text):
        if part.isdecimal():
            digits = part.lstrip("0")
            key.append((len(digits), digits))  # the number with more digits is greater
        else:
            key.append((-1, part))
    return key
