"""Bases of strategies with a model of its own on each device, and of those whose devices keep some tensors of the model."""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

from fedsim.errors import ScenarioError
from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation.client import Instruction, LocalResult, RunInfo
from fedsim.federation.contents import Contents, Header, Partial
from fedsim.federation.devices import Device
from fedsim.federation.server import Server
from fedsim.learning.architecture import Tensor
from fedsim.learning.functions import spliced, taken
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import S, SynchronousClient
from fedsim.training import Places, Training


class Personal(FedAvg[S]):
    """FedAvg, whose clients' answers have ``own`` in them: a model that never leaves the device, but is seen by who evaluates.

    It is tested on the test samples of its device; who has none yet, a newcomer say, is served by the global model.

    State besides FedAvg's: ``own``, the models of devices that have ever answered, device -> model: no server's knowledge.
    """

    score: ClassVar[Literal["pooled", "device-mean"]] = "device-mean"

    async def on_start(self) -> None:
        self.state["own"] = {}
        await super().on_start()

    async def aggregate(self) -> None:
        self.state["own"] |= {entry["device"]: entry["contents"]["own"] for entry in self.state["received"]}
        await super().aggregate()

    def models(self) -> ModelAssignment:
        own = self.state["own"]
        others = [device for device in range(self.server.devices) if device not in own] if own else None
        return {"global": (self.state["model"], others)} | {
            f"device/{device}": (own[device], [device]) for device in sorted(own)
        }

    def _shared_models(self) -> ModelAssignment:
        return {"global": (self.state["model"], None)}


class KeepingParams(AggregatingParams):
    """Parameters of strategies whose devices keep some tensors of the model."""

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Whether each tensor never leaves a device, [tensors]."""
        raise NotImplementedError

    def split(self, setting: RunInfo) -> tuple[Places, Places]:
        """Ranges in a flat model of the tensors that are sent, and of those that stay.

        Raises:
            ScenarioError: one of them is nothing.
        """
        tensors = setting.tensors()
        if not tensors:
            raise ScenarioError(
                f"strategy.kind is {self.kind!r}, which tells the tensors of a model apart, and model.kind is 'size', which "
                "has none; allowed is any other model"
            )
        stays = self.stays(tensors)
        if all(stays):
            raise ScenarioError(
                f"strategy.kind is {self.kind!r}, and every tensor of the model stays on its device: "
                f"{', '.join(tensor.name for tensor in tensors)}; allowed is what leaves something to send, with a "
                "model of more layers"
            )
        return _places(tensors, [not own for own in stays]), _places(tensors, stays)


def _places(tensors: Sequence[Tensor], chosen: Sequence[bool]) -> Places:
    """Ranges of the chosen tensors in the flat model; adjacent ones are merged."""
    found: list[tuple[int, int]] = []
    at = 0
    for tensor, own in zip(tensors, chosen, strict=True):
        if own:
            begin = found.pop()[0] if found and found[-1][1] == at else at
            found.append((begin, at + tensor.size))
        at += tensor.size
    return tuple(found)


K = TypeVar("K", bound=KeepingParams)


class KeepingClient(SynchronousClient[K]):
    """Trains the received tensors together with its own, and sends the former back.

    State: ``kept``, the numbers of its own tensors alone; absent until it has first answered.
    """

    def __init__(self, params: K, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self.sent_places, self.kept_places = params.split(setting)

    def begin(self, device: Device, instruction: Instruction) -> Ref:
        """The model that it has: what it received, and its own tensors."""
        model: Ref = instruction["model"]
        return device.splice(model, device.state["kept"], self.kept_places) if "kept" in device.state else model

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(self.begin(device, instruction), self.params.local_epochs)

    def computed(self, device: Device, instruction: Instruction, result: LocalResult) -> LocalResult:
        """Applies the aggregation's client side to the sent tensors alone."""
        assert result.update is not None
        update = device.splice(instruction["model"], result.update, self.sent_places)
        return super().computed(device, instruction, result._replace(update=update, start=instruction["model"]))

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents | None:
        assert result.update is not None
        assert result.trained is not None
        models = [result.trained, self.begin(device, instruction)]  # the second where the first has diverged
        size = sum(end - begin for begin, end in self.kept_places)
        kept = device.apply(taken, models, places=self.kept_places, size=size)
        update = Partial(result.update, instruction["model"], self.sent_places)
        return {**(super().reply(device, instruction, result) or {}), "update": update, "own": Header(kept)}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        device.state["kept"] = reply["own"].value


class Keeping(Personal[K]):
    """FedAvg of some tensors of the model, by ``Params.stays``; the others never leave a device.

    A device has the global model's tensors and its own, which it begins with as they are in the initial model. A client whose
    answer is cut off goes back to those that it had.

    State besides ``Personal``'s: ``kept``, the own tensors of devices that have ever answered, device -> numbers.
    """

    def __init__(self, params: K, server: Server) -> None:
        super().__init__(params, server)
        self._sent, self._kept = params.split(self.setting)

    async def on_start(self) -> None:
        self.state["kept"] = {}
        await super().on_start()

    def contents(self, device: int) -> Contents:
        model = self.state["model"]
        return {"model": Partial(model, model, self._sent)}

    async def aggregate(self) -> None:
        await super().aggregate()
        model, kept, own = self.state["model"], self.state["kept"], self.state["own"]
        kept |= {entry["device"]: own[entry["device"]] for entry in self.state["received"]}
        self.state["own"] = {
            device: self.server.models.apply(spliced, [model, numbers], places=self._kept) for device, numbers in kept.items()
        }


class OwnModelClient(SynchronousClient[S]):
    """Its answer has ``own`` in its header: a model that is not sent, but seen by the evaluation.

    State: ``model``, its own; absent until it has first answered.
    """

    def last(self, device: Device) -> Ref:
        """Its own model; the first model of all before its first answer."""
        model: Ref = device.state.get("model", device.initial())
        return model

    def answer(self, device: Device, instruction: Instruction, result: LocalResult, own: Ref, otherwise: Ref) -> Contents:
        """The update, and its own model; ``otherwise`` stands in where that has diverged."""
        return {
            **(super().reply(device, instruction, result) or {}),
            "own": Header(device.mix([(own, 1.0)], otherwise=otherwise)),
        }

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        device.state["model"] = reply["own"].value
