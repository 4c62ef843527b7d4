"""The threads in which a Flower app's code runs, and the real time for which it may compute."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from fedsim.common.errors import SimulationError
from fedsim.flower.app_errors import place_of_thread

T = TypeVar("T")

_GRACE_S = 1.0  # real time in which the ServerApp must end when the run is over (s)


def _endless(label: str, patience_s: float, place: str) -> SimulationError:
    hint = "if that is no mistake, give strategy.real_patience more"
    return SimulationError(f"{label} has computed for {patience_s:g} s of real time{place}; {hint}")


def call_in_thread(function: Callable[[], T], patience_s: float, folder: Path, label: str) -> T:
    """Call a function of the ClientApp in another thread.

    Args:
        function: the function.
        patience_s: real time for which the function may compute (s).
        folder: folder of the app, for messages.
        label: name of the app's half and its device, for messages.

    Returns:
        The function's result.

    Raises:
        SimulationError: the function computes for too long.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="ClientApp", daemon=True)
    thread.start()
    thread.join(min(patience_s, threading.TIMEOUT_MAX))
    if not answer.done():
        raise _endless(label, patience_s, place_of_thread(thread, folder))
    return answer.result()


class Over(BaseException):
    """Ends the ServerApp's thread when the run is over."""


class Turns:
    """The ServerApp's thread, which takes turns with the simulation.

    Args:
        function: runs the ServerApp to its end.
        around: makes a context for each turn of the thread.
        result: awaits the end of a turn, as real work.
        folder: folder of the app, for messages.
        patience_s: real time that a turn may take (s).

    Attributes:
        thread: the thread.
        closing: whether the run is over, and the thread is to end.
        over: whether the function has ended.
        error: the error that ended the function, if any.
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
        self._turn = threading.Semaphore(0)
        self._turn_end: Future[None] = Future()
        self._context = ExitStack()
        self.closing = False
        self.over = False
        self.error: BaseException | None = None

    async def give(self) -> None:
        """Run the function until it waits or ends.

        Raises:
            SimulationError: the turn takes longer than the patience.
        """
        self._turn_end = Future()
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._turn.release()
        alarm = asyncio.get_running_loop().call_later(self._patience_s, self._give_up)
        try:
            await self._result(self._turn_end)
        finally:
            alarm.cancel()

    def _give_up(self) -> None:
        if not self._turn_end.done():
            place = place_of_thread(self.thread, self._folder)
            self._turn_end.set_exception(
                _endless("the ServerApp", self._patience_s, f" without calling the Grid{place}")
            )

    def wait(self) -> None:
        """End the turn, called from within the thread, and wait for the next turn.

        Raises:
            Over: the run is over.
        """
        self._end_turn()
        self._turn.acquire()
        if self.closing:
            raise Over
        self._context.enter_context(self._around())

    def close(self) -> None:
        """End the function if it waits; a computation that goes on is left alone."""
        self.closing = True
        if self.thread.ident is not None and not self.over:
            self._turn.release()
            self.thread.join(_GRACE_S)

    def _run(self) -> None:
        self._context.enter_context(self._around())
        try:
            with suppress(Over):
                self._function()
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            if not self.closing:
                self._end_turn()

    def _end_turn(self) -> None:
        self._context.close()
        if not self._turn_end.done():
            self._turn_end.set_result(None)
