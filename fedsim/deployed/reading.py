"""Checks of values in received messages, whose senders on other machines may send anything."""

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from fedsim.common.errors import FedsimError, SimulationError, show_value

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""Value that JSON can represent."""
ReadValue = TypeVar("ReadValue")


class PacketError(SimulationError):
    """Error: a received message cannot be read. The message is dropped, and the run goes on."""


def read_safely(name: str, read: Callable[[], ReadValue]) -> ReadValue:
    """Call a function that reads a message, and convert any exception in it to ``PacketError``.

    Args:
        name: name of the message, for the error.
        read: the function. It may call a codec's code, which can raise any exception.

    Returns:
        The function's value.

    Raises:
        PacketError: the message cannot be read.
    """
    try:
        return read()
    except FedsimError as error:
        raise PacketError(f"{name} cannot be read: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {show_value(str(error))}"
        raise PacketError(f"{name} cannot be read: {reason}") from error


def entry_of(table: Mapping[str, Json], name: str) -> Json:
    """Return an entry of a table.

    Args:
        table: the table.
        name: key of the entry.

    Raises:
        PacketError: the table has no such entry.
    """
    if name not in table:
        raise PacketError(
            f"{show_value(name)} is missing; there are {show_value(', '.join(table))}"
        )
    return table[name]


def number_of(value: Json, name: str) -> float:
    """Check that a received value is a number, which may be infinite or NaN, and return it.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, name, "a number")
    return float(value)


def finite_of(value: Json, name: str) -> float:
    """Check that a received value is a finite number, and return it.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no finite number.
    """
    number = number_of(value, name)
    if not math.isfinite(number):
        raise _wrong(value, name, "a finite number")
    return number


def count_of(value: Json, name: str) -> int:
    """Check that a received value is a whole number, 0 or more, and return it.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _wrong(value, name, "a whole number, 0 or more")
    return value


def text_of(value: Json, name: str) -> str:
    """Check that a received value is a text, and return it.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no text.
    """
    if not isinstance(value, str):
        raise _wrong(value, name, "a text")
    return value


def list_of(value: Json, name: str) -> list[Json]:
    """Check that a received value is a list, and return it.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no list.
    """
    if not isinstance(value, list):
        raise _wrong(value, name, "a list")
    return value


def pair_of(value: Json, name: str) -> tuple[Json, Json]:
    """Check that a received value is a list of two items, and return both.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no list of two items.
    """
    items = list_of(value, name)
    if len(items) != 2:
        raise _wrong(value, name, "a list of two items")
    return items[0], items[1]


def table_of(value: Json, name: str) -> dict[str, Json]:
    """Check that a received value is a table, and return it.

    Args:
        value: the value.
        name: name of the value, for error messages.

    Raises:
        PacketError: the value is no table.
    """
    if not isinstance(value, dict):
        raise _wrong(value, name, "a table")
    return value


def _wrong(value: Json, name: str, allowed: str) -> PacketError:
    return PacketError(f"{name} is {show_value(value)}; allowed is {allowed}")
