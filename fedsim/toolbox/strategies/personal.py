"""Base of strategies with a personal model on each device (Ditto, pFedMe, MOON)."""

from typing import Literal

from fedsim.federation import Contents, Device, Header, Instruction, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.combining import S
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.synchronous import SynchronousClient


class OwnModelClient(SynchronousClient[S]):
    """Base of clients with a personal model, which stays on the device.

    The client's answers have the personal model in the header ``own``, where the evaluation reads
    it. The header costs no bytes.

    Entries of a device's state: ``model``, the personal model; absent until the device has first
    answered.
    """

    def last(self, device: Device) -> Ref:
        """Return the device's personal model, or the initial model before its first answer."""
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
        """Build the client's answer: its update, and its personal model in the header ``own``.

        The header costs no bytes; the evaluation reads the model there.

        Args:
            device: the device that answers.
            instruction: the message that has started the task.
            result: the result of the task's computations.
            own: the personal model.
            otherwise: the model that replaces ``own`` if ``own`` has diverged.

        Returns:
            Contents by name.
        """
        header = Header(device.mix([(own, 1.0)], otherwise=otherwise))
        return {**(super().reply(device, instruction, result) or {}), "own": header}

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        device.state["model"] = reply["own"].value


class Personal(FedAvg[S]):
    """Base of strategies like FedAvg that also keep a personal model on each device.

    An answer has the personal model in the header ``own``, for tests only. It costs no bytes, as
    the model does not leave the device. The personal model is tested on the device's test samples.
    A device without a personal model, such as a newcomer, is tested with the global model.
    """

    score: Literal["pooled", "device-mean"] = "device-mean"

    async def aggregate(self) -> None:
        for entry in self.state.received:
            self.state.own[entry["device"]] = entry["contents"]["own"]
        await super().aggregate()
