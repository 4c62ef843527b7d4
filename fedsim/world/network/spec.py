"""Scenario section ``[network]``: the base of network models, and the model of a star."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import Floats
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, find_wrong_entry, returns
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import LinkRate, Seconds
from fedsim.world.distributions import Constant, Distribution
from fedsim.world.network.flows import Network
from fedsim.world.network.protocol import Fluid, ProtocolSpec, Transport
from fedsim.world.network.star import Star
from fedsim.world.network.traced import (
    DeviceLatency,
    DeviceLoss,
    DeviceRate,
    SharedRate,
    TracedRate,
)
from fedsim.world.network.traces import Assignment, LinkTraces, StepTrace

OwnRates = tuple[Floats, ...] | None
"""Rates down and up (bytes/s), and optional latencies (s), of the devices; float64 [devices]."""
AccessColumns = tuple[Floats, Floats, Floats]
"""Rates down and up (bytes/s) and latency (s) of the devices' links; float64 [devices] each."""


@dataclass(frozen=True)
class NetworkInputs:
    """Clock, link rates and protocol, from which a scenario's network model builds its ``Network``.

    Attributes:
        simulation: the clock.
        columns: rates down and up (bytes/s) and latency (s) of the devices' links.
        transport: the protocol of transfers, with its random streams.
        root: folder of data files; None for the working directory.
    """

    simulation: Simulation
    columns: AccessColumns
    transport: Transport
    root: Path | None


@dataclass(frozen=True)
class SharedLinks:
    """Shared links of a network whose rate is set by one key of the scenario.

    Attributes:
        key: the key, such as ``network.server.up``.
        names: names of the links.
        rate: the rate of each link (bytes/s), or the values over time (traces) that they follow.
    """

    key: str
    names: Sequence[str]
    rate: float | TracedRate


class SharedLink(Spec):
    """Keys of a shared link: the server's, or the one between a cell and the server.

    Attributes:
        down: rate to the devices.
        up: rate from the devices.
    """

    down: SharedRate = math.inf
    up: SharedRate = math.inf


class DeviceLinks(Spec):
    """Table ``network.device``: rates, latency and losses of the devices' own links.

    Attributes:
        down: rate to the device, such as ``"10 Mbit/s"``.
        up: rate from the device.
        latency: one-way propagation delay (s), equal for both directions. Each transfer waits for
            this time once at its start, before its bytes use any link; a round trip has it twice.
        loss: share of the packets that are lost on the device's own link, in each direction. It is
            used only with ``protocol.model = "window"``.
    """

    down: DeviceRate = Constant[LinkRate].model_validate({"value": "inf B/s"})
    up: DeviceRate = Constant[LinkRate].model_validate({"value": "inf B/s"})
    latency: DeviceLatency = Constant[Seconds].model_validate({"value": "0 s"})
    loss: DeviceLoss = 0.0


_is_rate = find_outside(above=0.0, infinite=True)
_is_latency = find_outside(least=0.0)
_COLUMNS = "three arrays of a number for each device: two of rates above 0, one of finite latencies"


def _find_wrong_column(
    columns: AccessColumns,
    model: object,
    streams: Streams,
    devices: int,
    rates: OwnRates,
    root: Path | None,
) -> str:
    """Describe the first mistake in the result of ``NetworkModel.columns``; empty if it is right.

    Args:
        columns: the result.
        model, streams, devices, rates, root: arguments of the call; only ``devices`` is used.
    """
    down, up, latency = columns
    checks = ((down, _is_rate), (up, _is_rate), (latency, _is_latency))
    for column, check in checks:
        mistake = find_wrong_entry(column, devices, check)
        if mistake:
            return mistake
    return ""


class NetworkModel(Spec):
    """Base of every network model, a ``kind`` of the scenario's section ``[network]``.

    A user's model overrides ``build``, which returns a ``Network``. If it does not pass
    ``Transport(self.protocol, streams)`` to the network, the key ``protocol`` has no effect.

    Attributes:
        device: the devices' own links.
        protocol: headers, slow start and weights of transfers.
    """

    kind: str
    device: DeviceLinks = DeviceLinks()
    protocol: ProtocolSpec = Fluid()

    @model_validator(mode="after")
    def _refuse_without_windows(self) -> Self:
        """Refuse losses, and latencies that change over time, without congestion windows.

        Only protocols with congestion windows can apply them.
        """
        device = self.device
        reasons = []
        if isinstance(device.latency, TracedRate):
            reasons.append("device.latency is a trace")
        if isinstance(device.loss, TracedRate):
            reasons.append("device.loss is a trace")
        elif device.loss:
            reasons.append(f"device.loss is {device.loss!r}")
        if reasons and self.protocol.queueing() is None:
            raise PydanticCustomError(
                "needs_windows",
                "{reason}, which counts only where senders have congestion windows; allowed with "
                "{protocol}",
                {
                    "reason": " and ".join(reasons),
                    "protocol": "protocol = { kind = 'tcp', model = 'window' }",
                },
            )
        return self

    @property
    def has_device_rates(self) -> bool:
        """Whether the scenario's ``[network]`` sets rates of the devices' own links."""
        rates = (self.device.down, self.device.up)
        return not all(isinstance(rate, Constant) and rate.value == math.inf for rate in rates)

    @property
    def _has_device_latency(self) -> bool:
        """Whether the scenario's ``[network]`` sets a latency of the devices' own links above 0."""
        latency = self.device.latency
        return not (isinstance(latency, Constant) and latency.value == 0)

    @property
    @returns("a whole number, 1 or more, or None", find_outside(least=1))
    def places(self) -> int | None:
        """Count of places to which devices are attached; None for a star.

        In a tree these are the cells, in a network of routers (a graph) the nodes with devices.
        """
        return None

    @property
    @returns("a whole number, 0 or more", find_outside(least=0))
    def edge_servers(self) -> int:
        """Count of edge servers."""
        return 0

    @property
    def shared_links(self) -> Sequence[SharedLinks]:
        """Links that several devices share and whose rate is a key of the section ``[network]``.

        Each entry has the key and the rate, which may be a trace (values over time).
        """
        return ()

    def shared_rates(self, streams: Streams, root: Path | None) -> dict[str, float]:
        """Return the rates of ``shared_links``: link name -> rate, or mean of its trace (bytes/s).

        Args:
            streams: random streams of the run.
            root: folder of data files; None for the working directory.
        """
        rates: dict[str, float] = {}
        for group in self.shared_links:  # groups of links with one key of the scenario
            if isinstance(group.rate, TracedRate):
                count = len(group.names)
                traces = group.rate.assign(group.key, streams, count, root, group.key)
                for name, mean_rate in zip(group.names, traces.means(count).tolist(), strict=True):
                    rates[name] = mean_rate
            else:
                for name in group.names:
                    rates[name] = group.rate
        return rates

    def link_traces(
        self, streams: Streams, devices: int, root: Path | None, *, with_rates: bool = True
    ) -> LinkTraces | None:
        """Return the values over time (traces) of rates, latencies and losses that links follow.

        A constant loss above 0 counts as a trace of one value. The result is None without traces.

        Args:
            streams: random streams of the run.
            devices: number of devices.
            root: folder of data files; None for the working directory.
            with_rates: whether traces of ``network.device.down`` and ``network.device.up`` are
                included; False if the rates of the devices' own links are not from this section.
        """
        of_devices: dict[str, Assignment] = {}  # key of ``network.device`` -> traces of the devices
        for name, value in self.device:
            if isinstance(value, TracedRate) and (with_rates or name not in ("down", "up")):
                of_devices[name] = value.assign(f"network.device.{name}", streams, devices, root)
        # a constant loss is a trace with one value, so that all losses are applied in one way
        loss = self.device.loss
        if isinstance(loss, float) and loss:
            trace = StepTrace("loss", [0.0], [loss], 1.0)
            of_devices["loss"] = Assignment([trace], streams, is_drawn=False, random_start=False)
        # name of a shared link -> traces of its group of links, and index of the link in the group
        of_shared: dict[str, tuple[Assignment, int]] = {}
        for group in self.shared_links:
            if isinstance(group.rate, TracedRate):
                count = len(group.names)
                assignment = group.rate.assign(group.key, streams, count, root, group.key)
                for index, name in enumerate(group.names):
                    of_shared[name] = assignment, index
        if not of_devices and not of_shared:
            return None
        return LinkTraces(of_devices, of_shared)

    def rules(self) -> list[str]:
        """Describe each formula that was fitted to measurements: its range and its error, as text.

        ``fedsim check`` prints these texts.
        """
        return []

    def outside_of_rules(self) -> list[str]:
        """Return warnings about values outside the range for which the formulas were fitted."""
        return []

    @returns(allowed_draws="streams.generator('world/NAME')", guarded=True)
    def build(
        self,
        simulation: Simulation,
        streams: Streams,
        devices: int,
        rates: OwnRates = None,
        root: Path | None = None,
    ) -> Network:
        """Build the network of a run.

        Args:
            simulation: the clock, for ``Network``.
            streams: random streams. Draw only from streams named ``world/...``, whose draws are equal
                for all strategies.
            devices: number of devices.
            rates: rates down and up of each device (bytes/s), in place of ``network.device.down``
                and ``up``. A third array has latencies (s), which are used if
                ``network.device.latency`` is 0. None: all values are from ``network.device``.
            root: folder of data files; None for the working directory.
        """
        columns = self.columns(streams, devices, rates, root)
        transport = Transport(self.protocol, streams)
        return self._connect(NetworkInputs(simulation, columns, transport, root))

    def _connect(self, inputs: NetworkInputs) -> Network:
        raise NotImplementedError

    @returns(_COLUMNS, _find_wrong_column)
    def columns(
        self, streams: Streams, devices: int, rates: OwnRates, root: Path | None
    ) -> AccessColumns:
        """Draw rates down and up (bytes/s) and latency (s) of the devices; float64 [devices] each.

        The values are drawn from the distributions of the scenario's table ``network.device``. A
        value that follows a trace is the mean of the trace over time.

        Args:
            streams: random streams. Draw only from streams named ``world/...``.
            devices: number of devices.
            rates: rates down and up of each device (bytes/s), in place of ``network.device.down``
                and ``up``. A third array has latencies (s), which are used if
                ``network.device.latency`` is 0. None: all values are from ``network.device``.
            root: folder of data files; None for the working directory.
        """

        def draw(name: Literal["down", "up", "latency"], purpose: str) -> Floats:
            distribution: Distribution = getattr(self.device, name)
            key = f"network.device.{name}"
            if isinstance(distribution, TracedRate):  # draws from the stream ``world/link-trace``
                return distribution.assign(key, streams, devices, root).means(devices)
            return distribution.by_device(key, streams.generator(purpose), devices, root)

        if rates is None:
            down = draw("down", "world/link-down")
            up = draw("up", "world/link-up")
            rates = (down, up)
        down, up, *latencies = rates  # a third array, of latencies, is optional
        if latencies and not self._has_device_latency:
            return down, up, latencies[0]
        return down, up, draw("latency", "world/latency")


def server_links(server: SharedLink) -> list[SharedLinks]:
    """Return the server's links, with the keys ``network.server.down`` and ``network.server.up``.

    Args:
        server: the table ``server`` of a star's or a tree's section ``[network]``.
    """
    return [
        SharedLinks("network.server.down", ("server down",), server.down),
        SharedLinks("network.server.up", ("server up",), server.up),
    ]


class StarSpec(NetworkModel):
    """Star network: all transfers share the server's link in each direction.

    A transfer also passes its device's own link. A link without a rate does not limit transfers.

    Attributes:
        server: rates of the server's link.
    """

    kind: Literal["star"] = "star"
    server: SharedLink = SharedLink()

    @property
    def shared_links(self) -> list[SharedLinks]:
        return server_links(self.server)

    def _connect(self, inputs: NetworkInputs) -> Network:
        rates = self.shared_rates(inputs.transport.streams, inputs.root)
        server = (rates["server down"], rates["server up"])
        return Star(inputs.simulation, *inputs.columns, *server, inputs.transport)


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
NetworkSpec = Annotated[NetworkModel, KindField(NETWORKS)]
