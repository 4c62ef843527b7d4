"""Calendar, which maps simulated time to dates and to the local time of each device."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, tzinfo
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from fedsim.clock.simulation import on_grid
from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.world.columns import alike, distinct, each
from fedsim.world.distributions import Constant, NameDistribution

DAY_S = 86_400.0


def _instant_text(value: object) -> object:
    """Convert a date or time of a scenario to text; refuse any other value and malformed text."""
    text = value.isoformat() if isinstance(value, datetime | date | time) else value
    try:
        if not isinstance(text, str):
            raise TypeError
        _parse(text)
    except (TypeError, ValueError):
        allowed = (
            "a date and time, or a time of day, is allowed; for example '2024-03-04T06:00+01:00' "
            "or '06:00'"
        )
        raise PydanticCustomError("calendar", allowed) from None
    return text


def _parse(text: str) -> datetime:
    """Parse a date, a time or both; a missing offset is UTC, a missing date 1 January 2024."""
    try:
        instant = datetime.combine(date(2024, 1, 1), time.fromisoformat(text))
    except ValueError:
        instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


class CalendarSpec(Spec):
    """``population.calendar``: date and time of simulated time 0, and the devices' time zones.

    Attributes:
        starts: date and time (ISO 8601), or time of day, of simulated time 0; UTC unless it has an
            offset.
        zone: names of time zones (``"Europe/Berlin"``): one for all, a choice with shares, a list,
            or a column of a file.
    """

    starts: Annotated[str, BeforeValidator(_instant_text)] = "2024-01-01T00:00"
    zone: NameDistribution = Constant[str](value="UTC")

    def build(self, streams: Streams, devices: int, root: Path | None) -> "Calendar":
        """Build the devices' calendar, with time zones drawn from the random stream ``world/zone``.

        Args:
            streams: random streams of the run.
            devices: number of devices.
            root: folder of data files; None for the working directory.

        Returns:
            Map from simulated time to each device's local time.

        Raises:
            ScenarioError: a time zone is unknown.
        """
        generator = streams.generator("world/zone")
        names = self.zone.by_device("population.calendar.zone", generator, devices, root)
        zone_names, which = distinct(names)  # the time zones, and the index of each device's zone
        zones = [_find_zone(name) for name in zone_names.tolist()]
        return Calendar(_parse(self.starts), zones, which)


@dataclass(frozen=True)
class Calendar:
    """Calendar of a run, which converts simulated times to dates and to devices' local times.

    Attributes:
        starts: date and time of simulated time 0.
        zones: time zones of the devices, each once.
        which: index in ``zones`` of each device's time zone, int [devices].
        stated: whether the scenario has ``population.calendar``.
    """

    starts: datetime
    zones: Sequence[tzinfo]
    which: NDArray[np.integer]
    stated: bool = True

    @classmethod
    def assumed(cls, devices: int) -> "Calendar":
        """Return the default calendar, in which simulated time 0 is midnight UTC for all devices.

        Args:
            devices: number of devices.
        """
        return cls(datetime(2024, 1, 1, tzinfo=UTC), [UTC], alike(0, devices), stated=False)

    def day_s(self) -> Floats:
        """Return each device's local time of day at simulated time 0 (s), float64 [devices].

        A change to summer time during the run has no effect on this time.
        """
        times = [self.starts.astimezone(zone).time() for zone in self.zones]
        zone_s: Floats = np.array([seconds_of_day(of_day) for of_day in times])
        return each(lambda which: zone_s[which], self.which)

    def simulated_s(self, instant: datetime, device: int) -> float:
        """Convert a date and time to simulated time (s).

        Args:
            instant: date and time, in the device's time zone if it has no offset.
            device: index of the device.
        """
        if not instant.tzinfo:
            zone = self.zones[int(self.which[device])]
            instant = instant.replace(tzinfo=zone)
        return on_grid((instant - self.starts).total_seconds())


def seconds_of_day(of_day: time) -> float:
    """Return the seconds from midnight to a time of day, rounded to the clock's grid."""
    midnight = datetime.combine(date.min, time())
    instant = datetime.combine(date.min, of_day.replace(tzinfo=None))
    return on_grid((instant - midnight).total_seconds())


def _find_zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # raised by zoneinfo for unknown names
        hint = nearest(name, available_timezones())
        raise ScenarioError(
            f"population.calendar.zone is {name!r}; allowed are names of time zones such as "
            f"'Europe/Berlin'{hint}"
        ) from None
