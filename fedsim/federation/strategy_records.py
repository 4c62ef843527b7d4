"""Rules for records of strategies that the audit, the reports and the pictures of a run read."""

from collections.abc import Mapping, Sequence
from typing import cast

from fedsim.common.arguments import (
    FLAG,
    INDEX,
    TEXT,
    ArgumentRule,
    Fits,
    in_words,
    is_index,
    is_number,
    is_whole,
    list_of,
    optional,
)
from fedsim.common.errors import SimulationError
from fedsim.common.user_records import check_fields, check_kind, field_error, is_simple

Rules = Mapping[str, ArgumentRule]

# infinity and NaN are allowed: models may diverge
_NUMBER = ArgumentRule(lambda _, value: is_number(value), "a number")
_NUMBERS = list_of(_NUMBER, "numbers")
_WHOLE = ArgumentRule(lambda _, value: is_whole(value), "a whole number")
_TASKS = list_of(INDEX, "tasks")
# this rule receives the count of devices in place of an object with a method
_DEVICE = ArgumentRule(
    lambda count, value: is_index(value) and cast(int, value) < cast(int, count),
    lambda count: f"a device of 0 to {cast(int, count) - 1}",
)
_DEVICES = list_of(_DEVICE, "devices")
_MATRIX = list_of(_NUMBERS, "rows")
_GROUPS = list_of(_WHOLE, "groups")

REQUIRED: Mapping[str, Rules] = {
    "aggregate": {"tasks": _TASKS},
    "updates-lost": {"tasks": _TASKS},
    "assign": {"device": _DEVICE, "before": optional(_WHOLE), "why": TEXT},
    "clustering": {"devices": _DEVICES, "groups": _GROUPS},
    "cluster-split": {
        "round": INDEX,
        "group": INDEX,
        "children": _GROUPS,
        "members": list_of(_DEVICES, "groups"),
    },
    "edges-combined": {"edges": list_of(INDEX, "edge servers"), "weights": _NUMBERS},
    "round-start": {"round": INDEX, "selected": INDEX},
    "shift-test": {"device": _DEVICE, "fired": FLAG},
}
"""Kind of records -> its fields that readers of a run folder need, each with its rule."""

_OPTIONAL: Mapping[str, Rules] = {
    "aggregate": {
        "weights": _NUMBERS,
        "staleness": list_of(_WHOLE, "counts of rounds"),
        "draws": list_of(_WHOLE, "counts of draws"),
        "edge": INDEX,
        "bears": _NUMBER,
    },
    "cluster-split": {"mean_norm": _NUMBER, "max_norm": _NUMBER},
    "clustering": {
        "similarity": _MATRIX,
        "distance": _MATRIX,
        "distances": _MATRIX,
        "features": _MATRIX,
    },
    "round-start": {"deadline": _NUMBER, "training_limit": _NUMBER},
}
"""Kind of records -> further fields that readers of a run folder use; None for an unknown value."""

_EQUAL_LENGTHS: Mapping[str, tuple[str, ...]] = {
    "aggregate": ("tasks", "weights", "staleness", "draws"),
    "clustering": ("devices", "groups", "similarity", "distance", "distances", "features"),
    "cluster-split": ("children", "members"),
    "edges-combined": ("edges", "weights"),
}
"""Kind of records -> fields that are lists of equal length."""

_SQUARE = ("similarity", "distance", "distances")
"""Fields of the kind ``clustering`` that have a row and a column for each device."""

_MATRICES = (*_SQUARE, "features")

_UNREAD = (
    "campaign",
    "cluster",
    "cluster-criteria",
    "latency-tiers",
    "reweighting",
    "split",
    "stage",
    "tier",
    "tier-drop",
    "tier-test",
    "tiers",
)
"""Further kinds of fedsim's strategies, of which no reader needs a field."""

KINDS = frozenset((*REQUIRED, *_UNREAD))
"""Kinds of records of fedsim's strategies. Their numbers may be infinite or NaN."""


def check_record(
    method: str, kind: object, fields: dict[str, object], devices: int
) -> dict[str, object]:
    """Check a record of a strategy, and convert numbers of numpy to plain numbers.

    Args:
        method: the method that the strategy has called, such as ``Server.emit``.
        kind: kind of the record.
        fields: the fields by name.
        devices: count of devices.

    Returns:
        ``fields`` itself, or a dict with plain numbers.

    Raises:
        SimulationError: only fedsim writes records of this kind, or a field is missing or wrong.
    """
    if isinstance(kind, str) and _is_usual(kind, fields, devices):
        return fields
    kind_name = check_kind(method, kind)
    # numbers in records of fedsim's strategies may be infinite or NaN
    is_of_fedsim = kind_name in KINDS
    fields = check_fields(method, kind_name, fields, devices, finite=not is_of_fedsim)
    if is_of_fedsim:
        _check_read_fields(method, kind_name, fields, devices)
    return fields


def _make_checks(kind: str) -> dict[str, Fits]:
    """Return the checks of all fields of a kind that have a rule, columns included."""
    checks = {name: optional(INDEX).fits for name in ("round", "group", "task")}
    checks |= {"device": optional(_DEVICE).fits}
    checks |= {name: optional(TEXT).fits for name in ("step", "outcome")}
    checks |= {name: optional(rule).fits for name, rule in _OPTIONAL.get(kind, {}).items()}
    return checks | {name: rule.fits for name, rule in REQUIRED[kind].items()}


_CHECKS = {kind: _make_checks(kind) for kind in REQUIRED if kind != "clustering"}


def _is_usual(kind: str, fields: Mapping[str, object], devices: int) -> bool:
    """Return whether a fast check accepts a record unchanged; otherwise the full check is needed.

    The fast check saves time in strategies without rounds, which record each update.

    Args:
        kind: kind of the record.
        fields: the fields by name.
        devices: count of devices.
    """
    checks = _CHECKS.get(kind)  # name of a field that has a rule -> check of its value
    if checks is None or not REQUIRED[kind].keys() <= fields.keys():
        return False
    for name, value in fields.items():
        fits = checks.get(name)
        if fits is None and is_simple(value, finite=False):
            continue
        if fits is None or not fits(devices, value):
            return False
    lengths = set[int]()  # lengths of the lists that must be equally long
    for name in _EQUAL_LENGTHS.get(kind, ()):
        if fields.get(name) is not None:
            lengths.add(len(cast(Sequence[object], fields[name])))
    return len(lengths) < 2


def _check_read_fields(method: str, kind: str, fields: Mapping[str, object], devices: int) -> None:
    """Check the fields of a record that readers of a run folder use.

    Args:
        method: the method that the strategy has called.
        kind: kind of the record.
        fields: the fields by name.
        devices: count of devices.

    Raises:
        SimulationError: a field is missing, has a wrong value, or another length than it must have.
    """
    required = REQUIRED.get(kind, {})
    missing = [name for name in required if name not in fields]
    if missing:
        raise SimulationError(
            f"{method}: the record {kind!r} lacks {missing[0]!r}; it needs "
            f"{', '.join(required)}, which readers of the run folder use"
        )
    for name, rule in required.items():
        if not rule.fits(devices, fields[name]):
            raise field_error(method, kind, name, fields[name], in_words(rule, devices))
    for name, rule in _OPTIONAL.get(kind, {}).items():
        value = fields.get(name)
        if value is not None and not rule.fits(devices, value):
            raise field_error(method, kind, name, value, in_words(rule, devices))
    # the lists of the record that are as long as its first list
    first_list, *further_lists = _EQUAL_LENGTHS.get(kind, ("",))
    for name in further_lists:
        if fields.get(name) is not None:
            _check_length(method, kind, fields, name, first_list)


def _check_length(
    method: str, kind: str, fields: Mapping[str, object], name: str, first: str
) -> None:
    """Check that a list of a record is as long as another list of the record.

    A matrix must also have rows of equal length; a square matrix has as many columns as rows.

    Args:
        method: the method that the strategy has called.
        kind: kind of the record.
        fields: the fields by name.
        name: name of the list.
        first: name of the other list.

    Raises:
        SimulationError: a length is wrong.
    """
    entries = cast(Sequence[object], fields[name])
    count = len(cast(Sequence[object], fields[first]))
    if len(entries) == count and name not in _MATRICES:
        return
    row_lengths = set[int]()  # lengths of the rows of a matrix
    if name in _MATRICES:
        row_lengths = {len(cast(Sequence[object], row)) for row in entries}
    counted = {len(entries)}  # lengths that must equal ``count``
    if name in _SQUARE:
        counted |= row_lengths
    if counted != {count} or len(row_lengths) > 1:
        raise SimulationError(
            f"{method}: {name} of the record {kind!r} has {len(entries)} entries, and {first} has "
            f"{count}; allowed are equal lengths, and in a matrix also of each row"
        )
