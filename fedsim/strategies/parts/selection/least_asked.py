"""Even participation: whoever was asked least often comes first."""

from typing import Any, Literal

from fedsim.federation.server import Server
from fedsim.strategies.parts.selection import Selection


class LeastAsked(Selection):
    """Clients that were asked least often, ties at random. Looks at every device that is there: O(population).

    State: ``asked``, device -> how often it was asked.
    """

    kind: Literal["least-asked"] = "least-asked"

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        asked = state.setdefault("asked", {})
        there = server.sample(server.devices, "select", *ids, among=among)
        chosen = sorted(there, key=lambda device: asked.get(device, 0))[:count]
        for device in chosen:
            asked[device] = asked.get(device, 0) + 1
        return chosen
