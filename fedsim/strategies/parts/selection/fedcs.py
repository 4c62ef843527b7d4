"""FedCS (Nishio and Yonetani, "Client selection for federated learning with heterogeneous resources", ICC 2019)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from fedsim.federation.client import Instruction, LocalResult
from fedsim.federation.contents import Contents
from fedsim.federation.devices import Device
from fedsim.federation.server import Server
from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds
from fedsim.strategies.parts.selection import Selection


class FedCS(Selection):
    """As many clients as can be through by a deadline, chosen greedily.

    Protocol 2 and Algorithm 3: candidates drawn at random are asked for their resources; each tells, by its own speed, its own
    link and its samples, how long it takes to receive a model, to train for a round, and to send a model (12 bytes;
    ``resources``). Then whoever lets the expected round grow least is added, again and again, if that is still within
    ``time``, up to the number that is wanted. The expected round is as in the paper: the model goes to all at once (the slowest
    download counts), all train side by side, and updates are sent one after another.

    What the world does to a device on the way is in none of the three numbers, so that a round may well be longer.

    Attributes:
        time: T_round (s), from the question's answers on.
        candidates: how many are asked; at least as many as are wanted.
        patience: candidates who have not answered by then (s) are not chosen; None: all are waited for.
    """

    kind: Literal["fedcs"] = "fedcs"
    time: PositiveSeconds
    candidates: int = Field(default=20, ge=1)
    patience: PositiveSeconds | None = None

    @property
    def asks(self) -> bool:
        return True

    def select(
        self, server: Server, state: dict[str, Any], count: int, ids: tuple[int, ...], among: list[int] | None = None
    ) -> list[int]:
        return server.sample(max(self.candidates, count), "select", *ids, among=among)

    def question(self, models: Sequence[Any]) -> Contents:
        return {}

    async def choose(
        self, server: Server, state: dict[str, Any], count: int, answers: Mapping[int, Mapping[str, Any]]
    ) -> list[int]:
        return self.greedy(count, {device: tuple(told["resources"]) for device, told in answers.items()})

    def greedy(self, count: int, told: Mapping[int, tuple[float, float, float]]) -> list[int]:
        """At most ``count`` devices who are expected to be through by ``time``, in the order in which they were added.

        Args:
            count: how many are wanted.
            told: device -> how long it takes to receive a model, to train, and to send a model (s).
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

    def answer(self, device: Device, order: Instruction, done: LocalResult, params: Spec) -> Contents:
        return {"resources": resources(device, params)}


def resources(device: Device, params: Spec) -> list[float]:
    """How long a device takes to receive a model, to train for a round, and to send a model, as far as it knows (s)."""
    return [device.model_s("down"), device.epoch_s * getattr(params, "local_epochs", 1), device.model_s("up")]
