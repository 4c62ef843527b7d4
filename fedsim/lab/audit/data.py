"""Parsers of the ``data`` of records: each kind of record becomes a table with typed columns.

A reader raises ``KeyError``, ``TypeError`` or ``ValueError`` for data that no run writes.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, get_type_hints

from fedsim.common.step_names import COMPUTATIONS
from fedsim.world.meters.ended import ends_of

DEVICE_MESSAGES = "step-end of download or upload"
COMPUTATION_ENDS = f"step-end of {' or '.join(COMPUTATIONS)}"
FLOWS = ("edge-transfer", "message")
"""Kinds of records of messages that crossed links but belong to no task's step."""

RecordData: TypeAlias = dict[str, Any]
"""Parsed ``data`` of a record, as a dict from field name to JSON value."""

PayloadList: TypeAlias = tuple[tuple[str, float], ...]
"""Purpose and size (bytes) of each part of a message."""


class DataReader(NamedTuple):
    """Parser of a record's ``data``: a JSON object whose fields depend on the kind of record.

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


def _task_ids(data: RecordData) -> list[int]:
    tasks = data["tasks"]
    if not all(type(task) is int for task in tasks):
        raise TypeError(f"{tasks!r} are no tasks")
    return list(tasks)


class _DataRow(Protocol):
    """Interface of the named tuples into which the ``data`` of records is parsed.

    There is one such class for each kind of record. Its fields become the columns of a table, and
    ``of`` parses the ``data`` of a record.
    """

    @classmethod
    def of(cls, data: RecordData) -> tuple[object, ...]: ...


class _TrainingData(NamedTuple):
    epochs: float
    requested: float
    is_partial: bool
    part_samples: float
    layers: float
    epoch_ends: list[float]

    @classmethod
    def of(cls, data: RecordData) -> Self:
        part = data.get("part")
        return cls(
            epochs=number(data["epochs"]),
            requested=number(data["asked"]),
            is_partial=part is not None,
            part_samples=math.nan if part is None else number(part[2]),
            layers=number(data.get("layers", math.nan)),
            epoch_ends=_numbers(data["epoch_ends"]),
        )


class _ComputationData(NamedTuple):
    core_s: float

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(number(data.get("core_s", math.nan)))


class _TaskStartData(NamedTuple):
    is_continuation: bool

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(data.get("continues") is True)


class _EdgeServerData(NamedTuple):
    edge: int

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(int(data["edge"]))


class _AssignmentData(NamedTuple):
    previous_group: float

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(_number_or(data["before"], math.nan))


class _ShiftData(NamedTuple):
    what: str
    occasion: int

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(data["what"], int(data["occasion"]))


class _PaceData(NamedTuple):
    factor: float

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(number(data["factor"]))


class _QueueData(NamedTuple):
    direction: str
    slots: int

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(data["direction"], int(data["slots"]))


class _TasksData(NamedTuple):
    tasks: list[int]

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(_task_ids(data))


class _AggregationData(NamedTuple):
    tasks: list[int]
    has_rounds: bool
    at_edge: bool
    edge: float
    weights: list[float] | None
    staleness: list[int] | None
    tolerated: float
    draws: list[int] | None

    @classmethod
    def of(cls, data: RecordData) -> Self:
        """Parse the tasks, weights and staleness of an aggregation's updates.

        Strategies whose updates do not wait for a round record ``staleness``, edge servers record
        ``edge``, and robust aggregations ``bears``, the count of malicious updates that they
        tolerate.
        """
        weights = data.get("weights")
        return cls(
            tasks=_task_ids(data),
            has_rounds="staleness" not in data,
            at_edge="edge" in data,
            edge=_number_or(data.get("edge"), math.nan),
            weights=None if weights is None else _numbers(weights),
            staleness=data.get("staleness"),
            tolerated=number(data.get("bears", math.nan)),
            draws=data.get("draws"),
        )


class _EdgesCombinedData(NamedTuple):
    edges: list[int]
    weights: list[float]

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls([*data["edges"]], [*data["weights"]])


class _RoundStartData(NamedTuple):
    deadline: float
    training: float
    selected: float

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(
            deadline=_number_or(data.get("deadline"), math.nan),
            training=number(data.get("training_limit", math.inf)),
            selected=number(data.get("selected", math.nan)),
        )


class _RoundEndData(NamedTuple):
    data: RecordData

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(data)


class _BatteryData(NamedTuple):
    is_flat: bool
    level: float
    charged: float
    idle: float
    drawn: float
    lowest: float
    highest: float
    path_points: float

    @classmethod
    def of(cls, data: RecordData) -> Self:
        """Parse a battery's level (J), and the energy charged, idle and drawn by tasks so far (J).

        ``path`` has times and levels between the battery's last record and this one.
        """
        level = number(data["level"])
        levels = [level, *[number(point) for _, point in data["path"]]]
        return cls(
            is_flat=bool(data["flat"]),
            level=level,
            charged=number(data["charged"]),
            idle=number(data["idle"]),
            drawn=number(data["drawn"]),
            lowest=min(levels),
            highest=max(levels),
            path_points=len(data["path"]),
        )


class _RunEndData(NamedTuple):
    reason: str

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(data["reason"])


class _LinkRateData(NamedTuple):
    link: str
    rate: float

    @classmethod
    def of(cls, data: RecordData) -> Self:
        return cls(str(data["link"]), _number_or(data["rate"], math.inf))


class _MessageData(NamedTuple):
    direction: str
    sender: str
    receiver: str
    start: float
    bytes: float
    delivered: float
    wire_bytes: float
    payloads: int


def _column_types(row: type) -> dict[str, type]:
    columns = {}
    for name, kind in get_type_hints(row).items():
        columns[name] = kind if kind in (bool, int, float) else object
    return columns


_ROW_TYPES: Mapping[str, type[_DataRow]] = {
    "step-end of train": _TrainingData,
    COMPUTATION_ENDS: _ComputationData,
    "task-start": _TaskStartData,
    "edge-off": _EdgeServerData,
    "edge-on": _EdgeServerData,
    "assign": _AssignmentData,
    "shift": _ShiftData,
    "pace": _PaceData,
    "queue": _QueueData,
    "updates-lost": _TasksData,
    "no-update": _TasksData,
    "aggregate": _AggregationData,
    "edges-combined": _EdgesCombinedData,
    "round-start": _RoundStartData,
    "round": _RoundEndData,
    "battery": _BatteryData,
    "run-end": _RunEndData,
    "link-rate": _LinkRateData,
}

READERS: Mapping[str, DataReader] = {
    kind: DataReader(_column_types(row), row.of) for kind, row in _ROW_TYPES.items()
}
"""Dict from kind of record, or kind and steps, to its ``DataReader``.

``PayloadTable.readers`` has the readers for messages.
"""


class PayloadTable:
    """Numbering of the distinct payload lists of a run's messages.

    A payload list has purpose and size (bytes) of each part of a message. Many messages have the
    same list, so tables of messages have its number. ``intern`` gives a list its number, in order
    of first occurrence; ``lists`` has the lists by number.
    """

    def __init__(self) -> None:
        self._numbers: dict[PayloadList, int] = {}

    @property
    def lists(self) -> list[PayloadList]:
        """Distinct payload lists, by the numbers that ``intern`` gives them.

        A payload list is a tuple with purpose and size (bytes) of each part of a message.
        """
        return [*self._numbers]

    def intern(self, payloads: Iterable[tuple[str, object]]) -> int:
        """Return the number of a payload list, its index in ``lists``; a new list is added.

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
        on_links = DataReader(_column_types(_MessageData), self._read_flow)
        readers = dict.fromkeys(FLOWS, on_links)
        readers[DEVICE_MESSAGES] = DataReader(_column_types(_MessageData), self._read_step)
        readers["server-transfer"] = DataReader(
            _column_types(_MessageData), self._read_server_transfer
        )
        return readers

    def _read_step(self, data: RecordData) -> _MessageData:
        sender = data.get("sender") or ""
        receiver = data.get("receiver") or ""
        # direction and start of a task's message are in other records
        return self._parse_message(data, "", sender, receiver, start=math.nan)

    def _read_flow(self, data: RecordData) -> _MessageData:
        direction, sender, receiver = ends_of(data)
        start = number(data["start"])
        return self._parse_message(data, direction, sender, receiver, start)

    def _read_server_transfer(self, data: RecordData) -> _MessageData:
        """Parse the ``data`` of a message between parts of the server, such as edge servers.

        Such a message takes no time and crosses no link. So the direction is ``up``, the start is
        NaN, all bytes count as delivered, and 0 bytes are on the wire.
        """
        size = number(data["bytes"])
        payloads = self.intern([(data["purpose"], size)])
        return _MessageData(
            direction="up",
            sender=data["sender"],
            receiver=data["receiver"],
            start=math.nan,
            bytes=size,
            delivered=size,
            wire_bytes=0.0,
            payloads=payloads,
        )

    def _parse_message(
        self, data: RecordData, direction: str, sender: str, receiver: str, start: float
    ) -> _MessageData:
        """Parse the fields that the records of all messages on links have.

        Args:
            data: parsed ``data`` of the record.
            direction: ``down``, ``up`` or ``peer``; empty if another record has it.
            sender: name of the sender; may be empty.
            receiver: name of the receiver; may be empty.
            start: begin of the message (s); NaN if another record has it.
        """
        size = number(data["bytes"])
        delivered = number(data["delivered"])
        return _MessageData(
            direction,
            sender,
            receiver,
            start,
            bytes=size,
            delivered=delivered,
            wire_bytes=number(data.get("wire_bytes", delivered)),
            payloads=self.intern(data["payloads"]),
        )
