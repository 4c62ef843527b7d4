"""Edge servers as a strategy's server code uses them."""
# ruff: noqa: A002 - a round is called ``round``

from typing import TYPE_CHECKING, cast

from fedsim.common.arguments import INDEX, ArgumentRule, is_index, optional, takes
from fedsim.federation.argument_rules import CONTENTS, DIRECTION, MODEL, device_of
from fedsim.federation.contents import Contents
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import Direction

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch


def _count_devices(edges: object) -> int:
    return cast(ServerEdges, edges)._dispatch.messages.network.devices


def _allow_edges(edges: object) -> str:
    count = cast(ServerEdges, edges).count
    if count:
        return f"an edge server of 0 to {count - 1}"
    return "none, as the network has no edge servers (network.edge)"


_DEVICE = device_of(_count_devices)
_EDGE = ArgumentRule(
    lambda edges, value: is_index(value) and cast(int, value) < cast(ServerEdges, edges).count,
    _allow_edges,
)


class ServerEdges:
    """The edge servers of a network, as a strategy's code on the server sees them (``Server.edges``).

    They have IDs from 0. ``of`` returns the edge server of a device, ``has`` whether an edge server
    is present, and ``carry`` sends a message to or from it. A strategy that uses edge servers sets
    ``Traits.at_edges``, and asks devices by ``Server.ask(..., at_edge=True)``.

    A call with a wrong argument raises ``SimulationError``, which names the argument and its value.
    """

    def __init__(self, dispatch: "Dispatch") -> None:
        self._dispatch = dispatch

    @property
    def count(self) -> int:
        """Count of edge servers; 0 if the network has none."""
        return self._dispatch.messages.edges

    @takes(device=_DEVICE)
    def of(self, device: int) -> int:
        """Return the edge server of a device.

        Args:
            device: ID of a device, in a network that has edge servers.

        Returns:
            The ID of the edge server.

        Raises:
            SimulationError: the device does not exist, or the network has no edge servers.
        """
        return self._dispatch.messages.edge_of(device)

    @takes(edge=_EDGE)
    def has(self, edge: int) -> bool:
        """Return whether an edge server is present; a lost one (``Strategy.on_edge_lost``) is not.

        Args:
            edge: ID of an edge server.
        """
        return edge not in self._dispatch.messages.lost

    @takes(
        edge=_EDGE,
        contents=CONTENTS,
        direction=DIRECTION,
        round=optional(INDEX),
        start=optional(MODEL),
    )
    def carry(
        self,
        edge: int,
        contents: Contents,
        direction: Direction,
        *,
        round: int | None = None,
        start: Ref | None = None,
    ) -> None:
        """Send a message between the server and an edge server.

        ``Strategy.on_carried`` is called once when the message has ended.

        Args:
            edge: ID of an edge server.
            contents: the contents by name.
            direction: ``"down"`` to the edge server, ``"up"`` from the edge server.
            round: the round for which the message is sent; None if it is sent for no round.
            start: the model, known to both sides, from which the models in ``contents`` were
                trained; None if there is no such model.

        Raises:
            SimulationError: the edge server does not exist, or still has a message in this
                direction under way.
        """
        self._dispatch.edge_channel.carry(edge, contents, direction, round, start)
