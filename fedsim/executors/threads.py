"""Work on a pool of threads of this process: torch, numpy and compiled loops release the interpreter lock."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedsim.executors.base import Executor
from fedsim.executors.processes import WorkerProcesses


class Threads(Executor):
    """A pool of ``workers`` threads. Work that must be alone has as many processes, or with one thread this one."""

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
