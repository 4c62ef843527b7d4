"""Worker process that carries out runs one after another, in the order of its parent's orders.

Orders arrive on standard input, and messages leave on standard output, one line of JSON each.
Signals, which the parent passes on, interrupt the active run, which is saved. The end of standard
input interrupts it too, because it means that the parent has ended.
"""

import asyncio
import gc
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypedDict

from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record
from fedsim.common.errors import CheckpointError, FedsimError, show_error
from fedsim.lab.reading.record_data import RecordData
from fedsim.lab.study.folder import claimed, state_of
from fedsim.lab.terminal import share_done
from fedsim.records.lock import FolderInUseError, locked
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job, end_soon
from fedsim.running.scenario import Scenario
from fedsim.running.signals import interrupting_signals

_NEWS_EVERY_S = 0.25
_RETRY_EVERY_S = 0.5  # time (s) between two checks whether another process has ended a run
# time (s) after the parent's death at which an uninterruptible run is killed
_ORPHAN_LIVES_S = 10.0


class SentOrder(TypedDict):
    """Order to carry out a run, as a worker process receives it from its parent.

    Attributes:
        scenario: the scenario, as TOML.
        folder: the run's folder.
        waits: whether to wait if another process carries out the run. If False, the worker does not
            wait, and the outcome has the status ``elsewhere``.
    """

    scenario: str
    folder: str
    waits: bool


class Worker:
    """Carries out runs of a study, one at a time, in a worker process, and reports to its parent.

    Args:
        send_news: sends a message to the parent; its keyword arguments are the entries of the
            message.
        on_progress: called without arguments after each checkpoint of a run, and after each message
            about its progress, for example to send the run folder's files. The run waits meanwhile.
    """

    def __init__(
        self, send_news: Callable[..., None], on_progress: Callable[[], None] = lambda: None
    ) -> None:
        self._send_news = send_news
        self._on_progress = on_progress
        self._job: Job | None = None
        self._stopping = False

    def stop(self, number: int, *_: object) -> None:
        """Signal handler that interrupts the active run, which is saved; later runs do not begin.

        Args:
            number: the signal.
        """
        self._stopping = True
        if self._job is not None:
            end_soon(self._job, number)

    def carry_out(self, order: SentOrder) -> None:
        """Start or resume a run, wait for its end, and send its outcome to the parent process.

        The message with the outcome also has the peak memory of this process. If the run raises an
        error, the outcome has the status ``failed`` and the error's message.
        """
        folder = Path(order["folder"])
        try:
            outcome = self._carry_out_alone(order["scenario"], folder, waits=order["waits"])
        except Exception as error:
            outcome = {"status": "failed", "error": describe_failure(error, folder)}
        self._job = None
        gc.collect()  # objects of a run refer to each other in cycles
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if sys.platform != "darwin":
            peak_bytes *= 1024  # Linux counts kibibytes
        self._send_news(event="ended", run=outcome, peak_bytes=peak_bytes)

    def _carry_out_alone(self, text: str, folder: Path, *, waits: bool) -> RecordData:
        """Carry out a run under a lock, so that no other process does, and return its outcome.

        If the run is done already, nothing is run.

        Args:
            text: the run's scenario, as TOML.
            folder: the run folder.
            waits: whether to wait if another process carries out the run. If not, the outcome then
                has the status ``elsewhere``.
        """
        while not self._stopping:
            try:
                with claimed(folder):
                    state = state_of(folder, text)
                    if state == "done":
                        return describe_outcome(RunFolder(folder).summary)
                    return describe_outcome(self._run(text, folder, state))
            except FolderInUseError:
                if not waits:
                    return {"status": "elsewhere"}
                time.sleep(_RETRY_EVERY_S)
        return describe_outcome(summary=None)  # outcome with the status ``interrupted``

    def _run(self, text: str, folder: Path, state: str) -> RecordData | None:
        """Run or resume a scenario, and return its summary; None if interrupted before it began.

        Args:
            text: the run's scenario, as TOML.
            folder: the run folder.
            state: ``resume`` from a checkpoint, ``anew``, or ``new`` without a folder.
        """
        if self._stopping:
            return None
        # without ``code_from_file``: the parent has checked already that the user allows the code
        # that the scenario names
        scenario = Scenario(**tomllib.loads(text))
        job = self._prepare(scenario, folder, state)
        stop = scenario.strategy.horizon(scenario.stop)  # used to estimate the remaining time
        rounds = 0
        last_news = time.perf_counter()  # real time of the last message

        def report_progress(record: Record) -> None:
            nonlocal rounds, last_news
            if record.kind == "round":
                rounds = record.fields["round"] + 1
            now = time.perf_counter()
            if now - last_news >= _NEWS_EVERY_S:
                last_news = now
                share = share_done(stop, rounds, record.time)
                self._send_news(event="progress", share=share, rounds=rounds)
                self._on_progress()

        if job.checkpointer is not None:
            job.checkpointer.on_saved = lambda *_: self._on_progress()
        job.simulation.listen(report_progress, kinds=("round", "task-end"))
        self._job = job  # from now on, ``stop`` interrupts the job
        if self._stopping:  # stopped while the run was being built, before there was a job
            job.interrupt()
        return asyncio.run(job.execute()).summary

    def _prepare(self, scenario: Scenario, folder: Path, state: str) -> Job:
        """Build a run, from its checkpoint if ``state`` is ``resume`` and the checkpoint is usable.

        Otherwise an earlier run folder, if any, is removed, and the run begins anew.
        """
        if state == "resume":
            try:
                return Job(scenario, folder, Inline(), resume=True)
            except CheckpointError as error:
                self._send_news(event="note", text=f"begins anew: {error}")
                state = "anew"
        if state == "anew":
            with locked(folder):
                shutil.rmtree(folder)
        return Job(scenario, folder, Inline())


def describe_failure(error: Exception, folder: Path | None = None) -> str:
    """Return the message about an error of a run for the study's report.

    Args:
        error: the error.
        folder: the folder of the run, which the message names if the disk is full.
    """
    return str(error) if isinstance(error, FedsimError) else show_error(error, folder)


def describe_outcome(summary: RecordData | None) -> RecordData:
    """Return the outcome of a run as entries of a message.

    They are ``status``, ``accuracy`` (best test accuracy, 0..1) and ``wall_s`` (real time, s).

    Args:
        summary: the run's summary; None if the run was not begun, whose status is ``interrupted``.
    """
    if summary is None:
        return {"status": "interrupted"}
    return {
        "status": summary["status"],
        "accuracy": summary["accuracy"]["best"],
        "wall_s": summary["wall_s"],
    }


def main() -> None:
    """Entry point of the worker process: carry out orders from standard input until it ends."""
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of a user's strategy must not mix with messages
    # a broken pipe means that the parent has ended, and then standard input ends, too
    with suppress(BrokenPipeError), messages:

        def send_news(**news: object) -> None:
            with suppress(BrokenPipeError):
                messages.write(json.dumps(news) + "\n")
                messages.flush()

        worker = Worker(send_news)
        # signals that the parent passes on to this process
        for number in (*interrupting_signals(), signal.SIGHUP):
            signal.signal(number, worker.stop)
        orders: SimpleQueue[SentOrder | None] = SimpleQueue()
        threading.Thread(target=_listen, args=(orders,), daemon=True).start()
        while (order := orders.get()) is not None:
            worker.carry_out(order)


def _listen(orders: "SimpleQueue[SentOrder | None]") -> None:
    """Queue the orders from standard input until it ends, then send SIGTERM to this process.

    SIGTERM interrupts the active run. If the process does not end in time, it is killed.
    """
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_LIVES_S)
    os._exit(1)
