"""Strategies without rounds: FedAsync mixes in every update as it comes; with FedBuff a full buffer makes a version."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedsim.federation.client import Client, Instruction
from fedsim.federation.devices import Device
from fedsim.federation.messages import TaskEnd
from fedsim.language.spec import OnlyWith
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams
from fedsim.strategies.parts.server import ServerOptimiserSpec
from fedsim.training import Training


class FedAsyncParams(AsynchronousParams):
    """What FedAsync takes.

    Attributes:
        alpha: weight of a fresh update in the new model.
        alpha_decay: alpha is multiplied by this ...
        alpha_decay_at: ... when so many versions have been made, ascending (the paper: by 0.5 at 800).
        staleness: how the weight falls with staleness tau: ``polynomial``, (1 + tau)^-a; ``hinge``, 1 up to b, then
            1 / (a (tau - b) + 1).
        exponent: a of ``polynomial``; 0: the weight does not fall (the paper's constant function).
        hinge_slope: a of ``hinge``; the defaults are those of the paper's experiments.
        hinge_from: b of ``hinge``, in versions.
        rho: weight of the proximal term rho/2 ||w - w_received||^2 of the local solve.
    """

    kind: Literal["fedasync"] = "fedasync"
    alpha: float = Field(default=0.6, gt=0.0, le=1.0)
    alpha_decay: Annotated[float, OnlyWith("alpha_decay_at")] = Field(default=0.5, gt=0.0, le=1.0)
    alpha_decay_at: list[Annotated[int, Field(ge=1)]] = Field(default=[])
    staleness: Literal["polynomial", "hinge"] = "polynomial"
    exponent: Annotated[float, OnlyWith("staleness", values=("polynomial",))] = Field(default=0.5, ge=0.0)
    hinge_slope: Annotated[float, OnlyWith("staleness", values=("hinge",))] = Field(default=10.0, gt=0.0)
    hinge_from: Annotated[int, OnlyWith("staleness", values=("hinge",))] = Field(default=4, ge=0)
    rho: float = Field(default=0.0, ge=0.0, le=1e6)

    @field_validator("alpha_decay_at")
    @classmethod
    def _ascending(cls, versions: list[int]) -> list[int]:
        if versions != sorted(set(versions)):
            raise ValueError(f"{versions} is not in ascending order; allowed are different numbers of versions from 1 on")
        return versions

    def weight(self, version: int, staleness: int) -> float:
        """alpha_t: how much an update of ``staleness`` counts when ``version`` versions have been made."""
        alpha = self.alpha * self.alpha_decay ** sum(version >= at for at in self.alpha_decay_at)
        if self.staleness == "hinge":
            return alpha / (self.hinge_slope * max(staleness - self.hinge_from, 0) + 1)
        return float(alpha * (1 + staleness) ** -self.exponent)


class FedAsyncClient(Client[FedAsyncParams]):
    """Trains with the proximal term."""

    def training(self, device: Device, order: Instruction) -> Training:
        return Training(order["model"], self.params.local_epochs, mu=self.params.rho)


class FedAsync(Asynchronous[FedAsyncParams]):
    """Asynchronous federated optimisation.

    Source: Xie, Koyejo and Gupta, "Asynchronous federated optimization" (2019), Algorithm 1 with the staleness
    functions of section 5.2: an update of staleness tau makes w <- (1 - alpha_t) w + alpha_t w_new with alpha_t = alpha s(tau).
    tau is the number of versions made since the client's download, 0 for a fresh update.

    At any time ``concurrency`` clients are at work. Each receives the model (d parameters), minimises its loss plus
    rho/2 ||w - w_received||^2, and sends the result (d parameters); a version is made of each update. Evaluating every version
    computes updates one by one; ``evaluation.every`` of some tens lets them be computed in cohorts, with the same result.
    """

    Params = FedAsyncParams
    Client = FedAsyncClient

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        weight = self.params.weight(self.state["version"], staleness)
        before = self.state["model"]
        model = self.server.mix([(before, 1.0 - weight), (message["update"], weight)], otherwise=before)
        await self.publish(model, [self._entry(message, base) | {"weight": weight, "staleness": staleness}])


class FedBuffParams(AsynchronousParams):
    """What FedBuff takes.

    Attributes:
        buffer: K, how many updates make a version.
        server_lr: eta_g, the server's step along their mean.
        server: what the server makes of that (``parts/server``): server momentum is ``{ kind = "sgd", momentum = 0.3 }``; None:
            it is the next version.
        staleness_discount: whether an update of staleness tau counts 1/sqrt(1 + tau), or all count the same.
        most_staleness: an update that is staler counts 0, and fills no place in the buffer; None: all count.
    """

    kind: Literal["fedbuff"] = "fedbuff"
    buffer: int = Field(default=10, ge=1)
    server_lr: float = Field(default=1.0, gt=0.0, le=1e6)
    server: ServerOptimiserSpec | None = None
    staleness_discount: bool = True
    most_staleness: int | None = Field(default=None, ge=0)


class FedBuff(Asynchronous[FedBuffParams]):
    """Federated learning with buffered asynchronous aggregation.

    Source: Nguyen et al., "Federated learning with buffered asynchronous aggregation" (AISTATS 2022), Algorithm 1: with K
    updates in the buffer, w <- w + eta_g / K sum_i s(tau_i) (w_i - w_i^received), where s(tau) = 1/sqrt(1 + tau) (its section
    5, "staleness scaling") and tau_i is the number of versions made since client i's download, 0 for a fresh update. The mean
    is not weighted by samples, and its weights do not sum to 1 when updates are stale: both as in the paper.

    At any time ``concurrency`` clients are at work. Each receives the model (d parameters), runs local SGD, and sends its
    update (d parameters). An update that is not finite is left out, and the others weigh more.

    State besides ``Asynchronous``'s: ``buffer``, the updates received since the last version; ``server``, what that remembers.
    """

    Params = FedBuffParams

    async def on_start(self) -> None:
        self.state["buffer"] = []
        await super().on_start()

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        params, buffer = self.params, self.state["buffer"]
        discount = (1 + staleness) ** -0.5 if params.staleness_discount else 1.0
        if params.most_staleness is not None and staleness > params.most_staleness:
            discount = 0.0
        weight = params.server_lr * discount / params.buffer
        buffer.append(self._entry(message, base) | {"weight": weight, "staleness": staleness})
        if sum(each["weight"] > 0 for each in buffer) == params.buffer:
            self.state["buffer"] = []
            await self.publish(self._step(buffer), buffer)

    def _step(self, buffer: list[dict[str, Any]]) -> Ref:
        """The current model moved by the buffer's updates; one that is not finite takes its base out with it."""
        mix, model, optimiser = self.server.mix, self.state["model"], self.params.server
        differences = [(mix([(entry["update"], 1.0), (entry["base"], -1.0)]), entry) for entry in buffer]
        step = mix([(difference, entry["weight"]) for difference, entry in differences])
        stepped = mix([(model, 1.0), (step, 1.0)], otherwise=model, rescale=False)
        return stepped if optimiser is None else optimiser.step(self.server, self.remembered("server"), model, stepped)
