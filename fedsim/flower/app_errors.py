"""Error messages for a Flower app's code: the line in the app, the calls, and a hint."""

import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType

_MOST_CALLS = 8  # calls of the app that a message names
_MOST_CAUSES = 8  # errors in a chain of causes that are searched for a failed connection to a hub
_HUB_PACKAGES = (
    "huggingface_hub",
    "datasets",
    "fsspec",
    "requests",
    "httpx",
    "httpcore",
    "urllib3",
    "aiohttp",
    "flwr_datasets",
)
"""Python packages that fetch data or models from hubs."""
_CONNECTION_ERROR_WORDS = (
    "Connect",
    "Offline",
    "Timeout",
    "LocalEntryNotFound",
    "Network",
    "MaxRetry",
    "NameResolution",
    "Proxy",
)
"""Words in the class names of errors that ``_HUB_PACKAGES`` raise if there is no connection."""
_NO_CONNECTION_TEXT = "couldn't connect to"  # part of an error message of transformers and datasets


def is_within(folder: Path, file: str) -> bool:
    """Return whether a file belongs to an app's folder, and not to a virtual environment in it.

    Args:
        folder: absolute path of the folder.
        file: absolute path of the file.
    """
    prefix = f"{folder}{os.sep}"
    if not file.startswith(prefix):
        return False
    has_environment = sys.prefix.startswith(prefix)
    return not (has_environment and file.startswith(f"{sys.prefix}{os.sep}"))


def format_thread_line(thread: threading.Thread, folder: Path) -> str:
    """Format the line of an app's code that a thread is executing.

    Args:
        thread: thread that runs the app.
        folder: folder of the app.

    Returns:
        Text such as ``", in server_app.py, line 12"``; ``""`` if the thread has not begun, or runs
        no code of the folder.
    """
    current = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(current)
    return _format_line([frame for frame in stack if is_within(folder, frame.filename)])


def _frames_within(calls: TracebackType | None, folder: Path) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(calls) if is_within(folder, frame.filename)]


def _format_line(frames: list[traceback.FrameSummary]) -> str:
    if not frames:
        return ""
    return f", in {Path(frames[-1].filename).name}, line {frames[-1].lineno}"


def error_of_app(error: BaseException, folder: Path) -> str:
    """Return the message for the user about an error that an app's code raised.

    Args:
        error: error with a traceback.
        folder: folder of the app.

    Returns:
        The error's type and text, its line in the app, the app's calls that led to it, the folder,
        and a hint if the error means that a hub (a server of models and data sets, such as
        Hugging Face's) cannot be reached.
    """
    frames = _frames_within(error.__traceback__, folder)
    calls = []
    for frame in frames[-_MOST_CALLS:]:
        file = Path(frame.filename).relative_to(folder)
        calls.append(f"{file}:{frame.lineno} {frame.name}")
    call_path = f"; by {' > '.join(calls)}" if len(calls) > 1 else ""
    line = _format_line(frames)
    return (
        f"{type(error).__name__}: {error}{line}{call_path}; the app is in {str(folder)!r}, "
        f"and --debug shows all calls{_hint_at_hub(error)}"
    )


def _hint_at_hub(error: BaseException) -> str:
    """Return a hint for the user if an error was caused by a failed connection to a hub.

    A hub is a server of models and data sets.

    Args:
        error: the error, whose causes are examined too.

    Returns:
        The hint; empty if the error has another cause.
    """
    cause: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if cause is None:
            break
        if _is_unreached_hub(cause):
            return (
                ". The app fetches data or models from a hub that cannot be reached from here: "
                "fetch them once where it can be, copy that cache and set HF_HOME to it and "
                "HF_HUB_OFFLINE=1, or have the app read local files"
            )
        cause = cause.__cause__ or cause.__context__
    return ""


def _is_unreached_hub(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if _NO_CONNECTION_TEXT in str(error):
        return True
    package = type(error).__module__.partition(".")[0]
    name = type(error).__name__
    return package in _HUB_PACKAGES and any(word in name for word in _CONNECTION_ERROR_WORDS)
