"""Present rates of links: the scenario's rates, unless a process limits them or they follow traces."""

import math

from fedsim.clock.simulation import Simulation, on_grid
from fedsim.world.network.endpoints import Endpoints, Infrastructure
from fedsim.world.network.flow import Flow
from fedsim.world.network.traces import LinkTraces


class PresentRates(Endpoints):
    """Base of ``Network`` that computes present rates, latencies and losses of links.

    The present values differ from the scenario's values if links follow traces (values over time
    from a file), or if processes of the world limit their rates.

    Args:
        simulation: the clock.
        built: the links, latencies and endpoints.

    Attributes:
        limits: link name -> rate (bytes/s) to which a process of the world, such as an outage,
            limits the link. It replaces the scenario's rate; a link with a trace has the lower of
            limit and trace.
        traces: values over time that rates, latencies and losses of links follow, a constant loss
            above 0 included; None without traces.
    """

    def __init__(self, simulation: Simulation, built: Infrastructure) -> None:
        super().__init__(built)
        self._simulation = simulation
        self.limits: dict[str, float] = {}
        self.traces: LinkTraces | None = None

    def follow(self, traces: LinkTraces) -> None:
        """Let links follow traces from now on; it must be called before the first flow begins.

        Args:
            traces: values over time for some of the links.

        Raises:
            SimulationError: a shared link with a trace does not exist.
        """
        for link in traces.shared:
            self.built_rate(link)
        self.traces = traces

    def present_rate(self, link: str, built: float) -> float:
        """Return the rate of a link now, by the scenario, limits and traces (bytes/s).

        Args:
            link: name of the link.
            built: its rate in the scenario (bytes/s).
        """
        traced_rate = None
        if self.traces is not None:
            traced_rate = self.traces.value(link, self._simulation.now)
        if traced_rate is None:  # a limit replaces the rate of the scenario
            return self.limits.get(link, built)
        return min(traced_rate, self.limits.get(link, math.inf))

    def present_latency_s(self, source: int, destination: int) -> float:
        """Return the present one-way latency (propagation delay) between two endpoints (s).

        It is ``latency_s``, changed by traces of latencies, and rounded to the clock's ticks. A flow
        waits this time once at its start, before its bytes use any link.

        Args:
            source: ID of the sender.
            destination: ID of the receiver.
        """
        latency = self.latency_s(source, destination)
        if self.traces is None or "latency" not in self.traces.of_devices:
            return latency
        for endpoint in (source, destination):
            if not 0 <= endpoint < self.devices:  # only devices have traces
                continue
            placed = self.traces.of(f"device {endpoint} latency")
            if placed is not None:
                trace, ahead = placed  # ``ahead``: the device's position in the trace at time 0
                # ``latency`` contains the mean of the trace as this device's part
                latency += trace.at(self._simulation.now + ahead) - trace.mean
        return on_grid(max(latency, 0.0))

    def present_round_trip_s(self, source: int, destination: int) -> float:
        """Return the present time from a packet to its acknowledgement on empty links (s).

        Args:
            source: ID of the sender.
            destination: ID of the receiver.
        """
        latency = self.present_latency_s(source, destination)
        return on_grid(2 * latency + self._protocol.round_trip)

    def present_loss(self, endpoint: int) -> float:
        """Return the share of packets that an endpoint's own link loses at present, 0 to 1.

        Args:
            endpoint: ID of the endpoint.
        """
        if self.traces is None or not 0 <= endpoint < self.devices:
            return 0.0
        return self.traces.value(f"device {endpoint} loss", self._simulation.now) or 0.0

    def _apply_limits(self, links: list[tuple[str, float]]) -> list[tuple[str, float]]:
        if not self.limits and self.traces is None:
            return links
        return [(name, self.present_rate(name, rate)) for name, rate in links]

    def _links_of(self, flow: Flow, *, with_own: bool = True) -> list[tuple[str, float]]:
        """Return name and present rate (bytes/s) of the links on a flow's route.

        The devices' own links are included if ``with_own`` is true.
        """
        links = self.links_between(flow.source, flow.destination)
        if with_own:
            links = [*links, *self.own_links(flow.source, flow.destination)]
        return self._apply_limits(links)

    def _own_rate(self, flow: Flow) -> float:
        """Return the least present rate of the devices' own links on a flow's route (bytes/s)."""
        source = flow.source
        destination = flow.destination
        if self.limits or self.traces is not None:
            links = self._apply_limits(self.own_links(source, destination))
            return min([rate for _, rate in links], default=math.inf)
        rate = math.inf
        if 0 <= source < self.devices:
            rate = self.access["up"].item(source)
        if 0 <= destination < self.devices:
            rate = min(rate, self.access["down"].item(destination))
        return rate
