"""``Spec``, the base of every table of a scenario: a frozen pydantic model that refuses unknown
keys and wrong types.

A spec holds the values of a table and implements the rule that they parametrise: ``Renewal``
holds mean times and draws paths.
"""

import ast
import inspect
import re
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.common.errors import nearest
from fedsim.common.field_words import hint_for_key

Epochs = Annotated[int, Field(ge=1, le=100_000)]
"""Passes over a device's data; bounded because the end of each is recorded."""

Iterations = Annotated[int, Field(ge=1, le=1_000_000)]
"""Steps of SGD."""


def _said(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "not given" if value is None else str(value).lower()
    return repr(getattr(value, "kind", value))


class OnlyWith:
    """Annotation of a key that may be set only where one of the keys ``modes`` has one of
    ``values`` (by default: is true).
    """

    def __init__(self, *modes: str, values: tuple[Any, ...] = ()) -> None:
        self._modes = modes
        self._values = values

    def check(self, spec: "Spec", name: str) -> None:
        """Raise ``ValueError`` if the key ``name`` has no effect in ``spec``."""
        found = {mode: getattr(spec, mode) for mode in self._modes}
        if any(
            getattr(value, "kind", value) in self._values if self._values else value
            for value in found.values()
        ):
            return
        modes = " or ".join(map(repr, self._modes))
        allowed = " or ".join(map(_said, self._values)) or "given"
        here = " and ".join(f"{mode!r} is {_said(value)}" for mode, value in found.items())
        raise ValueError(
            f"'{name}' is {_said(getattr(spec, name))}, which counts only where {modes} is "
            f"{allowed}; here {here}"
        )


class Spec(BaseModel):
    """Base of every table of a scenario.

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

    instead: ClassVar[Mapping[str, str]] = {}
    """Removed key -> its replacement, for keys of a base class or of an earlier version."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        """Refuse an unknown key, with the allowed and the nearest names; -0.0 becomes 0.0."""
        if not isinstance(data, dict):
            return data
        for key in data:
            if key in cls.instead and data[key] is not None:
                said = {"key": repr(key), "instead": repr(cls.instead[key])}
                message = "has the key {key}, which it does not take; allowed is {instead}"
                raise PydanticCustomError("unknown_key", message, said)
            if key not in cls.model_fields:
                hint = hint_for_key(str(key)) or nearest(str(key), cls.model_fields)
                said = {"key": repr(key), "allowed": f"{', '.join(cls.model_fields)}{hint}"}
                raise PydanticCustomError(
                    "unknown_key", "has the unknown key {key}; allowed are {allowed}", said
                )
        return {
            key: value + 0.0 if isinstance(value, float) else value for key, value in data.items()
        }

    @model_validator(mode="after")
    def _keys_have_their_mode(self) -> Self:
        for name, note in _modes_of(type(self)):
            if getattr(self, name) != type(self).model_fields[name].get_default(
                call_default_factory=True
            ):
                note.check(self, name)
        return self

    @classmethod
    def takes(cls) -> set[str]:
        """Names of the accepted keys; a subclass drops an inherited key by annotating it None."""
        return {
            name for name, field in cls.model_fields.items() if field.annotation is not NoneType
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema for TOML editors: descriptions from docstrings, defaults with units, no
        null.
        """
        reference = handler(schema)
        table = handler.resolve_ref_schema(reference)
        told = told_of(cls)
        usual = cls.model_construct().model_dump(mode="json", exclude_none=True, warnings=False)
        keys: JsonSchemaValue = {}
        for name, said in table["properties"].items():
            ways = _ways(said)
            if not ways:
                continue  # dropped by this kind
            keys[name] = ways[0] if len(ways) == 1 else {"anyOf": ways}
            keys[name] |= {
                word: known[name]
                for word, known in (("description", told), ("default", usual))
                if name in known
            }
        table["properties"] = keys
        table["description"] = summary(cls)
        if "kind" in keys:
            table["required"] = ["kind", *table.get("required", ())]
        return reference


@cache
def _modes_of(spec: type[Spec]) -> list[tuple[str, OnlyWith]]:
    """The keys of a spec with an ``OnlyWith``, inherited ones included."""
    specs = [one for one in spec.__mro__ if issubclass(one, Spec)]
    fields = [(name, field) for one in reversed(specs) for name, field in one.model_fields.items()]
    notes = {
        name: note
        for name, field in fields
        for note in field.metadata
        if isinstance(note, OnlyWith)
    }
    return list(notes.items())


def _ways(said: JsonSchemaValue) -> list[JsonSchemaValue]:
    """The alternatives of a value's schema, without null and without pydantic's titles."""
    parts = said.get("anyOf") or said.get("oneOf")
    if parts is not None:
        ways = [way for part in parts for way in _ways(part)]
        return [way for number, way in enumerate(ways) if way not in ways[:number]]
    if said.get("type") == "null":
        return []
    own = said.get("title", "").startswith("a ")  # a quantity's
    return [{key: said[key] for key in said if key != "default" and (key != "title" or own)}]


def json_schema(spec: type[Spec], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """The JSON schema of a spec as a definition within another schema."""
    schema: Any = spec.__pydantic_core_schema__
    name = (
        {"ref": f"{spec.__module__}.{spec.__qualname__}:{id(spec)}"}
        if schema["type"] == "model"
        else {}
    )
    return handler(core_schema.definitions_schema({**schema, **name}, []))


def summary(spec: type) -> str:
    """First paragraph of a class's docstring, which may be inherited."""
    return _plain((inspect.getdoc(spec) or "").partition("Attributes:")[0].partition("\n\n")[0])


@cache
def told_of(spec: type) -> dict[str, str]:
    """The text of each attribute of a class, inherited ones included.

    The text is the string literal behind the attribute, or an entry under "Attributes:" that may
    name several.
    """
    told: dict[str, str] = {}
    for one in reversed(spec.__mro__):
        keys = inspect.cleandoc(one.__dict__.get("__doc__") or "").partition("Attributes:")[2]
        for names, text in re.findall(
            r"^    (\w[\w, ]*): ((?:.*\n?)(?:\n|     .*\n?)*)", keys, re.MULTILINE
        ):
            told |= dict.fromkeys(names.split(", "), _plain(text))
        for field, behind in pairwise(_classes(one.__module__).get(one.__name__, ())):
            match field, behind:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    told[name] = _plain(text)
    return told


@cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """Class name -> statements of its body; empty for a module without source."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}
    return {
        one.name: one.body for one in ast.walk(ast.parse(source)) if isinstance(one, ast.ClassDef)
    }


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("``", "'")
