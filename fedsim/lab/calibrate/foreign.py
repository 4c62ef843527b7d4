"""Logs in other forms as rows of a log: NVFlare's clients (``site-1/log.txt`` and so on), APPFL's
server and clients (``result_Server_*.txt``, ``result_Client1_*.txt``), and fedsim's run folders.
Flower's server logs nothing of its clients.

A client of NVFlare logs when it has received a task and sent the result, with bytes and duration;
it trains in between. A client of APPFL logs each epoch at its end, with its duration, and the
server the arrival of each update. An upload begins when the training has ended. The next download
begins when the server has the last update of the round, or this client's if it waits for no other,
and ends when the next training begins.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from fedsim.common.errors import DataError, shown
from fedsim.common.files import parse_json, read_text
from fedsim.records.reading import RunFolder

_COLUMNS = ["place", "client", "round", "what", "start", "end", "bytes", "epochs"]
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
_LONGEST_LINE = 10_000  # characters: of a longer line only the beginning is read


def rows_of(
    path: Path, where: str, size: float | None, samples: int | None, epochs: int, notes: list[str]
) -> Any:
    """The data frame of NVFlare's or APPFL's logs; None of other files and folders.

    ``size`` of a message (bytes), ``samples`` and ``epochs`` of a training count where a log lacks
    them. ``notes`` get a line for the reader. ``DataError``: the log is Flower's, what it lacks is
    not given, or a file cannot be read.
    """
    try:
        return _rows_of(path, where, size, samples, epochs, notes)
    except OSError as error:
        raise DataError(
            f"{where}: {str(error.filename or path)!r} cannot be read: {error.strerror}"
        ) from None


def _rows_of(
    path: Path, where: str, size: float | None, samples: int | None, epochs: int, notes: list[str]
) -> Any:
    if path.is_file() and path.suffix in _SUFFIXES and _FLOWER.search(_text(path)):
        raise DataError(
            f"{where} is what Flower's server says of its rounds: no client's download, "
            "training or upload is in it; write "
            "these as rows of a CSV file, or run the app by fedsim"
        )
    whose = "NVFlare"
    found = pd.DataFrame(_of_nvflare(path, epochs), columns=_COLUMNS)
    note = (
        f"{found['client'].nunique()} logs of NVFlare: rounds are counted, a training is the time "
        "between two messages"
    )
    if found.empty and path.is_dir():
        whose = "APPFL"
        found = _of_appfl(path, where, size, epochs)
        note = (
            "logs of APPFL: the first round is left out, since nothing tells its download; "
            "clocks are taken to agree, and a "
            "download has in it what a client does before its training (validation)"
        )
    if found is None or found.empty:
        return None
    if samples is None:
        raise DataError(
            f"{where} is {whose}'s, which logs no samples; say how many a training has, such "
            "as --samples 60"
        )
    notes.append(f"read as {note}")
    return found.assign(samples=float(samples))


def _text(path: Path) -> str:
    return read_text(path, errors="replace")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a log and their numbers, from 1."""
    for place, line in enumerate(_text(path).splitlines(), 1):
        yield place, line[:_LONGEST_LINE]


def _seconds(path: Path, place: int, date: str) -> float:
    try:
        return datetime.strptime(date, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise DataError(
            f"line {place} of {str(path)!r} has the date {date!r}, which there is not"
        ) from None


def _of_nvflare(path: Path, epochs: int) -> Iterator[tuple[Any, ...]]:
    """The downloads, trainings and uploads of clients, each named by the folder of its log, or
    by a single log.
    """
    logs = [path] if path.suffix in _SUFFIXES and path.is_file() else []
    if path.is_dir():
        logs = sorted(log for name in _NAMES for log in path.glob(f"**/{name}"))
    for log in logs:
        client = log.parent.name if log.name in _NAMES else log.stem
        number = -1
        got = 0.0
        last = ""
        for place, line in _lines(log):
            step = _NVFLARE.match(line)
            size = _BYTES.search(line)
            took = _TIME.search(line)
            # a task that was sent twice counts once
            if step is None or size is None or took is None or step[2] == last:
                continue
            last = step[2]
            end = _seconds(log, place, step[1])
            start = end - float(took[1])
            if last.startswith("getTask"):
                number = number + 1
                got = end
                yield place, client, number, "down", start, end, float(size[1]), epochs
            elif number >= 0:
                yield place, client, number, "train", got, max(got, start), 0.0, epochs
                yield place, client, number, "up", start, end, float(size[1]), epochs


def _of_appfl(path: Path, where: str, size: float | None, epochs: int) -> Any:
    """The tasks of all clients from the second round on, without samples; None if there are no
    such logs.
    """
    found = []
    for log in sorted(path.glob("**/*.txt")):
        for place, line in _lines(log):
            if row := _APPFL.search(line):
                found.append((place, _seconds(log, place, row[1]), row[2], row[3]))
    if not found:
        return None
    if size is None:
        raise DataError(
            f"{where} is APPFL's, which logs no bytes; say how many a message has, such as "
            "--bytes 4MB"
        )
    said = [(text.rstrip(), time) for _, time, who, text in found if who == "server"]
    updates = [
        (text.removeprefix(_UPDATE), time) for text, time in said if text.startswith(_UPDATE)
    ]
    arrived: Any = pd.DataFrame(updates, columns=["client", "sent"]).sort_values(
        "sent", kind="stable"
    )
    columns = ["place", "client", "round", "start", "end", "epochs"]
    tasks: Any = pd.DataFrame(_appfl_epochs(found, epochs), columns=columns).groupby(
        ["client", "round"], as_index=False
    )
    tasks = tasks.agg({"place": "first", "start": "first", "end": "last", "epochs": "sum"})
    if tasks.empty or not tasks["client"].isin(arrived["client"]).all():
        names = (shown(", ".join(of["client"].unique()) or "nobody") for of in (arrived, tasks))
        raise DataError(
            f"{where} is APPFL's, whose server has updates of {next(names)}, and whose other "
            "logs have trainings of "
            f"{next(names)}; both are needed, and the same names (client_id)"
        )
    arrived, tasks = (
        of.assign(place_in_order=of.groupby("client").cumcount()) for of in (arrived, tasks)
    )
    tasks = tasks.merge(arrived, "left", ["client", "place_in_order"])
    before = tasks[["client", "round", "sent"]].assign(round=tasks["round"] + 1).dropna()
    tasks = tasks.merge(before.rename(columns={"sent": "begun"}), "inner", ["client", "round"])
    last = tasks["round"].map(before.groupby("round")["sent"].max())
    if (tasks["start"] >= last).all():  # all clients wait for the last update of the round before
        tasks["begun"] = last
    for task in tasks[
        (tasks["begun"] > tasks["start"]) | (tasks["sent"] < tasks["end"])
    ].itertuples():
        raise DataError(
            f"{where}: client {task.client!r} trains in round {task.round} for "
            f"{task.end - task.start:.6g} s; by the server's "
            f"log it is asked {task.start - task.begun:+.6g} s before, or heard of too early: "
            "their clocks do not agree"
        )
    down = tasks.assign(what="down", start=tasks["begun"], end=tasks["start"], bytes=size)
    up = tasks.assign(what="up", start=tasks["end"], end=tasks["sent"], bytes=size).dropna(
        subset="end"
    )
    return pd.concat([down, tasks.assign(what="train", bytes=0.0), up], ignore_index=True)[_COLUMNS]


def _appfl_epochs(
    lines: list[tuple[int, float, str, str]], epochs: int
) -> Iterator[tuple[Any, ...]]:
    """The epochs, or trainings, of clients, from the rows of their tables: a row has the cells
    that the last titles name.
    """
    titles: dict[str, list[str]] = {}
    for place, end, client, text in lines:
        cells = text.replace("Pre Val?", "Pre").split()
        if cells[:1] == ["Round"] and "Time" in cells:
            titles[client] = cells
        row = dict(zip(titles.get(client, ()), cells, strict=False))
        is_time = _is_number(row.get("Time", "").replace(".", "", 1))
        if is_time and _is_number(row["Round"]) and row.get("Pre") != "Y":
            passes = 1 if "Epoch" in row else epochs
            yield place, client, int(row["Round"]), end - float(row["Time"]), end, passes


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def of_run(path: Path) -> Any:
    """The data frame of a run folder."""
    run = RunFolder(path)
    samples = {row["device"]: row["samples"] for row in run.devices}
    words = {"download": "down", "train": "train", "upload": "up"}
    begun = dict[int, float]()
    rows = list[tuple[Any, ...]]()
    last = 0.0
    kinds = ("step-start", "step-end", "round-start", "round")
    columns = ("time", "kind", "device", "round", "task", "step", "outcome", "data")
    for time, kind, device, number, task, step, outcome, data in run.events_of(kinds, columns):
        if kind == "step-start":
            begun[task] = time
        elif kind in ("round-start", "round"):
            if kind == "round":
                rows.append((0, "server", number, "round", last, time, 0.0, 1, 0.0))
            last = time
        elif outcome == "done" and step in words and number is not None:
            facts = parse_json(data)
            passes = facts.get("epochs") or 1
            held = float(samples.get(device, 0) * passes)
            rows.append(
                (
                    0,
                    str(device),
                    number,
                    words[step],
                    begun[task],
                    time,
                    facts.get("bytes", 0.0),
                    passes,
                    held,
                )
            )
    return pd.DataFrame(rows, columns=[*_COLUMNS, "samples"])
