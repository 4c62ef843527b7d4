"""Flows of any network: latencies, starts, ends, and the order of notifications.

Rates change only when a flow starts or ends, or a link has another rate, so the time of the next
end is known exactly. The network wakes at the first clock tick at or after this end, and carries out
all earlier ends, each at its exact time. One call of ``share_links`` computes new rates after all
changes of an instant. After the end of a flow, the sharing rule itself computes new rates
(``Sharing.advance``).

At first, a device's own link is only a cap on the rate of its flow. The first flow that shares an
own link with another flow, or uses two own links, makes the network *general*: from then on devices'
own links are shared by the rule ``Filling``, as all other links are.

``Network`` inherits ``RunningFlows``, which starts flows on their links. That class inherits
``PresentRates``, which has the rates of links now, and ``PresentRates`` inherits ``Endpoints``, which
has the routes, latencies and rates of the scenario.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from operator import attrgetter
from typing import Any, cast

from fedsim.clock.simulation import Alarm, Simulation, on_grid, on_grid_after, tie_s
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import SimulationError
from fedsim.world.network.endpoints import SERVER, Direction, Infrastructure
from fedsim.world.network.filling import Filling, Sharing
from fedsim.world.network.flow import Flow
from fedsim.world.network.protocol import PLAIN, Transport
from fedsim.world.network.running import RunningFlows
from fedsim.world.network.standstill import PATIENCE_S, standstill_error
from fedsim.world.network.windows import WindowsState

_ID = attrgetter("id")
_NEXT_END = attrgetter("next_end")

# values of ``number`` in alarms of the kind "network"
_WAKEUP = 0
_STANDSTILL = 1


class Network(RunningFlows):
    """Network of flows between any two endpoints, which share links by weighted max-min fairness.

    A user's network is a subclass that defines ``route``, the links between two endpoints. A flow is
    a transfer of bytes from one endpoint to another:

    - It first waits for its latency, in which it uses no link.
    - With slow start, its window then caps its rate, and doubles every round trip. The window is
      removed after a round trip in which it did not limit the flow, or if the doubled window would
      not limit the flow.
    - It ends when its last byte has arrived. A flow whose exact end is at or before the present time
      has ended.

    Sizes and sent bytes count payload. Rates and capacities count all bytes on the wire.

    Args:
        simulation: the clock.
        links: name -> capacity of each shared link (bytes/s), which may be infinite.
        down, up: rates of the devices' own links (bytes/s), above 0, which may be infinite; float64
            [devices].
        latency: one-way propagation delay of each device (s), float64 [devices].
        transport: the protocol, and the random streams from which the weights of flows are drawn.
        edge_latency: latency between each edge server and the server (s); float64 [edge servers].
        edges: index of each device's edge server, int64 [devices]; None without edge servers.
        hosts: names of other endpoints than server, devices and edge servers; their latency is 0.
        sharing: class or function without arguments that returns a new sharing rule, the object that
            computes the rates of the flows on the links.

    Attributes:
        overhead: bytes on the wire for each byte of payload.
        on_shared: function that is called after rates have changed; None for no call.
    """

    def __init__(
        self,
        simulation: Simulation,
        links: Mapping[str, float],
        down: Floats,
        up: Floats,
        latency: Floats,
        transport: Transport = PLAIN,
        *,
        edge_latency: Floats | None = None,
        edges: Ints | None = None,
        hosts: Sequence[str] = (),
        sharing: Callable[[], Sharing] = Filling,
    ) -> None:
        built = Infrastructure(links, down, up, latency, transport, edge_latency, edges, hosts)
        super().__init__(simulation, built, sharing)
        self._env = simulation.env
        # functions that set these alarms again in a resumed run
        self._env.declare_alarm("network", self._set_network_alarm, in_background=True)
        self._env.declare_alarm("latency", self._set_latency_alarm, in_background=True)
        self.on_shared: Callable[[], None] | None = None  # called when rates have changed
        self.overhead = self._protocol.overhead
        self._weighs = self._protocol.weighs  # whether the protocol draws weights of flows

        self._started = 0  # count of flows so far; the next ID
        self._flows: dict[int, Flow] = {}  # flow ID -> flow that has not ended
        self._in_latency: dict[int, Alarm] = {}  # flow ID -> alarm at the end of its latency
        # destination -> count of flows to it, except from the server; kept only if flows have
        # weights
        self._uploads: Counter[int] = Counter()

        # changes since the last ``share_links``
        self._is_sharing_due = False  # whether the next ``share_links`` is due in this instant
        self._entering: dict[int, Flow] = {}  # flow ID -> flow whose latency is over
        self._leaving: list[Flow] = []  # cancelled flows
        self._arrived: list[Flow] = []  # ended flows whose ``done`` is still to be called
        self._changed: list[str] = []  # links whose rate has changed
        # Whether two flows may share a device's own link, or a flow uses two such links. ``share_links``
        # then makes the network general: flows share own links by max-min fairness, while before
        # each own link only caps the rate of one flow.
        self._crowded = False

        # endpoints that send or receive a flow, by which ``_crowded`` is found; unused once the
        # network is general
        self._sending: set[int] = set()
        self._receiving: set[int] = set()

        # alarms for the next end of a flow, and for flows that stand still too long
        self._wakeup: Alarm | None = None
        self._standstill: Alarm | None = None

    # changes, which take effect together at the end of the instant

    def send(
        self,
        source: int,
        destination: int,
        size: float,
        done: Callable[[], None],
        waited: float = 0.0,
    ) -> Flow:
        """Start a flow of bytes from one endpoint to another.

        The first byte leaves after the latency. A flow of size 0, or without a link that limits its
        rate, takes only the latency.

        Args:
            source: endpoint ID of the sender.
            destination: endpoint ID of the receiver.
            size: payload (bytes).
            done: function that is called when the last byte has arrived, never during this call.
            waited: time (s) that the bytes have waited for another flow on the same connection,
                which is subtracted from the latency.

        Returns:
            The flow.

        Raises:
            SimulationError: the endpoints are the same, one does not exist, or ``size`` is
                negative or not finite.
        """
        if source == destination:
            raise SimulationError(
                f"endpoint {source} sends to itself; a message goes to another endpoint"
            )
        endpoints = self.endpoints
        if not (SERVER <= source < endpoints and SERVER <= destination < endpoints):
            unknown = destination if SERVER <= source < endpoints else source
            raise SimulationError(
                f"there is no endpoint {unknown}; allowed are {SERVER} (the server) to "
                f"{endpoints - 1}"
            )
        if not 0 <= size < math.inf:
            raise SimulationError(
                f"a transfer of {size!r} bytes: the size must be finite and not negative"
            )
        now = self._simulation.now
        wire = size * self.overhead
        weight = 1.0
        if self._weighs:
            weight = self._weight(source, destination)
            if source != SERVER:
                self._uploads[destination] += 1
        flow = self._flows[self._started] = Flow(
            self._started, source, destination, size, now, done, wire, weight
        )
        self._started += 1
        if not self._general:
            self._occupy_links(source, destination)
        latency = self.present_latency_s(source, destination)
        if waited:
            latency = on_grid(latency - waited)
        if latency > 0:
            self._set_latency_alarm(flow.id, now + latency)
        else:
            self._entering[flow.id] = flow
            self._share_later()
        return flow

    def _occupy_links(self, source: int, destination: int) -> None:
        """Register a flow's use of its devices' own links; make the network general if necessary.

        It is necessary if two flows may share an own link, or if a flow uses two own links. In a
        general network own links are shared by max-min fairness, instead of being caps of flows.
        """
        # ``_sending`` and ``_receiving``: endpoints with a flow from them, or to them
        is_from_device = 0 <= source < self.devices
        is_to_device = 0 <= destination < self.devices
        uses_two_links = is_from_device and is_to_device
        shares_up = is_from_device and source in self._sending
        shares_down = is_to_device and destination in self._receiving
        if uses_two_links or shares_up or shares_down:
            self._crowded = True
            self._share_later()
        self._sending.add(source)
        self._receiving.add(destination)

    def _admit(self, flow: Flow) -> None:
        del self._in_latency[flow.id]
        self._entering[flow.id] = flow
        self._share_later()

    def _share_later(self) -> None:
        if not self._is_sharing_due:
            self._is_sharing_due = True
            self._simulation.call_after_changes(self.share_links)

    def cancel(self, flow: Flow) -> None:
        """Cancel a flow; it sends no more bytes, and its ``done`` is never called.

        Has no effect on a flow that has ended, or that ends at this instant.

        Args:
            flow: the flow.
        """
        now = self._simulation.now
        self._advance(now)
        if flow.ended is not None:
            return
        sent = 0.0  # bytes of payload
        if flow.id in self._running:
            sent = self._payload(flow, self._rule(flow).sent(flow.id, now))
            del self._running[flow.id]
            self._leaving.append(flow)  # ``share_links`` removes it from its sharing rule
            self._share_later()
        elif flow.id in self._in_latency:
            self._in_latency.pop(flow.id).cancel()
        else:  # the latency is over in this instant
            del self._entering[flow.id]
        self._end(flow, now, sent)

    def finish(self, flow: Flow) -> bool:
        """End a flow if all of its bytes have arrived by now, within the rounding of times.

        The function ``done`` of the flow is not called.

        Args:
            flow: the flow.

        Returns:
            Whether all bytes of the flow have arrived.
        """
        now = self._simulation.now
        self._advance(now)
        if flow.id in self._running:
            rule = self._rule(flow)
            # ``wire``: all bytes of the flow, with headers; ``tie_s``: the difference up to which
            # two times count as equal
            is_due = flow.wire - rule.sent(flow.id, now) <= rule.rate(flow.id) * tie_s(now)
        elif flow.id in self._in_latency:
            takes_no_time = flow.size == 0 or self._is_unlimited(flow)
            is_due = takes_no_time and self._in_latency[flow.id].when <= now + tie_s(now)
        else:  # the flow has ended, or its latency is over in this instant
            return flow.sent == flow.size
        if is_due:
            self.cancel(flow)
            flow.sent = flow.size
        return is_due

    def limit(self, link: str, rate: float | None) -> None:
        """Limit the rate of a link from the present time on, or end such a limit.

        Args:
            link: name of the link.
            rate: the new rate (bytes/s), 0 allowed; for a link with a trace, an upper bound. None
                ends an earlier limit, so that the link has the rate of the scenario or trace again.
        """
        self._advance(self._simulation.now)
        if rate is None:
            del self.limits[link]
        else:
            self.limits[link] = rate
        self._changed.append(link)
        self._share_later()

    def share_links(self) -> None:
        """Compute the new rates of flows after all changes of flows and links at the present time.

        The clock calls this method once at the end of an instant with such changes. The method also
        sets the alarm for the next end of a flow, and calls ``on_shared``.

        When flows first share a device's own link, the network becomes *general* for the rest of the
        run: one rule shares all links. Until then each own link is only a cap on one flow.
        """
        self._is_sharing_due = False
        now = self._simulation.now
        self._advance(now)
        # The order: running flows and links are first updated under the present sharing rules; then
        # all flows may move to the rule of a general network; new flows enter the final rules;
        # rates are computed last, once for all changes.
        becomes_general = self._crowded and not self._general
        sent: dict[int, float] = {}  # flow ID -> bytes sent by now, before updates can round them
        if becomes_general:
            for flow in self._running.values():
                sent[flow.id] = self._rule(flow).sent(flow.id, now)
        if self._slow_start:
            self._widen(now)
        for flow in self._leaving:
            self._rule(flow).leave(flow.id, now)
        self._leaving.clear()
        if self.traces is not None:
            self._follow_traces(self.traces, now)
        if self._changed:
            self._change_links(now)
        if becomes_general:
            self._become_general(sent, now)
        if self._entering:
            self._start_entering(now)
        for rule in self._rules:
            if rule.changed:
                rule.share(now)
        self._set_alarm(now)
        if self.on_shared is not None:
            self.on_shared()

    def _become_general(self, sent: Mapping[int, float], now: float) -> None:
        """Move all running flows to a new sharing rule, which also shares the devices' own links.

        Args:
            sent: flow ID -> bytes on the wire that the flow has sent by now.
            now: the time (s).
        """
        self._general = True
        self._rules = [self._sharing()]
        for flow in self._running.values():
            self._enter(flow, self._cap(flow), now, min(max(sent[flow.id], 0.0), flow.wire))

    def _start_entering(self, now: float) -> None:
        """Start the flows whose latency is over; flows that no link limits end immediately."""
        for flow in self._entering.values():
            # the window comes first, because it limits the cap
            if self._slow_start and flow.size > 0:
                round_trip = self.round_trip_s(flow.source, flow.destination)
                self._windows.start(flow.id, self._own_rate(flow), round_trip, now)
            cap = self._cap(flow)  # rate that own links and the window allow
            if flow.size == 0 or (cap == math.inf and self._is_unlimited(flow)):
                self._arrive(flow, now)
            else:
                self._running[flow.id] = flow
                if self.traces is not None:
                    self._use_traces(self.traces, flow, now)
                self._enter(flow, cap, now)
        self._entering.clear()

    def _change_links(self, now: float) -> None:
        """Set the present rates of the links whose rate has changed.

        A flow that no link limits any more ends immediately.
        """
        unlimited = [flow for flow in self._running.values() if self._is_unlimited(flow)]
        for flow in unlimited:
            self._rule(flow).leave(flow.id, now)
            self._arrive(self._running.pop(flow.id), now)
        # name of a device's own link -> flow whose rate the link caps; empty in a general network,
        # in which flows share own links instead
        capped: dict[str, Flow] = {}
        if not self._general:
            for flow in self._running.values():
                for link, _ in self.own_links(flow.source, flow.destination):
                    capped[link] = flow
        for link in dict.fromkeys(self._changed):  # a link that has changed twice is visited once
            if link in capped:
                flow = capped[link]
                self._rule(flow).recap(flow.id, flow.wire, self._cap(flow), now)
            else:
                self._set_capacity(link, now)
        self._changed.clear()

    def _weight(self, source: int, destination: int) -> float:
        """Draw the weight of a flow that begins now, by which links are divided among flows.

        The draw depends on the device and on the count of the device's earlier flows.

        Args:
            source, destination: IDs of the endpoints.
        """
        # IDs from 0 to ``devices`` - 1 are devices, the IDs from ``devices`` on are edge servers
        # and other hosts; a transfer from these to a device is a download too
        is_to_device = 0 <= destination < self.devices
        is_from_host = source >= self.devices
        comes_down = source == SERVER or (is_from_host and is_to_device)
        direction: Direction = "down" if comes_down else "up"
        device = destination if comes_down else source
        count = self._transfers.get(device, 0)
        round_trip = 2 * self._exact_latency_s(source, destination) + self._protocol.round_trip
        weight = self._protocol.weight(self._streams, device, count, round_trip, direction)
        self._transfers[device] = count + 1
        # An upload that begins beside others has a lower weight, as running uploads keep their
        # share (docs/time.md).
        if direction == "up" and self._uploads[destination]:
            return weight * self._protocol.late_weight
        return weight

    # queries, which do not change the network

    def sent(self, flow: Flow) -> float:
        """Return how many bytes of a flow's payload have arrived by now.

        Changes of flows or links at the present time do not affect the result.

        Args:
            flow: the flow.
        """
        if flow.id not in self._running:  # the flow has ended, or has sent nothing yet
            return flow.sent
        rule = self._as_of_now(flow)
        if rule is None:  # the flow ends now
            return flow.size
        return self._payload(flow, rule.sent(flow.id, self._simulation.now))

    def rate(self, flow: Flow) -> float:
        """Return the present rate of a flow (bytes on the wire/s); 0 if none of its bytes moves.

        Changes at the present time count from the next call of ``share_links`` on.

        Args:
            flow: the flow.
        """
        rule = self._as_of_now(flow) if flow.id in self._running else None
        return 0.0 if rule is None else rule.rate(flow.id)

    def _as_of_now(self, flow: Flow) -> Sharing | None:
        """Return the sharing rule of a flow, advanced to the present time, for a query.

        If a flow of the rule has ended since the last ``share_links``, an advanced copy is returned, because
        a query must not change the rule. The result is None if the queried flow has ended.
        """
        rule = self._rule(flow)
        now = self._simulation.now
        if rule.next_end > now:
            return rule
        rule = deepcopy(rule)
        ended = {flow_id for _, flow_id in rule.advance(now)}
        return None if flow.id in ended else rule

    def _payload(self, flow: Flow, wire: float) -> float:
        return min(max(wire / self.overhead, 0.0), flow.size)

    def _advance(self, now: float) -> None:
        for rule in self._rules:
            if rule.next_end > now:
                continue
            for end, flow_id in rule.advance(now):
                self._arrive(self._running.pop(flow_id), end)
            if not rule.next_end > now:  # true for NaN too
                raise SimulationError(
                    f"the sharing rule {type(rule).__name__} was advanced to {now!r} s, and says "
                    f"that the next end of a flow is {rule.next_end!r} s; allowed is a later time"
                )

    def _arrive(self, flow: Flow, end: float) -> None:
        """End a flow whose last byte has arrived; the next alarm calls its ``done``."""
        self._arrived.append(flow)
        self._end(flow, end, flow.size)

    def _end(self, flow: Flow, end: float, sent: float) -> None:
        """Mark a flow as ended, and remove it from the registers, except ``_running``.

        Args:
            flow: the flow, complete or cancelled.
            end: time of its end (s).
            sent: payload that has arrived (bytes).
        """
        flow.ended = end
        flow.sent = sent
        if self._slow_start:
            self._windows.close(flow.id)
        if self.traces is not None:
            self.traces.end(flow.id)
        del self._flows[flow.id]
        if self._weighs and flow.source != SERVER:  # ``_uploads``: count of flows by destination
            self._uploads[flow.destination] -= 1
        self._sending.discard(flow.source)
        self._receiving.discard(flow.destination)

    # state for checkpoints, and alarms that a resumed run sets again

    def snapshot(self) -> dict[str, Any]:
        """Return the state of all flows and links for a checkpoint; ``restore`` sets it again."""
        return {
            "started": self._started,
            "flows": self._flows,
            "running": list(self._running),
            "general": self._general,
            "transfers": self._transfers,
            **self._windows.snapshot(),
            "limits": self.limits,
            "rules": [vars(rule) for rule in self._rules],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state, except alarms, and except ``Flow.done``, which each sender sets.

        Args:
            state: a snapshot of the network.
        """
        self._started = state["started"]  # count of flows so far
        self._flows = state["flows"]
        self._general = state["general"]
        # the saved order is kept, because flows are updated in this order
        self._running = {flow_id: self._flows[flow_id] for flow_id in state["running"]}
        uploads = [flow for flow in self._flows.values() if flow.source != SERVER]
        self._uploads = Counter(flow.destination for flow in uploads)
        self._transfers = state["transfers"]
        self._windows.restore(cast(WindowsState, state))
        self.limits = state["limits"]
        # the rules must be of the saved rules' classes before they get the saved attributes
        if self._general and self._queues is None:
            self._rules = [self._sharing()]
        for rule, saved in zip(self._rules, state["rules"], strict=True):
            vars(rule).update(saved)
        if not self._general:
            for flow in self._flows.values():
                self._occupy_links(flow.source, flow.destination)
        if self.traces is not None:
            for flow in self._running.values():
                self.traces.begin(flow.id, self._traced_names(flow), self._simulation.now)

    def _set_latency_alarm(self, number: int, when: float) -> None:
        """Set the alarm at ``when`` (s), at which the first byte of the flow ``number`` leaves."""
        self._in_latency[number] = self._env.at(
            ("latency", number), when, partial(self._admit, self._flows[number])
        )

    def _set_network_alarm(self, number: int, when: float) -> None:
        """Set the alarm ``number`` at ``when`` (s): the next end of a flow, or a standstill."""
        name = ("network", number)
        if number == _STANDSTILL:
            self._standstill = self._env.at(name, when, self._refuse_standstill)
        else:
            self._wakeup = self._env.at(name, when, self._notify_ended)

    def _watch_standstill(self, when: float) -> None:
        """Set the alarm at which a standstill of all flows ends the run; cancel it if a flow moves.

        Args:
            when: next end of a flow or window (s); infinity in a standstill.
        """
        stands = when == math.inf and bool(self._running)  # flows run, and none will end
        if stands and self._standstill is None:
            self._set_network_alarm(_STANDSTILL, self._simulation.now + PATIENCE_S)
        elif not stands and self._standstill is not None:
            self._standstill.cancel()
            self._standstill = None

    def _refuse_standstill(self) -> None:
        routes = [
            f"{self.name(flow.source)} to {self.name(flow.destination)}"
            for flow in self._running.values()
        ]
        rules = {type(rule).__name__ for rule in self._rules}
        now = self._simulation.now
        dead_links = [] if self.traces is None else self.traces.dead_links(now)
        raise standstill_error(routes, rules, now - PATIENCE_S, dead_links)

    def _set_alarm(self, now: float) -> None:
        """Set the network's alarm to its next event, or to ``now`` (s) if a flow has just ended.

        Events are the end of a flow, of a slow-start window's round trip, and a change of a trace.
        """
        when = now  # if flows have ended, an alarm at ``now`` calls their ``done``
        if not self._arrived:
            when = on_grid_after(min(map(_NEXT_END, self._rules)))
        if self._slow_start:
            when = min(when, self._windows.next_end())
        # Traces come later: a standstill is watched although a trace will change, as the change may
        # let no flow move.
        if when == math.inf or self._standstill is not None:
            self._watch_standstill(when)
        if self.traces is not None:
            when = min(when, self.traces.next_change())
        if self._wakeup is not None:
            if self._wakeup.when == when:
                return  # the present alarm is right
            self._wakeup.cancel()
        self._wakeup = None
        if when < math.inf:
            self._set_network_alarm(_WAKEUP, when)

    def _notify_ended(self) -> None:
        """Call ``done`` of all flows that have ended by now, in the order of their starts."""
        self._wakeup = None
        self._advance(self._simulation.now)
        arrived = sorted(self._arrived, key=_ID)
        self._arrived = []
        self._share_later()
        for flow in arrived:
            flow.done()
