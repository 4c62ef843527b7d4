"""Runs carried out side by side by worker processes, one run a process at a time; a thread waits
for each process.

A worker that dies takes one run with it and is replaced. One that has used much memory is replaced
after its run, since a process does not return memory to the system. When this process dies, its
workers notice, save their runs and end; file descriptors that they inherit (``keep``, a lock) are
held until the last of them is gone.
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

from fedsim.clock.executors import start
from fedsim.common.harmless import clean
from fedsim.common.units import show_seconds
from fedsim.lab.terminal import Console, bar

News: TypeAlias = Mapping[str, Any]

_LONGEST = 1000  # characters of a line


@dataclass(frozen=True)
class RunOrder:
    """A run to carry out."""

    label: str  # for people
    scenario: str  # as TOML
    folder: Path
    # there is no folder; remove the folder first; from its checkpoint
    how: Literal["new", "anew", "resume"]


@dataclass(frozen=True)
class Ended:
    """Ending of a run: ``failed`` with an error, or else with its best accuracy (0..1), if any,
    and duration (s).
    """

    order: RunOrder
    status: Literal["done", "failed", "interrupted"]
    error: str = ""
    accuracy: float | None = None
    wall_s: float = 0.0


class StudyProgress:
    """Shows how far all runs are, and the real time left.

    Runs are known by the place of their order in the list.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Progress | None = None

    def begin(self, orders: Sequence[RunOrder], there: int) -> None:
        """These orders are to be carried out; ``there`` runs of the study are done already."""
        self.close()
        self._orders = orders
        self._shares = [0.0] * len(orders)
        self._ended = 0
        self._began = time.perf_counter()
        self._print(f"{len(orders)} runs to do, {there} are there")
        if self._console.is_terminal and orders:
            self._live = Progress(*bar(), console=self._console, transient=True)
            self._all = self._live.add_task("", total=len(orders))
            self._live.start()

    def take(self, place: int, news: News) -> None:
        """News of a run from its worker: a ``progress`` (0..1), or a note for the user."""
        order = self._orders[place]
        if news["event"] != "progress":
            self._print(f"{clean(order.label)}: {news['text']}")
            return
        self._shares[place] = news["share"]
        if self._live is not None:
            self._live.update(self._all, completed=sum(self._shares), description=self._so_far())

    def ended(self, place: int, run: Ended) -> None:
        said = "interrupted, to be gone on with"
        if run.status != "interrupted":
            self._ended += 1
            self._shares[place] = 1.0
            best = "" if run.accuracy is None else f"best accuracy {run.accuracy:.4f}, "
            said = (
                f"failed: {run.error}"
                if run.status == "failed"
                else f"{best}{show_seconds(run.wall_s)}"
            )
        self._print(f"{self._so_far()}: {clean(run.order.label)}: {said}")

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _so_far(self) -> str:
        done = sum(self._shares)
        if done == len(self._orders):
            return f"{self._ended}/{len(self._orders)}"
        time_left = (
            show_seconds((time.perf_counter() - self._began) * (len(self._orders) / done - 1))
            if done
            else "unknown"
        )
        return f"{self._ended}/{len(self._orders)}, about {time_left} left"

    def _print(self, text: str) -> None:
        self._console.print(Text(clean(text, _LONGEST)), soft_wrap=True)


_Process: TypeAlias = "subprocess.Popen[str]"

_GRACE_S = 30.0  # a worker without work that does not end within this time is killed


class WorkerPool:
    """Carries out orders, with the same processes each time, until it is closed.

    Args:
        progress: receives the news of the runs, from one thread at a time.
        most_bytes: of memory; a worker that has used more takes no further run.
        keep: file descriptors that the workers inherit.
    """

    def __init__(
        self,
        workers: int,
        progress: StudyProgress,
        keep: Sequence[int] = (),
        most_bytes: int = 1 << 30,
    ) -> None:
        self._progress = progress
        self._keep = keep
        self._most_bytes = most_bytes
        self._threads = ThreadPoolExecutor(workers)
        self._workers: list[_Process] = []
        self._idle: list[_Process] = []
        self._lock = threading.Lock()
        self._interrupted = False

    def interrupt(self, number: int) -> None:
        """Begin no further run, and pass a signal on to those under way: they save themselves.

        Safe in its handler.
        """
        self._interrupted = True
        for worker in self._workers.copy():
            worker.send_signal(number)

    def run(self, orders: Sequence[RunOrder]) -> list[Ended]:
        """Carry out the orders; returns how each run ended, in their order.

        Those never begun count as interrupted.
        """
        runs = [
            self._threads.submit(self._carry_out, place, order)
            for place, order in enumerate(orders)
        ]
        return [run.result() for run in runs]

    def close(self) -> None:
        """Let all workers end; those still at work are killed."""
        self._interrupted = True
        for worker in self._workers.copy():
            if worker not in self._idle:
                worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._workers.copy():
            self._dismiss(worker)

    def _carry_out(self, place: int, order: RunOrder) -> Ended:
        if self._interrupted:
            return Ended(order, "interrupted")
        with self._lock:
            worker = self._idle.pop() if self._idle else self._hire()
        news = self._watch(worker, place, order)
        # also of a worker that was interrupted before it had installed its handlers
        ended = Ended(order, "interrupted")
        if news is not None:
            ended = Ended(order, **news["run"])
        elif not self._interrupted:
            code = worker.wait()
            reason = (
                f"status {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"
            )
            ended = Ended(order, "failed", f"its process ended with {reason}")
        with self._lock:
            self._progress.ended(place, ended)
        if news is None or news["peak_bytes"] > self._most_bytes:
            self._dismiss(worker)
        else:
            self._idle.append(worker)
        return ended

    def _watch(self, worker: _Process, place: int, order: RunOrder) -> News | None:
        """Let a worker carry out an order; returns its last news, None if the worker dies
        before.
        """
        assert worker.stdin is not None
        assert worker.stdout is not None
        if self._interrupted:  # before the worker was started
            return {"run": {"status": "interrupted"}, "peak_bytes": 0}
        with suppress(BrokenPipeError):  # the worker died before it began: its output ends
            worker.stdin.write(
                json.dumps(
                    {"scenario": order.scenario, "folder": str(order.folder), "how": order.how}
                )
                + "\n"
            )
            worker.stdin.flush()
        for line in worker.stdout:
            news: News = json.loads(line)
            if news["event"] == "ended":
                return news
            with self._lock:
                self._progress.take(place, news)
        return None

    def _hire(self) -> _Process:
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "encoding": "utf-8",
        }
        self._workers.append(start("fedsim.lab.study.worker", "main", **pipes, pass_fds=self._keep))
        return self._workers[-1]

    def _dismiss(self, worker: _Process) -> None:
        self._workers.remove(worker)
        try:
            worker.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
