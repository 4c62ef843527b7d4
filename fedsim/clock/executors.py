"""Executors, which run the real computations of a simulation, such as local training.

The choice of an executor changes the real time of a run, but no result. Work that must be the only
work in its process goes to worker processes of this machine, which carry out one call at a time.
Calls and answers are pickles on pipes. The output of a worker goes to this process's stderr.
"""

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, Protocol, TypeVar

from fedsim.clock.placement import TaskResources
from fedsim.common.errors import ScenarioError, SimulationError, nearest
from fedsim.common.imports import adopt_module_locations, import_trusted, module_locations
from fedsim.common.machine import GpuShares, usable_cores, usable_gpus

EXECUTORS = {
    "inline": "all work in one thread",
    "threads": "a thread a core of this machine; all use the same GPU",
    "processes": "a process a core of this machine, or a process a GPU, and each sees one GPU",
    "ray": "processes on this machine, or on all machines of a Ray cluster (needs the extra ray)",
}
T = TypeVar("T")
_CODE = """import sys
sys.path[:] = {path!r}
from fedsim.common.imports import adopt_module_locations
adopt_module_locations({locations!r})
from {module} import {name}
{name}()"""


class Executor(Protocol):
    """Interface of executors, which carry out real computations such as trainings.

    Functions may finish in any order; the results of a simulation do not depend on it.

    Attributes:
        workers: largest count of functions that run at the same time.
        gpus: names of the GPUs of this machine among which the worker processes are divided; each
            process sees one of them. Empty if all workers see the GPUs of this process.
    """

    workers: int
    gpus: Sequence[str] = ()

    def place(self, thing: object) -> None:
        """Send an immutable object to all workers once, so that later calls need not copy it.

        Args:
            thing: the object, which many calls of ``submit`` take as an argument.
        """
        return

    def submit(self, function: Callable[..., T], *args: object) -> "Future[T]":
        """Start ``function(*args)``, maybe in another process, on copies of the arguments.

        Args:
            function: the function.
            args: its arguments; the function must not change read-only arrays.

        Returns:
            A future of the function's value or exception.
        """
        ...

    def submit_alone(self, function: Callable[..., T], *args: object) -> "Future[T]":
        """Start ``function(*args)`` in a process that runs no other function at the same time.

        Args:
            function: the function, defined at the top level of a module.
            args: its arguments.

        Returns:
            A future of the function's value or exception.
        """
        return self.submit(function, *args)

    def close(self) -> None:
        """End the workers, and drop calls that have not begun."""
        return


def make_executor(
    name: str | None,
    workers: int | None = None,
    address: str | None = None,
    device: str = "cpu",
    resources: str | Mapping[str, object] | None = None,
) -> Executor:
    """Make the executor that the command-line options ask for.

    Args:
        name: a key of ``EXECUTORS`` (``--executor``). None for ``threads``, or for ``processes``
            if ``device`` is ``cuda``, this process sees several GPUs, and ``workers`` is not 1.
        workers: number of threads or processes (``--workers``); by default one per core that this
            process may use, or one per GPU for ``processes`` with the device ``cuda``.
        address: address of a running Ray cluster, ``HOST:PORT`` or ``auto`` (``--address``).
        device: torch's name of the device that computes (``training.device``).
        resources: resources that each task on Ray reserves (``--resources``), as
            ``TaskResources.read`` takes them; by default one core.

    Raises:
        ScenarioError: there is no such executor or cluster, or these options exclude each other.
    """
    if workers is not None and workers < 1:
        raise ScenarioError(f"--workers is {workers}; allowed is 1 or more")
    # For "cuda:1" each worker has to see all GPUs, as the number counts all of them.
    gpus = usable_gpus() if device == "cuda" else []
    if name is None:
        name = "processes" if len(gpus) > 1 and workers != 1 else "threads"
    if name not in EXECUTORS:
        raise ScenarioError(
            f"--executor is {name!r}; allowed are {', '.join(EXECUTORS)}{nearest(name, EXECUTORS)}"
        )
    if name == "ray":
        return _make_ray(workers, address, device, resources)
    if address is not None:
        raise ScenarioError(
            f"--address is {address!r}, but --executor is {name!r}; only 'ray' has an address"
        )
    if resources is not None:
        raise ScenarioError(
            f"--resources is {resources!r}, but --executor is {name!r}; only 'ray' places tasks by "
            "their resources"
        )
    if name == "inline":
        if workers not in (None, 1):
            raise ScenarioError(
                f"--workers is {workers}, but --executor is 'inline', which computes in one thread"
            )
        return Inline()
    if name == "threads":
        return Threads(workers or usable_cores())
    return WorkerProcesses(workers or len(gpus) or usable_cores(), gpus[:workers])


def _make_ray(
    workers: int | None,
    address: str | None,
    device: str,
    resources: str | Mapping[str, object] | None,
) -> Executor:
    if address is not None and workers is not None:
        raise ScenarioError(
            f"--workers is {workers}, but the cluster at --address {address!r} has its own "
            "number of them"
        )
    task_resources = TaskResources.read(resources)
    _refuse_unplaced(device, task_resources)
    ray_class = import_trusted("fedsim.toolbox.ray.executor:Ray", "--executor")
    executor: Executor = ray_class(address, workers, task_resources)
    return executor


def _refuse_unplaced(device: str, resources: TaskResources) -> None:
    """Raise ``ScenarioError`` if tasks on Ray would not have the device on which the run computes.

    Args:
        device: torch's name of the device, such as ``cuda``.
        resources: cores, GPUs and memory that each task reserves; a task sees no other GPUs.
    """
    if device == "cpu":
        return
    if device not in ("cuda", "cuda:0"):
        raise ScenarioError(
            f"training.device is {device!r}, but --executor is 'ray'; allowed are 'cpu', and 'cuda' "
            "with num_gpus in --resources, as a task sees only the GPU that Ray gives it"
        )
    if not resources.num_gpus:
        raise ScenarioError(
            f"training.device is {device!r}, but --executor is 'ray', whose tasks have no GPU; "
            """--resources '{"num_gpus": 1}' gives each one"""
        )


class Inline(Executor):
    """Executor that runs each function at once in the calling thread."""

    workers = 1

    def submit(self, function: Callable[..., T], *args: object) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """Executor with a pool of threads.

    Threads compute in parallel as far as torch, numpy and compiled loops release Python's global
    lock. ``submit_alone`` uses a pool of processes, or the thread if there is one worker.

    Args:
        workers: count of threads, and of processes.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="fedsim")
        self._processes: WorkerProcesses | None = None

    def submit(self, function: Callable[..., T], *args: object) -> "Future[T]":
        return self._pool.submit(function, *args)

    def submit_alone(self, function: Callable[..., T], *args: object) -> "Future[T]":
        if self.workers == 1:
            return self.submit(function, *args)
        if self._processes is None:
            self._processes = WorkerProcesses(self.workers)
        return self._processes.submit(function, *args)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._processes is not None:
            self._processes.close()


def start(
    module: str,
    name: str,
    *words: str,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> "subprocess.Popen[Any]":
    """Start a new Python process that calls a function of fedsim, in a new session.

    The new process has the search path of this process without the working directory, and can
    import the users' code that this process was allowed to import. Unlike a process of
    ``multiprocessing`` it does not run the user's program again.

    Args:
        module: the function's module.
        name: name of the function.
        words: command line of the process.
        variables: environment variables, in addition to those of this process.
        options: other arguments of ``subprocess.Popen``.
    """
    working_directory = Path.cwd().resolve()
    fedsim_folder = str(Path(__file__).absolute().parents[2])
    # copied, because another thread may change it during the call, as a Flower app does
    absolute = [place for place in list(sys.path) if Path(place).is_absolute()]
    path = [place for place in absolute if Path(place).resolve() != working_directory]
    code = _CODE.format(
        path=[*path, fedsim_folder], locations=module_locations(), module=module, name=name
    )
    environment = {**os.environ, **(variables or {})}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


class WorkerProcesses(Executor):
    """Executor with a pool of processes, each started at the first call that needs it.

    Calls go to a process as pickles. An object that was given to ``place`` is sent to each process
    once, before the process's next call.

    Args:
        workers: count of processes.
        gpus: names of GPUs. Each process sees one of them, the one that the fewest other processes
            see. Empty if the processes see the GPUs that this process sees.
    """

    def __init__(self, workers: int, gpus: Sequence[str] = ()) -> None:
        self.workers = workers
        self.gpus = tuple(gpus)
        self._shares = GpuShares(gpus)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="fedsim-process")
        self._of_thread = threading.local()
        self._processes: list[_WorkerProcess] = []
        self._placed: list[object] = []

    def place(self, thing: object) -> None:
        if not any(thing is placed for placed in self._placed):
            self._placed.append(thing)

    def submit(self, function: Callable[..., T], *args: object) -> "Future[T]":
        """Queue ``function(*args)``.

        Args:
            function: the function, defined at the top level of a module, or a method.
            args: its arguments.

        Returns:
            A future of the function's value or exception; of ``SimulationError`` if the call cannot
            be pickled, or if its process ends.
        """
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., T], args: tuple[object, ...]) -> T:
        """Call a function in a worker process, and return its value; wait until it is done.

        Each thread of the pool has its own process, which is started at the thread's first call.
        """
        if not hasattr(self._of_thread, "worker"):
            self._of_thread.worker = _WorkerProcess(self._shares.take())
            self._processes.append(self._of_thread.worker)
        worker: _WorkerProcess = self._of_thread.worker
        try:
            answer = worker.call(self._placed, function, args)
        except (EOFError, BrokenPipeError) as error:
            del self._of_thread.worker
            self._shares.give_back(worker.gpu)
            status = worker.process.wait()
            raise SimulationError(_describe_end(status, function)) from error
        is_done, outcome = answer.outcome()
        if not is_done:
            raise outcome
        result: T = outcome
        return result

    def close(self) -> None:
        """Drop queued work and kill the workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._processes:
            worker.process.kill()
        self._threads.shutdown()
        for worker in self._processes:
            worker.process.communicate()


def _describe_end(status: int, function: Callable[..., object]) -> str:
    """Return an error message on a worker process that has ended.

    Args:
        status: its exit status; negative if a signal has ended it.
        function: the function that it was carrying out.
    """
    reason = f"exit status {status}"
    advice = ""
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        reason = f"signal {name}"
        if number == signal.SIGKILL:
            advice = "; the system may have run out of memory: use fewer --workers"
        else:
            advice = (
                "; the code of a library has crashed: a run with --executor inline and "
                "PYTHONFAULTHANDLER=1 shows where"
            )
    work = getattr(function, "__qualname__", str(function))
    return f"a worker process ended in {work} ({reason}){advice}"


class _WorkerProcess:
    """One process of ``WorkerProcesses``, which carries out one call at a time.

    Args:
        gpu: name of the only GPU that the process sees; None if it sees the GPUs that this process
            sees.

    Attributes:
        gpu: as the argument.
        process: the started process.
    """

    def __init__(self, gpu: str | None) -> None:
        self.gpu = gpu
        self.process: subprocess.Popen[bytes] = start(
            "fedsim.clock.executors",
            "serve",
            variables=GpuShares.variables(gpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._received = 0  # count of placed objects that the process has

    def call(
        self, placed: Sequence[object], function: Callable[..., object], args: tuple[object, ...]
    ) -> "Answer":
        """Call a function in the process, and wait for its outcome.

        The process first receives the placed objects (see ``placed``) that it does not have yet.

        Args:
            placed: all objects that are sent only once per process, in the order in which they were
                given to ``place``. An object may refer to earlier ones.
            function: the function.
            args: its arguments.

        Returns:
            The pickled value, or the exception that the function raised.

        Raises:
            EOFError, BrokenPipeError: the process has ended.
            SimulationError: the call cannot be pickled.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for position in range(self._received, len(placed)):
            self._send(placed[position], placed[:position])
            self._received += 1
        self._send(_WorkerCall(function, args), placed)
        self.process.stdin.flush()
        return read_answer(self.process.stdout)

    def _send(self, thing: object, placed: Sequence[object]) -> None:
        """Pickle an object into the process's pipe.

        Args:
            thing: the object.
            placed: objects that the process already has; ``thing`` may refer to them, and the pickle has
                only their indices.
        """
        assert self.process.stdin is not None
        buffers: list[pickle.PickleBuffer] = []
        memory = io.BytesIO()
        try:
            _PlacedPickler(memory, placed, buffers.append).dump(thing)
        except Exception as error:  # a user's class raises any kind of error
            raise SimulationError(
                f"work cannot be sent to another process: {type(error).__name__}: {error}; "
                "--executor threads sends none"
            ) from error
        # The locations include modules that were allowed after the process began, as the pickle may
        # refer to these.
        is_call = isinstance(thing, _WorkerCall)
        pickle.dump((module_locations(), is_call), self.process.stdin)
        Pickled(memory.getvalue(), buffers).write(self.process.stdin)


class _WorkerCall(NamedTuple):
    """Call of a function with its arguments, as it is sent to a worker process."""

    function: Callable[..., object]
    args: tuple[object, ...]


class _PlacedPickler(pickle.Pickler):
    """Pickler for a process that already has some objects: it writes only the indices of these.

    Args:
        stream: the stream to write to.
        placed: the objects that the process has.
        take_buffer: called with the memory of each array, which is not copied into the pickle.
    """

    def __init__(
        self,
        stream: BinaryIO,
        placed: Sequence[object],
        take_buffer: Callable[[pickle.PickleBuffer], object],
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=take_buffer)
        self._indices = {id(thing): index for index, thing in enumerate(placed)}

    def persistent_id(self, thing: object) -> int | None:
        return self._indices.get(id(thing))


class _PlacedUnpickler(pickle.Unpickler):
    """Unpickler of ``_PlacedPickler``, which replaces indices by objects that were sent before.

    Args:
        pickled: the pickle.
        placed: the objects that this process has received, each an object, or its pickle until it is
            first needed.
    """

    def __init__(self, pickled: "Pickled", placed: list[object]) -> None:
        super().__init__(io.BytesIO(pickled.content), buffers=pickled.buffers)
        self._placed = placed

    def persistent_load(self, index: int) -> object:
        thing = self._placed[index]
        if isinstance(thing, Pickled):
            thing = _PlacedUnpickler(thing, self._placed).load()
            self._placed[index] = thing
        return thing


def serve() -> None:
    """Main loop of a worker process: it carries out calls until its pipe is closed."""
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the work goes to stderr, as stdout is the pipe of answers
    placed: list[object] = []
    while True:
        try:
            locations, is_call = pickle.load(calls)
            pickled = read_pickled(calls)
        except EOFError:
            return
        adopt_module_locations(locations)
        if is_call:
            answer(partial(_carry_out, pickled, placed)).write(answers)
            answers.flush()
        else:
            placed.append(pickled)


def _carry_out(pickled: "Pickled", placed: list[object]) -> object:
    """Unpickle a ``_WorkerCall``, and return the value of its function."""
    call = _PlacedUnpickler(pickled, placed).load()
    return call.function(*call.args)


class Pickled(NamedTuple):
    """Pickle of an object, with the memory of its arrays kept separately, so that it is not copied.

    Attributes:
        content: the pickle without the memory of arrays.
        buffers: the memory of each array.
    """

    content: bytes
    buffers: Sequence[Any] = ()

    def write(self, stream: IO[bytes]) -> None:
        """Write pickle and arrays to a stream, from which ``read_pickled`` reads them."""
        views = [pickle.PickleBuffer(buffer).raw() for buffer in self.buffers]
        sizes = [(view.nbytes, view.readonly) for view in views]
        pickle.dump((self.content, sizes), stream, protocol=5)
        for view in views:
            stream.write(view)


def read_pickled(stream: IO[bytes]) -> Pickled:
    """Read a pickle and its arrays' memory, as ``Pickled.write`` has written them.

    The arrays get new memory, which is read-only if it was so in the sender.

    Raises:
        EOFError: the stream ends before the pickle does.
    """
    content, sizes = pickle.load(stream)
    buffers: list[bytearray | memoryview] = []
    for size, is_readonly in sizes:
        buffer = bytearray(size)
        if stream.readinto(buffer) < size:  # type: ignore[attr-defined]
            raise EOFError
        buffers.append(memoryview(buffer).toreadonly() if is_readonly else buffer)
    return Pickled(content, buffers)


class Answer(Pickled):
    """Pickled result of a call in a worker process: (True, value) or (False, exception)."""

    def outcome(self) -> tuple[bool, Any]:
        """Return (True, the call's value) or (False, the exception that it raised)."""
        succeeded, value = pickle.loads(self.content, buffers=self.buffers)
        return succeeded, value


def read_answer(stream: IO[bytes]) -> Answer:
    """Read the result of a call from the pipe of the worker process that made the call.

    Args:
        stream: output of the worker, which has written the result by ``Answer.write``.

    Returns:
        The pickled result: the call's value, or the exception that it raised.

    Raises:
        EOFError: the worker has ended before the whole result was written.
    """
    return Answer(*read_pickled(stream))


def answer(work: Callable[[], object]) -> Answer:
    """Call a function, and pickle its value or its exception.

    Args:
        work: the function, without arguments.

    Returns:
        The pickled value or error. If the value or the error cannot be pickled, it is replaced by a
        ``SimulationError`` with the message.
    """
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
