"""Executors run the real work. An executor decides how long work takes in real time, and nothing
else.

Work that needs a process of its own goes to worker processes of this machine, which carry out one
call at a time. Calls and answers are pickles on their pipes; a worker's output goes to this
process's standard error.
"""

import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from fedsim.common.errors import ScenarioError, SimulationError, nearest
from fedsim.common.imports import at, learn, places

EXECUTORS = {
    "inline": "all work in one thread",
    "threads": "a thread a core of this machine",
    "ray": "processes on this machine, or on all machines of a Ray cluster (needs the extra ray)",
}
_CODE = """import sys
sys.path[:] = {path!r}
from fedsim.common.imports import learn
learn({places!r})
from {module} import {name}
{name}()"""


class Executor(Protocol):
    """Runs functions somewhere, at some time, in any order; the simulation never looks at when
    they finish.
    """

    workers: int

    def place(self, thing: Any) -> None:
        """Broadcast an immutable object, which goes into many calls, to all workers."""
        return

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Start ``function(*args)``; its value or exception comes through the future.

        It may run in another process, on copies of the arguments. An array that is read-only
        never changes.
        """
        ...

    def submit_alone(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Like ``submit``, in a process that runs nothing else meanwhile; the function stands at
        the top of a module.
        """
        return self.submit(function, *args)

    def close(self) -> None:
        """Free the workers. Work that was not begun is dropped."""
        return


def make_executor(
    name: str, workers: int | None = None, address: str | None = None, device: str = "cpu"
) -> Executor:
    """An executor by name (``--executor``), with so many threads or processes (by default one a
    core), for a device.

    ``address`` is that of a Ray cluster that is there, with workers of its own: ``HOST:PORT``, or
    ``auto``. Raises ``ScenarioError`` where there is no such executor or cluster, or it cannot do
    what is asked.
    """
    if workers is not None and workers < 1:
        raise ScenarioError(f"--workers is {workers}; allowed is 1 or more")
    if address is not None and name in EXECUTORS and name != "ray":
        raise ScenarioError(
            f"--address is {address!r}, but --executor is {name!r}; only 'ray' has an address"
        )
    if name == "inline":
        if workers not in (None, 1):
            raise ScenarioError(
                f"--workers is {workers}, but --executor is 'inline', which computes in one thread"
            )
        return Inline()
    if name == "threads":
        return Threads(workers or os.cpu_count() or 1)
    if name != "ray":
        raise ScenarioError(
            f"--executor is {name!r}; allowed are {', '.join(EXECUTORS)}{nearest(name, EXECUTORS)}"
        )
    if address is not None and workers is not None:
        raise ScenarioError(
            f"--workers is {workers}, but the cluster at --address {address!r} has its own "
            "number of them"
        )
    if device != "cpu":
        raise ScenarioError(
            f"training.device is {device!r}, but --executor is 'ray', whose workers use CPUs alone"
        )
    made: Executor = at("fedsim.toolbox.ray:Ray", "--executor")(address, workers)
    return made


class Inline(Executor):
    """Runs each function in the calling thread when it is submitted: the reference for all
    others.
    """

    workers = 1

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """A pool of ``workers`` threads: torch, numpy and compiled loops release the interpreter lock.

    ``submit_alone`` uses as many processes, or with one thread this process.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="fedsim")
        self._processes: WorkerProcesses | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        return self._pool.submit(function, *args)

    def submit_alone(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        if self.workers == 1:
            return self.submit(function, *args)
        if self._processes is None:
            self._processes = WorkerProcesses(self.workers)
        return self._processes.submit(function, *args)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()


def start(module: str, name: str, *words: str, **options: Any) -> "subprocess.Popen[Any]":
    """Start a fresh Python that calls a function of fedsim's, with ``words`` as its command
    line, in a session of its own.

    It has this process's search path without the working directory, and its allowed code. Unlike
    a process of ``multiprocessing`` it does not run the user's program again.
    """
    here = Path.cwd().resolve()
    home = str(Path(__file__).absolute().parents[2])
    now = list(sys.path)  # another thread may change it meanwhile, as a Flower app in use does
    path = [place for place in now if Path(place).is_absolute() and Path(place).resolve() != here]
    code = _CODE.format(path=[*path, home], places=places(), module=module, name=name)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


class WorkerProcesses:
    """``workers`` processes, each the child of a thread that starts it when it is first needed."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="fedsim-process")
        self._own = threading.local()
        self._all: list[subprocess.Popen[bytes]] = []

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Queue ``function(*args)``; the function stands at the top of a module."""
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if not hasattr(self._own, "worker"):
            self._own.worker = start(
                "fedsim.clock.executors", "serve", stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._all.append(self._own.worker)
        worker = self._own.worker
        try:
            # of modules that were allowed by now, so that the next pickle can name them
            pickle.dump(places(), worker.stdin)
            pickle.dump((function, args), worker.stdin, protocol=5)
            worker.stdin.flush()
            done, outcome = read_answer(worker.stdout).outcome()
        except (EOFError, BrokenPipeError) as error:
            del self._own.worker
            raise SimulationError(
                f"a worker process ended while it worked (exit status {worker.wait()})"
            ) from error
        if done:
            return outcome
        raise outcome

    def close(self) -> None:
        """Drop queued work and kill the workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.kill()
        self._threads.shutdown()
        for worker in self._all:
            worker.communicate()


def serve() -> None:
    """Carry out one call after another, in a worker, until its pipe is closed."""
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints is no answer
    while True:
        try:
            learn(pickle.load(calls))
            function, args = pickle.load(calls)
        except EOFError:
            return
        answer(partial(function, *args)).write(answers)
        answers.flush()


class Answer(NamedTuple):
    """The outcome of work: a pickle of (True, its value) or (False, its error).

    Attributes:
        content: the pickle without the memory of its arrays.
        buffers: the memory of each array, which is not copied into the pickle.
    """

    content: bytes
    buffers: Sequence[Any] = ()

    def write(self, stream: BinaryIO) -> None:
        """Write the answer, for ``read_answer``."""
        views = [pickle.PickleBuffer(buffer).raw() for buffer in self.buffers]
        pickle.dump((self.content, [view.nbytes for view in views]), stream, protocol=5)
        for view in views:
            stream.write(view)

    def outcome(self) -> tuple[bool, Any]:
        """Whether the work succeeded, and its value or error."""
        succeeded, value = pickle.loads(self.content, buffers=self.buffers)
        return succeeded, value


def read_answer(stream: BinaryIO) -> Answer:
    """Read an answer that ``Answer.write`` has written, arrays into memory of their own.

    Raises:
        EOFError: the stream ends before.
    """
    content, sizes = pickle.load(stream)
    buffers = []
    for size in sizes:
        buffer = bytearray(size)
        if stream.readinto(buffer) < size:  # type: ignore[attr-defined]
            raise EOFError
        buffers.append(buffer)
    return Answer(content, buffers)


def answer(work: Callable[[], Any]) -> Answer:
    """Do some work; its value, or its error, or a ``SimulationError`` if that has no pickle."""
    try:
        outcome = True, work()
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        outcome = False, error
    buffers: list[pickle.PickleBuffer] = []
    try:
        content = pickle.dumps(outcome, protocol=5, buffer_callback=buffers.append)
        if not outcome[0]:
            pickle.loads(content, buffers=buffers)
        return Answer(content, buffers)
    except Exception as error:
        wrong = error if outcome[0] else outcome[1]
        failure = SimulationError(f"{type(wrong).__name__}: {wrong}")
        return Answer(pickle.dumps((False, failure), protocol=5))
