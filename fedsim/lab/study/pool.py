"""Worker processes that carry out runs in parallel, one run per process at a time.

A thread of this process waits for each worker process. If a worker dies, only its run fails, and
another worker replaces it. A worker that has used much memory is replaced after its run, since a
process does not return memory to the system. If this process dies, its workers notice, save their
runs and end. A lock whose file descriptor the workers inherit lasts until the last worker ends.
"""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.progress import Progress
from rich.text import Text

from fedsim.clock.worker_process import start
from fedsim.common.harmless import clean
from fedsim.common.machine import GpuShares
from fedsim.common.round_words import counted
from fedsim.common.units import show_seconds
from fedsim.lab.reading.study_progress import ProgressFile
from fedsim.lab.terminal import Console, progress_columns
from fedsim.running.signals import interrupting_signals

News: TypeAlias = Mapping[str, Any]

_LONGEST_LINE = 1000  # length (characters) above which the middle of a printed line is left out
_PLAIN_EVERY_S = 10.0  # least time between two lines of progress, if the console is no terminal (s)
# least work done from which the remaining time is estimated, as a count of runs: a tenth of one run
_LEAST_DONE = 0.1
_MOST_NAMED_RUNS = 2  # a line of progress names this many active runs, and counts the others


@dataclass(frozen=True)
class RunOrder:
    """Order to a worker process to carry out one run of a study.

    Attributes:
        label: name of the run for people.
        scenario: scenario as TOML.
        folder: the run folder. The run is started, or resumed from its checkpoint.
        waits: whether to wait if another process carries out the run. If False, the worker does not
            wait, and the outcome has the status ``elsewhere``.
    """

    label: str
    scenario: str
    folder: Path
    waits: bool = False


@dataclass(frozen=True)
class Ended:
    """Outcome of a run of a study, as its worker reported it.

    Attributes:
        order: what the worker was asked to do: the run's scenario and folder.
        status: ``done``, ``failed``, ``interrupted``, or ``elsewhere`` if another process carries
            out the run.
        error: message of the error if the run failed.
        accuracy: best test accuracy (0..1); None if none was measured.
        wall_s: real time of the run (s).
    """

    order: RunOrder
    status: Literal["done", "failed", "interrupted", "elsewhere"]
    error: str = ""
    accuracy: float | None = None
    wall_s: float = 0.0


class StudyProgress:
    """Shows on a console how far the runs of a study are, and how much real time is left.

    The workers' pool calls its methods when runs begin, report and end. A run is identified by its
    index in the list of orders that ``begin`` received.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None
        self._file: ProgressFile | None = None

    def keep_in(self, folder: Path) -> None:
        """Also show the progress in a file, for pages that show the study.

        Args:
            folder: the study's folder, which exists.
        """
        if self._file is None:
            self._file = ProgressFile(folder)

    def begin(self, orders: Sequence[RunOrder], finished: int) -> None:
        """Start the display for a new list of runs to carry out.

        Args:
            orders: the runs, which the other methods name by their index in this list.
            finished: count of runs of the study that are already finished.
        """
        self._stop_live()
        self._orders = orders
        self._shares = [0.0] * len(orders)  # how far each run is, 0..1
        self._ended = 0  # count of runs that are done or failed
        self._rounds: dict[int, int] = {}  # rounds of each active run
        self._start_time = time.perf_counter()
        self._last_line = self._start_time  # real time of the last printed line
        self._print(f"{counted(len(orders), 'run')} to do, {finished} done")
        if self._console.is_terminal and orders:
            self._live = Progress(*progress_columns(), console=self._console, transient=True)
            self._bar_id = self._live.add_task("workers start", total=len(orders))
            self._live.start()

    def started(self, order_index: int) -> None:
        """Show that a worker has begun a run of the study.

        Args:
            order_index: index of the run in the orders that ``begin`` received.
        """
        self._rounds[order_index] = 0
        self._show_progress()

    def take(self, order_index: int, news: News) -> None:
        """Show a worker's message about its run: the progress (0..1), or a note to the user.

        Args:
            order_index: index of the run in the orders that ``begin`` received.
            news: the message.
        """
        order = self._orders[order_index]
        if news["event"] != "progress":
            self._print(f"{clean(order.label)}: {news['text']}")
            if self._file is not None:
                self._file.take_note(order.label, news["text"])
            return
        self._shares[order_index] = news["share"]
        self._rounds[order_index] = news["rounds"]
        if self._file is not None:
            self._file.take_share(order.label, news["share"])
        self._show_progress()

    def ended(self, order_index: int, run: Ended) -> None:
        """Show the outcome of a run.

        Args:
            order_index: index of the run in the orders that ``begin`` received.
            run: the outcome.
        """
        if run.status in ("done", "failed"):
            self._ended += 1
            self._shares[order_index] = 1.0
        self._rounds.pop(order_index, None)
        self._last_line = time.perf_counter()
        self._print(
            f"{self._count_and_time_left()}: {clean(run.order.label)}: {_describe_state(run)}"
        )
        if self._file is not None:
            self._file.end(run.order.label, run.error)

    def tell(self, text: str) -> None:
        """Print a line of text above the display of the progress.

        Args:
            text: the line.
        """
        self._print(text)

    def close(self) -> None:
        self._stop_live()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show_progress(self) -> None:
        """Show how many runs are done, the remaining time, and the rounds of active runs.

        On a terminal, the display is updated immediately; other output gets a line every few
        seconds.
        """
        text = f"{self._count_and_time_left()}{self._describe_active_runs()}"
        if self._live is not None:
            self._live.update(self._bar_id, completed=sum(self._shares), description=text)
            return
        now = time.perf_counter()
        if now - self._last_line >= _PLAIN_EVERY_S:
            self._last_line = now
            self._print(text)

    def _count_and_time_left(self) -> str:
        runs_done = sum(self._shares)
        count = f"{self._ended}/{len(self._orders)}"
        if runs_done < _LEAST_DONE or runs_done == len(self._orders):
            return count
        elapsed_s = time.perf_counter() - self._start_time
        left_s = elapsed_s * (len(self._orders) / runs_done - 1)
        return f"{count}, about {show_seconds(left_s)} left"

    def _describe_active_runs(self) -> str:
        """Return a text on the rounds of a few active runs, and on how many more are active."""
        runs = []
        for order_index, rounds in list(self._rounds.items())[:_MOST_NAMED_RUNS]:
            label = clean(self._orders[order_index].label)
            runs.append(f"{label}: round {rounds}" if rounds else f"{label} begins")
        unnamed_count = len(self._rounds) - len(runs)
        if unnamed_count:
            runs.append(f"{unnamed_count} more at work")
        return "".join(f"; {run}" for run in runs)

    def _print(self, text: str) -> None:
        self._console.print(Text(clean(text, _LONGEST_LINE)), soft_wrap=True)


def _describe_state(run: Ended) -> str:
    if run.status == "interrupted":
        return "interrupted, to be gone on with"
    if run.status == "failed":
        return f"failed: {run.error}"
    if run.status == "elsewhere":
        return "another process carries it out"
    best = "" if run.accuracy is None else f"best accuracy {run.accuracy:.4f}, "
    return f"{best}{show_seconds(run.wall_s)}"


def _outcome_of_death(order: RunOrder, code: int) -> Ended:
    """Return the outcome of a run whose worker process has died.

    The status is ``interrupted`` if a signal to stop killed the worker, and ``failed`` otherwise.
    Batch systems send such a signal to all processes of a job, even to a worker that has just
    started and cannot handle it yet.

    Args:
        order: the run that the worker carried out.
        code: exit code of the worker; negative for a signal.
    """
    if -code in interrupting_signals():
        return Ended(order, "interrupted")
    reason = f"status {code}"
    if code < 0:
        reason = f"signal {-code} ({signal.strsignal(-code)})"
    return Ended(order, "failed", f"its process ended with {reason}")


_Process: TypeAlias = "subprocess.Popen[str]"

_GRACE_S = 30.0  # an idle worker that does not end within this time is killed


class WorkerPool:
    """Worker processes on this machine that carry out the runs of a study.

    Args:
        workers: greatest number of processes.
        progress: display that is called with the workers' messages, from one thread at a time.
        keep: file descriptors that the workers inherit. A lock on the study's folder then lasts
            until the last worker ends.
        most_bytes: a worker whose peak memory (bytes) is greater is replaced after its run.
        gpus: names of GPUs, over which the workers are spread evenly. Each worker sees a single
            GPU. Empty if workers see all GPUs.
    """

    def __init__(
        self,
        workers: int,
        progress: StudyProgress,
        keep: Sequence[int] = (),
        most_bytes: int = 1 << 30,
        gpus: Sequence[str] = (),
    ) -> None:
        self._gpu_shares = GpuShares(gpus)
        # worker -> the only GPU that it sees; None if it sees all GPUs
        self._gpu_of: dict[_Process, str | None] = {}
        self._progress = progress
        self._keep = keep
        self._most_bytes = most_bytes
        self._threads = ThreadPoolExecutor(workers)  # each thread waits for the end of one run
        self._workers: list[_Process] = []  # all worker processes, idle or not
        self._idle: list[_Process] = []
        self._lock = threading.Lock()  # held to take a worker, and to call ``_progress``
        self._interrupted = False  # once True, no run is started

    def interrupt(self, number: int) -> None:
        """Start no other run, and send a signal to active workers, which save their runs.

        Safe in a signal handler.

        Args:
            number: the signal to send.
        """
        self._interrupted = True
        for worker in self._workers.copy():
            worker.send_signal(number)

    def run(self, orders: Sequence[RunOrder]) -> list[Ended]:
        """Carry out runs, several at a time, and wait for their ends.

        Args:
            orders: the runs.

        Returns:
            The outcome of each run, in the order of ``orders``. A run that was never started has
            status ``interrupted``.
        """
        futures = []
        for order_index, order in enumerate(orders):
            futures.append(self._threads.submit(self._carry_out, order_index, order))
        return [future.result() for future in futures]

    def close(self) -> None:
        """Kill the workers that carry out a run, and wait until idle workers end."""
        self._interrupted = True
        for worker in self._workers.copy():
            if worker not in self._idle:
                worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers.copy():
            self._end_worker(worker)

    def _carry_out(self, order_index: int, order: RunOrder) -> Ended:
        """Carry out a run in an idle or new worker, and return its outcome."""
        if self._interrupted:
            return Ended(order, "interrupted")
        with self._lock:
            worker = self._idle.pop() if self._idle else self._start_worker()
            self._progress.started(order_index)
        news = self._carry_out_with(worker, order_index, order)
        if news is not None:
            ended = Ended(order, **news["run"])
        elif self._interrupted:  # the signal may have killed the worker before it could handle it
            ended = Ended(order, "interrupted")
        else:
            ended = _outcome_of_death(order, worker.wait())
        with self._lock:
            self._progress.ended(order_index, ended)
        # a worker without news is dead; a worker that needed much memory would not give it all back
        if news is None or news["peak_bytes"] > self._most_bytes:
            self._end_worker(worker)
        else:
            self._idle.append(worker)
        return ended

    def _carry_out_with(self, worker: _Process, order_index: int, order: RunOrder) -> News | None:
        """Send an order to a worker, and show the worker's messages until the run ends.

        Args:
            worker: an idle worker.
            order_index: index of the order.
            order: the run to carry out.

        Returns:
            The worker's last message, with the run's outcome; None if the worker died before.
        """
        assert worker.stdin is not None
        assert worker.stdout is not None
        if self._interrupted:  # a worker that was started after the interrupt got no signal
            return {"run": {"status": "interrupted"}, "peak_bytes": 0}
        with suppress(BrokenPipeError):  # if the worker has died, the end of its output shows that
            message = {
                "scenario": order.scenario,
                "folder": str(order.folder),
                "waits": order.waits,
            }
            worker.stdin.write(json.dumps(message) + "\n")
            worker.stdin.flush()
        for line in worker.stdout:
            news: News = json.loads(line)
            if news["event"] == "ended":
                return news
            with self._lock:
                self._progress.take(order_index, news)
        return None

    def _start_worker(self) -> _Process:
        """Start a worker process.

        If the pool spreads workers over GPUs, the process sees only the GPU with the fewest
        workers.
        """
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "encoding": "utf-8",
        }
        gpu = self._gpu_shares.take()
        variables = GpuShares.variables(gpu)
        worker = start(
            "fedsim.lab.study.worker", "main", variables=variables, **pipes, pass_fds=self._keep
        )
        self._gpu_of[worker] = gpu
        self._workers.append(worker)
        return worker

    def _end_worker(self, worker: _Process) -> None:
        self._workers.remove(worker)
        self._gpu_shares.give_back(self._gpu_of.pop(worker))
        try:
            worker.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
