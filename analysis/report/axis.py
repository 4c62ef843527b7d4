"""Axes of the drawings in the answer: linear or logarithmic."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; both are positive if the axis is logarithmic."""

    low: float
    high: float
    is_log: bool

    def share(self, value: float) -> float:
        """The place of a value, 0 at the low end and 1 at the high one; 0.5 if both are equal."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        if high <= low:
            return 0.5
        return (value - low) / (high - low)

    def clipped_share(self, value: float) -> float:
        """The place of a value; values beyond the axis are at its ends."""
        return self.share(min(max(value, self.low), self.high))
