"""Axes of the drawings in the answer: linear or logarithmic."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Axis from ``low`` to ``high``, which are both positive if the axis is logarithmic."""

    low: float
    high: float
    is_log: bool

    def share(self, value: float) -> float:
        """Return the position of a value: 0 at ``low``, 1 at ``high``; 0.5 if both are equal."""
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        if high <= low:
            return 0.5
        return (value - low) / (high - low)

    def clipped_share(self, value: float) -> float:
        """Return the position of a value (0..1); values beyond an end are at that end."""
        return self.share(min(max(value, self.low), self.high))
