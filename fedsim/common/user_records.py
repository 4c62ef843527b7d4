"""Checks of the records that users' code adds to a run, by ``emit`` of server, world or clock.

A wrong record ends the call with an error that names the field. So no record of a user can damage
the run folder, and no record fails only when it is written.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from fedsim.common.arguments import INDEX, NAME, TEXT, is_index, plain, refusal
from fedsim.common.errors import SimulationError, show_value

_OF_TASKS = "Server.ask adds them"
_OF_NODES = "a run on real nodes adds them"
OWN_KINDS: Mapping[str, str] = {
    "task-start": _OF_TASKS,
    "step-start": _OF_TASKS,
    "step-end": _OF_TASKS,
    "task-end": _OF_TASKS,
    "no-update": "Server.finish_round adds them for answers without a model",
    "message": "Peer.send and World.send add them",
    "edge-transfer": "ServerEdges.carry adds them",
    "server-transfer": "Server.exchange adds them",
    "round": "Server.finish_round and Server.note_round add them",
    "cosines": "Server.finish_round adds them with evaluation.cosines",
    "non-finite": "a model with weights that are not finite adds them",
    "malicious": "the section [malicious] adds them",
    "shift": "the section [drift] adds them",
    "arrival": "population.arrivals adds them",
    "departure": "population.departures adds them",
    "battery": "energy.battery adds them",
    "link-rate": "World.limit adds them",
    "pace": "World.slow adds them",
    "switch-off": "World.off adds them",
    "switch-on": "World.off adds them",
    "edge-off": "World.lose adds them",
    "edge-on": "World.lose adds them",
    "queue": "World.queue adds them",
    "run-end": "the end of the run adds them, with the reason given to Server.stop",
    "node": _OF_NODES,
    "node-return": _OF_NODES,
    "node-gone": _OF_NODES,
    "node-forgot": _OF_NODES,
    "node-fault": _OF_NODES,
    "sent": _OF_NODES,
    "received": _OF_NODES,
}
"""Kind of records that only fedsim adds to a run -> what adds them."""

OF_PROCESSES = "process:"
"""Prefix of the kinds of records that ``World.emit`` adds."""

_WHOLE_COLUMNS = ("device", "round", "group", "task")
_COLUMNS = frozenset((*_WHOLE_COLUMNS, "step", "outcome"))
"""Fields that are columns of ``events.parquet``; all other fields are in its column ``data``."""

_JSON = "JSON: texts, numbers, True, False, None, and lists and dicts of these, with texts as names"
_FINITE_JSON = _JSON.replace("numbers", "finite numbers")
_ENCODE = json.JSONEncoder(sort_keys=True).encode
_ENCODE_FINITE = json.JSONEncoder(sort_keys=True, allow_nan=False).encode
_MOST_ENTRIES = 8  # longest list whose entries are checked one by one; a longer one is encoded
_MOST_INTEGER = 2**63  # greater integers are encoded to check whether they are JSON
_MOST_LEVELS = 8  # greatest depth of nested lists and dicts at which a wrong part is searched for
_ENCODING_ERRORS = (TypeError, ValueError, RecursionError, OverflowError)


def check_kind(method: str, kind: object, *, is_clock: bool = False) -> str:
    """Return a kind of record; refuse a value that is no name, and a kind that only fedsim writes.

    Args:
        method: the method that users' code has called, such as ``Server.emit``.
        kind: the kind.
        is_clock: whether the record is of a clock without a scenario. fedsim itself adds no records
            there, so that every name is allowed.

    Raises:
        SimulationError: the kind is not allowed.
    """
    if not isinstance(kind, str) or not NAME.fits(None, kind):
        raise refusal(method, "kind", kind, str(NAME.allowed))
    if is_clock:
        return kind
    # the part of fedsim that adds records of this kind; None if the kind is not fedsim's
    source = OWN_KINDS.get(kind)
    if kind.startswith(OF_PROCESSES):
        source = "World.emit adds them"
    if source is not None:
        raise SimulationError(
            f"{method}: records of the kind {kind!r} are fedsim's own ({source}); allowed is a "
            "name that fedsim does not use"
        )
    return kind


def check_fields(
    method: str,
    kind: str,
    fields: dict[str, object],
    devices: int | None = None,
    *,
    finite: bool = True,
) -> dict[str, object]:
    """Check the fields of a record, and convert numbers of numpy to plain numbers.

    Args:
        method: the method that users' code has called, such as ``Server.emit``.
        kind: kind of the record.
        fields: the fields by name.
        devices: count of devices, which the field ``device`` must be less than; None if the count
            is unknown.
        finite: whether numbers must be finite; otherwise infinity and NaN are allowed.

    Returns:
        ``fields`` itself, or a dict with plain numbers.

    Raises:
        SimulationError: a column has a value of a wrong type, or a field is not JSON.
    """
    for name in fields.keys() & _COLUMNS:
        value = fields[name]
        if value is None:
            continue
        if name not in _WHOLE_COLUMNS:
            is_allowed = TEXT.fits(None, value)
        else:
            is_allowed = is_index(value)
            if not is_allowed and is_index(plain(value)):  # an integer of numpy is allowed, too
                fields = {**fields, name: plain(value)}
                continue
        if not is_allowed:
            raise field_error(method, kind, name, value, _allowed_in(name, devices))
    device = fields.get("device")
    if devices is not None and isinstance(device, int) and device >= devices:
        raise field_error(method, kind, "device", device, _allowed_in("device", devices))
    # the fields of most records are JSON, as is found here without encoding them
    if False not in [is_simple(value, finite=finite) for value in fields.values()]:
        return fields
    encode = _ENCODE_FINITE if finite else _ENCODE
    try:
        encode(fields)
    except _ENCODING_ERRORS:  # the fields have numbers of numpy, or a wrong value
        return {
            name: _plain_json(method, kind, name, value, finite=finite)
            for name, value in fields.items()
        }
    return fields


def is_simple(value: object, *, finite: bool) -> bool:
    """Return whether a quick check shows that a value is JSON; if not, encoding must decide.

    Args:
        value: the value, such as a field of a record.
        finite: whether numbers must be finite.
    """
    kind = type(value)
    if kind is float:
        return not finite or math.isfinite(cast(float, value))
    if kind is int:
        return -_MOST_INTEGER < cast(int, value) < _MOST_INTEGER
    if kind is list:
        entries = cast(list[object], value)
        if len(entries) > _MOST_ENTRIES:
            return False
        # a list within a list is left to the encoding
        return False not in [
            type(entry) is not list and is_simple(entry, finite=finite) for entry in entries
        ]
    return value is None or kind is str or kind is bool


def _allowed_in(column: str, devices: int | None) -> str:
    """Return the values that are allowed in a column, in words."""
    if column == "device" and devices is not None:
        return f"a device of 0 to {devices - 1}, or None"
    rule = INDEX if column in _WHOLE_COLUMNS else TEXT
    return f"{rule.allowed}, or None"


def field_error(method: str, kind: str, name: str, value: object, allowed: str) -> SimulationError:
    """Return the error for a wrong field of a record.

    Args:
        method: the method that users' code has called.
        kind: kind of the record.
        name: name of the field.
        value: the field.
        allowed: the allowed values in words.
    """
    return refusal(method, f"{name} of the record {kind!r}", value, allowed)


def _plain_json(method: str, kind: str, name: str, value: object, *, finite: bool) -> object:
    """Return a field with plain numbers in place of numbers of numpy.

    Args:
        method: the method that users' code has called.
        kind: kind of the record.
        name: name of the field.
        value: the field.
        finite: whether numbers must be finite.

    Raises:
        SimulationError: the field is not JSON.
    """
    encode = _ENCODE_FINITE if finite else _ENCODE
    try:
        converted = plain(value)
        encode(converted)
    except _ENCODING_ERRORS:
        wrong_part = _find_wrong_part(value, encode)
    else:
        return converted
    within = "" if wrong_part is value else f", with {show_value(wrong_part)} in it"
    allowed = _FINITE_JSON if finite else _JSON
    raise SimulationError(
        f"{method}: {name} of the record {kind!r} is {show_value(value)}{within}; allowed is "
        f"{allowed}"
    )


def _find_wrong_part(value: object, encode: Callable[[object], str]) -> object:
    """Return the innermost part of a value, or a name in it, that is not JSON.

    Args:
        value: a value that is not JSON.
        encode: function that encodes JSON, and raises an error for anything else.
    """
    part = value
    for _ in range(_MOST_LEVELS):
        wrong_entry = _find_wrong_entry(part, encode)
        if wrong_entry is None:
            break
        part = wrong_entry
    return part


def _find_wrong_entry(value: object, encode: Callable[[object], str]) -> object:
    """Return the first entry of a list or dict that is not JSON, or a name that is no text.

    The result is None if all entries are JSON.
    """
    entries: Iterable[object] = ()
    if isinstance(value, dict):
        entries = value.values()
    elif isinstance(value, list | tuple):
        entries = value
    for entry in entries:
        try:
            encode(plain(entry))
        except _ENCODING_ERRORS:
            return entry
    names: Iterable[object] = value if isinstance(value, dict) else ()
    return next((name for name in names if not isinstance(name, str)), None)
