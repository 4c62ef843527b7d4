"""Registries: the kinds of each part of a scenario, found by name, by entry point of an
installed package, or by import path.

A kind is a ``Spec``: parameters and rule in one class. A scenario names a kind (``selection =
"random"``), or gives a table with its parameters (``server = { kind = "adam", lr = 0.01 }``).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.common.errors import ScenarioError, home_of, nearest, shown
from fedsim.common.imports import at, entry_points_of, find
from fedsim.common.spec import Spec, json_schema, summary

S = TypeVar("S", bound=Spec)

_PATH = {
    "type": "string",
    "pattern": ":",
    "description": "one of your own, as 'package.module:Class'",
}
_OWN = (_PATH, {"type": "object", "properties": {"kind": _PATH}, "required": ["kind"]})
_HALVES = ("Client", "Params")  # attributes of a strategy that hold further classes of its author
_UNIONS = (Union, UnionType)
_KEY = object()  # marks an overridden field of a spec


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
            raise ScenarioError(
                f"{key} is {shown(kind)}; allowed are {allowed}{nearest(kind, self.kinds)}"
            )
        public = f"fedsim.plugin.{self.base.rpartition(':')[2]}"
        found = find(str(path), key, at(self.base, self.called), public, permitted=path is not kind)
        refuse_wrong_hooks(found, key)
        return found

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
            return value
        if self.by_device and isinstance(value, list):
            value = {"kind": "list", "values": value}
        elif self.by_device and isinstance(value, Mapping) and "file" in value:
            value = {"kind": "file", **value}
        elif isinstance(value, str) and (
            self.bare is None or value in self.known or (self.base and ":" in value)
        ):
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


@cache
def refuse_wrong_hooks(found: type, key: str) -> None:
    """Refuse a user's class, or its ``Client`` or ``Params``, with a hook of another form than
    the one it overrides.
    """
    halves = [half for half in map(vars(found).get, _HALVES) if isinstance(half, type)]
    for one in (found, *halves):
        for name, own, base in _overrides(one):
            if wanted := _wanted(own, base):
                where = home_of(own.fget if isinstance(own, property) else own) or home_of(one)
                raise ScenarioError(
                    f"{key}: {one.__qualname__}.{name}{where} is {_form(own)}; it must be {wanted}"
                )
        for name, own_type, inherited_type in _retyped_keys(one):
            wrong = (
                f"{one.__qualname__}.{name}{home_of(one)} is a key of type {_type_name(own_type)}"
            )
            allowed = (
                f"the inherited key holds {_type_name(inherited_type)}: repeat its type, or choose "
                "another name"
            )
            raise ScenarioError(f"{key}: {wrong}; {allowed}")


def _overrides(one: type) -> Iterator[tuple[str, Any, Any]]:
    """The public names that a user's own class overrides: name, own attribute, fedsim's
    attribute.
    """
    own: dict[str, Any] = {}
    for parent in one.__mro__:
        if parent.__module__.partition(".")[0] != "fedsim":
            keys = [
                name
                for name in vars(parent).get("__annotations__", ())
                if name in getattr(parent, "model_fields", ())
            ]
            own = {**vars(parent), **dict.fromkeys(keys, _KEY), **own}
            continue
        for name, base in vars(parent).items():
            if name in own and not name.startswith("_"):
                yield name, own.pop(name), base


def _retyped_keys(spec: type) -> Iterator[tuple[str, Any, Any]]:
    """The keys that a user's class declares anew with another type: name, its type, and the type
    of fedsim's key.
    """
    if not issubclass(spec, Spec):
        return
    of_fedsim = next(
        parent for parent in spec.__mro__ if parent.__module__.partition(".")[0] == "fedsim"
    )
    for name, inherited in getattr(of_fedsim, "model_fields", {}).items():
        own = spec.model_fields[name].annotation
        is_dropped = own is NoneType
        if name != "kind" and not is_dropped and not _is_narrower(own, inherited.annotation):
            yield name, own, inherited.annotation


def _is_narrower(own: Any, inherited: Any) -> bool:
    """Whether every value of the type ``own`` is one of the type ``inherited``, as far as the
    types themselves say.
    """
    if own == inherited or inherited is Any:
        return True
    own_types = {*get_args(own)} if get_origin(own) in _UNIONS else {own}
    inherited_types = {*get_args(inherited)} if get_origin(inherited) in _UNIONS else {inherited}
    return all(
        any(_is_narrower_plain(one, other) for other in inherited_types) for one in own_types
    )


def _is_narrower_plain(own: Any, inherited: Any) -> bool:
    if own == inherited:
        return True
    if get_origin(own) is Literal:
        allowed = get_args(inherited) if get_origin(inherited) is Literal else None
        return all(
            value in allowed if allowed is not None else type(value) is inherited
            for value in get_args(own)
        )
    return (
        isinstance(own, type)
        and isinstance(inherited, type)
        and issubclass(own, inherited)
        and own is not bool
    )


def _type_name(annotation: Any) -> str:
    return (
        annotation.__name__
        if isinstance(annotation, type)
        else str(annotation).replace("typing.", "")
    )


def _form(hook: Any) -> str:
    if isinstance(hook, property | cached_property):
        return "a property"
    if isinstance(hook, FunctionType):
        given = f"{hook.__name__}({', '.join(inspect.signature(hook).parameters)})"
        return (
            f"'async def {given}'"
            if inspect.iscoroutinefunction(inspect.unwrap(hook))
            else f"'def {given}'"
        )
    return (
        "a class method"
        if isinstance(hook, classmethod)
        else "a key"
        if hook is _KEY
        else "a value"
    )


def _wanted(own: Any, base: Any) -> str:
    """The form that a hook must have; empty if its own form is right."""
    if isinstance(base, property) and (isinstance(own, FunctionType) or own is _KEY):
        return "a property (@property), or a ClassVar"
    if not isinstance(base, FunctionType):
        return ""
    wanted = _form(base)
    if not isinstance(own, FunctionType):
        return "" if callable(own) or isinstance(own, staticmethod) else wanted
    return (
        ""
        if wanted.startswith("'async") == _form(own).startswith("'async") and _takes(own, base)
        else wanted
    )


def _takes(own: FunctionType, base: FunctionType) -> bool:
    """Whether ``own`` accepts every call that ``base`` accepts."""
    parameters = inspect.signature(base).parameters.values()
    fixed = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    try:
        inspect.signature(own).bind(
            *fixed, **{one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
        )
    except TypeError:
        return False
    return True
