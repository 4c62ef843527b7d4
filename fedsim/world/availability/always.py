"""Devices that can be reached at any time."""

import math
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.streams import Streams
from fedsim.world.availability.base import AvailabilityModel
from fedsim.world.phases import Span


class AlwaysOn(AvailabilityModel):
    """Every device can be reached at any time."""

    kind: Literal["always"] = "always"

    def build(self, streams: Streams, devices: int, root: Path | None) -> "AlwaysOn":
        """The spec is its own path."""
        return self

    def span(self, device: int, time: float) -> Span:
        """One phase without end."""
        return Span(True, 0.0, math.inf)

    def next_on(self, device: int, time: float) -> float:
        """Now."""
        return time

    def on(self, devices: NDArray[np.int64], time: float) -> NDArray[np.bool_]:
        """All of them; bool, as many."""
        return np.ones(len(devices), dtype=np.bool_)
