"""Activities of a run as typed values: what each device and server did, and when.

The timelines in figures, on the web page and in Chrome traces draw the same ``Activities``. All
times are simulated seconds.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fedsim.common.arrays import Floats
from fedsim.lab.reading.history import NO_GROUP, History
from fedsim.lab.reading.record_data import RecordData, parse_data
from fedsim.records.schema import is_act

_NUMBERED = re.compile(r"(device|edge) (\d+)")
_DECISIONS = ("cluster-split", "cluster", "clustering", "tiers")
_DEVICE_KINDS = ("task-end", "arrival", "departure", "shift", "shift-test", "assign")


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Interval of simulated time, which a timeline shows in the row of a device or edge server.

    Attributes:
        device: ID of the device, or index of the edge server.
        start: begin (s).
        end: end (s).
    """

    device: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Stay(TimeSpan):
    """Interval for which a device was in the same group (cluster) without a break.

    Attributes:
        group: ID of the group.
    """

    group: int


@dataclass(frozen=True, slots=True)
class StepSpan(TimeSpan):
    """Step of a device's task, such as ``train`` or ``upload``, from its begin to its end.

    If the run was cut off, a step that has not ended (an open step) ends with the run.

    Attributes:
        kind: name of the step, such as ``train``.
        task: ID of the step's task.
        round: index of the task's round, if any.
        group: ID of the task's group, if any.
        outcome: outcome of the step; ``stopped`` if the step is open.
        task_outcome: outcome of the task. Unless it is ``done``, the step's work was wasted.
        text: JSON data of the record that ends the step; None if the step is open.
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
        """Fields of the record that ends the step, parsed from JSON; empty if it did not end."""
        return parse_data(self.text)


@dataclass(frozen=True, slots=True)
class MessageEnd(TimeSpan):
    """Message as one of its two endpoints, sender or receiver, sees it.

    A timeline shows it in the row of this endpoint.

    Attributes:
        device: number in ``name``: ID of the device, or index of the edge server; -1 for the server
            or a host.
        name: name of the endpoint: ``device 3``, ``edge 1`` (an edge server), ``server``, or the
            name of a host of the network.
        is_sent: whether the endpoint is the sender.
        other: name of the other endpoint, such as ``device 3``.
        delivered: bytes that arrived.
        outcome: ``done``, or the reason why the message was cut short.
    """

    name: str
    is_sent: bool
    other: str
    delivered: float
    outcome: str

    @property
    def is_of_device(self) -> bool:
        return self.device >= 0 and self.name.startswith("device ")


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Message between two endpoints, such as devices, with its begin and end.

    Attributes:
        source: name of the sender, such as ``device 3``.
        destination: name of the receiver, such as ``server``.
        start: begin (s).
        end: end (s).
        round: index of the message's round, if any.
        outcome: ``done``, or the reason why the message was cut short.
        data: parsed data of the message's record.
    """

    source: str
    destination: str
    start: float
    end: float
    round: int | None
    outcome: str
    data: RecordData

    def ends(self) -> list[MessageEnd]:
        """Return the message at its two ends, for a timeline with a row for each endpoint.

        The first is the sender. The second is the receiver; it is left out if no bytes arrived.
        """
        delivered = float(self.data["delivered"])
        names = [(self.source, self.destination, True)]
        if delivered > 0:
            names.append((self.destination, self.source, False))
        ends = []
        for name, other, is_sent in names:
            match = _NUMBERED.fullmatch(name)  # None if ``name`` is no device and no edge server
            end = MessageEnd(
                device=int(match[2]) if match else -1,
                start=self.start,
                end=self.end,
                name=name,
                is_sent=is_sent,
                other=other,
                delivered=delivered,
                outcome=self.outcome,
            )
            ends.append(end)
        return ends

    def device_ends(self) -> list[MessageEnd]:
        """Return the ends of the message that are devices, each as in ``ends``.

        Empty if no bytes arrived.
        """
        return [end for end in self.ends() if end.is_of_device and end.delivered > 0]


@dataclass(frozen=True, slots=True)
class EdgeTransfer(MessageSpan):
    """Message between the server and an edge server.

    Attributes:
        edge: index of the edge server.
    """

    edge: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Event without duration in a timeline, in the row of a device or else of the server.

    It is made from a record, a row of ``events.parquet``.

    Attributes:
        kind: ``move`` for an assignment of a device from one group to another, ``noticed`` for a
            test that detected a data shift, and otherwise the kind of the record.
        time: simulated time (s).
        device: ID of the device, if any.
        outcome: outcome of the task if ``kind`` is ``task-end``, else None.
        group: ID of the new group of an assignment, if any.
        text: JSON text of the record's column ``data``, if any.
    """

    kind: str
    time: float
    device: int | None = None
    outcome: str | None = None
    group: int | None = None
    text: str | None = None

    @property
    def data(self) -> RecordData:
        """Fields of the mark's record that have no column of their own in ``events.parquet``.

        They are parsed from ``text``; empty if ``text`` is None. An example is ``why``, the reason
        of the new group, in a record of the kind ``assign``.
        """
        return parse_data(self.text)


@dataclass(frozen=True, slots=True)
class RoundPeriod:
    """Interval of a round in a timeline; if the strategy has no rounds, of a model version.

    Attributes:
        number: index of the round, from 0.
        start: begin (s); None for a version.
        end: end (s).
        deadline: simulated time of the round's deadline (s), if any.
        data: parsed data of the record that ends the round.
    """

    number: int
    start: float | None
    end: float
    deadline: float | None
    data: RecordData

    @property
    def reached_deadline(self) -> float | None:
        """Simulated time of the deadline (s); None if the round has none or ended before it."""
        if self.deadline is None or self.deadline > self.end:
            return None
        return self.deadline


class Activities:
    """Steps, messages, absences and other activities of a run, as lists for timelines.

    Each list is built from the run's records when it is first used.

    Args:
        history: records of the run.

    Attributes:
        history: records of the run.
    """

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def steps(self) -> list[StepSpan]:
        """All steps of tasks (such as ``train``), task by task, each task's steps in order."""
        table = self.history.steps
        columns = (
            *(table[name].tolist() for name in ("device", "start", "end", "step", "task")),
            _whole_numbers(table["round"]),
            _whole_numbers(table["group"]),
            *(table[name].tolist() for name in ("ended", "outcome", "data")),
        )
        return [StepSpan(*row) for row in zip(*columns, strict=True)]

    def open_task_changes(self) -> tuple[Floats, Floats]:
        """Return when the count of tasks that are going on changes, in the order of the records.

        Returns:
            Times (s), and changes: 1 for a start, -1 for an end; float64 [n] each.
        """
        table = self.history.of("task-start", "task-end")
        changes = np.where(table["kind"] == "task-start", 1.0, -1.0)
        return table["time"].to_numpy(), changes

    @cached_property
    def presence(self) -> list[TimeSpan]:
        """Intervals from each device's arrival to its departure or the run's end."""
        return _spans(self.history.presence)

    @cached_property
    def absences(self) -> list[TimeSpan]:
        """Intervals in which a device was present but unreachable or switched off."""
        return _spans(self.history.away)

    @cached_property
    def stays(self) -> list[Stay]:
        """Intervals for which devices were in a group (cluster), sorted by device and time."""
        table = self.history.stays
        in_group = table[table["group"] != NO_GROUP]
        columns = (in_group[name].tolist() for name in ("device", "start", "end", "group"))
        return [Stay(*row) for row in zip(*columns, strict=True)]

    @cached_property
    def marks(self) -> list[Mark]:
        """Instant events to show in a timeline, in the order of the records.

        They are ends of tasks, arrivals, departures, data shifts, assignments to groups, and
        changes of devices or links that the scenario's processes caused, such as a new rate of a
        link.
        """
        # kinds of records that a process of the scenario caused, such as an outage
        acts = [kind for kind in self.history.events["kind"].unique() if is_act(kind)]
        table = self.history.of(*_DEVICE_KINDS, *acts)
        columns = (  # as lists, which are faster to go through than rows of a DataFrame
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
        """Simulated times (s), ascending, at which devices or the network changed.

        An example is a new rate of a link, as an outage causes it.
        """
        return [mark.time for mark in self.marks if is_act(mark.kind)]

    @cached_property
    def messages(self) -> list[MessageSpan]:
        """Messages that belong to no task, such as between devices, in the order of their ends."""
        messages = []
        for row in self.history.data("message"):
            data = row["data"]
            messages.append(MessageSpan(data["source"], data["destination"], *_message_fields(row)))
        return messages

    @cached_property
    def message_ends(self) -> list[MessageEnd]:
        """Messages outside of tasks, each as the sending or receiving device sees it.

        A message between two devices has two entries, a message between a device and another
        endpoint has one. Messages of which no bytes arrived are left out.
        """
        ends: list[MessageEnd] = []
        for message in self.messages:
            ends += message.device_ends()
        return ends

    @cached_property
    def edge_transfers(self) -> list[EdgeTransfer]:
        """Messages between the server and edge servers, which combine updates of nearby devices.

        They are in the order of their ends.
        """
        transfers = []
        for row in self.history.data("edge-transfer"):
            edge = row["data"]["edge"]
            source = "server"
            destination = f"edge {edge}"
            if row["data"]["direction"] == "up":
                source, destination = destination, source
            transfers.append(EdgeTransfer(source, destination, *_message_fields(row), edge))
        return transfers

    @cached_property
    def edge_outages(self) -> list[TimeSpan]:
        """Intervals in which an edge server was out of order; ``device`` is the server's index."""
        return _spans(self.history.lost_edges)

    @cached_property
    def server(self) -> list[RoundPeriod | Mark]:
        """Entries of the server's row in a timeline, in the order of the records.

        They are the rounds that ended, and marks of decisions about groups of devices, such as a
        clustering.
        """
        round_starts = {row["round"]: row for row in self.history.data("round-start")}
        entries: list[RoundPeriod | Mark] = []
        for row in self.history.data(*_DECISIONS, "round"):
            if row["kind"] != "round":  # a decision
                entries.append(Mark(row["kind"], row["time"]))
                continue
            start_record = round_starts.get(row["round"])
            start = None
            deadline = None
            if start_record is not None:
                start = start_record["time"]
                deadline = start_record["data"].get("deadline")
            entries.append(
                RoundPeriod(int(row["round"]), start, row["time"], deadline, row["data"])
            )
        return entries

    @property
    def rounds(self) -> list[RoundPeriod]:
        """Rounds that ended, or model versions if the strategy has no rounds, in order of time."""
        return [entry for entry in self.server if isinstance(entry, RoundPeriod)]


def _message_fields(row: RecordData) -> tuple[float, float, int | None, str, RecordData]:
    """Return the fields of a record that ends a message, in the order of ``MessageSpan``.

    Returns:
        Begin (s), end (s), index of the round (if any), outcome, and the record's ``data``.
    """
    data = row["data"]
    return data["start"], row["time"], _whole_number(row["round"]), row["outcome"], data


def _kind_of_mark(record_kind: str, group: int | None, text: str | None) -> str | None:
    """Return the kind of mark that a timeline shows for a record; None for no mark.

    Args:
        record_kind: kind of the record.
        group: group in the record, if any.
        text: JSON data of the record.

    Returns:
        ``noticed`` for a test that detected a data shift, None for a test that detected none,
        ``move`` for an assignment from one group to another, else ``record_kind``.
    """
    if record_kind == "shift-test":
        return "noticed" if parse_data(text)["fired"] else None
    if record_kind == "assign" and group is not None and parse_data(text)["before"] is not None:
        return "move"
    return record_kind


def _spans(table: pd.DataFrame) -> list[TimeSpan]:
    columns = (table[name].tolist() for name in ("device", "start", "end"))
    return [TimeSpan(*row) for row in zip(*columns, strict=True)]


def _whole_numbers(column: "pd.Series[float]") -> list[int | None]:
    """Convert a column to integers, with None for empty cells."""
    return [_whole_number(value) for value in column.tolist()]


def _whole_number(value: float | None) -> int | None:
    if value is None or math.isnan(value):
        return None
    return int(value)
