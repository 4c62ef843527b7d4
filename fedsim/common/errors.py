"""Errors for users of fedsim. Each has one message; the command line shows no traceback."""

import errno
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parents[1]
_LONGEST = 2_000  # characters of a message, which may quote a file
_LONGEST_NAME = 200  # characters of a name that is compared with others
_FULL = (errno.ENOSPC, errno.EDQUOT)

on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)
"""Whether messages name options and verbs of the command line; otherwise they name Python
arguments and functions.
"""

_OPTION = re.compile(
    r"(?<!\S)--(set|out|workers|address|executor|resume|baseline|target|only|seeds)\b|'fedsim "
    r"(run|study)'"
)
_IN_PYTHON = {"set": "changes", "run": "fedsim.run", "study": "fedsim.run_study"}


class FedsimError(Exception):
    """Base of all errors that fedsim raises on purpose."""

    # of the command line: 2 for mistakes in the scenario or the command line, 1 for errors of a run
    exit_status = 1

    def __str__(self) -> str:
        text = super().__str__()
        if not on_command_line.get():
            text = _OPTION.sub(lambda found: _IN_PYTHON.get(found[1] or found[2], found[1]), text)
        return (
            text
            if len(text) <= _LONGEST
            else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
        )


class ScenarioError(FedsimError):
    """A scenario cannot be run; the message names the key, its value and the allowed values."""

    exit_status = 2


class DataError(FedsimError):
    """Data that a scenario needs is missing, truncated or malformed."""

    exit_status = 2


class RunFolderError(FedsimError):
    """A run folder cannot be written or read.

    It is in use already, or its files are missing, damaged or without permission.
    """

    exit_status = 2


class SimulationError(FedsimError):
    """A run reached a state in which it cannot continue."""


class CheckpointError(FedsimError):
    """A checkpoint is missing, damaged, or not of this run."""

    exit_status = 2


def is_full(error: Exception) -> bool:
    """Whether an error means a full disk; some libraries raise no OSError."""
    return getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error)


def told(error: Exception, folder: Path | None = None) -> str:
    """The message for an error raised elsewhere; ``folder`` is the output folder of the failed
    work.
    """
    if is_full(error):
        name = getattr(error, "filename", None)
        place = folder if name is None else Path(os.fsdecode(name)).parent
        which = "" if place is None else f" that holds {str(place)!r}"
        saved = on_command_line.get() and place is not None and any(place.glob("checkpoint/*/*"))
        return (
            f"the disk{which} is full; make room there, and "
            f"{'--resume goes on' if saved else 'try again'}"
        )
    if isinstance(error, OSError):
        return (
            f"{str(error.filename)!r} cannot be used: {error.strerror}"
            if error.filename
            else str(error)
        )
    if isinstance(error, NotImplementedError) and not error.args:
        frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        owner = type(frame.f_locals.get("self"))
        return (
            f"{owner.__name__}{home_of(owner)} has no {frame.f_code.co_name!r}, which it has to "
            "have"
        )
    return f"{type(error).__name__}: {error}"


def place_of(error: BaseException) -> str:
    """The line of user code that raised an error, as ``", in mine.py, line 12"``; ``""`` if none
    did.
    """
    own = ""
    others = {_HERE, Path(sysconfig.get_path("stdlib"))}
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if file.is_file() and "site-packages" not in file.parts and others.isdisjoint(file.parents):
            own = f", in {file.name}, line {frame.lineno}"
    return own


def home_of(code: Any) -> str:
    """The source line of a user's function or class, as ``" (mine.py, line 12)"``; ``""`` for
    fedsim's own.
    """
    code = inspect.unwrap(code) if callable(code) else code
    try:
        file = Path(inspect.getfile(code))
        line = inspect.getsourcelines(code)[1]
    except (OSError, TypeError):  # defined without a source file
        return ""
    return "" if _HERE in file.resolve().parents else f" ({file.name}, line {line})"


def shown(value: object) -> str:
    """``repr(value)``, cut to 80 characters, for messages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for a misspelt name: ``" (did you mean 'fedavg'?)"``, or ``""`` when nothing is
    near.
    """
    # two texts are compared in time that grows with the square of their length
    if len(name) > _LONGEST_NAME:
        return ""
    short_names = [each for each in names if len(each) <= _LONGEST_NAME]
    # "no" does not mean "on"
    close = get_close_matches(name, short_names, n=1, cutoff=0.5 if len(name) > 2 else 0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
