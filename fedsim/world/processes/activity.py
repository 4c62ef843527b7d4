"""Activity of a process, a message or a computation: an event of SimPy that can be cancelled and saved."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import simpy

from fedsim.environment import CUT, NORMAL, Alarm, Environment
from fedsim.simulation import on_grid
from fedsim.world.messages import Message, Messages
from fedsim.world.task import Outcome

Call = tuple[Any, ...]
"""Call that began an activity, the method and its arguments; a restored process finds the activity by it."""


class DeviceFacts(NamedTuple):
    """Properties of a device.

    Attributes:
        speed, flops: training speed (samples/s), infinite if nothing says how fast it is, and FLOP/s; None if nothing says so.
        down, up, latency: of its own link (bytes/s), and what passes before the first byte of a message to the server leaves
        (s). samples: training samples that it holds. kind: the name of its kind; None if it has none. arrival, departure,
        present: when it joins and leaves for good (s), and whether it has joined and not left.
    """

    speed: float
    flops: float | None
    down: float
    up: float
    latency: float
    samples: int
    kind: str | None
    arrival: float
    departure: float
    present: bool


class _Waiters(list[Any]):
    """The callbacks of an activity. A process that is interrupted takes its own out."""

    def __init__(self, activity: "Activity") -> None:
        super().__init__()
        self._activity = activity

    def remove(self, callback: Any) -> None:
        super().remove(callback)
        if isinstance(getattr(callback, "__self__", None), simpy.Process):
            self._activity.left_alone()


class Activity(simpy.Event):
    """A message or a computation under way. ``yield`` it: its value is the activity itself, which says how it ended.

    It fires when it is done, and when it is lost because a device or edge server that it needs cannot be reached any more. It
    is cancelled by ``cancel()``, at the end of a ``with``, and when a process that waits for it is interrupted and nobody
    waits for it in that instant any more. A cancelled one never fires.

    Attributes:
        outcome: ``done``, ``lost``, ``cancelled`` or, as the run is over, ``stopped``; None until then.
    """

    def __init__(self, env: Environment, call: Call) -> None:
        super().__init__(env)
        self.callbacks: Any = _Waiters(self)
        self.call = call
        self.outcome: Outcome | None = None
        self._environment = env

    @property
    def left(self) -> float:
        """Remaining work: bytes of a message; of a computation seconds, at the device's own speed."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End it now. Has no effect on an activity that has ended, or that ends at this instant."""
        raise NotImplementedError

    def left_alone(self) -> None:
        """A process does not wait for it any more: cancel it, unless somebody waits for it later in this instant."""
        self._environment.call(self._give_up, CUT)

    def _give_up(self) -> None:
        if not self.callbacks:
            self.cancel()

    def end(self, outcome: Outcome) -> None:
        """Note that it has ended, and fire."""
        self.outcome = outcome
        if outcome in ("done", "lost"):
            self.succeed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Sending(Activity):
    """A message under way, see ``World.send``; ``on_end`` is told of its end."""

    def __init__(
        self, env: Environment, call: Call, messages: Messages, message: Message, on_end: Callable[["Sending"], object]
    ) -> None:
        super().__init__(env, call)
        self._messages, self.message, self._on_end = messages, message, on_end
        message.on_end = self._told

    def _told(self, _: Message, outcome: Outcome) -> None:
        self.end(outcome)
        self._on_end(self)

    @property
    def left(self) -> float:
        return self.call[3] - self._messages.delivered(self.message)  # type: ignore[no-any-return]

    def cancel(self) -> None:
        if self.outcome is None:
            self._messages.cut(self.message, "cancelled")


class ComputeActivity(Activity):
    """A computation of a device under way, see ``World.compute``; ``on_end`` is told of its end.

    It has a ``number``, ``began`` then and will be done at ``ends`` (s); from ``until`` (s) on the device cannot be reached.
    The device computes at ``pace``, a factor of its speed.
    """

    def __init__(
        self,
        env: Environment,
        call: Call,
        number: int,
        device: int,
        began: float,
        ends: float,
        until: float,
        pace: float,
        on_end: Callable[["ComputeActivity"], None],
    ) -> None:
        super().__init__(env, call)
        self.number, self.device, self.began, self.ends, self.until = number, device, began, ends, until
        self._pace, self._on_end = pace, on_end
        self._left = 0.0  # when it has ended
        self._alarm: Alarm | None = None

    def arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        done, now = self.ends <= self.until, self._environment.now
        outcome: Outcome = "done" if done and self.until > now else "lost"
        when = min(self.ends, self.until)
        if when < math.inf:
            priority = NORMAL if outcome == "done" else CUT
            self._alarm = self._environment.at(("compute", self.number), when, partial(self.finish, outcome), priority)

    @property
    def left(self) -> float:
        return self._left if self.outcome is not None else (self.ends - self._environment.now) * self._pace

    def set_pace(self, pace: float) -> None:
        self.ends, self._pace = on_grid(self._environment.now + self.left / pace), pace
        self.arm()

    def cancel(self, outcome: Outcome = "cancelled") -> None:
        """Compute no more; ``lost`` if the device cannot be reached from now on."""
        if self._environment.now < self.ends:
            self.finish(outcome)

    def finish(self, outcome: Outcome) -> None:
        if self.outcome is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._left = 0.0 if outcome == "done" else self.left
        self.end(outcome)
        self._on_end(self)

    def saved(self) -> tuple[Any, ...]:
        return self.call, self.number, self.device, self.began, self.ends, self.until, self._pace
