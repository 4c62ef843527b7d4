"""Files that a scenario names: one process records their paths, another reads copies of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

Reference: TypeAlias = tuple[str, str | None]
"""A file as a scenario names it, and the scenario's ``data.root``."""

_recorded: ContextVar[dict[Reference, Path] | None] = ContextVar("_recorded", default=None)
_find_copy: ContextVar[Callable[[Reference], Path | None] | None]
_find_copy = ContextVar("_find_copy", default=None)


def reference_to(file: str, root: Path | None) -> Reference:
    """Return the key by which a file named in a scenario is recorded (``recorded_files``).

    Args:
        file: the path in the scenario.
        root: the scenario's ``data.root``; None if it has none.

    Returns:
        The path, and the root as text or None.
    """
    return file, None if root is None else str(root)


@contextmanager
def recorded_files() -> Iterator[dict[Reference, Path]]:
    """Context manager that records which files named in a scenario are read within it.

    Yields:
        A dict that is filled as files are read: reference to a file -> path at which the file was
        found. The reference is a pair of the path in the scenario and ``data.root``.
    """
    files: dict[Reference, Path] = {}
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Context manager within which a surrounding ``recorded_files`` does not record files."""
    token = _recorded.set(None)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def copied_files(find_copy: Callable[[Reference], Path | None]) -> Iterator[None]:
    """Context manager within which copies are read in place of files named in a scenario.

    Args:
        find_copy: function that gets the reference to a file, a pair of its path in the scenario
            and ``data.root``. It returns the path of the file's copy, or None if there is no copy.
    """
    token = _find_copy.set(find_copy)
    try:
        yield
    finally:
        _find_copy.reset(token)


def copy_of(reference: Reference) -> Path | None:
    """Return the path of the copy that is read in place of a file named in a scenario.

    The result is None if the call is not within ``copied_files``, or if the file has no copy. The
    file itself is then to be read.

    Args:
        reference: the file, a pair of its path in the scenario and ``data.root``.
    """
    find_copy = _find_copy.get()
    return None if find_copy is None else find_copy(reference)


def record(reference: Reference, path: Path) -> None:
    """Record that a file named in a scenario was read; no effect outside of ``recorded_files``.

    Args:
        reference: the file, a pair of its path in the scenario and ``data.root``.
        path: path at which the file was found.
    """
    files = _recorded.get()
    if files is not None:
        files[reference] = path
