"""Clock of a deployment, which follows real time instead of simulated time."""

import math
import time
from collections.abc import Callable

from fedsim.clock.simulation import Simulation, on_grid_after


class WallClock(Simulation):
    """Clock of a deployment: a ``Simulation`` in which time passes as real time does.

    Timers and alarms work as in a simulation. An event is processed when its time has come in real
    time. The arrival of a message is an event too.

    Args:
        pace: real seconds in a second of this clock; 1.0 for real time.
        look: function that is called repeatedly while the clock waits. It checks for messages, and
            sets an alarm for each that has arrived.
        look_every_s: real time between two calls of ``look`` (s).

    Attributes:
        began: time of the day at which this clock was 0 (s since 1970).
    """

    def __init__(self, pace: float, look: Callable[[], None], look_every_s: float) -> None:
        super().__init__()
        self.pace = pace
        self._look = look
        self._look_every_s = look_every_s
        self.began = time.time()
        self._next_look = 0.0

    def begin(self) -> None:
        """Start the clock: the present real time becomes time 0."""
        self.began = time.time()

    @property
    def wall(self) -> float:
        """Present real time by this clock (s), rounded up to a tick (2^-30 s).

        It grows while events are processed, whereas ``now`` is the time of the present event.
        """
        return max(self.now, on_grid_after((time.time() - self.began) / self.pace))

    def _goes_on(self, due: float) -> bool:
        """Wait until the next event is due in real time, and look for messages meanwhile.

        Args:
            due: time of the next event (s) before the wait; a message may bring an earlier one.

        Returns:
            Whether the run goes on with the next event.
        """
        while self.stopped is None and not self._interrupted:
            if time.monotonic() >= self._next_look:
                self._look()
                self._next_look = time.monotonic() + self._look_every_s
            due = self.env.peek()  # time of the next event, which a message may have changed
            if due <= self.wall:
                break
            rest_s = self._next_look - time.monotonic()
            if due < math.inf:
                rest_s = min(rest_s, (due - self.wall) * self.pace)
            time.sleep(max(rest_s, 0.001))
        return super()._goes_on(due)
