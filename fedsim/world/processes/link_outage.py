"""A link that fails from time to time."""

from collections.abc import Generator
from contextlib import ExitStack
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.language.units import BytesPerSecond, PositiveSeconds
from fedsim.world.processes.base import Process
from fedsim.world.processes.world import Hold, World


class Outage(Process):
    """The base of what fails for a while, again and again.

    Attributes:
        every: from the end of an outage, or the beginning of the run, to the next one (s).
        lasts: how long each takes (s).
        random: whether these two are means of exponential times, or always the same.
    """

    restorable: ClassVar[bool] = True

    every: PositiveSeconds
    lasts: PositiveSeconds
    random: bool = True

    def fail(self, world: World) -> list[Hold]:
        """What an outage does, until it is over."""
        raise NotImplementedError

    def run(self, world: World) -> Generator[Any, Any, Any]:
        """Wait, fail, and so on."""
        state = world.state
        if not state:
            state |= {"outages": 0, "failed": False, "until": self._after(world, "every", 0)}
        while True:
            if not state["failed"]:
                yield world.until(state["until"])
                state |= {"failed": True, "until": self._after(world, "lasts", state["outages"])}
            with ExitStack() as held:
                for hold in self.fail(world):
                    held.enter_context(hold)
                yield world.until(state["until"])
            number = state["outages"] + 1
            state |= {"outages": number, "failed": False, "until": self._after(world, "every", number)}

    def _after(self, world: World, what: Literal["every", "lasts"], number: int) -> float:
        mean: float = getattr(self, what)
        return world.now + (world.rng(what, number).exponential(mean) if self.random else mean)


class LinkOutage(Outage):
    """A link carries nothing, or less, for a while, again and again.

    Attributes:
        link: its name: ``server up``, ``cell 3 down``, ``device 7 up``, ``edge 1 receive``, or that of an edge of a graph,
            ``a -> b``.
        rate: what the link carries meanwhile (bytes/s).
    """

    kind: Literal["link-outage"] = "link-outage"
    link: str
    rate: Annotated[BytesPerSecond, Field(ge=0)] = 0.0

    def check(self, world: World) -> None:
        """Is there such a link?"""
        world.rate(self.link)

    def fail(self, world: World) -> list[Hold]:
        """The link is held at the rate."""
        return [world.limit(self.link, self.rate)]
