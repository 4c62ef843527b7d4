"""Registries: the kinds of each part of a scenario, found by name, by entry point of an
installed package, or by import path.

A kind is a ``Spec``: parameters and rule in one class. A scenario names a kind (``selection =
"random"``), or gives a table with its parameters (``server = { kind = "adam", lr = 0.01 }``).
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.common.errors import ScenarioError, nearest, shown
from fedsim.common.field_words import hint_for_kind
from fedsim.common.imports import at, entry_points_of, find
from fedsim.common.returns import guard
from fedsim.common.spec import Spec, json_schema, summary

S = TypeVar("S", bound=Spec)

_PATH = {
    "type": "string",
    "pattern": ":",
    "description": "one of your own, as 'package.module:Class'",
}
_OWN = (_PATH, {"type": "object", "properties": {"kind": _PATH}, "required": ["kind"]})
_NAME = re.compile(r"[A-Za-z][\w-]*")
_IMPORT_PATH = re.compile(r"[\w./-]+:[A-Za-z_]\w*")


@dataclass(frozen=True, eq=False)
class Registry:
    """The kinds of one part.

    As an annotation it validates a name, a table or a ``Spec`` instance as one of them.
    """

    called: str
    """name of the part in messages; ``group`` is named after it."""
    base: str
    """import path of the class that all kinds inherit; empty where users cannot add a kind."""
    known: Mapping[str, tuple[str | type[Spec], str]] = field(repr=False)
    """name -> import path or class, and the title that ``fedsim list`` shows."""
    usual: str | None = None
    """the kind of a table that names none; None: the table must name one."""
    bare: str | None = None
    """the key of the usual kind whose bare value is accepted for the whole table (``deadline =
    "90 s"``).
    """
    by_device: bool = False
    """whether a list is accepted as kind ``list``, and a table with the key ``file`` as kind
    ``file``.
    """
    key: str = ""
    """the key of a scenario that holds the part, in messages about a user's class."""

    @classmethod
    def of(cls, called: str, *specs: type[Spec], base: str = "", **options: Any) -> "Registry":
        """A registry of classes, each under the default of its ``kind`` and with the first
        sentence of its docstring.
        """
        return cls(
            called,
            base,
            {spec.model_fields["kind"].default: (spec, summary(spec)) for spec in specs},
            **options,
        )

    @property
    def group(self) -> str | None:
        """Entry point group for kinds of packages, ``fedsim.server_optimiser`` say; None: no own
        kinds.
        """
        return f"fedsim.{self.called.replace(' ', '_')}" if self.base else None

    @cached_property
    def kinds(self) -> Mapping[str, str | type[Spec]]:
        """Name -> class or its import path, for fedsim's kinds and those registered by installed
        packages.
        """
        registered = {}
        if self.group is not None:
            # its spelling until 2026, which setuptools refuses
            earlier = self.group.replace("_", "-")
            registered = entry_points_of(earlier) | entry_points_of(self.group)
        return registered | {name: found for name, (found, _) in self.known.items()}

    @property
    def titles(self) -> dict[str, str]:
        return {
            name: self.known[name][1] if name in self.known else summary(self.find(name))
            for name in self.kinds
        }

    def find(self, kind: str, key: str = "kind") -> Any:
        """The class of a kind; raises ``ScenarioError`` if there is none, or the path does not
        lead to one.
        """
        if kind in self.known:
            found = self.known[kind][0]
            return at(found, key) if isinstance(found, str) else found
        path = kind if ":" in kind and self.base else self.kinds.get(kind)
        if path is None:
            own = ["your own as 'package.module:Class'"] if self.base else []
            allowed = ", or ".join([", ".join(self.kinds), *own] if self.kinds else own)
            is_path = self._is_refused_path(kind)
            why = ", a class of your own, which is not taken here" if is_path else ""
            hint = hint_for_kind(kind) or nearest(kind, self.kinds)
            raise ScenarioError(f"{key} is {shown(kind)}{why}; allowed are {allowed}{hint}")
        public = f"fedsim.plugin.{self.base.rpartition(':')[2]}"
        found = find(str(path), key, at(self.base, self.called), public, permitted=path is not kind)
        guard(found, self.key or self.called, key)
        return found

    def names(self, text: str) -> bool:
        """Whether a text is the name of a kind, or the import path of a user's class."""
        if ":" in text:
            return bool(self.base)
        return text in self.known or (_NAME.fullmatch(text) is not None and text in self.kinds)

    def _is_kind(self, text: str) -> bool:
        """Whether a text in place of a table is a kind, and no value of the key ``bare``."""
        return self.bare is None or self.names(text) or self._is_refused_path(text)

    def _is_refused_path(self, text: str) -> bool:
        return not self.base and _IMPORT_PATH.fullmatch(text) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """The class that validates a table of this kind; the ``kind`` of a user's own class may
        be any name or path.
        """
        found = self.find(kind, key)
        return found if kind in self.known else with_any_kind(found)

    def holds(self, value: Spec) -> bool:
        """Whether this object is a part of this registry: of a known kind, or of a class made
        for it.
        """
        if self.base and isinstance(value, at(self.base, self.called)):
            return True
        return getattr(value, "kind", None) in self.kinds

    def _made(self, value: Any) -> Any:
        if isinstance(value, Spec) and self.holds(value):
            try:
                guard(type(value), self.key or self.called, "kind")
            except ScenarioError as error:
                raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None
            return value
        if self.by_device and isinstance(value, list):
            value = {"kind": "list", "values": value}
        elif self.by_device and isinstance(value, Mapping) and "file" in value:
            value = {"kind": "file", **value}
        elif isinstance(value, str) and self._is_kind(value):
            value = {"kind": value}
        elif not isinstance(value, Mapping):
            if self.bare is None:
                raise PydanticCustomError(
                    "part", "must be the name of a kind, or a table with one", {}
                )
            value = {self.bare: value}
        kind = value.get("kind", self.usual)
        if kind is None:
            raise PydanticCustomError(
                "part_kind",
                "kind is missing; allowed are {kinds}",
                {"kinds": ", ".join(self.kinds)},
            )
        if not isinstance(kind, str):
            raise PydanticCustomError(
                "part_kind", "kind is {kind}; it must be a name", {"kind": shown(kind)}
            )
        try:
            return self.spec(kind).model_validate({**value, "kind": kind})
        except ScenarioError as error:
            raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._made, core_schema.any_schema())

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tables = {kind: json_schema(self.spec(kind), handler) for kind in self.kinds}
        short = {
            kind: handler.resolve_ref_schema(tables[kind])
            for kind in (self.usual, "list", "file")
            if kind in tables
        }
        bare = [] if self.bare is None else [short[str(self.usual)]["properties"][self.bare]]
        listed = (
            [short["list"]["properties"]["values"]] if self.by_device and "list" in short else []
        )
        kindless = [
            _without_kind(table)
            for kind, table in short.items()
            if kind == self.usual or self.by_device
        ]
        return {
            "anyOf": [
                *bare,
                *listed,
                {"enum": [*self]},
                *tables.values(),
                *kindless,
                *(_OWN if self.base else ()),
            ]
        }


def _without_kind(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema of a table that does not name its kind."""
    required = [key for key in schema.get("required", ()) if key != "kind"]
    return schema | {"properties": schema["properties"] | {"kind": False}, "required": required}


def specs_of(field: FieldInfo) -> dict[str, type[Spec]]:
    """The tables that a key may hold, by kind; a table without kinds has the empty name."""
    return _specs(field.annotation, field.metadata)


def spec_of(field: FieldInfo, kind: str) -> type[Spec] | None:
    """The table of a kind that a key may hold, or None; ``ScenarioError`` for an import path
    that leads to no such class.
    """
    if ":" in kind:
        return next(
            (
                note.spec(kind)
                for note in field.metadata
                if isinstance(note, Registry) and note.base
            ),
            None,
        )
    return specs_of(field).get(kind)


def _specs(annotation: Any, notes: Any) -> dict[str, type[Spec]]:
    for note in notes:
        if isinstance(note, Registry):
            return {kind: note.spec(kind) for kind in note}
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        kind = annotation.model_fields.get("kind")
        return {"" if kind is None else str(kind.default): annotation}
    parts = [_specs(part, getattr(annotation, "__metadata__", ())) for part in get_args(annotation)]
    return {kind: spec for part in parts for kind, spec in part.items()}


def keys_of(call: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """The parameters of a callable after the first, as fields for ``create_model``; and whether
    it takes ``**``.
    """
    parameters = list(inspect.signature(call, eval_str=True).parameters.values())
    is_open = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    fields = {
        one.name: (
            Any if one.annotation is one.empty else one.annotation,
            ... if one.default is one.empty else one.default,
        )
        for one in (parameters[1:-1] if is_open else parameters[1:])
    }
    return fields, is_open


@cache
def with_any_kind(found: type[S]) -> type[S]:
    """A class with the same keys whose ``kind`` may be any text."""
    return create_model(
        found.__name__, __base__=found, __module__=found.__module__, kind=(str, ...)
    )
