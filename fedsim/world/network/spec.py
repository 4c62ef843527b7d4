"""The table ``[network]``: a star, a tree of cells, or any graph from a file."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, find_wrong_entry, returns
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import LinkRate, Seconds
from fedsim.world.distributions import Constant, RateDistribution, TimeDistribution
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Fluid, ProtocolSpec, Transport
from fedsim.world.network.star import Star

OwnRates = tuple[Floats, ...] | None
AccessColumns = tuple[Floats, Floats, Floats]


class SharedLink(Spec):
    """A link of the server, or of a cell to the server: ``down`` to the devices, ``up`` from
    them.
    """

    down: LinkRate = math.inf
    up: LinkRate = math.inf


class DeviceLinks(Spec):
    """The devices' own links, and the latency that each transfer pays before its first byte."""

    down: RateDistribution = Constant[LinkRate].model_validate({"value": "inf B/s"})
    """rate to the device."""
    up: RateDistribution = Constant[LinkRate].model_validate({"value": "inf B/s"})
    """rate from the device."""
    latency: TimeDistribution = Constant[Seconds].model_validate({"value": "0 s"})
    """time before the first byte leaves (s), each way."""


_is_rate = find_outside(above=0.0, infinite=True)
_is_latency = find_outside(least=0.0)
_COLUMNS = "three arrays of a number for each device: two of rates above 0, one of finite latencies"


def _find_wrong_column(
    columns: AccessColumns,
    model: Any,
    streams: Streams,
    devices: int,
    rates: OwnRates,
    root: Path | None,
) -> str:
    down, up, latency = columns
    checks = ((down, _is_rate), (up, _is_rate), (latency, _is_latency))
    mistakes = [find_wrong_entry(column, devices, check) for column, check in checks]
    return next(filter(None, mistakes), "")


class NetworkModel(Spec):
    """The base of every network.

    One of your own passes ``Transport(self.protocol, streams)`` on, or ignores the protocol.
    """

    kind: str
    device: DeviceLinks = DeviceLinks()
    """the devices' own links."""
    protocol: ProtocolSpec = Fluid()
    """what a transfer is besides its payload."""

    @property
    def has_device_rates(self) -> bool:
        """Whether this section has rates of the devices' own links."""
        rates = (self.device.down, self.device.up)
        return not all(isinstance(rate, Constant) and rate.value == math.inf for rate in rates)

    @property
    @returns("a whole number, 1 or more, or None", find_outside(least=1))
    def places(self) -> int | None:
        """Number of cells, or of nodes to which devices are attached, if any."""
        return None

    @property
    @returns("a whole number, 0 or more", find_outside(least=0))
    def edge_servers(self) -> int:
        """Number of edge servers."""
        return 0

    def rules(self) -> list[str]:
        """Return lines about rules fitted to measurements: the domain and the error of each."""
        return []

    def outside_of_rules(self) -> list[str]:
        """Lines about what lies outside of the domain in which such a rule was fitted."""
        return []

    @returns(keyed="streams.generator('world/NAME')", guarded=True)
    def build(
        self,
        simulation: Simulation,
        streams: Streams,
        devices: int,
        rates: OwnRates = None,
        root: Path | None = None,
    ) -> Network:
        """The network of a run.

        Args:
            simulation: the clock, passed on to ``Network``.
            streams: random numbers by purposes ``world/...``, the same for every strategy.
            devices: number of devices.
            rates: rates down and up (bytes/s) instead of ``device``'s, and latencies (s) if
                ``device`` has none; ``columns`` sees to them.
            root: the folder where files are sought, passed on to ``columns``.
        """
        columns = self.columns(streams, devices, rates, root)
        return self._connect(simulation, columns, Transport(self.protocol, streams), root)

    def _connect(
        self,
        simulation: Simulation,
        columns: AccessColumns,
        transport: Transport,
        root: Path | None,
    ) -> Network:
        raise NotImplementedError

    @returns(_COLUMNS, _find_wrong_column)
    def columns(
        self, streams: Streams, devices: int, rates: OwnRates, root: Path | None
    ) -> AccessColumns:
        """Return rates down and up (bytes/s) and latency (s); each float64 [devices].

        Args:
            streams: random streams; draws are from ``world/...``.
            devices: number of devices.
            rates: rates down and up (bytes/s) instead of ``device``'s, and latencies (s); or None.
            root: folder of data files; None for the working directory.
        """

        def column(name: Literal["down", "up", "latency"], purpose: str) -> Floats:
            distribution = getattr(self.device, name)
            values: Floats = distribution.by_device(
                f"network.device.{name}", streams.generator(purpose), devices, root
            )
            return values

        if rates is None:
            rates = column("down", "world/link-down"), column("up", "world/link-up")
        down, up, *latencies = rates
        latency = self.device.latency
        is_default = isinstance(latency, Constant) and latency.value == 0
        if latencies and is_default:
            return down, up, latencies[0]
        return down, up, column("latency", "world/latency")


class StarSpec(NetworkModel):
    """One server link each way, and each device behind its own; without rates transfers take no
    time.
    """

    kind: Literal["star"] = "star"
    server: SharedLink = SharedLink()

    def _connect(
        self,
        simulation: Simulation,
        columns: AccessColumns,
        transport: Transport,
        root: Path | None,
    ) -> Network:
        return Star(simulation, *columns, self.server.down, self.server.up, transport)


_GRAPHS = "fedsim.toolbox.worlds.graphs"
_REGIONS = "fedsim.toolbox.worlds.regions"
NETWORKS = Registry(
    "network",
    "fedsim.world.network.spec:NetworkModel",
    {
        **Registry.of("network", StarSpec).known,
        "tree": (
            f"{_GRAPHS}:TreeSpec",
            "Cells with a link each to the server; device i is in cell i mod ``cells``.",
        ),
        "graph": (
            f"{_GRAPHS}:GraphSpec",
            "Any network, from a JSON node-link file as networkx writes it.",
        ),
        "regions": (
            f"{_REGIONS}:RegionsSpec",
            "Devices and a server in regions of clouds, over TCP connections that were measured.",
        ),
    },
    key="network",
)
NetworkSpec = Annotated[NetworkModel, NETWORKS]
