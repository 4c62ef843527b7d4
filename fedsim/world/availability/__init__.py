"""When a device can be reached: always, in random phases, by day and night, as recorded, or as a table of the user's says."""

from typing import Annotated

from pydantic import Field, SerializeAsAny

from fedsim.language.families import Kinds
from fedsim.world.availability.always import AlwaysOn
from fedsim.world.availability.base import Availability, AvailabilityModel
from fedsim.world.availability.diurnal import Diurnal
from fedsim.world.availability.flash import Flash
from fedsim.world.availability.intervals import Intervals
from fedsim.world.availability.renewal import Renewal

__all__ = ["AlwaysOn", "Availability", "AvailabilityModel", "AvailabilitySpec", "Diurnal", "Flash", "Intervals", "Renewal"]

AvailabilitySpec = Annotated[
    SerializeAsAny[Annotated[AlwaysOn | Renewal | Diurnal | Intervals | Flash, Field(discriminator="kind")]],
    Kinds("fedsim.world.availability:AvailabilityModel"),
]
