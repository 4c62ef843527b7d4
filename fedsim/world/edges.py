"""Edge servers: which of them are lost, and what goes between them and the server.

One that is lost is gone with all that it holds: its messages end ``lost``, and so do the tasks of its devices
(``TaskRunner.lose_edge``).
"""

from collections.abc import Callable, Mapping
from typing import Any

from fedsim.errors import SimulationError
from fedsim.world.messages import Message, Messages, OnEnd
from fedsim.world.network.base import Network
from fedsim.world.network.flow import Direction, ends
from fedsim.world.task import Payload


class Edges:
    """The edge servers of a network, each an endpoint at which what its devices send can be combined.

    Args:
        messages: carries what they send and receive.
        network: how long messages take.
        count: how many edge servers there are.
        on_lost: told of each edge server that is lost, before what was on its way ends.

    Attributes:
        off: those that are lost now.
    """

    def __init__(self, messages: Messages, network: Network, count: int, on_lost: Callable[[int], None]) -> None:
        self.messages, self._network = messages, network
        self.count = count
        self._on_lost = on_lost
        self.off: set[int] = set()

    def of(self, device: int) -> int:
        """The edge server of a device; ``SimulationError`` if there are none."""
        if self._network.edges is None:
            raise SimulationError("the network has no edge servers; give it some by network.edge")
        return self._network.edges.item(device)

    def send(
        self, edge: int, direction: Direction, payloads: tuple[Payload, ...], number: int | None, on_end: OnEnd
    ) -> Message:
        """Send a message of a round between an edge server and the server. One that is lost does not get it.

        ``SimulationError``: there is no such edge server, or it has a message on its way in this direction.
        """
        if not 0 <= edge < self.count:
            raise SimulationError(f"there is no edge server {edge}; allowed are 0 to {self.count - 1}")
        way = ends(self._network.devices + edge, direction)
        if any((other.source, other.destination) == way for other in self.messages.under_way.values()):
            raise SimulationError(f"edge server {edge} has a message {direction} on its way; it has one at a time each way")
        return self.messages.send(*way, payloads, number, on_end)

    def switch_off(self, edge: int) -> None:
        """From now on the edge server is lost, and what is on its way to or from it; not what is there at this instant."""
        self.off.add(edge)
        self._on_lost(edge)
        self.messages.lose(self._network.devices + edge)

    def switch_on(self, edge: int) -> None:
        """The edge server is there again; it holds nothing."""
        self.off.discard(edge)

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """All that must be remembered; ``restore`` takes it back."""
        return {"off": sorted(self.off), **self.messages.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what ``snapshot`` gave, after the network has."""
        self.off = set(state["off"])
        self.messages.restore(state)
