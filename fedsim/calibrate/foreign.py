"""Logs in other forms as rows of a log: of NVFlare's clients (``site-1/log.txt`` and so on), of APPFL's server and clients
(``result_Server_*.txt``, ``result_Client1_*.txt``), and run folders of fedsim's own.

A client of NVFlare logs when it has received a task and when it has sent the result, how many bytes these were and how long
that took. The training lies between the two. Rounds are counted, task by task; samples are not in these logs. The log of
Flower's server has nothing of its clients, and is refused.

A client of APPFL logs each epoch of a training at its end, with its duration, and the server the arrival of each update. So an
upload begins when the training has ended. The next download begins when the server has the last update of the round, or the
client's own one if it waits for no other, and it ends when the next training begins. Bytes and samples are not in these logs.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedsim.errors import DataError, shown
from fedsim.records.reading import RunFolder

_COLUMNS = ["place", "client", "round", "what", "start", "end", "bytes", "samples", "epochs"]
_WORDS = {"download": "down", "train": "train", "upload": "up"}
_SUFFIXES = (".txt", ".log")
_NAMES = ("log.txt", "log_fl.txt")
_DATE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})")
_NEEDED = ("getTask: train", "SubmitUpdate size")
_BYTES, _TIME = re.compile(r"(\d+) Bytes"), re.compile(r"time: ([0-9.eE+-]+) seconds")
_FLOWER = re.compile(r"\[ROUND \d+\]|configure_fit|aggregate_fit")
_APPFL = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})(?: (?:INFO|DEBUG))? ([^\]]+)\]: (.*)")
_UPDATE = "Received UpdateGlobalModel request from client "


class LoggedStep(NamedTuple):
    """A row of a log; seconds since 1970."""

    place: int
    client: str
    round: int
    what: str
    start: float
    end: float
    bytes: float
    epochs: int


def rows_of(path: Path, where: str, size: float | None, samples: int | None, epochs: int, notes: list[str]) -> Any:
    """The data frame of a folder of APPFL's logs, of a workspace or one client's file of NVFlare; None if it is neither.

    ``size`` is that of a message (bytes), ``samples`` and ``epochs`` are those of a training, where a log lacks them.
    ``DataError``: it is Flower's, or what the log lacks is not said. ``notes`` get a line for the reader.
    """
    if path.is_file() and path.suffix in _SUFFIXES and _FLOWER.search(_text(path)):
        raise DataError(
            f"{where} is what Flower's server says of its rounds: no client's download, training or upload is in it; write "
            "these as rows of a CSV file, or run the app by fedsim"
        )
    logs, whose, found = _client_logs(path), "NVFlare", list[LoggedStep]()
    if logs:
        found = list(_rows(logs, epochs))
        notes.append(
            f"read as {len(logs)} logs of NVFlare: rounds are counted, and a training is the time between two messages"
        )
    elif path.is_dir() and (lines := [line for log in sorted(path.glob("**/*.txt")) for line in _appfl_lines(log)]):
        whose = "APPFL"
        if size is None:
            raise DataError(f"{where} is APPFL's, which logs no bytes; say how many a message has, such as --bytes 4MB")
        found = list(_appfl_steps(lines, where, size, epochs))
        notes.append(
            "read as logs of APPFL: the first round is left out, since nothing tells its download; clocks are taken to agree, "
            "and a download has in it what a client does before its training (validation)"
        )
    if not found:
        return None
    if samples is None:
        raise DataError(f"{where} is {whose}'s, which logs no samples; say how many a training has, such as --samples 60")
    return pd.DataFrame(found).assign(samples=float(samples))


def _client_logs(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(log for name in _NAMES for log in path.glob(f"**/{name}"))
        return [log for log in found if any(_steps(log))]
    return [path] if path.suffix in _SUFFIXES and path.is_file() and any(_steps(path)) else []


def _rows(logs: list[Path], epochs: int) -> Iterator[LoggedStep]:
    """The downloads, trainings and uploads of clients, each named by the folder of its log."""
    for log in logs:
        client, number, got = log.parent.name if log.name in _NAMES else log.stem, -1, 0.0
        for place, what, end, took, size in _steps(log):
            if what == "down":
                number, got = number + 1, end
            elif number >= 0:
                yield LoggedStep(place, client, number, "train", got, max(got, end - took), 0.0, epochs)
            if number >= 0:
                yield LoggedStep(place, client, number, what, end - took, end, size, epochs)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _steps(log: Path) -> Iterator[tuple[int, str, float, float, float]]:
    """Line, direction, end and duration (s) and bytes of each transfer of a client; a task that was sent twice counts once."""
    last = ""
    for place, line in enumerate(_text(log).splitlines(), 1):
        date, size, took = _DATE.match(line), _BYTES.search(line), _TIME.search(line)
        if date is None or size is None or took is None or not any(word in line for word in _NEEDED):
            continue
        what = "down" if _NEEDED[0] in line else "up"
        if what != last:
            yield place, what, _seconds(date), float(took[1]), float(size[1])
        last = what


def _seconds(date: re.Match[str]) -> float:
    """Of a day with its time, and milliseconds."""
    return datetime.strptime(date[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() + int(date[2]) / 1000


class _AppflLine(NamedTuple):
    place: int
    time: float  # s since 1970
    name: str  # ``server``, or the client's
    text: str


def _appfl_lines(log: Path) -> Iterator[_AppflLine]:
    for place, line in enumerate(_text(log).splitlines(), 1):
        if found := _APPFL.search(line):
            yield _AppflLine(place, _seconds(found), found[3], found[4])


def _appfl_trainings(lines: list[_AppflLine], epochs: int) -> dict[int, LoggedStep]:
    """A client's trainings by their rounds: the rows below its titles, one an epoch or one a training."""
    trainings: dict[int, LoggedStep] = {}
    titles: list[str] = []
    for place, end, name, text in lines:
        cells = text.replace("Pre Val?", "Pre").split()
        if cells[:1] == ["Round"] and "Time" in cells:
            titles = cells
            continue
        row = dict(zip(titles, cells, strict=False))
        is_time = row.get("Time", "").replace(".", "", 1).isdecimal()
        if row.get("Pre") == "Y" or not is_time or not row["Round"].isdecimal():
            continue
        number, start = int(row["Round"]), end - float(row["Time"])
        before = trainings.get(number)
        if before is not None and "Epoch" in row:
            trainings[number] = before._replace(end=end, epochs=before.epochs + 1)
        else:
            trainings[number] = LoggedStep(place, name, number, "train", start, end, 0.0, 1 if "Epoch" in row else epochs)
    return trainings


def _appfl_steps(lines: list[_AppflLine], where: str, size: float, epochs: int) -> Iterator[LoggedStep]:
    """The tasks of all clients from the second round on."""
    arrived: dict[str, list[float]] = {}
    for line in lines:
        if line.name == "server" and line.text.startswith(_UPDATE):
            arrived.setdefault(line.text.removeprefix(_UPDATE).strip(), []).append(line.time)
    trained = {
        name: found
        for name in dict.fromkeys(line.name for line in lines)
        if (found := _appfl_trainings([line for line in lines if line.name == name], epochs))
    }
    if not trained or trained.keys() - arrived.keys():
        raise DataError(
            f"{where} is APPFL's, whose server has updates of {shown(', '.join(arrived) or 'nobody')}, and whose other logs "
            f"have trainings of {shown(', '.join(trained) or 'nobody')}; both are needed, and the same names (client_id)"
        )
    updates = {name: dict(zip(sorted(trained[name]), sorted(arrived[name]), strict=False)) for name in trained}
    last = {number: max(of[number] for of in updates.values() if number in of) for of in updates.values() for number in of}
    waits = all(step.start >= last[number - 1] for of in trained.values() for number, step in of.items() if number - 1 in last)
    for name, steps in trained.items():
        for number, step in steps.items():
            if number - 1 not in updates[name]:
                continue
            begun, end = last[number - 1] if waits else updates[name][number - 1], updates[name].get(number)
            if begun > step.start or (end is not None and end < step.end):
                raise DataError(
                    f"{where}: client {name!r} trains in round {number} for {step.end - step.start:.6g} s; by the server's log "
                    f"it is asked {step.start - begun:+.6g} s before, or heard of too early: their clocks do not agree"
                )
            yield step._replace(what="down", start=begun, end=step.start, bytes=size)
            yield step
            if end is not None:
                yield step._replace(what="up", start=step.end, end=end, bytes=size)


def of_run(path: Path) -> Any:
    """The data frame of a run folder."""
    return pd.DataFrame(_recorded(RunFolder(path)), columns=_COLUMNS)


def _recorded(run: RunFolder) -> Iterator[tuple[Any, ...]]:
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
            yield 0, "server", number, "round", last, time, 0.0, 0.0, 1
            last = time
        elif outcome == "done" and step in ("download", "train", "upload") and number is not None:
            facts = json.loads(data)
            epochs = facts.get("epochs") or 1
            held = samples.get(device, 0) * epochs
            yield 0, str(device), number, _WORDS[step], begun[task], time, facts.get("bytes", 0.0), held, epochs
