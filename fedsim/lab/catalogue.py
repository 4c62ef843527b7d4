"""The language of scenarios, read off the code: all names with a title each, the keys of each
table, the JSON schema.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from fedsim.clock.executors import EXECUTORS
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.imports import at
from fedsim.common.registry import Registry, specs_of
from fedsim.common.spec import Spec, summary, told_of
from fedsim.lab.study.spec import REFERENCES, StudySpec
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import shipped_titles
from fedsim.toolbox.worlds.regions import cloud_facts
from fedsim.world.device_kinds import LINKS, Figure, figures
from fedsim.world.device_kinds import catalogue as kinds_of_devices
from fedsim.world.energy.spec import TITLES, preset_figures

TitledNames = list[tuple[str, str]]


class Key(NamedTuple):
    """A key of a table: its default as TOML (empty for none), type, unit and bounds in words,
    and its meaning.
    """

    name: str
    default: str
    required: bool
    allowed: str
    told: str


_REGISTRIES: dict[str, Registry] = {
    title: at(f"fedsim.{path}", title)
    for title, path in {
        "strategies": "strategies:STRATEGIES",
        "client selections": "strategies.parts.selection:SELECTIONS",
        "aggregations": "strategies.parts.aggregation:AGGREGATIONS",
        "server optimisers": "strategies.parts.server:OPTIMISERS",
        "clusterers": "toolbox.clustering.algorithms:CLUSTERERS",
        "moments of clustering": "toolbox.clustering.moments:MOMENTS",
        "codecs": "federation.codecs:CODECS",
        "attacks": "federation.malicious:ATTACKS",
        "deadlines": "strategies.parts.deadline:DEADLINES",
        "protocols": "world.network.protocol:PROTOCOLS",
        "processes of the world": "world.processes:PROCESSES",
        "meters": "world.meters.spec:METERS",
        "data sources": "learning.data.sources:SOURCES",
        "partitions": "learning.data.partitions:PARTITIONS",
        "models": "learning.models:MODELS",
        "objectives": "learning.objectives:OBJECTIVES",
        "trainers": "learning.spec:TRAINERS",
        "networks": "world.network.spec:NETWORKS",
        "data shifts": "learning.data.shifts:SHIFTS",
        "arrivals": "world.lifetimes:ARRIVALS",
        "departures": "world.lifetimes:DEPARTURES",
        "availabilities": "world.availability:AVAILABILITIES",
        "speed distributions": "world.distributions:SPEEDS",
        "capacities": "world.device_kinds:CAPACITIES",
        "numbers of samples": "world.population:SAMPLE_COUNTS",
        "chargings of batteries": "world.energy.charging:CHARGINGS",
        "searches of studies": "lab.study.search:SEARCHES",
    }.items()
}
_FILES: dict[str, type[Spec]] = {"scenario": Scenario, "study": StudySpec}
_NAMES_FOR = {
    "energy.preset": "energy presets",
    "population.device": "kinds of devices",
    "study.references": "references of studies",
    "network.device": "links",
    "network.of": "regions of clouds",
}
"""Keys whose values are names of a title of the catalogue, or may be copied from there."""
_FIGURES: dict[str, Callable[[str], Mapping[str, Figure]]] = {
    "kinds of devices": lambda kind: figures(kind, "name"),
    "energy presets": preset_figures,
    "links": lambda kind: figures(kind, "link", LINKS),
    "regions of clouds": lambda region: cloud_facts().figures_of(region),
}
_MOST_FOUND = 30


@cache
def catalogue() -> dict[str, TitledNames]:
    """Title -> (name, one line) of everything with a ``kind``."""
    return {
        **{
            title: [*registry.titles.items()] for title, registry in _REGISTRIES.items() if registry
        },
        "kinds of devices": [*kinds_of_devices().items()],
        "energy presets": [*TITLES.items()],
        "links": [*kinds_of_devices(LINKS).items()],
        "regions of clouds": [(name, site[0]) for name, site in cloud_facts().sites.items()],
        "scenarios": shipped_titles(studies=False),
        "studies": shipped_titles(studies=True),
        "executors": [*EXECUTORS.items()],
        "references of studies": [
            (name, (make.__doc__ or "").partition("\n")[0]) for name, make in REFERENCES.items()
        ],
    }


def specs_titled(title: str) -> dict[str, type[Spec]]:
    """The tables of the kinds under a title of the catalogue, by kind; empty for a title of mere
    names.
    """
    return {kind: _REGISTRIES[title].spec(kind) for kind in _REGISTRIES.get(title, ())}


def about(name: str) -> list[str]:
    """Lines about a kind, a key or table of a scenario or study (``network.server``,
    ``study.parts``), or a title of a list.

    Kinds of devices, energy presets, links and regions have their figures, with sources. Other
    words are searched for.

    Raises:
        ScenarioError: there is none of that name, and nothing says these words.
    """
    listed = catalogue()
    paths = _every_path()
    lines = entry_lines(name, listed[name]) if name in listed else []
    for title, entries in listed.items():
        if name in (known := dict(entries)):
            lines += [f"{name}, one of the {title}: {known[name]}"]
            lines += _key_lines(specs_titled(title)[name]) if name in specs_titled(title) else []
            found = _FIGURES[title](name) if title in _FIGURES else {}
            lines += [
                f"  {key} = {as_toml(figure.value)}  # {figure.source} ({figure.date})"
                for key, figure in found.items()
            ]
    tables = {file: spec for file, spec in _FILES.items() if file == name}
    keys: dict[tuple[str, ...], list[str]] = {}
    for path, owner, key in [way for way in paths if way[0] == name] or [
        way for way in paths if way[0].endswith(f".{name}")
    ]:
        if "" in (specs := specs_of(owner.model_fields[key])):
            tables[path] = specs[""]
        else:
            kind = owner.model_fields.get("kind")
            keys.setdefault((path, *_key_lines(owner, key)), []).append(
                "" if kind is None else str(kind.default)
            )
    for path, spec in tables.items():
        lines += [f"{path}: {summary(spec)}", *_key_lines(spec)]
    for (path, *said), kinds in keys.items():
        lines += [f"{path} of {', '.join(kinds)}:" if any(kinds) else f"{path}:", *said]
    for path in {**tables, **dict.fromkeys(path for path, *_ in keys)}:
        lines += (
            entry_lines(_NAMES_FOR[path], listed[_NAMES_FOR[path]]) if path in _NAMES_FOR else []
        )
    if lines or (lines := _mentioned(name.lower().split())):
        return lines
    names = [
        *_FILES,
        *(path for path, *_ in paths),
        *listed,
        *(kind for entries in listed.values() for kind, _ in entries),
    ]
    raise ScenarioError(
        f"there is nothing called {name!r}; 'fedsim list' lists all kinds{nearest(name, names)}"
    )


def _mentioned(words: list[str]) -> list[str]:
    """Kinds and keys with all of these words in their name or meaning."""
    told = {
        f"{name}, one of the {title}": line
        for title, entries in catalogue().items()
        for name, line in entries
    }
    told |= {
        path: told_of(owner).get(key, "")
        for path, owner, key in _every_path()
        if not path.startswith("study.base")
    }
    stems = [word.removesuffix("s") if len(word) > 3 else word for word in words]
    found = [
        f"  {name}: {line}"
        for name, line in told.items()
        if all(stem in f"{name} {line}".lower() for stem in stems)
    ]
    more = [f"  and {len(found) - _MOST_FOUND} more"] if len(found) > _MOST_FOUND else []
    return [f"what says {' '.join(words)}:", *found[:_MOST_FOUND], *more] if found else []


def entry_lines(title: str, entries: TitledNames) -> list[str]:
    """Names and titles, for people."""
    width = max(len(name) for name, _ in entries)
    return [f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in entries)]


@cache
def _every_path() -> list[tuple[str, type[Spec], str]]:
    return [*_paths(Scenario), *_paths(StudySpec, "study.")]


def _paths(spec: type[Spec], above: str = "") -> Iterator[tuple[str, type[Spec], str]]:
    """Every key under a spec: the dotted path, the owning spec, and the key there."""
    for key in spec.model_fields:
        if key in spec.takes():
            yield above + key, spec, key
            for inner in specs_of(spec.model_fields[key]).values():
                yield from _paths(inner, f"{above}{key}.")


@cache
def keys_of(spec: type[Spec]) -> list[Key]:
    """The keys that a table takes, its ``kind`` included where it has one."""
    schema = spec.model_json_schema()
    schema = (
        schema["$defs"][schema["$ref"].rpartition("/")[2]] | schema if "$ref" in schema else schema
    )
    keys = []
    for name, said in schema["properties"].items():
        default = as_toml(said["default"]) if "default" in said else ""
        allowed = _in_words(said, schema.get("$defs", {}))
        keys.append(
            Key(
                name,
                default,
                name in schema.get("required", ()),
                allowed,
                said.get("description", ""),
            )
        )
    return keys


def _key_lines(spec: type[Spec], only: str = "") -> list[str]:
    """Two lines per key: default and allowed values, and the meaning."""
    lines = []
    for key in keys_of(spec):
        if key.name == only or (not only and key.name != "kind"):
            usual = (
                f"= {key.default}"
                if key.default
                else "(required)"
                if key.required
                else "(not given)"
            )
            lines += [
                f"  {key.name} {usual}  # {key.allowed}",
                *([f"      {key.told}"] if key.told else []),
            ]
    return lines or ["  it takes no keys"]


def _in_words(said: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    ways = said.get("anyOf", [said])
    kinds = [
        str(name)
        for way in ways
        for name in way.get("enum", [way["const"]] if "const" in way else ())
    ]
    others = []
    for way in ways:
        way = tables[way["$ref"].rpartition("/")[2]] | way if "$ref" in way else way
        kind = way.get("properties", {}).get("kind") or {}
        if "const" in kind:
            kinds.append(kind["const"])
        elif (
            "enum" not in way
            and "const" not in way
            and way.get("pattern") != ":"
            and "pattern" not in kind
        ):
            others.append(_one_in_words(way, tables))
    words = [f"one of {', '.join(dict.fromkeys(kinds))}"] if kinds else []
    words += dict.fromkeys(word for word in others if not kinds or word != "a table")
    words += (
        ["your own as 'package.module:Class'"]
        if any(way.get("pattern") == ":" for way in ways)
        else []
    )
    return ", or ".join(words)


def _one_in_words(way: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    if "pattern" in way:
        return str(way.get("title"))
    if way.get("type") == "array":
        return f"a list: each {_in_words(way.get('items', {}), tables)}"
    bounds = [said.format(f"{way[key]:,.10g}") for key, said in _BOUNDS.items() if key in way]
    return ", ".join([_TYPES[way.get("type")], *bounds])


_BOUNDS = {"minimum": "{} or more", "exclusiveMinimum": "more than {}"}
_BOUNDS |= {"maximum": "at most {}", "exclusiveMaximum": "less than {}"}
_TYPES: dict[str | None, str] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    None: "anything",
}
_TYPES |= {"boolean": "true or false", "object": "a table"}


def as_toml(value: Any) -> str:
    """A value on one line; a table with a kind alone as that name."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items())
        return (
            as_toml(value["kind"]) if [*value] == ["kind"] else f"{{ {inner} }}" if inner else "{}"
        )
    return f"[{', '.join(map(as_toml, value))}]" if isinstance(value, list) else json.dumps(value)


def schema(file: Literal["scenario", "study"]) -> dict[str, Any]:
    """The JSON schema of a file.

    In a study, keys may have dots and none is required; one with ``extends`` is not checked.
    """
    whole = _FILES[file].model_json_schema()
    whole = _loosened(whole) | {"required": ["base"]} if file == "study" else whole
    for table in (whole, whole["$defs"].get("StudyPart", whole)):
        table["properties"]["extends"] = {
            "type": "string",
            "description": "the file that this one changes; for a part, a part",
        }
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {
        "$schema": draft,
        "$defs": whole.pop("$defs"),
        "anyOf": [whole, {"required": ["extends"]}],
    }


def _loosened(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_loosened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _loosened(item)
        for key, item in schema.items()
        if not (key == "required" and isinstance(item, list))
    }
    if "kind" in kept.get("properties", ()):  # a table may hold keys of several kinds
        kept["additionalProperties"] = True
    return kept | (
        {"patternProperties": {r"^[^.]+\.": {}}}
        if kept.get("additionalProperties") is False
        else {}
    )
