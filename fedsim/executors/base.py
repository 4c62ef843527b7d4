"""The interface of all executors, and how a call's outcome comes back from another process."""

import pickle
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from fedsim.errors import SimulationError


class Executor(Protocol):
    """Runs functions somewhere, at some time, in any order; the simulation never looks at when they finish."""

    workers: int

    def place(self, thing: Any) -> None:
        """Broadcast an immutable object, which goes into many calls, to all workers."""
        return

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Start ``function(*args)``; its value or exception comes through the future.

        It may run in another process, on copies of the arguments. An array that is read-only never changes.
        """
        ...

    def submit_alone(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """The same for a function that uses what is the whole process's own: nothing else runs in that process meanwhile.

        It stands at the top of a module, and may be given anything that can be pickled.
        """
        return self.submit(function, *args)

    def close(self) -> None:
        """Free the workers. Work that was not begun is dropped."""
        return


def answer(work: Callable[[], Any]) -> bytes:
    """Do some work; pickles (True, its value) or (False, its error with the traceback as a note, or a ``SimulationError``)."""
    try:
        outcome = True, work()
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        outcome = False, error
    try:
        content = pickle.dumps(outcome, protocol=5)
        if not outcome[0]:
            pickle.loads(content)
        return content
    except Exception as error:
        wrong = error if outcome[0] else outcome[1]
        return pickle.dumps((False, SimulationError(f"{type(wrong).__name__}: {wrong}")), protocol=5)
