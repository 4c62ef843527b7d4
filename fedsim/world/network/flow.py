"""A flow: one transfer of bytes between two endpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(slots=True, eq=False)
class Flow:
    """A transfer between two endpoints, running or ended.

    Attributes:
        id: the order of its start among all flows of the network.
        source, destination: IDs of its endpoints.
        started: time of its start (s).
        done: called when its last byte has arrived.
        weight: its weight in the sharing of links; 1 unless the protocol has weights.
        size, wire: bytes of payload, and bytes on the links, headers included.
        ended: when the last byte came, or when it was cancelled (s, exact, not on the grid);
            None until then.
        sent: bytes of payload delivered at the end; 0 until then (see ``Network.sent``).
    """

    not_saved: ClassVar[tuple[str, ...]] = ("done",)
    """Fields that a snapshot omits: the sender of the flow brings them back."""

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
