"""Error messages of the command lines: one message, an exit status, and no traceback."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from fedsim.common.errors import (
    FedsimError,
    SimulationError,
    is_full,
    on_command_line,
    place_of,
    show_error,
)
from fedsim.common.harmless import say

INTERRUPTED = 130
# exit status EX_TEMPFAIL of sysexits.h: the command was interrupted, and is to be called again
PAUSED = 75
_NAME_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP)  # errors of file names that no file can have


class Paused(KeyboardInterrupt):
    """Interruption by a signal of a batch system, which will start the command again later."""


@dataclass(frozen=True)
class Mistake:
    """Error of a command as the user sees it: message, exit status, and perhaps a traceback.

    Attributes:
        program: name of the program.
        message: message of the error.
        status: exit status.
        trace: traceback, if it was requested; otherwise empty.
    """

    program: str
    message: str
    status: int
    trace: str = ""


def say_mistake(mistake: Mistake) -> None:
    """Print an error of a command to stderr: its traceback if it has one, otherwise its message."""
    text = mistake.trace or f"{mistake.program}: {mistake.message}"
    if mistake.message:
        say(*text.split("\n"), err=True)


def explained(
    program: str, report: Callable[[Mistake], None] = say_mistake
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Return a decorator that turns a command's errors into one message and an exit status.

    The decorator adds the option ``--debug``, which shows a traceback instead of the message. The
    decorated command returns its exit status, or None for 0, and ends the process with it.

    Commands with an argument ``runs`` or ``run`` read run folders. For these, an error that a
    damaged run folder causes is replaced by a message that names the folder. It is also an error if
    the option ``out``, the path to which the command writes, is within a run folder.

    Args:
        program: name of the program, at the beginning of each message.
        report: function that prints a ``Mistake``; after an interrupt its message is empty.
    """

    def wrap(command: Callable[..., int | None]) -> Callable[..., None]:
        @wraps(command)
        def run(*args: object, debug: bool, **options: object) -> None:
            token = on_command_line.set(True)  # messages may advise options of the command line
            status = 1
            try:
                with _reading_runs(options):
                    status = command(*args, **options) or 0
            except KeyboardInterrupt as interruption:
                status = INTERRUPTED
                if isinstance(interruption, Paused):
                    status = PAUSED
                report(Mistake(program, "", status))
            except BrokenPipeError:  # the reader of the output has ended (``| head``)
                # Python flushes the remaining output at its exit, which must not fail again
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            except Exception as error:
                message = _message(error, options.get("out"))
                status = _status(error)
                report(Mistake(program, message, status, traceback.format_exc() if debug else ""))
            finally:
                on_command_line.reset(token)
            sys.exit(status)

        debug = click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
        return debug(run)

    return wrap


def _message(error: Exception, out: object) -> str:
    """Return the message for an error that has ended a command.

    Args:
        error: the error.
        out: value of the command's option ``out``; a path is the folder that the command writes.
    """
    if isinstance(error, SimulationError):  # often from a user's code: the message names its line
        return f"{error}{place_of(error)}"
    if isinstance(error, FedsimError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}".rstrip(": ")
    message = show_error(error, out if isinstance(out, Path) else None)
    if isinstance(error, OSError) or is_full(error):
        return message
    # any other error is a mistake in fedsim or in a user's code
    return f"{message}{place_of(error)} (--debug shows where)"


def _status(error: Exception) -> int:
    if isinstance(error, FedsimError):
        return error.exit_status
    is_name_error = isinstance(error, OSError) and error.errno in _NAME_ERRORS
    return 2 if is_name_error else 1


def _reading_runs(options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Return a context manager for a command that reads run folders.

    Within the context, an error caused by a damaged run folder is replaced by a message that names
    this folder. If the command reads no runs, the context does nothing.

    Args:
        options: the command's options and arguments by name. ``runs`` or ``run`` are the folders
            that it reads.

    Raises:
        RunFolderError: ``out``, to which the command writes, is within a run folder.
    """
    runs: Iterable[Path] = ()
    if "runs" in options:
        runs = options["runs"]
    elif "run" in options:
        runs = [options["run"]]
    if not runs:
        return nullcontext()
    from fedsim.records.folder import refuse_within_run
    from fedsim.records.reading import making_sense

    out = options.get("out")
    if out is not None:
        refuse_within_run(Path(out))
    return making_sense(runs)
