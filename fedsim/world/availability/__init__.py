"""When a device can be reached: always, in random phases, by day and night, as recorded, or as a table of the user's says."""

from typing import Annotated

from fedsim.language.registry import Registry
from fedsim.world.availability.base import AlwaysOn, Availability, AvailabilityModel, Renewal

__all__ = ["AlwaysOn", "Availability", "AvailabilityModel", "AvailabilitySpec", "Renewal"]

_TOOLS = "fedsim.toolbox.worlds"
_OTHERS = {
    "diurnal": (f"{_TOOLS}.diurnal:Diurnal", "the share of devices that are on follows the local hour, as a sinusoid"),
    "intervals": (f"{_TOOLS}.recorded:Intervals", "on from 'start' to 'end', by a CSV or Parquet file"),
    "flash": (f"{_TOOLS}.recorded:Flash", "phones as FLASH recorded them: on while idle, charging and on Wi-Fi"),
}
_HERE = Registry.of("availability", AlwaysOn, Renewal)
AVAILABILITIES = Registry("availability", "fedsim.world.availability:AvailabilityModel", {**_HERE.known, **_OTHERS})
AvailabilitySpec = Annotated[AvailabilityModel, AVAILABILITIES]
