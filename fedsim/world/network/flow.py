"""A flow, and what a rule that shares links among flows must offer: numbers alone, no clock."""

from collections.abc import Callable
from typing import Literal, Protocol

Direction = Literal["down", "up"]  # down: from the server to a device


class Flow:
    """What a running or ended transfer knows.

    Attributes:
        id: the order of its start among all flows of the network.
        device: whose it is; an edge server's have numbers after those of all devices.
        direction: ``"down"`` from the server to the device, ``"up"`` back.
        size: bytes to send.
        wire: bytes that they are on the links, headers included.
        weight: how much of a link it gets beside others.
        started: when ``Network.start`` was called (s).
        near: whether it goes between a device and its edge server, not the server.
        ended: when the last byte came, or when it was cancelled (s); exact, not on the clock's grid; None until then.
        sent: bytes delivered at the end; 0 until then (``Network.sent`` tells how far a running flow is).
        done: what is called when the last byte is there.
    """

    __slots__ = ("device", "direction", "done", "ended", "id", "near", "sent", "size", "started", "weight", "wire")

    def __init__(
        self,
        flow_id: int,
        device: int,
        direction: Direction,
        size: float,
        started: float,
        done: Callable[[], None],
        *,
        wire: float,
        weight: float,
        near: bool = False,
    ) -> None:
        self.id = flow_id
        self.device = device
        self.direction: Direction = direction
        self.size = size
        self.wire = wire
        self.weight = weight
        self.near = near
        self.started = started
        self.ended: float | None = None
        self.sent = 0.0
        self.done = done

    def __repr__(self) -> str:
        state = "running" if self.ended is None else f"ended {self.ended:.9g} s, {self.sent:.0f} sent"
        return f"<Flow {self.id}: {self.size:.0f} B {self.direction}, device {self.device}, {state}>"


class Sharing(Protocol):
    """A sharing rule at work on a set of links: numbers alone, no clock, no flows but their ids. It may be deep-copied.

    Its bytes are those on the wire.
    """

    next_end: float
    """When the next flow will have sent all if nothing changes (s, exact); infinity if none runs."""

    changed: bool
    """Whether flows have come or left, or links changed, since the last ``share``."""

    def leave(self, flow_id: int, now: float) -> None:
        """Take a flow out before its end. Its share is given away by the next ``share``."""

    def share(self, now: float) -> None:
        """Share the links again among the flows that are there ``now`` (s)."""

    def advance(self, until: float) -> list[tuple[float, int]]:
        """Carry out all ends up to ``until`` (s), each at its exact time; returns (end, flow id) of each."""

    def sent(self, flow_id: int, at: float) -> float:
        """Bytes that a running flow has sent ``at`` a time (s) between the last change and the next end."""

    def rate(self, flow_id: int) -> float:
        """Bytes/s of a running flow."""

    def rates(self) -> dict[int, float]:
        """Flow id -> bytes/s of all running flows."""

    def recap(self, flow_id: int, size: float, rate: float, now: float) -> None:
        """Give a running flow of ``size`` bytes a link of its own of another rate (bytes/s). Taken in by the next ``share``."""
