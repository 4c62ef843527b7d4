"""Sharing rule ``Queueing``: congestion windows of senders, and a drop-tail queue before each link.

Flows that share no link, neither directly nor through other flows, do not affect each other. So
flows are divided into components, whose time steps are independent. A change of a flow or a link
interrupts only the planned step of its component.
"""

import math
from collections.abc import Iterable

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.world.network.filling import Route
from fedsim.world.network.queues.congestion import Control
from fedsim.world.network.queues.connections import Connections
from fedsim.world.network.queues.links import UNLIMITED
from fedsim.world.network.queues.queued_flows import LEAST_STEP_S, NewFlow
from fedsim.world.network.queues.step_plan import QueueingRules
from fedsim.world.network.queues.time_steps import LinkComponent


class Queueing:
    """Sharing rule of the window model: flows have congestion windows, and links have queues.

    ``Network`` uses it for ``protocol.model = "window"``. The movement of bytes is planned one time
    step ahead; a change of a flow or a link cuts the planned step short. Before a method with an
    argument ``now`` is called, ``advance`` must be called with this time.

    Args:
        rules: congestion control, queues and packets.

    Attributes:
        next_end: next time at which a flow or a planned step ends (s).
        changed: whether flows or links have changed since the last ``share``.
        components: the running flows, in sets that share no link with each other.
        connections: congestion windows and related values that senders keep after a flow, for their
            next flow to the same receiver.
        steps: count of planned steps so far.
        cuts: count of planned steps that were cut short.
    """

    def __init__(self, rules: QueueingRules) -> None:
        self._rules = rules
        self.next_end = math.inf
        self.changed = False
        self.components: list[LinkComponent] = []
        self.connections = Connections(rules.initial_window)
        self.steps = 0
        self.cuts = 0

    def begin(
        self,
        flow_id: int,
        size: float,
        now: float,
        route: Route,
        round_trip: float,
        ends: tuple[int, int],
        loss_key: int = 0,
        control: Control | None = None,
    ) -> None:
        """Add a flow, with the congestion window that the connection of its endpoints has now.

        Args:
            flow_id: ID of the flow.
            size: bytes of the flow on the wire.
            now: the time (s).
            route: name and capacity (bytes/s) of each of its links, in the order in which its
                bytes pass them.
            round_trip: round trip on empty links (s).
            ends: IDs of sender and receiver.
            loss_key: seed of the flow's random losses in queues and on devices' own links.
            control: congestion control of the flow; None for ``rules.control``.
        """
        route = list(route)
        round_trip = max(round_trip, LEAST_STEP_S)
        control = control or self._rules.control
        component = self._component_with([name for name, _ in route], now)
        sender = self.connections.first_state(ends, round_trip, now, control)
        estimates = self.connections.first_estimates(ends, loss_key, sender, now, control)
        flow = NewFlow(flow_id, size, route, ends, loss_key, sender, estimates)
        component.add(flow, now)
        self.changed = True

    def enter(
        self,
        flow_id: int,
        size: float,
        cap: float,
        now: float,
        weight: float = 1.0,
        sent: float = 0.0,
        route: Route = (),
    ) -> None:
        """Add a flow of a new connection, with the least round trip, ``LEAST_STEP_S``.

        ``cap``, ``weight`` and ``sent`` are ignored. ``Network`` does not call this method of the
        interface ``Sharing``, but ``begin``, which takes the endpoints and the round trip.
        """
        # no other flow has these endpoints, so its connection is new
        self.begin(flow_id, size, now, route, round_trip=0.0, ends=(flow_id, flow_id))

    def leave(self, flow_id: int, now: float) -> None:
        component = self._component_of(flow_id)
        self._interrupt(component, now)
        self.connections.memories.update(component.remove(flow_id, now))

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        """Do nothing, as flows have no caps here: devices' own links are links with queues."""

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        for component in self.components:
            if link in component.links.names:
                length = component.links.length_at(link, capacity)
                self._set_link(component, link, capacity, length, now)

    def set_rate(self, link: str, rate: float, now: float) -> None:
        """Change the rate of a link, but not the capacity of its queue.

        Args:
            link: name of the link; links without a flow are ignored.
            rate: the rate (bytes/s), 0 allowed.
            now: the time (s).
        """
        for component in self.components:
            if link in component.links.names:
                length = component.links.length_of(link)
                self._set_link(component, link, rate, length, now)

    def _set_link(
        self, component: LinkComponent, link: str, rate: float, length: float, now: float
    ) -> None:
        rate = min(rate, UNLIMITED)
        if component.links.has(link, rate, length):
            return
        self._interrupt(component, now)
        component.set_link(link, rate, length)

    def set_loss(self, flow_id: int, at_sender: float, at_receiver: float, now: float) -> None:
        """Change the probabilities with which a flow's packets are lost on devices' own links.

        Packets that do not fit into queues are lost in addition.

        Args:
            flow_id: ID of the flow.
            at_sender: probability on the sender's own link, 0 to 1.
            at_receiver: probability on the receiver's own link, 0 to 1.
            now: the time (s).
        """
        component = self._component_of(flow_id)
        if not component.has_loss(flow_id, at_sender, at_receiver):
            self._interrupt(component, now)
            component.set_loss(flow_id, at_sender, at_receiver)

    def set_round_trip(self, flow_id: int, round_trip: float, now: float) -> None:
        """Change the round trip time of a flow, as the latency of its sender or receiver has changed.

        Args:
            flow_id: ID of the flow.
            round_trip: round trip time if all queues are empty (s).
            now: the time (s).
        """
        component = self._component_of(flow_id)
        round_trip = max(round_trip, LEAST_STEP_S)
        if component.round_trip(flow_id) != round_trip:
            self._interrupt(component, now)
            component.set_round_trip(flow_id, round_trip)

    def _component_of(self, flow_id: int) -> LinkComponent:
        return next(component for component in self.components if component.has_flow(flow_id))

    def _component_with(self, names: Iterable[str], now: float) -> LinkComponent:
        """Return the component (flows that share links) to which a new flow over some links belongs.

        All components with one of these links are merged. Without any, a new component is returned.

        Args:
            names: names of the links.
            now: the time (s), up to which the flows are moved.
        """
        connected = []  # components with one of the links
        for component in self.components:
            if not component.links.names.keys().isdisjoint(names):
                self._interrupt(component, now)
                connected.append(component)
        if not connected:
            component = LinkComponent(self._rules)
            self.components.append(component)
            return component
        merged, *others = connected
        for other in others:
            merged.adopt(other)
            self.components.remove(other)
        return merged

    def _interrupt(self, component: LinkComponent, now: float) -> None:
        """End a component's planned step at ``now`` (s), so that flows or links can change."""
        self.cuts += component.is_planned
        self._commit(component, now)
        component.give_up_plan(now)
        self.changed = True

    def _commit(self, component: LinkComponent, now: float) -> None:
        self.connections.memories.update(component.commit(now))

    def _plan(self, components: Iterable[LinkComponent]) -> None:
        """Plan the next step of each component that has no plan.

        A component whose flows no longer share links is first split into several.
        """
        for component in components:
            if component.is_planned:
                continue
            successors = component.split()  # the component itself, if all flows are still connected
            position = self.components.index(component)
            self.components[position : position + 1] = successors
            for successor in successors:
                successor.plan()
            self.steps += len(successors)

    def _find_next_end(self) -> None:
        self.next_end = min([component.next_end for component in self.components], default=math.inf)

    def share(self, now: float) -> None:
        self.changed = False
        self._plan(list(self.components))
        self._find_next_end()

    def advance(self, until: float) -> list[tuple[float, int]]:
        ended: list[tuple[float, int]] = []
        while self.next_end <= until:
            now = self.next_end  # the next end of a flow or of a planned step
            for component in list(self.components):
                if component.next_end > now:
                    continue
                ended.extend(component.take_ended(now))
                if component.is_over(now):
                    self._commit(component, now)
                    self._plan([component])
            self._find_next_end()
        return sorted(ended)

    def sent(self, flow_id: int, at: float) -> float:
        return self._component_of(flow_id).sent(flow_id, at)

    def rate(self, flow_id: int) -> float:
        return self._component_of(flow_id).rate(flow_id)

    def queued(self) -> dict[str, tuple[float, float]]:
        """Return link name -> (bytes that wait in the link's queue, bytes of a full queue)."""
        queues: dict[str, tuple[float, float]] = {}
        for component in self.components:
            for name, waiting, length in component.queued():
                queues[name] = (waiting, length)
        return queues

    def balance(self) -> Floats:
        """Return how many bytes of each flow are unaccounted for; used by tests; float64 [flows].

        Sent bytes are delivered, in queues, on links, or lost, so the result is 0 within rounding.
        """
        balances = [component.balance() for component in self.components]
        return np.concatenate([np.empty(0), *balances])
