"""Forgeries of one column, key or entry of a run folder at a time, in memory and as if sealed
again.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsim import Scenario, ScenarioError
from fedsim.lab.audit import CHECKS, _findings
from fedsim.lab.audit.evidence import Evidence
from fedsim.lab.audited import VALID
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder

SEALS = (
    "every file is there, whole and as it was sealed",
    "the records are those that were fingerprinted",
)
SEALS += ("the models are those that were fingerprinted",)
"""Checks of fingerprints, which a forger makes anew."""

TABLES = (
    files.EVENTS,
    files.TRANSFERS,
    files.ROUNDS,
    files.DEVICES,
    files.AVAILABILITY,
    "energy.parquet",
)


class Forged(RunFolder):
    """A run folder of which something has other content."""

    def __init__(self, honest: RunFolder, **changed: Any) -> None:
        super().__init__(honest.path)
        self.scenario = changed.get("scenario", honest.scenario)
        self.summary = changed.get("summary", honest.summary)
        self._changed: Mapping[str, Any] = changed.get("tables", {})
        if files.EVENTS in self._changed:
            last = self._changed[files.EVENTS]["time"].to_pylist()[-1]
            self.summary = self.summary | {"simulated_s": last}
        self._honest = honest

    def table(self, name: str, columns: Any = None) -> Any:
        whole = self._changed.get(name)
        if whole is None:
            whole = self._honest.table(name)
        return whole if columns is None else whole.select(columns)


class Cached(RunFolder):
    """A run folder whose tables and models are read once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._read: dict[str, Any] = {}

    def table(self, name: str, columns: Any = None) -> Any:
        if name not in self._read:
            self._read[name] = super().table(name)
        whole = self._read[name]
        return whole if columns is None else whole.select(columns)


Forgery = tuple[str, Callable[[], RunFolder | None]]
"""Its name, and how it is made; None for a scenario that fedsim refuses."""

_last: dict[str, str] = {}


def finder(run: RunFolder, where: str) -> str | None:
    """The first check that finds something; None if none does."""
    evidence = Evidence(run)
    names = [name for name in CHECKS if name not in SEALS]
    usual = _last.get(where)
    for name in sorted(names, key=lambda name: name != usual):
        if _findings(CHECKS[name], evidence):
            _last[where] = name
            return name
    return None


def other(value: Any) -> Any:
    """Another value of the type of one, not far away."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return 1.0 if math.isinf(value) else value * 1.5 + (value == 0.0)
        case str():
            return "device 0" if value.startswith("device") and value != "device 0" else f"{value}x"
        case [*values] if values:
            return [*values[:-1], other(values[-1])]
        case {**entries} if entries:
            key = sorted(entries)[0]
            return {**entries, key: other(entries[key])}
        case []:
            return [1]
    return 1


def _cell(table: Any, name: str) -> Any:
    """A column with another value in one of its middle rows, or in an empty one where all are
    empty.
    """
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    values = table[name].to_pylist()
    filled = [row for row, value in enumerate(values) if value is not None]
    row = filled[len(filled) // 2] if filled else len(values) // 2
    if pa.types.is_dictionary(field.type):
        names = sorted({value for value in values if value is not None and value != values[row]})
        values[row] = names[0] if names else "device 0"
    elif pa.types.is_string(field.type):
        values[row] = json.dumps([["control", 4.0]])
    elif values[row] is None:
        values[row] = True if pa.types.is_boolean(field.type) else 1
    else:
        values[row] = other(values[row])
    return table.set_column(place, field, pa.array(values, field.type))


def _with_cell(run: RunFolder, name: str, column: str) -> RunFolder:
    return Forged(run, tables={name: _cell(run.table(name), column)})


def of_tables(run: RunFolder) -> Iterator[Forgery]:
    """A forgery of each column of each table, but for the data of events."""
    for name in TABLES:
        if not run.has(name) or not len(run.table(name)):
            continue
        for column in run.table(name).column_names:
            if (name, column) != (files.EVENTS, "data"):
                yield f"{name}: {column}", partial(_with_cell, run, name, column)


def of_records(run: RunFolder) -> Iterator[Forgery]:
    """A forgery of each field of each kind of record, and of each of its data."""
    table = run.table(files.EVENTS)
    rows = table.to_pylist()
    kinds = dict.fromkeys(
        (row["kind"], row["step"] if row["kind"] == "step-end" else None) for row in rows
    )
    for kind, step in kinds:
        own = [
            at
            for at, row in enumerate(rows)
            if row["kind"] == kind and (step is None or row["step"] == step)
        ]
        full = [at for at in own if rows[at]["data"] is not None]
        at = (full or own)[len(full or own) // 2]
        what = kind if step is None else f"{kind} of {step}"
        for column, value in rows[at].items():
            if column not in ("kind", "data") and value is not None:
                yield (
                    f"{what}: {column}",
                    partial(_with_row, run, table, rows, at, column, _near(column, value, rows)),
                )
        data = json.loads(rows[at]["data"] or "{}")
        for key, value in data.items():
            changed = json.dumps(data | {key: other(value)}, sort_keys=True, separators=(",", ":"))
            yield f"{what}: {key}", partial(_with_row, run, table, rows, at, "data", changed)


def _near(column: str, value: Any, rows: Any) -> Any:
    if isinstance(value, str):
        names = sorted({row[column] for row in rows if row[column] not in (None, value)})
        return names[0] if names else "other"
    return other(value)


def _with_row(run: RunFolder, table: Any, rows: Any, at: int, column: str, value: Any) -> RunFolder:
    place = table.schema.get_field_index(column)
    field = table.schema.field(place)
    values = [row[column] for row in rows]
    values[at] = value
    return Forged(
        run, tables={files.EVENTS: table.set_column(place, field, pa.array(values, field.type))}
    )


def leaves(section: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values of a tree of tables."""
    for name, value in section.items() if isinstance(section, dict) else enumerate(section):
        path = f"{key}{name}"
        if isinstance(value, dict) or (
            isinstance(value, list) and value and isinstance(value[0], dict)
        ):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def _set(section: Any, key: str, value: Any) -> Any:
    changed = copy.deepcopy(section)
    *path, last = key.split(".")
    place = changed
    for part in path:
        place = place[int(part) if isinstance(place, list) else part]
    place[int(last) if isinstance(place, list) else last] = value
    return changed


def of_summary(run: RunFolder) -> Iterator[Forgery]:
    """A forgery of each entry of the summary."""
    sealed = (
        *("events", "events_sha256", "events_block", "models_sha256", "files_sha256"),
        *(files.SEAL, "simulated_s"),
    )
    entries = {name: value for name, value in run.summary.items() if name not in sealed}
    for key, value in leaves(entries):
        yield f"summary: {key}", partial(Forged, run, summary=_set(run.summary, key, other(value)))


def _quantity(value: Any) -> Any:
    """Twice a quantity with its unit."""
    number, _, unit = value.partition(" ")
    try:
        return f"{float(number) * 2 or 1.0:g} {unit}" if unit else f"{value}x"
    except ValueError:
        return f"{value}x"


def of_scenario(run: RunFolder) -> Iterator[Forgery]:
    """A forgery of each key of the scenario."""
    for key, value in leaves(run.scenario):
        yield (
            f"scenario: {key}",
            partial(
                _with_key, run, key, _quantity(value) if isinstance(value, str) else other(value)
            ),
        )


def _with_key(run: RunFolder, key: str, value: Any) -> RunFolder | None:
    changed = _set(run.scenario, key, value)
    summary = run.summary | {"seed": changed.get("seed"), "name": changed.get("name")}
    summary |= {"strategy": changed["strategy"].get("kind")}
    try:
        Scenario(**copy.deepcopy(changed))
    except ScenarioError:
        return None
    return Forged(run, scenario=changed, summary=summary)


def tried(run: RunFolder, skip: Any = lambda name: False) -> Iterator[tuple[str, str | None]]:
    """Every forgery that is not skipped, and the check that finds it."""
    for forgeries in (of_tables, of_records, of_summary, of_scenario):
        for name, make in forgeries(run):
            if not skip(name):
                forged = make()
                yield name, VALID if forged is None else finder(forged, name.partition(":")[0])
