"""Times of rounds with other numbers of clients than the log has, as intervals.

The log leaves open what own links carry that a shared link hid, and whether more clients would fill
a link that they share. The fitted world takes the fastest answer to both; the slowest world that
explains the log as well takes the slowest: own links carry what was seen, and all together no more
than was seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedsim.lab.calibrate.log import Log
from fedsim.lab.calibrate.replay import FittedWorld, rounds
from fedsim.lab.calibrate.tasks import whole

_APART = 0.02  # relative width below which an interval is one number


@dataclass(frozen=True)
class Outlook:
    """Time of a round with a number of clients.

    Attributes:
        clients: count of clients at a time.
        fastest, slowest: times of a round in the fitted world, and in the slowest world that
            explains the log (s).
    """

    clients: int
    fastest: float
    slowest: float

    @property
    def line(self) -> str:
        """A line of text about the time."""
        text = f"outlook    with {self.clients} clients at a time a round takes {self.fastest:.4g}"
        if self.slowest <= self.fastest * (1 + _APART):
            return f"{text} s"
        return (
            f"{text} to {self.slowest:.4g} s: the log does not tell more, and the scenario has the "
            "least"
        )


def outlooks(log: Log, world: FittedWorld, slowest: FittedWorld) -> Iterator[Outlook]:
    """Yield the times of rounds with half and twice as many clients as the log's rounds have.

    The clients of the log's last whole round take part, several times each if there are more.

    Args:
        log: the log; of an asynchronous server nothing is yielded.
        world: the fitted world.
        slowest: the slowest world that explains the log.
    """
    if not log.synchronous:
        return
    tasks = log.tasks[whole(log.tasks)]
    cohort = np.flatnonzero(tasks.number == tasks.number[-1])
    at_once = len(cohort)
    for count in sorted({max(1, at_once // 2), 2 * at_once}):
        of_clients = tasks[np.resize(cohort, count)]
        numbers = of_clients.client.copy()
        of_clients.client[:] = np.arange(count)
        times = []
        for candidate in (world, slowest):
            copies = candidate._replace(
                down=candidate.down[numbers],
                up=candidate.up[numbers],
                latency=candidate.latency[numbers],
                speed=candidate.speed[numbers],
                jitter=0.0,
            )
            times.append(float(rounds(copies, of_clients, [np.arange(count)])[0]))
        yield Outlook(count, min(times), max(times))
