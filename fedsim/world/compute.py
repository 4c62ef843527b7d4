"""Time that a device computes: samples x cost / speed, with jitter per epoch and phases in which it is slow.

Durations are models, never measurements. An epoch's jitter is named by the device and the instant at which the epoch begins,
so it belongs to the world: whoever trains on this device at this time meets the same delay. That of other work is named by the
device and the number of its task.
"""

import math

import numpy as np
from pydantic import Field

from fedsim.arrays import Floats
from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds
from fedsim.simulation import on_grid
from fedsim.streams import Streams
from fedsim.world.columns import alike, each
from fedsim.world.phases import Phases

_TICKS_PER_SECOND = 1 << 30
_PHASES_AHEAD = 4_000  # a walk of some 10 ms
_TIE_S = 2 / _TICKS_PER_SECOND  # more than rounding can make up; an epoch begun for its sake is still cut off at the limit


class SlowPhases(Spec):
    """Phases in which a device computes at ``factor`` of its speed (another app runs, the phone is hot)."""

    factor: float = Field(ge=1e-6, le=1.0)
    mean_normal: PositiveSeconds
    mean_slow: PositiveSeconds


class Compute:
    """The clockwork of local training; draws from ``world/jitter``, ``world/jitter/task`` and ``world/slow``.

    ``jitter`` is the coefficient of variation of an epoch's time (lognormal, mean 1), one for all or float64 [devices].

    Attributes:
        reach_s: how far to look ahead at first (s); what ends later is mostly never waited for.
    """

    def __init__(self, streams: Streams, jitter: float | Floats, slow: SlowPhases | None, devices: int) -> None:
        self._streams = streams
        self._sigma = each(_sigmas, alike(jitter, devices) if np.ndim(jitter) == 0 else np.asarray(jitter))
        self._factor = 1.0 if slow is None else slow.factor
        # "on" is the normal phase.
        self._phases = None
        self._mean_rate = 1.0
        self.reach_s = math.inf
        if slow is not None:
            whole = slow.mean_normal + slow.mean_slow
            self.reach_s = _PHASES_AHEAD * whole / 2
            self._mean_rate = (slow.mean_normal + slow.factor * slow.mean_slow) / whole
            self._phases = Phases(streams, "world/slow", slow.mean_normal, slow.mean_slow, devices)

    def epoch_ends(
        self,
        device: int,
        start: float,
        epoch_s: float,
        epochs: int,
        limit: float,
        horizon: float = math.inf,
        task: int | None = None,
    ) -> list[float]:
        """When each of ``epochs`` epochs ends (absolute seconds on the clock's grid), begun at ``start`` back to back.

        ``SimulationError``: the device would go through too many slow phases on the way.

        Args:
            epoch_s: time of an undisturbed epoch at full speed (s).
            limit: epochs that would begin at or after this time are left out (s).
            horizon: nothing after this time matters (s): epochs that would begin later are left out too, but for one, and an
                end beyond this time or the limit may be any time beyond.
            task: names the jitter instead of the instants at which epochs begin: how many tasks the device was given before.
        """
        horizon = min(limit, horizon)
        if self._sigma.item(device) == 0.0 and self._phases is None:
            fitting = epochs
            if on_grid(epoch_s) > 0:
                for last, beyond in ((limit, 0), (horizon, 1)):
                    if last < math.inf:
                        fitting = min(fitting, math.ceil((last - start) / epoch_s) + beyond)
            # Each sum is rounded once, so that so many epochs end exactly at a deadline that is exactly so many epochs long.
            return [on_grid(start + epoch_s * (epoch + 1)) for epoch in range(max(fitting, 0))]
        ends: list[float] = []
        while len(ends) < epochs and start < limit and start <= horizon:
            start = self._finish(device, start, epoch_s * self.jitter(device, start, task), horizon)
            ends.append(start)
        return ends

    @staticmethod
    def adapt(start: float, ends: list[float], limit: float) -> list[float]:
        """The epochs that a device begins which watches its own clock (CATA-Fed's adaptive local update, its Eq. 8).

        The first begins at ``start`` (s) in any case; another one only if the mean of the finished ones fits into what is left
        until ``limit`` (s). Equality fits, as far as the clock's grid can tell. Back to back they would end at ``ends`` (s).
        """
        begun = min(1, len(ends))
        while begun < len(ends) and (ends[begun - 1] - start) * (begun + 1) / begun <= limit - start + _TIE_S:
            begun += 1
        return ends[:begun]

    def jitter(self, device: int, start: float, task: int | None) -> float:
        """The factor of an epoch that begins at ``start`` (s), or of the ``task`` of that number; see ``epoch_ends``."""
        sigma = self._sigma.item(device)
        if sigma == 0.0:
            return 1.0
        if task is None:
            normal = self._streams.normal("world/jitter", device, int(start * _TICKS_PER_SECOND))
        else:
            normal = self._streams.normal("world/jitter/task", device, task)
        return math.exp(sigma * normal - sigma**2 / 2)

    def _finish(self, device: int, start: float, work_s: float, horizon: float) -> float:
        """When ``work_s`` seconds of work at full speed are done, begun at ``start``; past ``horizon`` any later time."""
        if self._phases is None:
            return start + on_grid(work_s)
        self._phases.check_walk(device, start, min(horizon, start + work_s / self._mean_rate))
        while True:
            span = self._phases.span(device, start)
            rate = 1.0 if span.on else self._factor
            if (span.end - start) * rate >= work_s:
                return start + on_grid(work_s / rate)
            if span.end > horizon:
                return span.end
            work_s -= (span.end - start) * rate
            start = span.end


def _sigmas(jitter: Floats) -> Floats:
    """Of the lognormal factors with these coefficients of variation."""
    values, which = np.unique(jitter, return_inverse=True)
    return np.array([math.sqrt(math.log1p(value**2)) for value in values.tolist()])[which]
