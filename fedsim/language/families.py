"""Parts of which there are several kinds, found by name or by import path: each kind is registered in one line, with its title.

A kind is a ``Spec``: its parameters and its rule in one class. A scenario names it (``selection = "random"``), with parameters
if need be (``server = { kind = "adam", lr = 0.01 }``); one of the user's own by ``kind = "package.module:Class"``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, TypeVar, get_args

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.errors import ScenarioError, nearest, shown
from fedsim.language.hooks import refuse_wrong_hooks
from fedsim.language.imports import at, find
from fedsim.language.spec import Spec, json_schema

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Family:
    """The kinds of one part.

    Attributes:
        called: what the part is, for people.
        base: the import path of the class that all of them inherit.
        kinds: name -> import path and title, the one line that ``fedsim list`` shows.
        bare: the key whose value may stand for a whole part of the usual kind (``deadline = "90 s"``); None for no such.
        usual: the kind of a table that names none; by default the first.
    """

    called: str
    base: str
    kinds: Mapping[str, tuple[str, str]]
    bare: str | None = None
    usual: str = ""

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def _base(self) -> type:
        return at(self.base, self.called)  # type: ignore[no-any-return]

    def find(self, kind: str, key: str = "kind") -> Any:
        """The class of a kind.

        Raises:
            ScenarioError: there is no such kind, or the path does not lead to one.
        """
        if kind not in self.kinds and ":" not in kind:
            names = ", ".join(self.kinds)
            hint = nearest(kind, self.kinds)
            raise ScenarioError(f"{key} is {shown(kind)}; allowed are {names}, or your own as 'package.module:Class'{hint}")
        if kind in self.kinds:
            return at(self.kinds[kind][0], key)
        found = find(kind, key, self._base, f"fedsim.plugin.{self.base.rpartition(':')[2]}")
        refuse_wrong_hooks(found, key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """The class that a part of this kind is validated by: its own may be named by the path that leads to it."""
        found = self.find(kind, key)
        return found if kind in self.kinds else with_any_kind(found)

    @property
    def validator(self) -> "FamilyValidator":
        """Makes a part of what a scenario says of it: a name, a table, or a part that is made already."""
        return FamilyValidator(self._made)

    def _made(self, value: Any) -> Any:
        if isinstance(value, Spec) or value is None:
            return value
        usual = self.usual or next(iter(self))
        if isinstance(value, str) and (value in self.kinds or ":" in value or self.bare is None):
            value = {"kind": value}
        elif not isinstance(value, Mapping):
            if self.bare is None:
                raise PydanticCustomError("part", "must be the name of a kind, or a table with one", {})
            value = {"kind": usual, self.bare: value}
        kind = value.get("kind", usual)
        if not isinstance(kind, str):
            raise PydanticCustomError("part_kind", "kind is {kind}; it must be a name", {"kind": shown(kind)})
        try:
            return self.spec(kind).model_validate(dict(value))
        except ScenarioError as error:
            raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None


class FamilyValidator(BeforeValidator):
    """What annotates a key that holds a part of a family."""

    @property
    def family(self) -> Family:
        """Whose parts it makes."""
        return self.func.__self__  # type: ignore[union-attr, no-any-return]

    def spec(self, kind: str) -> type[Spec]:
        """The class of a kind."""
        return self.family.spec(kind)

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        family = self.family
        tables = [json_schema(family.spec(kind), handler) for kind in family]
        usual = _without_kind(handler.resolve_ref_schema(tables[[*family].index(family.usual) if family.usual else 0]))
        bare = [] if family.bare is None else [usual["properties"][family.bare]]
        return {"anyOf": [*bare, {"enum": [*family]}, *tables, usual, *_OWN]}


_PATH = {"type": "string", "pattern": ":", "description": "one of your own, as 'package.module:Class'"}
_OWN = (_PATH, {"type": "object", "properties": {"kind": _PATH}, "required": ["kind"]})


def _without_kind(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The same table, where its kind goes without saying."""
    return schema | {
        "properties": schema["properties"] | {"kind": False},
        "required": [key for key in schema.get("required", ()) if key != "kind"],
    }


def specs_of(field: FieldInfo) -> dict[str, type[Spec]]:
    """The tables that a key may hold, by their kind; a table that has none stands under the empty name."""
    return _specs(field.annotation, field.metadata)


def spec_of(field: FieldInfo, kind: str) -> type[Spec] | None:
    """The table of a kind, perhaps the user's own, that a key may hold; None if it may hold none of that kind.

    Raises:
        ScenarioError: the path of one's own does not lead to one, or may not be followed.
    """
    if ":" in kind:
        return next((note.spec(kind) for note in field.metadata if isinstance(note, FamilyValidator | Kinds)), None)
    return specs_of(field).get(kind)


def _specs(annotation: Any, notes: Any) -> dict[str, type[Spec]]:
    for note in notes:
        if isinstance(note, FamilyValidator):
            return {kind: note.family.spec(kind) for kind in note.family}
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        kind = annotation.model_fields.get("kind")
        return {"" if kind is None else str(kind.default): annotation}
    parts = [_specs(part, getattr(annotation, "__metadata__", ())) for part in get_args(annotation)]
    return {kind: spec for part in parts for kind, spec in part.items()}


@cache
def with_any_kind(found: type[S]) -> type[S]:
    """The same, whose ``kind`` may be the path that leads to it."""
    return create_model(found.__name__, __base__=found, __module__=found.__module__, kind=(str, ...))


@dataclass(frozen=True)
class Kinds:
    """Annotates a union of specs that ``kind`` tells apart: a bare name is short for a table with that ``kind``.

    Attributes:
        base: the import path of the class that one of the user's own inherits; None where there can be none.
        usual: the kind of a table that names none; None where each has to.
        bare: the key of the usual kind whose value stands for the whole, instead of a name (``speed = "3 samples/s"``).
        by_device: whether a bare list is short for a ``list`` of values, and a table with a ``file`` needs no kind.
    """

    base: str | None = None
    usual: str | None = None
    bare: str | None = None
    by_device: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        union = handler(source)
        return core_schema.no_info_wrap_validator_function(partial(self._validate, [*union.get("choices", ())]), union)

    def _validate(self, kinds: Sequence[str], value: Any, known: ValidatorFunctionWrapHandler) -> Any:
        if value is None or isinstance(value, Spec):
            return value if ":" in getattr(value, "kind", "") else known(value)
        if self.by_device and isinstance(value, list):
            value = {"kind": "list", "values": value}
        elif self.by_device and isinstance(value, Mapping) and "file" in value:
            value = {"kind": "file"} | dict(value)
        elif not isinstance(value, Mapping):
            value = {"kind": value} if self.bare is None else {"kind": self.usual, self.bare: value}
        elif self.usual is not None and self.bare is None:
            value = {"kind": self.usual} | dict(value)
        kind = value.get("kind")
        if kind is None and kinds:
            raise PydanticCustomError("part_kind", "kind is missing; allowed are {kinds}", {"kinds": ", ".join(kinds)})
        if self.base is None or not isinstance(kind, str) or ":" not in kind:
            return known(value)
        try:
            own = self.spec(kind)
        except ScenarioError as error:
            raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None
        assert own is not None
        return own.model_validate(dict(value))

    def spec(self, kind: str) -> type[Spec] | None:
        """The class of a kind of one's own; None where there can be none."""
        if self.base is None:
            return None
        found = find(kind, "kind", at(self.base, "kind"), f"fedsim.plugin.{self.base.rpartition(':')[2]}")
        refuse_wrong_hooks(found, "kind")
        return with_any_kind(found)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        tables = handler(schema)
        known = tables["discriminator"]["mapping"]
        usual = [] if self.usual is None else [handler.resolve_ref_schema({"$ref": known[self.usual]})]
        short = {"enum": [*known]} if self.bare is None else usual[0]["properties"][self.bare]
        tableless = [_without_kind(schema) for schema in usual if self.bare is None]
        listed = [handler.resolve_ref_schema({"$ref": known["list"]})["properties"]["values"]] if "list" in known else []
        filed = [_without_kind(handler.resolve_ref_schema({"$ref": known["file"]}))] if self.by_device else []
        return {"anyOf": [short, *listed, *tables["oneOf"], *tableless, *filed, *(_OWN if self.base else ())]}
