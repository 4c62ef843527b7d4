"""The records of a run as columns, and what the checks need of their ``data``."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats, Ints
from fedsim.errors import RunFolderError
from fedsim.meters.base import ends_of
from fedsim.records.audit.columns import NO_WORD, Columns, Mask, Numbers, Words
from fedsim.records.audit.texts import Data, Texts, Unreadable
from fedsim.records.audit.transfers import PayloadKinds, number
from fedsim.records.folder import EVENTS
from fedsim.records.reading import RunFolder
from fedsim.records.schema import EVENTS as SCHEMA

_WANTED = ("time", "kind", "device", "round", "group", "task", "step", "outcome")

T = TypeVar("T")

FLOWS = ("edge-transfer", "message")
"""Records of messages outside of tasks that were on links."""


class Messages(NamedTuple):
    """What was sent, in the order in which the records tell of it: ends of downloads and uploads, and transfers at the server's
    side, which have a sender and a receiver.

    Attributes:
        at: the number of the record; int64 [messages].
        start: when it was sent, where the record says so (s); NaN elsewhere; float64 [messages].
        bytes, delivered, wire_bytes: float64 [messages].
        payloads: as ``PayloadKinds`` numbers them; int32 [messages].
        sender, receiver: as ``Words`` numbers them; int32 [messages].
    """

    at: Ints
    start: Floats
    bytes: Floats
    delivered: Floats
    wire_bytes: Floats
    payloads: Numbers
    sender: Numbers
    receiver: Numbers


class Aggregations(NamedTuple):
    """What was aggregated.

    Attributes:
        at: the number of the record; int64 [aggregations].
        tasks: all tasks that they name, one aggregation's after the other's; int64 [named].
        begin: the place in ``tasks`` of each one's first; int64 [aggregations + 1].
        rounds: whether the strategy has rounds (one without says how stale the updates are); bool [aggregations].
        at_edge: whether it was at an edge server; bool [aggregations].
    """

    at: Ints
    tasks: Ints
    begin: Ints
    rounds: Mask
    at_edge: Mask


class Batteries(NamedTuple):
    """How the batteries of devices stand.

    Attributes:
        at: the number of the record; int64 [batteries].
        flat: bool [batteries].
        level, charged, idle, drawn: J; float64 [batteries].
        least, most: of the level, on the way there too (J); float64 [batteries].
        points: breakpoints on the way; float64 [batteries].
    """

    at: Ints
    flat: Mask
    level: Floats
    charged: Floats
    idle: Floats
    drawn: Floats
    least: Floats
    most: Floats
    points: Floats


class Trainings(NamedTuple):
    """How trainings ended.

    Attributes:
        at: the number of the record; int64 [trainings].
        epochs, asked: how many epochs counted, and how many were wanted; float64 [trainings].
        in_part: whether it was on a part of the device's samples; bool [trainings].
        all_ends: when epochs ended, one training's after the other's (s); float64 [ends].
        begin: the place in ``all_ends`` of each one's first; int64 [trainings + 1].
    """

    at: Ints
    epochs: Floats
    asked: Floats
    in_part: Mask
    all_ends: Floats
    begin: Ints

    def ends(self, place: int) -> Floats:
        """When the epochs of a training ended (s); float64 [ends]."""
        return self.all_ends[self.begin[place] : self.begin[place + 1]]


class Limits(NamedTuple):
    """The limits that each begin of a round set.

    Attributes:
        at: the number of the record; int64 [begins].
        deadline: s; NaN where none is said; float64 [begins].
        training: the longest training, s; float64 [begins].
    """

    at: Ints
    deadline: Floats
    training: Floats


class Events(Columns):
    """``events.parquet``: its columns, and what ``data`` says.

    What is asked of a record whose ``data`` does not say what its kind must raises ``RunFolderError``; all else can be asked.
    """

    def __init__(self, run: RunFolder, words: Words, kinds: PayloadKinds) -> None:
        count = run.size(EVENTS)
        self._kinds = kinds
        self._trained: list[tuple[int, float, float, bool]] = []
        self._epoch_ends: list[list[float]] = []
        self._continues: Mask = np.zeros(count, dtype=bool)
        self._rounds: list[tuple[int, str]] = []
        self._reasons: list[Any] = []
        self._link_rates: list[tuple[float, str, float]] = []
        self._sent: list[Messages] = []
        self._named: list[tuple[int, NDArray[np.int64], bool, bool]] = []
        self._lost_edges: list[tuple[float, int]] = []
        self._lost: list[tuple[int, NDArray[np.int64]]] = []
        self._said: list[tuple[int, float, float]] = []
        self._told: list[tuple[float, ...]] = []
        self._damage: dict[str, str] = {}
        self._where = f"{EVENTS} of {str(run.path)!r} is damaged"
        super().__init__(run, EVENTS, SCHEMA, _WANTED, words, "data")
        self._messages = _joined(self._sent)
        self._aggregations = _aggregations(self._named)
        lost = [(task, at) for at, tasks in self._lost for task in tasks.tolist()]
        tasks, at = np.array(lost, dtype=np.int64).reshape(len(lost), 2).T
        self._lost_updates: tuple[Ints, Ints] = tasks, at
        self._limits = Limits(*(np.array(column) for column in zip(*self._said, strict=True))) if self._said else _NO_LIMITS
        rows, epochs, asked, in_part = np.array(self._trained, dtype=np.float64).reshape(len(self._trained), 4).T
        begin = np.cumsum([0, *map(len, self._epoch_ends)])
        every = np.array([end for ends in self._epoch_ends for end in ends], dtype=np.float64)
        self._trainings = Trainings(rows.astype(np.int64), epochs, asked, in_part > 0, every, begin)
        self._idle: Mask = np.zeros(count, dtype=bool)
        self._idle[self._trainings.at] = epochs == 0
        told = np.array(self._told, dtype=np.float64).reshape(len(self._told), len(Batteries._fields)).T
        self._batteries = Batteries(told[0].astype(np.int64), told[1] > 0, *told[2:])
        del self._sent, self._named, self._said, self._told, self._lost, self._trained, self._epoch_ends

    @property
    def idle(self) -> Mask:
        """Which records end a training of which no epoch counts; bool [rows]."""
        return self._unless_damaged(self._idle, "step-end of train")

    @property
    def trainings(self) -> Trainings:
        """How trainings ended."""
        return self._unless_damaged(self._trainings, "step-end of train")

    @property
    def continues(self) -> Mask:
        """Which records begin a task that goes on with one before; bool [rows]."""
        return self._unless_damaged(self._continues, "task-start")

    @property
    def messages(self) -> Messages:
        """What was sent."""
        return self._unless_damaged(self._messages, "step-end of download or upload", "server-transfer", *FLOWS)

    @property
    def aggregations(self) -> Aggregations:
        """What was aggregated."""
        return self._unless_damaged(self._aggregations, "aggregate")

    @property
    def lost_updates(self) -> tuple[Ints, Ints]:
        """Tasks that edge servers have taken with them, and the number of the record that says so; two int64 [n]."""
        return self._unless_damaged(self._lost_updates, "updates-lost")

    @property
    def lost_edges(self) -> list[tuple[float, int]]:
        """When (s) which edge server was lost."""
        return self._unless_damaged(self._lost_edges, "edge-off")

    @property
    def batteries(self) -> Batteries:
        """How batteries stood."""
        return self._unless_damaged(self._batteries, "battery")

    @property
    def limits(self) -> Limits:
        """What was said of deadlines when rounds began."""
        return self._unless_damaged(self._limits, "round-start")

    @property
    def rounds(self) -> list[tuple[int, str]]:
        """The number of each record of a round, and its ``data`` as it is written."""
        return self._unless_damaged(self._rounds, "round")

    @property
    def reasons(self) -> list[Any]:
        """Why the run ended, of each record that says so."""
        return self._unless_damaged(self._reasons, "run-end")

    @property
    def link_rates(self) -> list[tuple[float, str, float]]:
        """When (s) which link came to carry how much (bytes/s), where that is not what it was built to carry all the time."""
        return self._unless_damaged(self._link_rates, "link-rate")

    def are(self, kind: str) -> Mask:
        """Which records are of a kind; bool [rows]."""
        return self["kind"] == self._words[kind]  # type: ignore[no-any-return]

    def are_any(self, kinds: Sequence[str]) -> Mask:
        """Which records are of one of some kinds; bool [rows]."""
        found: Mask = np.isin(self["kind"], [self._words[kind] for kind in kinds])
        return found

    def _unless_damaged(self, found: T, *kinds: str) -> T:
        for kind in kinds:
            if kind in self._damage:
                raise RunFolderError(self._damage[kind])
        return found

    def _take(self, at: int, piece: dict[str, NDArray[Any]], extra: Any) -> None:
        try:
            texts = Texts(extra)
        except ValueError as error:
            raise RunFolderError(f"{self._where}: {error}") from None
        kind, step, words = piece["kind"], piece["step"], self._words
        ends, of_server = kind == words["step-end"], kind == words["server-transfer"]
        train, sent = step == words["train"], (step == words["download"]) | (step == words["upload"])
        take: dict[str, tuple[Mask, Callable[[int, Ints, Texts], None]]] = {
            "step-end of train": (ends & train, self._take_trainings),
            "task-start": (kind == words["task-start"], self._take_tasks),
            "step-end of download or upload": (ends & sent, partial(self._take_messages, _of_device)),
            "server-transfer": (of_server, partial(self._take_messages, _of_server)),
            **{name: (kind == words[name], partial(self._take_messages, _of_flow)) for name in FLOWS},
            "edge-off": (kind == words["edge-off"], partial(self._take_lost_edges, piece["time"])),
            "updates-lost": (kind == words["updates-lost"], self._take_lost),
            "aggregate": (kind == words["aggregate"], self._take_aggregations),
            "round-start": (kind == words["round-start"], self._take_limits),
            "round": (kind == words["round"], self._take_rounds),
            "battery": (kind == words["battery"], self._take_batteries),
            "run-end": (kind == words["run-end"], self._take_reasons),
            "link-rate": (kind == words["link-rate"], partial(self._take_link_rates, piece["time"])),
        }
        for name, (mask, of_these) in take.items():
            try:
                of_these(at, np.flatnonzero(mask), texts)
            except Unreadable as error:
                self._damage.setdefault(name, f"{self._where}: record {at + error.row} ({name}) has wrong data ({error})")

    def _take_trainings(self, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            epochs, asked, in_part, ends = texts.read(row, _training)
            self._trained.append((at + row, epochs, asked, in_part))
            self._epoch_ends.append(ends)

    def _take_tasks(self, at: int, rows: Ints, texts: Texts) -> None:
        self._continues[at + rows] = texts.each(rows, lambda data: "continues" in data, bool)

    def _take_messages(self, read: "_Read", at: int, rows: Ints, texts: Texts) -> None:
        found = texts.each(rows, lambda data: self._message(read(data)), _MESSAGE)
        self._sent.append(Messages(at + rows, *(found[name] for name in _MESSAGE.names or ())))

    def _message(self, told: "_Told") -> tuple[float, float, float, float, int, int, int]:
        start, size, delivered, wire, payloads, *ends = told
        sender, receiver = (NO_WORD if name is None else self._words[name] for name in ends)
        return start, number(size), number(delivered), number(wire), self._kinds.of(payloads), sender, receiver

    def _take_aggregations(self, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            self._named.append((at + row, *texts.read(row, _aggregation)))

    def _take_lost(self, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            self._lost.append((at + row, texts.read(row, lambda data: _whole(data["tasks"]))))

    def _take_lost_edges(self, times: Floats, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            self._lost_edges.append((times.item(row), texts.read(row, lambda data: int(data["edge"]))))

    def _take_limits(self, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            self._said.append((at + row, *texts.read(row, _limits)))

    def _take_batteries(self, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            self._told.append((at + row, *texts.read(row, _battery)))

    def _take_rounds(self, at: int, rows: Ints, texts: Texts) -> None:
        self._rounds += [(at + row, texts.text(row)) for row in rows.tolist()]

    def _take_reasons(self, at: int, rows: Ints, texts: Texts) -> None:
        self._reasons += [texts.read(row, lambda data: data["reason"]) for row in rows.tolist()]

    def _take_link_rates(self, times: Floats, at: int, rows: Ints, texts: Texts) -> None:
        for row in rows.tolist():
            self._link_rates.append((times.item(row), *texts.read(row, _link_rate)))


_Told = tuple[float, Any, Any, Any, Any, str | None, str | None]
_Read = Callable[[Data], _Told]
_QUANTITIES = [(name, "f8") for name in ("start", "bytes", "delivered", "wire_bytes")]
_MESSAGE = np.dtype([*_QUANTITIES, ("payloads", "i4"), ("sender", "i4"), ("receiver", "i4")])
_NO_LIMITS = Limits(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))


def _of_device(data: Data) -> _Told:
    """What was delivered is what was on the wire, unless told."""
    size, delivered = data["bytes"], data["delivered"]
    ends = data.get("sender"), data.get("receiver")
    return math.nan, size, delivered, data.get("wire_bytes", delivered), data["payloads"], *ends


def _of_server(data: Data) -> _Told:
    """All of it is of one purpose, arrives at once, and is on no link."""
    size = data["bytes"]
    return math.nan, size, size, 0.0, [[data["purpose"], size]], data["sender"], data["receiver"]


def _of_flow(data: Data) -> _Told:
    """Outside of tasks; it says itself when it began."""
    _, sender, receiver = ends_of(data)
    return number(data["start"]), *_of_device(data)[1:5], sender, receiver


def _aggregation(data: Data) -> tuple[NDArray[np.int64], bool, bool]:
    return _whole(data["tasks"]), "staleness" not in data, "edge" in data


def _limits(data: Data) -> tuple[float, float]:
    deadline = data.get("deadline")
    return math.nan if deadline is None else number(deadline), number(data.get("training_limit", math.inf))


def _battery(data: Data) -> tuple[float, ...]:
    level, charged, idle, drawn = (number(data[key]) for key in ("level", "charged", "idle", "drawn"))
    levels = [level, *(number(one) for _, one in data["path"])]
    return float(data["flat"]), level, charged, idle, drawn, min(levels), max(levels), float(len(levels) - 1)


def _training(data: Data) -> tuple[float, float, bool, list[float]]:
    return number(data["epochs"]), number(data["asked"]), "part" in data, [number(end) for end in data["epoch_ends"]]


def _link_rate(data: Data) -> tuple[str, float]:
    return str(data["link"]), math.inf if data["rate"] is None else number(data["rate"])


def _whole(values: list[Any]) -> NDArray[np.int64]:
    for value in values:
        if type(value) is not int:
            raise TypeError(f"{value!r} is no task")
    return np.array(values, dtype=np.int64)


def _joined(pieces: list[Messages]) -> Messages:
    """All messages, in the order of their records."""
    columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
    if not columns:
        return Messages(np.empty(0, dtype=np.int64), *(np.empty(0, dtype=_MESSAGE[place]) for place in range(7)))
    order = np.argsort(columns[0], kind="stable")
    return Messages(*(column[order] for column in columns))


def _aggregations(found: list[tuple[int, NDArray[np.int64], bool, bool]]) -> Aggregations:
    sizes = np.array([0, *(len(tasks) for _, tasks, *_ in found)], dtype=np.int64)
    named = [tasks for _, tasks, *_ in found]
    return Aggregations(
        np.array([at for at, *_ in found], dtype=np.int64),
        np.concatenate([np.empty(0, dtype=np.int64), *named]),
        np.cumsum(sizes),
        *(np.array([one[place] for one in found], dtype=bool) for place in (2, 3)),
    )
