"""FedCS: as many clients as can be through by a deadline (Nishio and Yonetani, 2019)."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from fedsim.federation import Server
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.parts.selection import Among, Answers, Ids
from fedsim.toolbox.selection.by_speed import BySpeed


class FedCS(BySpeed):
    """As many clients as can be through by a deadline, chosen greedily.

    Source: Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources" (ICC 2019), Protocol 2
    and Algorithm 3. Candidates drawn at random say how long they take (12 bytes; ``resources``). Then the candidate that lets
    the expected round grow least is added, again and again, if that is still within ``time``, up to the number that is wanted.
    As in the paper the model goes to all at once (the slowest download counts), all train side by side, and updates are sent
    one after another. What the world does to a device on the way is in none of the three numbers, so that a round may well be
    longer.

    Attributes:
        time: T_round (s), from the question's answers on.
        candidates: how many are asked; at least as many as are wanted.
        patience: candidates who have not answered by then (s) are not chosen; None: all are waited for.
    """

    kind: Literal["fedcs"] = "fedcs"
    time: PositiveSeconds
    candidates: int = Field(default=20, ge=1)
    patience: PositiveSeconds | None = None

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        return server.clients.sample(max(self.candidates, count), "select", *ids, among=among)

    async def choose(self, server: Server, state: dict[str, Any], count: int, answers: Answers) -> list[int]:
        return self.greedy(count, {device: tuple(told["resources"]) for device, told in answers.items()})

    def greedy(self, count: int, told: Mapping[int, tuple[float, float, float]]) -> list[int]:
        """At most ``count`` devices that are expected to be through by ``time``, in the order in which they were added.

        ``told``: device -> how long it takes to receive a model, to train, and to send a model (s).
        """
        left, chosen = dict(told), list[int]()
        received = sent = 0.0  # when the last of the chosen has the model, and how long after that the last update is here
        while left and len(chosen) < count:
            after = {device: (max(received, down), max(sent, training) + up) for device, (down, training, up) in left.items()}
            best = min(after, key=lambda device: sum(after[device]))
            del left[best]
            if sum(after[best]) <= self.time:
                received, sent = after[best]
                chosen.append(best)
        return chosen
