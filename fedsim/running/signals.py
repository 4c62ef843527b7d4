"""Signals that interrupt a command: the first requests its end, the second ends it at once."""

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedsim.common.harmless import say
from fedsim.running.mistakes import INTERRUPTED

_SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def interrupted_once(
    interrupt: Callable[[int], None], again: Callable[..., object] = signal.default_int_handler
) -> Iterator[None]:
    """Context in which the first Ctrl-C, SIGTERM or SIGHUP calls ``interrupt``, and the second
    calls ``again``.
    """

    def on_signal(number: int, _: object) -> None:
        let_go(number)
        for each in before:
            signal.signal(each, again)
        say(
            "fedsim: interrupted; finishing this instant (Ctrl-C again to drop everything)",
            err=True,
        )
        interrupt(number)

    before = {number: signal.getsignal(number) for number in signals()}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signals() -> list[int]:
    """Signals that interrupt a run: SIGINT, SIGTERM, and SIGHUP unless it is ignored
    (``nohup``).
    """
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def let_go(number: int) -> None:
    """After SIGHUP, redirect terminal output to nowhere: the terminal is gone, and writing to it
    fails.
    """
    for place in (1, 2) if number == signal.SIGHUP else ():
        if stat.S_ISCHR(os.fstat(place).st_mode):
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
                os.dup2(nowhere.fileno(), place)


def end_at_once(*_: object) -> None:
    """End this process at once, without waiting for its threads."""
    sys.stderr.flush()
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # a live display had hidden it
    os._exit(INTERRUPTED)
