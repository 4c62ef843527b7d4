"""Registries of the kinds of each part of a scenario.

A kind is found by its name, by an entry point of an installed package, or by its import path. A
kind is a subclass of ``Spec``, with its parameters and its rule in one class. A scenario names a
kind (``selection = "random"``), or has a table with its parameters
(``server = { kind = "adam", lr = 0.01 }``).
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.common.errors import ScenarioError, nearest, show_value
from fedsim.common.field_words import hint_for_kind
from fedsim.common.imports import entry_points_of, import_class, import_trusted
from fedsim.common.returns import guard
from fedsim.common.spec import Spec, json_schema, summary

S = TypeVar("S", bound=Spec)

_PATH = {
    "type": "string",
    "pattern": ":",
    "description": "one of your own, as 'package.module:Class'",
}
_OWN: tuple[JsonSchemaValue, ...] = (
    _PATH,
    {"type": "object", "properties": {"kind": _PATH}, "required": ["kind"]},
)
_NAME = re.compile(r"[A-Za-z][\w-]*")
_IMPORT_PATH = re.compile(r"[\w./-]+:[A-Za-z_]\w*")


@dataclass(frozen=True, eq=False)
class Registry:
    """Registry of the kinds (alternatives) of a part of a scenario, such as all selections.

    As a pydantic annotation, it validates a name, a table or a ``Spec`` instance as one of the
    kinds.

    Attributes:
        called: name of the part in messages, from which the name of ``group`` is derived.
        base: import path of the class that all kinds inherit; empty if users cannot add a kind.
        known: name -> import path or class, and the title that ``fedsim list`` shows.
        usual: the kind of a table without ``kind``; None if the table must have a ``kind``.
        bare: the key of the usual kind whose bare value is accepted for the whole table
            (``deadline = "90 s"``).
        by_device: whether a list is accepted as kind ``list``, and a table with the key ``file`` as
            kind ``file``.
        key: the key of a scenario that holds the part, in messages about a user's class.
        by_kind: whether a table without ``kind`` and ``file`` is accepted as kind ``by-kind``, with
            a value for each kind of device.
    """

    called: str
    base: str
    known: Mapping[str, tuple[str | type[Spec], str]] = field(repr=False)
    usual: str | None = None
    bare: str | None = None
    by_device: bool = False
    key: str = ""
    by_kind: bool = False

    @classmethod
    def of(
        cls,
        called: str,
        *specs: type[Spec],
        base: str = "",
        usual: str | None = None,
        bare: str | None = None,
        by_device: bool = False,
        key: str = "",
        by_kind: bool = False,
    ) -> "Registry":
        """Make a registry of classes, each under the default of its field ``kind``.

        The first sentence of a class's docstring is its title in lists of kinds.

        Args:
            called: name of the part in messages.
            specs: the classes of the built-in kinds.
            base, usual, bare, by_device, key, by_kind: values of the attributes with these names.
        """
        known = {spec.model_fields["kind"].default: (spec, summary(spec)) for spec in specs}
        return cls(called, base, known, usual, bare, by_device, key, by_kind)

    @property
    def group(self) -> str | None:
        """Entry point group by which packages add kinds, such as ``fedsim.server_optimiser``.

        None if users cannot add a kind.
        """
        return f"fedsim.{self.called.replace(' ', '_')}" if self.base else None

    @cached_property
    def kinds(self) -> Mapping[str, str | type[Spec]]:
        """Kinds of fedsim and of installed packages: name -> class or its import path."""
        kinds: dict[str, str | type[Spec]] = {}
        if self.group is not None:
            # spelling of the group until 2026, which setuptools refuses
            earlier_group = self.group.replace("_", "-")
            kinds |= entry_points_of(earlier_group)
            kinds |= entry_points_of(self.group)
        for name, (source, _) in self.known.items():
            kinds[name] = source
        return kinds

    @property
    def titles(self) -> dict[str, str]:
        """Return the one-line description of each kind, by name of the kind."""
        titles = {}
        for name in self.kinds:
            if name in self.known:
                titles[name] = self.known[name][1]
            else:
                titles[name] = summary(self.class_of(name))
        return titles

    def class_of(self, kind: str, key: str = "kind") -> Any:
        """Return the class of a kind, such as ``SGD`` for the server optimiser ``sgd``.

        Args:
            kind: name of a kind, or import path of a user's class.
            key: the key of a scenario that holds the kind, in messages.

        Raises:
            ScenarioError: the kind or the class at the path does not exist.
        """
        if kind in self.known:
            source = self.known[kind][0]
            return import_trusted(source, key) if isinstance(source, str) else source
        is_path = ":" in kind and bool(self.base)
        path = kind if is_path else self.kinds.get(kind)
        if path is None:
            raise ScenarioError(f"{key} is {show_value(kind)}{self._why_refused(kind)}")
        public_name = f"fedsim.plugin.{self.base.rpartition(':')[2]}"
        base = import_trusted(self.base, self.called)
        kind_class = import_class(str(path), key, base, public_name, is_trusted=path is not kind)
        guard(kind_class, self.key or self.called, key)
        return kind_class

    def _why_refused(self, kind: str) -> str:
        """Return the part of an error's message that says why a kind is unknown, and which are allowed.

        Args:
            kind: the unknown kind.
        """
        options = []
        if self.kinds:
            options.append(", ".join(self.kinds))
        if self.base:
            options.append("your own as 'package.module:Class'")
        reason = ""
        if self._is_refused_path(kind):
            reason = ", a class of your own, which is not taken here"
        hint = hint_for_kind(kind) or nearest(kind, self.kinds)
        if reason and "module" in self.kinds:
            hint = f" (your own is {{ kind = 'module', factory = {kind!r} }})"
        return f"{reason}; allowed are {', or '.join(options)}{hint}"

    def names(self, text: str) -> bool:
        """Return whether a text is the name of a kind, or the import path of a user's class."""
        if ":" in text:
            return bool(self.base)
        return text in self.known or (_NAME.fullmatch(text) is not None and text in self.kinds)

    def _is_kind(self, text: str) -> bool:
        """Whether a text in place of a table is a kind, and not a value of the key ``bare``.

        An import path that is not allowed counts as a kind, so that its message is about kinds.
        """
        return self.bare is None or self.names(text) or self._is_refused_path(text)

    def _is_refused_path(self, text: str) -> bool:
        return not self.base and _IMPORT_PATH.fullmatch(text) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        """Return the class that validates a table of a kind.

        For a user's class, the table's ``kind`` may be any name or path.

        Args:
            kind: name of a kind, or import path of a user's class.
            key: dotted key of the scenario with this value, which errors name.

        Raises:
            ScenarioError: there is no such kind, or the path leads to no such class.
        """
        kind_class: type[Spec] = self.class_of(kind, key)
        return kind_class if kind in self.known else with_any_kind(kind_class)

    def holds(self, value: Spec) -> bool:
        """Return whether an object is an instance of one of this registry's kinds, or of their base."""
        if self.base and isinstance(value, import_trusted(self.base, self.called)):
            return True
        return getattr(value, "kind", None) in self.kinds

    def _validate(self, value: object) -> Spec:
        """Return the object that a value in a scenario describes.

        Args:
            value: name of a kind, a table, a short form, or the object itself, which is checked and
                returned.

        Raises:
            PydanticCustomError: the value describes no kind of this registry.
        """
        if isinstance(value, Spec) and self.holds(value):
            try:
                guard(type(value), self.key or self.called, "kind")
            except ScenarioError as error:
                raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None
            return value
        table = self._table_of(value)
        kind = table.get("kind", self.usual)
        if kind is None:
            raise PydanticCustomError(
                "part_kind",
                "kind is missing; allowed are {kinds}",
                {"kinds": ", ".join(self.kinds)},
            )
        if not isinstance(kind, str):
            raise PydanticCustomError(
                "part_kind", "kind is {kind}; it must be a name", {"kind": show_value(kind)}
            )
        try:
            spec = self.spec(kind)
            if "kind" not in table:
                self._require_keys(spec, kind, table)
            return spec.model_validate({**table, "kind": kind})
        except ScenarioError as error:
            raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None

    def _require_keys(self, spec: type[Spec], kind: str, table: Mapping[str, object]) -> None:
        """Raise an error that lists all kinds if a table has no kind and fits the usual kind badly.

        It fits badly if it lacks a key that the usual kind requires: another kind was probably meant.

        Args:
            spec: class of the usual kind.
            kind: name of the usual kind.
            table: the table.
        """
        for name, key in spec.model_fields.items():
            if key.is_required() and name not in table:
                raise PydanticCustomError(
                    "part_kind",
                    "{name} is missing: without 'kind' it is {kind}, which needs it; allowed kinds "
                    "are {kinds}",
                    {"name": name, "kind": repr(kind), "kinds": ", ".join(self.kinds)},
                )

    def _table_of(self, value: object) -> Mapping[str, object]:
        """Return the table that a value in a scenario stands for, such as a kind's name or a list.

        Raises:
            PydanticCustomError: the value has none of the accepted forms.
        """
        if self.by_device and isinstance(value, list):
            return {"kind": "list", "values": value}
        if self.by_device and isinstance(value, Mapping) and "file" in value:
            return {"kind": "file", **value}
        if self.by_kind and isinstance(value, Mapping) and "kind" not in value:
            return {"kind": "by-kind", "values": value}
        if isinstance(value, str) and self._is_kind(value):
            return {"kind": value}
        if isinstance(value, Mapping):
            return value
        if self.bare is None:
            raise PydanticCustomError("part", "must be the name of a kind, or a table with one", {})
        return {self.bare: value}

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        any_schema = core_schema.any_schema()
        return core_schema.no_info_before_validator_function(self._validate, any_schema)

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tables = {kind: json_schema(self.spec(kind), handler) for kind in self.kinds}
        # schemas of tables that may omit their kind
        short: dict[str, JsonSchemaValue] = {}
        for kind in (self.usual, "list", "file"):
            if kind is not None and kind in tables:
                short[kind] = handler.resolve_ref_schema(tables[kind])
        options: list[JsonSchemaValue] = []
        if self.bare is not None:
            options.append(short[str(self.usual)]["properties"][self.bare])
        if self.by_device and "list" in short:
            options.append(short["list"]["properties"]["values"])
        if self.by_kind:
            by_kind = handler.resolve_ref_schema(tables["by-kind"])
            options.append(by_kind["properties"]["values"])
        options.append({"enum": [*self]})
        options += tables.values()
        for kind, table in short.items():
            if kind == self.usual or self.by_device:
                options.append(_without_kind(table))
        if self.base:
            options += _OWN
        return {"anyOf": options}


def _without_kind(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a table without its key ``kind``."""
    required = [key for key in schema.get("required", ()) if key != "kind"]
    return schema | {"properties": schema["properties"] | {"kind": False}, "required": required}


def specs_of(field: FieldInfo) -> dict[str, type[Spec]]:
    """Return the classes of the tables that a scenario key accepts: kind -> class.

    A class without kinds has the empty name.

    Args:
        field: pydantic's description of the key.
    """
    return _specs(field.annotation, field.metadata)


def spec_of(field: FieldInfo, kind: str) -> type[Spec] | None:
    """Return the class of a table that a scenario key accepts for a kind.

    Args:
        field: pydantic's description of the key.
        kind: name of the kind, or import path of a user's class.

    Returns:
        The class; None if the key does not accept this kind.

    Raises:
        ScenarioError: the class at the import path does not exist.
    """
    if ":" not in kind:
        return specs_of(field).get(kind)
    for note in field.metadata:
        if isinstance(note, Registry) and note.base:
            return note.spec(kind)
    return None


def _specs(annotation: object, notes: Iterable[object]) -> dict[str, type[Spec]]:
    for note in notes:
        if isinstance(note, Registry):
            return {kind: note.spec(kind) for kind in note}
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        kind = annotation.model_fields.get("kind")
        return {"" if kind is None else str(kind.default): annotation}
    specs: dict[str, type[Spec]] = {}
    for part in get_args(annotation):
        specs |= _specs(part, getattr(annotation, "__metadata__", ()))
    return specs


def keys_of(call: Callable[..., object]) -> tuple[dict[str, Any], bool]:
    """Return the parameters of a function as keys of a scenario table, for pydantic.

    Args:
        call: the function or class, whose first parameter is left out.

    Returns:
        Name -> type and default of each parameter, for pydantic's ``create_model``, and whether
        the function takes ``**``.
    """
    parameters = list(inspect.signature(call, eval_str=True).parameters.values())
    is_open = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    if is_open:
        parameters.pop()
    fields = {}
    for parameter in parameters[1:]:
        is_typed = parameter.annotation is not parameter.empty
        annotation = parameter.annotation if is_typed else Any
        has_default = parameter.default is not parameter.empty
        default = parameter.default if has_default else ...
        fields[parameter.name] = (annotation, default)
    return fields, is_open


@cache
def with_any_kind(spec: type[S]) -> type[S]:
    """Return a subclass of a table's class that accepts any text as the required key ``kind``.

    It is the table of a user's own class, whose ``kind`` is an import path.
    """
    return create_model(spec.__name__, __base__=spec, __module__=spec.__module__, kind=(str, ...))
