"""Reader for logs of deployments: CSV, Parquet, NVFlare, APPFL, or a run folder of fedsim.

A row is an interval of one client, or of the server:

| column | content |
|---|---|
| ``client`` | name of the client; ignored in rows of the server |
| ``round`` | whole number of the round, or of the model version with which a task began |
| ``what`` | ``down``, ``train``, ``up``, or ``on`` (client is online); for the server ``round`` and ``aggregate`` (not used) |
| ``start``, ``end`` | seconds on one clock, or dates with times |
| ``bytes`` | payload of a download or upload |
| ``samples`` | samples that a training processed, summed over its epochs |
| ``epochs`` | count of epochs of a training; 1 if there is no such column |

Rows have any order. A task is a client's download, training and upload, in sequence.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from fedsim.common.errors import DataError, nearest, show_value
from fedsim.common.files import require_regular
from fedsim.common.round_words import counted
from fedsim.common.units import CLOCK_END_S
from fedsim.lab.calibrate import foreign
from fedsim.lab.calibrate.tasks import Rounds, Tasks, has_ended, spans

_STEP_ORDER = {"down": 0, "train": 1, "up": 2}
_KINDS = (*_STEP_ORDER, "round", "aggregate", "on")
_REQUIRED_COLUMNS = ("client", "round", "what", "start", "end")
_OPTIONAL_COLUMNS = ("bytes", "samples", "epochs")
_KNOWN_COLUMNS = _REQUIRED_COLUMNS + _OPTIONAL_COLUMNS
_COLUMNS_OF_KIND = {
    "down": ("round", "bytes"),
    "train": ("round", "samples", "epochs"),
    "up": ("round", "bytes"),
    "round": ("round",),
}
"""Dict from kind of row (``what``) to the columns that it needs in addition to its times."""

# a server is synchronous if at least this share of its rounds is over when the next round begins
_LEAST_SEQUENTIAL = 0.9
# longest overlap (s) that is ignored, because clocks are read one after another
_IGNORED_OVERLAP_S = 1e-3
_GREATEST = 1e15  # greatest number in a log; float64 has all whole numbers up to there


class _Row(Protocol):
    """Row of a log; ``row_number`` counts from 1, and is 0 if the row is from no file."""

    row_number: int
    client: str
    round: int
    what: str
    start: float
    end: float
    bytes: float
    samples: float
    epochs: int
    order: int

    def _replace(self, **fields: float) -> "_Row": ...


_Task: TypeAlias = dict[str, _Row]
"""Rows of a task, as an ordered dict from kind of step (``what``) to row."""

_STEP_TYPE = [("start", float), ("end", float), ("amount", float)]
_TASK_TYPE = [
    ("client", int),
    ("number", int),
    ("epochs", int),
    ("down", _STEP_TYPE),
    ("train", _STEP_TYPE),
    ("up", _STEP_TYPE),
]


class LogDefaults(NamedTuple):
    """Values for optional columns that the log of a deployment may lack, the same for all rows.

    Attributes:
        bytes: size of a message (bytes); None if the log has to have the column ``bytes``.
        samples: samples of a training; None if the log has to have the column ``samples``.
        epochs: epochs of a training; None counts as 1.
    """

    bytes: float | None = None
    samples: int | None = None
    epochs: int | None = None

    @property
    def names(self) -> list[str]:
        """Names of the optional columns for which a value is given."""
        return [name for name in _OPTIONAL_COLUMNS if getattr(self, name) is not None]


@dataclass(frozen=True)
class Log:
    """Log of a deployment's tasks, parsed and checked, to fit clients' speeds and links to it.

    Attributes:
        clients: names of the clients that have at least two tasks; tasks refer to a client by its
            index in this tuple.
        tasks: tasks of these clients, each a download, a training and an upload.
        rounds: rounds in order of time, or versions if the server is asynchronous.
        synchronous: whether rounds begin only when the previous round is over; judged by the tasks'
            times, and true if this holds for at least 90 % of the rounds.
        on: client index, start and end (s) of each online interval; empty if the log has none.
        notes: sentences for the user, for example on rows that were not used.
    """

    clients: tuple[str, ...]
    tasks: Tasks
    rounds: Rounds
    synchronous: bool
    on: tuple[tuple[int, float, float], ...]
    notes: tuple[str, ...]

    @property
    def at_once(self) -> int:
        """Count of clients that work at the same time.

        It is the median count of clients in a round; with an asynchronous server, the mean count of
        running tasks.
        """
        if self.synchronous:
            return int(np.median(np.unique(self.tasks.number, return_counts=True)[1]))
        start, end = spans(self.tasks)
        running = float((end - start).sum() / (end.max() - start.min()))
        return min(len(self.clients), max(1, round(running)))

    @property
    def per_version(self) -> int:
        """Median count of updates that an asynchronous server receives per model version."""
        ends = np.sort(self.tasks.up.end[has_ended(self.tasks)])
        first = np.searchsorted(ends, self.rounds.start, side="right")
        last = np.searchsorted(ends, self.rounds.end, side="right")
        return max(1, int(np.median(last - first)))


def read_log(path: Path, defaults: LogDefaults) -> Log:
    """Read and check the log of a deployment: the times and sizes of its clients' tasks.

    Args:
        path: CSV or Parquet file, log or folder of logs of NVFlare or APPFL, or run folder.
        defaults: values for columns that the log lacks.

    Returns:
        The log, without clients that have a single task. Its times count from the earliest start of
        a row (s).

    Raises:
        DataError: the log is missing, malformed, or contradicts itself.
        RunFolderError: a run folder is damaged.
    """
    where = f"the log {str(path)!r}"
    notes = list[str]()
    epochs = defaults.epochs or 1
    # None if the log is not of another framework
    rows = foreign.read_logs(path, where, defaults.bytes, defaults.samples, epochs, notes)
    is_run = rows is None and path.is_dir()
    if is_run:
        notes += [f"--{name} is not used: a run folder has its own" for name in defaults.names]
        rows = foreign.read_run_folder(path)
    elif rows is None:
        rows = _read_file(path, where, defaults, notes)
    tasks_by_client = _tasks_by_client(rows, where, is_run, notes)
    first_start = rows["start"].min()
    client_indices = {name: index for index, name in enumerate(tasks_by_client)}
    all_tasks = [task for tasks in tasks_by_client.values() for task in tasks]
    tasks = _build_tasks(all_tasks, client_indices, first_start)
    unended = len(tasks) - int(has_ended(tasks).sum())
    if unended:
        notes.append(
            f"{unended} of {counted(len(tasks), 'task')} did not come to the end of an upload; no "
            "deadline or loss is fitted"
        )
    spans_of_tasks = _find_round_spans(tasks)
    return Log(
        clients=tuple(tasks_by_client),
        tasks=tasks,
        rounds=_read_rounds(rows, first_start, spans_of_tasks),
        synchronous=_is_synchronous(spans_of_tasks),
        on=_read_online_phases(rows, client_indices, first_start),
        notes=tuple(notes),
    )


def _read_online_phases(
    rows: pd.DataFrame, client_indices: Mapping[str, int], first_start: float
) -> tuple[tuple[int, float, float], ...]:
    """Return the intervals in which clients are online by the log, sorted by their start.

    Args:
        rows: the log's rows.
        client_indices: index of each client by its name. Rows of other clients are not used.
        first_start: time in the log that becomes 0 s.

    Returns:
        Index of the client, start and end (s) of each interval; empty if the log has none.
    """
    online = rows[(rows["what"] == "on") & rows["client"].isin(client_indices)]
    online = online.sort_values("start", kind="stable")
    clients = online["client"].map(client_indices)
    starts = online["start"] - first_start
    ends = online["end"] - first_start
    return tuple(zip(clients, starts, ends, strict=True))


def _tasks_by_client(
    rows: pd.DataFrame, where: str, is_run: bool, notes: list[str]
) -> dict[str, list[_Task]]:
    """Group a log's rows into tasks, and drop clients with a single task.

    Args:
        rows: DataFrame of the log.
        where: description of the log, for error messages.
        is_run: whether the log is a run folder, whose tasks may lack steps.
        notes: list to which a note about dropped clients is appended.

    Returns:
        Dict from name of a client, sorted, to its tasks in order of time.

    Raises:
        DataError: the log lacks trainings or transfers, no client has two tasks, or the steps of a
            client contradict each other.
    """
    steps = rows[rows["what"].isin(_STEP_ORDER)]
    kinds = set(steps["what"])
    if not {"down", "up"} & kinds or "train" not in kinds:
        raise DataError(
            f"{where} has no training, or no transfer; both are needed to fit devices and links"
        )
    complete_kinds = [] if is_run else [kind for kind in _STEP_ORDER if kind in kinds]
    rows_by_client = {str(name): rows_of_client for name, rows_of_client in steps.groupby("client")}
    tasks_by_client = {}
    single_task_clients = []
    for name in sorted(rows_by_client, key=_sort_key):
        tasks = _split_into_tasks(f"{where}: client {name!r}", rows_by_client[name], complete_kinds)
        if len(tasks) > 1:
            tasks_by_client[name] = tasks
        else:
            single_task_clients.append(name)
    if not tasks_by_client:
        raise DataError(f"{where} holds no client with two tasks")
    if single_task_clients:
        notes.append(
            f"left out: {counted(len(single_task_clients), 'client')} with one task, which tells "
            f"no device from chance: {show_value(', '.join(single_task_clients))}"
        )
    return tasks_by_client


def _find_round_spans(tasks: Tasks) -> Rounds:
    """Return the rounds of a log, each from the first begin to the last end of its tasks."""
    start, end = spans(tasks)
    times = pd.DataFrame({"number": tasks.number, "start": start, "end": end})
    extents = times.groupby("number").agg({"start": "min", "end": "max"})
    return cast(Rounds, extents.to_records())


def _read_rounds(rows: pd.DataFrame, first_start: float, spans_of_tasks: Rounds) -> Rounds:
    """Return the rounds of a log, sorted by their start.

    Their times are the times of the server's rows. A log without such rows gets its rounds from the
    times of its tasks.

    Args:
        rows: the log's rows.
        first_start: time in the log that becomes 0 s.
        spans_of_tasks: rounds from the first to the last step of their tasks.
    """
    server = rows[rows["what"] == "round"].sort_values(["start", "end", "round"])
    if not len(server):
        return spans_of_tasks[np.argsort(spans_of_tasks.start, kind="stable")]
    columns = {
        "number": server["round"],
        "start": server["start"] - first_start,
        "end": server["end"] - first_start,
    }
    return cast(Rounds, pd.DataFrame(columns).to_records(index=False))


def _is_synchronous(spans_of_tasks: Rounds) -> bool:
    """Whether nearly every round (at least 90 %) is over when the next one begins."""
    is_over = spans_of_tasks.start[1:] >= spans_of_tasks.end[:-1] - _IGNORED_OVERLAP_S
    return not len(is_over) or bool(np.mean(is_over) >= _LEAST_SEQUENTIAL)


def _sort_key(name: str) -> tuple[bool, int, str, str]:
    """Return a key that sorts numeric names by value, before all other names.

    Long numbers are compared as text, because ``int`` refuses them.
    """
    digits = name.lstrip("0") if name.isdecimal() else ""
    return not name.isdecimal(), len(digits), digits, name


def _read_file(path: Path, where: str, defaults: LogDefaults, notes: list[str]) -> pd.DataFrame:
    """Read and check a CSV or Parquet file with the log of a deployment.

    Args:
        path: the file.
        where: description of the log, for error messages.
        defaults: values for columns that the log lacks.
        notes: list to which notes on unused columns and defaults are appended.

    Returns:
        DataFrame of the log's rows, with the row number from 1 as ``row_number``.

    Raises:
        DataError: the file cannot be read, a column is missing, or a cell is wrong.
    """
    table = _read_texts(path, where)
    names = list(table.columns)
    _check_columns(names, where)
    if table.empty:
        raise DataError(f"{where} has no rows")
    unused_columns = [name for name in names if name not in _KNOWN_COLUMNS]
    if unused_columns:
        notes.append(f"columns that are not used: {', '.join(unused_columns)}")
    unused_defaults = [name for name in defaults.names if name in names]
    notes += [f"--{name} is not used: the log has such a column" for name in unused_defaults]
    rows = pd.DataFrame({"row_number": table.index + 1, "client": table["client"]})
    rows["what"] = table["what"].replace({"download": "down", "upload": "up"})
    # columns that some row needs, by the kinds of rows that there are
    required = {name for kind in set(rows["what"]) for name in _COLUMNS_OF_KIND.get(kind, ())}
    for name in ("start", "end", "round", *_OPTIONAL_COLUMNS):
        if name in table:
            rows[name] = _parse_numbers(table[name], name, where)
        else:
            rows[name] = _find_default(name, defaults, name in required, where)
    for row in _iterate(rows):
        problem = _find_problem(row)
        if problem is not None:
            raise DataError(f"row {row.row_number} of {where}: {problem}")
    return rows.fillna({"round": 0, "epochs": 0}).astype({"round": np.int64, "epochs": np.int64})


def _check_columns(names: list[str], where: str) -> None:
    """Raise ``DataError`` if a necessary column is missing, or an optional one is misspelt."""
    for name in _REQUIRED_COLUMNS:
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r}; it has {', '.join(names)}{nearest(name, names)}"
            )
    absent = [name for name in _OPTIONAL_COLUMNS if name not in names]
    for name in names:
        if name in _KNOWN_COLUMNS:
            continue
        hint = nearest(name, absent)
        if hint:
            raise DataError(
                f"{where} has the unknown column {name!r}; known are "
                f"{', '.join(_KNOWN_COLUMNS)}{hint}"
            )


def _find_default(name: str, defaults: LogDefaults, is_required: bool, where: str) -> float:
    """Return the value that replaces an absent column of a log; NaN if no row needs the column.

    Args:
        name: name of the column.
        defaults: the user's values for absent columns; 1 for epochs if the user has given none.
        is_required: whether any row needs the column.
        where: description of the log, for error messages.

    Raises:
        DataError: a row needs the column, and it has no default.
    """
    value = getattr(defaults, name, None)
    if name == "epochs" and value is None:
        value = 1
    if value is not None:
        return float(value)
    if not is_required:
        return math.nan
    example = "--bytes '2 MB'" if name == "bytes" else "--samples 60"
    raise DataError(
        f"{where} has no column {name!r}; add one, or say with --{name} what is the "
        f"same in all rows, such as {example}"
    )


def _parse_numbers(texts: "pd.Series[str]", name: str, where: str) -> "pd.Series[float]":
    """Parse a column of numbers, or of dates for ``start`` and ``end``; NaN for empty cells.

    Raises:
        DataError: a cell cannot be parsed.
    """
    numbers = _convert(texts, or_dates=name in ("start", "end"))
    wrong = np.flatnonzero(~np.isfinite(numbers) & (texts != ""))
    if len(wrong):
        row = wrong[0]
        raise DataError(
            f"row {row + 1} of {where}: {name} is {show_value(texts[row])}, which cannot be read"
        )
    return numbers


def _read_texts(path: Path, where: str) -> pd.DataFrame:
    """Read a CSV or Parquet file as a DataFrame of stripped texts, ``""`` for empty cells.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(require_regular(path))
        else:
            table = pd.read_csv(
                require_regular(path), dtype=str, skipinitialspace=True, encoding="utf-8-sig"
            )
    except FileNotFoundError:
        raise DataError(
            f"there is no log {str(path)!r}; give a CSV or Parquet file, or a run folder"
        ) from None
    except (OSError, ValueError, pd.errors.ParserError, pa.ArrowException) as error:
        raise DataError(f"{where} cannot be read: {str(error).splitlines()[0]}") from None
    table = table.rename(columns=lambda name: str(name).strip()).reset_index(drop=True)
    return table.map(lambda cell: "" if pd.isna(cell) else str(cell).strip())


def _convert(texts: "pd.Series[str]", or_dates: bool) -> "pd.Series[float]":
    """Convert texts to numbers; NaN for a text that is no number.

    Args:
        texts: the texts.
        or_dates: whether the texts may be dates with times instead, which become seconds since
            1970. The first text that is not empty decides.
    """
    if or_dates and re.match(r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]", next(filter(None, texts), "")):
        dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
        return (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return pd.to_numeric(texts, errors="coerce").astype(np.float64)


def _iterate(rows: pd.DataFrame) -> Iterable[_Row]:
    return cast(Iterable[_Row], rows.itertuples())


def _find_problem(row: _Row) -> str | None:
    """Return a sentence on why a row of a log cannot be used; None if the row can be used."""
    if row.what not in _KINDS:
        hint = nearest(row.what, _KINDS)
        return f"what is {show_value(row.what)}; allowed are {', '.join(_KINDS)}{hint}"
    if row.what in (*_STEP_ORDER, "on") and not row.client:
        return "client is empty"
    for name in ("start", "end", *_COLUMNS_OF_KIND.get(row.what, ())):
        value = getattr(row, name)
        if math.isnan(value):
            return f"{name} is empty; every row with {row.what!r} needs it"
        if name in ("start", "end") and abs(value) > CLOCK_END_S:
            return f"{name} is {value:g}; allowed are seconds up to {CLOCK_END_S:g} (are these ms?)"
        if name in _OPTIONAL_COLUMNS and not 0 < value <= _GREATEST:
            return f"{name} is {value:g}; allowed is more than 0"
        if name in ("round", "epochs") and not (value == int(value) and abs(value) <= _GREATEST):
            return f"{name} is {value:g}; allowed are whole numbers up to 1e15"
    if row.end < row.start:
        return (
            f"it ends {row.start - row.end:g} s before it starts; a clock was set back, or start "
            "and end are exchanged"
        )
    return None


def _split_into_tasks(client: str, rows: pd.DataFrame, complete_kinds: list[str]) -> list[_Task]:
    """Group a client's rows into tasks, in order of time.

    Transfers of several tasks may overlap, and one transfer may be sent in simultaneous pieces,
    which are joined.

    Args:
        client: log and name of the client, for error messages.
        rows: rows of the client's steps.
        complete_kinds: kinds of steps in their order. A task may end early, but it must have every
            kind that precedes its last step.

    Raises:
        DataError: two trainings, or two steps of a task, overlap; a step is missing; or a step
            belongs to a round that is over.
    """
    tasks: list[_Task] = []
    last_task_of_round: dict[int, _Task] = {}  # rounds in the order of their first tasks
    last_training: _Row | None = None
    ordered = rows.assign(order=rows["what"].map(_STEP_ORDER))
    for row in _iterate(ordered.sort_values(["start", "order"], kind="stable")):
        task = last_task_of_round.get(row.round, {})
        last_step = next(reversed(task.values()), None)
        if last_step is not None and _are_pieces(last_step, row):
            task[row.what] = _join_pieces(last_step, row)
            continue
        _check_overlap(client, last_step, row)
        if row.what == "train":
            _check_overlap(client, last_training, row)
            last_training = row
        begins_task = last_step is None or row.order <= last_step.order
        if begins_task:
            latest_round = next(reversed(last_task_of_round), row.round)
            if row.round < latest_round:
                raise DataError(
                    f"{client} does {_describe(row)} in a round that is over; rounds are to grow "
                    "with time"
                )
            task = {}
            last_task_of_round[row.round] = task
            tasks.append(task)
        task[row.what] = row
    for task in tasks:
        _check_complete(client, task, complete_kinds)
    return tasks


def _are_pieces(earlier: _Row, later: _Row) -> bool:
    """Whether two rows of a client are pieces of one transfer, which overlap in time."""
    return later.what == earlier.what != "train" and _overlap(earlier, later)


def _join_pieces(earlier: _Row, later: _Row) -> _Row:
    """Return the row of the whole transfer of which two rows are pieces."""
    end = max(earlier.end, later.end)
    return earlier._replace(end=end, bytes=earlier.bytes + later.bytes)


def _overlap(earlier: _Row, later: _Row) -> bool:
    return bool(later.start < earlier.end - _IGNORED_OVERLAP_S)


def _check_overlap(client: str, earlier: _Row | None, later: _Row) -> None:
    """Raise ``DataError`` if two rows of a client overlap in time by more than a millisecond.

    Args:
        client: log and name of the client, for the error message.
        earlier: the row that starts first; None if there is none, which is no error.
        later: the row that starts later.
    """
    if earlier is not None and _overlap(earlier, later):
        raise DataError(
            f"{client} does two things at once: {_describe(earlier)} and {_describe(later)}"
        )


def _check_complete(client: str, task: _Task, complete_kinds: list[str]) -> None:
    """Raise ``DataError`` if a task lacks a step that has to come before its last step.

    Args:
        client: log and name of the client, for the error message.
        task: rows of the task by kind of step, such as ``train``.
        complete_kinds: all kinds of steps of a whole task, in order.
    """
    steps = [kind for kind in complete_kinds if kind in task]
    if steps == complete_kinds[: len(steps)]:
        return
    missing = next(kind for kind in complete_kinds if kind not in task)
    raise DataError(
        f"{client} has a hole: {_describe(task[steps[-1]])} without {missing!r} before it "
        "in the same round"
    )


def _describe(row: _Row) -> str:
    """Return step, round, times and row number of a log's row, as text for an error message."""
    row_text = f", row {row.row_number}" if row.row_number else ""
    return f"{row.what!r} of round {row.round} (from {row.start:.6g} to {row.end:.6g} s{row_text})"


def _build_tasks(tasks: list[_Task], client_indices: dict[str, int], first_start: float) -> Tasks:
    """Convert tasks from dicts of rows to a record array of numpy, sorted by the tasks' starts.

    Args:
        tasks: the tasks of all clients.
        client_indices: dict from name of a client to its index.
        first_start: time in the log that becomes 0 s.
    """

    def first_step(task: _Task) -> _Row:
        return next(iter(task.values()))

    records = []
    for task in sorted(tasks, key=lambda task: first_step(task).start):
        client = client_indices[first_step(task).client]
        epochs = task["train"].epochs if "train" in task else 1
        # start (s), end (s) and amount of each kind of step; NaN for a step that the task lacks
        steps = dict.fromkeys(_STEP_ORDER, (math.nan, math.nan, math.nan))
        for kind, row in task.items():
            amount = row.samples if kind == "train" else row.bytes
            steps[kind] = row.start - first_start, row.end - first_start, amount
        records.append((client, first_step(task).round, epochs, *steps.values()))
    return cast(Tasks, np.array(records, dtype=_TASK_TYPE).view(np.recarray))
