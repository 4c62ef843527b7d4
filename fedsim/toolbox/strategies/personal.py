"""The base of strategies with a model of its own on each device: Ditto, pFedMe, MOON."""

from typing import Literal

from fedsim.federation import Contents, Device, Header, Instruction, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.synchronous import S, SynchronousClient


class OwnModelClient(SynchronousClient[S]):
    """Its answer has ``own`` in its header: its ``model``, which is not sent, but seen by the
    evaluation.
    """

    def last(self, device: Device) -> Ref:
        """Its own model; the first model of all before its first answer."""
        return device.state.get("model", device.initial())  # type: ignore[no-any-return]

    def answer(
        self,
        device: Device,
        instruction: Instruction,
        result: LocalResult,
        own: Ref,
        otherwise: Ref,
    ) -> Contents:
        """The update, and its own model; ``otherwise`` replaces a diverged one."""
        header = Header(device.mix([(own, 1.0)], otherwise=otherwise))
        return {**(super().reply(device, instruction, result) or {}), "own": header}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        device.state["model"] = reply["own"].value


class Personal(FedAvg[S]):
    """FedAvg, whose clients' answers have ``own`` in them: a model that never leaves the device,
    but is used in evaluations.

    It is tested on the test samples of its device; who has none yet, a newcomer say, is served
    by the global model.
    """

    score: Literal["pooled", "device-mean"] = "device-mean"

    async def on_start(self) -> None:
        self.state["own"] = {}
        await super().on_start()

    async def aggregate(self) -> None:
        self.state["own"] |= {
            entry["device"]: entry["contents"]["own"] for entry in self.state["received"]
        }
        await super().aggregate()
