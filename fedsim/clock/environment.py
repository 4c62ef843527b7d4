"""SimPy environment of the clock, with alarms at absolute times and a fixed order of events.

Events of one instant are processed by priority, and events of equal priority in the order in which
they were scheduled:

1. ``URGENT``: starts and interruptions of processes (SimPy's own use of it);
2. ``NORMAL``: everything that completes: the end of a flow or a computation, an arrival, any
   event of a process;
3. ``CUT``: everything that interrupts: a device that disconnects, an empty battery, an outage. Work
   that completes in the same instant is complete before, and is not interrupted;
4. ``SETTLE``: networks share their links again, once for all the changes of the instant;
5. ``JOIN``: results of real computations, in the order in which processes began to wait for them;
6. ``SERVE``: the server handles its messages, one at a time;
7. ``LAST``: the end of the run.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

import simpy
from simpy.events import NORMAL, URGENT, Event, EventPriority

from fedsim.clock.processes import GENERATOR_IN_WORDS, CheckedEvents, ProcessGenerator
from fedsim.common.arguments import refusal
from fedsim.common.errors import SimulationError

CUT, SETTLE, JOIN, SERVE, LAST = map(EventPriority, (2, 3, 4, 5, 6))

# Count of schedule entries up to which cancelled alarms are kept. A longer schedule drops its
# cancelled alarms each time that its length has doubled.
_LEAST_TRIM_LENGTH = 1024

# SimPy's ``step``, looked up only once. A look-up by ``super()`` takes a tenth of an event's time.
_process_next = simpy.Environment.step

# Entry of a schedule, later than all others, that ``advance`` uses if the schedule is empty.
_NEVER: tuple[float, int, int, Any] = (inf, LAST, 0, None)

Name = tuple[str, int]
"""Name of an alarm in a snapshot: a kind and a number."""

Rearm = Callable[[int, float], object]
"""Function of number and time (s) that sets an alarm of a kind, also after a resume."""


class Signal(Event):
    """SimPy event whose method ``fire`` calls its callbacks immediately, without the schedule.

    ``succeed`` schedules the callbacks instead, as for any event of SimPy.
    """

    callbacks: Any

    def fire(self, value: object = None) -> None:
        """Call the callbacks now; a process that waits for this event continues.

        Args:
            value: value that the waiting process receives.
        """
        self._ok = True
        self._value = value
        callbacks = self.callbacks
        self.callbacks = None
        for callback in callbacks:
            callback(self)


class DirectProcess(Signal, simpy.Process):
    """SimPy process that starts and ends without events in the schedule, which saves time.

    ``begin`` starts its generator; before ``begin``, the process cannot be interrupted. An exception
    in the generator is raised by the call that continued the generator: ``begin``, or the call that
    processed the event for which the process waited.
    """

    env: "Environment"

    def __init__(self, env: "Environment", generator: ProcessGenerator) -> None:
        Event.__init__(self, env)  # ``Process.__init__`` would schedule the start
        self._generator = generator
        self._target = env.past

    def begin(self) -> None:
        """Run the generator up to its first wait."""
        self._resume(self.env.past)

    def _resume(self, event: Event) -> None:
        """Continue the generator with the outcome of an event, until it waits for a future event.

        Args:
            event: the event that has happened.
        """
        env = self.env
        active = env._active_proc
        env._active_proc = self
        try:
            # ``callbacks`` is None if the event has happened: the generator need not wait for it
            while event.callbacks is None:
                if event._ok:
                    event = self._generator.send(event._value)
                else:
                    event.defused = True
                    event = self._generator.throw(event._value)
        except StopIteration as end:
            self.fire(end.value)
        else:  # ``event`` has not happened yet
            self._target = event
            event.callbacks.append(self._resume)
        finally:
            env._active_proc = active


class Alarm(Signal):
    """Call of a function at a simulated time, which can be cancelled and saved in a checkpoint.

    ``Environment.at`` sets an alarm. The name of an alarm is a kind and a number, by which a
    checkpoint stores the alarm.

    Attributes:
        when: the time of the call (s).
        ring: the function to call; None after the call or after ``cancel``.
    """

    # SimPy regards an alarm as an event that has been triggered
    _ok = True
    _value = None

    def __init__(
        self, env: "Environment", name: Name, when: float, ring: Callable[[], object]
    ) -> None:
        # set here, as a call of ``Event.__init__`` takes longer
        self.env = env
        self.callbacks = []
        self.name = name
        self.when = when
        self.ring: Callable[[], object] | None = ring

    def cancel(self) -> None:
        """Cancel the alarm: its function is never called, and the clock does not stop at its time."""
        self.ring = None

    def process(self) -> None:
        """Call the function of the alarm, and then the callbacks that SimPy added to the event."""
        ring = self.ring
        self.ring = None
        callbacks = self.callbacks
        self.callbacks = None
        if ring is not None:
            ring()
        for callback in callbacks:
            callback(self)


def _no_rearm(name: Name) -> SimulationError:
    return SimulationError(
        f"nothing sets an alarm of the kind {name[0]!r} again when a run is resumed; "
        "declare the kind by Environment.declare_alarm"
    )


def _is_cancelled(event: Event) -> bool:
    return type(event) is Alarm and event.ring is None


class Join(Event):
    """Event that fires when a real computation, such as a training in a worker process, is done.

    Simulated time stands still until the work is done. A SimPy process waits for the result by
    ``yield join``, the server's asynchronous code by ``await join``.
    """

    def __init__(self, env: "Environment", work: "Future[Any]") -> None:
        super().__init__(env)
        self.work = work
        self._environment = env

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._environment.handling:  # not within server code: wait in real time
            import asyncio

            return (yield from asyncio.wrap_future(self.work).__await__())
        yield self
        return self.work.result()

    def resolve(self) -> None:
        """Fire the event with the result of the finished computation, or with its exception."""
        error: Any = self.work.exception()
        if error is None:
            self.succeed(self.work.result())
        else:
            self.fail(error)


class Environment(simpy.Environment):
    """SimPy environment of a run, with alarms that can be saved, and waits for real computations.

    Processes, conditions and resources work as in SimPy. An alarm calls a function at an exact
    simulated time. A cancelled alarm never moves the clock.

    An event may need the result of a real computation, such as a training in a worker process.
    Simulated time then stands still until the computation is done.

    Attributes:
        pending: future of the computation for which simulated time stands still, and the function
            to call when it is done, which continues the event. None if no event waits.
        handling: whether the server's code for a message or a timer is running, so that ``await``
            in it waits in simulated time.
        past: event that has already happened, with the value None. A process yields this event if
            it must yield one but need not wait.
        moved: function that is called before the clock moves; ``Simulation`` sets it. The argument
            is the time of the next event (s), or infinity without one. None for no call.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0.0)
        self.pending: tuple[Future[Any], Callable[[], None]] | None = None
        self.handling = False
        self.past = Signal(self)
        self.past.fire()
        self.moved: Callable[[float], None] | None = None
        # heap of SimPy's events and of alarms: time (s), priority, number among all events, event
        self._schedule: list[Any] = self._queue
        # heap of the calls at the present time: priority, number among all events, function
        self._calls: list[tuple[int, int, Callable[[], object]]] = []
        # length of the schedule from which ``trim`` removes cancelled alarms
        self._trim_length = _LEAST_TRIM_LENGTH
        # kind of alarms -> function that sets such an alarm again in a resumed run
        self._rearms: dict[str, Rearm] = {}
        self._background: set[str] = set()  # kinds of alarms that do not prevent the end of a run
        # whether the run takes snapshots, so that each alarm needs an entry in ``_rearms``
        self._is_saved = False

    def process(self, generator: ProcessGenerator) -> simpy.Process:
        """Start a SimPy process at the present time.

        Args:
            generator: the process, which yields events of this environment, and no other value.

        Returns:
            The process, an event that fires when the generator returns.

        Raises:
            SimulationError: the argument is no generator.
        """
        # SimPy would accept a coroutine, but a coroutine cannot yield events
        if not isinstance(generator, Generator):
            raise refusal("process", "generator", generator, GENERATOR_IN_WORDS)
        return simpy.Process(self, CheckedEvents(generator, self))

    def owns(self, resource: simpy.Resource) -> bool:
        """Return whether a resource of SimPy was made with this environment."""
        return resource._env is self

    def peek(self) -> float:
        """Return the time of the next event (s), not of a cancelled alarm; infinity without one."""
        if self._calls:
            return self._now
        schedule = self._schedule
        while schedule:
            when, _, _, event = schedule[0]
            if type(event) is not Alarm or event.ring is not None:
                return when  # type: ignore[no-any-return]
            heappop(schedule)
        return inf

    def _call_is_next(self) -> bool:
        """Whether a function given to ``call`` is due before the next event of the schedule."""
        if not self._calls or not self._schedule:
            return bool(self._calls)
        when, priority, number, _ = self._schedule[0]
        return when > self._now or self._calls[0] < (priority, number)

    def advance(self) -> float:
        """Process events of the present time, until all are done or one waits for a real computation.

        A real computation, such as a training, runs in this process or another. While an event
        waits for a computation, ``pending`` holds it, and no further event is processed: the caller
        awaits the computation, and calls this method again.

        Returns:
            The time of the next event that is scheduled (s); infinity if there is none.
        """
        calls = self._calls
        schedule = self._schedule
        now = self._now
        while self.pending is None:
            # the next event of SimPy, or the next alarm; ``_NEVER`` if the schedule is empty
            when, priority, number, event = schedule[0] if schedule else _NEVER
            # A function given to ``call`` is due at the present time. Both tuples begin with the
            # priority and the number in the order of scheduling. Numbers are unique, so that the
            # function in the tuple is never compared.
            if calls and (when > now or calls[0] < (priority, number)):
                _, _, function = heappop(calls)
                function()
                continue
            if type(event) is not Alarm:  # an event of SimPy, or None in ``_NEVER``
                if when > now:
                    return when
                _process_next(self)
            elif event.ring is None:  # the alarm is cancelled, and its time must not be returned
                heappop(schedule)
            elif when > now:
                return when
            else:
                heappop(schedule)
                event.process()
        return self.peek()

    def move(self, when: float) -> None:
        """Move the clock to the time of the next event, without processing the event.

        Args:
            when: the time (s), as ``peek`` returns it; infinity leaves the clock as it is.
        """
        if self.moved is not None and self._now < when:
            self.moved(when)
        if when < inf:
            self._now = when

    def step(self) -> None:
        """Process the next event, and wait for any real computation that it needs.

        An entry of the schedule is (time, priority, number, event); alarms are processed here, and
        SimPy processes all other events.
        """
        self.move(self.peek())
        if self._call_is_next():
            heappop(self._calls)[2]()
        elif self._schedule and type(self._schedule[0][3]) is Alarm:
            self._now, _, _, alarm = heappop(self._schedule)
            alarm.process()
        else:
            super().step()
        # after one computation, the rest of the event may need another one
        while self.pending is not None:
            (work, go_on), self.pending = self.pending, None
            wait([work])
            go_on()

    def at(
        self, name: Name, when: float, ring: Callable[[], object], priority: EventPriority = NORMAL
    ) -> Alarm:
        """Set an alarm, which calls a function at a simulated time.

        Args:
            name: kind and number of the alarm, for checkpoints.
            when: the time (s), not before now.
            ring: the function, without arguments.
            priority: order among events of the same time.

        Raises:
            ValueError: ``when`` is before now.
            SimulationError: the run takes snapshots (``require_rearm``), and the alarm's kind is
                not declared (``declare_alarm``), so that it could not be set again.
        """
        if when < self._now:
            raise ValueError(f"an alarm at {when!r} s cannot be set at {self._now!r} s")
        if self._is_saved and name[0] not in self._rearms:
            raise _no_rearm(name)
        alarm = Alarm(self, name, when, ring)
        heappush(self._schedule, (when, priority, next(self._eid), alarm))
        return alarm

    def call(self, ring: Callable[[], object], priority: EventPriority = NORMAL) -> None:
        """Schedule a call of a function at the present time.

        Events of the present time that have an earlier priority, or the same priority and an
        earlier place in the schedule, come before the call. The call has no name, cannot be
        cancelled, and is faster to compute than an alarm.

        Args:
            ring: the function, without arguments.
            priority: order among events of the present time.
        """
        heappush(self._calls, (priority, next(self._eid), ring))

    def declare_alarm(self, kind: str, rearm: Rearm, *, in_background: bool = False) -> None:
        """Declare a kind of alarms, so that checkpoints can store and restore them.

        Args:
            kind: the first part of such an alarm's name.
            rearm: function that sets an alarm of this kind again, from its number and time (s).
            in_background: whether alarms of this kind do not prevent the end of a run; a run is
                over if only such alarms remain.
        """
        self._rearms[kind] = rearm
        if in_background:
            self._background.add(kind)

    def is_background(self, alarm: Alarm) -> bool:
        """Return whether an alarm is of a kind that does not prevent the end of a run."""
        return alarm.name[0] in self._background

    def can_rearm(self, kind: str) -> bool:
        """Return whether alarms of a kind can be restored from a checkpoint."""
        return kind in self._rearms

    def rearm(self, kind: str, number: int, when: float) -> None:
        """Set an alarm again that a checkpoint contains, when a run is resumed.

        Args:
            kind: kind of the alarm, the first part of its name.
            number: number of the alarm, the second part of its name.
            when: simulated time at which the alarm calls its function (s).

        Raises:
            KeyError: the kind is not declared.
        """
        self._rearms[kind](number, when)

    def require_rearm(self) -> None:
        """Refuse, from now on, alarms of kinds that ``declare_alarm`` has not declared.

        Called once in a run that saves checkpoints, as a resumed run can set only alarms of
        declared kinds again. ``at`` then raises ``SimulationError`` for an alarm of another kind.

        Raises:
            SimulationError: an alarm of a kind that is not declared is set already.
        """
        for event in self.alarms():
            if isinstance(event, Alarm) and event.name[0] not in self._rearms:
                raise _no_rearm(event.name)
        self._is_saved = True

    def alarms(self) -> Iterator[Event]:
        """Yield alarms and all other future events, in the order in which they will be processed.

        Cancelled alarms are left out.
        """
        return (
            entry[3]
            for entry in sorted(self._schedule, key=lambda entry: entry[:3])
            if not _is_cancelled(entry[3])
        )

    def trim(self) -> None:
        """Remove cancelled alarms from the schedule if it has become long, to free memory."""
        if len(self._schedule) > self._trim_length:
            self._schedule[:] = [
                entry
                for entry in self._schedule
                if type(entry[3]) is not Alarm or entry[3].ring is not None
            ]
            heapify(self._schedule)
            self._trim_length = max(_LEAST_TRIM_LENGTH, 2 * len(self._schedule))

    def restart(self, now: float) -> None:
        """Set the clock to ``now`` (s) and empty the schedule, before a run is restored."""
        self._schedule.clear()
        self._calls.clear()
        if self.moved is not None and self._now < now:
            self.moved(now)
        self._now = now

    def join(self, work: "Future[Any]") -> Join:
        """Return an event that fires with the result of a real computation.

        Simulated time stands still until the computation is done.

        Args:
            work: future of the computation.
        """
        join = Join(self, work)
        if self.active_process is not None:
            self.call(partial(setattr, self, "pending", (work, join.resolve)), JOIN)
        return join


__all__ = [
    "CUT", "JOIN", "LAST", "NORMAL", "SERVE", "SETTLE", "URGENT", "Alarm", "DirectProcess", "Environment", "Join", "Name",
    "ProcessGenerator", "Rearm", "Signal",
]  # fmt: skip
