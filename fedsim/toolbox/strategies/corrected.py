"""Strategies that correct the mean of updates for what clients' data and speeds do to it: FedDyn, FedDR, FedNova."""

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult, Server
from fedsim.language.spec import OnlyWith
from fedsim.learning.functions import weighted_sum
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg, FedProx, FedProxClient, FedProxParams
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean, changes
from fedsim.strategies.round_params import AggregatingParams, RoundParams, SynchronousParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import Training


class FedDynParams(AggregatingParams):
    """Parameters of FedDyn, in addition to ``AggregatingParams``.

    Attributes:
        alpha: weight of the regulariser.
        alpha_samples: a device's alpha is ``alpha`` n / (its samples), as in the published code; None: ``alpha``, as in the
            paper.
    """

    added_up: ClassVar[tuple[str, ...]] = ("update",)
    beside: ClassVar[str | None] = "FedDyn adds the sum of all earlier moves to the model in each round"

    kind: Literal["feddyn"] = "feddyn"
    alpha: float = Field(default=0.01, gt=0.0, le=1e6)
    alpha_samples: float | None = Field(default=None, gt=0.0)
    aggregation: AggregationSpec = Mean()


class FedDynClient(SynchronousClient[FedDynParams]):
    """Local SGD on L_k(w) + alpha <moved, w> + alpha / 2 ||w - received||^2.

    State: ``moved``, the sum of how far its answers were from the models that it had received; absent while it is 0.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        alpha = self.params.alpha
        if self.params.alpha_samples is not None:
            alpha *= self.params.alpha_samples / max(device.samples, 1)
        linear = device.mix([(device.state["moved"], alpha)]) if "moved" in device.state else None
        return Training(instruction["model"], self.params.local_epochs, mu=alpha, linear=linear)

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        before = device.state.get("moved", device.zero())
        parts = [(before, 1.0), (reply["update"], 1.0), (instruction["model"], -1.0)]
        device.state["moved"] = device.mix(parts, otherwise=before)


class FedDyn(FedAvg[FedDynParams]):
    """Federated learning with dynamic regularisation.

    Source: Acar et al., "Federated learning based on dynamic regularization" (ICLR 2021), Algorithm 1. With s_k the sum of
    client k's moves theta_k - theta so far and s the mean of all s_k (the paper's h is -alpha s, its grad L_k is -alpha s_k):
    client k minimises L_k(w) + alpha <s_k, w> + alpha / 2 ||w - theta||^2; then s <- s + (1/N) sum_k (theta_k - theta) over the
    clients that answered, and the next model is the mean of their theta_k, plus s. With a robust aggregation s <- (1 - K / N) s
    + K / N times what it makes of the s_k of the round's K clients.

    Sends what FedAvg sends: both sides add up the same moves (``moved``, ``followed``). The local solve is ``local_epochs`` of
    SGD, where the paper has the exact minimum. A client whose answer is cut off keeps its s_k; one whose update is not finite
    moves neither side.
    """

    Params = FedDynParams
    Client = FedDynClient

    async def on_start(self) -> None:
        self.state["moved"] = self.server.models.zero()
        await super().on_start()

    async def combine(self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any) -> Ref:
        self.state["moved"] = await self.followed(self.state["moved"], entries, changes(self.server, entries))
        return await super().combine(model, entries, slot, **record)

    def advance(self, model: Ref, aggregated: Ref, group: int = 0) -> Ref:
        parts = [(aggregated, 1.0), (self.state["moved"], 1.0)]
        return super().advance(model, self.server.models.mix(parts, otherwise=model, rescale=False), group)


class FedDRParams(SynchronousParams):
    """Parameters of FedDR, in addition to ``SynchronousParams``.

    Attributes:
        eta: of the local problem, the least f_i(x) + ||x - y_i||^2 / (2 eta).
        alpha: relaxation; 1: Douglas and Rachford's own step.
        start: SGD on the local problem begins at its ``center``, y_i, or as in the published code at the device's ``own`` last
            solution, x_i.
    """

    added_up: ClassVar[tuple[str, ...]] = ("update",)

    kind: Literal["feddr"] = "feddr"
    eta: float = Field(default=1.0, gt=0.0, le=1e6)
    alpha: float = Field(default=1.0, gt=0.0, lt=2.0)
    start: Literal["center", "own"] = "center"


class FedDRClient(SynchronousClient[FedDRParams]):
    """Moves its point y_i, finds the proximal point x_i around it by local SGD, and sends how far 2 x_i - y_i has moved
    (``z``).
    """

    @staticmethod
    def _point(device: Device, name: str) -> Ref:
        point: Ref = device.state.get(name, device.initial())
        return point

    def moved(self, device: Device, instruction: Instruction) -> Ref:
        alpha, x, y = self.params.alpha, self._point(device, "x"), self._point(device, "y")
        return device.mix([(y, 1.0), (instruction["model"], alpha), (x, -alpha)])

    def training(self, device: Device, instruction: Instruction) -> Training:
        center = self.moved(device, instruction)
        start = self._point(device, "x") if self.params.start == "own" else center
        return Training(start, self.params.local_epochs, mu=1.0 / self.params.eta, anchor=center)

    def computed(self, device: Device, instruction: Instruction, result: LocalResult) -> LocalResult:
        """The update is the received model, and how far 2 x_i - y_i is from what the server has for it."""
        assert result.update is not None
        parts = [(instruction["model"], 1.0), (result.update, 2.0), (self.moved(device, instruction), -1.0)]
        update = device.mix([*parts, (self._point(device, "z"), -1.0)])
        return super().computed(device, instruction, result._replace(update=update, start=instruction["model"]))

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents | None:
        assert result.trained is not None
        own = Header([result.trained, self.moved(device, instruction)])
        return {**(super().reply(device, instruction, result) or {}), "own": own}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """The server has the move as it arrived: it is made here too; one that is not finite on neither side."""
        x, y = reply["own"].value
        before = {name: self._point(device, name) for name in "xyz"}
        parts = [(before["z"], 1.0), (reply["update"], 1.0), (instruction["model"], -1.0)]
        device.state["z"] = device.mix(parts, otherwise=before["z"])
        device.state["x"] = device.mix([(x, 1.0), (y, 0.0)], otherwise=before["x"])
        device.state["y"] = device.mix([(y, 1.0), (x, 0.0)], otherwise=before["y"])


class FedDR(FedAvg[FedDRParams]):
    """Federated Douglas-Rachford.

    Source: Tran Dinh, Pham, Phan and Nguyen, "FedDR: randomized Douglas-Rachford splitting algorithms for nonconvex federated
    composite optimization" (NeurIPS 2021), Algorithm 1, with g = 0: client i moves y_i <- y_i + alpha (w - x_i), finds x_i =
    prox_(eta f_i)(y_i), and sends how far 2 x_i - y_i has moved; the model w is the mean of 2 x_i - y_i over all devices, where
    those that were never asked count with the first model. All devices count alike. The paper's proximal point is exact or
    nearly so; here it is ``local_epochs`` of SGD.

    Sends what FedAvg sends. A client whose answer is cut off keeps its x_i and y_i.
    """

    Params = FedDRParams
    Client = FedDRClient

    async def aggregate(self) -> None:
        received, before = self.state["received"], self.state["model"]
        if received:
            weights = [1.0 / self.setting.devices] * len(received)
            self.record_aggregate(received, weights)
            parts = [(before, 1.0), *zip(changes(self.server, received), weights, strict=True)]
            self.state["model"] = self.server.models.mix(parts, otherwise=before, rescale=False)


class FedNovaParams(FedProxParams):
    """Parameters of FedNova; see ``FedProxParams``.

    Attributes:
        mu: weight of the proximal term; 0, local SGD, unless it is given.
        partial_work: a client that cannot finish all epochs sends what it has, which counts by the steps that it took.
        effective: tau_eff with mu: the mean ``reach`` of the clients (the paper), or of their ``steps`` (the authors' code).
    """

    counts_steps: ClassVar[str] = "FedNova normalises by how far steps of SGD reach"
    kind: Literal["fednova"] = "fednova"  # type: ignore[assignment]
    mu: float = 0.0
    effective: Annotated[Literal["reach", "steps"], OnlyWith("mu")] = "reach"


@lru_cache(maxsize=4096)
def reach(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """The distance that so many steps go along a gradient that is 1 everywhere (the paper's ||a||_1), in units of the learning
    rate.

    With ``momentum`` (its section 4.1), and with FedProx's ``pull`` = lr mu: v <- momentum v + 1 - pull x; x <- x + v.
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += velocity
    return moved


class FedNovaClient(FedProxClient):
    """Trains as FedProx's, and says how many steps it took."""

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents | None:
        return {**(super().reply(device, instruction, result) or {}), "steps": Header(result.steps)}


class FedNova(FedProx):
    """Normalised averaging.

    Source: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization" (NeurIPS 2020),
    Algorithm 1 and its update rule: w <- w + tau_eff sum_i p_i (w_i - w) / ||a_i||_1, where ||a_i||_1 is how far client i's
    steps reach (``reach``), p_i its weight by ``aggregation``, and tau_eff = sum_i p_i ||a_i||_1 (its Eq. 5). Where all take
    the same steps it is FedAvg.

    Sends what FedAvg sends, and in the answer's header the number of steps that were really taken.
    """

    Params: ClassVar[type[RoundParams]] = FedNovaParams
    Client = FedNovaClient

    def __init__(self, params: FedNovaParams, server: Server) -> None:
        super().__init__(params, server)
        lr = self.setting.lr_in(0)
        if params.mu * lr >= 1:
            raise ScenarioError(
                f"strategy.mu is {params.mu:g}: with a learning rate of {lr:g} a local step would go beyond "
                f"its anchor, and steps could not be counted; allowed is less than {1 / lr:g}"
            )

    async def combine(self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any) -> Ref:
        assert isinstance(self.params, FedNovaParams)
        pull = self.params.mu * self.setting.lr_in(self.state["round"])
        reaches = [reach(entry["contents"]["steps"], self.setting.momentum, pull) for entry in entries]
        taken = reaches if self.params.effective == "reach" else [entry["contents"]["steps"] for entry in entries]
        effective = sum(weight * own for weight, own in zip(self.weights(entries), taken, strict=True))
        normalised = []
        for entry, own in zip(entries, reaches, strict=True):
            factor = effective / own if own else 0.0
            models = [entry["start"], entry["update"]]
            # Not finite if either is not.
            update = self.server.models.apply(weighted_sum, models, coefficients=[1 - factor, factor])
            normalised.append(entry | {"update": update})
        return await super().combine(model, normalised, slot, **record)
