"""What every executor offers."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Executor(Protocol):
    """Runs functions somewhere, at some time, in any order; the simulation never looks at when they finish."""

    workers: int

    def place(self, thing: Any) -> None:
        """Be told that ``thing`` never changes and goes into many calls, so that it is brought to each worker only once."""

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Start ``function(*args)``; its value or exception comes through the future.

        It may run in another process, on copies of the arguments. An array that is read-only never changes.
        """

    def submit_alone(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """The same for a function that uses what is the whole process's own: nothing else runs in that process meanwhile.

        It stands at the top of a module, and may be given anything that can be pickled.
        """

    def close(self) -> None:
        """Free the workers. Work that was not begun is dropped."""
