"""The ServerApp's thread and the simulation take turns: never do both go on."""

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from fedsim.errors import SimulationError

T = TypeVar("T")

_GRACE_S = 1.0  # real seconds that an app has to end when the run is over


class Over(BaseException):
    """The run is over: ends the ServerApp's thread wherever it waits."""


class Turns:
    """A function in a thread of its own, which runs only while the simulation waits for it.

    ``around`` is entered whenever it is its turn; ``result`` waits for real work. A turn of more than ``patience_s`` real
    seconds counts as endless, and the message names the place in the code of ``folder``.
    """

    def __init__(
        self,
        function: Callable[[], None],
        around: Callable[[], AbstractContextManager[Any]],
        result: Callable[[Future[None]], Awaitable[None]],
        folder: Path,
        patience_s: float,
    ) -> None:
        self._function, self._around, self._result = function, around, result
        self._folder, self._patience_s = folder, patience_s
        self.thread = threading.Thread(target=self._run, name="ServerApp", daemon=True)
        self._turn = threading.Semaphore(0)
        self._back: Future[None] = Future()
        self._within: AbstractContextManager[Any]
        self.closing = False
        self.over = False
        self.error: BaseException | None = None

    async def give(self) -> None:
        """Let it go on until it waits or is ``over``, perhaps with an ``error``; ``SimulationError`` if that takes too long."""
        self._back = Future()
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._turn.release()
        alarm = asyncio.get_running_loop().call_later(self._patience_s, self._take)
        try:
            await self._result(self._back)
        finally:
            alarm.cancel()

    def _take(self) -> None:
        """The thread does not give the turn back."""
        if not self._back.done():
            self._back.set_exception(_endless("the ServerApp", self._patience_s, f" without calling the Grid{self.place()}"))

    def wait(self) -> None:
        """Called in the thread: give the turn back; returns when it has it again, or raises ``Over``."""
        self._give_back()
        self._turn.acquire()
        if self.closing:
            raise Over
        self._within = self._around()
        self._within.__enter__()

    def place(self) -> str:
        """Current place in its own code, as ``place_in``."""
        return _place_of_thread(self.thread, self._folder)

    def close(self) -> None:
        """End it, if it waits; what computes without end is left alone."""
        self.closing = True
        if self.thread.ident is not None and not self.over:
            self._turn.release()
            self.thread.join(_GRACE_S)

    def _run(self) -> None:
        self._within = self._around()
        self._within.__enter__()
        try:
            self._function()
        except Over:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            if not self.closing:
                self._give_back()

    def _give_back(self) -> None:
        self._within.__exit__(None, None, None)
        if not self._back.done():
            self._back.set_result(None)


class _Hand:
    """A thread that carries out functions one after another; starting one for each costs as much as many of them do."""

    def __init__(self) -> None:
        self._given: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._done: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="ClientApp", daemon=True)
        self.thread.start()

    def carry_out(self, function: Callable[[], Any], patience_s: float) -> tuple[Any, BaseException | None]:
        """Its value, or its error; raises ``queue.Empty`` when that takes too long."""
        self._given.put(function)
        return self._done.get(timeout=min(patience_s, threading.TIMEOUT_MAX))

    def _run(self) -> None:
        while True:
            try:
                self._done.put((self._given.get()(), None))
            except BaseException as error:
                self._done.put((None, error))


_free: list[_Hand] = []  # of this process
os.register_at_fork(after_in_child=_free.clear)


def carried_out(function: Callable[[], T], patience_s: float, folder: Path, called: str) -> T:
    """The value of a function, computed in another thread; ``SimulationError`` after ``patience_s`` real seconds."""
    hand = _free.pop() if _free else _Hand()
    try:
        value, error = hand.carry_out(function, patience_s)
    except Empty:
        raise _endless(called, patience_s, _place_of_thread(hand.thread, folder)) from None
    _free.append(hand)
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _endless(called: str, patience_s: float, place: str) -> SimulationError:
    told = f"{called} has computed for {patience_s:g} s of real time{place}"
    return SimulationError(f"{told}; if that is no mistake, give strategy.real_patience more")


def is_within(folder: Path, file: str) -> bool:
    """Whether a file lies in a folder, and not in the environment of packages that may be there too (``.venv``)."""
    inside = f"{folder}{os.sep}"
    return file.startswith(inside) and not (sys.prefix.startswith(inside) and file.startswith(f"{sys.prefix}{os.sep}"))


def place_in(error: BaseException, folder: Path) -> str:
    """Place of an error in the code of a folder: ``", in client_app.py, line 12"``; ``""`` if it arose elsewhere."""
    return _innermost(traceback.extract_tb(error.__traceback__), folder)


def _place_of_thread(thread: threading.Thread, folder: Path) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else _innermost(traceback.extract_stack(frame), folder)


def _innermost(frames: traceback.StackSummary, folder: Path) -> str:
    inside = [frame for frame in frames if is_within(folder, frame.filename)]
    return f", in {Path(inside[-1].filename).name}, line {inside[-1].lineno}" if inside else ""
