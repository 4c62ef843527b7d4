"""Edge servers in the hands of a server half: where the network has them, contents can be combined there, on the way."""

from typing import TYPE_CHECKING

from fedsim.federation.contents import Contents
from fedsim.learning.refs import Ref
from fedsim.world.network.flow import Direction

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch


class ServerEdges:
    """The edge servers of a network, by number from 0."""

    def __init__(self, dispatch: "Dispatch") -> None:
        self._dispatch = dispatch

    @property
    def count(self) -> int:
        """Their number; 0 where the network has none."""
        return self._dispatch.edges.count

    def of(self, device: int) -> int:
        """The edge server of a device."""
        return self._dispatch.edges.of(device)

    def has(self, edge: int) -> bool:
        """Whether an edge server is there; one that is lost (``on_edge_lost``) is not."""
        return edge not in self._dispatch.edges.off

    def carry(
        self,
        edge: int,
        contents: Contents,
        direction: Direction,
        *,
        round: int | None = None,  # noqa: A002
        start: Ref | None = None,
    ) -> None:
        """Send contents from the server ``down`` to an edge server, or ``up`` from it; one message at a time each way.

        ``on_carried`` tells how that ended, once. ``start``: the model from which those in contents were trained, which both
        have: a codec that encodes changes needs it.
        """
        self._dispatch.carry(edge, contents, direction, round, start)
