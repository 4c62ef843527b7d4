"""What a deployment wrote down of its tasks, read with care: a CSV or Parquet file, or a run folder of fedsim's own.

A row is an interval of one client, or of the server:

| column | what it holds |
|---|---|
| ``client`` | any name; of the server's rows anything |
| ``round`` | a whole number: of the round, or of the version of the model that a task began with |
| ``what`` | ``down``, ``train``, ``up``; of the server ``round`` and ``aggregate``; ``on`` while a client can be reached |
| ``start``, ``end`` | seconds on one clock, or dates with times |
| ``bytes`` | of a download or upload, payload alone |
| ``samples`` | that a training went through, each pass counted |
| ``epochs`` | passes that it made; 1 if there is no such column |

Rows may stand in any order. A task is a client's download, training and upload, one after the other.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsim.arrays import Floats, Ints
from fedsim.errors import DataError, nearest, shown
from fedsim.files import regular
from fedsim.language.units import CLOCK_END_S

WAYS = ("down", "up")
_ORDER, _OF_SERVER = {"down": 0, "train": 1, "up": 2}, ("round", "aggregate")
_OF_CLIENTS = (*_ORDER, "on")
_WORDS = {**{word: word for word in (*_OF_CLIENTS, *_OF_SERVER)}, "download": "down", "upload": "up"}
_NEEDED, _MORE = ("client", "round", "what", "start", "end"), ("bytes", "samples", "epochs")
_NUMBERS = ("round", *_MORE)
_NEEDS: dict[str, tuple[str, ...]] = dict.fromkeys(_WORDS.values(), ()) | {
    "down": ("round", "bytes"),
    "train": ("round", "samples", "epochs"),
    "up": ("round", "bytes"),
    "round": ("round",),
}
"""What a row needs, by its word, beside its times."""

_MOSTLY = 0.9
_TOGETHER_S = 1e-3  # clocks are read one after another: what overlaps by less does not


class LogDefaults(NamedTuple):
    """What is known of a log that it does not hold.

    Attributes:
        bytes: of every message, where there is no such column.
        samples: that every training goes through, where there is no such column.
        epochs: passes of every training, where there is no such column.
        lenient: whether what cannot be used is left out, and not refused.
    """

    bytes: float | None = None
    samples: int | None = None
    epochs: int = 1
    lenient: bool = False


class Steps(NamedTuple):
    """One step of every task; NaN where a task has none, [tasks] each.

    Attributes:
        start, end: s, from the log's first instant.
        amount: bytes, or samples.
    """

    start: Floats
    end: Floats
    amount: Floats

    @property
    def took(self) -> Floats:
        """How long it took (s), [tasks]."""
        return self.end - self.start

    def at(self, tasks: Any) -> "Steps":
        """Those of some tasks."""
        return Steps(*(column[tasks] for column in self))


class Tasks(NamedTuple):
    """The tasks of a log in order of their beginning, [tasks] each.

    Attributes:
        client: whose, from 0.
        round: of which round.
        epochs: passes of its training.
        down, train, up: its steps.
    """

    client: Ints
    round: Ints
    epochs: Ints
    down: Steps
    train: Steps
    up: Steps

    @property
    def start(self) -> Floats:
        """When each began (s), [tasks]."""
        return np.fmin(self.down.start, np.fmin(self.train.start, self.up.start))

    @property
    def end(self) -> Floats:
        """When the last of each that is known ended (s), [tasks]."""
        return np.fmax(self.down.end, np.fmax(self.train.end, self.up.end))

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Which have come to their upload's end, [tasks]."""
        return ~np.isnan(self.up.end)

    def at(self, tasks: Any) -> "Tasks":
        """Some of them."""
        columns = self.client[tasks], self.round[tasks], self.epochs[tasks]
        return Tasks(*columns, *(steps.at(tasks) for steps in (self.down, self.train, self.up)))


class Rounds(NamedTuple):
    """The rounds of a log, [rounds] each: their numbers, and when each began and ended (s)."""

    number: Ints
    start: Floats
    end: Floats

    def at(self, rounds: Any) -> "Rounds":
        """Some of them."""
        return Rounds(*(column[rounds] for column in self))


class Interval(NamedTuple):
    """From when to when (s) a client could be reached."""

    client: int
    start: float
    end: float


@dataclass(frozen=True)
class Log:
    """A log that makes sense.

    Attributes:
        clients: their names, [clients].
        tasks: what they did.
        rounds: in order of time; of an asynchronous server its versions.
        synchronous: whether a round begins only when the one before is over.
        on: when clients could be reached, if the log says so.
        aggregate_s: how long the server aggregated, [times].
        notes: what a reader should know of it.
    """

    clients: tuple[str, ...]
    tasks: Tasks
    rounds: Rounds
    synchronous: bool
    on: tuple[Interval, ...]
    aggregate_s: Floats
    notes: tuple[str, ...]

    @property
    def at_work(self) -> int:
        """How many tasks were under way at a time, on the mean."""
        start, end = self.tasks.start, self.tasks.end
        return min(len(self.clients), max(1, round(float((end - start).sum() / (end.max() - start.min())))))

    @property
    def cohort(self) -> int:
        """How many tasks a round has, the median."""
        return int(np.median(np.unique(self.tasks.round, return_counts=True)[1]))

    @property
    def per_version(self) -> int:
        """How many updates come between two versions, the median."""
        ends = np.sort(self.tasks.up.end[self.tasks.whole])
        first, last = (np.searchsorted(ends, edges, side="right") for edges in (self.rounds.start, self.rounds.end))
        return max(1, int(np.median(last - first)))


class Row(NamedTuple):
    """A row of a log as it is written: ``place`` is its number, from 1."""

    place: int
    client: str
    round: int
    what: str
    start: float
    end: float
    bytes: float
    samples: float
    epochs: int


def read_log(path: Path, said: LogDefaults) -> Log:
    """Read a log.

    Args:
        path: the file, or a run folder.
        said: what is known beside it.

    Raises:
        DataError: it is missing or malformed, or what it says cannot have been; names the row.
        RunFolderError: it is a run folder that is damaged.
    """
    notes: list[str] = []
    rows = list(_of_run(path)) if path.is_dir() else _of_file(path, said, notes)
    return _Sense(path, said.lenient, notes).make(rows, holes=not path.is_dir())


# Rows of a file.


def _of_file(path: Path, said: LogDefaults, notes: list[str]) -> list[Row]:
    import pandas as pd
    import pyarrow as pa

    where = repr(str(path))
    try:
        regular(path)
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype=str, skipinitialspace=True, encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no log {where}; give a CSV or Parquet file, or a run folder") from None
    except (OSError, ValueError, pd.errors.ParserError, pa.ArrowException) as error:
        raise DataError(f"the log {where} cannot be read: {str(error).splitlines()[0]}") from None
    names = [str(name).strip() for name in table.columns]
    table.columns = pd.Index(names)
    for name in _NEEDED:
        if name not in names:
            raise DataError(f"the log {where} has no column {name!r}; it has {', '.join(names)}{nearest(name, names)}")
    strange = [name for name in names if name not in _NEEDED + _MORE]
    for name in strange:
        if meant := nearest(name, [more for more in _MORE if more not in names]):
            raise DataError(f"the log {where} has the unknown column {name!r}; known are {', '.join(_NEEDED + _MORE)}{meant}")
    if table.empty:
        raise DataError(f"the log {where} has no rows")
    if strange:
        notes.append(f"columns that are not used: {', '.join(strange)}")
    return list(_Cells(where, table, said, notes).rows())


class _Cells:
    """The cells of a table as values, or an error that names the row."""

    def __init__(self, where: str, table: Any, said: LogDefaults, notes: list[str]) -> None:
        self._where, self._table, self._lenient, self._notes = where, table, said.lenient, notes
        self._texts = {name: _texts(table[name]) for name in table.columns if name in _NEEDED + _MORE}
        self._words = [self._word(row, text) for row, text in enumerate(self._texts["what"])]
        known = {"bytes": said.bytes, "samples": said.samples, "epochs": said.epochs}
        self._values = {name: self._numbers(name) if name in table else self._said(name, known[name]) for name in _NUMBERS}
        self._values |= {name: self._times(name) for name in ("start", "end")}

    def rows(self) -> Iterator[Row]:
        """All of them, those that cannot be used left out if that is asked."""
        left_out = 0
        for row, word in enumerate(self._words):
            if problem := self._problem(row, word):
                if not self._lenient:
                    raise self._wrong(row, problem)
                left_out += 1
                continue
            value = {name: float(column[row]) for name, column in self._values.items()}
            number, epochs = (0 if math.isnan(value[name]) else int(value[name]) for name in ("round", "epochs"))
            amounts = value["bytes"], value["samples"]
            yield Row(row + 1, self._texts["client"][row], number, word, value["start"], value["end"], *amounts, epochs)
        if left_out:
            self._notes.append(f"left out: {left_out} rows with holes, or that end before they start")

    def _problem(self, row: int, word: str) -> str | None:
        """What is wrong with a row."""
        if word in _OF_CLIENTS and not self._texts["client"][row]:
            return "client is empty"
        for name in ("start", "end", *_NEEDS[word]):
            value = self._values[name][row]
            if math.isnan(value):
                return f"{name} is empty; every row with {word!r} needs it"
            if name in _MORE and not 0 < value <= 1e15:
                return f"{name} is {value:g}; allowed is more than 0"
            if name in ("round", "epochs") and value != int(value):
                return f"{name} is {value:g}; allowed are whole numbers"
        start, end = self._values["start"][row], self._values["end"][row]
        if end < start:
            return f"it ends {start - end:g} s before it starts; a clock was set back, or start and end are exchanged"
        return None

    def _word(self, row: int, text: str) -> str:
        if text not in _WORDS:
            known = [*_ORDER, *_OF_SERVER, "on"]
            raise self._wrong(row, f"what is {shown(text)}; allowed are {', '.join(known)}{nearest(text, known)}")
        return _WORDS[text]

    def _said(self, name: str, known: float | None) -> Floats:
        """A column that the log does not have."""
        if known is None and any(name in _NEEDS[word] for word in self._words):
            example = {"bytes": "'2 MB'", "samples": "60"}[name]
            raise DataError(
                f"the log {self._where} has no column {name!r}; add one, or say with --{name} what is the same in all rows, "
                f"such as --{name} {example}"
            )
        return np.full(len(self._table), math.nan if known is None else known)

    def _numbers(self, name: str) -> Floats:
        import pandas as pd

        values = pd.to_numeric(self._table[name], errors="coerce").to_numpy(dtype=np.float64, na_value=math.nan)
        return self._checked(name, values)

    def _times(self, name: str) -> Floats:
        """Seconds; dates as seconds since 1970."""
        import pandas as pd

        column = self._table[name]
        dates = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601") if _dated(self._texts[name]) else None
        if dates is None:
            values = self._numbers(name)
        else:
            values = self._checked(name, (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(dtype=np.float64))
        for row in np.flatnonzero(abs(values) > CLOCK_END_S).tolist():
            raise self._wrong(row, f"{name} is {values[row]:g}; allowed are seconds up to {CLOCK_END_S:g} (are these ms?)")
        return values

    def _checked(self, name: str, values: Floats) -> Floats:
        """Values, of which none stands for something that could not be read."""
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            if self._texts[name][row]:
                raise self._wrong(row, f"{name} is {shown(self._texts[name][row])}, which cannot be read")
        return values

    def _wrong(self, row: int, problem: str) -> DataError:
        return DataError(f"row {row + 1} of the log {self._where}: {problem}")


def _texts(column: Any) -> list[str]:
    """Cells as text, empty where there is nothing."""
    return [str(cell).strip() if there else "" for cell, there in zip(column, column.notna(), strict=True)]


def _dated(texts: Sequence[str]) -> bool:
    """Whether the first cell that is there is a date."""
    return re.match(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]", next(filter(None, texts), "")) is not None


# Rows of a run folder.


def _of_run(path: Path) -> Iterator[Row]:
    """What a run recorded of its rounds, without steps that were cut off; samples from the table of devices."""
    from fedsim.records.reading import RunFolder

    run = RunFolder(path)
    samples = {row["device"]: row["samples"] for row in run.devices}
    begun: dict[int, float] = {}
    last = 0.0
    kinds = ("step-start", "step-end", "round-start", "round")
    columns = ("time", "kind", "device", "round", "task", "step", "outcome", "data")
    for time, kind, device, number, task, step, outcome, data in run.events_of(kinds, columns):
        if kind == "step-start":
            begun[task] = time
        elif kind == "round-start":
            last = time
        elif kind == "round":
            yield Row(0, "server", number, "round", last, time, 0.0, 0.0, 1)
            last = time
        elif outcome == "done" and step in ("download", "train", "upload") and number is not None:
            facts = json.loads(data)
            epochs = facts.get("epochs") or 1
            held = samples.get(device, 0) * epochs
            yield Row(0, str(device), number, _WORDS[step], begun[task], time, facts.get("bytes", 0.0), held, epochs)


# Sense.


class _Sense:
    """Makes tasks and rounds of rows, and refuses what cannot have been."""

    def __init__(self, path: Path, lenient: bool, notes: list[str]) -> None:
        self._where, self._lenient, self._notes = f"the log {str(path)!r}", lenient, notes

    def make(self, rows: Sequence[Row], holes: bool) -> Log:
        """A log of rows; ``holes``: a training without a download before it, and an upload without one, is a hole."""
        steps = [row for row in rows if row.what in _ORDER]
        if not any(row.what == "train" for row in steps) or not any(row.what in WAYS for row in steps):
            raise DataError(f"{self._where} tells of no training, or of no transfer; both are needed to fit devices and links")
        zero = min(row.start for row in rows)
        names = _in_order({row.client for row in steps})
        by_client: dict[str, list[Row]] = {name: [] for name in names}
        for row in steps:
            by_client[row.client].append(row)
        kinds = {row.what for row in steps}
        tasks: list[dict[str, Row]] = []
        for name in names:
            own = list(self._tasks_of(name, sorted(by_client[name], key=lambda row: (row.start, _ORDER[row.what]))))
            whole = [task for task in own if not (holes and self._is_torn(name, task, kinds))]
            if self._often_enough(name, whole):
                tasks += whole
        if not tasks:
            raise DataError(f"{self._where} holds no client with two tasks")
        tasks.sort(key=lambda task: min(row.start for row in task.values()))
        kept = _in_order({next(iter(task.values())).client for task in tasks})
        numbers = {name: number for number, name in enumerate(kept)}
        made = _columns(tasks, numbers, zero)
        rounds = _rounds([row for row in rows if row.what == "round"], made, zero)
        torn = len(tasks) - int(made.whole.sum())
        if torn:
            self._notes.append(
                f"{torn} of {len(tasks)} tasks did not come to the end of an upload; no deadline or loss is fitted"
            )
        on = sorted((row.start, row) for row in rows if row.what == "on" and row.client in numbers)
        return Log(
            tuple(kept), made, rounds, _is_synchronous(made),
            tuple(Interval(numbers[row.client], row.start - zero, row.end - zero) for _, row in on),
            np.array([row.end - row.start for row in rows if row.what == "aggregate"]), tuple(self._notes),
        )  # fmt: skip

    def _tasks_of(self, name: str, rows: Iterable[Row]) -> Iterator[dict[str, Row]]:
        """A client's rows, in order of time, as tasks."""
        task: dict[str, Row] = {}
        before: Row | None = None
        for row in rows:
            if before is not None and row.start < before.end - _TOGETHER_S:
                self._refuse(f"client {name!r} does two things at once: {_told(before)} and {_told(row)}")
                continue
            if task and (
                _ORDER[row.what] <= max(_ORDER[what] for what in task) or row.round != next(iter(task.values())).round
            ):
                yield task
                if row.round < next(iter(task.values())).round:
                    self._refuse(
                        f"client {name!r} does {_told(row)} after {_told(before or row)}; rounds are to grow with time"
                    )
                task = {}
            task[row.what] = before = row
        if task:
            yield task

    def _is_torn(self, name: str, task: dict[str, Row], kinds: set[str]) -> bool:
        first = [what for what in _ORDER if what in kinds]
        there = [what for what in first if what in task]
        if there == first[: len(there)]:
            return False
        missing = next(what for what in first if what not in task)
        self._refuse(f"client {name!r} has a hole: {_told(task[there[-1]])} without {missing!r} before it in the same round")
        return True

    def _often_enough(self, name: str, tasks: list[dict[str, Row]]) -> bool:
        if len(tasks) >= 2:
            return True
        self._refuse(
            f"client {name!r} appears once, in round {next(iter(tasks[0].values())).round}; two tasks at least are needed to "
            "tell a device from chance"
            if tasks
            else f"client {name!r} has no task that can be used"
        )
        return False

    def _refuse(self, problem: str) -> None:
        if not self._lenient:
            raise DataError(f"{self._where}: {problem} (--lenient leaves out what cannot be used)")
        self._notes.append(f"left out: {problem}")


def _told(row: Row) -> str:
    place = f", row {row.place}" if row.place else ""
    return f"{row.what!r} of round {row.round} (from {row.start:.6g} to {row.end:.6g} s{place})"


def _in_order(names: set[str]) -> list[str]:
    """Names by their number if they are numbers, else by letters."""
    return sorted(names, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))


def _columns(tasks: Sequence[dict[str, Row]], numbers: dict[str, int], zero: float) -> Tasks:
    steps = []
    for what in _ORDER:
        found = np.full((3, len(tasks)), math.nan)
        for place, task in enumerate(tasks):
            if what in task:
                row = task[what]
                found[:, place] = row.start - zero, row.end - zero, row.samples if what == "train" else row.bytes
        steps.append(Steps(*found))
    first = [next(iter(task.values())) for task in tasks]
    epochs = [task["train"].epochs if "train" in task else 1 for task in tasks]
    told = [numbers[row.client] for row in first], [row.round for row in first], epochs
    client, number, passes = (np.array(column, dtype=np.int64) for column in told)
    return Tasks(client, number, passes, *steps)


def _rounds(rows: Sequence[Row], tasks: Tasks, zero: float) -> Rounds:
    """As the server's own rows say; where there are none, from the first start of a round's tasks to their last end."""
    if rows:
        table = np.array(sorted((row.start - zero, row.end - zero, row.round) for row in rows))
        return Rounds(table[:, 2].astype(np.int64), table[:, 0], table[:, 1])
    rounds = _spans(tasks)
    return rounds.at(np.argsort(rounds.start, kind="stable"))


def _spans(tasks: Tasks) -> Rounds:
    """When the first task of each round begins and the last one ends, in order of the rounds' numbers."""
    order = np.argsort(tasks.round, kind="stable")
    numbers, first = np.unique(tasks.round[order], return_index=True)
    return Rounds(numbers, np.minimum.reduceat(tasks.start[order], first), np.maximum.reduceat(tasks.end[order], first))


def _is_synchronous(tasks: Tasks) -> bool:
    """Whether in nine of ten cases all tasks of a round are over when the next one begins."""
    rounds = _spans(tasks)
    over = rounds.start[1:] >= rounds.end[:-1] - _TOGETHER_S
    return not len(over) or bool(np.mean(over) >= _MOSTLY)
