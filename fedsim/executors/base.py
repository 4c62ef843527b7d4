"""What every executor offers."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Executor(Protocol):
    """Runs functions somewhere, at some time, in any order; the simulation never looks at when they finish."""

    workers: int

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Start ``function(*args)``; its value or exception comes through the future."""

    def close(self) -> None:
        """Free the workers. Work that was not begun is dropped."""
