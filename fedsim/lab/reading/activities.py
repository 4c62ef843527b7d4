"""Activities of a run as typed values: what each device, edge server and the server did when.

The timelines as a picture, on the page and as a Chrome trace draw the same ``Activities``. Times
are in simulated seconds.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.lab.reading.history import NO_GROUP, History
from fedsim.lab.reading.record_data import RecordData, parse_data
from fedsim.records.schema import is_act

_DECISIONS = ("cluster-split", "cluster", "clustering", "tiers")
_OF_DEVICES = ("task-end", "arrival", "departure", "shift", "shift-test", "assign")


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of time in the lane of one device.

    Attributes:
        device: the device, or the edge server in spans of edge servers.
        start: beginning (s).
        end: end (s).
    """

    device: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Stay(TimeSpan):
    """A device's membership in one group, without interruption."""

    group: int


@dataclass(frozen=True, slots=True)
class StepSpan(TimeSpan):
    """One step of a task; a step that a cut-off run left open ends with the run.

    Attributes:
        kind: name of the step, such as ``train``.
        task: number of its task.
        round: round of its task, if any.
        group: group of its task, if any.
        outcome: outcome of the step itself; ``stopped`` if it is open.
        task_outcome: outcome of its task; unless this is ``done``, the work was wasted.
        text: data of the step's end, as JSON; None if it is open.
    """

    kind: str
    task: int
    round: int | None
    group: int | None
    outcome: str
    task_outcome: str
    text: str | None

    @property
    def data(self) -> RecordData:
        """The data of the step's end; empty if it is open."""
        return parse_data(self.text)


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """A message between two endpoints; messages of a device may overlap in time.

    Attributes:
        source: the sender, such as ``device 3``.
        destination: the receiver, such as ``server``.
        start: beginning (s).
        end: end (s).
        round: the round of the message, if any.
        outcome: ``done``, or why the message was cut short.
        data: the data of the message's record.
    """

    source: str
    destination: str
    start: float
    end: float
    round: int | None
    outcome: str
    data: RecordData


@dataclass(frozen=True, slots=True)
class EdgeTransfer(MessageSpan):
    """A message between the server and an edge server.

    Attributes:
        edge: number of the edge server.
    """

    edge: int


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant in the lane of one device or, if there is no device, of the server.

    Attributes:
        kind: ``move`` for an assignment from one group to another, ``noticed`` for a test that
            detected a shift, and otherwise the kind of the record.
        time: its time (s).
        device: the device, if any.
        outcome: outcome of the task if ``kind`` is ``task-end``, else None.
        group: the new group of an assignment, if any.
        text: data of the record, as JSON.
    """

    kind: str
    time: float
    device: int | None
    outcome: str | None
    group: int | None
    text: str | None

    @property
    def data(self) -> RecordData:
        """The data of the record."""
        return parse_data(self.text)


@dataclass(frozen=True, slots=True)
class RoundPeriod:
    """A round, or a version of the model if the strategy has no rounds.

    Attributes:
        number: its number, from 0.
        start: beginning (s); None for a version.
        end: end (s).
        deadline: time of its deadline (s), if any.
        data: the data of the record of its end.
    """

    number: int
    start: float | None
    end: float
    deadline: float | None
    data: RecordData

    @property
    def reached_deadline(self) -> float | None:
        """The deadline, or None if the round ended before it."""
        if self.deadline is None or self.deadline > self.end:
            return None
        return self.deadline


class Activities:
    """All activities of a run; each list is read when it is first needed."""

    def __init__(self, history: History) -> None:
        self.history = history

    # Lanes of devices.

    @cached_property
    def steps(self) -> list[StepSpan]:
        """All steps, task by task."""
        table = self.history.steps
        columns = (
            *(table[name].tolist() for name in ("device", "start", "end", "step", "task")),
            _whole_numbers(table["round"]),
            _whole_numbers(table["group"]),
            *(table[name].tolist() for name in ("ended", "outcome", "data")),
        )
        return [StepSpan(*row) for row in zip(*columns, strict=True)]

    def open_task_changes(self) -> tuple[Floats, Floats]:
        """When the number of open tasks changed (s), and by how much: float64 [n] each.

        The changes are in the order of the records: 1 for a start, -1 for an end.
        """
        table = self.history.of("task-start", "task-end")
        changes = np.where(table["kind"] == "task-start", 1.0, -1.0)
        return table["time"].to_numpy(), changes

    @cached_property
    def presence(self) -> list[TimeSpan]:
        """From each device's arrival to its departure."""
        return _spans(self.history.presence)

    @cached_property
    def absences(self) -> list[TimeSpan]:
        """The stretches in which a device was present and could not be reached."""
        return _spans(self.history.away)

    @cached_property
    def stays(self) -> list[Stay]:
        """The memberships in groups, device by device in order of time."""
        table = self.history.stays
        in_group = table[table["group"] != NO_GROUP]
        columns = (in_group[name].tolist() for name in ("device", "start", "end", "group"))
        return [Stay(*row) for row in zip(*columns, strict=True)]

    @cached_property
    def marks(self) -> list[Mark]:
        """Events of devices and acts of processes, in the order of the records."""
        acts = [kind for kind in self.history.events["kind"].unique() if is_act(kind)]
        table = self.history.of(*_OF_DEVICES, *acts)
        columns = (
            table["kind"].tolist(),
            table["time"].tolist(),
            _whole_numbers(table["device"]),
            table["outcome"].tolist(),
            _whole_numbers(table["group"]),
            table["data"].tolist(),
        )
        marks = []
        for record_kind, time, device, outcome, group, text in zip(*columns, strict=True):
            kind = _kind_of_mark(record_kind, group, text)
            if kind is not None:
                task_outcome = outcome if record_kind == "task-end" else None
                marks.append(Mark(kind, time, device, task_outcome, group, text))
        return marks

    @property
    def act_times(self) -> list[float]:
        """The times at which processes of the world acted (s), ascending."""
        return [mark.time for mark in self.marks if is_act(mark.kind)]

    @cached_property
    def messages(self) -> list[MessageSpan]:
        """The messages between endpoints, in the order of their ends."""
        messages = []
        for row in self.history.data("message"):
            data = row["data"]
            messages.append(MessageSpan(data["source"], data["destination"], *_extent(row)))
        return messages

    # Lanes of edge servers.

    @cached_property
    def edge_transfers(self) -> list[EdgeTransfer]:
        """The transfers between the server and edge servers, in the order of their ends."""
        transfers = []
        for row in self.history.data("edge-transfer"):
            edge = row["data"]["edge"]
            source = "server"
            destination = f"edge {edge}"
            if row["data"]["direction"] == "up":
                source, destination = destination, source
            transfers.append(EdgeTransfer(source, destination, *_extent(row), edge))
        return transfers

    @cached_property
    def edge_outages(self) -> list[TimeSpan]:
        """The stretches in which edge servers were lost."""
        return _spans(self.history.lost_edges)

    # The server's lane.

    @cached_property
    def server(self) -> list[RoundPeriod | Mark]:
        """The rounds that ended and the decisions about groups, in the order of the records."""
        begun = {row["round"]: row for row in self.history.data("round-start")}
        entries: list[RoundPeriod | Mark] = []
        for row in self.history.data(*_DECISIONS, "round"):
            if row["kind"] != "round":
                entries.append(Mark(row["kind"], row["time"], None, None, None, None))
                continue
            beginning = begun.get(row["round"])
            start = None
            deadline = None
            if beginning is not None:
                start = beginning["time"]
                deadline = beginning["data"].get("deadline")
            entries.append(
                RoundPeriod(int(row["round"]), start, row["time"], deadline, row["data"])
            )
        return entries

    @property
    def rounds(self) -> list[RoundPeriod]:
        """The rounds that ended."""
        return [entry for entry in self.server if isinstance(entry, RoundPeriod)]


def _extent(row: RecordData) -> tuple[float, float, int | None, str, RecordData]:
    """Start (s), end (s), round, outcome and data of the record of a message's end."""
    data = row["data"]
    return data["start"], row["time"], _whole_number(row["round"]), row["outcome"], data


def _kind_of_mark(record_kind: str, group: int | None, text: str | None) -> str | None:
    """The kind of a record's mark; None for a test that detected no shift."""
    if record_kind == "shift-test":
        return "noticed" if parse_data(text)["fired"] else None
    if record_kind == "assign" and group is not None and parse_data(text)["before"] is not None:
        return "move"
    return record_kind


def _spans(table: pd.DataFrame) -> list[TimeSpan]:
    columns = (table[name].tolist() for name in ("device", "start", "end"))
    return [TimeSpan(*row) for row in zip(*columns, strict=True)]


def _whole_numbers(column: "pd.Series[float]") -> list[int | None]:
    """The column with None for its empty cells."""
    return [_whole_number(value) for value in column.tolist()]


def _whole_number(value: float | None) -> int | None:
    if value is None or math.isnan(value):
        return None
    return int(value)
