"""All work in the calling thread, at once: the simplest executor, and the reference for all others."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Inline:
    """Runs each function when it is submitted."""

    workers = 1

    def place(self, thing: Any) -> None:
        """Nothing to do: all is in this process."""

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Run ``function(*args)`` now; the future is already resolved when this returns."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def submit_alone(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Run ``function(*args)`` now, as ever."""
        return self.submit(function, *args)

    def close(self) -> None:
        """Nothing to free."""
