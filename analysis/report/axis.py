"""Axes of the drawings in the answer: linear or logarithmic, with ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

_STEPS = (1.0, 2.0, 5.0)  # ticks of a logarithmic axis are these numbers times powers of 10
# numbers that replace ``_STEPS`` if they give fewer than ``_LEAST_TICKS`` ticks
_CLOSE_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
_LEAST_TICKS = 3


@dataclass(frozen=True)
class Axis:
    """Axis of a drawing in a report, which converts values to positions and chooses the ticks.

    Attributes:
        low: value at the begin of the axis.
        high: value at the end of the axis, at least ``low``.
        is_log: whether the axis is logarithmic; ``low`` and ``high`` then have to be positive.
    """

    low: float
    high: float
    is_log: bool

    def share(self, value: float) -> float:
        """Return the relative position of a value on the axis: 0 at ``low``, 1 at ``high``.

        A value beyond an end of the axis has a position below 0 or above 1. If ``low`` and ``high``
        are equal, the position is 0.5.
        """
        low = self.low
        high = self.high
        if self.is_log:
            value = math.log(value)
            low = math.log(low)
            high = math.log(high)
        if high <= low:
            return 0.5
        return (value - low) / (high - low)

    def clipped_share(self, value: float) -> float:
        """Return the relative position of a value (0..1); a value beyond an end is at this end."""
        return self.share(min(max(value, self.low), self.high))

    def ticks(self, most: int) -> list[float]:
        """Return the values that are labelled on the axis: round numbers such as 0, 20 and 40.

        If ``low`` and ``high`` are equal, the result is this one value.

        Args:
            most: greatest count of values, approximately.
        """
        if self.high <= self.low:
            return [self.low]
        if not self.is_log:
            locator = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10])
            return self._within(locator.tick_values(self.low, self.high))
        ticks = self._within(self._decades(_STEPS))
        if len(ticks) < _LEAST_TICKS:
            ticks = self._within(self._decades(_CLOSE_STEPS))
        return ticks[:: math.ceil(len(ticks) / most)]

    def _decades(self, steps: tuple[float, ...]) -> list[float]:
        first = math.floor(math.log10(self.low))
        last = math.ceil(math.log10(self.high))
        return [step * 10.0**power for power in range(first, last + 1) for step in steps]

    def _within(self, values: Iterable[float]) -> list[float]:
        slack = 1e-9 * abs(self.high)
        return [float(value) for value in values if self.low - slack <= value <= self.high + slack]
