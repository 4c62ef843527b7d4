"""Cost of the server's own computing: ``[server]``, and each operation's time by its sizes, as measured."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pydantic import Field

from fedsim.language.spec import Spec
from fedsim.language.units import Seconds


class ServerSpec(Spec):
    """``[server]``: what a server does not have for nothing. By default it does, as in the papers.

    Attributes:
        speed: how fast it computes (``cost_s``), in units of the core on which that was measured; None: in no time.
        patience: that a device has vanished it notices so long (s) after the task was lost, or when the device is there again.
            0 s: at once.
    """

    speed: float | None = Field(default=None, gt=0.0, le=1e9)
    patience: Seconds = 0.0


class Cost(NamedTuple):
    """Time of an operation: ``fixed_s`` (s), and ``ns`` (ns) times ``growth`` of its sizes n, d, m."""

    fixed_s: float
    ns: float
    growth: Callable[[int, int, int], float]


COSTS: Mapping[str, Cost] = {
    "mix": Cost(0.0, 0.35, lambda n, d, m: n * d),
    "products": Cost(0.0, 0.062, lambda n, d, m: n * n * d),
    "distances": Cost(0.0, 0.83, lambda n, d, m: n * d * m),
    "k-means": Cost(9e-3, 17.0, lambda n, d, m: n * d * m),
    "linkage": Cost(0.25e-3, 20.0, lambda n, d, m: n * n),
    "medoids": Cost(0.25e-3, 1.5, lambda n, d, m: n * n * m),
    "absolute differences": Cost(0.0, 0.3, lambda n, d, m: n**3),
}
"""Of n rows of d numbers, and m groups: a linear combination; inner products of all pairs; distances from m rows; ten
starts of k-means; agglomerative clustering; k-medoids; MADC of n x n cosines. In processor time of one core of a virtual server
of 2026, within a factor of 2 (``tests/benchmarks/server.py`` measures them again)."""


def cost_s(what: str, n: int, d: int = 0, m: int = 1) -> float:
    """Time that a server of speed 1 takes for an operation of ``COSTS`` (s)."""
    fixed_s, ns, growth = COSTS[what]
    return fixed_s + ns * growth(n, d, m) * 1e-9
