"""What the network's tests share: transfers that start and are cancelled at given times, played
on any network.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.world.network import SERVER, Direction, Flow, Network, Star, ends
from fedsim.world.network.protocol import PLAIN, Protocol, Transport


@dataclass(frozen=True)
class Send:
    """One transfer: bytes, and seconds.

    ``kill`` is the absolute time of its cancellation; ``at`` the device's partner.
    """

    start: float
    size: float
    kill: float | None = None
    device: int | None = None
    direction: Direction = "up"
    at: int = SERVER


@dataclass
class Played:
    """What came of it: the flow of each transfer, who was told of the end in which order and
    when, and all instants.
    """

    flows: list[Flow]
    told: list[tuple[int, float]] = field(default_factory=list)
    instants: list[float] = field(default_factory=list)


class Listed(Network):
    """A network of a user's own: routes to and from the server from a table, of device i the one
    of number i, around again.
    """

    def __init__(
        self, *how: Any, routes: Mapping[Direction, Sequence[Sequence[str]]], **more: Any
    ) -> None:
        super().__init__(*how, **more)
        self._routes = routes

    def route(self, source: int, destination: int) -> Sequence[str]:
        if SERVER not in (source, destination):
            return ()
        routes = self._routes["down" if source == SERVER else "up"]
        return routes[max(source, destination) % len(routes)]


@dataclass(frozen=True)
class StarWorld:
    """A star, as either class can build it."""

    caps: Sequence[float]
    server: float
    latency: Sequence[float]
    protocol: Protocol = PLAIN.protocol

    @property
    def transport(self) -> Transport:
        return Transport(self.protocol, Streams(1))

    def star(self, simulation: Simulation) -> Network:
        return Star(simulation, *self._columns(), self.server, self.server, self.transport)

    def graph(self, simulation: Simulation) -> Network:
        """The same by the general rule alone."""
        return Listed(
            simulation, {"server down": self.server, "server up": self.server}, *self._columns(), self.transport,
            routes={"down": [["server down"]], "up": [["server up"]]},
        )  # fmt: skip

    def _columns(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        caps = np.array(self.caps, dtype=np.float64)
        return caps, caps, np.array(self.latency, dtype=np.float64)


Kind = Callable[[StarWorld], Callable[[Simulation], Network]]
KINDS = pytest.mark.parametrize(
    "kind", [lambda world: world.star, lambda world: world.graph], ids=["star", "graph"]
)


def play(build: Callable[[Simulation], Network], sends: Sequence[Send]) -> Played:
    """Carry out transfers on the network that ``build`` makes; the device is the transfer's
    place in the list unless said.
    """
    simulation = Simulation()
    network = build(simulation)
    flows: dict[int, Flow] = {}
    played = Played([])

    def solve() -> None:
        network.share_links()
        played.instants.append(simulation.now)

    call = simulation.call_after_changes
    simulation.call_after_changes = lambda _: call(solve)  # type: ignore[method-assign]

    def begin(number: int, send: Send) -> None:
        device = number if send.device is None else send.device
        flows[number] = network.send(
            *ends(device, send.direction, send.at), send.size, lambda: told(number)
        )

    def told(number: int) -> None:
        played.told.append((number, simulation.now))

    for number, send in enumerate(sends):
        simulation.wake(
            ("start", number), send.start, lambda number=number, send=send: begin(number, send)
        )  # type: ignore[misc]
    for number, send in enumerate(sends):
        if send.kill is not None:
            simulation.wake(
                ("kill", number), send.kill, lambda number=number: network.cancel(flows[number])
            )  # type: ignore[misc]
    asyncio.run(simulation.run())
    played.flows = [flows[number] for number in range(len(sends))]
    return played
