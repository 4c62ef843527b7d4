"""Readers for logs of other frameworks, and for run folders of fedsim, as rows of a log.

These are the logs of NVFlare's clients (``site-1/log.txt`` and so on), and of APPFL's server and
clients (``result_Server_*.txt``, ``result_Client1_*.txt``). Flower's server logs nothing about
single clients.

A client of NVFlare logs when it has received a task and when it has sent the result, with bytes and
duration. It trains in between.

A client of APPFL logs each epoch at its end, with its duration, and the server logs the arrival of
each update. An upload begins when the training has ended. If the server waits for all clients, the
next download begins when the last update of the round has arrived; otherwise, it begins when this
client's update has arrived. The download ends when the next training begins.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedsim.common.errors import DataError, show_value
from fedsim.common.files import parse_json, read_text
from fedsim.records.reading import RunFolder

_COLUMNS = ["row_number", "client", "round", "what", "start", "end", "bytes", "epochs"]
_STEPS = {"download": "down", "train": "train", "upload": "up"}
_SUFFIXES = (".txt", ".log")
_NAMES = ("log.txt", "log_fl.txt")
_DATE = r"([12]\d{3}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})"
_NVFLARE = re.compile(rf"^{_DATE}.*?(getTask: train|SubmitUpdate size)")
_BYTES = re.compile(r"(?<!\d)(\d{1,15}) Bytes")
_TIME = re.compile(r"time: (\d{1,15}(?:\.\d{0,30})?(?:[eE][+-]?\d{1,2})?) seconds")
_APPFL = re.compile(rf"\[{_DATE}(?: (?:INFO|DEBUG))? ([^\]]{{1,200}})\]: (.*)")
_FLOWER = re.compile(r"\[ROUND \d{1,15}\]|configure_fit|aggregate_fit")
_UPDATE = "Received UpdateGlobalModel request from client "
_MOST_DIGITS = 15
_LONGEST_LINE = 10_000  # upper bound of the characters that are read from a line


def read_logs(
    path: Path, where: str, size: float | None, samples: int | None, epochs: int, notes: list[str]
) -> pd.DataFrame | None:
    """Read logs of the frameworks NVFlare or APPFL as rows of a deployment's log.

    A row is the download, training or upload of a client.

    Args:
        path: log file, or folder of logs.
        where: description of the logs, for error messages.
        size: size of a message (bytes), for logs without bytes.
        samples: count of samples of a training, for logs without samples.
        epochs: count of epochs of a training, for logs without epochs.
        notes: list to which a note for the user is appended.

    Returns:
        DataFrame with ``client``, ``round``, ``what`` (``down``, ``train`` or ``up``), ``start``
        and ``end`` (s since 1970), ``bytes``, ``samples`` and ``epochs``; None if ``path`` has no
        such logs.

    Raises:
        DataError: the log is of Flower's server, which logs no times of clients; ``samples`` is
            None; ``size`` is None and the logs are of APPFL; the logs of APPFL contradict each
            other; or a file cannot be read.
    """
    rows: pd.DataFrame | None
    try:
        _reject_flower_log(path, where)
        framework = "NVFlare"
        rows = pd.DataFrame(_read_nvflare(path, epochs), columns=_COLUMNS)
        if rows.empty and path.is_dir():
            framework = "APPFL"
            rows = _read_appfl(path, where, size, epochs)
    except OSError as error:
        raise DataError(
            f"{where}: {str(error.filename or path)!r} cannot be read: {error.strerror}"
        ) from None
    if rows is None or rows.empty:
        return None
    if samples is None:
        raise DataError(
            f"{where} is {framework}'s, which logs no samples; say how many a training has, such "
            "as --samples 60"
        )
    if framework == "NVFlare":
        notes.append(
            f"read as {rows['client'].nunique()} logs of NVFlare: rounds are counted, a training "
            "is the time between two messages"
        )
    else:
        notes.append(
            "read as logs of APPFL: the first round is left out, since nothing tells its download; "
            "clocks are taken to agree, and a download has in it what a client does before its "
            "training (validation)"
        )
    return rows.assign(samples=float(samples))


def _reject_flower_log(path: Path, where: str) -> None:
    if path.is_file() and path.suffix in _SUFFIXES and _FLOWER.search(_read_log(path)):
        raise DataError(
            f"{where} is what Flower's server says of its rounds: no client's download, training "
            "or upload is in it; write these as rows of a CSV file, or run the app by fedsim"
        )


def _read_log(path: Path) -> str:
    return read_text(path, errors="replace")


def _number_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line numbers, from 1, and the lines of a log."""
    for line_number, line in enumerate(_read_log(path).splitlines(), 1):
        yield line_number, line[:_LONGEST_LINE]


def _parse_date(path: Path, line_number: int, date: str) -> float:
    """Return a date of a log as seconds since 1970.

    Raises:
        DataError: the date does not exist.
    """
    try:
        return datetime.strptime(date, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise DataError(
            f"line {line_number} of {str(path)!r} has the date {date!r}, which there is not"
        ) from None


def _read_nvflare(path: Path, epochs: int) -> Iterator[tuple[object, ...]]:
    """Yield downloads, trainings and uploads in logs of NVFlare, with the cells of ``_COLUMNS``.

    A client is named after the folder of its log, or after the file of a single log.

    Args:
        path: log of a client, or folder of logs; nothing is yielded if it has no such logs.
        epochs: count of epochs of a training.
    """
    logs = [path] if path.suffix in _SUFFIXES and path.is_file() else []
    if path.is_dir():
        logs = sorted(log for name in _NAMES for log in path.glob(f"**/{name}"))
    for log in logs:
        yield from _read_nvflare_client(log, epochs)


def _read_nvflare_client(log: Path, epochs: int) -> Iterator[tuple[object, ...]]:
    """Yield the downloads, trainings and uploads in the NVFlare log of one client.

    The log has a line for each download and each upload; a training lasts from the end of a
    download to the start of the next upload.

    Args:
        log: the log file.
        epochs: count of epochs of a training.

    Yields:
        The cells of ``_COLUMNS``.
    """
    client = log.parent.name if log.name in _NAMES else log.stem
    round_number = -1  # no download yet; the log has no numbers of rounds, so they are counted
    download_end = 0.0
    last_message = ""  # kind of the last message
    for line_number, line in _number_lines(log):
        message = _NVFLARE.match(line)  # groups: date, and text that names the kind of message
        size = _BYTES.search(line)
        seconds = _TIME.search(line)
        # a repeated line of the same kind is from a resent task, and counts once
        if message is None or size is None or seconds is None or message[2] == last_message:
            continue
        last_message = message[2]
        end = _parse_date(log, line_number, message[1])
        start = end - float(seconds[1])
        size_bytes = float(size[1])
        if last_message.startswith("getTask"):
            round_number += 1
            download_end = end
            yield line_number, client, round_number, "down", start, end, size_bytes, epochs
        elif round_number >= 0:
            train_end = max(download_end, start)
            yield line_number, client, round_number, "train", download_end, train_end, 0.0, epochs
            yield line_number, client, round_number, "up", start, end, size_bytes, epochs


class _Line(NamedTuple):
    """Line of an APPFL log: its number, its time (s since 1970), who wrote it, and its text."""

    line_number: int
    time: float  # seconds since 1970
    source: str  # "server", or the name of a client
    text: str


def _read_appfl(path: Path, where: str, size: float | None, epochs: int) -> pd.DataFrame | None:
    """Read the downloads, trainings and uploads in logs of APPFL, from each client's second round.

    Args:
        path: folder of the logs.
        where: description of the logs, for error messages.
        size: size of a message (bytes), which the logs do not have.
        epochs: count of epochs of a training, for logs without epochs.

    Returns:
        DataFrame with the columns ``_COLUMNS``; None if the folder has no APPFL logs.

    Raises:
        DataError: ``size`` is None, or updates, trainings or clocks do not match.
    """
    lines = []
    for log in sorted(path.glob("**/*.txt")):
        for line_number, line in _number_lines(log):
            match = _APPFL.search(line)
            if match is not None:
                lines.append(
                    _Line(line_number, _parse_date(log, line_number, match[1]), match[2], match[3])
                )
    if not lines:
        return None
    if size is None:
        raise DataError(
            f"{where} is APPFL's, which logs no bytes; say how many a message has, such as "
            "--bytes 4MB"
        )
    updates = _find_updates(lines)
    trainings = _find_trainings(lines, epochs)
    if trainings.empty or not trainings["client"].isin(updates["client"]).all():
        raise DataError(
            f"{where} is APPFL's, whose server has updates of {_format_clients(updates)}, and "
            f"whose other logs have trainings of {_format_clients(trainings)}; both are needed, "
            "and the same names (client_id)"
        )
    # the n-th update of a client comes from its n-th training
    updates["nth"] = updates.groupby("client").cumcount()
    trainings["nth"] = trainings.groupby("client").cumcount()
    tasks = _add_downloads(trainings.merge(updates, "left", ["client", "nth"]))
    _check_clocks(tasks, where)
    down = tasks.assign(what="down", start=tasks["download_start"], end=tasks["start"], bytes=size)
    train = tasks.assign(what="train", bytes=0.0)
    up = tasks.assign(what="up", start=tasks["end"], end=tasks["arrival"], bytes=size)
    return pd.concat([down, train, up.dropna(subset="end")], ignore_index=True)[_COLUMNS]


def _format_clients(rows: pd.DataFrame) -> str:
    return show_value(", ".join(rows["client"].unique()) or "nobody")


def _find_updates(lines: list[_Line]) -> pd.DataFrame:
    """Find the updates that the server of an APPFL log has received.

    Returns:
        DataFrame, sorted by time, with ``client`` (name) and ``arrival`` (s since 1970).
    """
    updates = []
    for line in lines:
        text = line.text.rstrip()
        if line.source == "server" and text.startswith(_UPDATE):
            updates.append((text.removeprefix(_UPDATE), line.time))
    frame = pd.DataFrame(updates, columns=["client", "arrival"])
    return frame.sort_values("arrival", kind="stable")


def _find_trainings(lines: list[_Line], epochs: int) -> pd.DataFrame:
    """Find the trainings in an APPFL log, which has a line for each epoch or training.

    Args:
        lines: the lines of the log.
        epochs: count of epochs of a training, for clients that log whole trainings.

    Returns:
        DataFrame with one row per client and round: ``client``, ``round``, number of the training's
        first line (``row_number``), ``start``, ``end`` (s since 1970) and ``epochs``.
    """
    columns = ["row_number", "client", "round", "start", "end", "epochs"]
    frame = pd.DataFrame(_find_epochs(lines, epochs), columns=columns)
    trainings = frame.groupby(["client", "round"], as_index=False)
    return trainings.agg({"row_number": "first", "start": "first", "end": "last", "epochs": "sum"})


def _add_downloads(tasks: pd.DataFrame) -> pd.DataFrame:
    """Return an APPFL log's tasks with the begin of the download (s) as ``download_start``.

    A download begins when the client's update of the previous round has arrived at the server. If
    the server waits for all clients, it begins when the last of their updates has arrived. Tasks of
    a client's first round are left out, because there is no previous update.

    Args:
        tasks: DataFrame with ``client``, ``round``, ``start`` of the training and ``arrival`` of
            the update (s).
    """
    # arrivals of the previous round's updates, by the number of the round that follows
    arrivals = tasks[["client", "round", "arrival"]].assign(round=tasks["round"] + 1).dropna()
    own_arrivals = arrivals.rename(columns={"arrival": "download_start"})
    tasks = tasks.merge(own_arrivals, "inner", ["client", "round"])
    last_arrival = tasks["round"].map(arrivals.groupby("round")["arrival"].max())
    # ``last_arrival``: arrival of the last update of the previous round. If no training begins
    # before, the server waits for all clients.
    if (tasks["start"] >= last_arrival).all():
        tasks["download_start"] = last_arrival
    return tasks


def _check_clocks(tasks: pd.DataFrame, where: str) -> None:
    """Raise ``DataError`` if the clocks of a client and of the server disagree.

    The clocks disagree if a task's download (server's clock) begins after its training (client's
    clock), or if its update arrives (server's clock) before its training ends.

    Args:
        tasks: DataFrame of the tasks, with ``download_start``, ``start``, ``end`` and ``arrival``
            (s).
        where: description of the logs, for the error message.
    """
    is_wrong = (tasks["download_start"] > tasks["start"]) | (tasks["arrival"] < tasks["end"])
    if not is_wrong.any():
        return
    task = tasks[is_wrong].to_dict("records")[0]
    start = float(task["start"])
    train_s = float(task["end"]) - start
    lead_s = start - float(task["download_start"])
    raise DataError(
        f"{where}: client {task['client']!r} trains in round {task['round']} for {train_s:.6g} s; "
        f"by the server's log it is asked {lead_s:+.6g} s before, or heard of too early: their "
        "clocks do not agree"
    )


def _find_epochs(lines: list[_Line], epochs: int) -> Iterator[tuple[object, ...]]:
    """Yield the epochs or trainings of clients, from the text tables in their APPFL logs.

    A table has a row for each epoch. If it has no column ``Epoch``, it has a row for each training.

    Args:
        lines: the lines of the logs.
        epochs: count of epochs of a training, for tables without a column ``Epoch``.

    Yields:
        Line number, name of the client, round, start and end (s since 1970), count of epochs.
    """
    titles: dict[str, list[str]] = {}  # titles of the columns of each client's last table
    for line in lines:
        # cells are split at spaces, so the space in the title "Pre Val?" is removed
        cells = line.text.replace("Pre Val?", "Pre").split()
        if cells[:1] == ["Round"] and "Time" in cells:
            titles[line.source] = cells
        row = dict(zip(titles.get(line.source, ()), cells, strict=False))
        has_time = _is_number(row.get("Time", "").replace(".", "", 1))
        is_pre_validation = row.get("Pre") == "Y"  # a test before the training
        if has_time and _is_number(row["Round"]) and not is_pre_validation:
            epoch_count = 1 if "Epoch" in row else epochs
            start = line.time - float(row["Time"])
            yield line.line_number, line.source, int(row["Round"]), start, line.time, epoch_count


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def read_run_folder(path: Path) -> pd.DataFrame:
    """Read the steps and rounds of a fedsim run as rows of a deployment's log.

    Steps that did not end ``done``, and steps outside of rounds, are left out.

    Args:
        path: the run folder.

    Returns:
        DataFrame with ``client``, ``round``, ``what`` (``down``, ``train``, ``up`` or ``round``),
        ``start`` and ``end`` (s), ``bytes``, ``samples`` and ``epochs``.
    """
    run = RunFolder(path)
    samples_of = {row["device"]: row["samples"] for row in run.devices}
    step_starts = dict[int, float]()  # begin of the current step of each task (s)
    rows = list[tuple[object, ...]]()
    round_start = 0.0
    kinds = ("step-start", "step-end", "round-start", "round")
    columns = ("time", "kind", "device", "round", "task", "step", "outcome", "data")
    for time, kind, device, number, task, step, outcome, text in run.events_of(kinds, columns):
        if kind == "step-start":
            step_starts[task] = time
        elif kind == "round-start":
            round_start = time
        elif kind == "round":
            rows.append((0, "server", number, "round", round_start, time, 0.0, 1, 0.0))
            round_start = time  # some strategies record no begin of a round
        elif outcome == "done" and step in _STEPS and number is not None:
            data = parse_json(text)
            size = data.get("bytes", 0.0)
            epochs = data.get("epochs") or 1
            samples = float(samples_of.get(device, 0) * epochs)
            span = step_starts[task], time
            rows.append((0, str(device), number, _STEPS[step], *span, size, epochs, samples))
    return pd.DataFrame(rows, columns=[*_COLUMNS, "samples"])
