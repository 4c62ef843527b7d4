"""Devices in regions of clouds: each pair has TCP connections of its own, limited by a window
and their round trip.

``cloud_regions.toml`` has measured connections with source, licence and date. Connections of other
pairs follow from two rules that ``CloudFacts`` fits to these: the rate is the window of the
receiver's cloud over the round trip, and the round trip grows with the distance.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import combinations, pairwise, permutations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_toml, sought
from fedsim.world.device_kinds import Figure
from fedsim.world.distributions import DeviceTable
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Transport
from fedsim.world.network.spec import AccessColumns, NetworkModel

_TABLE = Path(__file__).with_name("cloud_regions.toml")
_EARTH_KM = 6371.0
_HUB = "aws:ca-central-1"
_MEASURED_S = 10.0  # rates are means of so long, slow start included
_LEAST_SHARE = 0.1
_NEARLY = 0.1  # by so much a value may lie beyond those that a rule was fitted to
_Milliseconds = Annotated[float, Field(ge=0.0, le=1e6)]
_Megabits = Annotated[float, Field(gt=0.0, le=1e9)]


class Connection(NamedTuple):
    """A TCP connection between two regions: its round trip (s), its rate (bytes/s), and whether
    that was measured.
    """

    round_trip: float
    rate: float
    measured: bool = True


class Window(NamedTuple):
    """Rule for the rate of one connection into a cloud: ``bytes`` under way, of which a long way
    loses ``slow_start`` (s) of the ten seconds that were measured, for each second of round trip.
    ``fit``: its errors.
    """

    bytes: float
    slow_start: float
    fit: "Fit"

    def rate(self, round_trip: float) -> float:
        """Bytes/s on the mean of ten seconds."""
        share = 1.0 - self.slow_start * round_trip / _MEASURED_S
        return self.bytes * max(share, _LEAST_SHARE) / round_trip


class WindowRule(NamedTuple):
    """Rule for a round trip: a ``fixed`` part (s), and seconds ``per_km``.

    ``fit``: its errors; ``parts``: of the world.
    """

    fixed: float
    per_km: float
    fit: "Fit"
    parts: frozenset[frozenset[str]]


class Fit(NamedTuple):
    """The ``rows`` that a rule was fitted to: its relative errors on them, and from where to
    where they reach.
    """

    rows: int
    mean: float
    largest: float
    least: float
    most: float

    @classmethod
    def of(cls, predicted: Floats, measured: Floats, reach: Floats) -> "Fit":
        errors = np.abs(predicted / measured - 1.0)
        numbers = errors.mean(), errors.max(), reach.min(), reach.max()
        return cls(len(errors), *(number.item() for number in numbers))

    def holds(self, value: float) -> bool:
        return self.least * (1 - _NEARLY) <= value <= self.most * (1 + _NEARLY)

    @property
    def error(self) -> str:
        """The errors in words."""
        return (
            f"{100 * self.mean:.0f} % off on the mean of its {self.rows} pairs, "
            f"{100 * self.largest:.0f} % at most"
        )


class CloudFacts:
    """Measured connections between regions, and rules for the others.

    Attributes:
        sites: region -> city, part of the world, latitude and longitude (degrees).
        source: source with licence, and date of the measurements.
        measured: (from, to) -> connection.
        windows: cloud -> rule for the rate of a connection into it, by least squares of relative
            errors.
        ways: whether both ends are of AWS -> rule for the round trip, by least squares of relative
            errors. Distances are great circles; from South America, and between Europe and East
            Asia, by way of North America.
    """

    def __init__(self) -> None:
        table = read_toml(_TABLE)
        self.source = f"{table['source']}, {table['licence']}", table["date"]
        self.sites: dict[str, tuple[str, str, float, float]] = {
            name: (*site,) for name, site in table["sites"].items()
        }
        self.measured = {
            (one, other): Connection(ms / 1e3, mbit * 1e6 / 8)
            for one, other, ms, mbit in table["measured"]
        }
        self.fit()

    def fit(self) -> None:
        """Find the rules' constants."""
        self.windows = {
            cloud: self._window(cloud) for cloud in sorted({cloud_of(name) for name in self.sites})
        }
        self.ways = {within: self._window_rule(within) for within in (False, True)}

    def _window(self, cloud: str) -> Window:
        into = [each for (_, other), each in self.measured.items() if cloud_of(other) == cloud]
        took = np.array([each.round_trip for each in into])
        under_way = took * np.array([each.rate for each in into])
        columns = np.stack([np.ones(len(into)), -took / _MEASURED_S], axis=1)
        size, lost = np.linalg.lstsq(columns / under_way[:, None], np.ones(len(into)), rcond=None)[
            0
        ].tolist()
        fit = Fit.of(columns @ np.array([size, lost]), under_way, took)
        return Window(size, lost / size, fit)

    def _window_rule(self, within: bool) -> WindowRule:
        pairs = [pair for pair in self.measured if _within_aws(*pair) == within]
        took = np.array([self.measured[pair].round_trip for pair in pairs])
        lengths = np.array([self.way_km(*pair) for pair in pairs])
        columns = np.stack([np.ones(len(pairs)), lengths], axis=1)
        fixed, per_km = np.linalg.lstsq(columns / took[:, None], np.ones(len(took)), rcond=None)[
            0
        ].tolist()
        fit = Fit.of(columns @ np.array([fixed, per_km]), took, lengths)
        return WindowRule(fixed, per_km, fit, frozenset(self._parts(*pair) for pair in pairs))

    def _parts(self, one: str, other: str) -> frozenset[str]:
        return frozenset({self.sites[one][1], self.sites[other][1]})

    def figures_of(self, name: str) -> dict[str, Figure]:
        """Connections from a region to all others, with their sources."""
        ruled = 'estimate: by the rules of network.kind "regions"'
        found = {other: self.connection(name, other) for other in self.sites if other != name}
        return {
            other: Figure(
                f"{1e3 * way.round_trip:.1f} ms, {way.rate * 8 / 1e6:.1f} Mbit/s", source, date
            )
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
        lat = math.radians(lat)
        far_lat = math.radians(far_lat)
        across = math.sin(math.radians(far_long - long) / 2) ** 2
        half = math.sin((far_lat - lat) / 2) ** 2 + math.cos(lat) * math.cos(far_lat) * across
        return 2 * _EARTH_KM * math.asin(math.sqrt(half))

    def connection(self, one: str, other: str) -> Connection:
        """The connection from one region to another, as measured or by the rules.

        The rate that was measured the other way holds within a cloud; between two, another end's
        window limits it.
        """
        back = self.measured.get((other, one))
        if (one, other) in self.measured:
            return self.measured[one, other]
        if back is None:
            return self.ruled(one, other)
        if cloud_of(one) == cloud_of(other):
            return back
        return Connection(
            back.round_trip, self.windows[cloud_of(other)].rate(back.round_trip), False
        )

    def ruled(self, one: str, other: str) -> Connection:
        way = self.ways[_within_aws(one, other)]
        round_trip = way.fixed + way.per_km * self.way_km(one, other)
        return Connection(round_trip, self.windows[cloud_of(other)].rate(round_trip), False)

    def rules_for(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Lines about the rules that connections of these pairs follow: domain and error of
        each.
        """
        ruled = [pair for pair in pairs if not self.connection(*pair).measured]
        lines = []
        for cloud in sorted({cloud_of(other) for _, other in ruled}):
            fit = self.windows[cloud].fit
            reach = f"{1e3 * fit.least:.0f} to {1e3 * fit.most:.0f} ms"
            lines.append(
                f"rates into {cloud} follow a rule for round trips of {reach}: {fit.error}"
            )
        unmeasured = [pair for pair in ruled if pair[::-1] not in self.measured]
        for within in sorted({_within_aws(*pair) for pair in unmeasured}):
            fit = self.ways[within].fit
            where = "within aws" if within else "to, from and within other clouds"
            reach = f"{fit.least:,.0f} to {fit.most:,.0f} km"
            lines.append(f"round trips {where} follow a rule for {reach}: {fit.error}")
        return lines

    def outside_of_rules(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Lines about connections that follow a rule outside of the domain in which it was
        fitted.
        """
        lines = []
        for one, other in pairs:
            connection = self.connection(one, other)
            window = self.windows[cloud_of(other)].fit
            way = self.ways[_within_aws(one, other)]
            if connection.measured:
                continue
            reasons = []
            if not window.holds(connection.round_trip):
                reasons.append(f"its round trip is {1e3 * connection.round_trip:.0f} ms")
            if (other, one) not in self.measured:
                length = self.way_km(one, other)
                parts = self._parts(one, other)
                reasons += [] if way.fit.holds(length) else [f"its way is {length:,.0f} km"]
                reasons += (
                    []
                    if parts in way.parts
                    else [f"no pair of {' and '.join(sorted(parts))} was measured"]
                )
            if reasons:
                lines.append(f"{one} to {other}: {', '.join(reasons)}")
        return lines


def cloud_of(region: str) -> str:
    """``gcp`` of ``gcp:us-central1``."""
    return region.partition(":")[0]


def _within_aws(one: str, other: str) -> bool:
    return cloud_of(one) == cloud_of(other) == "aws"


@cache
def cloud_facts() -> CloudFacts:
    """The facts that come with fedsim."""
    return CloudFacts()


class Regions(Network):
    """Devices in the regions ``of``, dealt in turn; within a region that ``table`` omits only
    the devices' own links limit.
    """

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
        self._of = of
        self._server = server
        self._table = table
        self._connections = connections
        self.repeats = len(of)
        self._own_s = latency
        far = np.array(
            [self._window_rule(SERVER, place).round_trip / 2 for place in range(len(of))]
        )
        super().__init__(
            simulation, {}, down, up, latency + far[np.arange(len(latency)) % len(of)], transport
        )

    def _window_rule(self, source: int, destination: int) -> Connection:
        one, other = (
            self._server if end == SERVER else self._of[end % len(self._of)]
            for end in (source, destination)
        )
        usual = Connection(0.0, math.inf)
        return self._table.get(
            (one, other), usual if one == other else self._table.get((other, one), usual)
        )

    def _rate(self, source: int, destination: int) -> float:
        return self._window_rule(source, destination).rate * self._connections

    def route(self, source: int, destination: int) -> list[str]:
        return (
            []
            if self._rate(source, destination) == math.inf
            else [f"{self.name(source)} -> {self.name(destination)}"]
        )

    def links_between(self, source: int, destination: int) -> list[tuple[str, float]]:
        return [(link, self._rate(source, destination)) for link in self.route(source, destination)]

    def built_rate(self, link: str) -> float:
        source, found, destination = link.partition(" -> ")
        return (
            self._rate(self.endpoint(source), self.endpoint(destination))
            if found
            else super().built_rate(link)
        )

    def _exact_latency_s(self, source: int, destination: int) -> float:
        own = sum(self._own_s.item(end) for end in (source, destination) if end != SERVER)
        return own + self._window_rule(source, destination).round_trip / 2


class RegionsSpec(NetworkModel):
    """Devices and a server in regions of clouds, over TCP connections of measured round trip and
    rate.

    Rates of several connections add up, as far as devices' own links (``device``) allow. For pairs
    without a measurement the rate is the window of the receiver's cloud over the round trip: 0.86
    MB into AWS, 3.2 MB into GCP, less what slow start takes of the first ten seconds. It is 4 % and
    2 % off on the mean of 42 and 22 measured pairs, 22 % and 8 % at most. The round trip follows
    from the distance of the cities: 5 % off on the mean of 30 pairs within AWS, 11 % at most; 14 %
    and 41 % of 34 pairs with an end in GCP. ``fedsim check`` prints each rule with its domain and
    error, and names pairs outside.
    """

    kind: Literal["regions"] = "regions"
    file: str | None = None
    """a CSV of your own instead, with ``from``, ``to``, ``rtt_ms`` and ``mbit_s`` of one
    connection; a row from a region to itself limits connections within it. A relative path starts
    from ``data.root``, the working directory or ``$FEDSIM_DATA``.
    """
    of: list[str] = Field(min_length=1)
    """regions by name, such as "aws:eu-west-1" or "gcp:us-central1"; devices are dealt over them
    in turn.
    """
    server_in: str | None = None
    """the region of the server; None: the first of ``of``."""
    connections: int = Field(default=1, ge=1, le=1000)
    """TCP connections of each pair in each direction, over which a message goes at once."""

    @field_validator("of", "server_in")
    @classmethod
    def _known(cls, value: Any, info: ValidationInfo) -> Any:
        sites = cloud_facts().sites
        for name in (
            [] if info.data.get("file") else [value] if isinstance(value, str) else value or []
        ):
            if name not in sites:
                raise ValueError(
                    f"{info.field_name!r} has {name!r}; allowed are "
                    f"{', '.join(sites)}{nearest(name, sites)}"
                )
        return value

    @property
    def places(self) -> int:
        return len(self.of)

    @property
    def _names(self) -> list[str]:
        return [*dict.fromkeys([*self.of, self.server_in or self.of[0]])]

    def rules(self) -> list[str]:
        pairs = permutations(self._names, 2)
        return [] if self.file is not None else cloud_facts().rules_for(pairs)

    def outside_of_rules(self) -> list[str]:
        pairs = permutations(self._names, 2)
        return [] if self.file is not None else cloud_facts().outside_of_rules(pairs)

    def _connect(
        self,
        simulation: Simulation,
        columns: AccessColumns,
        transport: Transport,
        root: Path | None,
    ) -> Network:
        server = self.server_in or self.of[0]
        names = self._names
        if self.file is None:
            facts = cloud_facts()
            table = {
                (one, other): facts.connection(one, other)
                for one in names
                for other in names
                if one != other
            }
        else:
            table = _read(sought(self.file, root))
            for one, other in combinations(names, 2):
                if not {(one, other), (other, one)} & {*table}:
                    raise ScenarioError(
                        f"network.file {self.file!r} has no row from {one!r} to {other!r}, nor back"
                    )
        return Regions(simulation, columns, transport, self.of, server, self.connections, table)


def _read(path: Path) -> dict[tuple[str, str], Connection]:
    """A user's table of connections, by (from, to); ``DataError``: it is missing or malformed."""
    table = DeviceTable("network.file", path, ("from", "to", "rtt_ms", "mbit_s"), others=())
    table.note("a row for each connection")
    round_trips = table.values("rtt_ms", _Milliseconds)
    rates = table.values("mbit_s", _Megabits)
    ends = zip(table.values("from", str), table.values("to", str), strict=True)
    found = [
        Connection(ms / 1e3, mbit * 1e6 / 8) for ms, mbit in zip(round_trips, rates, strict=True)
    ]
    connections: dict[tuple[str, str], Connection] = {}
    for row, (way, connection) in enumerate(zip(ends, found, strict=True)):
        if way in connections:
            raise table.wrong(
                row, "to", f"there is a row from {way[0]!r} to {way[1]!r} already; allowed is one"
            )
        connections[way] = connection
    return connections
