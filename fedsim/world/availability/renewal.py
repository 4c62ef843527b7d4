"""Devices that come and go at random."""

from pathlib import Path
from typing import Literal

from fedsim.language.units import PositiveSeconds
from fedsim.streams import Streams
from fedsim.world.availability.base import AvailabilityModel
from fedsim.world.phases import Phases


class Renewal(AvailabilityModel):
    """On and off phases of exponential length, independent between devices."""

    kind: Literal["renewal"] = "renewal"
    mean_on: PositiveSeconds
    mean_off: PositiveSeconds

    def build(self, streams: Streams, devices: int, root: Path | None) -> Phases:
        """The population's paths."""
        return Phases(streams, "world/availability", self.mean_on, self.mean_off, devices)
