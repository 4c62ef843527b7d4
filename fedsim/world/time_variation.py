"""Times of epochs on devices: their random jitter, and phases in which devices are slow.

The random jitter of an epoch is a function of the device and the time at which the epoch begins, so
that it is equal under every strategy. The jitter of other work is a function of the device and its
task.
"""

import math

import numpy as np
from pydantic import Field

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Floats
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import PositiveSeconds
from fedsim.world.columns import alike, distinct, each
from fedsim.world.phases import Phases

_TICKS_PER_SECOND = 1 << 30
_PHASES_AHEAD = 4_000  # count of normal and slow phases per look-ahead, which takes some 10 ms
# tolerance (s) above rounding errors: an epoch begins even if its expected end is this much later
# than the limit, but is cut off at the limit
_TIE_S = 2 / _TICKS_PER_SECOND


class SlowPhases(Spec):
    """``population.slow_phases``: each device is slow from time to time, as a hot or busy phone is.

    Normal and slow phases alternate. Their lengths are exponential random variables.

    Attributes:
        factor: factor of the device's speed in slow phases, at most 1.
        mean_normal, mean_slow: mean length of normal phases, and of slow phases.
    """

    factor: float = Field(ge=1e-6, le=1.0)
    mean_normal: PositiveSeconds
    mean_slow: PositiveSeconds


class TimeVariation:
    """Model of how long epochs take on devices: random variation, and phases of slow devices.

    Args:
        streams: random streams.
        jitter: coefficient of variation of epochs' times (lognormal, mean 1): one value for all
            devices, or float64 [devices].
        slow: phases in which devices are slow; None if devices have no slow phases.
        devices: count of devices.

    Attributes:
        reach_s: time (s) from the begin of a training up to which ``EpochTimer`` first computes ends
            of epochs: 2,000 mean cycles of a normal and a slow phase; infinity if devices have no
            slow phases. This limit saves drawing phases that a deadline cuts off.
    """

    def __init__(
        self, streams: Streams, jitter: float | Floats, slow: SlowPhases | None, devices: int
    ) -> None:
        self._streams = streams
        by_device = alike(jitter, devices) if np.ndim(jitter) == 0 else np.asarray(jitter)
        # different coefficients of variation (jitters), and the index of each device's coefficient
        jitters, which = distinct(by_device)
        # sigmas of the lognormal distributions with these coefficients of variation
        sigmas = np.array([math.sqrt(math.log1p(value**2)) for value in jitters.tolist()])
        # sigma of each device; stored once if all are equal
        self._sigma = each(lambda indices: sigmas[indices], which)
        self._factor = 1.0  # factor of the speed in slow phases
        self._mean_rate = 1.0  # long-run mean speed, relative to the full speed
        # on phases are the phases in which a device is not slow; None without slow phases
        self._phases = None
        self.reach_s = math.inf
        if slow is not None:
            self._factor = slow.factor
            cycle_s = slow.mean_normal + slow.mean_slow
            self.reach_s = _PHASES_AHEAD * cycle_s / 2
            self._mean_rate = (slow.mean_normal + slow.factor * slow.mean_slow) / cycle_s
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
        """Return the times (s) at which consecutive epochs of a device's training end.

        Args:
            device: index of the device.
            start: begin of the first epoch (s).
            epoch_s: time of an epoch at full speed (s).
            epochs: count of epochs.
            limit: simulated time (s) from which on no epoch begins.
            horizon: simulated time (s) up to which ends of epochs are needed.
            task: count of the device's earlier tasks, which determines one random factor (jitter)
                for all epochs; None if each epoch has a factor, which its begin determines.

        Returns:
            Ends (s, in whole ticks of the clock) of the epochs that begin before ``limit``, at least
            up to the first end beyond ``horizon``. An end beyond the limit or the horizon may be only
            a lower bound.

        Raises:
            SimulationError: the epochs contain too many slow phases.
        """
        horizon = min(limit, horizon)
        # without random variation and slow phases, all epochs take the same time
        if self._sigma.item(device) == 0.0 and self._phases is None:
            return _equal_ends(start, epoch_s, epochs, limit, horizon)
        ends: list[float] = []
        while len(ends) < epochs and start < limit and start <= horizon:
            work_s = epoch_s * self.jitter(device, start, task)
            start = self._end_of_epoch(device, start, work_s, horizon)
            ends.append(start)
        return ends

    @staticmethod
    def adapt(start: float, ends: list[float], limit: float) -> list[float]:
        """Return the ends (s) of the epochs that a device carries out if it respects a time limit.

        The device begins the first epoch in any case. It begins another epoch only if an epoch of
        the mean length so far would end before the limit (CATA-Fed, Eq. 8).

        Args:
            start: begin of the first epoch (s).
            ends: ends of all epochs if the device did not adapt (simulated s).
            limit: the simulated time (s) of the limit.
        """
        count = min(1, len(ends))  # count of the epochs that the device carries out
        while count < len(ends):
            predicted_s = (ends[count - 1] - start) * (count + 1) / count
            if predicted_s > limit - start + _TIE_S:
                break
            count += 1
        return ends[:count]

    def jitter(self, device: int, start: float, task: int | None) -> float:
        """Return the random factor (jitter) by which an epoch takes longer or shorter.

        Args:
            device: index of the device.
            start: simulated time (s) at which the epoch begins, which determines the factor if
                ``task`` is None.
            task: count of the device's earlier tasks, which determines the factor; None if the
                begin of the epoch determines it.
        """
        sigma = self._sigma.item(device)
        if sigma == 0.0:
            return 1.0
        if task is None:
            instant = int(start * _TICKS_PER_SECOND)
            normal = self._streams.normal("world/jitter", device, instant)
        else:
            normal = self._streams.normal("world/jitter/task", device, task)
        return math.exp(sigma * normal - sigma**2 / 2)  # lognormal, of mean 1

    def _end_of_epoch(self, device: int, start: float, work_s: float, horizon: float) -> float:
        """Return the time (s) at which an epoch ends that takes ``work_s`` seconds at full speed.

        If the end is beyond the horizon, the result may be an earlier time beyond the horizon.
        """
        if self._phases is None:
            return start + on_grid(work_s)
        # refuse an epoch that would contain too many slow phases
        expected_end = start + work_s / self._mean_rate
        self._phases.check_walk(device, start, min(horizon, expected_end))
        # subtract the work of each normal or slow phase, until the rest fits into a phase
        while True:
            span = self._phases.span(device, start)
            rate = 1.0 if span.on else self._factor  # a span is on while the device is not slow
            if (span.end - start) * rate >= work_s:
                return start + on_grid(work_s / rate)
            if span.end > horizon:
                return span.end
            work_s -= (span.end - start) * rate
            start = span.end


def _equal_ends(
    start: float, epoch_s: float, epochs: int, limit: float, horizon: float
) -> list[float]:
    """Return the ends (s) of epochs that all take the same time, as ``TimeVariation.epoch_ends`` does.

    Args:
        start: begin of the first epoch (s).
        epoch_s: time of each epoch (s).
        epochs: count of epochs.
        limit: simulated time (s) from which on no epoch begins.
        horizon: simulated time (s) up to which ends are needed, not after ``limit``.
    """
    count = epochs
    # The count is not cut if an epoch's time rounds to 0 ticks: the time may be 0, or so small that
    # the quotients below would be infinite.
    if on_grid(epoch_s) > 0:
        if limit < math.inf:  # count of the epochs that begin before the limit
            count = min(count, math.ceil((limit - start) / epoch_s))
        if horizon < math.inf:
            # One more, as the last of these epochs may end exactly at the horizon, and the result
            # includes an end beyond it.
            count = min(count, math.ceil((horizon - start) / epoch_s) + 1)
    # Each end is rounded once, and is no sum of rounded times, so that n epochs end exactly at a
    # deadline of n epochs.
    return [on_grid(start + epoch_s * (epoch + 1)) for epoch in range(max(count, 0))]
