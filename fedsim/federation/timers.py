"""Timers of a strategy's code on the server, or of its code on devices without a server."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypedDict

from fedsim.clock.simulation import Alarm, Simulation, on_grid
from fedsim.federation.compute_queue import ComputeQueue


class TimersState(TypedDict):
    """State of ``Timers`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        names: number of a timer that is set -> its name.
        count: count of timers that were set so far, which is the number of the last timer.
    """

    names: dict[int, str]
    count: int


class Timers:
    """Timers that a strategy sets by ``Server.timer``, each with a name.

    A timer whose time comes while the server computes rings when the server has finished.

    Args:
        simulation: the clock.
        computations: the server's computations, whose end the timers wait for.
        on_timer: called with the name of each timer that rings (``Strategy.on_timer``).
    """

    def __init__(
        self,
        simulation: Simulation,
        computations: ComputeQueue,
        on_timer: Callable[[str], Awaitable[None]],
    ) -> None:
        self._simulation = simulation
        self._computations = computations
        self._on_timer = on_timer
        self._alarms: dict[str, Alarm] = {}  # name of a timer that is set -> its alarm
        self._count = 0  # count of timers set so far, which is the number of the last timer
        # in a resumed run: number of a timer that the checkpoint has -> name of the timer
        self._restored_names: dict[int, str] = {}
        simulation.env.declare_alarm("timer", self._rearm)

    def set(self, name: str, when: float) -> float:
        """Set a timer, in place of an earlier one of the same name.

        Args:
            name: name of the timer.
            when: the absolute time (s). If it is not after the present time, the timer rings in
                this instant.

        Returns:
            The time of the timer (s), rounded to the clock's ticks.
        """
        self.cancel(name)
        self._count += 1  # the number of the new timer
        time = max(self._simulation.now, on_grid(when))
        self._set_alarm(name, self._count, time)
        return time

    def cancel(self, name: str) -> None:
        """Cancel the timer of a name; no effect if the name has no timer."""
        alarm = self._alarms.pop(name, None)
        if alarm is not None:
            alarm.cancel()

    def _set_alarm(self, name: str, number: int, when: float) -> None:
        self._alarms[name] = self._simulation.wake(
            ("timer", number), when, partial(self._ring, name)
        )

    def _ring(self, name: str) -> None:
        del self._alarms[name]
        self._simulation.post(partial(self._notify_or_wait, name))

    async def _notify_or_wait(self, name: str) -> None:
        """Call ``on_timer``, or set the timer to the time at which the server stops computing."""
        if self._computations.busy_until > self._simulation.now:
            self.set(name, self._computations.busy_until)
        else:
            await self._on_timer(name)

    def snapshot(self) -> TimersState:
        """Return the state that a checkpoint saves; the clock saves the times of the timers."""
        names = {alarm.name[1]: name for name, alarm in self._alarms.items()}
        return {"names": names, "count": self._count}

    def restore(self, state: TimersState) -> None:
        """Set the state that ``snapshot`` returned; the clock then sets the timers again."""
        self._alarms = {}
        self._restored_names = state["names"]
        self._count = state["count"]

    def _rearm(self, number: int, when: float) -> None:
        self._set_alarm(self._restored_names[number], number, when)
