"""SimPy processes of users' code, and events that only fedsim may fire, with checks of wrong uses.

SimPy raises an error if a process yields a value that is no event, or if an event fires twice. This
error names neither the process nor what is allowed, so fedsim raises its own.
"""

import inspect
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from numbers import Real
from pathlib import Path
from types import GeneratorType
from typing import ClassVar, NoReturn

import simpy
from simpy.events import Event, ProcessGenerator

from fedsim.common.errors import SimulationError, show_value

GENERATOR_IN_WORDS = "a generator, the result of a function with 'yield'"
_EVENTS_IN_WORDS = (
    "an event of this run, such as world.timeout(5.0), world.send(...) or env.event() returns"
)


class CheckedEvents(Generator[Event, object, object]):
    """Generator of a SimPy process that wraps a user's generator and passes on only its events.

    The values of events, exceptions and the result pass through unchanged. If the user's generator
    yields a value for which a process cannot wait, it is closed, and ``SimulationError`` is raised.

    Args:
        events: the user's generator.
        env: the environment of the process, to which its events have to belong.
    """

    __slots__ = ("__name__", "_env", "_events", "_send", "_throw")

    def __init__(self, events: ProcessGenerator, env: simpy.Environment) -> None:
        self._events = events
        self._env = env
        self._send = events.send
        self._throw: Callable[..., Event] = events.throw
        # SimPy shows ``__name__`` as the name of the process
        self.__name__ = getattr(events, "__name__", type(events).__name__)

    def send(self, value: object) -> Event:
        event = self._send(value)
        if isinstance(event, Event) and event.env is self._env:
            return event
        raise self._refusal(event)

    def throw(self, error: object, *rest: object) -> Event:
        event = self._throw(error, *rest)
        if isinstance(event, Event) and event.env is self._env:
            return event
        raise self._refusal(event)

    def close(self) -> None:
        self._events.close()

    def _refusal(self, value: object) -> SimulationError:
        """Close the generator, and return the error that names it and the value that it has yielded."""
        owner = _name_of(_innermost(self._events))
        with suppress(Exception):  # code in a ``finally`` of the generator may raise an error
            self._events.close()
        shown = show_value(value)
        if isinstance(value, Event):
            shown += ", an event of another environment"
        return SimulationError(
            f"{owner} yields {shown}; allowed is {_EVENTS_IN_WORDS}{_hint_at(value)}"
        )


def _innermost(events: object) -> object:
    """Return the generator that yields the values of a generator, by ``yield from`` in it."""
    while isinstance(events, GeneratorType):
        inner = events.gi_yieldfrom
        if not isinstance(inner, GeneratorType):
            return events
        events = inner
    return events


def _name_of(events: object) -> str:
    """Return the name of a waiting generator with its file and line, such as ``run (my.py, line 3)``."""
    name = getattr(events, "__qualname__", type(events).__qualname__)
    name = name.rpartition("<locals>.")[2]
    frame = events.gi_frame if isinstance(events, GeneratorType) else None
    if frame is None:
        return name
    return f"{name} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"


def _hint_at(value: object) -> str:
    """Return a hint at the event that a user may mean by a value that is no event, or ""."""
    if isinstance(value, Real) and not isinstance(value, bool):
        shown = show_value(value)
        return (
            f"; to wait {shown} s, yield world.timeout({shown}), or env.timeout({shown}) of a bare "
            "clock"
        )
    if isinstance(value, Generator):
        return "; to go on with another generator, use 'yield from'"
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python would warn that the coroutine is never awaited
        return "; a process waits by 'yield', not by 'await'"
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return "; to wait for several events, yield env.all_of([...]) or env.any_of([...])"
    return ""


def raise_failure(process: Event) -> None:
    """Raise the exception with which a SimPy process has failed, if it has failed.

    SimPy would raise a copy, which lacks the traceback.
    """
    if not process.ok:
        assert isinstance(process.value, BaseException)
        raise process.value


class OwnEvent(Event):
    """Event that only fedsim may fire; users' code may wait for it.

    Attributes:
        advice: text for error messages: when fedsim fires events of the class, and what users' code
            can do instead of firing one.
    """

    advice: ClassVar[str]

    def happen(self, value: object = None) -> None:
        """Fire the event, as ``succeed`` does for other events.

        Args:
            value: value that waiting processes receive.
        """
        super().succeed(value)

    def succeed(self, value: object = None) -> NoReturn:
        self._refuse("succeed")

    def fail(self, exception: Exception) -> NoReturn:
        self._refuse("fail")

    def trigger(self, event: Event) -> NoReturn:
        self._refuse("trigger")

    def _refuse(self, method: str) -> NoReturn:
        raise SimulationError(
            f"{type(self).__name__}.{method}: {self.advice}; env.event() makes an event of your own"
        )


__all__ = ["GENERATOR_IN_WORDS", "CheckedEvents", "OwnEvent", "ProcessGenerator", "raise_failure"]
