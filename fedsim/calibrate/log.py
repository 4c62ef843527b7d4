"""Logs of real deployments: a CSV or Parquet file, the workspace of NVFlare's clients, a folder of APPFL's logs, or a
run folder of fedsim's own.

A row is an interval of one client, or of the server:

| column | content |
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

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from fedsim.arrays import Flags, Floats, Ints
from fedsim.calibrate import foreign
from fedsim.errors import DataError, nearest, shown
from fedsim.files import regular
from fedsim.language.units import CLOCK_END_S

_ORDER = {"down": 0, "train": 1, "up": 2}
_KNOWN = (*_ORDER, "round", "aggregate", "on")
_WORDS = {word: word for word in _KNOWN} | {"download": "down", "upload": "up"}
_NEEDED, _MORE = ("client", "round", "what", "start", "end"), ("bytes", "samples", "epochs")
_NEEDS = {"down": ("round", "bytes"), "train": ("round", "samples", "epochs"), "up": ("round", "bytes"), "round": ("round",)}
"""The numbers that a row needs beside its times."""

_MOSTLY = 0.9
_TOGETHER_S = 1e-3  # clocks are read one after another: an overlap of less is none


class LogDefaults(NamedTuple):
    """Values of columns that a log lacks, and whether rows that cannot be used are left out (``lenient``) or refused."""

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
        """Duration (s), [tasks]."""
        return self.end - self.start

    def at(self, tasks: Any) -> "Steps":
        """The steps of some tasks."""
        return Steps(*(column[tasks] for column in self))


class Tasks(NamedTuple):
    """The tasks of a log in order of their beginning, [tasks] each; clients are numbered from 0."""

    client: Ints
    round: Ints
    epochs: Ints
    down: Steps
    train: Steps
    up: Steps

    @property
    def start(self) -> Floats:
        """Beginning of each task (s), [tasks]."""
        return np.fmin(self.down.start, np.fmin(self.train.start, self.up.start))

    @property
    def end(self) -> Floats:
        """End of the last known step of each task (s), [tasks]."""
        return np.fmax(self.down.end, np.fmax(self.train.end, self.up.end))

    @property
    def whole(self) -> Flags:
        """Whether each task came to the end of its upload, [tasks]."""
        return ~np.isnan(self.up.end)

    def at(self, tasks: Any) -> "Tasks":
        """Some of the tasks."""
        columns = self.client[tasks], self.round[tasks], self.epochs[tasks]
        return Tasks(*columns, *(steps.at(tasks) for steps in (self.down, self.train, self.up)))


class LoggedRounds(NamedTuple):
    """The rounds of a log, [rounds] each: their numbers, and when each began and ended (s)."""

    number: Ints
    start: Floats
    end: Floats

    def at(self, rounds: Any) -> "LoggedRounds":
        """Some of the rounds."""
        return LoggedRounds(*(column[rounds] for column in self))


@dataclass(frozen=True)
class Log:
    """A log that makes sense.

    Attributes:
        clients: their names, [clients].
        tasks: of all clients.
        rounds: in order of time; of an asynchronous server its versions.
        synchronous: whether a round begins only when the one before is over.
        on: client, start and end (s) of intervals in which it could be reached, if the log has any.
        aggregate_s: durations of the server's aggregations (s).
        notes: for the reader.
    """

    clients: tuple[str, ...]
    tasks: Tasks
    rounds: LoggedRounds
    synchronous: bool
    on: tuple[tuple[int, float, float], ...]
    aggregate_s: Floats
    notes: tuple[str, ...]

    @property
    def at_work(self) -> int:
        """Mean number of tasks under way at a time."""
        start, end = self.tasks.start, self.tasks.end
        return min(len(self.clients), max(1, round(float((end - start).sum() / (end.max() - start.min())))))

    @property
    def cohort(self) -> int:
        """Median number of tasks in a round."""
        return int(np.median(np.unique(self.tasks.round, return_counts=True)[1]))

    @property
    def per_version(self) -> int:
        """Median number of updates between two versions."""
        ends = np.sort(self.tasks.up.end[self.tasks.whole])
        first, last = (np.searchsorted(ends, edges, side="right") for edges in (self.rounds.start, self.rounds.end))
        return max(1, int(np.median(last - first)))


def read_log(path: Path, said: LogDefaults) -> Log:
    """Read a log file or a run folder.

    Raises:
        DataError: it is missing or malformed, or contradicts itself; names the row.
        RunFolderError: it is a run folder that is damaged.
    """
    where, notes = f"the log {str(path)!r}", list[str]()

    def refuse(problem: str) -> None:
        if not said.lenient:
            raise DataError(f"{where}: {problem} (--lenient leaves out what cannot be used)")
        notes.append(f"left out: {problem}")

    rows = foreign.rows_of(path, where, said.bytes, said.samples, said.epochs, notes)
    is_foreign = rows is not None
    if rows is None:
        rows = foreign.of_run(path) if path.is_dir() else _of_file(path, where, said, notes)
    steps = rows[rows["what"].isin(_ORDER)]
    if not {"down", "up"} & set(steps["what"]) or "train" not in set(steps["what"]):
        raise DataError(f"{where} tells of no training, or of no transfer; both are needed to fit devices and links")
    kinds = [] if path.is_dir() and not is_foreign else [what for what in _ORDER if what in set(steps["what"])]
    by_client = dict(list(steps.groupby("client")))
    names = sorted(by_client, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name))
    kept = {name: own for name in names if (own := _tasks_of(name, by_client[name], kinds, refuse))}
    if not kept:
        raise DataError(f"{where} holds no client with two tasks")
    zero = rows["start"].min()
    tasks = _tasks([task for own in kept.values() for task in own], {name: at for at, name in enumerate(kept)}, zero)
    if torn := len(tasks.round) - int(tasks.whole.sum()):
        notes.append(f"{torn} of {len(tasks.round)} tasks did not come to the end of an upload; no deadline or loss is fitted")
    on = rows[(rows["what"] == "on") & rows["client"].isin(kept)].sort_values("start", kind="stable")
    places = [list(kept).index(name) for name in on["client"]]
    server = rows[rows["what"] == "aggregate"]
    return Log(
        clients=tuple(kept),
        tasks=tasks,
        rounds=_rounds(rows[rows["what"] == "round"], tasks, zero),
        synchronous=_is_synchronous(tasks),
        on=tuple(zip(places, on["start"] - zero, on["end"] - zero, strict=True)),
        aggregate_s=(server["end"] - server["start"]).to_numpy(np.float64),
        notes=tuple(notes),
    )


def _of_file(path: Path, where: str, said: LogDefaults, notes: list[str]) -> Any:
    """The rows as a data frame with the columns of a log, and ``place``: the number of the row."""
    table = _table(path, where)
    names = list(table.columns)
    for name in _NEEDED:
        if name not in names:
            raise DataError(f"{where} has no column {name!r}; it has {', '.join(names)}{nearest(name, names)}")
    strange = [name for name in names if name not in _NEEDED + _MORE]
    for name in strange:
        if meant := nearest(name, [more for more in _MORE if more not in names]):
            raise DataError(f"{where} has the unknown column {name!r}; known are {', '.join(_NEEDED + _MORE)}{meant}")
    if table.empty:
        raise DataError(f"{where} has no rows")
    if strange:
        notes.append(f"columns that are not used: {', '.join(strange)}")

    def wrong(row: int, problem: str) -> DataError:
        return DataError(f"row {row + 1} of {where}: {problem}")

    texts = table.drop(columns=strange).map(lambda cell: "" if pd.isna(cell) else str(cell).strip())
    for row, text in enumerate(texts["what"]):
        if text not in _WORDS:
            raise wrong(row, f"what is {shown(text)}; allowed are {', '.join(_KNOWN)}{nearest(text, _KNOWN)}")
    rows = pd.DataFrame({"place": table.index + 1, "client": texts["client"], "what": texts["what"].map(_WORDS)})
    needed = {name for what in set(rows["what"]) for name in _NEEDS.get(what, ())}
    for name in (*_NEEDED[3:], "round", *_MORE):
        if name in table:
            rows[name] = _seconds(table[name], texts[name]) if name in ("start", "end") else _numbers(table[name])
            unread = np.flatnonzero(~np.isfinite(rows[name]) & (texts[name] != ""))
            if len(unread):
                raise wrong(unread[0], f"{name} is {shown(texts[name][unread[0]])}, which cannot be read")
        elif getattr(said, name) is not None or name not in needed:
            rows[name] = np.nan if getattr(said, name) is None else float(getattr(said, name))
        else:
            example = {"bytes": "'2 MB'", "samples": "60"}[name]
            raise DataError(
                f"{where} has no column {name!r}; add one, or say with --{name} what is the same in all rows, "
                f"such as --{name} {example}"
            )
    for name in ("start", "end"):
        for row in np.flatnonzero(rows[name].abs() > CLOCK_END_S)[:1]:
            raise wrong(row, f"{name} is {rows[name][row]:g}; allowed are seconds up to {CLOCK_END_S:g} (are these ms?)")
    bad = {at: problem for at, row in enumerate(rows.itertuples()) if (problem := _problem(row))}
    if bad and not said.lenient:
        raise wrong(*next(iter(bad.items())))
    if bad:
        notes.append(f"left out: {len(bad)} rows with holes, or that end before they start")
    return rows.drop(index=list(bad)).fillna({"round": 0, "epochs": 0}).astype({"round": np.int64, "epochs": np.int64})


def _table(path: Path, where: str) -> Any:
    try:
        regular(path)
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            table = pd.read_csv(path, dtype=str, skipinitialspace=True, encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no log {str(path)!r}; give a CSV or Parquet file, or a run folder") from None
    except (OSError, ValueError, pd.errors.ParserError, pa.ArrowException) as error:
        raise DataError(f"{where} cannot be read: {str(error).splitlines()[0]}") from None
    return table.rename(columns=lambda name: str(name).strip()).reset_index(drop=True)


def _numbers(column: Any) -> Any:
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=math.nan)


def _seconds(column: Any, texts: Any) -> Any:
    """Seconds; dates as seconds since 1970."""
    if not re.match(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]", next(filter(None, texts), "")):
        return _numbers(column)
    dates = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
    return (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(dtype=np.float64)


def _problem(row: Any) -> str | None:
    if row.what in (*_ORDER, "on") and not row.client:
        return "client is empty"
    for name in ("start", "end", *_NEEDS.get(row.what, ())):
        value = getattr(row, name)
        if math.isnan(value):
            return f"{name} is empty; every row with {row.what!r} needs it"
        if name in _MORE and not 0 < value <= 1e15:
            return f"{name} is {value:g}; allowed is more than 0"
        if name in ("round", "epochs") and value != int(value):
            return f"{name} is {value:g}; allowed are whole numbers"
    if row.end < row.start:
        return f"it ends {row.start - row.end:g} s before it starts; a clock was set back, or start and end are exchanged"
    return None


_Task: TypeAlias = dict[str, Any]
"""The rows of a task by their word, in order."""


def _tasks_of(name: str, rows: Any, kinds: list[str], refuse: Callable[[str], None]) -> list[_Task]:
    """The tasks of a client that can be used, in order of time; none if these are too few; ``refuse`` is told each problem.

    Of the words in ``kinds`` a task has all up to its last one; a missing one is a hole. Transfers of several tasks may
    overlap, and one may go in pieces at once.
    """
    tasks: list[_Task] = []
    latest: dict[int, _Task] = {}  # by round
    trained: Any = None
    for row in rows.assign(order=rows["what"].map(_ORDER)).sort_values(["start", "order"], kind="stable").itertuples():
        task = latest.get(row.round, {})
        last = next(reversed(task.values()), None)
        if last is not None and row.what == last.what != "train" and row.start < last.end - _TOGETHER_S:
            task[row.what] = last._replace(end=max(last.end, row.end), bytes=last.bytes + row.bytes)  # pieces at once
            continue
        busy = trained if row.what == "train" else None
        for one in (last, busy):
            if one is not None and row.start < one.end - _TOGETHER_S:
                refuse(f"client {name!r} does two things at once: {_told(one)} and {_told(row)}")
                break
        else:
            if last is None or row.order <= last.order:
                if latest and row.round < next(reversed(latest)):
                    refuse(f"client {name!r} does {_told(row)} in a round that is over; rounds are to grow with time")
                latest[row.round] = task = {}
                tasks.append(task)
            task[row.what] = row
            trained = row if row.what == "train" else trained
    whole = []
    for task in tasks:
        there = [what for what in kinds if what in task]
        if there == kinds[: len(there)]:
            whole.append(task)
            continue
        missing = next(what for what in kinds if what not in task)
        refuse(f"client {name!r} has a hole: {_told(task[there[-1]])} without {missing!r} before it in the same round")
    if len(whole) >= 2:
        return whole
    if whole:
        number = next(iter(whole[0].values())).round
        refuse(f"client {name!r} appears once, in round {number}; two tasks at least are needed to tell a device from chance")
    else:
        refuse(f"client {name!r} has no task that can be used")
    return []


def _told(row: Any) -> str:
    place = f", row {row.place}" if row.place else ""
    return f"{row.what!r} of round {row.round} (from {row.start:.6g} to {row.end:.6g} s{place})"


def _tasks(tasks: list[_Task], numbers: dict[str, int], zero: float) -> Tasks:
    tasks = sorted(tasks, key=lambda task: next(iter(task.values())).start)
    steps = []
    for what in _ORDER:
        found = np.full((3, len(tasks)), math.nan)
        for place, row in ((place, task[what]) for place, task in enumerate(tasks) if what in task):
            found[:, place] = row.start - zero, row.end - zero, row.samples if what == "train" else row.bytes
        steps.append(Steps(*found))
    first = [next(iter(task.values())) for task in tasks]
    epochs = [task["train"].epochs if "train" in task else 1 for task in tasks]
    told = [numbers[row.client] for row in first], [row.round for row in first], epochs
    client, number, passes = (np.array(column, dtype=np.int64) for column in told)
    return Tasks(client, number, passes, *steps)


def _rounds(rows: Any, tasks: Tasks, zero: float) -> LoggedRounds:
    """As the server's own rows say; where there are none, from the first start of a round's tasks to their last end."""
    if len(rows):
        rows = rows.sort_values(["start", "end", "round"], kind="stable")
        return LoggedRounds(*(rows[name].to_numpy() - by for name, by in (("round", 0), ("start", zero), ("end", zero))))
    rounds = _spans(tasks)
    return rounds.at(np.argsort(rounds.start, kind="stable"))


def _spans(tasks: Tasks) -> LoggedRounds:
    """When the first task of each round begins and the last one ends, in order of the rounds' numbers."""
    order = np.argsort(tasks.round, kind="stable")
    numbers, first = np.unique(tasks.round[order], return_index=True)
    return LoggedRounds(numbers, np.minimum.reduceat(tasks.start[order], first), np.maximum.reduceat(tasks.end[order], first))


def _is_synchronous(tasks: Tasks) -> bool:
    """Whether in nine of ten cases all tasks of a round are over when the next one begins."""
    rounds = _spans(tasks)
    over = rounds.start[1:] >= rounds.end[:-1] - _TOGETHER_S
    return not len(over) or bool(np.mean(over) >= _MOSTLY)
