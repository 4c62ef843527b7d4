"""``[energy]``: what devices and the server's side draw, from which grid, and out of which
batteries.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import AnyArray, Floats, Ints
from fedsim.common.errors import DataError, ScenarioError, nearest
from fedsim.common.files import sought
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import TICK_S, GramsPerJoule, Joules, JoulesPerByte, Seconds, Watts
from fedsim.world.batteries import Batteries
from fedsim.world.calendar import DAY_S
from fedsim.world.charging import ChargingSpec, Never
from fedsim.world.device_kinds import KIND_POWERS, Figure, catalogue, figures, find_kind
from fedsim.world.distributions import (
    Choice,
    Constant,
    DeviceTable,
    Distribution,
    LogNormal,
    TimeDistribution,
    Uniform,
    by_device,
)
from fedsim.world.meters.base import Meter, MeterContext
from fedsim.world.meters.energy import COEFFICIENTS, EnergyMeter

_NAMES = ("idle", "compute", "receive", "send", "receive_byte", "send_byte", "tail", "tail_lasts")
_KEYS = dict(zip(_NAMES, COEFFICIENTS, strict=True))
"""The keys of a scenario, and the coefficients that they are for."""

_PHONES = Path(__file__).with_name("presets.toml")
TITLES = catalogue(_PHONES) | dict.fromkeys(
    ("raspberry-pi-4", "jetson-nano", "laptop"), "the kind of device of that name"
)
"""Name -> what it is, of every preset: phones, and some of the kinds of devices."""


def preset_figures(name: str) -> dict[str, Figure]:
    """The figures of a preset with their sources: W, J a byte, s."""
    if name in catalogue(_PHONES):
        return figures(name, "energy.preset", _PHONES)
    return {
        key: figure
        for key, figure in figures(name, "energy.preset").items()
        if key in KIND_POWERS.values()
    }


def _coefficients(name: str) -> dict[str, float]:
    """Draw of a preset: ``COEFFICIENTS`` (W, J a byte, s), as far as they are not 0."""
    if name in catalogue(_PHONES):
        return {key: figure.value for key, figure in preset_figures(name).items()}
    kind = find_kind(name, {}, "energy.preset")
    return {draws: getattr(kind, key) for draws, key in KIND_POWERS.items()}


_Share = Annotated[float, Field(ge=0.0, le=1.0)]
PowerDistribution = Annotated[Distribution, by_device(Watts, Constant, Uniform, LogNormal, Choice)]
EnergyDistribution = Annotated[
    Distribution, by_device(Joules, Constant, Uniform, LogNormal, Choice)
]
ByteEnergyDistribution = Annotated[
    Distribution, by_device(JoulesPerByte, Constant, Uniform, LogNormal, Choice)
]
ShareDistribution = Annotated[Distribution, by_device(_Share, Constant, Uniform, Choice)]


_Intensities = GramsPerJoule | list[GramsPerJoule]


class ZoneSpec(Spec):
    """A part of the grid."""

    name: str = Field(default="", max_length=200)
    """for people."""
    share: float = Field(default=1.0, ge=0.0, le=1e6)
    """of the devices that are in it."""
    intensity: Annotated[
        list[GramsPerJoule] | None,
        BeforeValidator(
            lambda said: said if isinstance(said, list) else [said],
            json_schema_input_type=_Intensities,
        ),
    ] = None
    """one, or one for each of the 24 hours of its day."""
    file: str | None = None
    """instead, a CSV file with a column ``intensity`` and 24 rows, such as ``475 g/kWh``; sought
    as all files are. Rows go by a column ``hour``, 0 to 23, if there is one.
    """
    ahead: Seconds = 0.0
    """how far its time of the day is ahead of ``energy.starts``."""

    @model_validator(mode="after")
    def _one_source(self) -> "ZoneSpec":
        if (self.intensity is None) == (self.file is None):
            raise ValueError("give one of 'intensity' and 'file'")
        if self.intensity is not None and len(self.intensity) not in (1, 24):
            raise ValueError(
                f"'intensity' has {len(self.intensity)} entries; allowed is 1, or 24: one for "
                "each hour"
            )
        if self.ahead >= DAY_S:
            raise ValueError("'ahead' is less than '24 h'")
        return self

    def profile(self, place: int, root: Path | None, starts: float) -> dict[str, Any]:
        """Its ``name``, its ``hours`` (g/J), and the time of its day when the run begins,
        ``offset_s``.
        """
        hours: list[float] = (self.intensity or []) * (24 // len(self.intensity or [""]))
        if self.file is not None:
            key = f"energy.carbon.zones.{place}.file"
            table = DeviceTable(key, sought(self.file, root), ("intensity",), ("hour",), others=())
            table.note(
                "rows by 'hour'" if "hour" in table.cells else "a row for each hour from 0 to 23"
            )
            hours = table.values("intensity", GramsPerJoule)
            if len(hours) != 24:
                raise DataError(f"{key} {self.file!r} has {len(hours)} rows; allowed are 24")
            if "hour" in table.cells:
                order = table.values("hour", int)
                if sorted(order) != list(range(24)):
                    raise DataError(
                        f"{key} {self.file!r} has not each hour from 0 to 23 once in its "
                        "column 'hour'"
                    )
                hours = [hours[order.index(hour)] for hour in range(24)]
        return {
            "name": self.name or f"zone {place}",
            "hours": hours,
            "offset_s": (starts + self.ahead) % DAY_S,
        }


class CarbonSpec(Spec):
    """The zones of the grid, the first of which has the server's side.

    One zone may stand for the list.
    """

    zones: list[ZoneSpec] = Field(min_length=1)

    @model_validator(mode="after")
    def _some(self) -> "CarbonSpec":
        if sum(zone.share for zone in self.zones) <= 0:
            raise ValueError("the zones' shares are all 0")
        return self

    def draw(self, streams: Streams, devices: int) -> Ints:
        """The place of each device's zone, int64 [devices]; draws from ``world/energy/zone``."""
        shares = np.array([zone.share for zone in self.zones])
        return streams.generator("world/energy/zone").choice(
            len(shares), devices, p=shares / shares.sum()
        )


def _zones(said: Any) -> Any:
    return {"zones": [said]} if isinstance(said, dict) and "zones" not in said else said


Carbon = Annotated[
    CarbonSpec, BeforeValidator(_zones, json_schema_input_type=CarbonSpec | ZoneSpec)
]


class PlaceSpec(Spec):
    """Draws of the server and the way to it, or of each cell or attachment node of a tree or
    graph (edge servers, say).
    """

    idle: Watts = 0.0
    """drawn all the time, from the start of the run to its end."""
    byte: JoulesPerByte = 0.0
    """of each byte on the wire that passes, both ways."""
    update: Joules = 0.0
    """of each update that is aggregated there."""

    def coefficients(self, count: int, overhead: float) -> dict[str, float]:
        """Draw of ``count`` such places: W, J an update and J a byte of payload, which takes
        ``overhead`` bytes on the wire.
        """
        return {
            "idle_w": self.idle * count,
            "update_j": self.update,
            "j_byte": self.byte * overhead,
        }


class BatterySpec(Spec):
    """``[energy.battery]``."""

    capacity: EnergyDistribution
    """when full; ``inf J`` for one that is never flat."""
    initial: ShareDistribution = Constant[_Share](value=1.0)
    """how full it is when the device joins, 0 to 1."""
    charge: PowerDistribution | None = None
    """what a charger gives, to the battery and to the device."""
    charging: ChargingSpec = Never()
    """when it is plugged in."""
    restart: float = Field(default=0.1, ge=0.001, le=1.0)
    """how full a battery that was flat must be for its device to go on."""

    def draw(self, streams: Streams, devices: int, root: Path | None) -> dict[str, Floats]:
        """``capacity_j``, ``initial_j``, ``charge_w`` of all devices, float64 [devices] each;
        draws from ``world/battery``.
        """

        def drawn(name: str, said: Distribution) -> AnyArray:
            return said.by_device(
                f"energy.battery.{name}", streams.generator(f"world/battery/{name}"), devices, root
            )

        capacity = drawn("capacity", self.capacity)
        share = drawn("initial", self.initial)
        charge = np.zeros(devices) if self.charge is None else drawn("charge", self.charge)
        return {
            "capacity_j": capacity,
            "initial_j": np.where(share > 0, capacity, 0.0) * share,
            "charge_w": charge,
        }


def _preset(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    for name in names if isinstance(names, list) else ():
        if name not in TITLES:
            hint = nearest(str(name), TITLES)
            raise PydanticCustomError(
                "preset", "allowed are {names}{hint}", {"names": ", ".join(TITLES), "hint": hint}
            )
    return names


class EnergySpec(Spec):
    """``[energy]``: what is drawn beyond ``idle`` comes on top of it. Keys that are not given
    come from the preset, else from the device's kind, else they are 0.

    Attributes:
        preset: what is drawn by a kind of device, or by several, of which each device is one.
        shares: of the presets; by default equal.
        idle: by a device that is on. Counted while it works on a task; a battery drains by it
            all the time.
        compute: while it trains or tests, at full utilisation; slow phases take the same power
            for longer.
        utilisation: the part of ``compute`` that is drawn.
        receive, send: during a transfer, its latency included.
        receive_byte, send_byte: of each byte on the wire, headers included (``[network]
            protocol``).
        tail: by a radio that stays awake for ``tail_lasts`` after a transfer, or until the next
            one, even beyond the run's end.
        tail_lasts: the duration of the tail.
        server, edge: what the server's side draws.
        starts: the time of the day at which the run begins, for charging and carbon.
        carbon: of the grid; None: not counted.
        battery: None: all are plugged in.
    """

    preset: Annotated[
        list[str] | None, BeforeValidator(_preset, json_schema_input_type=str | list[str])
    ] = Field(default=None, min_length=1)
    shares: list[float] | None = None
    idle: PowerDistribution | None = None
    compute: PowerDistribution | None = None
    utilisation: float = Field(default=1.0, ge=0.0, le=1.0)
    receive: PowerDistribution | None = None
    send: PowerDistribution | None = None
    receive_byte: ByteEnergyDistribution | None = None
    send_byte: ByteEnergyDistribution | None = None
    tail: PowerDistribution | None = None
    tail_lasts: TimeDistribution | None = None
    server: PlaceSpec = PlaceSpec()
    edge: PlaceSpec | None = None
    starts: Seconds = 0.0
    carbon: Carbon | None = None
    battery: BatterySpec | None = None

    @model_validator(mode="after")
    def _matching(self) -> "EnergySpec":
        names = self.preset or []
        shares = self.shares
        if shares is not None and (
            len(shares) != len(names) or min(shares, default=0) < 0 or sum(shares) <= 0
        ):
            raise ValueError("'shares' must be as many as the presets, none negative, not all zero")
        if self.starts >= DAY_S:
            raise ValueError("'starts' is a time of the day: less than '24 h'")
        return self

    def build(self, context: MeterContext) -> EnergyMeter:
        """Build the meter of a world; draws from ``world/energy/...``. Joules a byte count
        payload from here on.

        ``ScenarioError``: there are no cells for ``edge``. ``DataError``: a file is missing or
        malformed.
        """
        streams = context.streams
        devices = context.devices
        cells = context.places
        root = context.folder
        if self.edge is not None and cells is None:
            raise ScenarioError(
                'energy.edge is given, but network.kind has no cells; allowed with "tree" and '
                '"graph" only'
            )
        drawn = [_coefficients(name) for name in self.preset or []] or [{}]
        which = self.preset_places(streams, devices)
        columns: dict[str, AnyArray]
        columns = {
            key: np.array([of.get(key, 0.0) for of in drawn])[which] for key in _KEYS.values()
        }
        columns |= context.powers if self.preset is None else {}
        for key, name in _KEYS.items():
            said: Distribution | None = getattr(self, key)
            if said is not None:
                columns[name] = said.by_device(
                    f"energy.{key}", streams.generator(f"world/energy/{key}"), devices, root
                )
        columns["compute_w"] = columns["compute_w"] * self.utilisation
        for name in ("receive_j_byte", "send_j_byte"):
            columns[name] = columns[name] * context.overhead
        columns["tail_s"] = np.rint(columns["tail_s"] / TICK_S) * TICK_S
        grid = [] if self.carbon is None else self.carbon.zones
        zones = [zone.profile(place, root, self.starts) for place, zone in enumerate(grid)]
        columns["zone"] = (
            np.zeros(devices, dtype=np.int64)
            if self.carbon is None
            else self.carbon.draw(streams, devices)
        )
        if self.battery is not None:
            columns |= self.battery.draw(streams, devices, root)
        setting = {
            "idle_while": "working",  # when ``idle`` counts: older versions knew ``there`` too
            "batteries": self.battery is not None,
            "server": self.server.coefficients(1, context.overhead),
            "edge": (self.edge or PlaceSpec()).coefficients(cells or 0, context.overhead),
            "zones": zones,
        }
        return EnergyMeter(columns, setting)

    def batteries(
        self,
        energy: Meter,
        simulation: Simulation,
        streams: Streams,
        arrival: Floats,
        root: Path | None,
    ) -> Batteries | None:
        """The batteries of devices that join at ``arrival`` (s); None where there are none."""
        if self.battery is None:
            return None
        assert isinstance(energy, EnergyMeter)
        charging = self.battery.charging.build(streams, len(arrival), self.starts, root)
        return Batteries(simulation, energy.columns, self.battery.restart, charging, arrival)

    def preset_places(self, streams: Streams, devices: int) -> NDArray[np.int64]:
        """The place in ``preset`` of each device's own; int64 [devices].

        Draws from ``world/energy/preset``.
        """
        shares = None if self.shares is None else np.array(self.shares) / sum(self.shares)
        return streams.generator("world/energy/preset").choice(
            len(self.preset or [""]), devices, p=shares
        )
