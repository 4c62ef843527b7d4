"""Executors, which run the real computations of a simulation, such as local training.

The choice of an executor changes the real time of a run, but no result. A function that must not
share its process with others goes to a worker process of this machine, which carries out one call
at a time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from fedsim.clock.placement import TaskResources
from fedsim.clock.worker_process import WorkerProcess, describe_end
from fedsim.common.errors import ScenarioError, SimulationError, nearest
from fedsim.common.imports import import_trusted
from fedsim.common.machine import GpuShares, usable_cores, usable_gpus

EXECUTORS = {
    "inline": "all work in one thread",
    "threads": "a thread a core of this machine; all use the same GPU",
    "processes": "a process a core of this machine, or a process a GPU, and each sees one GPU",
    "ray": "processes on this machine, or on all machines of a Ray cluster (needs the extra ray)",
}
T = TypeVar("T")


class Executor(Protocol):
    """Interface of executors, which carry out real computations such as trainings.

    Functions may finish in any order; the results of a simulation do not depend on the order.

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
    # Workers share out the GPUs only for "cuda". For "cuda:1" each worker must see all GPUs, as the
    # number counts all GPUs.
    gpus = usable_gpus() if device == "cuda" else []
    if name is None:
        name = "processes" if len(gpus) > 1 and workers != 1 else "threads"
    if name not in EXECUTORS:
        raise ScenarioError(
            f"--executor is {name!r}; allowed are {', '.join(EXECUTORS)}{nearest(name, EXECUTORS)}"
        )
    # only Ray takes an address and resources; for other executors they are an error
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
    processes = workers or len(gpus) or usable_cores()
    return WorkerProcesses(processes, gpus[:workers])


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
    if device not in ("cuda", "cuda:0"):  # a task sees only its GPU, which torch calls ``cuda:0``
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
    """Executor whose ``submit`` runs the function immediately, in the calling thread."""

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
    lock. ``submit_alone`` uses a pool of processes, or, with one worker, the only thread.

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


class WorkerProcesses(Executor):
    """Executor with a pool of processes, each started at the first call that needs it.

    Calls go to a process as pickles. An object that was given to ``place`` is sent to each process
    once, before the process's next call.

    Args:
        workers: count of processes.
        gpus: names of GPUs. Each process sees one GPU, which the fewest other processes see. Empty
            if the processes see the GPUs that this process sees.
    """

    def __init__(self, workers: int, gpus: Sequence[str] = ()) -> None:
        self.workers = workers
        self.gpus = tuple(gpus)
        self._shares = GpuShares(gpus)  # assigns a GPU to each process
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="fedsim-process")
        self._of_thread = threading.local()  # attribute ``worker``: the process of the thread
        self._processes: list[WorkerProcess] = []
        self._placed: list[object] = []

    def place(self, thing: object) -> None:
        if not any(thing is placed for placed in self._placed):
            self._placed.append(thing)

    def submit(self, function: Callable[..., T], *args: object) -> "Future[T]":
        """Queue a call ``function(*args)``, which the next free worker process makes.

        Args:
            function: the function, defined at the top level of a module, or a method.
            args: its arguments.

        Returns:
            A future of the function's value or exception. The exception is a ``SimulationError`` if
            the call cannot be pickled, or if its process ends.
        """
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., T], args: tuple[object, ...]) -> T:
        """Call a function in a worker process, and return its value; wait until it is done.

        Each thread of the pool has its own process. The thread starts it at its first call, and
        starts a new process if that process has ended. An error of the function is raised here.
        """
        if not hasattr(self._of_thread, "worker"):
            self._of_thread.worker = WorkerProcess(self._shares.take())
            self._processes.append(self._of_thread.worker)
        worker: WorkerProcess = self._of_thread.worker
        try:
            answer = worker.call(self._placed, function, args)
        except (EOFError, BrokenPipeError) as error:  # the process has ended during the call
            del self._of_thread.worker
            self._shares.give_back(worker.gpu)
            status = worker.process.wait()
            raise SimulationError(describe_end(status, function)) from error
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
