"""Encoding of objects as JSON and arrays, and decoding. Reading never executes code.

Values of these kinds can be encoded: plain values, lists, tuples, dicts, arrays, and objects of the
registered classes (``fedsim.common.saved``), field by field. An object to which two places refer is
restored as one object. Floats are restored exactly. Weights of models on disk are read only when
the checkpoint is written, and after a resume only when they are needed.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import CheckpointError
from fedsim.common.saved import SAVED_FORMS, saved_classes
from fedsim.common.tensor_files import AnyTensor, StoredTensor, array_of
from fedsim.common.training import Places
from fedsim.learning import scratch
from fedsim.learning.derived import Derived
from fedsim.learning.refs import Applied, Ref

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arrays = dict[str, AnyTensor]
_ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TAGS = (
    "~tuple",  # items
    "~named",  # name of the class, then items of a named tuple
    "~dict",  # pairs of key and value, if a key is no text or begins with ~
    "~float",  # text of a float that is not finite
    "~array",  # name of the array
    "~ranges",  # name of the array of a long tuple of pairs of integers (``Places``)
    "~object",  # index of the object
)
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError)
# up to this count, ranges (begin, end) of a model's parameters are JSON; more become an array
_FEW_RANGES = 16


class Encoder:
    """Converter of a run's objects into JSON-compatible tables and arrays, for a checkpoint.

    Attributes:
        arrays: the arrays of all encoded values, by name. For weights on disk it has their
            ``StoredTensor``, so that they are not read into memory.
        objects: the encoded objects and arrays, kept alive so that each ``id()`` stays unique.
    """

    def __init__(self) -> None:
        self._indices: dict[int, int] = {}  # id() of an object -> its index in "objects"
        self._array_names: dict[int, str] = {}
        # ranges (begin, end) of a model's parameters -> these ranges as an array, int64 [ranges, 2]
        self._ranges: dict[Places, Ints] = {}
        self._waiting: deque[object] = deque()
        self.arrays: Arrays = {}
        self.objects: list[object] = []

    def encode(self, value: object) -> dict[str, object]:
        """Convert a value, with all objects that can be reached from it.

        Args:
            value: the value.

        Returns:
            JSON-compatible tables. They refer to arrays by their names in ``arrays``.

        Raises:
            CheckpointError: the class of an object is not registered.
        """
        root = self._to_json(value)  # puts the objects to which ``value`` refers into ``_waiting``
        objects = []
        # a queue instead of recursion, as chains of models may be of any length
        while self._waiting:
            instance = self._waiting.popleft()
            content = {}
            for field in list_saved_fields(instance):
                content[field] = self._to_json(_field_of(instance, field))
            objects.append([SAVED_FORMS[type(instance)].name, content])
        return {"root": root, "objects": objects}

    def _to_json(self, value: object) -> object:
        """Return a value as JSON.

        A value of a type that JSON lacks becomes a dict with one key: the tuple ``(1, 2)`` becomes
        ``{"~tuple": [1, 2]}``.
        """
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int | np.integer):
            return int(value)
        if isinstance(value, float | np.floating):
            return float(value) if math.isfinite(value) else {"~float": repr(float(value))}
        if isinstance(value, list | deque):
            return [self._to_json(item) for item in value]
        if isinstance(value, tuple):
            return self._tuple_to_json(value)
        if isinstance(value, dict):
            return self._dict_to_json(value)
        if isinstance(value, np.ndarray | StoredTensor):
            return {"~array": self._name_of(value)}
        if type(value) in SAVED_FORMS:
            if id(value) not in self._indices:  # the first reference to this object
                self._indices[id(value)] = len(self._indices)
                self.objects.append(value)
                self._waiting.append(value)  # ``encode`` encodes its fields later
            return {"~object": self._indices[id(value)]}
        raise CheckpointError(
            f"a {type(value).__name__} cannot be kept in a checkpoint: {str(value)[:80]}"
        )

    def _tuple_to_json(self, value: tuple[object, ...]) -> object:
        if len(value) > _FEW_RANGES and _are_ranges(value):
            if value not in self._ranges:
                self._ranges[value] = np.array(value, dtype=np.int64)
            return {"~ranges": self._name_of(self._ranges[value])}
        items = [self._to_json(item) for item in value]
        form = SAVED_FORMS.get(type(value))
        if form is None:
            return {"~tuple": items}
        return {"~named": [form.name, *items]}

    def _dict_to_json(self, value: Mapping[object, object]) -> object:
        if all(isinstance(key, str) and not key.startswith("~") for key in value):
            return {key: self._to_json(item) for key, item in value.items()}
        pairs = [[self._to_json(key), self._to_json(item)] for key, item in value.items()]
        return {"~dict": pairs}

    def _name_of(self, array: AnyTensor) -> str:
        """Return the name of an array in ``arrays``, to which it is added at its first use."""
        if id(array) not in self._array_names:
            name = f"{len(self.arrays):06d}"
            self._array_names[id(array)] = name
            self.arrays[name] = array
            self.objects.append(array)
        return self._array_names[id(array)]


def _are_ranges(values: tuple[object, ...]) -> TypeGuard[Places]:
    """Return whether all values are pairs of integers: ranges (begin, end) of model parameters."""
    return all(map(_is_range, values))


def _is_range(value: object) -> bool:
    return type(value) is tuple and len(value) == 2 and type(value[0]) is type(value[1]) is int


def _field_of(instance: object, field: str) -> object:
    """Return the value of an object's field in the form in which a checkpoint stores it.

    Weights of a model on disk are stored as a reference, without reading them. A model that is
    computed from other models at each use is stored as the recipe of this computation.
    """
    if isinstance(instance, Ref) and field == "held":
        held = instance.held
        return held.recipe if isinstance(held, Derived) else held
    return getattr(instance, field)


class Decoder:
    """Converter of a checkpoint's tables and arrays back into the objects of a run.

    Args:
        arrays: the arrays by name. Stored arrays are read, except large weights of models.

    Attributes:
        objects: the decoded objects.
    """

    def __init__(self, arrays: Mapping[str, AnyTensor]) -> None:
        self._arrays = arrays
        self._classes: dict[str, type[Any]] = saved_classes()
        self._arrays_read: Arrays = {}  # kept, so that objects that shared an array share it again
        # name of an array -> the ranges (begin, end) of a model's parameters that it has
        self._ranges: dict[str, Places] = {}
        # models to compute from other models, each with the recipe of the computation
        self._derived: list[tuple[Ref, Applied]] = []
        self.objects: list[object] = []

    def decode(self, tables: Any) -> Any:
        """Convert a value back, with all objects that can be reached from it.

        Args:
            tables: the result of ``Encoder.encode``.

        Returns:
            The value.

        Raises:
            CheckpointError: the tables name an unknown class, field or array, or are malformed.
        """
        try:
            # all objects are made before any field is set, as fields refer to other objects
            self.objects = [object.__new__(self._classes[name]) for name, _ in tables["objects"]]
            for shell, (name, content) in zip(self.objects, tables["objects"], strict=True):
                self._fill(shell, name, content)
            for ref, recipe in self._derived:
                ref.held = Derived.of(recipe)
            return self._from_json(tables["root"])
        except _MALFORMED as error:
            raise CheckpointError(
                f"the state is malformed: {type(error).__name__}: {error}"
            ) from None

    def _fill(self, shell: object, name: str, content: Mapping[str, Any]) -> None:
        """Set the fields of an object from their encoded values.

        Args:
            shell: the object, which has no fields yet.
            name: name of its class.
            content: field -> encoded value.
        """
        expected = list_saved_fields(shell)  # empty if the class declares no fields
        if expected and set(content) != set(expected):
            raise CheckpointError(
                f"a {name} has the fields {sorted(content)}; expected are {sorted(expected)}"
            )
        omitted = SAVED_FORMS[type(shell)].omit
        if is_dataclass(shell) and not isinstance(shell, type):
            self._fill_defaults(shell, omitted)
        for field, value in content.items():
            if field in omitted or field.startswith("__"):
                raise CheckpointError(f"a {name} has the field {field!r}, which is never written")
            if isinstance(shell, Ref) and field == "held" and value is not None:
                self._fill_weights(shell, value)
            else:  # ``object.__setattr__`` also sets fields of frozen dataclasses
                object.__setattr__(shell, field, self._from_json(value))

    def _fill_defaults(self, shell: "DataclassInstance", omitted: Collection[str]) -> None:
        """Set the fields that checkpoints leave out to their defaults, if they have one.

        Args:
            shell: the object.
            omitted: names of the fields.
        """
        for field in fields(shell):
            if field.name in omitted and field.default is not MISSING:
                object.__setattr__(shell, field.name, field.default)

    def _fill_weights(self, ref: Ref, value: Mapping[str, object]) -> None:
        """Set the weights of a model from an array, or from a recipe that combines other models.

        The recipe is applied after all objects are decoded.
        """
        if "~array" in value:
            ref.held = self._weights(str(value["~array"]))
            return
        recipe = self._from_json(value)
        if not isinstance(recipe, Applied):
            raise CheckpointError(f"the weights of a model are a {type(recipe).__name__}")
        ref.held = None
        self._derived.append((ref, recipe))  # later: the recipe may not be decoded yet

    def _weights(self, name: str) -> AnyTensor:
        """Return the weights of a model, which remain in the file if they are large."""
        tensor = self._arrays[name]
        if isinstance(tensor, StoredTensor) and tensor.nbytes > scratch.SMALL:
            return tensor
        return self._array(name)

    def _array(self, name: str) -> AnyTensor:
        if name not in self._arrays_read:
            self._arrays_read[name] = array_of(self._arrays[name])
        return self._arrays_read[name]

    def _from_json(self, value: Any) -> Any:
        """Return the Python value that a part of a checkpoint's JSON stands for.

        A JSON object with a single key such as ``~tuple`` or ``~array`` stands for a value of a
        type that JSON lacks.
        """
        if isinstance(value, list):
            return list(map(self._from_json, value))
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "")  # the first key
        if len(value) != 1 or tag not in _TAGS:
            return {key: self._from_json(item) for key, item in value.items()}
        content = value[tag]
        match tag:
            case "~tuple":
                return tuple(map(self._from_json, content))
            case "~named":
                class_name, *fields = content
                return self._classes[class_name]._make(map(self._from_json, fields))
            case "~dict":
                return {self._from_json(key): self._from_json(item) for key, item in content}
            case "~float":
                return _ODD_FLOATS[content]
            case "~array":
                return self._array(content)
            case "~ranges":
                if content not in self._ranges:  # ranges that several objects share are one tuple
                    pairs = array_of(self._arrays[content]).tolist()
                    self._ranges[content] = tuple((begin, end) for begin, end in pairs)
                return self._ranges[content]
        # "~object": the index of an object
        if not isinstance(content, int) or not 0 <= content < len(self.objects):
            raise CheckpointError(f"the state names object {content!r} of {len(self.objects)}")
        return self.objects[content]


def list_saved_fields(value: object) -> list[str]:
    """Return the names of the fields of an object that are saved.

    For a mapping, the fields are its keys; for an object with slots, the slots; for a dataclass,
    its fields; for any other object, the entries of ``vars(value)``. The fields that the class
    omits are left out.

    Args:
        value: an object of a registered class.
    """
    omitted = SAVED_FORMS[type(value)].omit
    return [field for field in _list_fields(value) if field not in omitted]


def _list_fields(value: object) -> list[str]:
    """Return the names of all fields of an object, including fields that are not saved."""
    if isinstance(value, Mapping):  # a TypedDict may have more entries than declared fields
        return list(value)
    slots: list[str] = []  # slots of the bases, then of the class
    for base in reversed(type(value).__mro__):
        names = base.__dict__.get("__slots__", ())
        if isinstance(names, str):
            names = (names,)
        slots += [name for name in names if not name.startswith("__")]
    if not slots and is_dataclass(value):
        return [field.name for field in fields(value)]
    return slots or list(vars(value))
