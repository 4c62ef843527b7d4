"""Devices in regions of clouds, over TCP connections limited by a window and a round trip.

``cloud_regions.toml`` has measured connections with source, licence and date. ``CloudFacts`` fits
two rules to these connections, from which the connections of all other pairs follow. The rate is
the window of the receiver's cloud over the round trip, and the round trip grows with the distance.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise, permutations
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import read_toml, sought
from fedsim.world.device_kinds import Figure
from fedsim.world.device_table import DeviceTable
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Transport
from fedsim.world.network.spec import AccessColumns, NetworkInputs, NetworkModel

_TABLE = Path(__file__).with_name("cloud_regions.toml")
_EARTH_KM = 6371.0
_HUB = "aws:ca-central-1"
_MEASURED_S = 10.0  # length of a measurement; rates are means, slow start included
_LEAST_SHARE = 0.1
_NEARLY = 0.1  # relative tolerance beyond the values that a rule was fitted to
_Milliseconds = Annotated[float, Field(ge=0.0, le=1e6)]
_Megabits = Annotated[float, Field(gt=0.0, le=1e9)]


class Connection(NamedTuple):
    """A TCP connection between two regions."""

    round_trip: float
    """round trip (s)."""
    rate: float
    """rate (bytes/s)."""
    measured: bool = True
    """whether the rate was measured."""


class Window(NamedTuple):
    """Rule for the rate of one connection into a cloud."""

    bytes: float
    """size of the window (bytes)."""
    slow_start: float
    """time that slow start takes from the measured time (s), for each second of round trip."""
    fit: "Fit"
    """errors of the rule."""

    def rate(self, round_trip: float) -> float:
        """Mean rate over ten seconds (bytes/s)."""
        share = 1.0 - self.slow_start * round_trip / _MEASURED_S
        return self.bytes * max(share, _LEAST_SHARE) / round_trip


class WindowRule(NamedTuple):
    """Rule for a round trip: a fixed part, and a part for each kilometre."""

    fixed: float
    """fixed part (s)."""
    per_km: float
    """seconds per kilometre."""
    fit: "Fit"
    """errors of the rule."""
    parts: frozenset[frozenset[str]]
    """pairs of parts of the world among the measured pairs."""


class Fit(NamedTuple):
    """Relative errors of a rule on the measured pairs, and the domain of these pairs."""

    rows: int
    """number of measured pairs."""
    mean: float
    """mean relative error."""
    largest: float
    """largest relative error."""
    least: float
    """least value of the rule's variable among the pairs."""
    most: float
    """most value of the rule's variable among the pairs."""

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
    """Measured connections between regions, and rules for connections without a measurement.

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
        self.sites: dict[str, tuple[str, str, float, float]] = {}
        for name, site in table["sites"].items():
            self.sites[name] = (*site,)
        self.measured: dict[tuple[str, str], Connection] = {}
        for source, target, ms, mbit in table["measured"]:
            self.measured[source, target] = Connection(ms / 1e3, mbit * 1e6 / 8)
        self.fit()

    def fit(self) -> None:
        """Fit the constants of all rules."""
        clouds = sorted({cloud_of(name) for name in self.sites})
        self.windows = {cloud: self._fit_window(cloud) for cloud in clouds}
        self.ways = {within: self._fit_round_trip(within) for within in (False, True)}

    def _fit_window(self, cloud: str) -> Window:
        connections = []
        for (_, target), connection in self.measured.items():
            if cloud_of(target) == cloud:
                connections.append(connection)
        round_trips = np.array([connection.round_trip for connection in connections])
        under_way = round_trips * np.array([connection.rate for connection in connections])
        columns = np.stack([np.ones(len(connections)), -round_trips / _MEASURED_S], axis=1)
        constants = _least_squares(columns, under_way)
        fit = Fit.of(columns @ constants, under_way, round_trips)
        size, loss = constants.tolist()
        return Window(size, loss / size, fit)

    def _fit_round_trip(self, within: bool) -> WindowRule:
        pairs = [pair for pair in self.measured if _within_aws(*pair) == within]
        round_trips = np.array([self.measured[pair].round_trip for pair in pairs])
        lengths = np.array([self.way_km(*pair) for pair in pairs])
        columns = np.stack([np.ones(len(pairs)), lengths], axis=1)
        constants = _least_squares(columns, round_trips)
        fit = Fit.of(columns @ constants, round_trips, lengths)
        fixed, per_km = constants.tolist()
        return WindowRule(fixed, per_km, fit, frozenset(self._parts(*pair) for pair in pairs))

    def _parts(self, source: str, target: str) -> frozenset[str]:
        """The parts of the world of two regions."""
        return frozenset({self.sites[source][1], self.sites[target][1]})

    def figures_of(self, name: str) -> dict[str, Figure]:
        """Figures of the connections from a region to all others, measured ones first."""
        publication, date = self.source
        estimate = 'estimate: by the rules of network.kind "regions"'
        connections = {}
        for target in self.sites:
            if target != name:
                connections[target] = self.connection(name, target)
        figures = {}
        for target, connection in sorted(
            connections.items(), key=lambda item: not item[1].measured
        ):
            rate = connection.rate * 8 / 1e6
            text = f"{1e3 * connection.round_trip:.1f} ms, {rate:.1f} Mbit/s"
            source = publication if connection.measured else estimate
            figures[target] = Figure(text, source, date)
        return figures

    def way_km(self, source: str, target: str) -> float:
        """Length of the route between two regions along great circles (km).

        From South America, and between Europe and East Asia, the route leads over a hub in North
        America.
        """
        parts = self._parts(source, target)
        from_south = "south-america" in parts and "north-america" not in parts and len(parts) > 1
        stops = [source, target]
        if from_south or parts == {"europe", "east-asia"}:
            stops = [source, _HUB, target]
        return sum(self.great_circle_km(*leg) for leg in pairwise(stops))

    def great_circle_km(self, source: str, target: str) -> float:
        """Distance of two regions (km), by the haversine formula."""
        *_, source_lat, source_long = self.sites[source]
        *_, target_lat, target_long = self.sites[target]
        source_lat = math.radians(source_lat)
        target_lat = math.radians(target_lat)
        across = math.sin(math.radians(target_long - source_long) / 2) ** 2
        cosines = math.cos(source_lat) * math.cos(target_lat)
        haversine = math.sin((target_lat - source_lat) / 2) ** 2 + cosines * across
        return 2 * _EARTH_KM * math.asin(math.sqrt(haversine))

    def connection(self, source: str, target: str) -> Connection:
        """The connection from one region to another, as measured or by the rules.

        Within a cloud a measured rate holds for the opposite direction, too. Between two clouds the
        window of the receiver limits the rate.

        Args:
            source: the region of the sender.
            target: the region of the receiver.
        """
        if (source, target) in self.measured:
            return self.measured[source, target]
        reverse = self.measured.get((target, source))
        if reverse is None:
            return self.ruled(source, target)
        if cloud_of(source) == cloud_of(target):
            return reverse
        rate = self.windows[cloud_of(target)].rate(reverse.round_trip)
        return Connection(reverse.round_trip, rate, measured=False)

    def ruled(self, source: str, target: str) -> Connection:
        """The connection from one region to another, by the rules alone."""
        rule = self.ways[_within_aws(source, target)]
        round_trip = rule.fixed + rule.per_km * self.way_km(source, target)
        rate = self.windows[cloud_of(target)].rate(round_trip)
        return Connection(round_trip, rate, measured=False)

    def rules_for(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Lines on the domain and error of each rule that connections of these pairs follow."""
        ruled = [pair for pair in pairs if not self.connection(*pair).measured]
        lines = []
        for cloud in sorted({cloud_of(target) for _, target in ruled}):
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
        """Lines on connections that follow a rule outside of the rule's domain."""
        lines = []
        for source, target in pairs:
            connection = self.connection(source, target)
            if connection.measured:
                continue
            reasons = []
            if not self.windows[cloud_of(target)].fit.holds(connection.round_trip):
                reasons.append(f"its round trip is {1e3 * connection.round_trip:.0f} ms")
            if (target, source) not in self.measured:
                rule = self.ways[_within_aws(source, target)]
                length = self.way_km(source, target)
                parts = self._parts(source, target)
                if not rule.fit.holds(length):
                    reasons.append(f"its way is {length:,.0f} km")
                if parts not in rule.parts:
                    reasons.append(f"no pair of {' and '.join(sorted(parts))} was measured")
            if reasons:
                lines.append(f"{source} to {target}: {', '.join(reasons)}")
        return lines


def _least_squares(columns: Floats, values: Floats) -> Floats:
    """The factors of the columns that fit the values, by least squares of relative errors."""
    targets = np.ones(len(values))
    constants, *_ = np.linalg.lstsq(columns / values[:, None], targets, rcond=None)
    return np.asarray(constants)


def cloud_of(region: str) -> str:
    """``gcp`` of ``gcp:us-central1``."""
    return region.partition(":")[0]


def _within_aws(source: str, target: str) -> bool:
    return cloud_of(source) == cloud_of(target) == "aws"


@cache
def cloud_facts() -> CloudFacts:
    """The facts that come with fedsim."""
    return CloudFacts()


class Regions(Network):
    """The network of devices in regions of clouds.

    Args:
        simulation: the simulation.
        columns: rates and latencies of the devices' own links.
        transport: the transport protocol.
        of: regions, over which devices are dealt in turn.
        server: the region of the server.
        connections: number of parallel connections.
        table: connections by pair of regions. Within a region without an entry only the devices'
            own links limit the rate.
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
        self._access_s = latency
        distant = np.array(
            [self._connection(SERVER, place).round_trip / 2 for place in range(len(of))]
        )
        total = latency + distant[np.arange(len(latency)) % len(of)]
        super().__init__(simulation, {}, down, up, total, transport)

    def _region(self, end: int) -> str:
        """The region of the server or a device."""
        return self._server if end == SERVER else self._of[end % len(self._of)]

    def _connection(self, source: int, destination: int) -> Connection:
        """The connection between two ends; without an entry one without limit."""
        pair = self._region(source), self._region(destination)
        if pair in self._table:
            return self._table[pair]
        return self._table.get(pair[::-1], Connection(0.0, math.inf))

    def _rate(self, source: int, destination: int) -> float:
        return self._connection(source, destination).rate * self._connections

    def route(self, source: int, destination: int) -> list[str]:
        if self._rate(source, destination) == math.inf:
            return []
        return [f"{self.name(source)} -> {self.name(destination)}"]

    def links_between(self, source: int, destination: int) -> list[tuple[str, float]]:
        return [(link, self._rate(source, destination)) for link in self.route(source, destination)]

    def built_rate(self, link: str) -> float:
        source, arrow, destination = link.partition(" -> ")
        if not arrow:
            return super().built_rate(link)
        return self._rate(self.endpoint(source), self.endpoint(destination))

    def _exact_latency_s(self, source: int, destination: int) -> float:
        access = sum(self._access_s.item(end) for end in (source, destination) if end != SERVER)
        return access + self._connection(source, destination).round_trip / 2


class RegionsSpec(NetworkModel):
    """Devices and a server in regions of clouds, over measured TCP connections.

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
    def _known(
        cls, value: Sequence[str] | str | None, info: ValidationInfo
    ) -> Sequence[str] | str | None:
        sites = cloud_facts().sites
        names: Sequence[str] = []
        if not info.data.get("file"):
            names = [value] if isinstance(value, str) else value or []
        for name in names:
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

    def _connect(self, inputs: NetworkInputs) -> Network:
        server = self.server_in or self.of[0]
        names = self._names
        if self.file is None:
            facts = cloud_facts()
            table = {pair: facts.connection(*pair) for pair in permutations(names, 2)}
        else:
            table = _read(sought(self.file, inputs.root))
            for source, target in combinations(names, 2):
                if (source, target) not in table and (target, source) not in table:
                    raise ScenarioError(
                        f"network.file {self.file!r} has no row from {source!r} to {target!r}, "
                        "nor back"
                    )
        return Regions(
            inputs.simulation,
            inputs.columns,
            inputs.transport,
            self.of,
            server,
            self.connections,
            table,
        )


def _read(path: Path) -> dict[tuple[str, str], Connection]:
    """Read a user's table of connections, by (from, to); ``DataError`` if it is malformed."""
    table = DeviceTable("network.file", path, ("from", "to", "rtt_ms", "mbit_s"), others=())
    table.note("a row for each connection")
    round_trips = table.values("rtt_ms", _Milliseconds)
    rates = table.values("mbit_s", _Megabits)
    ends = zip(table.values("from", str), table.values("to", str), strict=True)
    connections: dict[tuple[str, str], Connection] = {}
    for row, (pair, ms, mbit) in enumerate(zip(ends, round_trips, rates, strict=True)):
        if pair in connections:
            source, target = pair
            raise table.wrong(
                row, "to", f"there is a row from {source!r} to {target!r} already; allowed is one"
            )
        connections[pair] = Connection(ms / 1e3, mbit * 1e6 / 8)
    return connections
