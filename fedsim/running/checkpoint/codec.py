"""Encoding of objects as JSON and arrays, and decoding. Reading never executes code.

Values of known kinds pass: plain values, lists, tuples, dicts, arrays, and objects of the classes
that the caller names, field by field. Two places that held one object hold one object again.
Floats come back to the last bit.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import CheckpointError

Arrays = dict[str, AnyArray]
_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TAGS = ("~tuple", "~named", "~dict", "~float", "~array", "~object")


class Encoder:
    """Encoder of values as JSON-compatible tables and arrays.

    Args:
        classes: the classes of objects that may be written, by name.
        left_out: fields that are not written, as ``Class.field``.

    Attributes:
        arrays: the arrays of all encoded values, by name.
    """

    def __init__(self, classes: Mapping[str, type], left_out: tuple[str, ...] = ()) -> None:
        self._names = {cls: name for name, cls in classes.items()}
        self._left_out = left_out
        self._numbers: dict[int, int] = {}  # id() of an object: its index in "objects"
        self._alive: list[object] = []  # encoded objects, kept alive so that each id() stays unique
        self._array_names: dict[int, str] = {}
        self._waiting: deque[object] = deque()
        self.arrays: Arrays = {}

    def encode(self, value: object) -> dict[str, object]:
        """Encode a value, with all objects that can be reached from it.

        Args:
            value: the value.

        Returns:
            JSON-compatible tables. They refer to arrays by their names in ``arrays``.

        Raises:
            CheckpointError: the class of an object is not one of ``classes``.
        """
        root = self._plain(value)
        objects = []
        while self._waiting:  # a queue, not recursion: chains of models may be of any length
            instance = self._waiting.popleft()
            name = self._names[type(instance)]
            content = {}
            for field in list_saved_fields(instance):
                if f"{name}.{field}" not in self._left_out:
                    content[field] = self._plain(getattr(instance, field))
            objects.append([name, content])
        return {"root": root, "objects": objects}

    def _plain(self, value: object) -> object:
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int | np.integer):
            return int(value)
        if isinstance(value, float | np.floating):
            return float(value) if math.isfinite(value) else {"~float": repr(float(value))}
        if isinstance(value, list | deque):
            return [self._plain(item) for item in value]
        if isinstance(value, tuple):
            items = [self._plain(item) for item in value]
            name = self._names.get(type(value))
            return {"~tuple": items} if name is None else {"~named": [name, *items]}
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith("~") for key in value):
                return {key: self._plain(item) for key, item in value.items()}
            return {"~dict": [[self._plain(key), self._plain(item)] for key, item in value.items()]}
        if isinstance(value, np.ndarray):
            if id(value) not in self._array_names:
                name = f"{len(self.arrays):06d}"
                self._array_names[id(value)] = name
                self.arrays[name] = np.ascontiguousarray(value)
                self._alive.append(value)
            return {"~array": self._array_names[id(value)]}
        if type(value) in self._names:
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self._numbers)
                self._alive.append(value)
                self._waiting.append(value)
            return {"~object": self._numbers[id(value)]}
        raise CheckpointError(
            f"a {type(value).__name__} cannot be kept in a checkpoint: {str(value)[:80]}"
        )


def decode(
    tables: Any,
    arrays: Mapping[str, AnyArray],
    classes: Mapping[str, type[Any]],
    left_out: tuple[str, ...] = (),
) -> Any:
    """Decode a value that an ``Encoder`` has encoded.

    Args:
        tables: the result of ``Encoder.encode``.
        arrays: the arrays by name.
        classes: the classes of objects that may be read, by name.
        left_out: fields that are not written, as ``Class.field``.

    Returns:
        The value.

    Raises:
        CheckpointError: the tables name an unknown class, field or array, or are malformed.
    """
    try:
        shells = [object.__new__(classes[name]) for name, _ in tables["objects"]]
        for shell, (name, content) in zip(shells, tables["objects"], strict=True):
            expected = {
                field for field in list_saved_fields(shell) if f"{name}.{field}" not in left_out
            }
            if expected and set(content) != expected:
                raise CheckpointError(
                    f"a {name} has the fields {sorted(content)}; expected are {sorted(expected)}"
                )
            for field, value in content.items():
                if f"{name}.{field}" in left_out or field.startswith("__"):
                    raise CheckpointError(
                        f"a {name} has the field {field!r}, which is never written"
                    )
                object.__setattr__(shell, field, _value(value, arrays, shells, classes))
        return _value(tables["root"], arrays, shells, classes)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the state is malformed: {type(error).__name__}: {error}") from None


def _value(
    value: Any,
    arrays: Mapping[str, AnyArray],
    shells: list[object],
    classes: Mapping[str, type[Any]],
) -> Any:
    """Decode one JSON value; ``shells`` are the decoded objects by index."""

    def back(item: Any) -> Any:
        return _value(item, arrays, shells, classes)

    if isinstance(value, list):
        return list(map(back, value))
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if len(value) != 1 or tag not in _TAGS:
        return {key: back(item) for key, item in value.items()}
    content = value[tag]
    match tag:
        case "~tuple":
            return tuple(map(back, content))
        case "~named":
            return classes[content[0]]._make(map(back, content[1:]))
        case "~dict":
            return {back(key): back(item) for key, item in content}
        case "~float":
            return _ODD_FLOATS[content]
        case "~array":
            return arrays[content]
    if not isinstance(content, int) or not 0 <= content < len(shells):
        raise CheckpointError(f"the state names object {content!r} of {len(shells)}")
    return shells[content]


def list_saved_fields(value: object) -> list[str]:
    """Return the names of the fields of an object that are saved.

    The fields are the first of the following that exists: ``__saved__`` of the class, the keys of
    a mapping, the slots, the fields of a dataclass, the entries of ``vars(value)``.

    Args:
        value: the object.
    """
    saved = getattr(type(value), "__saved__", None)
    if saved is not None:
        return list(saved)
    if isinstance(value, Mapping):  # a state may have more entries than declared fields
        return list(value)
    slots: list[str] = []
    for base in reversed(type(value).__mro__):
        names = base.__dict__.get("__slots__", ())
        if isinstance(names, str):
            names = (names,)
        slots += [name for name in names if not name.startswith("__")]
    if not slots and is_dataclass(value):
        return [field.name for field in fields(value)]
    return slots or list(vars(value))
