"""Endpoints, a flow between two of them, and what a rule that shares links among flows must offer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Direction = Literal["down", "up"]  # down: to a device, up: from it

SERVER = -1
"""The server's number. Devices have the numbers from 0, edge servers those after all devices, hosts those after these."""


def ends(device: int, direction: Direction, at: int = SERVER) -> tuple[int, int]:
    """Source and destination of a message between a device and the endpoint ``at``: from there if ``"down"``, else to it."""
    return (at, device) if direction == "down" else (device, at)


@dataclass(slots=True, eq=False)
class Flow:
    """A transfer between two endpoints, running or ended.

    Attributes:
        id: the order of its start among all flows of the network.
        size, wire: bytes to send, and what they are on the links, headers included.
        weight: how much of a link it gets beside others.
        started: when ``Network.send`` was called (s).
        ended: when the last byte came, or when it was cancelled (s); exact, not on the clock's grid; None until then.
        sent: bytes delivered at the end; 0 until then (``Network.sent`` tells how far a running flow is).
        done: what is called when the last byte is there.
    """

    id: int
    source: int
    destination: int
    size: float
    started: float
    done: Callable[[], None]
    wire: float
    weight: float
    ended: float | None = None
    sent: float = 0.0


Route = Iterable[tuple[str, float]]
"""The links of a flow: the name, and what each carries now (bytes/s)."""


class Sharing(Protocol):
    """A sharing rule at work on a set of links: numbers alone, no clock, no flows but their ids. It may be deep-copied.

    Its bytes are those on the wire. A snapshot keeps the attributes of the instance: plain values, lists, dicts and arrays.
    """

    next_end: float
    """When the next flow will have sent all if nothing changes (s, exact); infinity if none runs."""

    changed: bool
    """Whether flows have come or left, or links changed, since the last ``share``."""

    def enter(
        self, flow_id: int, size: float, cap: float, now: float, weight: float = 1.0, sent: float = 0.0, route: Route = ()
    ) -> None:
        """Let a flow of ``size`` bytes in, of which ``sent`` were sent before. The next ``share`` finds its rate.

        Args:
            weight: above 0.
            cap: the most that it can have, bytes/s; infinite only if a link of its route is not.
        """

    def leave(self, flow_id: int, now: float) -> None:
        """Take a flow out before its end. Its share is given away by the next ``share``."""

    def recap(self, flow_id: int, size: float, cap: float, now: float) -> None:
        """Give a running flow of ``size`` bytes another cap (bytes/s). Taken in by the next ``share``."""

    def set_capacity(self, link: str, capacity: float, now: float) -> None:
        """Give a link another capacity (bytes/s). One that is on no flow's route does not matter."""

    def share(self, now: float) -> None:
        """Share the links again among the flows that are there ``now`` (s)."""

    def advance(self, until: float) -> list[tuple[float, int]]:
        """Carry out all ends up to ``until`` (s), each at its exact time; returns (end, flow id) of each."""

    def sent(self, flow_id: int, at: float) -> float:
        """Bytes that a running flow has sent ``at`` a time (s) between the last change and the next end."""

    def rate(self, flow_id: int) -> float:
        """Bytes/s of a running flow."""
