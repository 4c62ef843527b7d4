"""Network of devices in regions of clouds, over TCP connections of ``CloudFacts`` or of a file."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.files import find_file
from fedsim.toolbox.worlds.cloud_facts import Connection, cloud_facts
from fedsim.world.device_table import DeviceTable
from fedsim.world.network.endpoints import SERVER
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Transport
from fedsim.world.network.spec import AccessColumns, NetworkInputs, NetworkModel

_Milliseconds = Annotated[float, Field(ge=0.0, le=1e6)]
_Megabits = Annotated[float, Field(gt=0.0, le=1e9)]


class Regions(Network):
    """Network of devices and a server in regions of clouds.

    Messages go over TCP connections. Each pair of regions has a round trip time and a rate.

    Args:
        simulation: the simulation.
        columns: rates (bytes/s) and latencies (s) of the devices' own links.
        transport: the transport protocol.
        of: regions; device i is in region ``of[i % len(of)]``.
        server: the region of the server.
        connections: count of parallel TCP connections for each transfer.
        table: (sender's region, receiver's region) -> connection. If the table lacks a direction,
            the opposite direction is used. If it lacks both, there is no latency, and only the
            devices' own links limit the rate.
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
        """Build the network, with half the round trip between regions in each device's latency."""
        down, up, latency = columns
        self._of = of  # regions in which the devices are, in turn
        self._server = server  # the server's region
        self._table = table  # (sender's region, receiver's region) -> TCP connection
        self._connections = connections  # count of TCP connections for each transfer
        self.repeats = len(of)  # period with which devices have equal connections
        self._access_s = latency  # latencies of the devices' own links (s)
        # device i stands for all devices of its region, which repeat with the period ``len(of)``
        region_latencies = np.array(
            [self._connection(SERVER, device).round_trip / 2 for device in range(len(of))]
        )
        region_of_device = np.arange(len(latency)) % len(of)
        latencies = latency + region_latencies[region_of_device]
        super().__init__(simulation, {}, down, up, latencies, transport)

    def _region(self, end: int) -> str:
        """Return the region of an endpoint, which is ``SERVER`` or the index of a device."""
        return self._server if end == SERVER else self._of[end % len(self._of)]

    def _connection(self, source: int, destination: int) -> Connection:
        """Return the TCP connection from one endpoint to another, by their regions.

        If the table has only the opposite direction, the connection of that direction is returned.
        If the table has neither, the connection has no latency and an infinite rate.

        Args:
            source: index of the sending device, or ``SERVER``.
            destination: index of the receiving device, or ``SERVER``.
        """
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

    Pairs of regions without a measurement are estimated by two rules:

    - The rate is the TCP window of the receiver's cloud divided by the round trip, minus the loss
      by slow start in the first ten seconds. The windows are 0.86 MB into AWS, and 3.2 MB into GCP
      and (Linux's default buffer) Azure. The mean relative error is 4 % on 42 measured pairs into
      AWS (22 % at most), and 2 % on 22 pairs into GCP (8 % at most).
    - The round trip is linear in the length of the route along submarine cables. The mean relative
      error is 4 % on 30 pairs within AWS (9 % at most), and 6 % on 34 pairs with an end in GCP (22
      % at most).

    ``fedsim check`` prints each rule with its valid range and error, and the pairs outside this
    range.

    Attributes:
        file: a CSV of your own in place of fedsim's measurements. A row has the regions ``from``
            and ``to``, and ``rtt_ms`` and ``mbit_s`` of one connection; a row from a region to
            itself limits connections within the region. A relative path starts from ``data.root``,
            else the working directory, else ``$FEDSIM_DATA``.
        of: names of regions, such as "aws:eu-west-1" or "gcp:us-central1"; device i is in the
            region at position i modulo the count of names.
        server_in: the region of the server; None: the first of ``of``.
        connections: count of parallel TCP connections among which each message is divided. Their
            rates add up, as far as the devices' own links (``device``) allow. No measurement here
            confirms this sum.
    """

    kind: Literal["regions"] = "regions"
    file: str | None = None
    of: list[str] = Field(min_length=1)
    server_in: str | None = None
    connections: int = Field(default=1, ge=1, le=1000)

    @field_validator("of", "server_in")
    @classmethod
    def _refuse_unknown_regions(
        cls, value: Sequence[str] | str | None, info: ValidationInfo
    ) -> Sequence[str] | str | None:
        """Raise ``ValueError`` if no file is given, and a region is not in the built-in table."""
        if value is None or info.data.get("file"):
            return value
        sites = cloud_facts().sites
        names = [value] if isinstance(value, str) else value
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
    def _region_names(self) -> list[str]:
        return [*dict.fromkeys([*self.of, self.server_in or self.of[0]])]

    def rules(self) -> list[str]:
        if self.file is not None:
            return []
        return cloud_facts().rules_for(permutations(self._region_names, 2))

    def outside_of_rules(self) -> list[str]:
        if self.file is not None:
            return []
        outside = cloud_facts().outside_of_rules(permutations(self._region_names, 2))
        if self.connections > 1:
            outside.append(
                f"{self.connections} connections of a pair: only single ones were measured, and "
                "machines' own links, which bound several, are network.device"
            )
        return outside

    def _connect(self, inputs: NetworkInputs) -> Network:
        """Build the network with the connections of the file, else of the built-in table.

        Raises:
            ScenarioError: the file has no connection between two of the regions.
        """
        server = self.server_in or self.of[0]
        names = self._region_names
        if self.file is None:
            facts = cloud_facts()
            table = {pair: facts.connection(*pair) for pair in permutations(names, 2)}
        else:
            table = _read_connections(find_file(self.file, inputs.root))
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


def _read_connections(path: Path) -> dict[tuple[str, str], Connection]:
    """Read a user's CSV file of TCP connections between regions.

    Args:
        path: the file, with the columns ``from``, ``to``, ``rtt_ms`` and ``mbit_s``.

    Returns:
        (sender's region, receiver's region) -> connection.

    Raises:
        DataError: the file is missing or malformed, or has two rows for a pair of regions.
    """
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
