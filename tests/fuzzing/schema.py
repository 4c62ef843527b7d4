"""Every key that a file may have, read off the specs themselves: what is added to them is tried without being listed."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, TypeAdapter

from fedsim.language.registry import Registry
from fedsim.language.units import Quantity
from tests.fuzzing import values

Spec = type[BaseModel]


@dataclass(frozen=True)
class Shape:
    """One of the things that a key may be: a bare type, and what annotations say of it."""

    type: Any
    notes: tuple[Any, ...] = ()

    @property
    def is_spec(self) -> bool:
        return isinstance(self.type, type) and issubclass(self.type, BaseModel)

    @property
    def quantity(self) -> Quantity | None:
        return next((note for note in self.notes if isinstance(note, Quantity)), None)


@dataclass(frozen=True)
class Leaf:
    """A key and the way to it: each table's key, and which spec it is there."""

    way: tuple[tuple[str, Spec], ...]
    key: str
    shapes: tuple[Shape, ...]

    @property
    def path(self) -> str:
        return ".".join([*(key for key, _ in self.way), self.key])

    def takes(self, value: Any) -> bool:
        """Whether the key's own type allows a value, whatever the rest of the file says."""
        with suppress(Exception):  # whatever a validator says
            Possible = Union[tuple(Annotated[shape.type, *shape.notes] for shape in self.shapes)]  # noqa: UP007
            TypeAdapter(Possible, config=ConfigDict(strict=True)).validate_python(value)
            return True
        return False


def shapes_of(annotation: Any, notes: tuple[Any, ...] = ()) -> list[Shape]:
    """The alternatives of an annotation."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return shapes_of(inner, (*notes, *more))
    registry = next((note for note in notes if isinstance(note, Registry)), None)
    if registry is not None:
        return [Shape(registry.spec(kind)) for kind in registry if kind != "flower"]  # an app of the user's is not invented
    if get_origin(annotation) in (Union, UnionType):
        return [shape for part in get_args(annotation) for shape in shapes_of(part, notes)]
    return [Shape(annotation, notes)]


def fields(spec: Spec) -> dict[str, list[Shape]]:
    """The keys of a table, and what each may be."""
    return {name: shapes_of(field.annotation, tuple(field.metadata)) for name, field in spec.model_fields.items()}


@cache
def leaves(spec: Spec) -> tuple[Leaf, ...]:
    """Every key under a spec that holds no table with keys of its own."""
    return tuple(_leaves(spec, ()))


def _leaves(spec: Spec, way: tuple[tuple[str, Spec], ...]) -> Iterator[Leaf]:
    for key, shapes in fields(spec).items():
        yield Leaf(way, key, tuple(shapes))  # a table, too, may be something else altogether
        for shape in shapes:
            if shape.is_spec:
                yield from _leaves(shape.type, (*way, (key, shape.type)))


def table(draw: random.Random, spec: Spec, *, more: float = 0.3, odd: float = 0.0) -> dict[str, Any]:
    """A table for a spec: what it requires, a share ``more`` of what it allows, and a share ``odd`` of that odd."""
    made: dict[str, Any] = {}
    for key, shapes in fields(spec).items():
        if key != "kind" and not spec.model_fields[key].is_required() and draw.random() >= more:
            continue
        value = odd_value(draw, shapes) if draw.random() < odd else plausible(draw, draw.choice(shapes), more=more, odd=odd)
        if value is not None:
            made[key] = value
    return made


def put(draw: random.Random, tables: dict[str, Any], leaf: Leaf, value: Any) -> str:
    """Set a leaf's key in a file's tables; where they hold another kind on the way, that is replaced. Its dotted key."""
    for key, spec in leaf.way:
        kinds = get_args(spec.model_fields["kind"].annotation) if "kind" in spec.model_fields else ()
        here = tables.get(key)
        if not isinstance(here, dict) or (kinds and here.get("kind") not in kinds):
            tables[key] = here = table(draw, spec, more=0.1)
        tables = here
    tables[leaf.key] = value
    return leaf.path


def plausible(draw: random.Random, shape: Shape, *, more: float = 0.3, odd: float = 0.0) -> Any:
    """A value as a user would write it; None where there is to be none."""
    if shape.is_spec:
        return table(draw, shape.type, more=more, odd=odd)
    if shape.quantity:
        units = [unit for unit, factor in shape.quantity.units.items() if 1e-3 <= factor <= 1e6]
        return f"{draw.choice([1, 2.5, 20, 300])} {draw.choice(units)}"
    inner = [plausible(draw, draw.choice(shapes_of(part))) for part in get_args(shape.type) if part is not Ellipsis]
    match get_origin(shape.type) or shape.type:
        case origin if origin is Literal:
            return draw.choice(get_args(shape.type))
        case origin if origin in (list, tuple):
            return [inner[0]] * draw.randrange(1, 4)
        case origin if origin is dict:
            return dict([inner]) if draw.random() < 0.3 else {}
        case origin if origin in (NoneType, Any):
            return None
    return {bool: draw.random() < 0.5, str: "x"}.get(shape.type, _number(draw, shape))


def _number(draw: random.Random, shape: Shape) -> float:
    known = [note for note in shape.notes if isinstance(note, annotated_types.BaseMetadata | annotated_types.GroupedMetadata)]
    found = [(name, getattr(note, name, None)) for note in known for name in ("ge", "gt", "le", "lt")]
    bounds = {name: bound for name, bound in found if bound is not None}
    low = bounds.get("ge", bounds.get("gt", 0))
    if shape.type is int:
        return int(low) + draw.randrange(4)
    high = bounds.get("le", bounds.get("lt", low + 2.0))
    return round(draw.uniform(low, high), 3)


def odd_value(draw: random.Random, shapes: "list[Shape] | tuple[Shape, ...]") -> Any:
    """A value that is odd for a key: an extreme of its type, or of another."""
    shape = draw.choice(shapes)
    if draw.random() < 0.15:
        return values.anything(draw)
    if shape.quantity:
        unit = draw.choice([*shape.quantity.units, "apples", "bit/s", "s", ""])
        number = values.text(draw) if draw.random() < 1 / 3 else repr(draw.choice(values.NUMBERS))
        return f"{number} {unit}"
    if shape.is_spec:
        return draw.choice([values.text(draw), {"kind": values.text(draw)}, table(draw, shape.type, odd=0.5)])
    match get_origin(shape.type) or shape.type:
        case origin if origin in (int, float):
            return draw.choice(values.NUMBERS)
        case origin if origin in (list, tuple):
            inner = [odd_value(draw, shapes_of(part)) for part in get_args(shape.type) if part is not Ellipsis] or [0]
            return draw.choice([[], inner, inner * 2, inner[:1] * 100_000, values.text(draw)])
        case origin if origin is dict:
            return draw.choice([{}, {values.text(draw)[:50]: values.anything(draw)}])
        case origin if origin is bool:
            return draw.choice([0, "true", [], True, False])
        case origin if origin is Literal:
            return draw.choice([*get_args(shape.type), f"{get_args(shape.type)[0]}"[:-1], values.text(draw)])
    return values.text(draw)
