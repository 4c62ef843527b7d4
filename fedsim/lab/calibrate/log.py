"""Logs of deployments: a CSV or Parquet file, NVFlare's workspace, a folder of APPFL's logs, or
a run folder of fedsim.

A row is an interval of one client, or of the server:

| column | content |
|---|---|
| ``client`` | any name; of the server's rows anything |
| ``round`` | a whole number: of the round, or of the version of the model that a task began with |
| ``what`` | ``down``, ``train``, ``up``; of the server ``round`` and ``aggregate`` (not used); ``on`` while a client is there |
| ``start``, ``end`` | seconds on one clock, or dates with times |
| ``bytes`` | of a download or upload, payload alone |
| ``samples`` | that a training went through, each pass counted |
| ``epochs`` | passes that it made; 1 if there is no such column |

Rows have any order. A task is a client's download, training and upload, one after the other.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from fedsim.common.arrays import Flags, Floats
from fedsim.common.errors import DataError, nearest, shown
from fedsim.common.files import regular
from fedsim.common.units import CLOCK_END_S
from fedsim.lab.calibrate import foreign

_ORDER = {"down": 0, "train": 1, "up": 2}
_KNOWN = (*_ORDER, "round", "aggregate", "on")
_NEEDED = ("client", "round", "what", "start", "end")
_MORE = ("bytes", "samples", "epochs")
_NEEDS = {
    "down": ("round", "bytes"),
    "train": ("round", "samples", "epochs"),
    "up": ("round", "bytes"),
    "round": ("round",),
}
"""The numbers that a row needs beside its times."""

_MOSTLY = 0.9
_TOGETHER_S = 1e-3  # clocks are read one after another: an overlap of less is none

Tasks: TypeAlias = Any
"""A recarray [tasks] in order of their beginning: ``client`` (from 0 on), the ``number`` of its
round, ``epochs``.

Each has the steps ``down``, ``train`` and ``up``: from ``start`` to ``end`` (s, from the log's
first instant), and the ``amount``, bytes or samples; NaN where a task has none.
"""
_STEP = [("start", float), ("end", float), ("amount", float)]
_TASK = [
    ("client", int),
    ("number", int),
    ("epochs", int),
    ("down", _STEP),
    ("train", _STEP),
    ("up", _STEP),
]


class LogDefaults(NamedTuple):
    """Values of columns that a log lacks."""

    bytes: float | None = None
    samples: int | None = None
    epochs: int | None = None  # 1 if it is not said


def took(steps: Any) -> Floats:
    """Durations of steps (s), [tasks]."""
    seconds: Floats = steps.end - steps.start
    return seconds


def spans(tasks: Tasks) -> tuple[Floats, Floats]:
    """Beginning of each task, and end of its last known step (s), [tasks] each."""
    down = tasks.down
    train = tasks.train
    up = tasks.up
    return np.fmin(down.start, np.fmin(train.start, up.start)), np.fmax(
        down.end, np.fmax(train.end, up.end)
    )


def whole(tasks: Tasks) -> Flags:
    """Whether each task came to the end of its upload, [tasks]."""
    return np.asarray(~np.isnan(tasks.up.end))


@dataclass(frozen=True)
class Log:
    """A log without contradictions."""

    clients: tuple[str, ...]  # their names
    tasks: Tasks
    # a recarray of ``number``, ``start`` and ``end`` (s), in order of time; of an asynchronous
    # server its versions
    rounds: Any
    synchronous: bool  # a round begins only when the one before is over
    # client, start and end (s) of intervals in which it could be reached, if told
    on: tuple[tuple[int, float, float], ...]
    notes: tuple[str, ...]  # for the reader

    @property
    def at_once(self) -> int:
        """Clients in a round, the median; of an asynchronous server the mean number of tasks
        under way at a time.
        """
        if self.synchronous:
            return int(np.median(np.unique(self.tasks.number, return_counts=True)[1]))
        start, end = spans(self.tasks)
        return min(
            len(self.clients), max(1, round(float((end - start).sum() / (end.max() - start.min()))))
        )

    @property
    def per_version(self) -> int:
        """Median number of updates between two versions."""
        ends = np.sort(self.tasks.up.end[whole(self.tasks)])
        first, last = (
            np.searchsorted(ends, edges, side="right")
            for edges in (self.rounds.start, self.rounds.end)
        )
        return max(1, int(np.median(last - first)))


def read_log(path: Path, defaults: LogDefaults) -> Log:
    """Read a log; ``DataError``: it is missing, malformed, or contradicts itself;
    ``RunFolderError``: a damaged run folder.
    """
    where = f"the log {str(path)!r}"
    notes = list[str]()
    rows = foreign.rows_of(
        path, where, defaults.bytes, defaults.samples, defaults.epochs or 1, notes
    )
    is_run = rows is None and path.is_dir()
    if is_run:
        notes += [
            f"--{name} is not used: a run folder has its own"
            for name in _MORE
            if getattr(defaults, name) is not None
        ]
    if rows is None:
        rows = foreign.of_run(path) if is_run else _of_file(path, where, defaults, notes)
    steps = rows[rows["what"].isin(_ORDER)]
    if not {"down", "up"} & set(steps["what"]) or "train" not in set(steps["what"]):
        raise DataError(
            f"{where} has no training, or no transfer; both are needed to fit devices and links"
        )
    kinds = [] if is_run else [what for what in _ORDER if what in set(steps["what"])]
    by_client = dict(list(steps.groupby("client")))
    names = sorted(by_client, key=_in_order)
    found = {name: _tasks_of(f"{where}: client {name!r}", by_client[name], kinds) for name in names}
    kept = {name: own for name, own in found.items() if len(own) > 1}
    if not kept:
        raise DataError(f"{where} holds no client with two tasks")
    if few := [name for name in names if name not in kept]:
        notes.append(
            f"left out: {len(few)} clients with one task, which tells no device from chance: "
            f"{shown(', '.join(few))}"
        )
    zero = rows["start"].min()
    places = {name: at for at, name in enumerate(kept)}
    tasks = _tasks([task for own in kept.values() for task in own], places, zero)
    if torn := len(tasks) - int(whole(tasks).sum()):
        notes.append(
            f"{torn} of {len(tasks)} tasks did not come to the end of an upload; no deadline "
            "or loss is fitted"
        )
    on = rows[(rows["what"] == "on") & rows["client"].isin(kept)].sort_values(
        "start", kind="stable"
    )
    server = rows[rows["what"] == "round"].sort_values(["start", "end", "round"])
    start, end = spans(tasks)
    times = pd.DataFrame({"number": tasks.number, "start": start, "end": end}).groupby("number")
    of_tasks = times.agg({"start": "min", "end": "max"}).to_records()
    rounds = of_tasks[np.argsort(of_tasks.start, kind="stable")]
    if len(server):
        columns = {
            "number": server["round"],
            "start": server["start"] - zero,
            "end": server["end"] - zero,
        }
        rounds = pd.DataFrame(columns).to_records(index=False)
    over = of_tasks.start[1:] >= of_tasks.end[:-1] - _TOGETHER_S  # when the next one begins
    return Log(
        clients=tuple(kept),
        tasks=tasks,
        rounds=rounds,
        synchronous=not len(over) or bool(np.mean(over) >= _MOSTLY),
        on=tuple(zip(on["client"].map(places), on["start"] - zero, on["end"] - zero, strict=True)),
        notes=tuple(notes),
    )


def _in_order(name: str) -> tuple[bool, int, str, str]:
    """Numbers first, by their value: without ``int``, which refuses very long ones."""
    digits = name.lstrip("0") if name.isdecimal() else ""
    return not name.isdecimal(), len(digits), digits, name


def _of_file(path: Path, where: str, defaults: LogDefaults, notes: list[str]) -> Any:
    """The data frame of a log file, with ``place``: the number of the row, from 1."""
    table = _table(path, where)
    names = list(table.columns)
    for name in _NEEDED:
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r}; it has {', '.join(names)}{nearest(name, names)}"
            )
    strange = [name for name in names if name not in _NEEDED + _MORE]
    for name in strange:
        if meant := nearest(name, [more for more in _MORE if more not in names]):
            raise DataError(
                f"{where} has the unknown column {name!r}; known are "
                f"{', '.join(_NEEDED + _MORE)}{meant}"
            )
    if table.empty:
        raise DataError(f"{where} has no rows")
    if strange:
        notes.append(f"columns that are not used: {', '.join(strange)}")
    unused = [name for name in _MORE if name in names and getattr(defaults, name) is not None]
    notes += [f"--{name} is not used: the log has such a column" for name in unused]
    rows = pd.DataFrame({"place": table.index + 1, "client": table["client"]})
    rows["what"] = table["what"].replace({"download": "down", "upload": "up"})
    needed = {name for what in set(rows["what"]) for name in _NEEDS.get(what, ())}
    for name in ("start", "end", "round", *_MORE):
        usual = 1 if name == "epochs" and defaults.epochs is None else getattr(defaults, name, None)
        if name in table:
            rows[name] = _numbers(table[name], or_dates=name in ("start", "end"))
            for row in np.flatnonzero(~np.isfinite(rows[name]) & (table[name] != ""))[:1]:
                raise DataError(
                    f"row {row + 1} of {where}: {name} is {shown(table[name][row])}, which "
                    "cannot be read"
                )
        elif usual is not None or name not in needed:
            rows[name] = np.nan if usual is None else float(usual)
        else:
            such = "--bytes '2 MB'" if name == "bytes" else "--samples 60"
            raise DataError(
                f"{where} has no column {name!r}; add one, or say with --{name} what is the "
                f"same in all rows, such as {such}"
            )
    for row in rows.itertuples():
        if problem := _problem(row):
            raise DataError(f"row {row.place} of {where}: {problem}")
    return rows.fillna({"round": 0, "epochs": 0}).astype({"round": np.int64, "epochs": np.int64})


def _table(path: Path, where: str) -> Any:
    """The columns of a file as text."""
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(regular(path))
        else:
            table = pd.read_csv(
                regular(path), dtype=str, skipinitialspace=True, encoding="utf-8-sig"
            )
    except FileNotFoundError:
        raise DataError(
            f"there is no log {str(path)!r}; give a CSV or Parquet file, or a run folder"
        ) from None
    except (OSError, ValueError, pd.errors.ParserError, pa.ArrowException) as error:
        raise DataError(f"{where} cannot be read: {str(error).splitlines()[0]}") from None
    table = table.rename(columns=lambda name: str(name).strip()).reset_index(drop=True)
    return table.map(lambda cell: "" if pd.isna(cell) else str(cell).strip())


def _numbers(texts: Any, or_dates: bool) -> Any:
    """Numbers, NaN where a text is none; dates as seconds since 1970."""
    if or_dates and re.match(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]", next(filter(None, texts), "")):
        dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
        return (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return pd.to_numeric(texts, errors="coerce").astype(np.float64)


def _problem(row: Any) -> str | None:
    if row.what not in _KNOWN:
        return (
            f"what is {shown(row.what)}; allowed are {', '.join(_KNOWN)}{nearest(row.what, _KNOWN)}"
        )
    if row.what in (*_ORDER, "on") and not row.client:
        return "client is empty"
    for name in ("start", "end", *_NEEDS.get(row.what, ())):
        value = getattr(row, name)
        if math.isnan(value):
            return f"{name} is empty; every row with {row.what!r} needs it"
        if name in ("start", "end") and abs(value) > CLOCK_END_S:
            return f"{name} is {value:g}; allowed are seconds up to {CLOCK_END_S:g} (are these ms?)"
        if name in _MORE and not 0 < value <= 1e15:
            return f"{name} is {value:g}; allowed is more than 0"
        if name in ("round", "epochs") and not (value == int(value) and abs(value) <= 1e15):
            return f"{name} is {value:g}; allowed are whole numbers up to 1e15"
    if row.end < row.start:
        return (
            f"it ends {row.start - row.end:g} s before it starts; a clock was set back, or start "
            "and end are exchanged"
        )
    return None


_Task: TypeAlias = dict[str, Any]
"""The rows of a task by their word, in order."""


def _tasks_of(whose: str, rows: Any, kinds: list[str]) -> list[_Task]:
    """The tasks of a client, in order of time.

    Of the words in ``kinds`` a task has all up to its last one; a missing one is refused.
    Transfers of several tasks may overlap, and one may go in pieces at once.
    """
    tasks: list[_Task] = []
    latest: dict[int, _Task] = {}  # by round
    trained: Any = None
    for row in (
        rows.assign(order=rows["what"].map(_ORDER))
        .sort_values(["start", "order"], kind="stable")
        .itertuples()
    ):
        task = latest.get(row.round, {})
        last = next(reversed(task.values()), None)
        if (
            last is not None
            and row.what == last.what != "train"
            and row.start < last.end - _TOGETHER_S
        ):
            # pieces at once
            task[row.what] = last._replace(end=max(last.end, row.end), bytes=last.bytes + row.bytes)
            continue
        for one in (last, trained if row.what == "train" else None):
            if one is not None and row.start < one.end - _TOGETHER_S:
                raise DataError(f"{whose} does two things at once: {_named(one)} and {_named(row)}")
        if last is None or row.order <= last.order:
            if latest and row.round < next(reversed(latest)):
                raise DataError(
                    f"{whose} does {_named(row)} in a round that is over; rounds are to grow "
                    "with time"
                )
            latest[row.round] = task = {}
            tasks.append(task)
        task[row.what] = row
        trained = row if row.what == "train" else trained
    for task in tasks:
        there = [what for what in kinds if what in task]
        if there != kinds[: len(there)]:
            missing = next(what for what in kinds if what not in task)
            raise DataError(
                f"{whose} has a hole: {_named(task[there[-1]])} without {missing!r} before it "
                "in the same round"
            )
    return tasks


def _named(row: Any) -> str:
    place = f", row {row.place}" if row.place else ""
    return f"{row.what!r} of round {row.round} (from {row.start:.6g} to {row.end:.6g} s{place})"


def _tasks(tasks: list[_Task], numbers: dict[str, int], zero: float) -> Tasks:
    found = []
    for task in sorted(tasks, key=lambda task: next(iter(task.values())).start):
        first = next(iter(task.values()))
        steps = dict.fromkeys(_ORDER, (math.nan,) * 3)
        for what, row in task.items():
            steps[what] = (
                row.start - zero,
                row.end - zero,
                row.samples if what == "train" else row.bytes,
            )
        found.append(
            (
                numbers[first.client],
                first.round,
                task["train"].epochs if "train" in task else 1,
                *steps.values(),
            )
        )
    return np.array(found, dtype=_TASK).view(np.recarray)
