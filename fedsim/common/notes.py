"""Notes of readers: each file's meaning as it was understood, collected while a scenario is
built.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)


@contextmanager
def collected_notes() -> Iterator[list[str]]:
    """Context in which ``note`` appends to the list that it yields."""
    notes: list[str] = []
    before = _collected.set(notes)
    try:
        yield notes
    finally:
        _collected.reset(before)


def note(text: str) -> None:
    """Keep a line for people, once; without ``collected_notes`` it has no effect."""
    notes = _collected.get()
    if notes is not None and text not in notes:
        notes.append(text)
