"""Signals: a run is saved at the end of its instant, and the process ends in any case."""

import asyncio
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from fedsim.output.harmless import say
from fedsim.output.mistakes import INTERRUPTED

if TYPE_CHECKING:
    from fedsim.running.runner import Job

_PATIENCE_S = 1.5  # with what this thread computes itself, in the world or in a handler
_TRAINING_S = 10.0  # with an instant that waits for training, after SIGTERM; after Ctrl-C that is for the user to say
_LOOK_S = 0.1
_SHOW_CURSOR = b"\x1b[?25h"


def end_soon(job: "Job", number: int) -> None:
    """End and save a run after its current instant; if that instant does not end, end the process. For signal handlers.

    Nothing is half-written, since files get their names when they are complete; the last checkpoint remains.

    Args:
        job: the run.
        number: the signal.
    """
    job.interrupt()
    with suppress(RuntimeError):  # none runs: nothing is to be waited for
        loop = asyncio.get_running_loop()
        threading.Thread(target=_watch, args=(job, loop, number), daemon=True).start()


def _watch(job: "Job", loop: asyncio.AbstractEventLoop, number: int) -> None:
    """End the process when the event loop does not get its turn for long, or, unless it was Ctrl-C, training takes too long."""
    turn = threading.Event()
    turn.set()
    begun = alive = time.monotonic()
    simulation = job.simulation
    while not job.over:
        now = time.monotonic()
        if turn.is_set() or simulation.working:
            alive = now
            turn.clear()
            with suppress(RuntimeError):  # it was closed in this moment
                loop.call_soon_threadsafe(turn.set)
        stuck = now - alive > _PATIENCE_S
        is_late = number != signal.SIGINT and now - begun > _TRAINING_S
        # To be saved and to write what there is may take its time; to train for that, when the run is over, may not.
        writes = simulation.settled and (stuck or simulation.stopped is None)
        if (stuck or is_late) and not writes:
            say("fedsim: this instant takes too long; ended within it, the last checkpoint is what remains", err=True)
            end_at_once()
        time.sleep(_LOOK_S)


class InterruptOnce:
    """The first Ctrl-C, SIGTERM or SIGHUP asks the run to end after its current instant; a second one ends it at once.

    Args:
        interrupt: asks the run to end; takes the number of the signal.
        again: the handler of a second signal.
    """

    def __init__(self, interrupt: Callable[[int], None], again: Callable[..., object] = signal.default_int_handler) -> None:
        self._interrupt, self._again = interrupt, again

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._on_signal) for number in signals()}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, *_: object) -> None:
        let_go(number)
        for each in self._before:
            signal.signal(each, self._again)
        say("fedsim: interrupted; finishing this instant (Ctrl-C again to drop everything)", err=True)
        self._interrupt(number)


def signals() -> list[int]:
    """The signals that interrupt a run: Ctrl-C, SIGTERM, and unless it is ignored (``nohup``) the end of the terminal."""
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def let_go(number: int) -> None:
    """After SIGHUP, write no more to a terminal: it is gone, and whatever is written there fails."""
    for place in (1, 2) if number == signal.SIGHUP else ():
        if stat.S_ISCHR(os.fstat(place).st_mode):
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), place)


def end_at_once(*_: object) -> None:
    """End this process, whatever its threads do."""
    sys.stderr.flush()
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # a live display had hidden it
    os._exit(INTERRUPTED)
