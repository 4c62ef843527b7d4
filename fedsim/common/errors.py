"""Errors that fedsim raises for its users, and functions that make parts of their messages.

The command line prints such an error without its traceback.
"""

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

_FEDSIM = Path(__file__).resolve().parents[1]
_LONGEST = 2_000  # greatest length of a message, which may quote a file (characters)
_LONGEST_NAME = 200  # greatest length of a name for which a similar name is searched (characters)
_LONGEST_VALUE = 80  # greatest length of a value in a message (characters)
_NEAREST = re.compile(r"\(?[Dd]id you mean '([^']+)'\?")
_UNKNOWN_KEY = re.compile(r"(?:the )?([\w.-]+) has the unknown key '([^']+)'")
_KEY = re.compile(r"(?:variant '[^']*': )?(--[a-z-]+|[a-z_]\w*(?:\.\w+)*) is ['\"\d[{-]")
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
    """Base of all errors that fedsim raises with a message for the user."""

    # exit status: 2 for a mistake in the scenario or the command line, 1 for an error of a run
    exit_status = 1

    def __str__(self) -> str:
        text = super().__str__()
        if not on_command_line.get():
            text = _OPTION.sub(_name_in_python, text)
        if len(text) <= _LONGEST:
            return text
        return f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


def _name_in_python(option: re.Match[str]) -> str:
    """Return the Python name that replaces an option or command in a message's text.

    Messages name options and commands of the command line; in Python they name parameters and
    functions.

    Args:
        option: match in a message's text, such as of ``--executor`` or ``'fedsim run'``.
    """
    name = option[1] or option[2]
    return _IN_PYTHON.get(name, name)


class ScenarioError(FedsimError):
    """Error of a scenario. The message has the key, its value and the allowed values."""

    exit_status = 2


class DataError(FedsimError):
    """Error of data that a scenario needs, which is missing, truncated or malformed."""

    exit_status = 2


class RunFolderError(FedsimError):
    """Error that a run folder, into which a run writes its results, cannot be written or read.

    The folder is in use, or its files are missing, damaged or without permission.
    """

    exit_status = 2


class SimulationError(FedsimError):
    """Error after which a run cannot continue, such as a wrong argument of a user's strategy."""


class CheckpointError(FedsimError):
    """Error that the saved state of a run is missing, damaged, or of another run."""

    exit_status = 2


def is_full(error: Exception) -> bool:
    """Return whether an error means that the disk is full.

    Libraries raise errors of many types for a full disk.
    """
    return getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error)


def show_error(error: Exception, folder: Path | None = None) -> str:
    """Format the message of an error that fedsim did not raise on purpose.

    Args:
        error: the error.
        folder: the output folder of the failed work; None if it has none.
    """
    if is_full(error):
        return _full_disk(error, folder)
    if isinstance(error, OSError):
        if error.filename:
            return f"{str(error.filename)!r} cannot be used: {error.strerror}"
        return str(error)
    # a method of a base class, which a subclass must define, raises this error
    if isinstance(error, NotImplementedError) and not error.args:
        return _missing_method(error)
    return f"{type(error).__name__}: {error}"


def _full_disk(error: Exception, folder: Path | None) -> str:
    """Return the message for a full disk: a folder on the disk, and what to do; see ``show_error``."""
    name = getattr(error, "filename", None)
    # the file that could not be written may be a temporary one, on another disk than ``folder``
    full_folder = folder if name is None else Path(os.fsdecode(name)).parent
    output = folder or full_folder  # folder in which a run may have saved checkpoints
    disk = "the disk"
    advice = "try again"
    if full_folder is not None:
        disk = f"the disk that holds {str(full_folder)!r}"
    if output is not None and on_command_line.get() and any(output.glob("checkpoint/*/*")):
        advice = "--resume goes on"
    return f"{disk} is full; make room there, and {advice}"


def _missing_method(error: NotImplementedError) -> str:
    """Return the message for a user whose class lacks a method that it must define.

    Args:
        error: the error that the base class's method raises.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    frame = frames[-1]
    owner = type(frame.f_locals.get("self"))
    method = frame.f_code.co_name
    return f"{owner.__name__}{home_of(owner)} has no {method!r}, which it has to have"


def place_of(error: BaseException) -> str:
    """Return file and line of the user's code at which an error was raised, for messages.

    Returns:
        Text such as ``", in mine.py, line 12"``; empty if user code is not in the traceback.
    """
    place = ""
    library_folders = {_FEDSIM, Path(sysconfig.get_path("stdlib"))}
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename)
        if not file.is_file() or "site-packages" in file.parts:
            continue
        if library_folders.isdisjoint(file.parents):
            # later frames are nearer to the error, so the last frame of user code stays
            place = f", in {file.name}, line {frame.lineno}"
    return place


def home_of(code: Any) -> str:
    """Return file and line of a user's function or class, for messages.

    Returns:
        Text such as ``" (mine.py, line 12)"``; empty for code of fedsim, and for code without a
        source file.
    """
    if callable(code):
        code = inspect.unwrap(code)
    try:
        file = Path(inspect.getfile(code))
        line = inspect.getsourcelines(code)[1]
    except (OSError, TypeError):  # code without a source file
        return ""
    is_fedsims = _FEDSIM in file.resolve().parents
    return "" if is_fedsims else f" ({file.name}, line {line})"


def show_value(value: object) -> str:
    """Format a value for messages, as ``repr(value)`` cut to 80 characters.

    A value whose ``repr`` fails, such as an integer of 5,000 digits, is shown by its type.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    if len(text) <= _LONGEST_VALUE:
        return text
    return text[: _LONGEST_VALUE - 3] + "..."


def nearest(name: str, names: Iterable[str]) -> str:
    """Format a hint at the valid name that is nearest to a misspelt name.

    Args:
        name: the misspelt name.
        names: the valid names.

    Returns:
        The hint, as ``" (did you mean 'fedavg'?)"``; empty if no valid name is near.
    """
    # the time of a comparison grows with the square of the name's length
    if len(name) > _LONGEST_NAME:
        return ""
    candidates = [candidate for candidate in names if len(candidate) <= _LONGEST_NAME]
    cutoff = 0.5 if len(name) > 2 else 0.6  # "on" is no hint for "no"
    matches = get_close_matches(name, candidates, n=1, cutoff=cutoff)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def key_of(message: str) -> str | None:
    """Return the scenario key or command-line option that an error's message blames.

    Returns:
        The key or option; None if the message does not begin with one.

    Example:
        >>> key_of("training has the unknown key 'lrr'; allowed are lr, momentum")
        'training.lrr'
    """
    unknown = _UNKNOWN_KEY.match(message)
    if unknown is not None:
        table = unknown[1]
        return unknown[2] if table in ("scenario", "study") else f"{table}.{unknown[2]}"
    match = _KEY.match(message)
    return None if match is None else match[1]


def nearest_of(message: str) -> str | None:
    """Return the valid name that an error's message suggests ("did you mean"); None without one."""
    match = _NEAREST.search(message)
    return None if match is None else match[1]
