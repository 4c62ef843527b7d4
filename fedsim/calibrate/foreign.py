"""Logs in other forms as rows of a log: of NVFlare's clients (``site-1/log.txt`` and so on), and run folders of fedsim's own.

A client of NVFlare logs when it has received a task and when it has sent the result, how many bytes these were and how long
that took. The training lies between the two. Rounds are counted, task by task; samples are not in these logs. The log of
Flower's server has nothing of its clients, and is refused.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedsim.errors import DataError
from fedsim.records.reading import RunFolder

_COLUMNS = ["place", "client", "round", "what", "start", "end", "bytes", "samples", "epochs"]
_WORDS = {"download": "down", "train": "train", "upload": "up"}
_SUFFIXES = (".txt", ".log")
_NAMES = ("log.txt", "log_fl.txt")
_DATE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})")
_NEEDED = ("getTask: train", "SubmitUpdate size")
_BYTES, _TIME = re.compile(r"(\d+) Bytes"), re.compile(r"time: ([0-9.eE+-]+) seconds")
_FLOWER = re.compile(r"\[ROUND \d+\]|configure_fit|aggregate_fit")


class LoggedStep(NamedTuple):
    """A row of a log; seconds since 1970."""

    place: int
    client: str
    round: int
    what: str
    start: float
    end: float
    bytes: float


def rows_of(path: Path, where: str, samples: int | None, epochs: int, notes: list[str]) -> Any:
    """The data frame of a workspace, or of one client's file, of NVFlare; None if ``path`` is something else.

    ``DataError``: it is Flower's, or samples are not said. ``notes`` get a line for the reader.
    """
    if path.is_file() and path.suffix in _SUFFIXES and _FLOWER.search(_text(path)):
        raise DataError(
            f"{where} is what Flower's server says of its rounds: no client's download, training or upload is in it; write "
            "these as rows of a CSV file, or run the app by fedsim"
        )
    logs = _client_logs(path)
    if not logs:
        return None
    if samples is None:
        raise DataError(f"{where} is NVFlare's, which logs no samples; say how many a training has, such as --samples 60")
    notes.append(f"read as {len(logs)} logs of NVFlare: rounds are counted, and a training is the time between two messages")
    return pd.DataFrame(_rows(logs)).assign(samples=float(samples), epochs=epochs)


def _client_logs(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(log for name in _NAMES for log in path.glob(f"**/{name}"))
        return [log for log in found if any(_steps(log))]
    return [path] if path.suffix in _SUFFIXES and path.is_file() and any(_steps(path)) else []


def _rows(logs: list[Path]) -> Iterator[LoggedStep]:
    """The downloads, trainings and uploads of clients, each named by the folder of its log."""
    for log in logs:
        client, number, got = log.parent.name if log.name in _NAMES else log.stem, -1, 0.0
        for place, what, end, took, size in _steps(log):
            if what == "down":
                number, got = number + 1, end
            elif number >= 0:
                yield LoggedStep(place, client, number, "train", got, max(got, end - took), 0.0)
            if number >= 0:
                yield LoggedStep(place, client, number, what, end - took, end, size)


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
            end = datetime.strptime(date[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() + int(date[2]) / 1000
            yield place, what, end, float(took[1]), float(size[1])
        last = what


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
