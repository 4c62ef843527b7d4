"""The base of strategies with a personal model on each device: Ditto, pFedMe, MOON."""

from typing import Literal

from fedsim.federation import Contents, Device, Header, Instruction, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.synchronous import S, SynchronousClient


class OwnModelClient(SynchronousClient[S]):
    """A client with a personal model, for the evaluation in the header of its answers (``own``).

    The header costs no bytes. State: ``model``, the personal model.
    """

    def last(self, device: Device) -> Ref:
        """The device's personal model; before its first answer, the run's first model."""
        model: Ref = device.state.get("model", device.initial())
        return model

    def answer(
        self,
        device: Device,
        instruction: Instruction,
        result: LocalResult,
        own: Ref,
        otherwise: Ref,
    ) -> Contents:
        """The answer with the update, and with the personal model in its header.

        Args:
            device: the device.
            instruction: the task.
            result: the result of its computations.
            own: the personal model.
            otherwise: replaces a personal model that has diverged.
        """
        header = Header(device.mix([(own, 1.0)], otherwise=otherwise))
        return {**(super().reply(device, instruction, result) or {}), "own": header}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        device.state["model"] = reply["own"].value


class Personal(FedAvg[S]):
    """FedAvg with a personal model on each device, the content ``own`` of its answers.

    The personal model never leaves the device. It is tested on the device's test samples; a device
    without one, such as a newcomer, is served by the global model.
    """

    score: Literal["pooled", "device-mean"] = "device-mean"

    async def aggregate(self) -> None:
        for entry in self.state.received:
            self.state.own[entry["device"]] = entry["contents"]["own"]
        await super().aggregate()
