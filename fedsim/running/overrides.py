"""TOML tables before validation: reading, ``extends``, ``--set``, and changes of variants.

A file that extends another, and a variant of a study, are merged into their base key by key; a
dotted key denotes nested tables. If they change the ``kind`` of a table, the base's other keys of
this table are dropped. In the table ``strategy``, only the keys that the new kind does not accept
are dropped. If ``--set`` changes a ``kind``, this holds for every table.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.common import files
from fedsim.common.errors import ScenarioError, nearest, show_value
from fedsim.common.files import flatten
from fedsim.common.kind_field import spec_of
from fedsim.common.spec import Spec
from fedsim.strategies import STRATEGIES, params_class

Tables = dict[str, Any]


@dataclass(frozen=True)
class SetChange:
    """Parsed change of a scenario's key, as the option ``--set key=value`` gives it.

    Attributes:
        text: the argument of ``--set``.
        keys: parts of the dotted key.
        value: the new value; None to remove the key.
    """

    text: str
    keys: tuple[str, ...]
    value: Any

    def holds_in(self, sections: Mapping[str, Any]) -> bool:
        """Return whether a scenario's tables have the new value.

        Args:
            sections: the tables.
        """
        return _has_value(at(sections, self.keys), self.value)


def at(tables: Any, keys: Sequence[str]) -> Any:
    """Return the value at a path of keys in nested tables; None if the path does not exist."""
    value = tables
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _has_value(present: object, new: object) -> bool:
    """Whether a value in a scenario equals the new value of a change.

    If the value is a table, the new value may also be a table with some of its keys and equal
    values, or a text that is its ``kind``.

    Args:
        present: the value in the scenario.
        new: the new value.
    """
    if isinstance(present, Mapping) and isinstance(new, Mapping):
        return all(_has_value(present.get(key), value) for key, value in new.items())
    if isinstance(present, Mapping) and isinstance(new, str):
        present = present.get("kind")
    # NaN is not equal to itself, so ``is`` compares it; validation refuses NaN with a message
    return new is present or bool(new == present)


def read_toml(path: str | Path, role: str, descendants: Sequence[Path] = ()) -> Tables:
    """Read a TOML file, and merge its tables into the tables of the file that it ``extends``.

    Args:
        path: the file.
        role: word for the file in messages, such as ``scenario``.
        descendants: the files that extend this file, directly or through others. ``path`` must not
            be one of these files.

    Raises:
        ScenarioError: the file cannot be read, is empty, or extends itself.
    """
    file = Path(path)
    name = f"the {role} {str(path)!r}"
    try:
        tables = files.read_toml(file)
    except FileNotFoundError:
        raise ScenarioError(f"{name} does not exist") from None
    except OSError as error:
        raise ScenarioError(f"{name} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ScenarioError(f"{name} is not valid TOML: {error}") from None
    if not tables:
        raise ScenarioError(
            f"{name} is empty; 'fedsim init quickstart' copies a scenario to begin from"
        )
    base = tables.pop("extends", None)
    if base is None:
        return tables
    if not isinstance(base, str):
        raise ScenarioError(f"{name} extends {show_value(base)}; allowed is the name of a file")
    if file.resolve() in descendants:
        raise ScenarioError(f"{name} extends itself")
    base_tables = read_toml(file.parent / base, role, [*descendants, file.resolve()])
    return changed(base_tables, tables)


def apply_changes(
    scenarios: Sequence[Tables],
    changes: Sequence[str],
    root: type[Spec],
    tell: Callable[[str], object] = lambda _: None,
) -> list[SetChange]:
    """Apply changes (``key.path=value``) to scenarios; the order of the changes does not matter.

    Whole tables are set before keys in them, and a ``kind`` before the other keys of its table. If
    a change alters the ``kind`` of a table, such as ``strategy``, keys that the new kind does not
    have are dropped. Keys given by a change are never dropped: the later validation refuses them.

    Args:
        scenarios: the tables of each scenario, which are altered.
        changes: the changes as text.
        root: class of the whole scenario, which knows the keys of each table.
        tell: gets a message for each dropped key.

    Returns:
        The changes, parsed.

    Raises:
        ScenarioError: a change is malformed, removes a key that no scenario has, or is undone by
            another change.
    """
    parsed = [read_change(text) for text in changes]
    changed_keys = {change.keys for change in parsed}
    for change in sorted(parsed, key=_application_order):
        if change.value is None:
            _remove_key(scenarios, change)
            continue
        sets_kind = change.keys[-1] == "kind"
        for sections in scenarios:
            _set_key(sections, change)
            if sets_kind:
                _drop_unknown_keys(sections, change.keys[:-1], root, changed_keys, tell)
    for change in parsed:
        # one change may remove a table of which another change sets a key
        is_set_anew = change.value is None and _is_given_within(change.keys, changed_keys)
        if is_set_anew:
            continue
        if not all(change.holds_in(sections) for sections in scenarios):
            raise ScenarioError(
                f"--set {change.text!r} is undone by another change; give one of the two"
            )
    return parsed


def _application_order(change: SetChange) -> tuple[int, bool]:
    """Return a change's sort key: whole tables before keys in them, ``kind`` before other keys."""
    return len(change.keys), change.keys[-1] != "kind"


def _is_given_within(table: tuple[str, ...], changed_keys: Collection[tuple[str, ...]]) -> bool:
    """Whether any changed key is within the table at the path ``table``."""
    return any(keys != table and keys[: len(table)] == table for keys in changed_keys)


def _remove_key(scenarios: Sequence[Tables], change: SetChange) -> None:
    """Remove the key of ``change`` from all scenarios; ``ScenarioError`` if none has the key."""
    had_key = [_pop_key(sections, change.keys) for sections in scenarios]
    if any(had_key):
        return
    present_keys = [key for sections in scenarios for key in flatten(sections)]
    hint = nearest(".".join(change.keys), present_keys)
    raise ScenarioError(f"--set {change.text!r} takes away a key that is not given{hint}")


def read_change(text: str) -> SetChange:
    """Parse a change ``key.path=value``.

    The value is read as TOML, or else as plain text. An empty value removes the key.

    Raises:
        ScenarioError: the text has another form, or the value begins as TOML and is not valid.
    """
    path, equals, value = (part.strip() for part in text.partition("="))
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys):
        raise ScenarioError(
            f"--set {text!r} is not of the form key.path=value, such as training.lr=0.01"
        )
    if not value:
        return SetChange(text, keys, value=None)
    try:
        return SetChange(text, keys, tomllib.loads(f"value = {value}")["value"])
    except ValueError as error:
        if value[0] in "{[\"'":
            raise ScenarioError(
                f"--set {show_value(text)}: {show_value(value)} is not valid TOML: {error}"
            ) from None
        return SetChange(text, keys, value)
    except RecursionError:
        raise ScenarioError(f"--set {show_value(text)} is nested too deeply") from None


def _set_key(sections: Tables, change: SetChange) -> None:
    """Set the key of ``change`` in a scenario's tables; missing tables on its path are added."""
    table = sections
    keys = change.keys
    for depth, key in enumerate(keys[:-1]):
        sets_kind = keys[depth + 1 :] == ("kind",)
        if sets_kind and isinstance(table.get(key), str):
            table[key] = {}  # a table replaces the bare name of a kind
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ScenarioError(
                f"--set {change.text!r}: {key!r} is {table!r} in the scenario, not a table; set "
                "the whole of it"
            )
    table[keys[-1]] = deepcopy(change.value)


def _pop_key(sections: Tables, keys: Sequence[str]) -> bool:
    """Remove a key from nested tables; return whether the key was there."""
    table = at(sections, keys[:-1])
    return isinstance(table, dict) and table.pop(keys[-1], None) is not None


def _drop_unknown_keys(
    sections: Tables,
    keys: tuple[str, ...],
    root: type[Spec],
    changed_keys: Collection[tuple[str, ...]],
    tell: Callable[[str], object],
) -> None:
    """Remove the keys that a table does not accept any more, because its ``kind`` was changed.

    Args:
        sections: the tables of the scenario, which are altered.
        keys: path of the table.
        root: class of the whole scenario, which knows the keys of each table.
        changed_keys: keys that changes set; they stay, so that validation refuses them.
        tell: gets a message for each removed key.
    """
    # find the table, and its class for the new kind
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
    if not spec:  # the class is unknown; validation refuses wrong keys
        return
    # changed keys, each cut to the length of a key of this table
    set_paths = {path[: len(keys) + 1] for path in changed_keys}
    accepted = spec.takes()
    unknown_keys = [key for key in table if key not in accepted and (*keys, key) not in set_paths]
    for key in unknown_keys:
        value = table.pop(key)
        tell(
            f"{'.'.join([*keys, key])} = {show_value(value)} is dropped: {table['kind']!r} "
            "has no such key"
        )


def nest_dotted_keys(changes: Mapping[str, Any]) -> Tables:
    """Expand dotted keys to nested tables: ``strategy.kind`` to ``kind`` in ``strategy``.

    Args:
        changes: dotted keys and their values, which may be tables.

    Raises:
        ScenarioError: a key is given twice, or has an empty part.
    """
    tables: Tables = {}
    for key, value in changes.items():
        parts = key.split(".")
        if not all(part.strip() for part in parts):
            raise ScenarioError(
                f"{key!r} is no key; allowed are names with dots between them, such as "
                "'training.lr'"
            )
        nested = nest_dotted_keys(value) if isinstance(value, Mapping) else value
        # build the nested tables from the innermost table outwards
        for part in reversed(parts):
            nested = {part: nested}
        _add_tables(tables, nested, prefix="")
    return tables


def _add_tables(tables: Tables, new: Tables, prefix: str) -> None:
    """Add the keys of nested tables to ``tables``; raise ``ScenarioError`` if both have a key.

    Args:
        tables: the tables, which are altered.
        new: the nested tables to add.
        prefix: dotted name of both tables, with a dot at the end, for messages.
    """
    for key, value in new.items():
        present = tables.setdefault(key, value)
        if present is value:  # ``tables`` did not have the key
            continue
        if not (isinstance(present, dict) and isinstance(value, dict)):
            raise ScenarioError(f"{prefix}{key} is given twice, as {present!r} and as {value!r}")
        _add_tables(present, value, f"{prefix}{key}.")


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tables:
    """Return a copy of a scenario's tables with other tables merged into it.

    If ``changes`` alter the ``kind`` of a table, the base's other keys of this table are dropped;
    in ``strategy`` only the keys that the new kind does not have.

    Args:
        base: the tables.
        changes: top-level key -> new value, or table to merge into the base's table. A dot in a key
            does not denote a nested table.
    """
    tables = dict(base)
    for key, value in changes.items():
        tables[key] = _merge(base.get(key), value, key)
    return tables


def _merge(base: Any, change: Any, path: str) -> Any:
    """Return ``base`` with ``change`` merged into it; ``path`` is the dotted key of both."""
    if not (isinstance(base, Mapping) and isinstance(change, Mapping)):
        return change
    kind = change.get("kind")
    if path == "strategy":
        is_other_strategy = kind is not None and kind != base.get("kind", STRATEGIES.usual)
        if is_other_strategy:  # keeps the keys of the base that the new strategy accepts
            if not isinstance(kind, str):
                raise ScenarioError(f"strategy.kind is {kind!r}; it must be a name")
            accepted = params_class(kind).takes()
            base = {key: value for key, value in base.items() if key in accepted}
    elif "kind" in change and kind != base.get("kind"):
        return dict(change)
    table = dict(base)
    for key, value in change.items():
        table[key] = _merge(base.get(key), value, f"{path}.{key}")
    return table


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return a text that names the first key whose value differs between two scenarios.

    Args:
        before: tables of one scenario.
        now: tables of the other scenario.

    Returns:
        The text; empty if the scenarios are equal.
    """
    old = flatten(before)
    new = flatten(now)
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            old_text = repr(old[key]) if key in old else "not given"
            new_text = repr(new[key]) if key in new else "not given"
            return f"{key} was {old_text}, and is {new_text} now"
    return ""
