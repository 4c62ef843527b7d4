"""An edge server that fails from time to time."""

from typing import Literal

from pydantic import Field

from fedsim.world.processes.link_outage import Outage
from fedsim.world.processes.world import Hold, World


class EdgeOutage(Outage):
    """An edge server is not there for a while, again and again.

    Attributes:
        edge: its number.
        work: what becomes of the work of its devices. ``wasted``: the edge server crashes: what it holds is lost, and what its
            devices do for it ends. ``waits``: it is cut off: nothing comes to it or leaves it until it is back.
    """

    kind: Literal["edge-outage"] = "edge-outage"
    edge: int = Field(ge=0)
    work: Literal["wasted", "waits"] = "wasted"

    def check(self, world: World) -> None:
        """Is there such an edge server?"""
        world.rate(self._links[0])

    def fail(self, world: World) -> list[Hold]:
        """It is lost, or its own links carry nothing."""
        return [world.lose(self.edge)] if self.work == "wasted" else [world.limit(link, 0.0) for link in self._links]

    @property
    def _links(self) -> list[str]:
        return [f"edge {self.edge} receive", f"edge {self.edge} send"]
