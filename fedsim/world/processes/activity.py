"""Activities of processes, which are messages or computations, as events that can be cancelled."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import simpy

from fedsim.clock.environment import CUT, NORMAL, Alarm, Environment
from fedsim.clock.processes import OwnEvent
from fedsim.clock.simulation import on_grid
from fedsim.world.messages import Message, Messages
from fedsim.world.steps import Outcome

Call = tuple[Any, ...]
"""Method name and arguments that began an activity; a restored process finds the activity by them."""

ComputationState = tuple[Call, int, int, float, float, float, float]
"""Arguments of ``ComputeActivity`` from ``call`` to ``pace``; a snapshot stores a computation so."""

_Callback = Callable[[Any], None]


class _Waiters(list[_Callback]):
    """List of an event's callbacks that cancels activities for which no process waits any more.

    An activity is a message or a computation. The event is an activity, or a SimPy condition that
    waits for activities. SimPy removes the callback of a process that is interrupted. The list then
    calls its functions ``give_up``, which cancel the activities for which no other process waits.
    """

    def __init__(self, event: simpy.Event, give_up: Sequence[Callable[[], None]]) -> None:
        super().__init__(event.callbacks or ())
        self._event = event
        self.give_up = [*give_up]

    def append(self, callback: _Callback) -> None:
        super().append(callback)
        condition = _condition_of(callback)
        if condition is None or condition is self._event:
            return
        if isinstance(condition.callbacks, _Waiters):
            condition.callbacks.give_up += self.give_up
        else:
            condition.callbacks = _Waiters(condition, self.give_up)

    def remove(self, callback: _Callback) -> None:
        super().remove(callback)
        if isinstance(getattr(callback, "__self__", None), simpy.Process):
            for give_up in self.give_up:
                give_up()


def _condition_of(callback: object) -> simpy.events.Condition | None:
    """Return the SimPy condition whose method a callback is; None for any other callback."""
    owner = getattr(callback, "__self__", None)
    return owner if isinstance(owner, simpy.events.Condition) else None


def _is_awaited(event: simpy.Event) -> bool:
    """Return whether a process waits for the event, directly or by SimPy conditions."""
    for callback in event.callbacks or ():
        condition = _condition_of(callback)
        if condition is None or (condition is not event and _is_awaited(condition)):
            return True
    return False


class TimeEvent(OwnEvent):
    """Event of ``World.until`` or ``World.timeout``, which fires at a simulated time."""

    advice = "fedsim fires it at its time"


class Activity(OwnEvent):
    """Message or computation that a process of the world has started, as a SimPy event.

    The value of the event is the activity itself. The event fires when the activity is done, or when
    the activity is lost because a device or edge server becomes unavailable. A cancelled activity
    never fires. An activity is cancelled by ``cancel()``, by the end of a ``with``, and by an
    interrupt of the last process that waits for the activity, directly or in a condition. Its
    ``outcome`` is None before the end of the activity, and then ``done``, ``lost``, ``cancelled``
    or, at the end of the run, ``stopped``. Only fedsim fires an activity, so that ``succeed``,
    ``fail`` and ``trigger`` raise ``SimulationError``.

    Example:
        >>> import fedsim
        >>> network = {"kind": "star", "device": {"up": "1 MB/s"}}
        >>> world = fedsim.build_world({"devices": 1}, network)
        >>> message = world.send(0, "server", "4 MB")
        >>> world.env.run(until=1.0)
        >>> message.left, message.outcome
        (3000000.0, None)
        >>> message.cancel()
        >>> message.outcome
        'cancelled'
    """

    advice = "fedsim fires an activity when it is done or lost, and cancel() ends it before"

    def __init__(self, env: Environment, call: Call, on_end: Callable[[Self], object]) -> None:
        super().__init__(env)
        give_up = partial(env.call, self._cancel_unless_awaited, CUT)
        self.callbacks: list[_Callback] = _Waiters(self, [give_up])
        self.call = call
        self._environment = env
        self._on_end: Callable[[Any], object] = on_end
        self.outcome: Outcome | None = None

    def _cancel_unless_awaited(self) -> None:
        if not _is_awaited(self):
            self.cancel()

    @property
    def left(self) -> float:
        """Remaining bytes of a message, or remaining time of a computation at full speed (s)."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the activity now; it then has the outcome ``cancelled`` and never fires.

        Has no effect on an activity that has ended, or that ends at this instant.
        """
        raise NotImplementedError

    def _end(self, outcome: Outcome) -> None:
        """Store the outcome of the activity, and fire its event if it is ``done`` or ``lost``.

        The function ``on_end`` of the constructor is called last.

        Args:
            outcome: ``done``, ``lost``, ``cancelled`` or ``stopped``.
        """
        self.outcome = outcome
        if outcome in ("done", "lost"):
            self.happen(self)
        self._on_end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Sending(Activity):
    """Message that a process sends by ``World.send``, as an event.

    The event fires when the last byte of the message has arrived, or when the message is lost.
    """

    def __init__(
        self,
        call: Call,
        messages: Messages,
        message: Message,
        on_end: Callable[["Sending"], object],
    ) -> None:
        super().__init__(messages.simulation.env, call, on_end)
        self._messages = messages
        self.message = message
        message.on_end = lambda _, outcome: self._end(outcome)

    @property
    def left(self) -> float:
        size: float = self.call[3]
        return size - self._messages.delivered(self.message)

    def cancel(self) -> None:
        if self.outcome is None:
            self._messages.cut(self.message, "cancelled")


class ComputeActivity(Activity):
    """Computation that a process starts on a device by ``World.compute``, as an event.

    The event fires when the computation is done, or lost because its device becomes unavailable.

    Args:
        env: the environment.
        on_end: function that is called with the computation at its end.
        call: the method name and arguments that began the computation.
        number: ID of the computation.
        device: index of the device.
        began: begin of the computation (s).
        ends: end of the computation at the device's present speed (s).
        until: time from which the device is unavailable (s).
        pace: factor of the device's speed.
    """

    def __init__(
        self,
        env: Environment,
        on_end: Callable[["ComputeActivity"], None],
        call: Call,
        number: int,
        device: int,
        began: float,
        ends: float,
        until: float,
        pace: float,
    ) -> None:
        super().__init__(env, call, on_end)
        self.number = number
        self.device = device
        self.began = began
        self.ends = ends
        self.until = until
        self._pace = pace
        self._left_at_end = 0.0  # remaining time at usual speed when the computation was lost (s)
        self._alarm: Alarm | None = None

    def set_end_alarm(self) -> None:
        """Schedule the end of the computation, after its start or a change of its speed.

        The end is ``done`` at the time ``ends``, or ``lost`` if the device becomes unavailable
        earlier.
        """
        if self._alarm is not None:
            self._alarm.cancel()
        when = min(self.ends, self.until)
        if when == math.inf:
            return
        # at one time, losses (CUT) come after ordinary events, such as the ends of computations
        outcome: Outcome = "lost"
        priority = CUT
        is_reachable = self._environment.now < self.until
        if is_reachable and self.ends <= self.until:
            outcome = "done"
            priority = NORMAL
        ring = partial(self.finish, outcome)
        self._alarm = self._environment.at(("compute", self.number), when, ring, priority)

    @property
    def left(self) -> float:
        if self.outcome is not None:
            return self._left_at_end
        return (self.ends - self._environment.now) * self._pace

    def set_pace(self, pace: float) -> None:
        """Change the speed of the computation from now on, and move its end.

        Args:
            pace: factor of the device's speed, above 0.
        """
        self.ends = on_grid(self._environment.now + self.left / pace)
        self._pace = pace
        self.set_end_alarm()

    def cancel(self) -> None:
        if self._environment.now < self.ends:
            self.finish("cancelled")

    def lose(self) -> None:
        """End the computation as lost, because its device has become unavailable.

        Has no effect on a computation that has ended, or that ends at this instant.
        """
        if self._environment.now < self.ends:
            self.finish("lost")

    def finish(self, outcome: Outcome) -> None:
        """End the computation with an outcome, and fire its event; no effect if it has ended.

        Args:
            outcome: ``done``, ``lost``, ``cancelled`` or ``stopped``; the last two fire no event.
        """
        if self.outcome is None:
            if self._alarm is not None:
                self._alarm.cancel()
            self._left_at_end = 0.0 if outcome == "done" else self.left
            self._end(outcome)

    def saved(self) -> ComputationState:
        """Return the constructor's arguments from ``call`` to ``pace``, for a snapshot of the run.

        A resumed run constructs the computation again from these arguments.
        """
        return self.call, self.number, self.device, self.began, self.ends, self.until, self._pace
