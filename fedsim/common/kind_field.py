"""Keys of a scenario that hold a kind of a registry: their accepted values and their schema.

A scenario names a kind (``selection = "random"``), or has a table with its parameters
(``server = { kind = "adam", lr = 0.01 }``). Some keys accept shorter forms of a table too.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from fedsim.common.errors import ScenarioError, show_value
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec, json_schema

_PATH_SCHEMA = {
    "type": "string",
    "pattern": ":",
    "description": "one of your own, as 'package.module:Class'",
}
_OWN_CLASS_SCHEMAS: tuple[JsonSchemaValue, ...] = (
    _PATH_SCHEMA,
    {"type": "object", "properties": {"kind": _PATH_SCHEMA}, "required": ["kind"]},
)


@contextmanager
def _part_errors() -> Iterator[None]:
    """Context in which ``ScenarioError`` becomes an error of pydantic with the same message."""
    try:
        yield
    except ScenarioError as error:
        raise PydanticCustomError("part_kind", "{why}", {"why": str(error)}) from None


@dataclass(frozen=True, eq=False)
class KindField:
    """Pydantic annotation of a scenario key whose value is one of several kinds.

    The value is the name of a kind, a table with the key ``kind``, or a ``Spec`` instance. The
    attributes of the annotation allow further short forms of the table.

    Attributes:
        registry: the allowed kinds.
        bare: a key of the usual kind (``registry.usual``), which a plain value sets. If ``bare`` is
            ``time``, ``deadline = "90 s"`` stands for ``deadline = { time = "90 s" }``. None: plain
            values other than names of kinds are refused.
        by_device: whether a list stands for the table of kind ``list`` with these ``values``, one
            for each device, and a table with the key ``file`` is of kind ``file``.
        by_kind: whether a table without ``kind`` and ``file``, such as ``{ phone-mid = 1 }``,
            stands for the table of kind ``by-kind`` with these ``values``, one for each kind of
            device.
    """

    registry: Registry
    bare: str | None = None
    by_device: bool = False
    by_kind: bool = False

    def _validate(self, value: object) -> Spec:
        """Return the object that a value in a scenario describes.

        Args:
            value: name of a kind, a table, a short form, or the object itself, which is checked and
                returned.

        Raises:
            PydanticCustomError: the value describes no kind of this registry.
        """
        if isinstance(value, Spec) and self.registry.holds(value):
            # checks a user's class, and makes its methods check their results from now on
            with _part_errors():
                self.registry.guard(type(value), "kind")
            return value
        table = self._table_of(value)
        kind = table.get("kind", self.registry.usual)
        if kind is None:
            raise PydanticCustomError(
                "part_kind",
                "kind is missing; allowed are {kinds}",
                {"kinds": ", ".join(self.registry.kinds)},
            )
        if not isinstance(kind, str):
            raise PydanticCustomError(
                "part_kind", "kind is {kind}; it must be a name", {"kind": show_value(kind)}
            )
        with _part_errors():
            spec = self.registry.spec(kind)
            if "kind" not in table:
                self._require_keys(spec, kind, table)
            return spec.model_validate({**table, "kind": kind})

    def _require_keys(self, spec: type[Spec], kind: str, table: Mapping[str, object]) -> None:
        """Raise an error if a table without ``kind`` lacks a key that the usual kind requires.

        Another kind was probably meant, so the error lists all kinds.

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
                    {"name": name, "kind": repr(kind), "kinds": ", ".join(self.registry.kinds)},
                )

    def _table_of(self, value: object) -> Mapping[str, object]:
        """Return the table that a value in a scenario stands for, such as a kind's name or a list.

        Raises:
            PydanticCustomError: the value has none of the accepted forms.
        """
        if isinstance(value, Mapping):
            return self._with_implied_kind(value)
        if self.by_device and isinstance(value, list):  # the list has a value for each device
            return {"kind": "list", "values": value}
        if isinstance(value, str) and self._stands_for_kind(value):
            return {"kind": value}
        if self.bare is None:
            raise PydanticCustomError("part", "must be the name of a kind, or a table with one", {})
        return {self.bare: value}  # a plain value sets a key of the usual kind, such as ``time``

    def _with_implied_kind(self, table: Mapping[str, object]) -> Mapping[str, object]:
        """Return a table with the kind ``file`` or ``by-kind`` if its keys imply it."""
        if self.by_device and "file" in table:
            return {"kind": "file", **table}
        if self.by_kind and "kind" not in table:
            return {"kind": "by-kind", "values": table}
        return table

    def _stands_for_kind(self, text: str) -> bool:
        """Whether a text in place of a table names a kind, and is no value of the key ``bare``.

        An import path counts as a kind even if users cannot add kinds, so that the error is about
        kinds.
        """
        if self.bare is None:
            return True
        return self.registry.is_kind(text) or self.registry.is_refused_path(text)

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        any_schema = core_schema.any_schema()
        return core_schema.no_info_before_validator_function(self._validate, any_schema)

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON schema: a choice of short forms, names of kinds, and tables of kinds."""
        tables = {
            kind: json_schema(self.registry.spec(kind), handler) for kind in self.registry.kinds
        }
        # schemas of tables that may omit their kind
        kindless: dict[str, JsonSchemaValue] = {}
        for kind in (self.registry.usual, "list", "file"):
            if kind is not None and kind in tables:
                kindless[kind] = handler.resolve_ref_schema(tables[kind])

        options: list[JsonSchemaValue] = []
        # short forms: a value of the key ``bare``, values by device, and values by kind of device
        if self.bare is not None:
            options.append(kindless[str(self.registry.usual)]["properties"][self.bare])
        if self.by_device and "list" in kindless:
            options.append(kindless["list"]["properties"]["values"])
        if self.by_kind:
            by_kind = handler.resolve_ref_schema(tables["by-kind"])
            options.append(by_kind["properties"]["values"])
        options.append({"enum": [*self.registry]})  # names of kinds
        options += tables.values()
        for kind, table in kindless.items():
            # ``list`` and ``file`` may omit the kind only in a key by device
            if kind == self.registry.usual or self.by_device:
                options.append(_without_kind(table))
        if self.registry.base:
            options += _OWN_CLASS_SCHEMAS
        return {"anyOf": options}


def _without_kind(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a table without its key ``kind``."""
    required = [key for key in schema.get("required", ()) if key != "kind"]
    return schema | {"properties": schema["properties"] | {"kind": False}, "required": required}


def specs_of(field: FieldInfo) -> dict[str, type[Spec]]:
    """Return the classes of the tables that a scenario key accepts: kind -> class.

    For a class of tables that have no key ``kind``, the kind is "".

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
    for metadata in field.metadata:
        # only a registry with a base class accepts users' classes
        if isinstance(metadata, KindField) and metadata.registry.base:
            return metadata.registry.spec(kind)
    return None


def _specs(annotation: object, metadata: Iterable[object]) -> dict[str, type[Spec]]:
    """Return the classes of the tables that an annotated type accepts: kind -> class.

    Args:
        annotation: the type; for a union, the classes of all its members are returned.
        metadata: the annotations of the type, such as a ``KindField``.
    """
    for annotation_entry in metadata:
        if isinstance(annotation_entry, KindField):
            registry = annotation_entry.registry
            return {kind: registry.spec(kind) for kind in registry}
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        kind = annotation.model_fields.get("kind")
        return {"" if kind is None else str(kind.default): annotation}
    specs: dict[str, type[Spec]] = {}
    for member in get_args(annotation):  # members of a union, or arguments of ``Annotated``
        specs |= _specs(member, getattr(annotation, "__metadata__", ()))
    return specs
