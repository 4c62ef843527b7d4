"""``[server]``: simulated times of the server's computations.

The time of an operation is a function of the sizes of its inputs, fitted to measurements.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pydantic import Field

from fedsim.common.spec import Spec
from fedsim.common.units import Seconds


class ServerSpec(Spec):
    """``[server]``: how fast the server computes, and how long it waits for lost devices.

    By default the server's computations take no simulated time, as in the papers.

    Attributes:
        speed: speed of the server's computations; 1 is the speed of one core of a virtual server of
            2026. None: computations take no time.
        patience: time (s) after which the server notices that a task is lost, unless the device is
            back earlier.
    """

    speed: float | None = Field(default=None, gt=0.0, le=1e9)
    patience: Seconds = 0.0


class _Cost(NamedTuple):
    """Time of an operation on n rows of d values, and m groups.

    It is ``fixed_s`` plus ``unit_ns`` for each unit of ``growth``.

    Attributes:
        fixed_s: time of every call, whatever the sizes (s).
        unit_ns: time of a unit of ``growth`` (ns).
        growth: function of n, d and m that returns the amount of work, such as n x d.
    """

    fixed_s: float
    unit_ns: float
    growth: Callable[[int, int, int], float]


_COSTS: Mapping[str, _Cost] = {
    "mix": _Cost(0.0, 0.35, lambda n, d, m: n * d),
    "products": _Cost(0.0, 0.062, lambda n, d, m: n * n * d),
    "distances": _Cost(0.0, 0.83, lambda n, d, m: n * d * m),
    "k-means": _Cost(9e-3, 17.0, lambda n, d, m: n * d * m),
    "linkage": _Cost(0.25e-3, 20.0, lambda n, d, m: n * n),
    "medoids": _Cost(0.25e-3, 1.5, lambda n, d, m: n * n * m),
    "absolute differences": _Cost(0.0, 0.3, lambda n, d, m: n**3),
}
"""Operation -> its time.

In order: a linear combination; inner products of all pairs; distances from m rows; ten starts of
k-means; agglomerative clustering; k-medoids; MADC of n x n cosines. The times were measured on one
core of a virtual server of 2026, and hold within a factor of 2 (``tests/benchmarks/server.py``
measures them again).
"""


OPERATIONS = tuple(_COSTS)
"""Names of the operations, the allowed values of ``Server.compute``."""


def cost_s(what: str, n: int, d: int = 0, m: int = 1) -> float:
    """Return the time (s) that an operation on models takes on a server of speed 1.

    Speed 1 is the speed of one core of a virtual server of 2026.

    Args:
        what: name of the operation, such as ``mix`` or ``k-means`` (``Server.compute``).
        n: count of models, or of other arrays.
        d: count of numbers in each model or array; not used by ``linkage``, ``medoids`` and
            ``absolute differences``.
        m: with ``distances``, the count of arrays from which distances are computed; with
            ``k-means`` and ``medoids``, the count of groups; not used by other operations.
    """
    cost = _COSTS[what]
    return cost.fixed_s + cost.unit_ns * cost.growth(n, d, m) * 1e-9
