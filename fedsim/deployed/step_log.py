"""Log of the steps of a task on its device, as they really took place."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsim.common.errors import show_value
from fedsim.common.files import read_text
from fedsim.common.step_names import COMPUTE, DOWNLOAD, EVALUATE, SLEEP, START_UP, TRAIN, UPLOAD
from fedsim.deployed.reading import (
    Json,
    PacketError,
    count_of,
    entry_of,
    finite_of,
    table_of,
    text_of,
)

VARIABLE = "FEDSIM_STEP_LOGS"
"""Environment variable with the path of a folder, in which each node logs its steps.

A server on the same machine reads the logs, to learn the steps of tasks whose answers did not
arrive.
"""
BEGAN = "began"
"""File in the folder of the logs, with the time of the day at which the server's clock began."""
_NAMES = (DOWNLOAD, START_UP, TRAIN, EVALUATE, COMPUTE, SLEEP, UPLOAD)
_COUNTS = ("epochs", "asked")  # facts of a training step that are counts


@dataclass(slots=True)
class LoggedStep:
    """Step of a task, such as a training, that has ended on a real device.

    Attributes:
        name: name of the step, such as ``train``.
        start: start of the step, by the server's clock (s).
        end: end of the step (s).
        facts: other fields of the step's record by name, such as ``epochs``.
    """

    name: str
    start: float
    end: float
    facts: dict[str, Json] = field(default_factory=dict)

    def tree(self) -> dict[str, Json]:
        """Return the step as JSON, for the device's answer and log; ``read_step`` restores it."""
        return {"step": self.name, "start": self.start, "end": self.end, "facts": self.facts}

    def sizes(self) -> list[tuple[str, float]]:
        """Return name and size (bytes) of each content of the answer, if the step is an upload."""
        contents = table_of(self.facts["bytes"], "bytes")
        return [(name, finite_of(size, "a size")) for name, size in contents.items()]


def read_step(value: Json) -> LoggedStep:
    """Restore a step from the value that ``LoggedStep.tree`` has returned.

    Args:
        value: the value.

    Raises:
        PacketError: the value has another form.
    """
    tree = table_of(value, "a step")
    name = text_of(entry_of(tree, "step"), "the name of a step")
    if name not in _NAMES:
        raise PacketError(f"a step is {show_value(name)}; allowed are {', '.join(_NAMES)}")
    start = finite_of(entry_of(tree, "start"), "the start of a step")
    end = finite_of(entry_of(tree, "end"), "the end of a step")
    facts: dict[str, Json] = {}
    for key, fact in table_of(entry_of(tree, "facts"), "the facts of a step").items():
        if key in _COUNTS:
            facts[key] = count_of(fact, key)
        elif key == "bytes":
            facts[key] = table_of(fact, key)
        else:
            raise PacketError(f"a step has the unknown fact {show_value(key)}")
    if name == TRAIN:
        entry_of(facts, "epochs")
    return LoggedStep(name, start, end, facts)


class StepLog:
    """Log of the steps of a task on a real device, in memory and perhaps in a file.

    Args:
        task: ID of the task.
        device: number of the device.
        folder: folder with a file to which each step is appended when it ends; None for no file.

    Attributes:
        steps: the steps that have ended.
    """

    def __init__(self, task: int, device: int, folder: Path | None) -> None:
        self._task = task
        self._file = None if folder is None else folder / f"steps-{device}.jsonl"
        self.steps: list[LoggedStep] = []

    def add(self, step: LoggedStep) -> None:
        """Add a step that has just ended to the log, in memory and in the file, if any.

        Args:
            step: the ended step, such as a download, with its times.
        """
        self.steps.append(step)
        self._write(step)

    def begin_upload(self, start: float, sizes: Mapping[str, int]) -> None:
        """Write to the log's file, if there is one, that the upload of the answer begins.

        So the upload is known even if the server never receives the answer.

        Args:
            start: start of the upload (s).
            sizes: dict from content of the answer to its size (bytes).
        """
        self._write(LoggedStep(UPLOAD, start, start, {"bytes": dict(sizes)}))

    def _write(self, step: LoggedStep) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"task": self._task, **step.tree()}) + "\n")


def log_folder() -> Path | None:
    """Return the folder of step logs that ``FEDSIM_STEP_LOGS`` names; None if it is not set."""
    text = os.environ.get(VARIABLE)
    return Path(text) if text else None


def logged_steps(folder: Path | None) -> dict[int, list[LoggedStep]]:
    """Return a dict from task ID to the steps that its device has logged, in order.

    Args:
        folder: folder of the logs; None if there is none.
    """
    steps: dict[int, list[LoggedStep]] = {}
    if folder is None:
        return steps
    for task, tree in _lines(folder):
        steps.setdefault(task, []).append(read_step(tree))
    return steps


def _lines(folder: Path) -> Iterator[tuple[int, Json]]:
    """Yield the task ID and the JSON of each logged step."""
    for file in sorted(folder.glob("steps-*.jsonl")):
        for line in read_text(file).splitlines():
            if line.endswith("}}"):  # a stopped node may have written half a line
                tree = json.loads(line)
                yield tree.pop("task"), tree


def note_begin(folder: Path | None, began: float) -> None:
    """Write the start time of a run's clock to the folder of logs, for readers of the logs.

    Args:
        folder: the folder; None: nothing is written.
        began: time of the day (s since 1970).
    """
    if folder is not None:
        beside = folder / f"{BEGAN}.writing"
        beside.write_text(repr(began), encoding="utf-8")
        beside.rename(folder / BEGAN)
