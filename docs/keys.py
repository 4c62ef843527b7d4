"""The keys of tables of a scenario, as blocks of pages."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from text import about, quoted, sentence

from fedsim.common.files import read_toml
from fedsim.common.kind_field import specs_of
from fedsim.common.spec import Spec
from fedsim.lab.catalogue import Key, as_toml, keys_of, specs_titled
from fedsim.running.shipped import shipped

PARTS = {
    "client selections": ("selection", "`[strategy] selection`: whom a round asks."),
    "aggregations": (
        "aggregation",
        "`[strategy] aggregation`: how the updates of a cohort become one.",
    ),
    "server optimisers": (
        "server",
        "`[strategy] server`: what the server makes of the aggregated update.",
    ),
    "deadlines": ("deadline", "`[strategy] deadline`: how long the clients of a round have."),
    "codecs": ("codec", "`[messages] up` and `down`: how models are written."),
    "attacks": ("attack", "`[malicious] attack`: what malicious devices do."),
    "protocols": ("protocol", "`[network] protocol`: what a transfer is besides its payload."),
    "processes of the world": (
        "process",
        "`[world] processes`: what befalls links and devices besides.",
    ),
}
"""The page of each family of kinds, and the place in a scenario, by the catalogue's title."""

# their kinds are the same under every key: they have a page of their own
_QUANTITIES = "fedsim.world.distributions"
_LONGEST_DEFAULT = 60
_LONGEST_EXAMPLE = 80

_VALUES = {
    "a time": '"90 s"',
    "a data rate": '"20 Mbit/s"',
    "a size": '"5 MB"',
    "a power": '"4 W"',
    "a speed": '"6 samples/s"',
    "true or false": "true",
    "a list: each a whole number": "[1, 5]",
}
"""An example of each type of a key."""


def definition(key: Key, anchor: str, link: str = "", *, has_kinds: bool = False) -> str:
    """The definition of a key.

    Args:
        key: the key.
        anchor: the anchor of the definition.
        link: a link to its kinds, if they have a page.
        has_kinds: whether its values are tables.
    """
    text = f"({anchor})=\n`{key.name}`\n: {quoted(key.allowed)}; {_default(key)}.{link}"
    if key.meaning:
        text += f"\n\n  {quoted(sentence(key.meaning))}"
    example = _shipped_example(anchor, key.name)
    if not example:
        example = _example(key, has_kinds)
    if example:
        text += f"\n\n  Such as `{example}`."
    return text


def _default(key: Key) -> str:
    if key.default and len(key.default) <= _LONGEST_DEFAULT:
        return f"default `{key.default}`"
    if key.required:
        return "required"
    return "defaults below" if key.default else "by default not given"


def table(
    spec: type[Spec], path: str, seen: set[type[Spec]], level: int = 2, within: str = ""
) -> Iterator[str]:
    """The keys of a table, then each table and kind within it in a section.

    Args:
        spec: the table.
        path: its path in a scenario.
        seen: tables to leave out; it grows.
        level: level of the sections.
        within: path with kinds, for anchors, as two kinds may have tables of one name.
    """
    keys = [key for key in keys_of(spec) if key.name != "kind" and key.name in spec.takes()]
    inner = {key.name: specs_of(spec.model_fields[key.name]) for key in keys}
    links = {name: _link(specs) for name, specs in inner.items()}
    place = within or path
    if "kind" in spec.model_fields:
        place += f".{spec.model_fields['kind'].default}"
    for key in keys:
        link = f" Its kinds: {links[key.name]}." if links[key.name] else ""
        key_anchor = anchor(f"key-{place}-{key.name}")
        yield definition(key, key_anchor, link, has_kinds=bool(inner[key.name]))
    if not keys:
        yield "It takes no keys."
    for key in keys:
        if links[key.name]:
            continue
        inner_path = f"{path}.{key.name}".strip(".")
        for name, inner_spec in inner[key.name].items():
            if inner_spec in seen:
                continue
            seen.add(inner_spec)
            head = f"{'#' * min(level, 5)} `{inner_path}`"
            yield f"{head} = `{name}`" if name else head
            yield about(inner_spec)
            yield from table(inner_spec, inner_path, seen, level + 1, f"{place}.{key.name}")


@cache
def _shipped_examples() -> dict[str, dict[str, str]]:
    """The lines of the shipped scenarios by key, of each table by its path."""
    examples: dict[str, dict[str, str]] = {}

    def read(values: dict[str, Any], path: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                read(value, f"{path}-{key}".strip("-"))
            line = f"{key} = {as_toml(value)}"
            if len(line) <= _LONGEST_EXAMPLE:
                examples.setdefault(path, {}).setdefault(key, line)

    for file in shipped().values():
        content = read_toml(file)
        scenario = content if "strategy" in content else content.get("base")
        if isinstance(scenario, dict):
            read(scenario, "")
    return examples


def _shipped_example(key_anchor: str, name: str) -> str:
    """The line of a shipped scenario with the key of this anchor; empty if there is none."""
    path = key_anchor.removeprefix("key-").removesuffix(f"-{anchor(name)}").split("-")
    # anchors have kinds, too: `population-availability-renewal`
    for length in range(len(path), 0, -1):
        line = _shipped_examples().get("-".join(path[:length]), {}).get(name)
        if line:
            return line
    return ""


def _example(key: Key, has_kinds: bool) -> str:
    """A line with a value of the key's type; empty if the key has a default, or an open type."""
    if key.default:
        return ""
    value = _number(key.allowed)
    if not value:
        value = _value_of_type(key.allowed)
    names = re.match(r"one of ([\w.-]+)(, [\w.-]+)*$", key.allowed)
    if not value and not has_kinds and names:
        value = f'"{names[1]}"'
    return f"{key.name} = {value}" if value else ""


def _value_of_type(allowed: str) -> str:
    for kind, value in _VALUES.items():
        if re.search(rf"(^|or ){kind}", allowed):
            return value
    return ""


def _number(allowed: str) -> str:
    """A number within the bounds; empty if the key takes no number."""
    bounds = re.match(r"a (whole )?number(?:, (more than )?([\d,.]+)(?: or more)?)?", allowed)
    if bounds is None:
        return ""
    least = float((bounds[3] or "0").strip(",.").replace(",", ""))
    if bounds[1]:
        return f"{max(5.0, least + 1):g}"
    return "0.5" if least < 0.5 else f"{least + 1:g}"


def anchor(text: str) -> str:
    """The text with letters and digits, and hyphens for all other characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _link(specs: dict[str, type[Spec]]) -> str:
    """A link to the page of these kinds; empty if they have none."""
    kinds = {*specs.values()}
    if not kinds:
        return ""
    if all(spec.__module__ == _QUANTITIES for spec in kinds):
        return "[](/generated/scenario/quantities.md)"
    for title, (name, _) in PARTS.items():
        if kinds <= {*specs_titled(title).values()}:
            return f"[](/generated/parts/{name}.md)"
    if kinds <= {*specs_titled("strategies").values()}:
        return "[](/generated/strategies/index.md)"
    return ""
