"""What the audit covers and what it does not, in one place; and the checks that parts of one's own bring with them.

A part that a scenario names by import path may have a static method ``check_run(run, section)``, which takes the run folder
(``fedsim.plugin.RunFolder``) and the part's table in the scenario, and yields a sentence for each problem. Parts without one
are listed as unchecked.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from fedsim.audit.evidence import Evidence
from fedsim.errors import ScenarioError
from fedsim.language.imports import named
from fedsim.records.reading import RunFolder

Section = Mapping[str, Any]
OwnPart = tuple[str, str, Section]
"""Its key in the scenario, its import path, and its table."""

_COUNTED_AGAIN = "meters."

_VALUES = "values of learning, which nothing else in the folder has"
_OF_VALUES = "decides by values of learning"
_NO_TRACE = "leaves no trace in the folder where it changes no time and no byte"
_FILES = "follows from files outside of the folder"
_STATE = "a decision of the server, of which the folder does not have the reasons"

UNCHECKED: Mapping[str, str] = {
    "summary: name": "a label, in the scenario and the summary alone",
}
"""Columns, fields of records, entries and keys that no check covers, as patterns, and why.

A table's column is ``FILE: COLUMN``, a field of a record ``KIND: FIELD``; with ``summary:`` and ``scenario:`` entries and keys.
"""


def is_unchecked(name: str) -> bool:
    """Whether a column, field, entry or key is declared as unchecked."""
    return any(fnmatchcase(name, pattern) for pattern in UNCHECKED)


def own_parts(scenario: Section) -> list[OwnPart]:
    """The parts that a scenario names by import path."""
    return [*_own_parts(scenario, "")]


def _own_parts(section: Any, key: str) -> Iterator[OwnPart]:
    if isinstance(section, list):
        for number, entry in enumerate(section):
            yield from _own_parts(entry, f"{key}{number}.")
    elif isinstance(section, Mapping):
        for name in ("kind", "factory"):
            path = section.get(name)
            if isinstance(path, str) and ":" in path:
                yield f"{key}{name}", path, section
        for name, entry in section.items():
            yield from _own_parts(entry, f"{key}{name}.")


def own_parts_agree(evidence: Evidence) -> Iterator[str]:
    """Parts of one's own that have a check of runs find no problem; without their code they are left out."""
    for key, path, section in own_parts(evidence.run.scenario):
        check = _check_of(path, key)
        if check is None:
            continue
        try:
            problems = [*check(evidence.run, section)]
        except Exception as error:  # code of a user's own
            problems = [f"its check failed ({type(error).__name__}: {error})"]
        yield from (f"{key} = {path!r}: {problem}" for problem in problems)


def _check_of(path: str, key: str) -> Any:
    try:
        return getattr(named(path, key), "check_run", None)
    except ScenarioError:
        return None  # its code may not be imported, or cannot be here


def unchecked_parts(run: RunFolder) -> tuple[list[str], bool]:
    """The parts of one's own of which no check covers what they have done, a sentence each; and whether all can be imported."""
    found: list[str] = []
    all_here = True
    for key, path, _ in own_parts(run.scenario):
        try:
            part = named(path, key)
        except ScenarioError:
            all_here = False
            found.append(f"{key} = {path!r}: its code is not allowed, or not here")
            continue
        if not key.startswith(_COUNTED_AGAIN) and getattr(part, "check_run", None) is None:
            found.append(f"{key} = {path!r}: it has no check_run")
    return found, all_here
