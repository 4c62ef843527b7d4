"""The catalogue of all names and keys that scenarios and studies take, and their JSON schemas."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic.json_schema import JsonSchemaValue

from fedsim.clock.executors import EXECUTORS
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.imports import import_trusted
from fedsim.common.kind_field import specs_of
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec, attribute_descriptions, summary
from fedsim.lab.study.spec import REFERENCES, StudySpec
from fedsim.running.scenario import Scenario
from fedsim.running.shipped import shipped_titles
from fedsim.toolbox.worlds.cloud_facts import cloud_facts
from fedsim.world.device_kinds import LINKS, Figure, figures
from fedsim.world.device_kinds import catalogue as kinds_of_devices
from fedsim.world.energy.spec import TITLES, preset_figures

TitledNames = list[tuple[str, str]]


class Key(NamedTuple):
    """Description of a key in a table of a scenario or study, for ``fedsim describe``.

    Attributes:
        name: name of the key.
        default: default value as TOML; empty if there is no default.
        required: whether a table needs the key.
        allowed: allowed type, unit and bounds, as text for people.
        meaning: meaning of the key, as text for people.
    """

    name: str
    default: str
    required: bool
    allowed: str
    meaning: str


_REGISTRIES: dict[str, Registry] = {
    title: import_trusted(f"fedsim.{path}", title)
    for title, path in {
        "strategies": "strategies:STRATEGIES",
        "client selections": "strategies.parts.selection:SELECTIONS",
        "aggregations": "strategies.parts.aggregation:AGGREGATIONS",
        "server optimisers": "strategies.parts.server_optimizer:OPTIMIZERS",
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
        "numbers of samples": "world.population_spec:SAMPLE_COUNTS",
        "chargings of batteries": "world.charging:CHARGINGS",
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
"""Titles of the catalogue by dotted key, for keys whose values are listed under that title."""
_FIGURES: dict[str, Callable[[str], Mapping[str, Figure]]] = {
    "kinds of devices": lambda kind: figures(kind, "name"),
    "energy presets": preset_figures,
    "links": lambda kind: figures(kind, "link", LINKS),
    "regions of clouds": lambda region: cloud_facts().figures_of(region),
}
_MOST_MENTIONS = 30


@cache
def catalogue() -> dict[str, TitledNames]:
    """Return all names that scenarios and studies can use, with a description each, by title.

    Returns:
        Dict from title, such as ``strategies``, to pairs of name and description.
    """
    titled = {}
    for title, registry in _REGISTRIES.items():
        if registry:
            titled[title] = [*registry.titles.items()]
    titled["kinds of devices"] = [*kinds_of_devices().items()]
    titled["energy presets"] = [*TITLES.items()]
    titled["links"] = [*kinds_of_devices(LINKS).items()]
    titled["regions of clouds"] = [(name, site[0]) for name, site in cloud_facts().sites.items()]
    titled["scenarios"] = shipped_titles(studies=False)
    titled["studies"] = shipped_titles(studies=True)
    titled["executors"] = [*EXECUTORS.items()]
    titled["references of studies"] = [
        (name, (make.__doc__ or "").partition("\n")[0]) for name, make in REFERENCES.items()
    ]
    return titled


def specs_titled(title: str) -> dict[str, type[Spec]]:
    """Return the classes that describe the kinds under a title, such as all strategies.

    A kind is a name that a scenario's key ``kind`` accepts, such as ``fedavg``. ``fedsim list``
    prints the kinds under titles.

    Args:
        title: the title, such as ``strategies``.

    Returns:
        Kind -> class, whose fields are the keys of the table; empty if the names under the title
        have no classes.
    """
    return {kind: _REGISTRIES[title].spec(kind) for kind in _REGISTRIES.get(title, ())}


def about(name: str) -> list[str]:
    """Explain a name that scenarios or studies use, as ``fedsim describe`` prints it.

    Args:
        name: a kind (value of a key ``kind``, such as ``fedavg``), a key or table of a scenario or
            study (``network.server``, ``study.parts``), or a title of the catalogue
            (``strategies``). Other words are searched for in names and meanings.

    Returns:
        Lines for people; for a kind of device, an energy preset, a link or a region also its
        figures with sources.

    Raises:
        ScenarioError: ``name`` is unknown, and its words occur in no name or meaning.
    """
    lines = []
    if name in catalogue():
        lines += entry_lines(name, catalogue()[name])
    # a kind may be under several titles, and have the same lines under some of them
    titles = [title for title, entries in catalogue().items() if name in dict(entries)]
    for shared in _merge_equal((title, _kind_lines(name, title)) for title in titles):
        meaning, *key_lines = shared.lines
        lines += [f"{name}, one of the {title}: {meaning}" for title in shared.names]
        lines += key_lines
    lines += _path_lines(name)
    if not lines:
        lines = _search(name.lower().split())
    if lines:
        return lines
    names = [*_FILES, *(path for path, _, _ in _every_path()), *catalogue()]
    for entries in catalogue().values():
        names += [kind for kind, _ in entries]
    raise ScenarioError(
        f"there is nothing called {name!r}; 'fedsim list' lists all kinds{nearest(name, names)}"
    )


def _kind_lines(name: str, title: str) -> list[str]:
    """Return text lines about a name under a title of the catalogue.

    The first line is its meaning. Then come the keys of its table in a scenario if it has one, or
    the published values with their sources, such as for a kind of device.

    Args:
        name: the name, such as ``fedavg``.
        title: the title, such as ``strategies``.
    """
    lines = [dict(catalogue()[title])[name]]
    specs = specs_titled(title)
    if name in specs:
        lines += _key_lines(specs[name])
    for key, figure in figures_of(title, name).items():
        value = as_toml(figure.value)
        lines.append(f"  {key} = {value}  # {figure.source} ({figure.date})")
    return lines


def figures_of(title: str, name: str) -> Mapping[str, Figure]:
    """Return the published values of a kind of device, a preset, a link or a region.

    Args:
        title: title of the catalogue under which the name is.
        name: the name.

    Returns:
        Key -> value with its source; empty if names under this title have none.
    """
    return _FIGURES[title](name) if title in _FIGURES else {}


def _path_lines(name: str) -> list[str]:
    """Return text lines about the tables and keys at a dotted path, such as ``network.server``.

    If no table or key has exactly this path, all paths that end with ``name`` are described.
    """
    # dotted path, spec (class) of the table that has the key, and name of the key
    matches = [entry for entry in _every_path() if entry[0] == name]
    if not matches:
        matches = [entry for entry in _every_path() if entry[0].endswith(f".{name}")]
    tables = {}  # specs (classes) of tables, by path
    if name in _FILES:  # a whole file, such as a study
        tables[name] = _FILES[name]
    keys = []
    for path, owner, key in matches:
        specs = specs_of(owner.model_fields[key])
        if "" in specs:  # the key is a table that has no kinds
            tables[path] = specs[""]
        else:
            keys.append((path, owner, key))
    lines = []
    for path, spec in tables.items():
        lines += [f"{path}: {summary(spec)}", *_key_lines(spec)]
    lines += _merged_key_lines(keys)
    key_paths = [path for path, _, _ in keys]
    for path in dict.fromkeys([*tables, *key_paths]):
        if path in _NAMES_FOR:  # the values of the key are names under a title of the catalogue
            title = _NAMES_FOR[path]
            lines += entry_lines(title, catalogue()[title])
    return lines


def _merged_key_lines(keys: Iterable[tuple[str, type[Spec], str]]) -> list[str]:
    """Return text lines about keys; keys with equal descriptions are described together.

    If several kinds of a table have the key with equal descriptions, the heading is the key's path
    and these kinds, such as ``strategy.deadline of fedavg, fedprox``. If several paths have equal
    descriptions, their headings come before a single description.

    Args:
        keys: for each key its dotted path, the spec (class of a table) that has it, and its name.
    """
    by_kind: list[tuple[str, Sequence[str]]] = []
    for path, owner, key in keys:
        kind = owner.model_fields.get("kind")
        kind_name = "" if kind is None else str(kind.default)
        by_kind.append((kind_name, (path, *_key_lines(owner, key))))
    by_path: list[tuple[str, Sequence[str]]] = []
    for shared in _merge_equal(by_kind):
        path, *description = shared.lines
        kinds = ""
        if any(shared.names):  # the name is empty for a table without kinds
            kinds = f" of {', '.join(dict.fromkeys(shared.names))}"
        by_path.append((f"{path}{kinds}", description))
    lines = []
    for shared in _merge_equal(by_path):
        lines += [*_heads(shared.names), *shared.lines]
    return lines


class _SharedText(NamedTuple):
    """Text that describes several things alike.

    Attributes:
        lines: lines of the text.
        names: names of the things.
    """

    lines: tuple[str, ...]
    names: list[str]


def _merge_equal(texts: Iterable[tuple[str, Sequence[str]]]) -> list[_SharedText]:
    """Return each distinct text once, with all names that have it, in the order of occurrence.

    Args:
        texts: pairs of a name and the text lines about the thing with this name.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for name, lines in texts:
        names.setdefault(tuple(lines), []).append(name)
    return [_SharedText(lines, alike) for lines, alike in names.items()]


def _heads(paths: list[str]) -> list[str]:
    """Return the heading for a key's description, with the dotted paths at which the key occurs.

    Args:
        paths: dotted paths of keys that have the same description.

    Returns:
        One line for one path; for several paths, a line ``alike in:`` and a line for each.
    """
    if len(paths) == 1:
        return [f"{paths[0]}:"]
    return ["alike in:", *(f"    {path}" for path in paths)]


def _search(words: list[str]) -> list[str]:
    """Return text lines about the kinds and keys whose name or meaning has all of the words.

    They are at most 30; a last line counts the rest. Empty if no name or meaning has all words.
    """
    # a plural also matches its singular; in short words, such as "gas", the s is no plural
    stems = [word.removesuffix("s") if len(word) > 3 else word for word in words]
    lines = []
    for name, meaning in _meanings().items():
        text = f"{name} {meaning}".lower()
        if all(stem in text for stem in stems):
            lines.append(f"  {name}: {meaning}")
    if not lines:
        return []
    more = []
    if len(lines) > _MOST_MENTIONS:
        more = [f"  and {len(lines) - _MOST_MENTIONS} more"]
    return [f"what says {' '.join(words)}:", *lines[:_MOST_MENTIONS], *more]


def _meanings() -> dict[str, str]:
    """Return the meaning of each kind, by name and title, and of each key, by dotted path."""
    meanings = {}
    for title, entries in catalogue().items():
        for name, line in entries:
            meanings[f"{name}, one of the {title}"] = line
    for path, owner, key in _every_path():
        meanings[path] = attribute_descriptions(owner).get(key, "")
    return meanings


def entry_lines(title: str, entries: TitledNames) -> list[str]:
    """Return lines of text for a title of the catalogue: the title, then a line for each name.

    Args:
        title: a title of the catalogue.
        entries: name and description of each entry.
    """
    width = max(len(name) for name, _ in entries)
    return [f"{title}:", *(f"  {name:<{width}}  {line}" for name, line in entries)]


@cache
def _every_path() -> list[tuple[str, type[Spec], str]]:
    return [*_paths(Scenario), *_paths(StudySpec, "study.")]


def _paths(spec: type[Spec], above: str = "") -> Iterator[tuple[str, type[Spec], str]]:
    """Yield each key of a table and of the tables in it, as (dotted path, spec, name of the key).

    The spec is the class of the table that has the key.

    Args:
        spec: class of the outermost table.
        above: text with which all paths begin, such as ``study.``.
    """
    for key in spec.model_fields:
        if key in spec.takes():
            yield above + key, spec, key
            for inner in specs_of(spec.model_fields[key]).values():
                yield from _paths(inner, f"{above}{key}.")


@cache
def keys_of(spec: type[Spec]) -> list[Key]:
    """Return descriptions of all keys of a table of a scenario, including its ``kind``.

    Args:
        spec: class that describes the table.
    """
    schema = _resolve(spec.model_json_schema())
    required = schema.get("required", ())
    keys = []
    for name, described in schema["properties"].items():
        default = ""
        if "default" in described:
            default = as_toml(_shorten(described["default"], spec, name))
        allowed = _describe_values(described, schema.get("$defs", {}))
        keys.append(Key(name, default, name in required, allowed, described.get("description", "")))
    return keys


def _shorten(default: object, spec: type[Spec], name: str) -> object:
    """Return a default value in the shortest form that a scenario file allows.

    A table loses the keys that have the defaults of its kind. A constant distribution becomes its
    value.

    Args:
        default: the default value.
        spec: the spec that takes the key.
        name: name of the key.
    """
    field = spec.model_fields.get(name)
    if not isinstance(default, Mapping) or field is None:
        return default
    spec_of_kind = specs_of(field).get(default.get("kind", ""))
    if spec_of_kind is None:  # a dict that is no table of a scenario
        return default
    if default.get("kind") == "constant" and "value" in default:
        return default["value"]
    defaults_of_kind = {key.name: key.default for key in keys_of(spec_of_kind)}
    short_table = {}
    for key, value in default.items():
        short_value = _shorten(value, spec_of_kind, key)
        if key == "kind" or as_toml(short_value) != defaults_of_kind.get(key):
            short_table[key] = short_value
    return short_table


def _resolve(schema: JsonSchemaValue, tables: JsonSchemaValue | None = None) -> JsonSchemaValue:
    """Return a JSON schema in which the definition that ``$ref`` names is filled in.

    Args:
        schema: the schema; without ``$ref`` it is returned unchanged.
        tables: definitions by name; by default the ``$defs`` of the schema.
    """
    if "$ref" not in schema:
        return schema
    if tables is None:
        tables = schema["$defs"]
    definition: JsonSchemaValue = tables[schema["$ref"].rpartition("/")[2]]
    return definition | schema


def _key_lines(spec: type[Spec], only: str = "") -> list[str]:
    """Return two text lines per key: default and allowed values, then the meaning.

    Args:
        spec: the spec that takes the keys.
        only: describe only this key; empty for all keys but ``kind``.
    """
    lines = []
    for key in keys_of(spec):
        if key.name == only or (not only and key.name != "kind"):
            lines.append(f"  {key.name} {_describe_default(key)}  # {key.allowed}")
            if key.meaning:
                lines.append(f"      {key.meaning}")
    return lines or ["  it takes no keys"]


def _describe_default(key: Key) -> str:
    if key.default:
        return f"= {key.default}"
    return "(required)" if key.required else "(not given)"


def _describe_values(described: JsonSchemaValue, tables: JsonSchemaValue) -> str:
    """Return a text on the values that a key allows, such as ``one of slow, fast, or a number``.

    Args:
        described: JSON schema of the key.
        tables: definitions by name, to which the schema may refer.
    """
    alternatives = described.get("anyOf", [described])
    names: list[str] = []  # allowed texts, such as kinds
    for schema in alternatives:
        names += _constants_of(schema)
    types: list[str] = []  # texts on the types of other values, such as ``a number, 0 or more``
    for alternative in alternatives:
        schema = _resolve(alternative, tables)
        kind_schema = schema.get("properties", {}).get("kind") or {}  # empty if it has no kind
        is_import_path = schema.get("pattern") == _IMPORT_PATH or "pattern" in kind_schema
        if "const" in kind_schema:  # a table of one kind, which the kind's name may replace
            names.append(kind_schema["const"])
        elif not _constants_of(schema) and not is_import_path:
            types.append(_describe_type(schema, tables))
    words = []
    if names:
        words.append(f"one of {', '.join(dict.fromkeys(names))}")
        # a table of one of the kinds is already among the names
        types = [text for text in types if text != "a table"]
    words += dict.fromkeys(types)
    if any(schema.get("pattern") == _IMPORT_PATH for schema in alternatives):
        words.append("your own as 'package.module:Class'")
    return ", or ".join(words)


def _constants_of(schema: JsonSchemaValue) -> list[str]:
    """Return the only values that a JSON schema allows, as text; empty if it lists none."""
    constants = [schema["const"]] if "const" in schema else []
    return list(map(str, schema.get("enum", constants)))


def _describe_type(schema: JsonSchemaValue, tables: JsonSchemaValue) -> str:
    """Return a text on type and bounds of a value, such as ``a number, 0 or more``.

    Args:
        schema: JSON schema of the value.
        tables: definitions by name, to which the schema may refer.
    """
    if "pattern" in schema:
        return str(schema.get("title"))
    if schema.get("type") == "array":
        return f"a list: each {_describe_values(schema.get('items', {}), tables)}"
    words = [_TYPES[schema.get("type")]]
    for key, bound in _BOUNDS.items():
        if key in schema:
            words.append(bound.format(f"{schema[key]:,.10g}"))
    return ", ".join(words)


_IMPORT_PATH = ":"  # pattern of an import path in a JSON schema
_BOUNDS = {
    "minimum": "{} or more",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}
_TYPES: dict[str | None, str] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    None: "anything",
    "boolean": "true or false",
    "object": "a table",
}


def as_toml(value: object) -> str:
    """Format a value as TOML on one line; a table with only a ``kind`` becomes the kind's name."""
    if isinstance(value, Mapping):
        if [*value] == ["kind"]:
            return as_toml(value["kind"])
        items = ", ".join(f"{key} = {as_toml(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    return json.dumps(value)


def schema(file: Literal["scenario", "study"]) -> JsonSchemaValue:
    """Return the JSON schema of a scenario or study file.

    In a study, keys may have dots, and only ``base`` is required. A file with ``extends`` always
    fits the schema, as the extended file may have the rest.
    """
    file_schema = _FILES[file].model_json_schema()
    if file == "study":
        file_schema = _loosen(file_schema)  # no key is required, keys may have dots
        file_schema["required"] = ["base"]
    # ``$ref`` looks for definitions at the outermost level, not below ``anyOf``
    definitions = file_schema.pop("$defs")
    tables_with_extends = [file_schema]
    if file == "study":
        tables_with_extends.append(definitions["StudyPart"])
    for table in tables_with_extends:
        table["properties"]["extends"] = {
            "type": "string",
            "description": "the file that this one changes; for a part, a part",
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": definitions,
        "anyOf": [file_schema, {"required": ["extends"]}],
    }


def _loosen(schema: Any) -> Any:
    """Return a copy of a JSON schema for files that give only a part of a scenario.

    A study's changes are such a part. In the copy, no key is required, keys may have dots, and a
    table may mix keys of several kinds.
    """
    if isinstance(schema, list):
        return [_loosen(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    loose = {}
    for key, item in schema.items():
        # ``required`` has a list if it is the keyword, and a schema if it is the name of a property
        is_list_of_required = key == "required" and isinstance(item, list)
        if not is_list_of_required:
            loose[key] = _loosen(item)
    if "kind" in loose.get("properties", ()):  # the table may have keys of other kinds too
        loose["additionalProperties"] = True
    if loose.get("additionalProperties") is False:
        loose["patternProperties"] = {r"^[^.]+\.": {}}
    return loose
