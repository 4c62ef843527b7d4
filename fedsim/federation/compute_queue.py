"""The server's computations, which follow one another in simulated time."""

from fedsim.clock.simulation import Simulation, on_grid_after
from fedsim.federation.costs import cost_s


class ComputeQueue:
    """Operations that the server computes, such as aggregations, one after the other.

    They take simulated time, for which the server is busy.

    Args:
        simulation: the clock.
        speed: speed of the server (``[server] speed``), 1 for one core of a virtual server of 2026;
            None: operations take no time.

    Attributes:
        busy_until: time at which the operations so far end (s).
    """

    def __init__(self, simulation: Simulation, speed: float | None) -> None:
        self._simulation = simulation
        self._speed = speed
        self.busy_until = 0.0

    def add(self, what: str, n: int, d: int = 0, m: int = 1) -> None:
        """Add an operation of the server, which begins when all operations before it have ended.

        Args:
            what: name of the operation, such as ``mix`` (``cost_s``).
            n: count of models, or of other arrays.
            d: count of numbers in each model or array; not used by ``linkage``, ``medoids`` and
                ``absolute differences``.
            m: with ``distances``, the count of arrays from which distances are computed; with
                ``k-means`` and ``medoids``, the count of groups; not used by other operations.
        """
        if self._speed is not None:  # otherwise operations take no simulated time
            begin = max(self.busy_until, self._simulation.now)
            self.busy_until = on_grid_after(begin + cost_s(what, n, d, m) / self._speed)
