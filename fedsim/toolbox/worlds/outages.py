"""Outages of links and edge servers, again and again, and slots for uploads."""

from collections.abc import Generator
from contextlib import ExitStack
from typing import Annotated, Any, ClassVar, Literal

import simpy
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

    def fail(self, world: "World") -> "list[Hold]":
        """Begin an outage; the holds last until it is over."""
        raise NotImplementedError

    def run(self, world: "World") -> Generator[Any, Any, Any]:
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

    def _after(self, world: "World", what: Literal["every", "lasts"], number: int) -> float:
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

    def check(self, world: "World") -> None:
        world.rate(self.link)

    def fail(self, world: "World") -> "list[Hold]":
        return [world.limit(self.link, self.rate)]


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

    def check(self, world: "World") -> None:
        world.rate(f"edge {self.edge} receive")

    def fail(self, world: "World") -> "list[Hold]":
        if self.work == "wasted":
            return [world.lose(self.edge)]
        return [world.limit(f"edge {self.edge} {way}", 0.0) for way in ("receive", "send")]


class UploadSlots(Process):
    """At most ``slots`` uploads are under way at a time; the others wait, first come, first served."""

    restorable: ClassVar[bool] = True

    kind: Literal["upload-slots"] = "upload-slots"
    slots: int = Field(ge=1)

    def run(self, world: "World") -> Generator[Any, Any, Any]:
        """Uploads queue for a resource of SimPy, from the beginning of the run to its end."""
        world.queue("up", simpy.Resource(world.env, self.slots))
        yield world.env.event()
