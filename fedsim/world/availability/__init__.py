"""When a device can be reached: always, in random phases, by day and night, as recorded, or as a table of the user's says."""

from typing import Annotated

from fedsim.language.registry import Registry
from fedsim.world.availability.base import AlwaysOn, Availability, AvailabilityModel, Renewal
from fedsim.world.availability.diurnal import Diurnal
from fedsim.world.availability.recorded import Flash, Intervals

__all__ = ["AlwaysOn", "Availability", "AvailabilityModel", "AvailabilitySpec", "Diurnal", "Flash", "Intervals", "Renewal"]

_BASE = "fedsim.world.availability:AvailabilityModel"
AVAILABILITIES = Registry.of("availability", AlwaysOn, Renewal, Diurnal, Intervals, Flash, base=_BASE)
AvailabilitySpec = Annotated[AvailabilityModel, AVAILABILITIES]
