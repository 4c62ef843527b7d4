"""A link that fails from time to time."""

from collections.abc import Generator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.language.units import BytesPerSecond, PositiveSeconds
from fedsim.world.processes.base import Process
from fedsim.world.processes.world import World


class LinkOutage(Process):
    """A link carries nothing, or less, for a while, again and again.

    Attributes:
        link: its name: ``server up``, ``cell 3 down``, ``device 7 up``, or that of an edge of a graph, ``a -> b``.
        every: from the end of an outage, or the beginning of the run, to the next one (s).
        lasts: how long each takes (s).
        random: whether these two are means of exponential times, or always the same.
        rate: what the link carries meanwhile (bytes/s).
    """

    restorable: ClassVar[bool] = True

    kind: Literal["link-outage"] = "link-outage"
    link: str
    every: PositiveSeconds
    lasts: PositiveSeconds
    random: bool = True
    rate: Annotated[BytesPerSecond, Field(ge=0)] = 0.0

    def check(self, world: World) -> None:
        """Is there such a link?"""
        world.rate(self.link)

    def run(self, world: World) -> Generator[Any, Any, Any]:
        """Wait, fail, and so on."""
        state = world.state
        if not state:
            state |= {"outages": 0, "failed": False, "until": self._after(world, "every", 0)}
        while True:
            if not state["failed"]:
                yield world.until(state["until"])
                state |= {"failed": True, "until": self._after(world, "lasts", state["outages"])}
            with world.limit(self.link, self.rate):
                yield world.until(state["until"])
            number = state["outages"] + 1
            state |= {"outages": number, "failed": False, "until": self._after(world, "every", number)}

    def _after(self, world: World, what: Literal["every", "lasts"], number: int) -> float:
        mean: float = getattr(self, what)
        return world.now + (world.rng(what, number).exponential(mean) if self.random else mean)
