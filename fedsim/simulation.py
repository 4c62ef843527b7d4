"""The clock: one SimPy environment, driven by asyncio, in which real work may be joined and every event is emitted.

Simulated time belongs to SimPy alone. asyncio drives it and lets others watch; it never decides an order. Within one
instant the order is fixed: world events; one solve for each network that changed; joins, oldest first; then the inbox, a
message at a time, in order of posting; and round again until nothing is due now. Only then does time move on. So real work
may take any time on any number of workers, and the run is the same to the bit.

Times lie on a grid of 2^-30 s (0.93 ns). Sums of such times are exact in a float64 up to 2^23 s (97 days), so two times
that ought to be equal are equal however they were added up; ``on_grid`` puts a duration there. Later times are as far apart as
float64s are (60 ns after ten years), and two sums may differ by some of these steps; ``tie_s`` says how many count as none.
"""

import asyncio
import gc
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, Protocol

import simpy
from simpy.events import NORMAL, URGENT, Event, ProcessGenerator

from fedsim.errors import SimulationError
from fedsim.executors.base import Executor
from fedsim.executors.inline import Inline
from fedsim.language.units import CLOCK_END_S, EXACT_S, TICK_S

_TICKS_PER_SECOND = 1 / TICK_S
_BREATH_S = 0.01  # the event loop gets its turn at least this often, in real seconds
_ROOM = 1024  # entries in the schedule; when there are more, and twice as many as were alive, the dead ones are dropped
_INSTANTS_A_LOOK = 64  # how many instants pass between two looks at the real clock


def on_grid(seconds: float) -> float:
    """``seconds`` moved to the nearest tick of the clock (2^-30 s); from 2^23 s on every float64 lies on one."""
    return round(seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND if -EXACT_S < seconds < EXACT_S else seconds


def on_grid_after(seconds: float) -> float:
    """The first tick of the clock at or after ``seconds``; from 2^23 s on that is ``seconds``."""
    return math.ceil(seconds * _TICKS_PER_SECOND) / _TICKS_PER_SECOND if -EXACT_S < seconds < EXACT_S else seconds


def tie_s(now: float) -> float:
    """How far apart two times around ``now`` may be that ought to be one (s): each is a sum of a few that were rounded."""
    return 8 * max(TICK_S, math.ulp(now))


class Record(NamedTuple):
    """One thing that happened: when (simulated seconds), what, and what that kind of event needs."""

    time: float
    kind: str
    fields: dict[str, Any]


Sink = Callable[[Record], None]

_make_record = tuple.__new__  # half the time of the constructor that NamedTuple writes


class Environment(simpy.Environment):
    """SimPy's environment, and the one place that uses what SimPy keeps to itself: its schedule, its counter, its clock.

    The driver needs all three. What is due in one instant is done in the order in which it was asked for, SimPy's events and
    the engine's alarms alike, so both are numbered by one counter. Alarms are set for a time, where ``schedule`` takes a delay
    (and now + (when - now) is not always when). They ring without an event's list of callbacks, and a cancelled one is dropped
    without moving the clock: an alarm costs 1.8 microseconds in all, 2.3 as a ``Timeout`` with a callback.

    Attributes:
        awaited: the work that a handler waits for, the last one.
        queue: SimPy's schedule: a heap of (time, priority, number, event or ``Wakeup``).
        number: gives the next number.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0.0)
        self.awaited: asyncio.Future[Any] | None = None
        self.queue: list[Any] = self._queue
        self.number: Callable[[], int] = self._eid.__next__
        for made in ("event", "process", "timeout"):
            setattr(self, made, getattr(self, made))  # bound once, as SimPy does for its own class

    def go_to(self, when: float) -> float:
        """Set the clock (s); returns what it says."""
        self._now = when
        return when


class Wakeup:
    """A named alarm at an absolute simulated time. Every wait of the engine is one, so that a snapshot can name it.

    It is rung by the driver itself: alarms are most of what a run consists of.

    Attributes:
        name: a kind and a number.
        when: the time (s).
        ring: what happens then; None when it has happened, or was cancelled.
    """

    __slots__ = ("name", "ring", "when")

    def __init__(self, name: tuple[str, int], when: float, ring: Callable[[], None]) -> None:
        self.name = name
        self.when = when
        self.ring: Callable[[], None] | None = ring

    def cancel(self) -> None:
        """Never ring. The dead entry is dropped from the schedule without moving the clock."""
        self.ring = None


class Join(Event):
    """The result of real work, for a process (``value = yield join``) or a handler (``value = await join``).

    In a process it fires in the instant in which it was made, after everything else due then, in order of making.
    """

    def __init__(self, env: Environment, work: "Future[Any]") -> None:
        super().__init__(env)
        self.work = work
        self._environment = env

    def __await__(self) -> Generator[Any, None, Any]:
        future = self._environment.awaited = asyncio.wrap_future(self.work)
        return future.__await__()

    async def resolve(self) -> None:
        """Wait (in real time) for the work, then fire with its value or its exception."""
        try:
            value = await asyncio.wrap_future(self.work)
        except Exception as error:
            self.fail(error)
        else:
            self.succeed(value)


class _Handled:
    """The rest of a handler, which may wait for real work alone: for anything else the clock would stand still.

    The error arises in the handler itself, so that it says where.

    Args:
        inner: what it does after its first wait.
        waited: for what it waits.
        env: knows what it may wait for.
    """

    def __init__(self, inner: Generator[Any, Any, None], waited: Any, env: Environment) -> None:
        self._inner, self._waited, self._env = inner, waited, env

    def __await__(self) -> Generator[Any, Any, None]:
        inner, waited = self._inner, self._waited
        try:
            while True:
                if waited is not self._env.awaited:
                    waited = inner.throw(
                        SimulationError(
                            "a handler waits for something that is no value of this run, such as asyncio.sleep; to wait in "
                            "simulated time set a timer (server.timer), of what takes real time await server.value and the like"
                        )
                    )
                try:
                    sent = yield waited
                except BaseException as error:
                    waited = inner.throw(error)
                else:
                    waited = inner.send(sent)
        except StopIteration:
            return


class Solver(Protocol):
    """Something shared by many processes, whose changes within one instant are settled together (a network)."""

    def solve(self) -> None:
        """Take in all the changes of this instant at once."""


class Blueprint(Protocol):
    """Anything that can put a world and its server into an empty simulation; ``Scenario`` is one."""

    def install(self, simulation: "Simulation") -> Any:
        """Build everything into ``simulation``: processes, first wake-ups, sinks. What it returns is kept for the caller."""


class _RareCollections:
    """While a run goes on, Python looks for cycles of garbage less often.

    A run makes many small objects, and hardly any cycle; at the usual threshold (700) a quarter of its time goes into looking
    at those that live. It is set for as long as any simulation of this process runs, and never lowered.
    """

    _OBJECTS = 50_000

    def __init__(self) -> None:
        self._running = 0
        self._before = 0, 0, 0

    def __enter__(self) -> None:
        if not self._running:
            self._before = gc.get_threshold()
            if 0 < self._before[0] < self._OBJECTS:
                gc.set_threshold(self._OBJECTS, *self._before[1:])
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        if not self._running:
            gc.set_threshold(*self._before)


_RARE_COLLECTIONS = _RareCollections()


class Simulation:
    """A run in simulated time. ``Simulation(scenario)`` has a world in it; ``Simulation()`` is a bare clock.

    Args:
        blueprint: what to build into it (a ``Scenario``), or None.
        executor: where real work runs; by default in this thread.

    Attributes:
        now: the simulated time, seconds since the start; to be read only.
        settled: whether it stands between two instants (it may be saved there), or is over, however it ended.
        working: whether real work is done in this very thread now, because the executor works there.
        end: what would happen later than this (s) never does; it need not be computed.

    Watch it with ``async for record in simulation``, or let it run with ``await simulation.run()``.
    """

    def __init__(self, blueprint: Blueprint | None = None, *, executor: Executor | None = None) -> None:
        self.env = Environment()
        self.now = 0.0
        self.end = CLOCK_END_S
        self.executor: Executor = Inline() if executor is None else executor
        self.handle: Callable[[Any], Awaitable[None]] | None = None
        self.stopped: str | None = None
        self._sinks: list[Sink] = []
        self._sinks_of: dict[str, list[Sink]] = {}  # by kind of record
        self._finals: list[Callable[[], None]] = []
        self._closers: list[Callable[[], None]] = []
        self._first: deque[tuple[int, Callable[[], None]]] = deque()  # what is to happen in this instant: its place among all
        self._soon: deque[tuple[int, Callable[[], None]]] = deque()  # that is due, and what
        self._unsettled: list[Solver] = []
        self._joins: deque[Join] = deque()
        self._inbox: deque[Any] = deque()
        self._watched: deque[Record] | None = None
        self._between: list[Callable[[], None]] = []
        self._interrupted = False
        self.settled = False
        self.working = False
        self.idle: Callable[[], bool] | None = None  # asked between two instants: does nothing to come matter?
        self.installed: Any = None if blueprint is None else blueprint.install(self)

    # What the world and the server use.

    def process(self, generator: ProcessGenerator) -> simpy.Process:
        """Start a SimPy process in this instant."""
        return self.env.process(generator)

    def wake(self, name: tuple[str, int], when: float, callback: Callable[[], None]) -> Wakeup:
        """Call ``callback`` at the absolute time ``when`` (seconds; not before now)."""
        wakeup = Wakeup(name, when, callback)
        heappush(self.env.queue, (when, NORMAL, self.env.number(), wakeup))
        return wakeup

    def soon(self, callback: Callable[[], None], *, first: bool = False) -> None:
        """Call ``callback`` in this instant, after all that is due in it already, or ``first``, before that."""
        (self._first if first else self._soon).append((self.env.number(), callback))

    def unsettle(self, solver: Solver) -> None:
        """Ask for one ``solver.solve()`` when the world's events of this instant are through. Ask once an instant."""
        self._unsettled.append(solver)

    def post(self, message: Any) -> None:
        """Put a message into the server's inbox; it is handled in this instant, after the world's events."""
        self._inbox.append(message)

    def submit(self, function: Callable[..., Any], *args: Any, alone: bool = False) -> "Future[Any]":
        """Start real work on the executor. When it finishes has no influence on the run; only ``join`` brings it in.

        ``alone``: nothing else is done in its process meanwhile.
        """
        self.working = True
        try:
            return (self.executor.submit_alone if alone else self.executor.submit)(function, *args)
        finally:
            self.working = False

    def place(self, thing: Any) -> None:
        """Say that ``thing`` never changes and goes into many calls of ``submit``; it is then brought to each worker once."""
        self.executor.place(thing)

    def join(self, work: "Future[Any]") -> Join:
        """The result of ``work``, at this very instant: the clock stands still until it is there."""
        join = Join(self.env, work)
        if self.env.active_process is not None:
            self._joins.append(join)
        return join

    def emit(self, kind: str, **fields: Any) -> None:
        """Record that something happened now. Fields are JSON-able."""
        self.record(kind, fields)

    def record(self, kind: str, fields: dict[str, Any]) -> None:
        """``emit`` for who has a dict of its own for it."""
        record = _make_record(Record, (self.now, kind, fields))
        for sink in self._sinks:
            sink(record)
        if kind in self._sinks_of:
            for sink in self._sinks_of[kind]:
                sink(record)
        if self._watched is not None:
            self._watched.append(record)

    def listen(self, sink: Sink, close: Callable[[], None] | None = None, *, kinds: Sequence[str] = ()) -> None:
        """Give every record to ``sink`` as it is emitted, and call ``close`` when the run is over, however it ends.

        ``kinds``: it is given records of these kinds alone, after those who get all: most are of steps, and cost nothing then.
        """
        for sinks in [self._sinks_of.setdefault(kind, []) for kind in kinds] or [self._sinks]:
            sinks.append(sink)
        if close is not None:
            self._closers.append(close)

    def at_end(self, final: Callable[[], None]) -> None:
        """Call ``final`` when the run is over but records are still taken, to end what is open. No message is handled then."""
        self._finals.append(final)

    def at_close(self, close: Callable[[], None]) -> None:
        """Call ``close`` when the run is over, however it ends; nothing is recorded any more."""
        self._closers.append(close)

    def stop(self, reason: str) -> None:
        """End the run when this instant is over. The first reason counts."""
        self.stopped = self.stopped or reason

    def interrupt(self) -> None:
        """Go no further than this instant, if the run does not end in it anyway: then it is ``stopped`` as ``interrupted``."""
        self._interrupted = True

    # Snapshots. One is legal only between two instants: nothing is due, no message waits, no handler runs.

    def between_instants(self, action: Callable[[], None]) -> None:
        """Call ``action`` once when this instant is over and before time moves on (or the run ends)."""
        self._between.append(action)

    def alarms(self) -> list[tuple[str, int, float]]:
        """Every wake-up to come: kind, number and time (s), in the order in which they will ring.

        Raises:
            SimulationError: something else waits, which a snapshot could not name.
        """
        if self._first or self._soon:
            raise SimulationError(f"a snapshot is not possible at {self.now!r} s: the instant is not over")
        found = []
        for when, _, _, event in sorted(self.env.queue, key=lambda entry: entry[:3]):
            if not isinstance(event, Wakeup):
                raise SimulationError(f"a snapshot is not possible at {self.now!r} s: {event!r} has no name")
            if event.ring is not None:
                found.append((*event.name, when))
        return found

    def expected(self) -> Iterator[str]:
        """The kind of each wake-up to come, in no particular order."""
        return (event.name[0] for *_, event in self.env.queue if type(event) is Wakeup and event.ring is not None)

    def set_clock(self, now: float) -> None:
        """Go to ``now`` (s) with nothing in the schedule, to take up a run from there."""
        for waiting in (self.env.queue, self._first, self._soon, self._inbox):
            waiting.clear()
        self.now = self.env.go_to(now)

    # What a person uses.

    async def run(self) -> str:
        """Run to the end; returns why it ended: what ``stop`` was told, or ``"nothing left to happen"``."""
        async for _ in self._drive():
            pass
        return self.stopped or "nothing left to happen"

    async def __aiter__(self) -> AsyncIterator[Record]:
        self._watched = deque()
        async for _ in self._drive():
            while self._watched:
                yield self._watched.popleft()
        while self._watched:
            yield self._watched.popleft()

    async def _drive(self) -> AsyncIterator[None]:
        """Carry out instant after instant; yields between two of them, often enough to keep the event loop alive."""
        try:
            with _RARE_COLLECTIONS:
                async for _ in self._play():
                    yield
                for final in self._finals:
                    final()
                    self._play_world()
        finally:
            self.settled = True
            for close in self._closers:
                close()

    async def _play(self) -> AsyncIterator[None]:
        go_to, queue = self.env.go_to, self.env.queue
        breath, instants, room = time.perf_counter(), 0, _ROOM
        while True:
            self._play_world()
            if self._joins:
                await self._joins.popleft().resolve()
                continue
            if self._inbox:
                if self.handle is None:
                    raise SimulationError("a message was posted, but no server handles messages in this simulation")
                inner = self.handle(self._inbox.popleft()).__await__()
                try:
                    waited = next(inner)
                except StopIteration:  # as most do, which wait for nothing
                    continue
                await _Handled(inner, waited, self.env)
                continue
            if self._between:
                self.settled = True
                while self._between:
                    self._between.pop(0)()
                self.settled = False
            if self._interrupted:
                self.stop("interrupted")
            if self.stopped is not None:
                return
            instants += 1
            if self._watched or instants >= _INSTANTS_A_LOOK:
                instants = 0
                if self._watched:
                    yield
                if len(queue) > room:  # what was cancelled may be due in hours, and makes the heap deep until then
                    queue[:] = [entry for entry in queue if type(entry[3]) is not Wakeup or entry[3].ring is not None]
                    heapify(queue)
                    room = max(_ROOM, 2 * len(queue))
                if time.perf_counter() - breath > _BREATH_S:
                    await asyncio.sleep(0)
                    yield
                    breath = time.perf_counter()
            while queue and type(queue[0][3]) is Wakeup and queue[0][3].ring is None:
                heappop(queue)
            if not queue or (self.idle is not None and self.idle()):
                return
            if queue[0][0] > CLOCK_END_S:
                self.stop(f"the end of the clock ({CLOCK_END_S:g} s)")
                return
            self.now = go_to(queue[0][0])

    def _play_world(self) -> None:
        """Process all events that are due now, and settle what they changed, until the world stands still.

        In SimPy's order: the urgent events first, and then as they were scheduled.
        """
        env, queue, first, soon, now = self.env, self.env.queue, self._first, self._soon, self.now
        while True:
            due = queue[0] if queue and queue[0][0] <= now else None
            if first and (due is None or due[1] != URGENT or due[2] > first[0][0]):
                first.popleft()[1]()
            elif soon and (due is None or (due[1] != URGENT and due[2] > soon[0][0])):
                soon.popleft()[1]()
            elif due is None:
                if not self._unsettled:
                    return
                unsettled, self._unsettled = self._unsettled, []
                for solver in unsettled:
                    solver.solve()
            elif type(event := due[3]) is Wakeup:
                heappop(queue)
                ring, event.ring = event.ring, None
                if ring is not None:
                    ring()
            else:
                env.step()


__all__ = [
    "TICK_S",
    "Blueprint",
    "Environment",
    "Join",
    "Record",
    "Simulation",
    "Solver",
    "Wakeup",
    "on_grid",
    "on_grid_after",
    "tie_s",
]
