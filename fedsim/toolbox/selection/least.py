"""Selections by how often a client was asked, or was there."""

from heapq import nsmallest
from typing import Any, Literal

from fedsim.federation import Server, TaskEnd
from fedsim.strategies.parts.selection import Among, Ids, Selection


class LeastAsked(Selection):
    """Clients that were asked least often, ties at random. Looks at every device that is there:
    O(population).

    State: ``asked``, device -> how often it was asked.
    """

    kind: Literal["least-asked"] = "least-asked"

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        asked = state.setdefault("asked", {})
        there = server.clients.sample(server.devices, "select", *ids, among=among)
        chosen = nsmallest(count, there, lambda device: asked.get(device, 0))
        asked |= {device: asked.get(device, 0) + 1 for device in chosen}
        return chosen


class LeastAvailable(Selection):
    """The least available clients come first, ties at random: rare ones are used while they are
    available.

    Source: Abdelmoniem et al., "REFL: resource-efficient federated learning" (EuroSys 2023),
    section 4.1. There a device forecasts its availability in a round's time; here the server counts
    the share of rounds, since the device was first available, in which it was available or at work.
    Looks at every device: O(population).

    State: ``seen``, device -> the first round in which it was available, and their number since;
    ``at_work``, devices that have not answered; ``looked``, the last round that was counted.
    """

    kind: Literal["least-available"] = "least-available"

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None
    ) -> list[int]:
        number = ids[0]
        seen = state.setdefault("seen", {})
        at_work = state.setdefault("at_work", [])
        if state.get("looked") != number:
            state["looked"] = number
            for device in (*server.clients.online(), *at_work):
                first, times = seen.get(device, (number, 0))
                seen[device] = (first, times + 1)

        def share(device: int) -> float:
            # if unseen, it has come back since the round was first looked at
            first, times = seen.get(device, (number, 1))
            return float(times / (number - first + 1))

        chosen = nsmallest(
            count, server.clients.sample(server.devices, "select", *ids, among=among), share
        )
        at_work += chosen
        return chosen

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        if message.device in state.get("at_work", []):
            state["at_work"].remove(message.device)
