"""Devices in regions of clouds: each pair has TCP connections of its own, limited by a window and their round trip.

``cloud_regions.toml`` has measured connections with source, licence and date. Connections of other pairs follow from two rules
that ``CloudFacts`` fits to these: the rate is a window over the round trip, and the round trip grows with the distance.
"""

import math
from collections.abc import Mapping
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedsim.errors import ScenarioError, nearest
from fedsim.files import read_toml, sought
from fedsim.simulation import Simulation
from fedsim.world.device_kinds import Figure
from fedsim.world.distributions import DeviceTable
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Transport
from fedsim.world.network.spec import AccessColumns, NetworkModel

_TABLE = Path(__file__).with_name("cloud_regions.toml")
_EARTH_KM = 6371.0
_HUB = "aws:ca-central-1"
_Milliseconds = Annotated[float, Field(ge=0.0, le=1e6)]
_Megabits = Annotated[float, Field(gt=0.0, le=1e9)]


class Connection(NamedTuple):
    """A TCP connection between two regions: its round trip (s), its rate (bytes/s), and whether that was measured."""

    round_trip: float
    rate: float
    measured: bool = True


class CloudFacts:
    """Measured connections between regions, and rules for the others.

    Attributes:
        sites: region -> city, part of the world, latitude and longitude (degrees).
        source: source with licence, and date of the measurements.
        measured: (from, to) -> connection.
        window: bytes under way on a connection: the median of rate x round trip.
        round_trip: fixed part (s), and seconds a km, by least squares of relative errors. Distances are great circles; from
            South America, and between Europe and East Asia, by way of North America.
    """

    def __init__(self) -> None:
        table = read_toml(_TABLE)
        self.source = f"{table['source']}, {table['licence']}", table["date"]
        self.sites: dict[str, tuple[str, str, float, float]] = {name: (*site,) for name, site in table["sites"].items()}
        self.measured = {(one, other): Connection(ms / 1e3, mbit * 1e6 / 8) for one, other, ms, mbit in table["measured"]}
        self.fit()

    def fit(self) -> None:
        """Find the rules' constants."""
        self.window = float(np.median([each.round_trip * each.rate for each in self.measured.values()]))
        took = np.array([each.round_trip for each in self.measured.values()])
        ways = np.array([[1.0, self.way_km(*pair)] for pair in self.measured])
        fixed, per_km = np.linalg.lstsq(ways / took[:, None], np.ones(len(took)), rcond=None)[0].tolist()
        self.round_trip = fixed, per_km

    def figures_of(self, name: str) -> dict[str, Figure]:
        """Connections from a region to all others, with their sources."""
        ruled = 'estimate: by the rules of network.kind "regions"'
        found = {other: self.connection(name, other) for other in self.sites if other != name}
        return {
            other: Figure(f"{1e3 * way.round_trip:.1f} ms, {way.rate * 8 / 1e6:.1f} Mbit/s", source, date)
            for other, way in sorted(found.items(), key=lambda item: not item[1].measured)
            for source, date in [self.source if way.measured else (ruled, self.source[1])]
        }

    def way_km(self, one: str, other: str) -> float:
        parts = {self.sites[name][1] for name in (one, other)}
        from_south = "south-america" in parts and "north-america" not in parts and len(parts) > 1
        way = [one, _HUB, other] if from_south or parts == {"europe", "east-asia"} else [one, other]
        return sum(self.great_circle_km(*leg) for leg in pairwise(way))

    def great_circle_km(self, one: str, other: str) -> float:
        (*_, lat, long), (*_, far_lat, far_long) = self.sites[one], self.sites[other]
        lat, far_lat = math.radians(lat), math.radians(far_lat)
        across = math.sin(math.radians(far_long - long) / 2) ** 2
        half = math.sin((far_lat - lat) / 2) ** 2 + math.cos(lat) * math.cos(far_lat) * across
        return 2 * _EARTH_KM * math.asin(math.sqrt(half))

    def connection(self, one: str, other: str) -> Connection:
        """The connection from one region to another, measured that way, the other way, or by the rules."""
        return self.measured.get((one, other)) or self.measured.get((other, one)) or self.ruled(one, other)

    def ruled(self, one: str, other: str) -> Connection:
        fixed, per_km = self.round_trip
        round_trip = fixed + per_km * self.way_km(one, other)
        return Connection(round_trip, self.window / round_trip, False)


@cache
def cloud_facts() -> CloudFacts:
    """The facts that come with fedsim."""
    return CloudFacts()


class Regions(Network):
    """Devices in the regions ``of``, dealt in turn; within a region that ``table`` omits only the devices' own links limit."""

    def __init__(
        self,
        simulation: Simulation,
        columns: AccessColumns,
        transport: Transport,
        of: list[str],
        server: str,
        connections: int,
        table: Mapping[tuple[str, str], Connection],
    ) -> None:
        down, up, latency = columns
        self._of, self._server, self._table, self._connections = of, server, table, connections
        self.repeats, self._own_s = len(of), latency
        far = np.array([self._way(SERVER, place).round_trip / 2 for place in range(len(of))])
        super().__init__(simulation, {}, down, up, latency + far[np.arange(len(latency)) % len(of)], transport)

    def _way(self, source: int, destination: int) -> Connection:
        one, other = (self._server if end == SERVER else self._of[end % len(self._of)] for end in (source, destination))
        usual = Connection(0.0, math.inf)
        return self._table.get((one, other), usual if one == other else self._table.get((other, one), usual))

    def _rate(self, source: int, destination: int) -> float:
        return self._way(source, destination).rate * self._connections

    def route(self, source: int, destination: int) -> list[str]:
        return [] if self._rate(source, destination) == math.inf else [f"{self.name(source)} -> {self.name(destination)}"]

    def links_between(self, source: int, destination: int) -> list[tuple[str, float]]:
        return [(link, self._rate(source, destination)) for link in self.route(source, destination)]

    def built_rate(self, link: str) -> float:
        source, found, destination = link.partition(" -> ")
        return self._rate(self.endpoint(source), self.endpoint(destination)) if found else super().built_rate(link)

    def _exact_latency_s(self, source: int, destination: int) -> float:
        own = sum(self._own_s.item(end) for end in (source, destination) if end != SERVER)
        return own + self._way(source, destination).round_trip / 2


class RegionsSpec(NetworkModel):
    """Devices and a server in regions of clouds, over TCP connections of measured round trip and rate.

    Rates of several connections add up, as far as devices' own links (``device``) allow. For pairs without a measurement the
    rate is a window of 0.83 MB over the round trip (2 % off on the mean of the 30 measured pairs, 5 % at most), and the round
    trip follows from the distance of the cities (5 % off on the mean, 11 % at most).
    """

    kind: Literal["regions"] = "regions"
    file: str | None = None
    """a CSV of your own instead, with ``from``, ``to``, ``rtt_ms`` and ``mbit_s`` of one connection; a row from a region to
    itself limits connections within it. A relative path starts from ``data.root``, the working directory or ``$FEDSIM_DATA``.
    """
    of: list[str] = Field(min_length=1)
    """regions by name, such as "aws:eu-west-1" or "gcp:us-central1"; devices are dealt over them in turn."""
    server_in: str | None = None
    """the region of the server; None: the first of ``of``."""
    connections: int = Field(default=1, ge=1, le=1000)
    """TCP connections of each pair in each direction, over which a message goes at once."""

    @field_validator("of", "server_in")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        sites = cloud_facts().sites
        for name in [] if info.data.get("file") else [value] if isinstance(value, str) else value or []:
            if name not in sites:
                raise ValueError(f"{info.field_name!r} has {name!r}; allowed are {', '.join(sites)}{nearest(name, sites)}")
        return value

    @property
    def places(self) -> int:
        return len(self.of)

    def _connect(self, simulation: Simulation, columns: AccessColumns, transport: Transport, root: Path | None) -> Network:
        server = self.server_in or self.of[0]
        names = [*dict.fromkeys([*self.of, server])]
        if self.file is None:
            facts = cloud_facts()
            table = {(one, other): facts.connection(one, other) for one in names for other in names if one != other}
        else:
            table = _read(sought(self.file, root))
            for one, other in combinations(names, 2):
                if not {(one, other), (other, one)} & {*table}:
                    raise ScenarioError(f"network.file {self.file!r} has no row from {one!r} to {other!r}, nor back")
        return Regions(simulation, columns, transport, self.of, server, self.connections, table)


def _read(path: Path) -> dict[tuple[str, str], Connection]:
    """A user's table of connections, by (from, to); ``DataError``: it is missing or malformed."""
    table = DeviceTable("network.file", path, ("from", "to", "rtt_ms", "mbit_s"), others=())
    table.note("a row for each connection")
    round_trips, rates = table.values("rtt_ms", _Milliseconds), table.values("mbit_s", _Megabits)
    ends = zip(table.values("from", str), table.values("to", str), strict=True)
    found = [Connection(ms / 1e3, mbit * 1e6 / 8) for ms, mbit in zip(round_trips, rates, strict=True)]
    connections: dict[tuple[str, str], Connection] = {}
    for row, (way, connection) in enumerate(zip(ends, found, strict=True)):
        if way in connections:
            raise table.wrong(row, "to", f"there is a row from {way[0]!r} to {way[1]!r} already; allowed is one")
        connections[way] = connection
    return connections
