"""Local: every device trains a personal model, and nothing is sent."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fedsim.common.errors import ScenarioError
from fedsim.common.training import Training
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.round_params import SelectingParams
from fedsim.strategies.synchronous import Synchronous, SynchronousClient, SynchronousState
from fedsim.strategies.traits import Traits


class LocalParams(SelectingParams):
    """Keys of ``[strategy]`` for ``local``, in which devices train alone.

    The keys of strategies in rounds are allowed too.

    Attributes:
        clients_per_round: number of devices that train in a round; None: every available one.
    """

    traits: ClassVar[Traits] = Traits(sends_models=False, only_own_models=True)
    kind: Literal["local"] = "local"
    clients_per_round: int | None = None  # type: ignore[assignment]

    def check(self, devices: int) -> None:
        super().check(devices)
        if self.selection.needs_model:
            raise ScenarioError(
                f"strategy.selection is {self.selection.kind!r}, which asks about the server's "
                "model; local training has none, and allows those that ask for nothing of it: "
                "random, least-asked, oort, fedcs, least-available"
            )


class LocalClient(SynchronousClient[LocalParams]):
    """Client that trains its personal model, which never leaves the device.

    No model is received or sent. Its answers report the result to the simulator, and cost no bytes.

    Entries of a device's state: ``model``, the personal model.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(device.state.get("model") or device.initial(), self.params.local_epochs)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.update is not None
        # A diverged model is replaced by the model from which it was trained.
        device.state["model"] = device.mix([(result.update, 1.0)], otherwise=result.start)
        return {"update": Header(result.update), "samples": Header(result.samples)}


@dataclass
class LocalState(SynchronousState):
    """State of the strategy ``local``: each device's model.

    Attributes:
        own: Personal model of each device, for the evaluation.
    """

    own: list[Ref] = field(default_factory=list)


class Local(Synchronous[LocalParams]):
    """Every device trains a personal model, and no byte is ever sent.

    All devices begin with one initial model. In a round each device trains for ``local_epochs``.
    The score is the mean over the devices of a personal model's accuracy on the device's test
    samples. Late and lost devices keep their models.
    """

    Params = LocalParams
    Client = LocalClient
    State = LocalState
    state: LocalState
    score: Literal["pooled", "device-mean"] = "device-mean"

    async def on_start(self) -> None:
        self.state.own = [self.server.models.initial()] * self.server.devices
        await super().on_start()

    def select(self) -> list[int]:
        if self.params.asked_per_round:
            return super().select()
        return self.server.clients.idle_devices()

    def contents(self, device: int) -> Contents:
        return {}

    def entry(self, message: TaskEnd) -> Entry:
        return super().entry(message) | {"start": self.state.own[message.device]}

    async def aggregate(self) -> None:
        """Store the personal models that devices have trained in the round.

        Each training is recorded among the run's events as an aggregation of one update with weight
        1. If a training has diverged, the device's previous model is kept.
        """
        received = self.state.received
        for entry in received:
            model = self.server.models.mix([(entry["update"], 1.0)], otherwise=entry["start"])
            self.state.own[entry["device"]] = model
        if received:
            self.record_aggregate(received, [1.0] * len(received))

    def center(self, entry: Entry) -> None:
        """Return None: no aggregated model exists from which an update's distance can be measured.

        Args:
            entry: the update, which is not used.
        """

    def models(self) -> ModelAssignment:
        models = enumerate(self.state.own)
        return {f"device/{device}": (model, [device]) for device, model in models}
