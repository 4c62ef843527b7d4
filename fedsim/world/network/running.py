"""Running flows of a network: their sharing rules, windows and queues, and the traces of their links."""

import math
from collections.abc import Callable, Iterable

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import SimulationError
from fedsim.world.network.endpoints import Infrastructure
from fedsim.world.network.filling import Sharing
from fedsim.world.network.flow import Flow
from fedsim.world.network.present import PresentRates
from fedsim.world.network.queues.sharing import Queueing
from fedsim.world.network.traces import LinkTraces
from fedsim.world.network.windows import Windows

_ROUNDING = 1e-12  # relative gap below which a flow's rate equals the rate of its window


class RunningFlows(PresentRates):
    """Base of ``Network`` that starts flows on links, and applies traces and windows to them.

    Args:
        simulation: the clock.
        built: the links, latencies and endpoints.
        sharing: class or function without arguments that returns a new sharing rule, the object that
            computes the rates of the flows on the links.
    """

    def __init__(
        self, simulation: Simulation, built: Infrastructure, sharing: Callable[[], Sharing]
    ) -> None:
        super().__init__(simulation, built)
        self._queues = self._build_queues()  # the only sharing rule, if links have queues
        self._sharing = sharing  # makes a new rule, at first and when the network becomes general
        self._rules = [self._queues or sharing()]
        # whether the sharing rule takes the devices' own links as shared links, instead of as caps
        self._general = self._queues is not None
        self._running: dict[int, Flow] = {}  # flow ID -> flow after its latency, before its end
        self._streams = built.transport.streams
        self._slow_start = self._protocol.slow_start and self._queues is None
        # device or edge server -> count of its flows so far, which determines a flow's random draws
        self._transfers: dict[int, int] = {}
        self._windows = Windows(self._protocol.window)

    def _build_queues(self) -> Queueing | None:
        """Return the object that moves flows through queues; None if the protocol has no queues.

        Raises:
            SimulationError: the protocol has the length of a queue for a link that does not exist.
        """
        rules = self._protocol.queueing()
        if rules is None:
            return None
        self._refuse_unknown_queues(rules.queues)
        return Queueing(rules)

    def _refuse_unknown_queues(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self.built_rate(name)
            except SimulationError as error:
                raise SimulationError(f"network.protocol.queues: {error}") from None

    def _rule(self, flow: Flow) -> Sharing:
        return self._rules[0]

    def _cap(self, flow: Flow) -> float:
        """Return the highest rate that a flow may have now (bytes/s), apart from shared links.

        The cap is the least of the rate that the flow's window in slow start allows and the rates of
        the devices' own links. In a general network, in which own links are shared, they count as
        shared links.
        """
        cap = math.inf if self._general else self._own_rate(flow)
        if self._slow_start:
            cap = min(cap, self._windows.rate(flow.id))
        return cap

    def _is_unlimited(self, flow: Flow) -> bool:
        if self._cap(flow) < math.inf:
            return False
        if self._queues is not None and self.round_trip_s(flow.source, flow.destination) > 0:
            return False  # the flow's window limits its rate
        return all(capacity == math.inf for _, capacity in self._links_of(flow))

    def _enter(self, flow: Flow, cap: float, now: float, sent: float = 0.0) -> None:
        if self._queues is not None:
            self._begin_on_queues(self._queues, flow, now)
            return
        route = self._links_of(flow, with_own=self._general)
        self._rule(flow).enter(flow.id, flow.wire, cap, now, flow.weight, sent, route)

    def _begin_on_queues(self, queues: Queueing, flow: Flow, now: float) -> None:
        """Start a flow on links with queues, in the order in which its bytes pass them."""
        source = flow.source
        destination = flow.destination
        own_links = self.own_links(source, destination)
        route = self.links_between(source, destination)
        # the sender's own link comes first, the receiver's last
        sender_link = own_links[:1] if 0 <= source < self.devices else []
        receiver_link = own_links[len(sender_link) :]
        route = [*sender_link, *route, *receiver_link]
        round_trip = self.present_round_trip_s(source, destination)
        ends = (source, destination)
        # the seed of the flow's losses depends on its device, and on the count of flows before it
        device = source if 0 <= source < self.devices else destination
        count = self._transfers.get(device, 0)  # count of the device's earlier flows
        self._transfers[device] = count + 1
        loss_key = self._streams.word("world/packet-loss", device, count)
        # The rates of the begin determine the sizes of queues, so traces are applied only later.
        route_without_traces = [(name, self.limits.get(name, rate)) for name, rate in route]
        queues.begin(flow.id, flow.wire, now, route_without_traces, round_trip, ends, loss_key)
        if self.traces is None:
            return
        for name, rate in self._apply_limits(route):
            queues.set_rate(name, rate, now)
        queues.set_loss(flow.id, self.present_loss(source), self.present_loss(destination), now)

    def _use_traces(self, traces: LinkTraces, flow: Flow, now: float) -> None:
        """Apply the traces of a new flow's links from now on, as long as the flow runs.

        Traces of links without a flow are not followed, to save time.

        Args:
            traces: the values over time of the links.
            flow: the flow, which begins.
            now: the time (s).
        """
        for link in traces.begin(flow.id, self._traced_names(flow), now):
            # Only shared links need this. The rate of an own link is in the flow's cap; links with
            # queues get their rates when the flow begins.
            if link in traces.shared and self._queues is None:
                self._set_capacity(link, now)

    def _traced_names(self, flow: Flow) -> list[str]:
        """Return the names under which ``LinkTraces`` has the values that affect a flow.

        These are the names of the flow's links. If links have queues, names such as ``device 7
        latency`` and ``device 7 loss`` of sender and receiver are added.
        """
        names = [name for name, _ in self._links_of(flow)]
        if self._queues is not None:
            for end in (flow.source, flow.destination):
                names += [f"device {end} latency", f"device {end} loss"]
        return names

    def _follow_traces(self, traces: LinkTraces, now: float) -> None:
        """Apply the changes of traces up to now: rates of links, latencies and losses."""
        for link in traces.take_due(now):
            if self._queues is not None:
                self._follow_by_queues(self._queues, traces, link, now)
            elif self._general or link in traces.shared:
                self._set_capacity(link, now)
            else:
                for flow_id in traces.flows_on(link):
                    flow = self._running[flow_id]
                    self._rule(flow).recap(flow_id, flow.wire, self._cap(flow), now)

    def _follow_by_queues(
        self, queues: Queueing, traces: LinkTraces, name: str, now: float
    ) -> None:
        """Apply the change of a trace (a rate, latency or loss over time) to links with queues.

        Args:
            queues: sharing rule of the links.
            traces: the values over time of the links.
            name: name of a link, or a name such as ``device 7 latency``.
            now: the time (s).
        """
        if name.endswith(" latency"):
            for flow_id in traces.flows_on(name):
                flow = self._running[flow_id]
                round_trip = self.present_round_trip_s(flow.source, flow.destination)
                queues.set_round_trip(flow_id, round_trip, now)
        elif name.endswith(" loss"):
            for flow_id in traces.flows_on(name):
                flow = self._running[flow_id]
                at_sender = self.present_loss(flow.source)
                at_receiver = self.present_loss(flow.destination)
                queues.set_loss(flow_id, at_sender, at_receiver, now)
        else:
            queues.set_rate(name, self.present_rate(name, self.built_rate(name)), now)

    def _set_capacity(self, link: str, now: float) -> None:
        rate = self.present_rate(link, self.built_rate(link))
        for rule in self._rules:
            rule.set_capacity(link, rate, now)

    def _widen(self, now: float) -> None:
        """Double the slow-start windows whose round trip is over.

        A window is closed instead if it did not limit its flow, or would not do so when doubled.

        Args:
            now: the time (s).
        """
        # a window is represented by the rate that it allows (bytes/s)
        for flow_id, window_rate in self._windows.take_due(now):
            flow = self._running[flow_id]
            rule = self._rule(flow)
            is_limiting = rule.rate(flow_id) > window_rate * (1 - _ROUNDING)
            if is_limiting and 2 * window_rate < self._own_rate(flow):
                round_trip = self.round_trip_s(flow.source, flow.destination)
                self._windows.widen(flow_id, 2 * window_rate, now + round_trip)
            # the window is wider or closed, so that the flow's highest rate has changed
            rule.recap(flow_id, flow.wire, self._cap(flow), now)
