"""Work in processes of this machine that each do one thing at a time, for what cannot share a process with anything else.

Calls and answers are pickles on a worker's pipes; what the work prints goes to this process's errors.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

from fedsim.errors import SimulationError
from fedsim.executors.base import answer
from fedsim.language.imports import learn, places

_CODE = """import sys
sys.path[:] = {path!r}
from fedsim.language.imports import learn
learn({places!r})
from {module} import {name}
{name}()"""


def start(module: str, name: str, *words: str, **options: Any) -> "subprocess.Popen[Any]":
    """Start a fresh Python that calls a function of fedsim's, with ``words`` as its command line, in a session of its own.

    It searches for modules where this process does, but for the working directory, and knows the code that was allowed here.
    Unlike the processes of ``multiprocessing`` it does not run the user's program again.
    """
    here, home = Path.cwd().resolve(), str(Path(__file__).absolute().parents[2])
    places_now = list(sys.path)  # at once: another thread may change it meanwhile, as a Flower app in use does
    path = [place for place in places_now if Path(place).is_absolute() and Path(place).resolve() != here]
    code = _CODE.format(path=[*path, home], places=places(), module=module, name=name)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


class WorkerProcesses:
    """``workers`` processes, each started when it is first needed."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="fedsim-process")
        self._free: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            self._free.put(None)

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Queue ``function(*args)``; the function stands at the top of a module."""
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        worker = self._free.get()
        try:
            if worker is None:
                worker = start("fedsim.executors.processes", "serve", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self._all.append(worker)
            calls, answers = cast("IO[bytes]", worker.stdin), cast("IO[bytes]", worker.stdout)
            pickle.dump(places(), calls)  # of modules that were allowed by now, so that the next pickle can name them
            pickle.dump((function, args), calls, protocol=5)
            calls.flush()
            done, outcome = pickle.load(answers)
        except (EOFError, BrokenPipeError) as error:
            code, worker = None if worker is None else worker.wait(), None
            raise SimulationError(f"a worker process ended while it worked (exit status {code})") from error
        finally:
            self._free.put(worker)
        if done:
            return outcome
        raise outcome

    def close(self) -> None:
        """Drop queued work and end the workers, whatever they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.kill()
        self._threads.shutdown()
        for worker in self._all:
            worker.communicate()


def serve() -> None:
    """Carry out one call after another, in a worker, until its pipe is closed."""
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints is no answer
    while True:
        try:
            learn(pickle.load(calls))
            function, args = pickle.load(calls)
        except EOFError:
            return
        answers.write(answer(partial(function, *args)))
        answers.flush()
