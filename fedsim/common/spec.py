"""``Spec``, the base class of every table of a scenario.

A spec is a frozen pydantic model, for which unknown keys and wrong types are errors. It holds the
values of a table, and has methods that compute with these values. For example, ``Renewal`` holds
mean times, and draws the times at which devices are available.
"""

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.common.errors import nearest
from fedsim.common.field_words import hint_for_key
from fedsim.common.former_keys import Former, Removed
from fedsim.common.notes import note


def _refuse_values_by_device(value: object) -> object:
    """Return the value of a key that takes one value for all devices.

    Raises:
        PydanticCustomError: the value is a table or a list. Only keys that allow a different value
            for each device take tables and lists.
    """
    if not isinstance(value, dict | list):
        return value
    raise PydanticCustomError(
        "one_value",
        "takes one value for all devices; values by device, or by kind of device, are for the "
        "keys of [population.local]: epochs, steps, batch_size and lr",
    )


ForAll = BeforeValidator(_refuse_values_by_device)
"""Annotation of a key with one value for all devices; ``[population.local]`` has values by device."""

Epochs = Annotated[int, Field(ge=1, le=100_000), ForAll]
"""Passes over a device's data; bounded because the end of each pass is recorded."""

Iterations = Annotated[int, Field(ge=1, le=1_000_000)]
"""Steps of SGD."""

_ATTRIBUTE = re.compile(
    r"^    (\w[\w, ]*): ((?:.*\n?)(?:\n|     .*\n?)*)", re.MULTILINE
)  # matches an entry under "Attributes:" in a docstring: names and description


def _format_value(value: object) -> str:
    """Format the value of a key for messages; a table becomes the name of its kind."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(getattr(value, "kind", value))


class OnlyWith:
    """Annotation of a scenario key that has an effect only if another key has certain values.

    Args:
        modes: names of the other keys of the table. The annotated key has an effect if at least one
            of these keys has a value that is in ``values``.
        values: values of these keys, or kinds of their tables; by default any true value.
    """

    def __init__(self, *modes: str, values: tuple[object, ...] = ()) -> None:
        self._modes = modes
        self._values = values

    def check(self, spec: "Spec", name: str) -> None:
        """Raise ``ValueError`` if a key that is set has no effect with the values of other keys.

        Args:
            spec: the table.
            name: the key that has this annotation; the caller has checked that it is set.
        """
        mode_values = {mode: getattr(spec, mode) for mode in self._modes}
        has_effect = any(map(self._is_met, mode_values.values()))
        if has_effect:
            return
        modes = " or ".join(map(repr, self._modes))
        allowed = " or ".join(map(_format_value, self._values)) or "given"
        phrases = [f"{mode!r} is {_format_value(value)}" for mode, value in mode_values.items()]
        raise ValueError(
            f"'{name}' is {_format_value(getattr(spec, name))}, which counts only where {modes} is "
            f"{allowed}; here {' and '.join(phrases)}"
        )

    def _is_met(self, value: object) -> bool:
        if not self._values:
            return bool(value)
        return getattr(value, "kind", value) in self._values


class Spec(BaseModel):
    """Base of every table of a scenario, validated by pydantic.

    Alternatives for one table are distinguished by the field ``kind``.

    Example:
        >>> from fedsim.plugin import Bytes, Seconds, Spec
        >>> class CacheSpec(Spec):
        ...     capacity: Bytes = 1e9
        ...     lifetime: Seconds = 60.0
        >>> cache = CacheSpec(capacity="5 MB", lifetime="2 min")
        >>> cache.capacity, cache.lifetime
        (5000000.0, 120.0)
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    instead: ClassVar[Former] = {}
    """Key of a base class or an earlier version that the table lacks -> its replacement, or
    ``Removed`` (``common.former_keys`` has the keys of earlier versions).
    """

    renamed: ClassVar[Mapping[str, str]] = {}
    """Earlier name of a key -> its present name; the earlier name is read too, with a note."""

    @classmethod
    def with_present_names(cls, data: Mapping[str, object]) -> dict[str, object]:
        """Return a table in which earlier names of keys are replaced by the present names.

        Args:
            data: the table as it was written.

        Raises:
            PydanticCustomError: the table has a key under both names.
        """
        present: dict[str, object] = {}
        for key, value in data.items():
            name = cls.renamed.get(key, key)
            is_renamed = name != key
            if is_renamed:
                if name in data:
                    raise PydanticCustomError(
                        "unknown_key",
                        "has {key}, an earlier name, and {name}; allowed is {name} alone",
                        {"key": repr(key), "name": repr(name)},
                    )
                note(f"{key!r} is read as {name!r}, as it is called now")
            present[name] = value
        return present

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        """Raise an error for an unknown key, which names the allowed keys and the nearest one.

        Returns:
            The table with the present names of keys; values -0.0 become 0.0.
        """
        if not isinstance(data, dict):
            return data
        data = cls.with_present_names(data)
        for key in data:
            if key in cls.instead and data[key] is not None:
                raise _refusal_of_former(str(key), cls.instead[key])
            if key not in cls.model_fields:
                # lists the accepted keys in the order of the class's fields
                accepted = [name for name in cls.model_fields if name in cls.takes()]
                names = ", ".join(accepted)
                hint = hint_for_key(str(key)) or nearest(str(key), accepted)
                raise PydanticCustomError(
                    "unknown_key",
                    "has the unknown key {key}; allowed are {allowed}",
                    {"key": repr(key), "allowed": f"{names}{hint}"},
                )
        # the sum turns -0.0 into 0.0, and leaves other numbers unchanged
        return {
            key: value + 0.0 if isinstance(value, float) else value for key, value in data.items()
        }

    @model_validator(mode="after")
    def _check_modes(self) -> Self:
        """Raise an error if a key is set that has no effect with the other keys of the table.

        The annotation ``OnlyWith`` of a key names the other keys and values that the key needs.
        """
        fields = type(self).model_fields
        for name, only_with in _modes_of(type(self)):
            default = fields[name].get_default(call_default_factory=True)
            if getattr(self, name) != default:
                only_with.check(self, name)
        return self

    @classmethod
    def takes(cls) -> set[str]:
        """Return the names of the keys that the table accepts.

        A subclass drops an inherited key by annotating it None.
        """
        fields = cls.model_fields.items()
        return {name for name, field in fields if field.annotation is not NoneType}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the table's JSON schema for TOML editors, made from pydantic's schema.

        The schema has descriptions from docstrings, and defaults with units. It does not allow
        null, which TOML lacks.
        """
        reference = handler(schema)  # a dict {"$ref": name of the table}
        table = handler.resolve_ref_schema(reference)
        keys = cls._describe_keys(table["properties"])
        table["properties"] = keys
        table["description"] = summary(cls)
        if "kind" in keys:
            table["required"] = ["kind", *table.get("required", ())]
        return reference

    @classmethod
    def _describe_keys(cls, properties: JsonSchemaValue) -> JsonSchemaValue:
        """Return the schemas of the table's keys, with their descriptions and defaults.

        Args:
            properties: pydantic's schemas by key, including inherited keys that the table lacks.
        """
        descriptions = attribute_descriptions(cls)
        defaults = cls.model_construct().model_dump(mode="json", exclude_none=True, warnings=False)
        keys: JsonSchemaValue = {}
        for name, key_schema in properties.items():
            options = _options_of(key_schema)
            if not options:
                continue  # the key is inherited, and this table does not have it
            keys[name] = options[0] if len(options) == 1 else {"anyOf": options}
            if name in descriptions:
                keys[name]["description"] = descriptions[name]
            if name in defaults:
                keys[name]["default"] = defaults[name]
        return keys


def _refusal_of_former(key: str, instead: str | Removed) -> PydanticCustomError:
    """Return the error for a key that the table does not take, which says what to do instead.

    Args:
        key: the key, such as one of an earlier version.
        instead: the key to use in its place, or ``Removed`` if there is none.
    """
    if not isinstance(instead, Removed):
        return PydanticCustomError(
            "unknown_key",
            "has the key {key}, which it does not take; allowed is {instead}",
            {"key": repr(key), "instead": repr(instead)},
        )
    if instead.left is None:
        return PydanticCustomError(
            "unknown_key",
            "has the key {key} of an earlier version; remove it: all is now as without it",
            {"key": repr(key)},
        )
    return PydanticCustomError(
        "unknown_key",
        "has the key {key} of an earlier version; remove it: it is now always {left}",
        {"key": repr(key), "left": _format_value(instead.left)},
    )


@cache
def _modes_of(spec: type[Spec]) -> list[tuple[str, OnlyWith]]:
    """Return the keys of a table that have an effect only with certain values of other keys.

    Args:
        spec: the class of the table; inherited keys are included.

    Returns:
        Name of the key, and its annotation ``OnlyWith``.
    """
    modes: dict[str, OnlyWith] = {}
    for parent in reversed(spec.__mro__):  # a subclass replaces the annotations of its bases
        if not issubclass(parent, Spec):
            continue
        for name, field in parent.model_fields.items():
            for annotation in field.metadata:
                if isinstance(annotation, OnlyWith):
                    modes[name] = annotation
    return list(modes.items())


def _options_of(schema: JsonSchemaValue) -> list[JsonSchemaValue]:
    """Return the alternatives of a value's JSON schema as a flat list.

    Left out are the alternative null, defaults, and the titles that pydantic makes.
    """
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives is not None:
        options: list[JsonSchemaValue] = []
        for alternative in alternatives:
            for option in _options_of(alternative):
                if option not in options:
                    options.append(option)
        return options
    if schema.get("type") == "null":
        return []
    option = dict(schema)
    option.pop("default", None)
    # pydantic makes titles from names of keys; only the title of a quantity, such as "a time", is
    # fedsim's
    is_quantity = schema.get("title", "").startswith("a ")
    if not is_quantity:
        option.pop("title", None)
    return [option]


def json_schema(spec: type[Spec], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return the JSON schema of a scenario table, to be part of a larger schema.

    Args:
        spec: the class of the table.
        handler: pydantic's generator of the larger schema.
    """
    return handler(core_schema.definitions_schema(spec.__pydantic_core_schema__, []))


def summary(spec: type) -> str:
    """Return the first paragraph of a class's docstring, which may be inherited.

    Args:
        spec: the class.
    """
    text = (inspect.getdoc(spec) or "").partition("Attributes:")[0]
    return _as_one_line(text.partition("\n\n")[0])


@cache
def attribute_descriptions(spec: type) -> dict[str, str]:
    """Return the description of each attribute of a class, including inherited attributes.

    The description is the string literal after the attribute, or an entry under "Attributes:" of
    the docstring, which may be for several attributes.

    Args:
        spec: the class.

    Returns:
        Name -> description in one line.
    """
    descriptions: dict[str, str] = {}
    for parent in reversed(spec.__mro__):  # a subclass replaces the descriptions of its bases
        docstring = inspect.cleandoc(parent.__dict__.get("__doc__") or "")
        entries = docstring.partition("Attributes:")[2]
        for names, text in _ATTRIBUTE.findall(entries):
            descriptions |= dict.fromkeys(names.split(", "), _as_one_line(text))
        body = _class_bodies(parent.__module__).get(parent.__name__, [])
        for statement, following in pairwise(body):
            # matches an annotated attribute, and the string literal after it
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    descriptions[name] = _as_one_line(text)
    return descriptions


@cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Parse the classes of a module: class name -> statements; empty if it has no source."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}
    nodes = ast.walk(ast.parse(source))
    return {node.name: node.body for node in nodes if isinstance(node, ast.ClassDef)}


def _as_one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "'")
