"""Run of a study in a worker of a Ray cluster, whose node need not see the study's folder.

The run is done in a temporary folder of the node, under ``$TMPDIR``. The worker sends messages and
the changed files of this folder to a Ray actor on the node of the study's process.
"""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from io import TextIOBase
from pathlib import Path
from typing import Any, TextIO

from fedsim.common.errors import RunFolderError
from fedsim.lab.reading.record_data import RecordData
from fedsim.lab.study.inputs import RunInputs
from fedsim.lab.study.parts import PartSender, Pieces, write_pieces
from fedsim.lab.study.pool import News
from fedsim.lab.study.worker import Worker
from fedsim.records.lock import locked
from fedsim.toolbox.ray.executor import node_beside

_PREFIX = "fedsim-run-"  # prefix of temporary folders, by which left-over folders are found
_PAUSE_FACTOR = 4  # after sending files, a worker pauses for this multiple of the sending's time
_MOST_LINES = 100  # limit of the lines of a run's output that are sent to the study's process


@dataclass(frozen=True)
class FarOrder:
    """Message that asks a worker on another node of a Ray cluster to carry out a run.

    Attributes:
        order_index: index of the run in the list of runs that the study's process carries out.
        attempt: count of earlier workers that were lost while they carried out the run, from 0.
        scenario: the scenario, as TOML.
        inputs: data sets and files that the run reads.
        begun: dict from path to content of the files that the run folder had when it was saved
            last; empty for a new run.
    """

    order_index: int
    attempt: int
    scenario: str
    inputs: RunInputs = field(default_factory=RunInputs)
    begun: Mapping[str, Pieces] = field(default_factory=dict)


class Board:
    """Ray actor that stores the messages of workers on other nodes for the study's process.

    Workers leave messages by ``report``, whose answer is whether they must stop. The study's
    process fetches the messages by ``collect``.
    """

    def __init__(self) -> None:
        self._news: list[tuple[int, int, News]] = []
        self._stop = False

    def report(self, order_index: int, attempt: int, news: News) -> bool:
        """Store a worker's message; return whether the worker must stop.

        Args:
            order_index: index of the run in the list of runs that the study's process carries out.
            attempt: count of earlier workers that were lost while they carried out the run.
            news: the message; empty only to ask whether to stop.
        """
        if news:
            self._news.append((order_index, attempt, news))
        return self._stop

    def collect(self, stop: bool) -> list[tuple[int, int, News]]:
        """Return the messages since the last call, each with the run's index and attempt.

        Args:
            stop: whether workers must stop; from now on, ``report`` returns this value.
        """
        self._stop = stop
        news = self._news
        self._news = []
        return news


class _Output(TextIOBase):
    """Text stream that copies text to another stream, and sends its first 100 lines as messages.

    Args:
        stream: a stream that Ray writes to a log of the node.
        report_news: sends a message.
    """

    def __init__(self, stream: TextIO, report_news: Callable[..., None]) -> None:
        self._stream = stream
        self._report = report_news
        self._line = ""
        self._count = 0

    def write(self, text: str) -> int:
        self._stream.write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._report_line(line)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def end(self) -> None:
        """Send the rest of the text as a message if it does not end with a line break."""
        if self._line:
            self._report_line(self._line)
            self._line = ""

    def _report_line(self, line: str) -> None:
        self._count += 1
        if self._count <= _MOST_LINES:
            self._report(event="note", text=line)
        elif self._count == _MOST_LINES + 1:
            self._report(event="note", text="further output is in Ray's log of the node")


def carry_out(board: Any, home: str, order: FarOrder) -> News:
    """Carry out a run of a study as a task on a node of a Ray cluster, and return its outcome.

    Messages, and the files of the run folder as they change, are sent to the study's process.

    Args:
        board: handle of the Ray actor that takes the messages.
        home: ID of the node of the study's process.
        order: the run, with its data and files.

    Returns:
        The outcome: ``status`` and, if it has them, ``error``, ``accuracy`` and ``wall_s``, as in
        ``Ended``.
    """
    import ray

    outcome: RecordData = {}

    def send(**news: object) -> None:
        """Send a message to the study's process, and stop the worker if the answer says so."""
        answer = board.report.remote(order.order_index, order.attempt, news)
        # ``ray.get`` would give this task's cores to another task while it waits
        must_stop = answer.future().result()
        if must_stop:
            worker.stop(signal.SIGINT)

    def report_news(**news: Any) -> None:
        """Send a message of the worker, given by its fields, to the study's process.

        The last message (``ended``) is not sent: its entry ``run`` becomes the outcome instead.
        """
        if news["event"] == "ended":
            outcome.update(news["run"])
        else:
            send(**news)

    with _folder_of_node() as folder:
        run = folder / "run"
        for name, pieces in order.begun.items():  # files of an interrupted run, to resume it
            write_pieces(run / name, pieces)
        folder_sync = _FolderSync(PartSender(run, send))
        worker = Worker(report_news, folder_sync.send_if_new)
        node = node_beside(home)  # empty text if this is the node of the study's process
        send(event="begun", node=node, gpus=[str(gpu) for gpu in ray.get_gpu_ids()])
        with order.inputs.in_use(folder / "inputs"), _reported_output(report_news):
            worker.carry_out({"scenario": order.scenario, "folder": str(run), "waits": True})
        folder_sync.sender.send_part()  # sends the files that have changed since the last sending
    if node and "error" in outcome:
        outcome["error"] = f"{outcome['error']} (on the node {node})"
    return outcome


class _FolderSync:
    """Sends the files of a run's folder to the study's process while the run goes on.

    ``send_if_new`` is called often during the run. It sends the changed files if there is a new
    checkpoint or there are new intermediate results, and pauses so long after each sending that
    sending takes at most a fifth of the run's time.

    Args:
        sender: sends the changed files.
    """

    def __init__(self, sender: PartSender) -> None:
        self.sender = sender
        self.sender.skip_present()
        self._newest = sender.newest
        self._next_send = 0.0  # earliest time (monotonic, s) of the next sending

    def send_if_new(self) -> None:
        """Send the changed files if a checkpoint or intermediate results are new.

        Nothing is sent for a while after each sending, four times as long as the sending took.
        """
        start = time.monotonic()
        newest = self.sender.newest
        if newest == self._newest or start < self._next_send:
            return
        self._newest = newest
        self.sender.send_part()
        end = time.monotonic()
        self._next_send = end + _PAUSE_FACTOR * (end - start)


@contextmanager
def _reported_output(report_news: Callable[..., None]) -> Iterator[None]:
    """Return a context in which printed output of the run's code is also sent as messages.

    Args:
        report_news: sends a message.
    """
    import sys

    out = _Output(sys.stdout, report_news)
    err = _Output(sys.stderr, report_news)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield
        finally:
            out.end()
            err.end()


@contextmanager
def _folder_of_node() -> Iterator[Path]:
    """Return a context with a new temporary folder on this node, which is removed at its end.

    Left-over folders of workers that were killed are removed too.
    """
    temporary = Path(tempfile.gettempdir())
    for stale in sorted(temporary.glob(f"{_PREFIX}*")):
        if stale.is_dir() and not stale.is_symlink() and stale.stat().st_uid == os.getuid():
            with suppress(RunFolderError, OSError), locked(stale):
                shutil.rmtree(stale)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary))
    try:
        with locked(folder):
            (folder / "inputs").mkdir()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
