"""The loop without rounds, and the strategies FedAsync and FedBuff."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fedsim.errors import ScenarioError
from fedsim.evaluation.evaluator import Measured, ModelAssignment
from fedsim.federation import Client, Device, Instruction, TaskEnd
from fedsim.language.spec import Epochs, OnlyWith
from fedsim.language.units import PositiveSeconds
from fedsim.learning.refs import Ref
from fedsim.strategies.base import Strategy, StrategyParams
from fedsim.strategies.parts.selection import Random, SelectionSpec
from fedsim.strategies.parts.server import ServerOptimiserSpec
from fedsim.training import Training


class AsynchronousParams(StrategyParams):
    """Parameters of every asynchronous strategy.

    Attributes:
        concurrency: how many clients work at any time, if so many can be had.
        local_epochs: E, passes over its own data that a client makes.
        retry: with fewer clients at work than that, look for more after this time (s).
        selection: who is asked next (``parts/selection``); not one that asks candidates first.
    """

    concurrency: int = Field(default=10, ge=1)
    local_epochs: Epochs = 1
    retry: PositiveSeconds = 60.0
    selection: SelectionSpec = Random()

    @model_validator(mode="before")
    @classmethod
    def _no_rounds(cls, data: Any) -> Any:
        if isinstance(data, dict) and "deadline" in data and "deadline" not in cls.model_fields:
            why = "has the key 'deadline', which says when a round ends; without rounds nobody waits for a slow client"
            raise PydanticCustomError("unknown_key", why)
        return data

    def check(self, devices: int) -> None:
        if self.selection.asks:
            raise ScenarioError(
                f"strategy.selection is {self.selection.kind!r}, which asks candidates before a round begins; without rounds "
                "clients are replaced at once, and allowed are those that ask nobody first: random, least-asked, oort, "
                "least-available, or power-of-choice with losses = 'reported'"
            )
        self.refuse_more("concurrency", devices)


A = TypeVar("A", bound=AsynchronousParams)


class Asynchronous(Strategy[A]):
    """A strategy without rounds. An algorithm fills in ``receive``, and has a ``Client`` of its own if that is not plain SGD.

    So many clients work at any time. Each downloads the model of its time (d parameters), trains, and uploads the result (d
    parameters); its staleness is the number of versions that the server has made meanwhile. It is replaced after every message
    of the instant, so that clients who end together are replaced together. The run records each version as a round.

    State: ``version``, the number of that which is waited for, from 0; ``model``; ``open``, task -> the version and the model
    that it started from; ``draws``, how often clients were drawn, which names the stream; ``refilling``, whether replacements
    are to be asked at the end of this instant; ``selection``, what that remembers; ``over``, whether the last version is made.
    """

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        """Take in an update (``message["update"]``), trained from ``base``; ``publish`` a new version when it is time."""
        raise NotImplementedError

    @staticmethod
    def _entry(message: TaskEnd, base: Ref) -> dict[str, Any]:
        about = {"task": message.task, "device": message.device, "base": base}
        return about | {name: message[name] for name in ("update", "samples")}

    async def on_start(self) -> None:
        self.state |= {"version": 0, "model": self.server.models.initial(), "open": {}}
        self.state |= {"draws": 0, "refilling": False, "over": False}
        self.server.begin_round(0)
        self._refill()

    def _refill(self) -> None:
        state, server = self.state, self.server
        missing = self.params.concurrency - len(state["open"])
        state["refilling"] = False
        selection = self.params.selection
        devices = selection.select(server, self.remembered("selection"), missing, (state["draws"],))
        for device in server.clients.chosen(devices, type(selection).select):
            task = server.ask(device, {"model": state["model"]}, round=state["version"])
            state["open"][task] = {"version": state["version"], "model": state["model"]}
        state["draws"] += 1
        if not state["open"]:
            server.look_again("refill", self.params.retry)
        elif len(state["open"]) < self.params.concurrency:
            server.timer("refill", server.now + self.params.retry)

    async def on_arrival(self, device: int) -> None:
        if len(self.state["open"]) < self.params.concurrency:
            self._refill_soon()

    def _refill_soon(self) -> None:
        if not self.state["refilling"]:
            self.state["refilling"] = True
            self.server.timer("refill", self.server.now)

    async def on_timer(self, name: str) -> None:
        if not self.state["over"]:
            self._refill()

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        begun = state["open"].pop(message.task)
        self.params.selection.heard(self.server, self.remembered("selection"), message)
        if state["over"]:
            return
        if message.outcome == "done":
            await self.receive(message, begun["model"], state["version"] - begun["version"])
        self._refill_soon()

    async def publish(self, model: Ref, updates: Sequence[dict[str, Any]], **about: int) -> None:
        """Make ``model`` the next version.

        ``updates`` are dicts of ``task``, ``device``, ``update`` and ``base`` (refs), ``samples``, ``weight``, ``staleness``;
        ``about`` is what else the record of the aggregation says.
        """
        state, server = self.state, self.server
        state["model"] = model
        tasks, weights, staleness = ([entry[name] for entry in updates] for name in ("task", "weight", "staleness"))
        server.emit("aggregate", round=state["version"], tasks=tasks, weights=weights, staleness=staleness, **about)
        measured = [
            Measured(entry["update"], float(entry["samples"]), entry["base"], model, entry.get("device")) for entry in updates
        ]
        state["over"] = not await server.finish_round(state["version"], self.models(), updates=measured)
        if not state["over"] and self._selection is not None:
            await self._selection.learn(server, self.remembered("selection"))
        state["version"] += 1
        server.begin_round(state["version"])

    def models(self) -> ModelAssignment:
        return {"global": (self.state["model"], None)}


class FedAsyncParams(AsynchronousParams):
    """Parameters of FedAsync.

    Attributes:
        alpha: weight of a fresh update in the new model.
        alpha_decay: the factor of alpha at each of ``alpha_decay_at``.
        alpha_decay_at: numbers of versions, ascending (the paper: 0.5 at 800).
        staleness: the weight at staleness tau: ``polynomial``, (1 + tau)^-a; ``hinge``, 1 up to b, then 1 / (a (tau - b) + 1).
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
    """Minimises its loss plus rho/2 ||w - w_received||^2."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], self.params.local_epochs, mu=self.params.rho)


class FedAsync(Asynchronous[FedAsyncParams]):
    """Asynchronous federated optimisation.

    Source: Xie, Koyejo and Gupta, "Asynchronous federated optimization" (2019), Algorithm 1 with the staleness
    functions of section 5.2: an update of staleness tau makes w <- (1 - alpha_t) w + alpha_t w_new with alpha_t = alpha s(tau).
    tau is the number of versions made since the client's download, 0 for a fresh update.

    Each update makes a version. An ``evaluation.every`` of some tens lets updates be computed in cohorts, with the same result.
    """

    Params = FedAsyncParams
    Client = FedAsyncClient

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        weight = self.params.weight(self.state["version"], staleness)
        before = self.state["model"]
        model = self.server.models.mix([(before, 1.0 - weight), (message["update"], weight)], otherwise=before)
        await self.publish(model, [self._entry(message, base) | {"weight": weight, "staleness": staleness}])


class FedBuffParams(AsynchronousParams):
    """Parameters of FedBuff.

    Attributes:
        buffer: K, how many updates make a version.
        server_lr: eta_g, the server's step along their mean.
        server: what the server makes of that (``parts/server``); None: it is the next version.
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
    5, "staleness scaling") and tau_i is the number of versions made since client i's download. The mean is not weighted by
    samples, and its weights do not sum to 1 when updates are stale: both as in the paper. An update that is not finite is left
    out, and the others weigh more.
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
        mix, model, optimiser = self.server.models.mix, self.state["model"], self.params.server
        differences = [(mix([(entry["update"], 1.0), (entry["base"], -1.0)]), entry) for entry in buffer]
        step = mix([(difference, entry["weight"]) for difference, entry in differences])
        stepped = mix([(model, 1.0), (step, 1.0)], otherwise=model, rescale=False)
        return stepped if optimiser is None else optimiser.step(self.server, self.remembered("server"), model, stepped)
