"""Signals that interrupt a command: the first asks it to end, the second ends it at once."""

import os
import signal
import stat
import sys
from collections.abc import Callable

from fedsim.output.harmless import say
from fedsim.output.mistakes import INTERRUPTED

_SHOW_CURSOR = b"\x1b[?25h"


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
