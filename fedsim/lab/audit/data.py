"""Parsers of the ``data`` of records: each kind of record becomes a table with typed columns.

A reader raises ``KeyError``, ``TypeError`` or ``ValueError`` for data that no run writes.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from fedsim.world.meters.ended import ends_of

DEVICE_MESSAGES = "step-end of download or upload"
FLOWS = ("edge-transfer", "message")
"""Kinds of records of messages that crossed links but belong to no task's step."""

RecordData: TypeAlias = dict[str, Any]
"""Parsed ``data`` of a record, as a dict from field name to JSON value."""

PayloadList: TypeAlias = tuple[tuple[str, float], ...]
"""Purpose and size (bytes) of each part of a message."""


class DataReader(NamedTuple):
    """Parser of ``data``, the JSON object with the fields that only one kind of record has.

    Attributes:
        columns: dict from name to type of each column.
        cells: converts the parsed ``data`` of a record to the values of the columns.
    """

    columns: Mapping[str, type]
    cells: Callable[[RecordData], tuple[object, ...]]


def number(value: object) -> float:
    """Return a number that was read from JSON as a float.

    Raises:
        TypeError: the value is not a number, or is a bool.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _number_or(value: object, default: float) -> float:
    return default if value is None else number(value)


def _numbers(values: Iterable[object]) -> list[float]:
    return [number(value) for value in values]


def _tasks(data: RecordData) -> list[int]:
    tasks = data["tasks"]
    if not all(type(task) is int for task in tasks):
        raise TypeError(f"{tasks!r} are no tasks")
    return list(tasks)


def _read_training(data: RecordData) -> tuple[object, ...]:
    epochs = number(data["epochs"])
    epochs_due = number(data["asked"])
    part = data.get("part")
    part_samples = math.nan if part is None else number(part[2])
    layers = number(data.get("layers", math.nan))
    return epochs, epochs_due, part is not None, part_samples, layers, _numbers(data["epoch_ends"])


def _read_computation(data: RecordData) -> tuple[object, ...]:
    return (number(data.get("core_s", math.nan)),)


def _read_task_start(data: RecordData) -> tuple[object, ...]:
    return (data.get("continues") is True,)


def _read_edge(data: RecordData) -> tuple[object, ...]:
    return (int(data["edge"]),)


def _read_assignment(data: RecordData) -> tuple[object, ...]:
    return (_number_or(data["before"], math.nan),)


def _read_shift(data: RecordData) -> tuple[object, ...]:
    return data["what"], int(data["occasion"])


def _read_pace(data: RecordData) -> tuple[object, ...]:
    return (number(data["factor"]),)


def _read_queue(data: RecordData) -> tuple[object, ...]:
    return data["direction"], int(data["slots"])


def _read_lost_updates(data: RecordData) -> tuple[object, ...]:
    return (_tasks(data),)


def _read_aggregation(data: RecordData) -> tuple[object, ...]:
    tasks = _tasks(data)
    edge = _number_or(data.get("edge"), math.nan)
    weights = data.get("weights")
    if weights is not None:
        weights = _numbers(weights)
    staleness = data.get("staleness")
    tolerated = number(data.get("bears", math.nan))
    draws = data.get("draws")
    rounds = "staleness" not in data
    return tasks, rounds, "edge" in data, edge, weights, staleness, tolerated, draws


def _read_combination(data: RecordData) -> tuple[object, ...]:
    return [*data["edges"]], [*data["weights"]]


def _read_round_start(data: RecordData) -> tuple[object, ...]:
    deadline = _number_or(data.get("deadline"), math.nan)
    training = number(data.get("training_limit", math.inf))
    selected = number(data.get("selected", math.nan))
    return deadline, training, selected


def _read_round(data: RecordData) -> tuple[object, ...]:
    return (data,)


def _read_battery(data: RecordData) -> tuple[object, ...]:
    levels = [number(data["level"])]
    for _, level in data["path"]:
        levels.append(number(level))
    joules = [number(data[key]) for key in _JOULES]
    return bool(data["flat"]), *joules, min(levels), max(levels), len(levels) - 1


def _read_run_end(data: RecordData) -> tuple[object, ...]:
    return (data["reason"],)


def _read_link_rate(data: RecordData) -> tuple[object, ...]:
    return str(data["link"]), _number_or(data["rate"], math.inf)


_JOULES = ("level", "charged", "idle", "drawn")
_TRAINING = {
    "epochs": float,
    "asked": float,
    "in_part": bool,
    "part_samples": float,
    "layers": float,
    "ends": object,
}
_AGGREGATION = {
    "tasks": object,
    "rounds": bool,
    "at_edge": bool,
    "edge": float,
    "weights": object,
    "staleness": object,
    "tolerated": float,
    "draws": object,
}
_BATTERY = {"flat": bool, **dict.fromkeys((*_JOULES, "least", "most", "points"), float)}
_MESSAGE = {
    "direction": object,
    "sender": object,
    "receiver": object,
    "start": float,
    "bytes": float,
    "delivered": float,
    "wire_bytes": float,
    "payloads": int,
}

READERS: Mapping[str, DataReader] = {
    "step-end of train": DataReader(_TRAINING, _read_training),
    "step-end of train or evaluate or compute": DataReader({"core_s": float}, _read_computation),
    "task-start": DataReader({"continues": bool}, _read_task_start),
    "edge-off": DataReader({"edge": int}, _read_edge),
    "edge-on": DataReader({"edge": int}, _read_edge),
    "assign": DataReader({"before": float}, _read_assignment),
    "shift": DataReader({"what": object, "occasion": int}, _read_shift),
    "pace": DataReader({"factor": float}, _read_pace),
    "queue": DataReader({"direction": object, "slots": int}, _read_queue),
    "updates-lost": DataReader({"tasks": object}, _read_lost_updates),
    "aggregate": DataReader(_AGGREGATION, _read_aggregation),
    "edges-combined": DataReader({"edges": object, "weights": object}, _read_combination),
    "round-start": DataReader(
        {"deadline": float, "training": float, "selected": float}, _read_round_start
    ),
    "round": DataReader({"data": object}, _read_round),
    "battery": DataReader(_BATTERY, _read_battery),
    "run-end": DataReader({"reason": object}, _read_run_end),
    "link-rate": DataReader({"link": object, "rate": float}, _read_link_rate),
}
"""Dict from kind of record, or kind and steps, to its ``DataReader``; without messages."""


class PayloadTable:
    """Index of the distinct payload lists of a run's messages; tables have the index, not the list.

    A payload list has purpose and size (bytes) of each part of a message. ``intern`` gives a list
    its index, in order of first occurrence; ``lists`` has the lists by index.
    """

    def __init__(self) -> None:
        self._numbers: dict[PayloadList, int] = {}

    @property
    def lists(self) -> list[PayloadList]:
        """Distinct payload lists, in which the place of a list is its index from ``intern``."""
        return [*self._numbers]

    def intern(self, payloads: Iterable[tuple[str, object]]) -> int:
        """Return the index of a payload list in ``lists``, and add the list if it is new.

        Args:
            payloads: purpose and size (bytes) of each part of a message.

        Raises:
            TypeError: a size is not a number.
            ValueError: a purpose is not a text.
        """
        parts = tuple([(purpose, number(size)) for purpose, size in payloads])
        if not all(isinstance(purpose, str) for purpose, _ in parts):
            raise ValueError(f"{payloads!r} are no payloads")
        return self._numbers.setdefault(parts, len(self._numbers))

    def readers(self) -> dict[str, DataReader]:
        """Return a dict from kind of message record to the parser of its ``data``.

        The parsers add the payload lists that they meet to this table.
        """
        on_links = DataReader(_MESSAGE, self._read_flow)
        readers = dict.fromkeys(FLOWS, on_links)
        readers[DEVICE_MESSAGES] = DataReader(_MESSAGE, self._read_step)
        readers["server-transfer"] = DataReader(_MESSAGE, self._read_server_transfer)
        return readers

    def _read_step(self, data: RecordData) -> tuple[object, ...]:
        sender = data.get("sender") or ""
        receiver = data.get("receiver") or ""
        return "", sender, receiver, math.nan, *self._read_sizes(data)

    def _read_flow(self, data: RecordData) -> tuple[object, ...]:
        return *ends_of(data), number(data["start"]), *self._read_sizes(data)

    def _read_server_transfer(self, data: RecordData) -> tuple[object, ...]:
        """Parse the ``data`` of a message between parts of the server, such as edge servers.

        Such a message takes no time and crosses no link. So the direction is ``up``, the start is
        NaN, all bytes count as delivered, and 0 bytes are on the wire.
        """
        size = number(data["bytes"])
        payloads = self.intern([(data["purpose"], size)])
        return "up", data["sender"], data["receiver"], math.nan, size, size, 0.0, payloads

    def _read_sizes(self, data: RecordData) -> tuple[object, ...]:
        size = number(data["bytes"])
        delivered = number(data["delivered"])
        wire_bytes = number(data.get("wire_bytes", delivered))
        return size, delivered, wire_bytes, self.intern(data["payloads"])
