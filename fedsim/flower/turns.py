"""Threads in which a Flower app's code runs, with a limit of the real time that it computes."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from fedsim.common.errors import SimulationError
from fedsim.flower.app_errors import format_thread_line

T = TypeVar("T")

_GRACE_S = 1.0  # real time for which the end of a run waits for the ServerApp's thread (s)


def _patience_error(label: str, patience_s: float, line: str) -> SimulationError:
    hint = "if that is no mistake, give strategy.real_patience more"
    return SimulationError(f"{label} has computed for {patience_s:g} s of real time{line}; {hint}")


def call_in_thread(
    function: Callable[[], T],
    abandon: Callable[[], None],
    patience_s: float,
    folder: Path,
    label: str,
) -> T:
    """Call a function of the ClientApp in another thread, with a limit of real time.

    Args:
        function: called without arguments.
        abandon: called without arguments if this call does not wait for the function any longer,
            as it has reached the limit, or was ended by ``KeyboardInterrupt``.
        patience_s: real time for which the function may compute (s).
        folder: folder of the app, for error messages.
        label: text such as ``the ClientApp of device 3``, for error messages.

    Returns:
        The function's result. An error that the function raises is raised here.

    Raises:
        SimulationError: the function computes for longer than ``patience_s``.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="ClientApp", daemon=True)
    try:
        thread.start()
        thread.join(min(patience_s, threading.TIMEOUT_MAX))
        if not answer.done():
            raise _patience_error(label, patience_s, format_thread_line(thread, folder))
    except BaseException:
        abandon()
        raise
    return answer.result()


class RunOver(BaseException):
    """Exception that ends the ServerApp's thread when the run is over."""


class Turns:
    """Thread of the ServerApp, which runs in turns with the simulation's thread.

    A turn is the time in which the ServerApp computes, between two of its waits.

    Args:
        function: runs the ServerApp to its end.
        around: returns a new context manager for each turn of the ServerApp. The ServerApp's thread
            enters it when the turn begins, and leaves it when the turn ends.
        result: coroutine function that awaits the future that it is given. ``give`` passes it the
            future of the turn's end. Simulated time stands still meanwhile.
        folder: folder of the app, for error messages.
        patience_s: real time that a turn may take (s).

    Attributes:
        thread: the ServerApp's thread.
        closing: whether the run is over, so that the thread must end.
        over: whether ``function`` has ended.
        error: the error that ended ``function``; None if it has not ended with an error.
    """

    def __init__(
        self,
        function: Callable[[], None],
        around: Callable[[], AbstractContextManager[None]],
        result: Callable[[Future[None]], Awaitable[None]],
        folder: Path,
        patience_s: float,
    ) -> None:
        self._function = function
        self._around = around
        self._result = result
        self._folder = folder
        self._patience_s = patience_s
        self.thread = threading.Thread(target=self._run, name="ServerApp", daemon=True)
        self._turn = threading.Semaphore(0)  # released when the ServerApp's thread may run
        self._turn_end: Future[None] = Future()
        self._context = ExitStack()
        self.closing = False
        self.over = False
        self.error: BaseException | None = None

    async def give(self) -> None:
        """Run the ServerApp's thread until it waits or ends.

        Raises:
            SimulationError: the turn takes longer than ``patience_s``.
        """
        self._turn_end = Future()
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._turn.release()
        alarm = asyncio.get_running_loop().call_later(self._patience_s, self._fail_turn)
        try:
            await self._result(self._turn_end)
        finally:
            alarm.cancel()

    def _fail_turn(self) -> None:
        if not self._turn_end.done():
            line = format_thread_line(self.thread, self._folder)
            self._turn_end.set_exception(
                _patience_error(
                    "the ServerApp", self._patience_s, f" without calling the Grid{line}"
                )
            )

    def wait(self) -> None:
        """End the ServerApp's turn, and return when its next one begins.

        The ServerApp's thread calls this method. The simulation runs meanwhile.

        Raises:
            RunOver: the run is over.
        """
        self._end_turn()
        self._turn.acquire()
        # entered at the end of the run too, as the app's code may react to ``RunOver``
        self._context.enter_context(self._around())
        if self.closing:
            raise RunOver

    def close(self) -> None:
        """End the thread of the ServerApp at the end of the run, unless it is computing."""
        self.closing = True
        if self.thread.ident is not None and not self.over:
            self._turn.release()
            self.thread.join(_GRACE_S)

    def _run(self) -> None:
        """Run the ServerApp in its thread, and end its last turn."""
        try:
            with suppress(RunOver):
                self._context.enter_context(self._around())
                self._function()
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._end_turn()

    def _end_turn(self) -> None:
        self._context.close()
        if not self.closing and not self._turn_end.done():
            self._turn_end.set_result(None)
