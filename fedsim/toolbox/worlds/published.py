"""Files of phones as FedScale and FLASH publish them: pickles of plain values, and logs of
states in JSON.

FedScale (github.com/SymbioticLab/FedScale, benchmark/dataset/data/device_info):
``client_device_capacity`` has of each client ``computation`` (ms of inference a sample) and
``communication`` (kbit/s); ``client_behave_trace`` has times ``active`` and ``inactive`` (s), in
turn, and ``finish_time``, after which they repeat. FLASH (github.com/PKU-Chengxu/FLASH,
models/timer.py): ``state_traces.json`` has of each phone ``messages``, a line for each change of
its state; ``cached_timers.json`` has the intervals in which it is ready.
"""

import pickle
from collections.abc import Mapping
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from fedsim.common.errors import nearest, shown
from fedsim.common.files import read_keyed_json, regular

_PICKLE = b"\x80"  # the first byte of all but the oldest form
_PLAIN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
    *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
)
_START = datetime(2020, 1, 1)  # a midnight, so that times keep their time of day  # noqa: DTZ001
_READY = {"battery_charged_on": ("charged", True), "battery_charged_off": ("charged", False)}
_READY |= {
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
}
_READY |= dict.fromkeys(("unknow", "unknown", "2g", "3g", "4g", "5g"), ("wifi", False))
_OTHERS = ("screen_on", "screen_off")


class PlainUnpickler(pickle._Unpickler):
    """Reads dicts, lists, tuples, texts and numbers; any other operation of a pickle raises
    ``UnpicklingError``.

    Python's own implementation, whose table of operations is cut down to those: none of these
    imports or calls anything.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        key[0]: pickle._Unpickler.dispatch[key[0]] for key in _PLAIN
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError("it names a class")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it names an object elsewhere")


def is_pickle(path: Path) -> bool:
    """Whether a file begins as a pickle does."""
    with regular(path).open("rb") as file:
        return file.read(1) == _PICKLE


def read_plain_pickle(path: Path) -> Any:
    """The plain values in a pickle; raises ``OSError`` or ``ValueError``, and never runs code of
    the file.
    """
    # which gives no more than there is
    unpickler = PlainUnpickler(BytesIO(regular(path).read_bytes()))
    try:
        return unpickler.load()
    except KeyError:
        more = (
            "it holds more than dicts, lists, texts and plain numbers (numpy's, classes or calls), "
            "which are not read"
        )
        raise ValueError(f"{more}; save float(value) of each number") from None
    except Exception as error:  # an unpickler raises many kinds for damaged files
        raise ValueError(f"it is no whole pickle of plain values: {error}") from None


Phone = dict[str, Any]
"""The recording of a phone: ``start``, ``end``, intervals ``ready`` (s), and ``ok``, whether it
can be used.
"""

_FIELDS = {
    "fedsim's": ("start", "end", "ready", "ok"),
    "FLASH's timers": ("trace_start", "trace_end", "ready_time", "isSuccess"),
    "FLASH's logs": ("messages",),
    "FedScale's": ("active", "inactive", "finish_time"),
}
"""The fields of an entry that are needed, by the form of the file."""

_ABOUT_PHONES = (
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
_LEFT_OUT = {
    "FLASH's logs": (*_ABOUT_PHONES, "kb_time_zone"),
    "FedScale's": ("duration", "model"),
}
"""Fields that are about the phone, or follow from the others."""


def recorded_phones(path: Path) -> tuple[str, dict[str, Phone]]:
    """The form of a file of phones, and each phone by its name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has none of the forms, or a field that nothing uses.
    """
    content = read_plain_pickle(path) if is_pickle(path) else read_keyed_json(path)
    if not isinstance(content, dict) or not content:
        raise ValueError("it is no table of traces by phone")
    first = next(iter(content.values()))
    named = first if isinstance(first, dict) else {}
    forms = [form for form, fields in _FIELDS.items() if {*fields} <= named.keys()]
    if not forms:
        known = "; ".join(f"{form} have {', '.join(fields)}" for form, fields in _FIELDS.items())
        has = shown(", ".join(map(str, named)) or first)
        raise ValueError(f"it is no table of traces by phone: the first has {has}; {known}")
    form = forms[0]
    return form, {str(name): _phone(form, str(name), entry) for name, entry in content.items()}


def _phone(form: str, name: str, entry: Any) -> Phone:
    if not isinstance(entry, dict):
        raise ValueError(f"phone {shown(name)} is {shown(entry)}, no object")
    needed = _FIELDS[form]
    for field in needed:
        if field not in entry:
            raise ValueError(f"phone {shown(name)} has no {field!r}, which {form} have")
    for field in entry:
        if field not in needed and field not in _LEFT_OUT.get(form, ()):
            known = f"{form} have {', '.join(needed)}{nearest(str(field), needed)}"
            raise ValueError(f"phone {shown(name)} has {shown(field)}, which nothing uses; {known}")
    if form == "fedsim's":
        return entry
    if form == "FLASH's timers":
        start, end, ready, is_ok = (entry[field] for field in needed)
        return {"start": start, "end": end, "ready": ready, "ok": is_ok}
    return _of_log(name, entry) if form == "FLASH's logs" else _of_fedscale(name, entry)


def _of_log(name: str, entry: Mapping[str, Any]) -> Phone:
    if not isinstance(entry["messages"], str):
        raise ValueError(f"phone {shown(name)}: 'messages' is {shown(entry['messages'])}, no text")
    try:
        found = ready_intervals(entry["messages"])
    except ValueError as error:
        raise ValueError(f"phone {shown(name)}: {error}") from None
    if found is None:
        return {"ok": False}
    start, end, ready = found
    return {"start": start, "end": end, "ready": ready, "ok": True}


def _of_fedscale(name: str, entry: Mapping[str, Any]) -> Phone:
    active = entry["active"]
    inactive = entry["inactive"]
    if not (
        isinstance(active, list) and isinstance(inactive, list) and len(active) == len(inactive)
    ):
        raise ValueError(
            f"phone {shown(name)}: 'active' and 'inactive' are not lists of the same length"
        )
    return {
        "start": 0.0,
        "end": entry["finish_time"],
        "ready": [*zip(active, inactive, strict=True)],
        "ok": bool(active),
    }


def fedscale_capacities(path: Path) -> list[tuple[Any, Any]]:
    """``computation`` (ms a sample) and ``communication`` (kbit/s) of each client of FedScale's
    pickle.

    Raises:
        OSError: the file cannot be read.
        ValueError: it has another form.
    """
    content = read_plain_pickle(path)
    if not isinstance(content, dict) or not content:
        raise ValueError("it is no table of capacities by client")
    needed = ("computation", "communication")
    rows = []
    for name, entry in content.items():
        if not isinstance(entry, dict) or entry.keys() != {*needed}:
            raise ValueError(
                f"client {shown(name)} is {shown(entry)}; each has {' and '.join(needed)}, and "
                "nothing else"
            )
        rows.append((entry["computation"], entry["communication"]))
    return rows


def ready_intervals(messages: str) -> tuple[float, float, list[tuple[float, float]]] | None:
    """First and last time of a FLASH log (s), and intervals of idle, charging and on Wi-Fi,
    merged; None of a damaged one.

    Idle is locked, as in FLASH. A phone that is ready at the end of its log is so until its last
    change. ``ValueError``: a state is unknown.
    """
    state = {"charged": False, "locked": False, "wifi": False}
    times: list[float] = []
    ready: list[tuple[float, float]] = []
    since: float | None = None
    for line in filter(None, map(str.strip, messages.splitlines())):
        text, tab, word = line.partition("\t")
        try:
            time_s = (datetime.strptime(text.strip(), "%Y-%m-%d %H:%M:%S") - _START).total_seconds()  # noqa: DTZ007
        except ValueError:
            return None
        times.append(time_s)
        word = word.strip().lower()
        if word in _READY:
            name, value = _READY[word]
            state[name] = value
        elif word not in _OTHERS and not (tab and word.endswith("%")):
            raise ValueError(f"it has the unknown state {word[:40]!r}")
        is_ready = all(state.values())
        if is_ready and since is None:
            since = time_s
        if not is_ready and since is not None:
            ready.append((since, time_s))
            since = None
    if not ready or int(times[-1] - times[0]) == 0:
        return None
    return times[0], times[-1], _merged(sorted(ready))


def _merged(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged = [intervals[0]]
    for start, end in intervals[1:]:
        if start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
