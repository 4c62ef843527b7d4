"""The carbon of a grid: grams of CO2 an energy, by zone and by the hour of the day."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fedsim.arrays import Ints
from fedsim.errors import DataError
from fedsim.files import sought
from fedsim.language.spec import Spec
from fedsim.language.units import GramsPerJoule, Seconds
from fedsim.streams import Streams
from fedsim.world.calendar import DAY_S
from fedsim.world.distributions import DeviceTable

_INTENSITY = TypeAdapter[float](GramsPerJoule)


def _by_the_hour(value: Any) -> Any:
    """One intensity stands for all hours."""
    if not isinstance(value, str):
        return value
    try:
        _INTENSITY.validate_python(value)
    except ValidationError as error:  # once, and not for each hour
        raise PydanticCustomError("quantity", "{why}", {"why": error.errors()[0]["msg"]}) from None
    return [value] * 24


class ZoneSpec(Spec):
    """A part of the grid.

    Attributes:
        name: for people.
        share: of the devices that are in it.
        intensity: one, or one for each of the 24 hours of its day.
        file: instead, a CSV file with a column ``intensity`` and 24 rows, such as ``475 g/kWh``; sought as all files are.
        ahead: how far its day is ahead of the one that ``energy.starts`` is told in.
    """

    name: str = Field(default="", max_length=200)
    share: float = Field(default=1.0, ge=0.0, le=1e6)
    intensity: Annotated[
        list[GramsPerJoule] | None, BeforeValidator(_by_the_hour, json_schema_input_type=GramsPerJoule | list[GramsPerJoule])
    ] = Field(default=None, min_length=24, max_length=24)
    file: str | None = None
    ahead: Seconds = 0.0

    @model_validator(mode="after")
    def _one_source(self) -> "ZoneSpec":
        if (self.intensity is None) == (self.file is None):
            raise ValueError("give one of 'intensity' and 'file'")
        if self.ahead >= DAY_S:
            raise ValueError("'ahead' is less than '24 h'")
        return self

    def profile(self, place: int, root: Path | None, starts: float) -> dict[str, Any]:
        """Its ``name``, its ``hours`` (g/J), and the time of its day when the run begins, ``offset_s``."""
        hours = read_hours(sought(self.file, root), place) if self.file is not None else self.intensity
        return {"name": self.name or f"zone {place}", "hours": hours, "offset_s": (starts + self.ahead) % DAY_S}


class CarbonSpec(Spec):
    """The zones of the grid. The server's side is in the first.

    In a scenario one zone may stand for the list (``carbon = { intensity = "475 g/kWh" }``), and an intensity for a zone.
    """

    zones: list[ZoneSpec] = Field(min_length=1)

    @model_validator(mode="after")
    def _some(self) -> "CarbonSpec":
        if sum(zone.share for zone in self.zones) <= 0:
            raise ValueError("the zones' shares are all 0")
        return self

    def draw(self, streams: Streams, devices: int) -> Ints:
        """The place of each device's zone, int64 [devices]; draws from ``world/energy/zone``."""
        if len(self.zones) == 1:
            return np.zeros(devices, dtype=np.int64)
        shares = np.array([zone.share for zone in self.zones])
        return streams.generator("world/energy/zone").choice(len(shares), devices, p=shares / shares.sum())


def _spelled_out(value: Any) -> Any:
    if isinstance(value, str | list) and not (isinstance(value, list) and value and isinstance(value[0], dict)):
        value = {"intensity": value}
    if isinstance(value, list):
        return {"zones": value}
    return value if isinstance(value, Spec) or (isinstance(value, dict) and "zones" in value) else {"zones": [value]}


_ZoneEntry = GramsPerJoule | list[GramsPerJoule] | ZoneSpec
Carbon = Annotated[CarbonSpec, BeforeValidator(_spelled_out, json_schema_input_type=CarbonSpec | _ZoneEntry | list[ZoneSpec])]


def read_hours(path: Path, place: int) -> list[float]:
    """The 24 intensities of a CSV file (g/J); ``DataError`` names the zone by its ``place``."""
    where = f"energy.carbon.zones.{place}.file"
    table = DeviceTable(where, path, ("intensity",))
    if table.rows != 24:
        raise DataError(f"{where} {str(path)!r} has {table.rows} rows; allowed are 24, one for each hour of the day")
    return table.values("intensity", GramsPerJoule)
