"""Readers of the files that FedScale (pickles) and FLASH (JSON) publish on phones.

FedScale (github.com/SymbioticLab/FedScale, benchmark/dataset/data/device_info) has two pickles.
``client_device_capacity`` has each client's ``computation`` (ms of inference a sample) and
``communication`` (kbit/s). ``client_behave_trace`` has each client's times ``active`` and
``inactive`` (s), in turn, and ``finish_time``, after which the times repeat.

FLASH (github.com/PKU-Chengxu/FLASH, models/timer.py) has two JSON files. ``state_traces.json`` has
each phone's ``messages``, a line for each change of state. ``cached_timers.json`` has the intervals
in which each phone is ready.
"""

import pickle
from collections.abc import Callable, Mapping
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from fedsim.common.errors import nearest, show_value
from fedsim.common.files import read_keyed_json, require_regular

_PICKLE = b"\x80"  # first byte of a pickle, of protocol 2 or later
# opcodes of pickles that build plain values, and call nothing
_PLAIN_OPCODES = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
)
_FLASH_START = datetime(2020, 1, 1)  # time 0 of FLASH's logs, at a midnight  # noqa: DTZ001
_STATES = {
    "battery_charged_on": ("charged", True),
    "battery_charged_off": ("charged", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    "unknow": ("wifi", False),
    "unknown": ("wifi", False),
    "2g": ("wifi", False),
    "3g": ("wifi", False),
    "4g": ("wifi", False),
    "5g": ("wifi", False),
}
"""State in a FLASH log -> the condition of readiness that it changes, and the new value."""
_UNUSED_STATES = ("screen_on", "screen_off")  # states in a FLASH log that change no condition


class PlainUnpickler(pickle._Unpickler):
    """Python's unpickler, restricted to dicts, lists, tuples, texts, numbers, bools and None.

    No operation that it allows imports or calls anything. All other operations of a pickle raise
    ``KeyError`` or ``UnpicklingError``.
    """

    dispatch: ClassVar[dict[int, Callable[[pickle.Unpickler], None]]] = {
        key[0]: pickle._Unpickler.dispatch[key[0]] for key in _PLAIN_OPCODES
    }

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError("it names a class")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it names an object elsewhere")


def is_pickle(path: Path) -> bool:
    """Return whether a file begins with the first byte of a pickle of protocol 2 or later."""
    with require_regular(path).open("rb") as file:
        return file.read(1) == _PICKLE


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of plain values (dicts, lists, tuples, texts, numbers), and run no code of it.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged, or has objects that are not plain values.
    """
    # BytesIO, as a damaged pickle may request a huge length, for which a file would allocate memory
    unpickler = PlainUnpickler(BytesIO(require_regular(path).read_bytes()))
    try:
        return unpickler.load()
    except KeyError:
        raise ValueError(
            "it holds more than dicts, lists, texts and plain numbers (numpy's, classes or calls), "
            "which are not read; save float(value) of each number"
        ) from None
    except Exception as error:  # an unpickler raises errors of many types for damaged files
        raise ValueError(f"it is no whole pickle of plain values: {error}") from None


Phone = Mapping[str, object]
"""Recording of a phone's availability.

``start`` and ``end`` (s), ``ready`` (list of intervals [from, to] in which the phone is available,
s), and ``ok`` (whether the recording is usable).
"""

_REQUIRED_FIELDS = {
    "fedsim's": ("start", "end", "ready", "ok"),
    "FLASH's timers": ("trace_start", "trace_end", "ready_time", "isSuccess"),
    "FLASH's logs": ("messages",),
    "FedScale's": ("active", "inactive", "finish_time"),
}
"""Format of a file -> fields that each phone's entry must have."""

_PHONE_FACTS = (
    "guid",
    "id",
    "model",
    "language",
    "nation",
    "os_lang",
    "os_version",
    "package_name",
    "sdk_version",
)
_IGNORED_FIELDS = {
    "FLASH's logs": (*_PHONE_FACTS, "kb_time_zone"),
    "FedScale's": ("duration", "model"),
}
"""Format of a file -> fields that an entry may have, which are ignored."""


def recorded_phones(path: Path) -> tuple[str, dict[str, Phone]]:
    """Read recordings of phones' availability, in the format of fedsim, FLASH or FedScale.

    Args:
        path: the file, a pickle or JSON.

    Returns:
        The name of the format, such as ``FLASH's logs``, and each phone's recording by the phone's
        name: ``start`` and ``end`` (s), ``ready`` (intervals in which the phone is available, s)
        and ``ok`` (whether it is usable).

    Raises:
        OSError: the file cannot be read.
        ValueError: the file has none of the formats, or a field that fedsim does not know.
    """
    content = read_plain_pickle(path) if is_pickle(path) else read_keyed_json(path)
    if not isinstance(content, dict) or not content:
        raise ValueError("it is no table of traces by phone")
    form = _format_of(next(iter(content.values())))
    phones = {}
    for name, entry in content.items():
        phones[str(name)] = _convert_phone(form, str(name), entry)
    return form, phones


def _format_of(first_entry: object) -> str:
    """Return the name of the format of a file of phones, such as ``FLASH's logs``.

    Args:
        first_entry: the entry of the file's first phone, whose fields determine the format.

    Raises:
        ValueError: the entry has none of the formats, as it lacks a required field of each.
    """
    names = list(first_entry) if isinstance(first_entry, dict) else []
    for form, fields in _REQUIRED_FIELDS.items():
        if set(fields) <= set(names):
            return form
    forms = "; ".join(
        f"{form} have {', '.join(fields)}" for form, fields in _REQUIRED_FIELDS.items()
    )
    contents = show_value(", ".join(map(str, names)) or first_entry)
    raise ValueError(f"it is no table of traces by phone: the first has {contents}; {forms}")


def _convert_phone(form: str, name: str, entry: object) -> Phone:
    """Convert a phone's entry in a published file to a recording of its availability.

    Args:
        form: name of the file's format, such as ``FedScale's``.
        name: name of the phone, for error messages.
        entry: the phone's value in the file.

    Returns:
        ``start`` and ``end`` (s), ``ready`` (intervals in which the phone is available, s) and
        ``ok`` (whether the recording is usable; if it is false all further keys may be missing).

    Raises:
        ValueError: the entry lacks a field, or has an unknown field.
    """
    if not isinstance(entry, dict):
        raise ValueError(f"phone {show_value(name)} is {show_value(entry)}, no object")
    required = _REQUIRED_FIELDS[form]
    for field in required:
        if field not in entry:
            raise ValueError(f"phone {show_value(name)} has no {field!r}, which {form} have")
    allowed = (*required, *_IGNORED_FIELDS.get(form, ()))
    for field in entry:
        if field not in allowed:
            raise ValueError(
                f"phone {show_value(name)} has {show_value(field)}, which nothing uses; {form} have "
                f"{', '.join(required)}{nearest(str(field), required)}"
            )
    if form == "fedsim's":
        return entry
    if form == "FLASH's timers":
        start, end, ready, is_ok = (entry[field] for field in required)
        return {"start": start, "end": end, "ready": ready, "ok": is_ok}
    if form == "FLASH's logs":
        return _convert_log(name, entry["messages"])
    return _convert_fedscale(name, entry)


def _convert_log(name: str, messages: object) -> Phone:
    if not isinstance(messages, str):
        raise ValueError(f"phone {show_value(name)}: 'messages' is {show_value(messages)}, no text")
    try:
        recording = ready_intervals(messages)
    except ValueError as error:
        raise ValueError(f"phone {show_value(name)}: {error}") from None
    if recording is None:
        return {"ok": False}
    start, end, ready = recording
    return {"start": start, "end": end, "ready": ready, "ok": True}


def _convert_fedscale(name: str, entry: Mapping[str, object]) -> Phone:
    """Convert a phone's entry in FedScale's file to a recording of its availability.

    Args:
        name: name of the phone, for error messages.
        entry: ``active`` and ``inactive`` (times at which the phone becomes available and
            unavailable, s) and ``finish_time`` (end of the recording, s).

    Returns:
        ``start`` and ``end`` (s), ``ready`` (intervals in which the phone is available, s) and
        ``ok`` (whether there is such an interval).

    Raises:
        ValueError: the lists differ in length.
    """
    active = entry["active"]
    inactive = entry["inactive"]
    if (
        not isinstance(active, list)
        or not isinstance(inactive, list)
        or len(active) != len(inactive)
    ):
        raise ValueError(
            f"phone {show_value(name)}: 'active' and 'inactive' are not lists of the same length"
        )
    return {
        "start": 0.0,
        "end": entry["finish_time"],
        "ready": list(zip(active, inactive, strict=True)),
        "ok": bool(active),
    }


def fedscale_capacities(path: Path) -> list[tuple[Any, Any]]:
    """Read FedScale's pickle of clients' speeds and link rates, ``client_device_capacity``.

    Args:
        path: the pickle.

    Returns:
        For each client ``computation`` (ms per sample) and ``communication`` (kbit/s), whose types
        and values are not checked.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a dict of such entries.
    """
    content = read_plain_pickle(path)
    if not isinstance(content, dict) or not content:
        raise ValueError("it is no table of capacities by client")
    required = ("computation", "communication")
    rows = []
    for name, entry in content.items():
        if not isinstance(entry, dict) or entry.keys() != {*required}:
            raise ValueError(
                f"client {show_value(name)} is {show_value(entry)}; each has "
                f"{' and '.join(required)}, and nothing else"
            )
        rows.append((entry["computation"], entry["communication"]))
    return rows


def ready_intervals(messages: str) -> tuple[float, float, list[tuple[float, float]]] | None:
    """Return the intervals in which a phone was ready to train, from its log in FLASH's traces.

    A phone is ready while it is locked, charging and on Wi-Fi. A phone that is ready at the end of
    its log counts as ready until its last change only.

    Args:
        messages: the log: for each change a line with the time, a tab and the state.

    Returns:
        The first and the last time of the log (s), and the merged intervals in which the phone is
        ready (s). None if a time is malformed, the log has no length, or the phone is never ready.

    Raises:
        ValueError: a state is unknown.
    """
    conditions = {"charged": False, "locked": False, "wifi": False}  # after the lines so far
    times: list[float] = []
    ready: list[tuple[float, float]] = []
    ready_since: float | None = None
    for line in filter(None, map(str.strip, messages.splitlines())):
        text, _, state_text = line.partition("\t")
        try:
            moment = datetime.strptime(text.strip(), "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007
        except ValueError:
            return None
        time_s = (moment - _FLASH_START).total_seconds()
        times.append(time_s)
        _update_conditions(conditions, state_text.strip().lower())
        is_ready = all(conditions.values())
        if is_ready and ready_since is None:
            ready_since = time_s
        if not is_ready and ready_since is not None:
            ready.append((ready_since, time_s))
            ready_since = None
    if not ready or int(times[-1] - times[0]) == 0:  # the log is shorter than a second
        return None
    return times[0], times[-1], _merged(sorted(ready))


def _update_conditions(conditions: dict[str, bool], state: str) -> None:
    """Update the conditions of readiness after a line of a FLASH log.

    Args:
        conditions: ``charged``, ``locked``, ``wifi`` -> whether the condition holds; changed in
            place.
        state: the state that the line reports, such as ``screen_lock``; some states, such as a
            level of the battery, change no condition.

    Raises:
        ValueError: the state is unknown.
    """
    is_battery_level = state.endswith("%")
    if state in _STATES:
        condition, value = _STATES[state]
        conditions[condition] = value
    elif state not in _UNUSED_STATES and not is_battery_level:
        raise ValueError(f"it has the unknown state {state[:40]!r}")


def _merged(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge the intervals that overlap or touch, and return the resulting intervals.

    Args:
        intervals: begin and end of each interval, sorted; not empty.
    """
    merged = [intervals[0]]
    for start, end in intervals[1:]:
        last_start, last_end = merged[-1]
        if start <= last_end:
            merged[-1] = (last_start, max(end, last_end))
        else:
            merged.append((start, end))
    return merged
