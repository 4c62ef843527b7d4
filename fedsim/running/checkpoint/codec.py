"""Objects as JSON and tensors, and back. Nothing that is read is ever executed.

Only values of known kinds pass: plain ones, lists, tuples, dicts, arrays, and objects of the
classes that the caller names, field by field. Two places that held one object hold one object
again. Floats come back to the last bit.
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
    """Gives what must be written of values, with objects of ``classes`` without the fields
    ``left_out`` (``Class.field``).
    """

    def __init__(self, classes: Mapping[str, type], left_out: tuple[str, ...] = ()) -> None:
        self._names = {cls: name for name, cls in classes.items()}
        self._left_out = left_out
        self._numbers: dict[int, int] = {}  # id of an object -> its number
        self._kept: list[Any] = []  # so that no id is used twice
        self._array_names: dict[int, str] = {}
        self._waiting: deque[Any] = deque()
        self.arrays: Arrays = {}

    def encode(self, value: Any) -> dict[str, Any]:
        """``value`` and all objects that can be reached from it, as JSON-able tables; arrays go
        to ``arrays``.
        """
        root = self._plain(value)
        objects = []
        while self._waiting:  # a queue, not recursion: chains of models may be of any length
            found = self._waiting.popleft()
            name = self._names[type(found)]
            kept = [field for field in fields_of(found) if f"{name}.{field}" not in self._left_out]
            objects.append([name, {field: self._plain(getattr(found, field)) for field in kept}])
        return {"root": root, "objects": objects}

    def _plain(self, value: Any) -> Any:
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
                self._array_names[id(value)] = name = f"{len(self.arrays):06d}"
                self.arrays[name] = np.ascontiguousarray(value)
                self._kept.append(value)
            return {"~array": self._array_names[id(value)]}
        if type(value) in self._names:
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self._numbers)
                self._kept.append(value)
                self._waiting.append(value)
            return {"~object": self._numbers[id(value)]}
        raise CheckpointError(
            f"a {type(value).__name__} cannot be kept in a checkpoint: {str(value)[:80]}"
        )


def decode(
    written: Any,
    arrays: Mapping[str, AnyArray],
    classes: Mapping[str, Any],
    left_out: tuple[str, ...] = (),
) -> Any:
    """Values that an ``Encoder`` was given; ``CheckpointError``: it names an unknown class,
    field or array, or is malformed.
    """
    try:
        shells = [classes[name].__new__(classes[name]) for name, _ in written["objects"]]
        for shell, (name, content) in zip(shells, written["objects"], strict=True):
            expected = {field for field in fields_of(shell) if f"{name}.{field}" not in left_out}
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
        return _value(written["root"], arrays, shells, classes)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the state is malformed: {type(error).__name__}: {error}") from None


def _value(
    written: Any, arrays: Mapping[str, AnyArray], shells: list[Any], classes: Mapping[str, Any]
) -> Any:
    def back(item: Any) -> Any:
        return _value(item, arrays, shells, classes)

    if isinstance(written, list):
        return list(map(back, written))
    if not isinstance(written, dict):
        return written
    tag = next(iter(written), None) if len(written) == 1 else None
    if tag not in _TAGS:
        return {key: back(item) for key, item in written.items()}
    content = written[tag]
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


def fields_of(value: Any) -> list[str]:
    """Names of an object's fields: its class's ``__saved__``, its slots, its dataclass's fields, or its
    present entries.
    """
    saved = getattr(type(value), "__saved__", None)
    if saved is not None:
        return list(saved)
    if isinstance(value, Mapping):  # a state: it may have more entries than declared fields
        return list(value)
    found = [base.__dict__.get("__slots__", ()) for base in reversed(type(value).__mro__)]
    slots = [
        name
        for names in found
        for name in ((names,) if isinstance(names, str) else names)
        if not name.startswith("__")
    ]
    if not slots and is_dataclass(value):
        return [field.name for field in fields(value)]
    return slots or list(vars(value))
