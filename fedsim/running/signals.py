"""Signals that interrupt a command: the first requests its end, the second ends it immediately.

Some time before the end of a job, batch systems announce it by SIGUSR1 or SIGUSR2 (Slurm's
``--signal``, Grid Engine's ``-notify``). These signals interrupt a command, too. The command's exit
status then says that the job is to be queued again.
"""

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from fedsim.common.harmless import say
from fedsim.running.mistakes import INTERRUPTED, PAUSED, Paused

_SHOW_CURSOR = b"\x1b[?25h"
ANNOUNCEMENTS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which batch systems announce the end of a job."""


@dataclass
class Interruption:
    """Record of whether a signal has interrupted a command, with the command's exit status.

    Attributes:
        number: number of the first signal; None if there was none.
    """

    number: int | None = None

    @property
    def exit_status(self) -> int:
        """Exit status of an interrupted command.

        It is 75 (``PAUSED``) if a batch system will start the command again, otherwise 130
        (``INTERRUPTED``).
        """
        return PAUSED if self.number in ANNOUNCEMENTS else INTERRUPTED


def raise_interruption(number: int, frame: FrameType | None) -> None:
    """Signal handler that raises ``KeyboardInterrupt``, or ``Paused`` for a batch system's signal.

    Batch systems announce the end of a job by SIGUSR1 or SIGUSR2.
    """
    if number in ANNOUNCEMENTS:
        raise Paused
    signal.default_int_handler(number, frame)


@contextmanager
def interrupted_once(
    interrupt: Callable[[int], None], on_second: Callable[..., object] = raise_interruption
) -> Iterator[Interruption]:
    """Context manager: in it, the first signal calls ``interrupt``, the second ``on_second``.

    After the first signal, the signals by which a batch system announces a job's end are ignored.

    Args:
        interrupt: function that requests the end; it receives the number of the first signal.
        on_second: handler of the second signal; by default it raises ``KeyboardInterrupt``.

    Yields:
        The interruption; its ``number`` is set when the first signal comes.
    """
    interruption = Interruption()
    previous_handlers = {number: signal.getsignal(number) for number in interrupting_signals()}

    def on_signal(number: int, _: object) -> None:
        discard_output_on_hangup(number)
        interruption.number = number
        for other_number in previous_handlers:
            is_ignored = other_number in ANNOUNCEMENTS
            signal.signal(other_number, signal.SIG_IGN if is_ignored else on_second)
        say(
            "fedsim: interrupted; finishing this instant (Ctrl-C again to drop everything)",
            err=True,
        )
        interrupt(number)

    for number in previous_handlers:
        signal.signal(number, on_signal)
    try:
        yield interruption
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def interrupting_signals() -> list[signal.Signals]:
    """Return the signals that interrupt a run: SIGINT, SIGTERM, SIGUSR1, SIGUSR2 and SIGHUP.

    SIGHUP is left out if the process ignores it (``nohup``).
    """
    numbers = [signal.SIGINT, signal.SIGTERM, *ANNOUNCEMENTS]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


def discard_output_on_hangup(number: int) -> None:
    """Signal handler that discards later output to the terminal after SIGHUP.

    The terminal no longer exists then.

    Args:
        number: the signal received. For signals other than SIGHUP the function does nothing.
    """
    if number != signal.SIGHUP:
        return
    for descriptor in (1, 2):  # stdout and stderr, if they are the terminal
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            with open(os.devnull, "wb") as null:  # noqa: PTH123
                os.dup2(null.fileno(), descriptor)


def end_at_once(number: int, *_: object) -> None:
    """Signal handler that ends this process immediately, without waiting for threads.

    The exit status is ``Interruption.exit_status``.

    Args:
        number: the signal that interrupted the command.
    """
    sys.stderr.flush()
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)  # a live display has hidden the cursor
    os._exit(Interruption(number).exit_status)
