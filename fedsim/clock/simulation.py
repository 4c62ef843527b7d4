"""Clock of a run: a SimPy environment stepped by asyncio, with real computations and records.

The order of events within one instant is defined in ``fedsim.clock.environment``. No event is
processed while the clock waits for a real computation, so that the results do not depend on the
real time that computations take.

Times lie on a grid of 2^-30 s (0.93 ns), on which sums are exact in a float64 up to 2^23 s (97
days). The distance of later times is the distance of float64 numbers (60 ns after ten years), and
two sums of such times that should be equal may differ by a few of these distances.
"""

import asyncio
import gc
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import simpy
from simpy.events import EventPriority

from fedsim.clock.environment import (
    LAST,
    NORMAL,
    SERVE,
    SETTLE,
    Alarm,
    Environment,
    Join,
    Name,
    ProcessGenerator,
)
from fedsim.clock.executors import Executor, Inline
from fedsim.clock.processes import OwnEvent, raise_failure
from fedsim.common.arguments import (
    CALLABLE,
    FLAG,
    TEXT,
    instance,
    is_number,
    is_whole,
    list_of,
    refusal,
    takes,
)
from fedsim.common.errors import SimulationError
from fedsim.common.units import CLOCK_END_S, EXACT_S, TICK_S
from fedsim.common.user_records import check_fields, check_kind

T = TypeVar("T")
_FOREIGN_AWAIT = (
    "a handler waits for something that is no value of this run; use server.timer to wait, "
    "server.models.value for results"
)
_TICKS_PER_SECOND = 1 / TICK_S
_PAUSE_EVERY_S = 0.01  # longest real time (s) between two turns of asyncio's event loop
_NOTHING_LEFT = "nothing left to happen"
_OBJECTS_A_COLLECTION = 50_000  # count of new objects between two collections of garbage
_INSTANTS_A_YIELD = 64  # greatest count of instants processed between two yields of ``_drive``


def on_grid(seconds: float) -> float:
    """Round a time (s) to the nearest tick of the simulated clock, 2^-30 s.

    From 2^23 s on every float64 lies on a tick.
    """
    if -EXACT_S < seconds < EXACT_S:
        return round(seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND
    return seconds


def on_grid_after(seconds: float) -> float:
    """Round a time (s) up to the next tick of the simulated clock, 2^-30 s.

    A time from 2^23 s on is returned unchanged.
    """
    if -EXACT_S < seconds < EXACT_S:
        return math.ceil(seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND
    return seconds


def tie_s(now: float) -> float:
    """Return the difference (s) up to which two times near ``now`` count as equal.

    Rounding may make equal times differ by this much.

    Args:
        now: a time (s).
    """
    return 8 * max(TICK_S, math.ulp(now))


class Record(NamedTuple):
    """Event of a run, as ``Simulation.listen`` receives it and ``events.parquet`` stores it.

    Attributes:
        time: simulated time (s).
        kind: name of the kind, such as ``task-end``.
        fields: JSON-able fields of the kind, by name.
    """

    time: float
    kind: str
    fields: dict[str, Any]


Sink = Callable[[Record], None]
Handler = Callable[[], Awaitable[None]]

_make_record = tuple.__new__  # takes half the time of NamedTuple's constructor


class Blueprint(Protocol):
    """Interface of ``Scenario`` for ``Simulation``: it builds devices, network and server of the run."""

    def install(self, simulation: "Simulation") -> Any:
        """Build the devices, the network and the server in ``simulation``.

        This starts their processes, sets their first alarms, and registers the functions that
        receive the run's records.

        Args:
            simulation: the simulation.

        Returns:
            Any object, which the simulation stores for the caller.
        """


class _EndOfRun(OwnEvent):
    advice = "fedsim fires it at the end of the run, which stop(reason) of the simulation brings"


# one entry for each run that has not ended: the thresholds of the garbage collector before the
# first of these runs began
_running: list[tuple[int, int, int]] = []


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Context manager in which Python rarely collects cyclic garbage.

    A run makes little garbage, and frequent collections would take a quarter of its time.
    """
    # The first run to begin changes the thresholds, and the last run to end restores them.
    original = _running[0] if _running else gc.get_threshold()
    _running.append(original)
    objects, *older_generations = original
    if 0 < objects < _OBJECTS_A_COLLECTION:  # 0 means that the user has switched collections off
        gc.set_threshold(_OBJECTS_A_COLLECTION, *older_generations)
    try:
        yield
    finally:
        _running.pop()
        if not _running:
            gc.set_threshold(*original)


class Simulation:
    """A run in simulated time: the clock, the executor of real computations, and the records.

    ``Simulation(scenario)`` contains the scenario's devices, network and server. ``Simulation()``
    is a bare clock.

    Watch it with ``async for record in simulation``, or let it run with ``await simulation.run()``.

    Args:
        blueprint: the ``Scenario`` whose devices, network and server are built; None for a bare
            clock.
        executor: carries out real computations, such as trainings; by default in this thread.

    Attributes:
        env: SimPy's environment. Instead of ``Simulation.run``, a caller may use the methods
            ``env.run`` and ``env.step``.
        now: the simulated time (s), read only; equals ``env.now``, but is faster to read.
        savable: whether the state can be saved now: True after the run, and while functions given
            to ``between_instants`` run.
        working: whether the executor runs a computation in this thread now.
        end: latest simulated time (s) at which the run can end.
        ended: event that fires when the run is over, with the reason as its value. An example of
            its use is ``env.run(until=simulation.ended)``.
        idle: function that is called between the events of two times, and returns whether the run
            is over; None if a run is over only when no event is left.

    Example:
        >>> import asyncio
        >>> from fedsim import Simulation
        >>> simulation = Simulation()
        >>> simulation.listen(lambda record: print(record.time, record.kind, record.fields))
        >>> def ring(times):
        ...     for count in range(times):
        ...         yield simulation.env.timeout(2.5)
        ...         simulation.emit("ring", count=count)
        >>> process = simulation.process(ring(2))
        >>> asyncio.run(simulation.run())
        2.5 ring {'count': 0}
        5.0 ring {'count': 1}
        'nothing left to happen'
    """

    def __init__(
        self, blueprint: Blueprint | None = None, *, executor: Executor | None = None
    ) -> None:
        self.env = Environment()
        self.env.moved = self._move
        self.now = 0.0  # a copy of ``env.now``, which is slow to read
        self.end = CLOCK_END_S
        self.ended = _EndOfRun(self.env)
        self.executor: Executor = Inline() if executor is None else executor
        self.stopped: str | None = None  # reason of the end of the run, if it was stopped
        self.savable = False  # whether the state can be saved now
        self.working = False  # whether the executor computes in this thread now
        self._is_over = False
        self._interrupted = False  # whether the user has requested the end, such as by Ctrl-C
        self._sinks: list[Sink] = []
        # sinks are functions that receive records: kind of record -> sinks for this kind only
        self._sinks_of: dict[str, list[Sink]] = {}
        # kind of record -> all its sinks: first the sinks for all kinds, then for this kind only
        self._receivers: dict[str, list[Sink]] = {}
        self._finals: list[Callable[[], None]] = []  # functions given to ``at_end``
        self._closers: list[Callable[[], None]] = []  # functions given to ``at_close``
        # records that ``async for`` has not yielded yet; None if nobody iterates over the run
        self._unread: deque[Record] | None = None
        self._between: list[Callable[[], None]] = []  # functions given to ``between_instants``
        self.idle: Callable[[], bool] | None = None
        self.installed: Any = None
        if blueprint is not None:
            if not hasattr(blueprint, "install"):
                allowed = "a Scenario, such as fedsim.load returns, or None"
                raise refusal("Simulation", "blueprint", blueprint, allowed)
            self.installed = blueprint.install(self)

    def _move(self, now: float) -> None:
        if self.ended.callbacks and (now == math.inf or (self.idle is not None and self.idle())):
            self.stop(_NOTHING_LEFT)
        elif now < math.inf:
            self.now = now

    @property
    def world(self) -> Any:
        """API by which a user's Python code acts on devices and network, a ``fedsim.plugin.World``."""
        if self.installed is None:
            raise SimulationError(
                "there is no world in a bare clock; give Simulation a scenario, or use "
                "fedsim.build_world"
            )
        return self.installed.processes.world

    def process(self, generator: ProcessGenerator) -> simpy.Process:
        """Start a SimPy process at the present time; an exception in it ends the run.

        Args:
            generator: the process, which yields events of ``env``. If it yields any other value,
                the process ends with ``SimulationError``.

        Returns:
            The process, an event that fires when the generator returns.

        Raises:
            SimulationError: the argument is no generator.
        """
        process = self.env.process(generator)
        process.callbacks.append(raise_failure)
        return process

    def wake(
        self,
        name: Name,
        when: float,
        callback: Callable[[], object],
        priority: EventPriority = NORMAL,
    ) -> Alarm:
        """Set an alarm, which calls a function at a simulated time.

        Args:
            name: kind and number, under which a checkpoint saves the alarm.
            when: the simulated time (s), a multiple of the clock's tick (2^-30 s).
            callback: the function, without arguments.
            priority: order among the alarms of the same time.

        Returns:
            The alarm, which can be cancelled.

        Raises:
            SimulationError: the time is before now or no number, or another argument is wrong.
        """
        if not (isinstance(name, tuple) and len(name) == 2):
            raise refusal("Simulation.wake", "name", name, "a pair (kind, number)")
        if not callable(callback):
            raise refusal("Simulation.wake", "callback", callback, "a function")
        if not is_whole(priority):
            raise refusal("Simulation.wake", "priority", priority, "a whole number")
        if not (is_number(when) and self.now <= when):
            allowed = f"a time of {self.now!r} s or later"
            raise refusal("Simulation.wake", "when", when, allowed)
        return self.env.at(name, when, callback, priority)

    def call_after_changes(self, function: Callable[[], None]) -> None:
        """Call a function later at the present time: after devices' events, before the server acts.

        The network calls this method to compute its rates once for all flows that begin or end at
        the present time.

        Args:
            function: the function, without arguments.
        """
        if not callable(function):
            raise refusal("Simulation.call_after_changes", "function", function, "a function")
        self.env.call(function, SETTLE)

    def post(self, handler: Handler) -> None:
        """Run code of the server now, after the events of devices and network at this time.

        Args:
            handler: coroutine function without arguments, such as the strategy's reaction to a
                message. It may only await results of real computations (``join``), such as
                trainings.
        """
        if not callable(handler):
            raise refusal("Simulation.post", "handler", handler, "a coroutine function")
        if not self._is_over:
            self.env.call(lambda: self._begin_handler(handler), SERVE)

    @takes(function=CALLABLE, alone=FLAG)
    def submit(self, function: Callable[..., T], *args: object, alone: bool = False) -> "Future[T]":
        """Start a real computation, such as a training, on the executor; ``join`` waits for it.

        Args:
            function: the function to call.
            args: its arguments.
            alone: whether the function needs a process that runs no other function at the same time.

        Returns:
            The future of the result.
        """
        submit = self.executor.submit_alone if alone else self.executor.submit
        self.working = True
        try:
            return submit(function, *args)
        finally:
            self.working = False

    @takes(work=instance(Future, "a future of concurrent.futures"))
    def join(self, work: "Future[Any]") -> Join:
        """Return an event for the result of a real computation; the clock stops until it is done.

        Args:
            work: the future that ``submit`` has returned.

        Returns:
            An event to ``yield``, whose value is the result.
        """
        return self.env.join(work)

    def emit(self, kind: str, **fields: object) -> None:
        """Record an event of your own at the present time; functions of ``listen`` receive it.

        Args:
            kind: name of the kind. In a simulation of a scenario, kinds that fedsim uses itself,
                such as ``task-end``, are not allowed.
            fields: JSON values, by name. ``device``, ``round``, ``group`` and ``task`` are whole
                numbers or None, ``step`` and ``outcome`` texts or None.

        Raises:
            SimulationError: the kind is not allowed, or a field has a wrong value.
        """
        kind = check_kind("Simulation.emit", kind, is_clock=self.installed is None)
        self.record(kind, check_fields("Simulation.emit", kind, fields))

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """Record an event of fedsim itself as ``emit`` does, without checks or a copy of the fields.

        Args:
            kind: name of the kind.
            fields: JSON-able values, by name; the caller does not change them any more.
        """
        record = _make_record(Record, (self.now, kind, fields))
        for sink in self._receivers.get(kind, self._sinks):
            sink(record)
        if self._unread is not None:  # ``async for`` iterates over the records
            self._unread.append(record)

    @takes(sink=CALLABLE, kinds=list_of(TEXT, "kinds"))
    def listen(self, sink: Sink, *, kinds: Sequence[str] = ()) -> None:
        """Register a function that receives every record, or the records of some kinds.

        Args:
            sink: the function, which takes a ``Record``.
            kinds: the kinds of records that the function receives; empty for all. Functions for
                some kinds are called after functions for all kinds.
        """
        if not kinds:
            self._sinks.append(sink)
        for kind in kinds:
            self._sinks_of.setdefault(kind, []).append(sink)
        # records of a kind that is not in ``_receivers`` go to ``_sinks`` only
        self._receivers = {
            kind: [*self._sinks, *kind_sinks] for kind, kind_sinks in self._sinks_of.items()
        }

    @takes(final=CALLABLE)
    def at_end(self, final: Callable[[], None]) -> None:
        """Register a function to call when the run is over.

        The function can still emit records. The server's code for messages and timers does not run
        any more.

        Args:
            final: the function, without arguments.
        """
        self._finals.append(final)

    @takes(close=CALLABLE)
    def at_close(self, close: Callable[[], None]) -> None:
        """Register a function to call after the run, even if the run fails.

        Args:
            close: the function, without arguments, such as one that closes a file.
        """
        self._closers.append(close)

    @takes(reason=TEXT)
    def stop(self, reason: str) -> None:
        """End the run after all events of the present time.

        Args:
            reason: the reason, which ``run`` returns; the reason of the first call counts.
        """
        if self.stopped is None:
            self.stopped = reason
            self.env.call(lambda: self.ended.happen(self.stopped), LAST)

    def interrupt(self) -> None:
        """End the run after all events of the present time, as interrupted by the user.

        ``run`` then returns ``interrupted``, or the reason that ``stop`` was given before.
        """
        self._interrupted = True

    # state for checkpoints, and alarms that a resumed run sets again

    @takes(action=CALLABLE)
    def between_instants(self, action: Callable[[], None]) -> None:
        """Call a function once, after all events of the present time and before the clock moves on.

        Args:
            action: the function, without arguments.
        """
        self._between.append(action)

    def alarms(self) -> list[tuple[str, int, float]]:
        """Return kind, number and time (s) of every future alarm, in order.

        Raises:
            SimulationError: an event of the present time is not processed yet, or the schedule has
                an event that is not an alarm.
        """
        alarms = []
        if self.env.peek() <= self.now:
            raise self._no_snapshot("the instant is not over")
        for event in self.env.alarms():
            if not isinstance(event, Alarm):
                raise self._no_snapshot(f"{event!r} has no name")
            alarms.append((*event.name, event.when))
        return alarms

    def begin_restored(self) -> None:
        """Begin the restored tasks and processes at the present time; each runs to its first wait."""
        self._process_present()

    def _no_snapshot(self, reason: str) -> SimulationError:
        return SimulationError(f"a snapshot is not possible at {self.now!r} s: {reason}")

    async def run(self) -> str:
        """Run to the end; return the reason given to ``stop``, or ``"nothing left to happen"``."""
        async for _ in self._drive():
            pass
        return self.stopped or _NOTHING_LEFT

    async def __aiter__(self) -> AsyncIterator[Record]:
        self._unread = deque()
        async for _ in self._drive():
            while self._unread:
                yield self._unread.popleft()
        while self._unread:
            yield self._unread.popleft()

    async def _drive(self) -> AsyncIterator[None]:
        """Run to the end, and yield at short intervals so that new records can be read.

        Control returns to asyncio's event loop often enough for other coroutines to continue.
        """
        try:
            with _rare_collections():
                async for _ in self._process_instants():
                    yield
                self._finish()
        finally:
            self.savable = True  # the state can be saved
            for close in self._closers:
                close()

    async def _process_instants(self) -> AsyncIterator[None]:
        """Process the events of one instant after another, until the run is over."""
        last_pause = time.perf_counter()
        instants = 0  # count of instants processed since the last yield
        while True:
            due = self.env.advance()  # time of the next event (s)
            if self.env.pending is not None:  # the server waits for a real computation
                await self._await_pending()
                continue  # the present instant may have more events
            if self._between:
                self._act_between_instants()
                due = self.env.peek()
            if not self._goes_on(due):
                return
            instants += 1
            # yield to the caller if it has records to read; otherwise rarely, as a yield takes time
            if self._unread or instants >= _INSTANTS_A_YIELD:
                instants = 0
                yield
                self.env.trim()  # frees the memory of cancelled alarms
                # let the event loop run other coroutines from time to time
                if time.perf_counter() - last_pause > _PAUSE_EVERY_S:
                    await asyncio.sleep(0)
                    last_pause = time.perf_counter()
                due = self.env.peek()  # other coroutines may have set alarms
            self.env.move(due)

    def _finish(self) -> None:
        """Process the last events of the present instant, and call the functions of ``at_end``."""
        self._is_over = True  # from now on, handlers of messages do not run
        self._process_present()
        for final in self._finals:
            final()
            self._process_present()

    def _process_present(self) -> None:
        """Process all events that are due at the present time."""
        while self.env.peek() <= self.now:
            self.env.step()

    async def _await_pending(self) -> None:
        """Wait until the real computation in ``env.pending`` is done, then continue its event.

        A real computation, such as a training, runs in an executor while simulated time stands
        still.
        """
        assert self.env.pending is not None
        computation, resume_event = self.env.pending
        self.env.pending = None
        # an error of the computation is raised by ``resume_event``, in the code that waits for it
        with suppress(Exception):
            await asyncio.wrap_future(computation)
        resume_event()

    def _act_between_instants(self) -> None:
        """Call the functions given to ``between_instants``."""
        self.savable = True
        while self._between:
            self._between.pop(0)()
        self.savable = False

    def _goes_on(self, due: float) -> bool:
        """Return whether the run continues with the next event.

        The run ends if it was stopped or interrupted, if no event is left, if ``idle`` returns
        True, or at the latest time that the clock can show.

        Args:
            due: time of the next event (s), infinity if there is none.
        """
        if self._interrupted:
            self.stop("interrupted")
        if self.stopped is not None or due == math.inf:
            return False
        if self.idle is not None and self.idle():
            return False
        if due > CLOCK_END_S:
            self.stop(f"the end of the clock ({CLOCK_END_S:g} s)")
            return False
        return True

    def _begin_handler(self, handler: Handler) -> None:
        """Call a function given to ``post``, and run the coroutine that it returns."""
        coroutine = handler()
        if not hasattr(coroutine, "__await__"):
            allowed = "a coroutine, as a function with 'async def' returns it"
            raise refusal("Simulation.post", "the result of handler", coroutine, allowed)
        self._handle(coroutine.__await__())

    def _handle(self, handler: Generator[object, None, None]) -> None:
        """Run the server's code for an event until it returns or waits for a real computation.

        A real computation is, for example, a training in a worker process.

        Args:
            handler: the running code, as a generator. It yields a ``Join`` for each wait; if it
                awaits anything else, ``SimulationError`` is raised in it.
        """
        self.env.handling = True
        try:
            awaited = next(handler)
            # the error is raised inside of the handler, so that the traceback has the handler's
            # line
            while not isinstance(awaited, Join):
                awaited = handler.throw(SimulationError(_FOREIGN_AWAIT))
        except StopIteration:
            return
        finally:
            self.env.handling = False
        # once the computation is done, this method is called again for the rest of the handler
        self.env.pending = awaited.work, partial(self._handle, handler)


__all__ = [
    "TICK_S",
    "Alarm",
    "Blueprint",
    "Environment",
    "Join",
    "Record",
    "Simulation",
    "on_grid",
    "on_grid_after",
    "tie_s",
]
