"""Messages outside of tasks: of edge servers, between devices, and of processes.

A record is emitted at the end of each message: of the kind ``edge-transfer`` between the server and
an edge server, otherwise of the kind ``message``. A message ends as ``lost`` if its sender or
receiver becomes unavailable before its last byte has arrived. The bytes sent until then are counted.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from fedsim.clock.environment import CUT, Alarm
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import SimulationError
from fedsim.common.saved import saved
from fedsim.world.network.endpoints import SERVER, Direction, ends
from fedsim.world.network.flow import Flow
from fedsim.world.network.flows import Network
from fedsim.world.steps import Outcome, Payload


@saved(omit=("alarm", "on_end"))
@dataclass(slots=True, eq=False)
class Message:
    """Message under way that belongs to no device's task, such as from edge server to server.

    Attributes:
        id: ID of the message.
        source, destination: IDs of the endpoints.
        payloads: parts of the message, each with a purpose and a size.
        round: index of the round for which the message is sent; None if for no round.
        start: time of its start (s).
        flow: transfer of its bytes; None if the sender or receiver was unavailable at the start.
        alarm: alarm that rings when the sender or receiver becomes unavailable.
        on_end: function that is called with the message and its outcome.
    """

    id: int
    source: int
    destination: int
    payloads: tuple[Payload, ...]
    round: int | None
    start: float
    flow: Flow | None = None
    alarm: Alarm | None = None
    on_end: "OnEnd | None" = None

    @property
    def size(self) -> float:
        return float(sum([part.bytes for part in self.payloads]))


OnEnd = Callable[[Message, Outcome], None]


class MessagesState(TypedDict):
    """State of ``Messages`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        off: indices of the edge servers that are lost.
        under_way: message ID -> message, for all messages that have not ended.
        sent: count of all messages so far.
    """

    off: list[int]
    under_way: dict[int, Message]
    sent: int


class Messages:
    """Sender of messages outside of devices' tasks, such as from edge servers or between devices.

    Args:
        simulation: the clock.
        network: network that transfers the bytes.
        edges: count of edge servers.
        on_edge_lost: function that is called with the index of a lost edge server, before the
            messages of that edge server end.

    Attributes:
        reachable_until: function of an endpoint's ID that returns the time (s) at which the endpoint
            becomes unavailable; ``TaskRunner`` sets it.
        under_way: message ID -> message, for all messages that have not ended.
        lost: indices of the edge servers that are lost now.
    """

    def __init__(
        self,
        simulation: Simulation,
        network: Network,
        edges: int,
        on_edge_lost: Callable[[int], None],
    ) -> None:
        self.simulation = simulation
        self.network = network
        self.edges = edges
        self._on_edge_lost = on_edge_lost
        # endpoint ID -> time until which it can be reached (s); ``TaskRunner`` sets this function
        self.reachable_until: Callable[[int], float]
        self.under_way: dict[int, Message] = {}  # message ID -> message
        self.lost: set[int] = set()  # indices of the edge servers that have failed
        self._sent = 0  # count of messages so far; the ID of the next one
        simulation.env.declare_alarm("cut", self._set_cut, in_background=True)

    def send(
        self,
        source: int,
        destination: int,
        payloads: tuple[Payload, ...],
        number: int | None,
        on_end: OnEnd | None = None,
        waited: float = 0.0,
    ) -> Message:
        """Start to send a message; it is lost immediately if sender or receiver is unavailable.

        Args:
            source: endpoint ID of the sender.
            destination: endpoint ID of the receiver.
            payloads: the parts of the message.
            number: index of the round for which the message is sent; None if for no round.
            on_end: function that is called once, after this call, with the message and its outcome.
            waited: time that the message waited behind another message on the same connection (s);
                see ``Network.send``.
        """
        now = self.simulation.now
        until = min(self.reachable_until(source), self.reachable_until(destination))
        message = Message(self._sent, source, destination, payloads, number, now, on_end=on_end)
        self.under_way[message.id] = message
        self._sent += 1
        # An endpoint is unavailable: the message ends after this call, so that the caller has the
        # message before.
        if until <= now:
            self.simulation.env.call(partial(self._end, message, "lost"))
            return message
        message.flow = self.network.send(
            source, destination, message.size, partial(self._end, message, "done"), waited
        )
        if until < math.inf:  # sender or receiver may become unavailable before the message ends
            self._set_cut(message.id, until)
        return message

    def edge_of(self, device: int) -> int:
        """Return the index of the edge server through which a device reaches the server.

        Raises:
            SimulationError: the network has no edge servers.
        """
        if self.network.edges is None:
            raise SimulationError("the network has no edge servers; give it some by network.edge")
        return self.network.edges.item(device)

    def carry(
        self,
        edge: int,
        direction: Direction,
        payloads: tuple[Payload, ...],
        number: int | None,
        on_end: OnEnd,
    ) -> Message:
        """Start to send a message between an edge server and the server.

        Args:
            edge: index of the edge server.
            direction: ``"down"`` to the edge server, ``"up"`` from it.
            payloads: the parts of the message.
            number: index of the round for which the message is sent; None if for no round.
            on_end: function that is called once, after this call, with the message and its outcome.

        Raises:
            SimulationError: the edge server does not exist, or has an unfinished message in this
                direction.
        """
        if not 0 <= edge < self.edges:
            raise SimulationError(
                f"there is no edge server {edge}; allowed are 0 to {self.edges - 1}"
            )
        edge_endpoint = self.network.devices + edge
        route = ends(edge_endpoint, direction)  # IDs of sender and receiver
        busy_routes = {(message.source, message.destination) for message in self.under_way.values()}
        if route in busy_routes:
            raise SimulationError(
                f"edge server {edge} has a message {direction} on its way; it has one at a "
                "time each way"
            )
        return self.send(*route, payloads, number, on_end)

    def lose_edge(self, edge: int) -> None:
        """Mark an edge server as failed, report it by ``on_edge_lost``, and end its messages.

        Messages to and from the edge server that are not complete end as ``lost``.

        Args:
            edge: index of the edge server.
        """
        self.lost.add(edge)
        self._on_edge_lost(edge)
        self.lose(self.network.devices + edge)

    def lose(self, endpoint: int) -> None:
        """End the incomplete messages to and from an endpoint as ``lost``."""
        messages = list(self.under_way.values())
        for message in messages:
            if endpoint in (message.source, message.destination):
                self.cut(message, "lost")

    def cut(self, message: Message, outcome: Outcome) -> None:
        """End a message now as ``outcome``, or as ``done`` if all of its bytes have arrived."""
        flow = message.flow
        if flow is not None and message.id in self.under_way:
            self.network.cancel(flow)
            arrived = flow.sent == flow.size and self.simulation.now > message.start
            self._end(message, "done" if arrived else outcome)

    def delivered(self, message: Message) -> float:
        """Return how many bytes of a message have arrived by now."""
        return 0.0 if message.flow is None else self.network.sent(message.flow)

    def end_all(self) -> None:
        for message in list(self.under_way.values()):
            self.cut(message, "stopped")

    def _end(self, message: Message, outcome: Outcome) -> None:
        if self.under_way.pop(message.id, None) is None:
            return
        if message.alarm is not None:
            message.alarm.cancel()
        self._record_end(message, outcome)
        if message.on_end is not None:
            message.on_end(message, outcome)

    def _record_end(self, message: Message, outcome: Outcome) -> None:
        """Record a message; between the server and an edge server its kind is ``edge-transfer``."""
        network = self.network
        source = message.source
        destination = message.destination
        delivered = self.delivered(message)
        # the server has the lowest ID of all, so the greater ID is that of the other endpoint
        edge = network.edge_at(max(source, destination))
        fields: dict[str, object] = {"round": message.round}
        if edge is not None and SERVER in (source, destination):
            kind = "edge-transfer"
            fields["edge"] = edge
            fields["direction"] = "down" if source == SERVER else "up"
        else:
            kind = "message"
            fields["source"] = network.name(source)
            fields["destination"] = network.name(destination)
        fields["start"] = message.start
        fields["outcome"] = outcome
        fields["bytes"] = message.size
        fields["delivered"] = delivered
        fields["payloads"] = message.payloads
        if network.overhead != 1:
            fields["wire_bytes"] = delivered * network.overhead
        self.simulation.record(kind, fields)

    # state for checkpoints, and alarms that a resumed run sets again

    def snapshot(self) -> MessagesState:
        return {"off": sorted(self.lost), "under_way": self.under_way, "sent": self._sent}

    def restore(self, state: MessagesState) -> None:
        self.lost = set(state["off"])
        self.under_way = state["under_way"]
        self._sent = state["sent"]
        for message in self.under_way.values():
            message.alarm = message.on_end = None
            if message.flow is not None:
                message.flow.done = partial(self._end, message, "done")

    def _set_cut(self, number: int, when: float) -> None:
        """Set the alarm at ``when`` (s), at which the message ``number`` is lost."""
        message = self.under_way[number]
        message.alarm = self.simulation.wake(
            ("cut", number), when, partial(self.cut, message, "lost"), CUT
        )
