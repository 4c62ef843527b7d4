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
    """Return a context in which signals (Ctrl-C, SIGTERM, SIGHUP) interrupt a command.

    Args:
        interrupt: called with the first signal.
        again: handler of the second signal; by default it raises ``KeyboardInterrupt``.
    """

    def on_signal(number: int, _: object) -> None:
        let_go(number)
        for other_number in handlers:
            signal.signal(other_number, again)
        say(
            "fedsim: interrupted; finishing this instant (Ctrl-C again to drop everything)",
            err=True,
        )
        interrupt(number)

    handlers = {number: signal.getsignal(number) for number in signals()}
    for number in handlers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def signals() -> list[signal.Signals]:
    """Return the signals that interrupt a run: SIGINT, SIGTERM and SIGHUP.

    SIGHUP is left out if the process ignores it (``nohup``).
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def let_go(number: int) -> None:
    """Discard all further output to the terminal after SIGHUP, as the terminal no longer exists.

    Args:
        number: the signal received. For signals other than SIGHUP the function does nothing.
    """
    if number != signal.SIGHUP:
        return
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            with open(os.devnull, "wb") as null:  # noqa: PTH123
                os.dup2(null.fileno(), descriptor)


def end_at_once(*_: object) -> None:
    """Signal handler that ends this process at once, without waiting for its threads."""
    sys.stderr.flush()
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # a live display has hidden the cursor
    os._exit(INTERRUPTED)
