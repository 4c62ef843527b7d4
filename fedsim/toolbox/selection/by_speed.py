"""FedCS: as many clients as are expected to finish by a deadline (Nishio and Yonetani, 2019)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fedsim.federation import Contents, Device, Instruction, LocalResult, Server
from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import Among, Answers, Ids, Selection


class FedCS(Selection):
    """As many clients as are expected to finish by a deadline, chosen greedily.

    Source: Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources" (ICC 2019), Protocol 2
    and Algorithm 3. Candidates drawn at random send their times (12 bytes; ``resources``). The candidate that lengthens the
    expected round least is then added, again and again, while the round stays within ``time``, up to the wanted number. As in
    the paper the model goes to all at once (the slowest download counts), all train side by side, and updates are sent one
    after another. The times know nothing of jitter, outages and shared links, so a round may take longer.
    """

    kind: Literal["fedcs"] = "fedcs"
    time: PositiveSeconds
    """T_round (s), from the last answer on."""
    candidates: int = Field(default=20, ge=1)
    """how many devices are asked; at least as many as are wanted."""
    patience: PositiveSeconds | None = None
    """candidates who have not answered by then (s) are not chosen; None: the round waits for all."""

    def select(self, server: Server, state: dict[str, Any], count: int, ids: Ids, among: Among = None) -> list[int]:
        return server.clients.sample(max(self.candidates, count), "select", *ids, among=among)

    def question(self, models: Sequence[Ref]) -> Contents:
        return {}

    def answer(self, device: Device, instruction: Instruction, result: LocalResult, params: Spec) -> Contents:
        training_s = device.epoch_s * getattr(params, "local_epochs", 1)
        return {"resources": [device.model_s("down"), training_s, device.model_s("up")]}

    async def choose(self, server: Server, state: dict[str, Any], count: int, answers: Answers) -> list[int]:
        return self.greedy(count, {device: tuple(answer["resources"]) for device, answer in answers.items()})

    def greedy(self, count: int, times: Mapping[int, tuple[float, float, float]]) -> list[int]:
        """At most ``count`` devices that are expected to finish by ``time``, in the order in which they were added.

        ``times``: device -> time to receive a model, to train, and to send a model (s).
        """
        left, chosen = dict(times), list[int]()
        received = sent = 0.0  # when the last of the chosen has the model, and the time from then to the last update
        while left and len(chosen) < count:
            after = {device: (max(received, down), max(sent, training) + up) for device, (down, training, up) in left.items()}
            best = min(after, key=lambda device: sum(after[device]))
            del left[best]
            if sum(after[best]) <= self.time:
                received, sent = after[best]
                chosen.append(best)
        return chosen
