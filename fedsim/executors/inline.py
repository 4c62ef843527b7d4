"""All work in the calling thread, at once: the simplest executor, and the reference for all others."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fedsim.executors.base import Executor


class Inline(Executor):
    """Runs each function when it is submitted."""

    workers = 1

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future
