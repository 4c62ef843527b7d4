"""The least available first (Abdelmoniem et al., "REFL: resource-efficient federated learning", EuroSys 2023)."""

from typing import Any, Literal

from fedsim.federation.messages import TaskEnd
from fedsim.federation.server import Server
from fedsim.strategies.parts.selection import Selection


class LeastAvailable(Selection):
    """Clients that are there least often come first, ties at random: who is rare is used while it is there.

    REFL's intelligent participant selection (section 4.1). There a device forecasts, by a model of its own habits, how likely
    it is to be there in a round's time; here the server goes by what it has seen: in what share of the rounds that it opened
    since the device was first there it was there, or at work. Looks at every device: O(population).

    State: ``seen``, device -> the round in which it was there first and in how many since; ``at_work``, who was asked and has
    not answered; ``looked``, the last round that was counted.
    """

    kind: Literal["least-available"] = "least-available"

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        number, seen, at_work = ids[0], state.setdefault("seen", {}), state.setdefault("at_work", [])
        if state.get("looked") != number:
            state["looked"] = number
            for device in (*server.online(), *at_work):
                first, times = seen.get(device, (number, 0))
                seen[device] = (first, times + 1)
        there = server.sample(server.devices, "select", *ids, among=among)
        unseen = (number, 1)  # it has come back since the round was first looked at
        shares = {device: times / (number - first + 1) for device in there for first, times in [seen.get(device, unseen)]}
        chosen = sorted(there, key=lambda device: shares[device])[:count]
        at_work += chosen
        return chosen

    def heard(self, server: Server, state: dict[str, Any], message: TaskEnd) -> None:
        if message.device in state.get("at_work", []):
            state["at_work"].remove(message.device)
