"""Whatever a scenario or a study says: it is refused with a message that names the key, or runs
and passes its audit.
"""

import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ConfigDict, TypeAdapter

from fedsim.analysis.__main__ import KINDS
from fedsim.common.kind_field import KindField
from fedsim.common.units import Quantity
from fedsim.lab.study.spec import StudySpec
from fedsim.running.scenario import Scenario
from fedsim.strategies import STRATEGIES as REGISTERED
from fedsim.testing import eventful_world
from tests.fuzzing import values
from tests.fuzzing.place import Place
from tests.fuzzing.values import as_toml
from tests.test_runs import STRATEGIES

_KNOWN = {strategy["kind"]: strategy for strategy in STRATEGIES}
_STRIDE = 7919  # a prime: cases side by side are about keys far apart
_DIVERGED = "finite"  # what exit status 1 may say: the training's numbers grew until they were none
_SOUND_OF_FIVE = 3  # so many of five odd values are of those that the key's type allows, if any is
_SEVERAL_RUNS = 0.05


def attempt(place: Place, draw: random.Random, number: int) -> None:
    if draw.random() < 0.1:
        _study(place, draw)
        return
    if draw.random() < 0.1:
        _hostile(place, draw, "".join(draw.sample(values.CONTROLS, draw.randrange(1, 4))))
        return
    sections = world(draw)
    changed = _change(draw, sections, number)
    (place.folder / "scenario.toml").write_text(as_toml(sections), encoding="utf-8", newline="")
    options: list[str] = []
    if draw.random() < 0.1:
        leaf = draw.choice(leaves(Scenario))
        value = odd_value(draw, leaf.shapes)
        changed.append(leaf.path)
        options += ["--set", f"{leaf.path}={value if isinstance(value, str) else repr(value)}"]
    if draw.random() < 0.15:
        told = place.call("check", "scenario.toml", "--no-trial", *options)
        if told.status == 2:
            _explained(place, told.text, [*changed, *sections])
        return
    options += ["--executor", draw.choice(["inline", "threads"]), *draw.choice([["--quiet"], []])]
    told = place.call(
        "run",
        "scenario.toml",
        "--out",
        "out",
        *options,
        excuse=_DIVERGED,
        long=True,
        terminal=draw.random() < 0.3,
    )
    if told.status == 0:
        sound(place)
        if draw.random() < 0.2:
            look(place, draw, "out")
    elif told.status == 2:
        if (place.folder / "out").exists():
            place.complain("run: something was written before it was refused")
        _explained(place, told.text, [*changed, *sections])


def world(draw: random.Random) -> dict[str, Any]:
    """A small scenario in which much happens, of any strategy."""
    kind = draw.choice([kind for kind in REGISTERED if kind != "flower"])
    sections = eventful_world(_KNOWN.get(kind, {"kind": kind}), seed=draw.randrange(100), rounds=2)
    sections["learning"] = draw.choice(["off", "off", "on"])
    sections["stop"]["simulated_time"] = "2 h"
    return sections


def sound(place: Place) -> None:
    told = place.call("audit", "out", allowed=(0, 1, 2))
    if told.status:
        failed = [
            line.removeprefix("FAIL ") for line in told.text.splitlines() if line.startswith("FAIL")
        ]
        place.complain(
            "audit: a run that ended well does not pass: "
            f"{failed[0] if failed else told.text[:100]}"
        )


def look(place: Place, draw: random.Random, run: str) -> None:
    ways = [
        ["report", run, "--out", "looked"],
        ["trace", run, "--out", "looked"],
        ["load_run", run],
    ]
    ways += [["compare", run, option] for option in ("--target=0.5", "--csv", "--markdown")]
    ways += [
        [
            "analysis",
            run,
            "--format",
            "png",
            "--out",
            "pictures",
            "--only",
            ",".join(draw.sample(KINDS, 2)),
        ]
    ]
    place.call(*draw.choice(ways))


def _change(draw: random.Random, sections: dict[str, Any], number: int) -> list[str]:
    known = leaves(Scenario)
    leaf = known[number * _STRIDE % len(known)]
    match draw.randrange(10):
        case 0 | 1 | 2 | 3 | 4 as case:
            odd = [odd_value(draw, leaf.shapes) for _ in range(20)]
            odd = [value for value in odd if case < _SOUND_OF_FIVE and leaf.takes(value)] or odd
            return [put(draw, sections, leaf, odd[0])]
        case 5:
            return [
                put(draw, sections, some, odd_value(draw, some.shapes))
                for some in draw.sample(known, 3)
            ]
        case 6 | 7:
            return _sections(draw, sections, odd=0.0)
        case 8:
            return _sections(draw, sections, odd=0.3)
    return _by_hand(draw, sections)


def _sections(draw: random.Random, sections: dict[str, Any], odd: float) -> list[str]:
    keys = draw.sample(
        [key for key, shapes in fields(Scenario).items() if key != "stop"], draw.randrange(1, 4)
    )
    for key in keys:
        sections[key] = plausible(draw, draw.choice(fields(Scenario)[key]), odd=odd)
    return keys


def _by_hand(draw: random.Random, sections: dict[str, Any]) -> list[str]:
    match draw.randrange(5):
        case 0:
            command = {
                "command": "touch imported",
                "args": ["touch", "imported"],
                "source": "open('imported','w')",
            }
            one = dict(draw.sample(list(command.items()), 1))
            sections["model"] = {
                "kind": "module",
                "factory": draw.choice(values.CODE),
                "args": draw.choice([{}, command, one]),
            }
            return ["model"]
        case 1:
            sections["strategy"] = {"kind": draw.choice(values.CODE)}
            return ["strategy"]
        case 2:
            sections["name"] = "".join(draw.choice(values.CONTROLS) for _ in range(3))
            return ["name"]
        case 3:
            key = draw.choice(list(sections))
            sections[values.text(draw)[:50]] = sections.pop(key)
            return [key]
    spoilt = values.spoil(draw, sections)
    spoilt = spoilt if isinstance(spoilt, dict) else {"": spoilt}
    keys = [key for key in sections if spoilt.get(key) is not sections[key]] + [
        key for key in spoilt if key not in sections
    ]
    sections.clear()
    sections.update(spoilt)
    return keys


def _explained(place: Place, text: str, keys: list[str]) -> None:
    if not re.search(r"(?m)^(fedsim|Error): ", text):
        place.complain(f"a refusal does not say who refuses: {text[:100]}")
    elif (
        not any(part in text for key in keys for part in (*key.split("."), repr(key)))
        and "TOML" not in text
    ):
        place.complain(f"a refusal names no key: {text[:100]}")


def _hostile(place: Place, draw: random.Random, name: str) -> None:
    """A name that a terminal would obey: the run's, its folder's, an option's, or of what is not
    there.
    """
    sections = eventful_world({"kind": "fedavg", "clients_per_round": 4}, rounds=1) | {
        "name": name,
        "learning": "off",
    }
    (place.folder / "scenario.toml").write_text(as_toml(sections), encoding="utf-8")
    place.call("run", "scenario.toml", "--out", f"out{name}", terminal=True)
    looks = [
        ["compare", f"out{name}", "--baseline", name],
        ["report", f"out{name}", "--out", f"x{name}.html"],
    ]
    looks += [
        ["audit", f"out{name}"],
        ["trace", f"out{name}\udcff"],
        ["check", "scenario.toml", "--set", f"{name}=1"],
    ]
    for argv in draw.sample(looks, 3):
        place.call(*argv, terminal=True)


def _study(place: Place, draw: random.Random) -> None:
    base = world(draw) | {"learning": "off"}
    del base["seed"]
    tables: dict[str, Any] = {"name": "small", "base": base, "seeds": [1], "variants": {"one": {}}}
    match draw.randrange(4):
        case 0:
            leaf = draw.choice(leaves(StudySpec))
            put(draw, tables, leaf, odd_value(draw, leaf.shapes))
        case 1:
            tables[draw.choice(["variants", "grid"])] = dict(_changes(draw))
        case 2:
            tables["variants"] |= {
                values.text(draw): {key: value} for key, [value, *_] in _changes(draw)
            }
        case 3:
            tables = values.spoil(draw, tables)
    (place.folder / "study.toml").write_text(as_toml(tables), encoding="utf-8", newline="")
    place.call("study", "study.toml", "--out", "studied", "--dry-run", "--no-trial")
    if (
        draw.random() < _SEVERAL_RUNS
        and place.call("study", "study.toml", "--out", "studied", "--workers", "1").status == 0
    ):
        place.call("compare", "studied")


def _changes(draw: random.Random) -> Iterator[tuple[str, list[Any]]]:
    for leaf in draw.sample(leaves(Scenario), draw.randrange(1, 4)):
        yield leaf.path, [odd_value(draw, leaf.shapes) for _ in range(2)]


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
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return shapes_of(inner, (*notes, *more))
    field = next((note for note in notes if isinstance(note, KindField)), None)
    if field is not None:
        # an app of the user's is not invented
        known = [kind for kind in field.registry if kind != "flower"]
        return [Shape(field.registry.spec(kind)) for kind in known] or [Shape(str)]
    if get_origin(annotation) in (Union, UnionType):
        return [shape for part in get_args(annotation) for shape in shapes_of(part, notes)]
    return [Shape(annotation, notes)]


def fields(spec: Spec) -> dict[str, list[Shape]]:
    return {
        name: shapes_of(field.annotation, tuple(field.metadata))
        for name, field in spec.model_fields.items()
    }


@cache
def leaves(spec: Spec) -> tuple[Leaf, ...]:
    return tuple(_leaves(spec, ()))


def _leaves(spec: Spec, way: tuple[tuple[str, Spec], ...]) -> Iterator[Leaf]:
    for key, shapes in fields(spec).items():
        yield Leaf(way, key, tuple(shapes))  # a table, too, may be something else altogether
        for shape in shapes:
            if shape.is_spec:
                yield from _leaves(shape.type, (*way, (key, shape.type)))


def table(
    draw: random.Random, spec: Spec, *, more: float = 0.3, odd: float = 0.0
) -> dict[str, Any]:
    """A table for a spec: what it requires, a share ``more`` of what it allows, and a share
    ``odd`` of that odd.
    """
    made: dict[str, Any] = {}
    for key, shapes in fields(spec).items():
        if key != "kind" and not spec.model_fields[key].is_required() and draw.random() >= more:
            continue
        value = (
            odd_value(draw, shapes)
            if draw.random() < odd
            else plausible(draw, draw.choice(shapes), more=more, odd=odd)
        )
        if value is not None:
            made[key] = value
    return made


def put(draw: random.Random, tables: dict[str, Any], leaf: Leaf, value: Any) -> str:
    """Set a leaf's key in a file's tables; where they hold another kind on the way, that is
    replaced. Its dotted key.
    """
    for key, spec in leaf.way:
        kinds = (
            get_args(spec.model_fields["kind"].annotation) if "kind" in spec.model_fields else ()
        )
        here = tables.get(key)
        if not isinstance(here, dict) or (kinds and here.get("kind") not in kinds):
            tables[key] = here = table(draw, spec, more=0.1)
        tables = here
    tables[leaf.key] = value
    return leaf.path


def plausible(draw: random.Random, shape: Shape, *, more: float = 0.3, odd: float = 0.0) -> Any:
    if shape.is_spec:
        return table(draw, shape.type, more=more, odd=odd)
    if shape.quantity:
        units = [unit for unit, factor in shape.quantity.units.items() if 1e-3 <= factor <= 1e6]
        return f"{draw.choice([1, 2.5, 20, 300])} {draw.choice(units)}"
    inner = [
        plausible(draw, draw.choice(shapes_of(part)))
        for part in get_args(shape.type)
        if part is not Ellipsis
    ]
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
    known = [
        note
        for note in shape.notes
        if isinstance(note, annotated_types.BaseMetadata | annotated_types.GroupedMetadata)
    ]
    found = [
        (name, getattr(note, name, None)) for note in known for name in ("ge", "gt", "le", "lt")
    ]
    bounds = {name: bound for name, bound in found if bound is not None}
    low = bounds.get("ge", bounds.get("gt", 0))
    if shape.type is int:
        return int(low) + draw.randrange(4)
    high = bounds.get("le", bounds.get("lt", low + 2.0))
    return round(draw.uniform(low, high), 3)


def odd_value(draw: random.Random, shapes: "list[Shape] | tuple[Shape, ...]") -> Any:
    shape = draw.choice(shapes)
    if draw.random() < 0.15:
        return values.anything(draw)
    if shape.quantity:
        unit = draw.choice([*shape.quantity.units, "apples", "bit/s", "s", ""])
        number = values.text(draw) if draw.random() < 1 / 3 else repr(draw.choice(values.NUMBERS))
        return f"{number} {unit}"
    if shape.is_spec:
        return draw.choice(
            [values.text(draw), {"kind": values.text(draw)}, table(draw, shape.type, odd=0.5)]
        )
    match get_origin(shape.type) or shape.type:
        case origin if origin in (int, float):
            return draw.choice(values.NUMBERS)
        case origin if origin in (list, tuple):
            inner = [
                odd_value(draw, shapes_of(part))
                for part in get_args(shape.type)
                if part is not Ellipsis
            ] or [0]
            many = 100_000 if len(repr(inner[0])) < 50 else 10  # files of some megabytes
            return draw.choice([[], inner, inner * 2, inner[:1] * many, values.text(draw)])
        case origin if origin is dict:
            return draw.choice([{}, {values.text(draw)[:50]: values.anything(draw)}])
        case origin if origin is bool:
            return draw.choice([0, "true", [], True, False])
        case origin if origin is Literal:
            return draw.choice(
                [*get_args(shape.type), f"{get_args(shape.type)[0]}"[:-1], values.text(draw)]
            )
    return values.text(draw)
