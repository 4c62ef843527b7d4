"""Flow, one transfer of bytes between two endpoints."""

from collections.abc import Callable
from dataclasses import dataclass

from fedsim.common.saved import saved


@saved(omit=("done",))
@dataclass(slots=True, eq=False)
class Flow:
    """Transfer of bytes from one endpoint to another, as ``Network.send`` returns it.

    Attributes:
        id: index of the flow among all flows of the network, in order of their starts.
        source, destination: IDs of its endpoints.
        size, wire: bytes of payload, and bytes on the links, headers included.
        started: time of its start (s).
        done: function that is called when its last byte has arrived; the sender of the flow sets it
            again after a restore.
        weight: its share of a link relative to other flows; 1 unless the protocol draws weights.
        ended: time of its last byte or of its cancellation (s, not rounded to ticks of the clock);
            None while it is running.
        sent: payload that was delivered by its end (bytes); 0 while it is running (see
            ``Network.sent``).
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
