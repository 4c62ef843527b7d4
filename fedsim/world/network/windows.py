"""Slow start of TCP in the fluid model: a window, doubled every round trip, caps a flow's rate."""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypedDict


class WindowsState(TypedDict):
    """State of ``Windows`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        windows: flow ID -> rate that the flow's window allows (bytes/s).
        round_trips: end of the current round trip (s) and ID of each flow with a window; a heap.
    """

    windows: dict[int, float]
    round_trips: list[tuple[float, int]]


class Windows:
    """Slow-start windows of flows in the fluid TCP model, each stored as the rate that it allows.

    The rate doubles every round trip. A window that no longer limits its flow is removed.

    Args:
        size: first window of a flow (bytes).
    """

    def __init__(self, size: float) -> None:
        self._size = size
        self._rates: dict[int, float] = {}  # flow ID -> rate (bytes/s)
        # heap of (end of a round trip (s), flow ID)
        self._round_trips: list[tuple[float, int]] = []

    def rate(self, flow: int) -> float:
        """Return the rate (bytes/s) that a flow's window allows; infinity if it has no window."""
        return self._rates.get(flow, math.inf)

    def start(self, flow: int, link_rate: float, round_trip: float, now: float) -> None:
        """Open the first window of a flow, if the window allows a lower rate than ``link_rate``.

        The window allows its size divided by ``round_trip``.

        Args:
            flow: ID of the flow.
            link_rate: least rate of the devices' own links on the flow's route (bytes/s).
            round_trip: time from a packet to its acknowledgement (s).
            now: the present time (s).
        """
        if self._size < link_rate * round_trip:
            self.widen(flow, self._size / round_trip, now + round_trip)

    def widen(self, flow: int, rate: float, end: float) -> None:
        """Open or widen a flow's window: it allows ``rate`` (bytes/s) until ``end`` (s)."""
        self._rates[flow] = rate
        heappush(self._round_trips, (end, flow))

    def close(self, flow: int) -> None:
        """Close the window of a flow that has ended, if it has one."""
        self._rates.pop(flow, None)

    def take_due(self, now: float) -> Iterator[tuple[int, float]]:
        """Remove windows whose round trip ends by ``now`` (s); yield flow ID and rate (bytes/s)."""
        while self._round_trips and self._round_trips[0][0] <= now:
            _, flow = heappop(self._round_trips)
            if flow in self._rates:
                yield flow, self._rates.pop(flow)

    def next_end(self) -> float:
        """Return when the next round trip of a window ends (s); infinity without windows."""
        while self._round_trips and self._round_trips[0][1] not in self._rates:
            heappop(self._round_trips)
        return self._round_trips[0][0] if self._round_trips else math.inf

    def snapshot(self) -> WindowsState:
        return {"windows": self._rates, "round_trips": self._round_trips}

    def restore(self, state: WindowsState) -> None:
        self._rates = state["windows"]
        self._round_trips = state["round_trips"]
