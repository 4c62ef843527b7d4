"""Notes for the user about how files were read, collected while a scenario is built."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


@contextmanager
def collected_notes() -> Iterator[list[str]]:
    """Context manager that yields a list, to which ``note`` appends remarks for the user."""
    notes: list[str] = []
    token = _collected.set(notes)
    try:
        yield notes
    finally:
        _collected.reset(token)


def note(text: str) -> None:
    """Add a remark for the user to the list of the surrounding ``collected_notes``.

    A remark that the list already has is not added again.

    Args:
        text: the remark; without a surrounding ``collected_notes`` it is dropped.
    """
    notes = _collected.get()
    if notes is not None and text not in notes:
        notes.append(text)
