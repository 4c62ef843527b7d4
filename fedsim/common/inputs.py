"""Files that a scenario names: recorded in one process, replaced by copies in another."""

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


def refer(file: str, root: Path | None) -> Reference:
    """Return the reference to a file that a scenario names.

    Args:
        file: the path in the scenario.
        root: the scenario's ``data.root``; None if it has none.
    """
    return file, None if root is None else str(root)


@contextmanager
def recorded_files() -> Iterator[dict[Reference, Path]]:
    """Context manager that yields a table, to which this context adds the files that it finds."""
    files: dict[Reference, Path] = {}
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Context manager in which files are not recorded, since their content is kept otherwise."""
    token = _recorded.set(None)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def copied_files(find_copy: Callable[[Reference], Path | None]) -> Iterator[None]:
    """Context manager in which copies take the place of files.

    Args:
        find_copy: returns the path of a file's copy; None if the file has no copy.
    """
    token = _find_copy.set(find_copy)
    try:
        yield
    finally:
        _find_copy.reset(token)


def copy_of(reference: Reference) -> Path | None:
    """Return the path of the copy of a file; None if this context has no copy."""
    find_copy = _find_copy.get()
    return None if find_copy is None else find_copy(reference)


def record(reference: Reference, path: Path) -> None:
    """Add a file to the table of ``recorded_files``, if this context has one."""
    files = _recorded.get()
    if files is not None:
        files[reference] = path
