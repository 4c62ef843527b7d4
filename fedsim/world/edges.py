"""Edge servers: what goes between them and the server, and which of them are lost.

An edge server is an endpoint of the network, at which what its devices send can be combined. Tasks go to it by
``TaskRunner.start``; here are the messages between it and the server. One that is lost is gone with all that it holds: its
messages end ``lost``, and so do the tasks of its devices (``TaskRunner.lose_edge``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedsim.errors import SimulationError
from fedsim.simulation import Simulation
from fedsim.world.network.base import Network
from fedsim.world.network.flow import Direction, Flow, ends
from fedsim.world.task import Outcome, Payload


def edge_name(edge: int) -> str:
    """What an edge server is called as the sender or receiver of a message."""
    return f"edge {edge}"


@dataclass(slots=True)
class Haul:
    """A message on its way between an edge server and the server.

    Attributes:
        id: counts them from 0.
        edge: whose it is.
        direction: ``down`` to the edge server, ``up`` from it.
        payloads: what it is made of.
        round: the round that it belongs to, or None.
        start: when it was sent (s).
        flow: the transfer; None for one that a lost edge server cannot send or receive.
    """

    id: int
    edge: int
    direction: Direction
    payloads: tuple[Payload, ...]
    round: int | None
    start: float
    flow: Flow | None = None


class Edges:
    """The edge servers of a network.

    Args:
        simulation: the clock.
        network: how long messages take.
        count: how many edge servers there are.
        on_end: told of each message once, when it has ended, and how.
        on_lost: told of each edge server that is lost, before what was on its way ends.

    Attributes:
        count: as given.
        off: those that are lost now.
        hauls: the messages that have not ended, by their numbers.
    """

    def __init__(
        self,
        simulation: Simulation,
        network: Network,
        count: int,
        on_end: Callable[[Haul, Outcome], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._simulation, self._network = simulation, network
        self.count = count
        self._on_end, self._on_lost = on_end, on_lost
        self.off: set[int] = set()
        self.hauls: dict[int, Haul] = {}
        self._sent = 0

    def of(self, device: int) -> int:
        """The edge server of a device.

        Raises:
            SimulationError: there are none.
        """
        if self._network.edges is None:
            raise SimulationError("the network has no edge servers; give it some by network.edge")
        return self._network.edges.item(device)

    def send(self, edge: int, direction: Direction, payloads: tuple[Payload, ...], number: int | None) -> int:
        """Send a message of a round between an edge server and the server; its number. One that is lost does not get it.

        Raises:
            SimulationError: there is no such edge server, or it has a message on its way in this direction.
        """
        if not 0 <= edge < self.count:
            raise SimulationError(f"there is no edge server {edge}; allowed are 0 to {self.count - 1}")
        if any(other.edge == edge and other.direction == direction for other in self.hauls.values()):
            raise SimulationError(f"edge server {edge} has a message {direction} on its way; it has one at a time each way")
        haul = Haul(self._sent, edge, direction, payloads, number, self._simulation.now)
        self._sent += 1
        self.hauls[haul.id] = haul
        if edge in self.off:
            self._simulation.soon(partial(self._end, haul, "lost"))
        else:
            size = float(sum([part.bytes for part in payloads]))
            endpoint = self._network.devices + edge
            haul.flow = self._network.send(*ends(endpoint, direction), size, partial(self._end, haul, "done"))
        return haul.id

    def switch_off(self, edge: int) -> None:
        """From now on the edge server is lost, and what is on its way to or from it; not what is there at this instant."""
        self.off.add(edge)
        self._on_lost(edge)
        for haul in [haul for haul in self.hauls.values() if haul.edge == edge]:
            self._cut(haul, "lost")

    def switch_on(self, edge: int) -> None:
        """The edge server is there again; it holds nothing."""
        self.off.discard(edge)

    def end_all(self) -> None:
        """End every message: the run is over."""
        for haul in list(self.hauls.values()):
            self._cut(haul, "stopped")

    def _cut(self, haul: Haul, outcome: Outcome) -> None:
        flow = haul.flow
        if flow is None:
            return
        self._network.cancel(flow)
        arrived = flow.sent == flow.size and self._simulation.now > haul.start
        self._end(haul, "done" if arrived else outcome)

    def _end(self, haul: Haul, outcome: Outcome) -> None:
        if self.hauls.pop(haul.id, None) is None:
            return
        size = float(sum([part.bytes for part in haul.payloads]))
        delivered = 0.0 if haul.flow is None else haul.flow.sent
        fields: dict[str, Any] = {"round": haul.round, "edge": haul.edge, "direction": haul.direction, "start": haul.start}
        fields |= {"outcome": outcome, "bytes": size, "delivered": delivered, "payloads": haul.payloads}
        if self._network.overhead != 1:
            fields["wire_bytes"] = delivered * self._network.overhead
        self._simulation.record("edge-transfer", fields)
        self._on_end(haul, outcome)

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """All that must be remembered; ``restore`` takes it back."""
        return {"off": sorted(self.off), "hauls": self.hauls, "sent": self._sent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave, after the network has."""
        self.off, self.hauls, self._sent = set(state["off"]), state["hauls"], state["sent"]
        for haul in self.hauls.values():
            if haul.flow is not None:
                haul.flow.done = partial(self._end, haul, "done")
