"""Scenario section ``[energy]``: powers of devices and servers, carbon intensity, and batteries."""

from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import AnyArray, Floats, Ints
from fedsim.common.errors import DataError, ScenarioError, nearest
from fedsim.common.files import find_file
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import TICK_S, GramsPerJoule, Joules, JoulesPerByte, Seconds, Watts
from fedsim.world.batteries import Batteries
from fedsim.world.calendar import DAY_S
from fedsim.world.charging import ChargingSpec, Never
from fedsim.world.device_kinds import KIND_POWERS, Figure, catalogue, figures, find_kind
from fedsim.world.device_table import DeviceTable
from fedsim.world.distributions import (
    Choice,
    Constant,
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
"""Key of ``[energy]`` -> the coefficient that it sets."""

_PHONES = Path(__file__).with_name("presets.toml")
_KIND_PRESETS = ("raspberry-pi-4", "jetson-nano", "laptop")
TITLES = catalogue(_PHONES) | dict.fromkeys(_KIND_PRESETS, "the kind of device of that name")
"""Name -> title of every preset: phones, and some kinds of devices."""


def preset_figures(name: str) -> dict[str, Figure]:
    """Return the figures of an energy preset (named powers, such as a phone's), with their sources.

    Args:
        name: name of the preset.

    Returns:
        Name -> figure in W, J/B or s. The names are energy coefficients, such as ``compute_w``, if
        the preset is a phone; they are keys of ``DeviceKind``, such as ``compute``, if it is a kind
        of device.
    """
    if name in catalogue(_PHONES):
        return figures(name, "energy.preset", _PHONES)
    kind_figures = figures(name, "energy.preset")
    power_keys = KIND_POWERS.values()
    return {key: figure for key, figure in kind_figures.items() if key in power_keys}


def _preset_coefficients(name: str) -> dict[str, float]:
    """Return the energy coefficients of a preset: name, such as ``compute_w`` -> W, J/B or s.

    A missing coefficient is 0.
    """
    if name in catalogue(_PHONES):
        return {key: float(figure.value) for key, figure in preset_figures(name).items()}
    kind = find_kind(name, {}, "energy.preset")
    return {coefficient: getattr(kind, key) for coefficient, key in KIND_POWERS.items()}


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


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


class ZoneProfile(TypedDict):
    """Zone of the power grid, as the file ``energy.json`` of a run folder stores it.

    Attributes:
        name: name of the zone.
        hours: carbon intensity in each hour of the day (g/J), 24 values.
        offset_s: time of day in the zone at the start of the run (s).
    """

    name: str
    hours: list[float]
    offset_s: float


class ZoneSpec(Spec):
    """Zone of the power grid, with its share of the devices and its carbon intensity.

    Attributes:
        name: name of the zone in reports.
        share: share of the devices that are in the zone; shares are divided by their sum.
        intensity: carbon intensity, such as ``475 g/kWh``: one value, or one for each of the 24 hours
            of the zone's day.
        file: instead of ``intensity``, a CSV file with a column ``intensity`` and 24 rows: in order
            of the hours, or with the hour, 0 to 23, in a column ``hour``.
        ahead: time by which the zone's clock is ahead of ``energy.starts``, below 24 h.
    """

    name: str = Field(default="", max_length=200)
    share: float = Field(default=1.0, ge=0.0, le=1e6)
    intensity: Annotated[
        list[GramsPerJoule] | None,
        BeforeValidator(_as_list, json_schema_input_type=_Intensities),
    ] = None
    file: str | None = None
    ahead: Seconds = 0.0

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

    def profile(self, index: int, root: Path | None, starts: float) -> ZoneProfile:
        """Return the zone as a run's ``energy.json`` stores it.

        Args:
            index: index of the zone in the list of zones; it names a zone without a name, and the
                zone in error messages.
            root: folder of data files; None for the working directory.
            starts: time of day (``energy.starts``) at the start of the run (s).

        Returns:
            Name, carbon intensity of each hour (g/J), and time of day in the zone at the start of
            the run (s).

        Raises:
            DataError: the file of the intensity is missing or malformed.
        """
        return {
            "name": self.name or f"zone {index}",
            "hours": self._hours(f"energy.carbon.zones.{index}.file", root),
            "offset_s": (starts + self.ahead) % DAY_S,
        }

    def _hours(self, key: str, root: Path | None) -> list[float]:
        if self.file is not None:
            return _read_hours(key, self.file, root)
        assert self.intensity is not None
        return self.intensity * (24 // len(self.intensity))


def _read_hours(key: str, file: str, root: Path | None) -> list[float]:
    """Read the carbon intensity of each hour of the day (g/J), 24 values, from a CSV file.

    Args:
        key: key of the scenario that names the file, for error messages.
        file: path of the file.
        root: folder of data files; None for the working directory.

    Raises:
        DataError: the file has not 24 rows, or not each hour once.
    """
    table = DeviceTable(key, find_file(file, root), ("intensity",), ("hour",), others=())
    has_order = "hour" in table.cells
    table.note("rows by 'hour'" if has_order else "a row for each hour from 0 to 23")
    intensities: list[float] = table.values("intensity", GramsPerJoule)
    if len(intensities) != 24:
        raise DataError(f"{key} {file!r} has {len(intensities)} rows; allowed are 24")
    if not has_order:
        return intensities
    hours = table.values("hour", int)  # hour of each row
    if sorted(hours) != list(range(24)):
        raise DataError(f"{key} {file!r} has not each hour from 0 to 23 once in its column 'hour'")
    return [intensities[hours.index(hour)] for hour in range(24)]


class CarbonSpec(Spec):
    """``energy.carbon``: zones of the power grid, each with its carbon intensity.

    The server and edge servers are in the first zone. A scenario may give the table of a single
    zone in place of the list.

    Attributes:
        zones: the zones, each with its share of the devices.
    """

    zones: list[ZoneSpec] = Field(min_length=1)

    @model_validator(mode="after")
    def _refuse_zero_shares(self) -> "CarbonSpec":
        if sum(zone.share for zone in self.zones) <= 0:
            raise ValueError("the zones' shares are all 0")
        return self

    def draw(self, streams: Streams, devices: int) -> Ints:
        """Draw the zone of each device by the zones' shares: index in ``zones``, int64 [devices].

        The draws are from the random stream ``world/energy/zone``.
        """
        shares = np.array([zone.share for zone in self.zones])
        generator = streams.generator("world/energy/zone")
        return generator.choice(len(shares), devices, p=shares / shares.sum())


def _as_zones(value: object) -> object:
    """Return a table of the scenario with the key ``zones``.

    A table without this key describes a single zone, and becomes the only entry of ``zones``.
    """
    if isinstance(value, dict) and "zones" not in value:
        return {"zones": [value]}
    return value


Carbon = Annotated[
    CarbonSpec, BeforeValidator(_as_zones, json_schema_input_type=CarbonSpec | ZoneSpec)
]


class PlaceSpec(Spec):
    """Energy of a server and of its network equipment: idle power, joules per byte and per update.

    ``energy.server`` describes the server. ``energy.edge`` describes each edge server; in a network
    without edge servers, the equipment of each cell or node to which devices are attached.

    Attributes:
        idle: power from the start of the run to its end.
        byte: energy of each byte on the wire that passes the server, in either direction.
        update: energy of each update that the server aggregates.
    """

    idle: Watts = 0.0
    byte: JoulesPerByte = 0.0
    update: Joules = 0.0

    def coefficients(self, count: int, overhead: float) -> dict[str, float]:
        """Return the energy coefficients of ``count`` equal servers together.

        Args:
            count: count of servers (or cells).
            overhead: bytes on the wire for each byte of payload.

        Returns:
            ``idle_w`` (W of all together), ``update_j`` (J for each aggregated update) and
            ``j_byte`` (J for each byte of payload).
        """
        return {
            "idle_w": self.idle * count,
            "update_j": self.update,
            "j_byte": self.byte * overhead,
        }


class BatterySpec(Spec):
    """``[energy.battery]``: capacity, first charge and charging of the devices' batteries.

    Attributes:
        capacity: energy when full; ``inf J`` for a battery that is never flat.
        initial: level of the battery when the device joins, as a share of ``capacity``.
        charge: power of the charger, which charges the battery and runs the device.
        charging: times at which the device is plugged in.
        restart: level at which a device whose battery was flat restarts, as a share of ``capacity``.
    """

    capacity: EnergyDistribution
    initial: ShareDistribution = Constant[_Share](value=1.0)
    charge: PowerDistribution | None = None
    charging: ChargingSpec = Never()
    restart: float = Field(default=0.1, ge=0.001, le=1.0)

    def draw(self, streams: Streams, devices: int, root: Path | None) -> dict[str, Floats]:
        """Draw capacity, first level and charging power of each device's battery.

        Args:
            streams: random streams of the run; draws are from the streams ``world/battery/...``.
            devices: number of devices.
            root: folder of data files; None for the working directory.

        Returns:
            ``capacity_j`` (J), ``initial_j`` (J) and ``charge_w`` (W), float64 [devices] each.
        """

        def draw_column(name: str, distribution: Distribution) -> AnyArray:
            generator = streams.generator(f"world/battery/{name}")
            return distribution.by_device(f"energy.battery.{name}", generator, devices, root)

        capacity = draw_column("capacity", self.capacity)
        share = draw_column("initial", self.initial)
        charge = np.zeros(devices)
        if self.charge is not None:
            charge = draw_column("charge", self.charge)
        return {
            "capacity_j": capacity,
            # an infinite capacity times a share of 0 is not a number
            "initial_j": np.where(share > 0, capacity, 0.0) * share,
            "charge_w": charge,
        }


def _check_presets(value: object) -> object:
    """Convert the name of a preset, or a list of names, to a list of names.

    Any other value is returned unchanged, and is then refused by the type of the key.

    Raises:
        PydanticCustomError: a name is unknown.
    """
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        return names
    for name in names:
        if name not in TITLES:
            hint = nearest(str(name), TITLES)
            raise PydanticCustomError(
                "preset", "allowed are {names}{hint}", {"names": ", ".join(TITLES), "hint": hint}
            )
    return names


class EnergySpec(Spec):
    """``[energy]``: powers of devices and of the server's side, carbon, and batteries.

    A device draws all other powers in addition to ``idle``. The default of a key is the value of the
    preset, else of the device's kind, else 0.

    Attributes:
        preset: name of a phone or of a kind of device, whose powers all devices have; or several
            names, of which each device draws one.
        shares: share of the devices with each preset; by default equal.
        idle: power of a device that is on. The energy meter counts it during tasks only; a battery
            is drained by it all the time.
        compute: power during training and tests, at full utilisation. It does not change in slow
            phases, which only take longer.
        utilisation: share of ``compute`` that is drawn.
        receive, send: power during a transfer, its latency included.
        receive_byte, send_byte: energy of each byte on the wire, headers included (``[network]
            protocol``).
        tail: power of a radio that stays awake for ``tail_lasts`` after a transfer, or until the
            next one, even beyond the run's end.
        tail_lasts: time for which a radio stays awake after a transfer.
        server, edge: energy of the server, and of each edge server or cell.
        starts: the time of the day at which the run begins, for charging and carbon.
        carbon: carbon intensity of the grid; None: grams are not counted.
        battery: the devices' batteries; None: all devices are plugged in.
    """

    preset: Annotated[
        list[str] | None, BeforeValidator(_check_presets, json_schema_input_type=str | list[str])
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
    def _check_shares_and_start(self) -> "EnergySpec":
        if self.shares is not None:
            is_complete = len(self.shares) == len(self.preset or [])
            is_positive = min(self.shares, default=0) >= 0 and sum(self.shares) > 0
            if not (is_complete and is_positive):
                raise ValueError(
                    "'shares' must be as many as the presets, none negative, not all zero"
                )
        if self.starts >= DAY_S:
            raise ValueError("'starts' is a time of the day: less than '24 h'")
        return self

    def build(self, context: MeterContext) -> EnergyMeter:
        """Build the meter that counts the energy of a run, and draw the devices' coefficients.

        The meter multiplies bytes of payload by joules per byte, which therefore include headers.
        Draws are from the random streams ``world/energy/...`` and ``world/battery/...``.

        Args:
            context: the world in which the meter counts.

        Returns:
            The meter, with the drawn coefficients of each device.

        Raises:
            ScenarioError: ``edge`` is given for a network without cells, such as a star.
            DataError: a file is missing or malformed.
        """
        devices = context.devices
        cells = context.places
        if self.edge is not None and cells is None:
            raise ScenarioError(
                'energy.edge is given, but network.kind has no cells; allowed with "tree" and '
                '"graph" only'
            )
        columns = self._draw_coefficients(context)
        zones: list[ZoneProfile] = []
        if self.carbon is None:
            columns["zone"] = np.zeros(devices, dtype=np.int64)
        else:
            for index, zone in enumerate(self.carbon.zones):
                zones.append(zone.profile(index, context.folder, self.starts))
            columns["zone"] = self.carbon.draw(context.streams, devices)
        if self.battery is not None:
            columns |= self.battery.draw(context.streams, devices, context.folder)
        edge = self.edge or PlaceSpec()
        setting = {
            # always "working" now; files of older versions may have "there" (``audit.energy``
            # reads both)
            "idle_while": "working",
            "batteries": self.battery is not None,
            "server": self.server.coefficients(1, context.overhead),
            "edge": edge.coefficients(cells or 0, context.overhead),
            "zones": zones,
        }
        return EnergyMeter(columns, setting)

    def _draw_coefficients(self, context: MeterContext) -> dict[str, AnyArray]:
        """Draw the energy coefficients of all devices, from presets, kinds and distributions.

        Args:
            context: the world in which the meter counts.

        Returns:
            Name, such as ``compute_w`` -> W, J/B or s of each device, float64 [devices].
        """
        # values by increasing precedence: presets, powers of the devices' kinds (without presets
        # only), and the scenario's distributions
        streams = context.streams
        presets: list[dict[str, float]] = [{}]  # without presets, all coefficients are 0 at first
        if self.preset is not None:
            presets = [_preset_coefficients(name) for name in self.preset]
        which = self.draw_presets(streams, context.devices)  # index of each device's preset
        columns: dict[str, AnyArray] = {}
        for name in _KEYS.values():
            columns[name] = np.array([preset.get(name, 0.0) for preset in presets])[which]
        if self.preset is None:
            columns |= context.powers
        for key, name in _KEYS.items():
            distribution: Distribution | None = getattr(self, key)
            if distribution is not None:
                generator = streams.generator(f"world/energy/{key}")
                columns[name] = distribution.by_device(
                    f"energy.{key}", generator, context.devices, context.folder
                )
        columns["compute_w"] = columns["compute_w"] * self.utilisation
        for name in ("receive_j_byte", "send_j_byte"):
            columns[name] = columns[name] * context.overhead
        # times are whole ticks of the clock
        columns["tail_s"] = np.rint(columns["tail_s"] / TICK_S) * TICK_S
        return columns

    def batteries(
        self,
        energy: Meter,
        simulation: Simulation,
        streams: Streams,
        arrival: Floats,
        root: Path | None,
    ) -> Batteries | None:
        """Build the batteries of the devices; return None if the scenario has no batteries.

        Args:
            energy: the meter that ``build`` made, whose columns have the drawn capacities.
            simulation: the clock.
            streams: random streams of the run.
            arrival: time at which each device joins (s), float64 [devices].
            root: folder of data files; None for the working directory.
        """
        if self.battery is None:
            return None
        assert isinstance(energy, EnergyMeter)
        charging = self.battery.charging.build(streams, len(arrival), self.starts, root)
        return Batteries(simulation, energy.columns, self.battery.restart, charging, arrival)

    def draw_presets(self, streams: Streams, devices: int) -> NDArray[np.int64]:
        """Draw each device's preset, a named set of powers such as a phone's, by ``shares``.

        The draws are from the random stream ``world/energy/preset``.

        Args:
            streams: random streams of the run.
            devices: number of devices.

        Returns:
            Index of each device's preset in ``preset``, int64 [devices]; 0 without presets.
        """
        shares = None
        if self.shares is not None:
            shares = np.array(self.shares) / sum(self.shares)
        preset_count = 1  # without presets, all devices have the index 0
        if self.preset:
            preset_count = len(self.preset)
        return streams.generator("world/energy/preset").choice(preset_count, devices, p=shares)
