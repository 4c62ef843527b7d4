"""Strategies with a model of its own on each device: Local, Ditto, pFedMe, MOON."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.errors import ScenarioError
from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, PreviousResult, RunInfo, TaskEnd
from fedsim.language.spec import Epochs
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.round_params import AggregatingParams, SelectingParams
from fedsim.strategies.synchronous import S, Synchronous, SynchronousClient
from fedsim.training import Contrast, Training
from fedsim.world.task import Computation, Train


class LocalParams(SelectingParams):
    """Parameters of Local.

    Attributes:
        clients_per_round: how many devices train in a round; None for every one that can be had.
    """

    kind: Literal["local"] = "local"
    clients_per_round: int | None = None  # type: ignore[assignment]

    def check(self, devices: int) -> None:
        super().check(devices)
        if self.selection.needs_model:
            raise ScenarioError(
                f"strategy.selection is {self.selection.kind!r}, which asks about the server's model; local training "
                "has none, and allows those that ask for nothing of it: random, least-asked, oort, fedcs, least-available"
            )


class LocalClient(SynchronousClient[LocalParams]):
    """Trains its own model and keeps it."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(device.state.get("model") or device.initial(), self.params.local_epochs)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.update is not None
        device.state["model"] = device.mix([(result.update, 1.0)], otherwise=result.start)  # not what has diverged
        return {"update": Header(result.update), "samples": Header(result.samples)}


class Local(Synchronous[LocalParams]):
    """Every device trains a model of its own with the same local schedule; nothing is ever sent.

    All devices begin with the same initial model. A round is a pass of ``local_epochs`` on each; its score is the mean of the
    devices' accuracies, each with its own model on its own test samples. A device that is late or lost keeps the model that it
    had.
    """

    Params = LocalParams
    Client = LocalClient
    score: Literal["pooled", "device-mean"] = "device-mean"

    async def on_start(self) -> None:
        self.state["own"] = [self.server.models.initial()] * self.server.devices
        await super().on_start()

    def select(self) -> list[int]:
        return super().select() if self.params.asked_per_round else self.server.clients.online()

    def contents(self, device: int) -> Contents:
        return {}

    def entry(self, message: TaskEnd) -> dict[str, Any]:
        return super().entry(message) | {"start": self.state["own"][message.device]}

    async def aggregate(self) -> None:
        """Record each device's training as an aggregation of weight 1 in its own model."""
        received = self.state["received"]
        for entry in received:
            self.state["own"][entry["device"]] = self.server.models.mix([(entry["update"], 1.0)], otherwise=entry["start"])
        if received:
            self.record_aggregate(received, [1.0] * len(received))

    def center(self, entry: dict[str, Any]) -> None:
        """None: there is no common model."""

    def models(self) -> ModelAssignment:
        return {f"device/{device}": (model, [device]) for device, model in enumerate(self.state["own"])}


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
        header = Header(device.mix([(own, 1.0)], otherwise=otherwise))
        return {**(super().reply(device, instruction, result) or {}), "own": header}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        device.state["model"] = reply["own"].value


class Personal(FedAvg[S]):
    """FedAvg, whose clients' answers have ``own`` in them: a model that never leaves the device, but is seen by who evaluates.

    It is tested on the test samples of its device; who has none yet, a newcomer say, is served by the global model.
    """

    score: Literal["pooled", "device-mean"] = "device-mean"

    async def on_start(self) -> None:
        self.state["own"] = {}
        await super().on_start()

    async def aggregate(self) -> None:
        self.state["own"] |= {entry["device"]: entry["contents"]["own"] for entry in self.state["received"]}
        await super().aggregate()


class DittoParams(AggregatingParams):
    """Parameters of Ditto, in addition to ``AggregatingParams``.

    Attributes:
        lam: lambda, how strongly a device's own model is held to the global one; 0: local training.
        personal_epochs: passes over its data for which a device trains its own model; None: ``local_epochs``.
    """

    trains_more: ClassVar[str] = "with Ditto a client trains its own model too"
    kind: Literal["ditto"] = "ditto"
    lam: float = Field(default=0.1, ge=0.0, le=1e6)
    personal_epochs: Epochs | None = None


class DittoClient(OwnModelClient[DittoParams]):
    """Trains its own model, and then an update of the global one."""

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        epochs = self.params.personal_epochs or self.params.local_epochs
        own = Training(self.last(device), epochs, mu=self.params.lam, anchor=instruction["model"])
        return (Train(own), *super().work(device, instruction))

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return self.answer(device, instruction, result, result.earlier[0], self.last(device))


class Ditto(Personal[DittoParams]):
    """Personalised federated learning by a second, regularised objective.

    Source: Li et al., "Ditto: fair and robust federated learning through personalization" (ICML 2021), Algorithm 1: the global
    model w is FedAvg's; beside it each client that is asked makes steps v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w)) with
    the w that it received. All v_k begin at the initial model. (Clients drawn in proportion to their samples are ``selection =
    { kind = "power-of-choice", candidates = 1, losses = "reported" }``.)

    Sends what FedAvg sends. A client whose answer is cut off goes back to the own model that it had.
    """

    Params = DittoParams
    Client = DittoClient


class PFedMeParams(AggregatingParams):
    """Parameters of pFedMe; its server's beta is the learning rate of ``server = "sgd"``. See also ``AggregatingParams``.

    Attributes:
        lam: lambda, how strongly a personal model is held to the local one.
        local_rounds: R, each with a batch of its own.
        steps: K, of SGD on that batch towards the personal model, at the learning rate of ``[training]``.
        eta: learning rate of the local model.
    """

    trains_more: ClassVar[str] = "with pFedMe a client trains 'local_rounds' times"
    kind: Literal["pfedme"] = "pfedme"
    lam: float = Field(default=15.0, gt=0.0, le=1e6)
    local_rounds: int = Field(default=20, ge=1, le=10_000)
    steps: int = Field(default=5, ge=1, le=100_000)
    eta: float = Field(default=0.005, gt=0.0, le=1e6)
    aggregation: AggregationSpec = Mean()

    @model_validator(mode="after")
    def _rounds_not_epochs(self) -> Self:
        if self.local_epochs != 1:
            raise ValueError(
                f"'local_epochs' is {self.local_epochs}, but pFedMe's clients train for 'local_rounds' batches; give that"
            )
        return self


class PFedMeClient(OwnModelClient[PFedMeParams]):
    """Finds its personal model R times, and moves its local model towards it each time."""

    def local(self, received: Ref, rounds: int) -> PreviousResult:
        """w_r after so many local rounds: w_r = (1 - eta lambda) w_(r-1) + eta lambda theta_(r-1), from what it received on."""
        step = self.params.eta * self.params.lam
        parts = [((1.0 - step) ** (rounds - 1 - number) * step) for number in range(rounds)]
        return PreviousResult(((received, (1.0 - step) ** rounds), *enumerate(parts)))

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        """K steps of each batch on its loss + lambda / 2 ||theta - w_r||^2, from the personal model before."""
        params, received = self.params, instruction["model"]
        trainings = []
        for number in range(params.local_rounds):
            start = PreviousResult(((number - 1, 1.0),)) if number else received
            anchor = self.local(received, number) if number else None
            trainings.append(Training(start, steps=params.steps, mu=params.lam, anchor=anchor, only_batch=number))
        return [Train(training) for training in trainings]

    def computed(self, device: Device, instruction: Instruction, result: LocalResult) -> LocalResult:
        assert result.update is not None
        thetas = (*result.earlier, result.update)
        parts = self.local(instruction["model"], len(thetas)).parts
        update = device.mix([(thetas[part] if isinstance(part, int) else part, factor) for part, factor in parts])
        return super().computed(device, instruction, result._replace(update=update, start=instruction["model"]))

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.trained is not None
        return self.answer(device, instruction, result, result.trained, device.state.get("model", instruction["model"]))


class PFedMe(Personal[PFedMeParams]):
    """Personalised federated learning with Moreau envelopes.

    Source: T Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes" (NeurIPS 2020), Algorithm 1: from
    the received w a client makes R local rounds, in each of which it finds theta = argmin f(theta; batch) + lambda / 2 ||theta
    - w_r||^2 by K steps, and then w_(r+1) = w_r - eta lambda (w_r - theta). It sends w_R; the next global model is (1 - beta) w
    + beta times the mean. Only the clients of a round compute, where in the paper all do and some are sampled.

    Sends what FedAvg sends. Batches are those of SGD, in its order. A client's last theta is its personal model.
    """

    Params = PFedMeParams
    Client = PFedMeClient


class MOONParams(AggregatingParams):
    """Parameters of MOON, in addition to ``AggregatingParams``.

    Attributes:
        mu: weight of the contrastive term; 0 is FedAvg, which asks no other models.
        temperature: tau, by which similarities are divided.
    """

    kind: Literal["moon"] = "moon"
    mu: float = Field(default=1.0, ge=0.0, le=1e6)
    temperature: float = Field(default=0.5, gt=0.0, le=1e6)


class MOONClient(OwnModelClient[MOONParams]):
    """Trains with the contrastive term; its own model is the one that it trained last."""

    def __init__(self, params: MOONParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        layers = list({tensor.name.rpartition(".")[0]: tensor.layer for tensor in setting.tensors()}.values())
        if params.mu and layers and "Linear" not in layers[1:]:
            raise ScenarioError(
                "strategy.kind is 'moon', which compares what comes to a model's last dense layer, and before it this one has "
                f"nothing to train: its layers are {', '.join(layers)}; allowed are models with a torch.nn.Linear that is not "
                "their first layer, such as model.kind = 'mlp'"
            )

    def training(self, device: Device, instruction: Instruction) -> Training:
        contrast = Contrast(self.last(device), self.params.mu, self.params.temperature)
        return Training(instruction["model"], self.params.local_epochs, contrast=contrast if self.params.mu else None)

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        assert result.trained is not None
        return self.answer(device, instruction, result, result.trained, self.last(device))


class MOON(FedAvg[MOONParams]):
    """Model-contrastive federated learning.

    Source: Li, He and Song, "Model-contrastive federated learning" (CVPR 2021), Algorithm 1 and Eq. 3 (numbers from memory): to
    the loss of each sample comes mu times -log(e^(s / tau) / (e^(s / tau) + e^(t / tau))), where s is the cosine of its
    representation by the model that is trained to that by the received model, and t the same to that by the client's model of
    the last time. The representation is the input of the last dense layer (``torch.nn.Linear``), where the paper has a
    projection head; both other models are asked without dropout. The reported training loss is without the term.

    Sends what FedAvg sends. A step takes two forward passes more, 5/3 of FedAvg's, and on devices with a memory room for the
    weights of two models. A client whose answer is cut off keeps its last model; a newcomer's is the first model of all.
    """

    Params = MOONParams
    Client = MOONClient
