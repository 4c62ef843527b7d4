"""TOML tables before validation: reading, ``extends``, ``--set``, and the changes of a study's
variants.

A change is merged into the base key by key; a dotted key denotes nested tables. A change of
``kind`` drops the base's other keys of that table, except in ``strategy``: keys that the new
strategy takes too (cohort, epochs, deadline) stay. ``--set`` of a ``kind`` keeps such keys in every
table.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common import files
from fedsim.common.errors import ScenarioError, nearest, shown
from fedsim.common.files import flat
from fedsim.common.registry import spec_of
from fedsim.common.spec import Spec
from fedsim.strategies import STRATEGIES, params_class

Tables = dict[str, Any]


@dataclass(frozen=True)
class SetChange:
    """A change given by ``--set``: its text, its key as a path, and the new value; None removes
    the key.
    """

    text: str
    keys: tuple[str, ...]
    value: Any

    def holds_in(self, sections: Mapping[str, Any]) -> bool:
        return _holds(self.value, at(sections, self.keys))


def at(tables: Any, keys: Sequence[str]) -> Any:
    """The value of a key in nested tables; None if it is not given."""
    for key in keys:
        tables = tables.get(key) if isinstance(tables, Mapping) else None
    return tables


def _holds(said: Any, there: Any) -> bool:
    """Whether ``there`` contains ``said``; the name of a kind may have become a table with that
    ``kind``.
    """
    if isinstance(there, Mapping) and isinstance(said, Mapping):
        return all(_holds(value, there.get(key)) for key, value in said.items())
    return bool(
        said
        == (there.get("kind") if isinstance(there, Mapping) and isinstance(said, str) else there)
    )


def read_toml(path: str | Path, what: str, of: Sequence[Path] = ()) -> Tables:
    """The tables of a TOML file merged into those it ``extends``.

    ``what``: its name in messages; ``of``: its descendants.
    """
    here = Path(path)
    name = f"the {what} {str(path)!r}"
    try:
        own = files.read_toml(here)
    except FileNotFoundError:
        raise ScenarioError(f"{name} does not exist") from None
    except OSError as error:
        raise ScenarioError(f"{name} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ScenarioError(f"{name} is not valid TOML: {error}") from None
    if not own:
        raise ScenarioError(
            f"{name} is empty; 'fedsim init quickstart' copies a scenario to begin from"
        )
    other = own.pop("extends", None)
    if other is None:
        return own
    if not isinstance(other, str):
        raise ScenarioError(f"{name} extends {shown(other)}; allowed is the name of a file")
    if here.resolve() in of:
        raise ScenarioError(f"{name} extends itself")
    return changed(read_toml(here.parent / other, what, [*of, here.resolve()]), own)


def apply_changes(
    scenarios: Sequence[Tables],
    changes: Sequence[str],
    root: type[Spec],
    tell: Callable[[str], object] = lambda _: None,
) -> list[SetChange]:
    """Apply changes (``key.path=value``) to the tables of scenarios; the order of the changes
    does not matter.

    Whole tables are set before keys in them, and a ``kind`` before the other keys of its table.
    Where a change alters the ``kind`` of a table, keys that the new kind lacks are dropped, each
    with a message to ``tell``. Keys given by a change are never dropped: validation refuses them by
    name. ``root`` is the spec of a scenario.
    """
    read = [read_change(change) for change in changes]
    given = {change.keys for change in read}
    for change in sorted(read, key=lambda one: (len(one.keys), one.keys[-1] != "kind")):
        if change.value is not None:
            for sections in scenarios:
                _set(sections, change)
                if change.keys[-1] == "kind":
                    _drop_strangers(sections, change.keys[:-1], root, given, tell)
        elif not sum([_unset(sections, change.keys) for sections in scenarios]):
            hint = nearest(
                ".".join(change.keys), [key for sections in scenarios for key in flat(sections)]
            )
            raise ScenarioError(f"--set {change.text!r} takes away a key that is not given{hint}")
    for change in read:
        within = any(one != change.keys and one[: len(change.keys)] == change.keys for one in given)
        for sections in scenarios:
            # a table may be removed and given anew
            if not (change.holds_in(sections) or (change.value is None and within)):
                raise ScenarioError(
                    f"--set {change.text!r} is undone by another change; give one of the two"
                )
    return read


def read_change(text: str) -> SetChange:
    """A ``key.path=value`` text; ``ScenarioError`` if it is none."""
    path, equals, value = (part.strip() for part in text.partition("="))
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys):
        raise ScenarioError(
            f"--set {text!r} is not of the form key.path=value, such as training.lr=0.01"
        )
    try:
        return SetChange(text, keys, tomllib.loads(f"value = {value}")["value"] if value else None)
    except ValueError as error:
        if value[0] in "{[\"'":
            raise ScenarioError(
                f"--set {shown(text)}: {shown(value)} is not valid TOML: {error}"
            ) from None
        return SetChange(text, keys, value)
    except RecursionError:
        raise ScenarioError(f"--set {shown(text)} is nested too deeply") from None


def _set(sections: Tables, change: SetChange) -> None:
    table = sections
    keys = change.keys
    for depth, key in enumerate(keys[:-1]):
        if keys[depth + 1 :] == ("kind",) and isinstance(table.get(key), str):
            table[key] = {}  # replaces the bare name of a kind
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            said = f"{key!r} is {table!r} in the scenario, not a table"
            raise ScenarioError(f"--set {change.text!r}: {said}; set the whole of it")
    table[keys[-1]] = deepcopy(change.value)


def _unset(sections: Tables, keys: Sequence[str]) -> bool:
    """Remove a key; returns whether it was there."""
    table = at(sections, keys[:-1])
    return isinstance(table, dict) and table.pop(keys[-1], None) is not None


def _drop_strangers(
    sections: Tables,
    keys: tuple[str, ...],
    root: type[Spec],
    given: Collection[tuple[str, ...]],
    tell: Callable[[str], object],
) -> None:
    """Drop the keys that a table's kind does not take, except those that a change gives."""
    spec: type[Spec] | None = root
    table: Any = sections
    for depth, key in enumerate(keys):
        table = table[key]
        field = spec.model_fields.get(key) if spec else None
        kind = table.get("kind", "")
        try:
            spec = spec_of(field, kind) if field and isinstance(kind, str) else None
        except ScenarioError as error:
            raise ScenarioError(f"{'.'.join(keys[: depth + 1])}.{error}") from None
    given = {one[: len(keys) + 1] for one in given}
    for key in [
        key for key in table if spec and key not in spec.takes() and (*keys, key) not in given
    ]:
        tell(
            f"{'.'.join([*keys, key])} = {shown(table.pop(key))} is dropped: {table['kind']!r} "
            "has no such key"
        )


def spread_out(changes: Mapping[str, Any]) -> Tables:
    """Changes with every dotted key expanded to tables; a key given twice is refused."""
    tables: Tables = {}
    for key, value in changes.items():
        parts = key.split(".")
        if not all(part.strip() for part in parts):
            raise ScenarioError(
                f"{key!r} is no key; allowed are names with dots between them, such as "
                "'training.lr'"
            )
        nested = spread_out(value) if isinstance(value, Mapping) else value
        for part in reversed(parts):
            nested = {part: nested}
        _add(tables, nested, "")
    return tables


def _add(tables: Tables, more: Tables, above: str) -> None:
    for key, value in more.items():
        known = tables.setdefault(key, value)
        if known is value:
            continue
        if not (isinstance(known, dict) and isinstance(value, dict)):
            raise ScenarioError(f"{above}{key} is given twice, as {known!r} and as {value!r}")
        _add(known, value, f"{above}{key}.")


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tables:
    """The base's tables with changes (spread out) merged into them; neither is altered."""
    return {**base, **{key: _merged(base.get(key), value, key) for key, value in changes.items()}}


def _merged(there: Any, change: Any, path: str) -> Any:
    if not (isinstance(there, Mapping) and isinstance(change, Mapping)):
        return change
    kind = change.get("kind")
    if path == "strategy" and kind is not None and kind != there.get("kind", STRATEGIES.usual):
        if not isinstance(kind, str):
            raise ScenarioError(f"strategy.kind is {kind!r}; it must be a name")
        known = params_class(kind).takes()
        there = {key: value for key, value in there.items() if key in known}
    elif path != "strategy" and "kind" in change and kind != there.get("kind"):
        return dict(change)
    return {
        **there,
        **{key: _merged(there.get(key), value, f"{path}.{key}") for key, value in change.items()},
    }


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first key in which two scenarios differ, for people; empty if in none."""
    old = flat(before)
    new = flat(now)
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            was, is_now = (repr(side[key]) if key in side else "not given" for side in (old, new))
            return f"{key} was {was}, and is {is_now} now"
    return ""
