"""Strategies that correct client drift by what devices remember: SCAFFOLD, FedDyn, FedDR."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.federation.client import Instruction, LocalResult
from fedsim.federation.contents import Contents, Header
from fedsim.federation.devices import Device
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean, Protection, changes
from fedsim.strategies.round_params import AggregatingParams, SynchronousParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import Training
from fedsim.world.task import Computation, Train


class ScaffoldParams(AggregatingParams):
    """What SCAFFOLD takes, besides ``AggregatingParams``; its server's learning rate is that of ``server = "sgd"``.

    Attributes:
        aggregation: the plain mean, as in the paper, unless another is given.
        option: how a client renews c_i. ``II``: from how far its steps have led. ``I``: as its gradient over all of its data at
            the model that it received, for which it goes through them once more.
    """

    added_up: ClassVar[tuple[str, ...]] = ("control-variate",)

    kind: Literal["scaffold"] = "scaffold"
    aggregation: AggregationSpec = Mean()
    option: Literal["I", "II"] = "II"

    def unprotected(self, protection: Protection) -> str | None:
        return "SCAFFOLD sums control variates beside it" if protection == "private" else None

    @model_validator(mode="after")
    def _one_training(self) -> Self:
        if self.option == "I":
            self.refuse_budget("with 'option' I a client finds a gradient too")
        return self


class ScaffoldClient(SynchronousClient[ScaffoldParams]):
    """Trains along the gradient + c - c_i, and renews its control variate c_i.

    State: ``control``, c_i; absent while it is 0.
    """

    def work(self, device: Device, order: Instruction) -> Sequence[Computation]:
        """The local solve; for option I a gradient first, as one step of all of its data at a learning rate of 1."""
        gradient = Train(Training(order["model"], steps=1, full_batch=True, lr=1.0))
        return (gradient, *super().work(device, order)) if self.params.option == "I" else super().work(device, order)

    def training(self, device: Device, order: Instruction) -> Training:
        linear = device.mix([(order["control-variate"], 1.0), *self._own(device)])
        return Training(order["model"], self.params.local_epochs, linear=linear)

    def reply(self, device: Device, order: Instruction, done: LocalResult) -> Contents | None:
        """The update, and by how much c_i changes: (x - y_i) / (K lr) - c, for K steps (option II), or g_i(x) - c_i (I)."""
        assert done.update is not None
        if done.earlier:
            parts = [(order["model"], 1.0), (done.earlier[0], -1.0), *self._own(device)]
        else:
            scale = 1.0 / (done.steps * self.setting.lr_in(order.round or 0)) if done.steps else 0.0
            parts = [(order["model"], scale), (done.update, -scale), (order["control-variate"], -1.0)]
        return {**(super().reply(device, order, done) or {}), "control-variate": device.mix(parts)}

    def sent(self, device: Device, order: Instruction, reply: Contents) -> None:
        before = device.state.get("control", device.zero())
        device.state["control"] = device.mix([(before, 1.0), (reply["control-variate"], 1.0)], otherwise=before)

    def _own(self, device: Device) -> list[tuple[Ref, float]]:
        return [(device.state["control"], -1.0)] if "control" in device.state else []


class Scaffold(FedAvg[ScaffoldParams]):
    """Stochastic controlled averaging.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning" (ICML 2020), Algorithm 1,
    options I and II.

    A round: K clients receive the model and the server's control variate c (2 d parameters). Each trains with the term c - c_i
    added to every gradient, and sends its update and by how much its own control variate changes (2 d parameters). The model
    becomes the mean of the updates, c moves by the sum of the changes over the number N of all devices. With a robust
    aggregation the server adds up the changes of each client, and c <- (1 - K / N) c + K / N times what it makes of the c_i of
    the round's K clients. c and all c_i begin at 0, also those of newcomers. A client whose answer is cut off keeps its c_i.
    With option II the corrections are those of plain SGD: ``training.momentum`` makes K lr too short a measure of a step.

    State besides FedAvg's: ``control``, c; ``followed``, device -> c_i, with a robust aggregation.
    """

    Params = ScaffoldParams
    Client = ScaffoldClient

    async def on_start(self) -> None:
        self.state["control"] = self.server.zero()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        return {**super().contents(device), "control-variate": self.state["control"]}

    async def aggregate(self) -> None:
        received: list[dict[str, Any]] = self.state["received"]
        sent = [entry["contents"]["control-variate"] for entry in received]
        await super().aggregate()
        self.state["control"] = await self.followed(self.state["control"], received, sent)


class FedDynParams(AggregatingParams):
    """What FedDyn takes, besides ``AggregatingParams``.

    Attributes:
        alpha: weight of the regulariser.
        alpha_samples: None: ``alpha`` is that of every device, as in the paper. A number n: it is that of a device with n
            samples, and another's is alpha n / (its own samples), as in the published code (where n is the mean): what is
            minimised is then the mean of the losses weighted by samples, without it the plain mean.
        aggregation: the plain mean, as in the paper, unless another is given.
    """

    added_up: ClassVar[tuple[str, ...]] = ("update",)

    kind: Literal["feddyn"] = "feddyn"
    alpha: float = Field(default=0.01, gt=0.0, le=1e6)
    alpha_samples: float | None = Field(default=None, gt=0.0)
    aggregation: AggregationSpec = Mean()

    def unprotected(self, protection: Protection) -> str | None:
        return "FedDyn adds the sum of all earlier moves to the model in each round" if protection == "private" else None


class FedDynClient(SynchronousClient[FedDynParams]):
    """Local SGD on L_k(w) + alpha <moved, w> + alpha / 2 ||w - received||^2.

    State: ``moved``, the sum of how far its answers were from the models that it had received: the paper's gradient
    grad L_k(theta_k) is -alpha times that. Absent while it is 0.
    """

    def training(self, device: Device, order: Instruction) -> Training:
        alpha = self.params.alpha
        if self.params.alpha_samples is not None:
            alpha *= self.params.alpha_samples / max(device.samples, 1)
        linear = device.mix([(device.state["moved"], alpha)]) if "moved" in device.state else None
        return Training(order["model"], self.params.local_epochs, mu=alpha, linear=linear)

    def sent(self, device: Device, order: Instruction, reply: Contents) -> None:
        """The server has the update: both sides add how far it was."""
        before = device.state.get("moved", device.zero())
        parts = [(before, 1.0), (reply["update"], 1.0), (order["model"], -1.0)]
        device.state["moved"] = device.mix(parts, otherwise=before)


class FedDyn(FedAvg[FedDynParams]):
    """Federated learning with dynamic regularisation.

    Source: Acar et al., "Federated learning based on dynamic regularization" (ICLR 2021), Algorithm 1. With s_k the sum of
    client k's moves theta_k - theta so far and s the mean of all s_k (the paper's h is -alpha s, its grad L_k is -alpha s_k):
    client k minimises L_k(w) + alpha <s_k, w> + alpha / 2 ||w - theta||^2; then s <- s + (1/N) sum_k (theta_k - theta) over
    the clients that answered, and the next model is the mean of their theta_k, plus s. With a robust aggregation the server
    adds up the moves of each client, and s <- (1 - K / N) s + K / N times what it makes of the s_k of the round's K clients.

    Sends what FedAvg sends: both sides add up the same moves. The local solve is ``local_epochs`` of SGD, where the paper has
    the exact minimum. A client whose answer is cut off keeps its s_k; one whose update is not finite moves neither side; a
    newcomer's s_k is 0.

    State besides FedAvg's: ``moved``, s; ``followed``, device -> s_k, with a robust aggregation.
    """

    Params = FedDynParams
    Client = FedDynClient

    async def on_start(self) -> None:
        self.state["moved"] = self.server.zero()
        await super().on_start()

    async def combine(self, model: Ref, entries: list[dict[str, Any]], slot: int = 0, **record: Any) -> Ref:
        self.state["moved"] = await self.followed(self.state["moved"], entries, changes(self.server, entries))
        return await super().combine(model, entries, slot, **record)

    def advance(self, model: Ref, aggregated: Ref, group: int = 0) -> Ref:
        parts = [(aggregated, 1.0), (self.state["moved"], 1.0)]
        return super().advance(model, self.server.mix(parts, otherwise=model, rescale=False), group)


class FedDRParams(SynchronousParams):
    """What FedDR takes, besides ``SynchronousParams``.

    Attributes:
        eta: of the local problem, the least f_i(x) + ||x - y_i||^2 / (2 eta).
        alpha: relaxation; 1: Douglas and Rachford's own step.
        start: where SGD on the local problem begins: at its ``center``, y_i, or as in the published code at the device's
            ``own`` last solution, x_i. With exact solutions that is the same.
    """

    added_up: ClassVar[tuple[str, ...]] = ("update",)

    kind: Literal["feddr"] = "feddr"
    eta: float = Field(default=1.0, gt=0.0, le=1e6)
    alpha: float = Field(default=1.0, gt=0.0, lt=2.0)
    start: Literal["center", "own"] = "center"


class FedDRClient(SynchronousClient[FedDRParams]):
    """Moves its point y_i, finds the proximal point x_i around it by local SGD, and sends how far 2 x_i - y_i has moved.

    State: ``x``, x_i, ``y``, y_i, and ``z``, what the server has for 2 x_i - y_i; absent until it has first answered, when all
    three are the first model.
    """

    def moved(self, device: Device, order: Instruction) -> Ref:
        """y_i + alpha (received - x_i)."""
        start = device.initial()
        x, y = device.state.get("x", start), device.state.get("y", start)
        return device.mix([(y, 1.0), (order["model"], self.params.alpha), (x, -self.params.alpha)])

    def training(self, device: Device, order: Instruction) -> Training:
        center, own = self.moved(device, order), device.state.get("x", device.initial())
        start = own if self.params.start == "own" else center
        return Training(start, self.params.local_epochs, mu=1.0 / self.params.eta, anchor=center)

    def computed(self, device: Device, order: Instruction, done: LocalResult) -> LocalResult:
        """The update is the received model, and how far 2 x_i - y_i is from what the server has for it."""
        assert done.update is not None
        z = device.state.get("z", device.initial())
        parts = [(order["model"], 1.0), (done.update, 2.0), (self.moved(device, order), -1.0), (z, -1.0)]
        return super().computed(device, order, done._replace(update=device.mix(parts), start=order["model"]))

    def reply(self, device: Device, order: Instruction, done: LocalResult) -> Contents | None:
        assert done.trained is not None
        return {**(super().reply(device, order, done) or {}), "own": Header([done.trained, self.moved(device, order)])}

    def sent(self, device: Device, order: Instruction, reply: Contents) -> None:
        """The server has the move, as it arrived: it is made here too; one that is not finite on neither side."""
        x, y = reply["own"].value
        start = device.initial()
        z = device.state.get("z", start)
        device.state["z"] = device.mix([(z, 1.0), (reply["update"], 1.0), (order["model"], -1.0)], otherwise=z)
        device.state["x"] = device.mix([(x, 1.0), (y, 0.0)], otherwise=device.state.get("x", start))
        device.state["y"] = device.mix([(y, 1.0), (x, 0.0)], otherwise=device.state.get("y", start))


class FedDR(FedAvg[FedDRParams]):
    """Federated Douglas-Rachford.

    Source: Tran Dinh, Pham, Phan and Nguyen, "FedDR: randomized Douglas-Rachford splitting algorithms for nonconvex federated
    composite optimization" (NeurIPS 2021), Algorithm 1, with g = 0: client i moves y_i <- y_i + alpha (w - x_i), finds
    x_i = prox_(eta f_i)(y_i), and sends how far 2 x_i - y_i has moved; the model w is the mean of 2 x_i - y_i over all devices,
    where those that were never asked count with the first model. All devices count alike, whatever their samples. The paper's
    proximal point is exact or nearly so; here it is ``local_epochs`` of SGD. (The published code weighs devices by their
    samples, and begins with y_i = 0.)

    Sends what FedAvg sends. A client whose answer is cut off keeps its x_i and y_i; a newcomer begins with the first model.
    """

    Params = FedDRParams
    Client = FedDRClient

    async def aggregate(self) -> None:
        received = self.state["received"]
        if not received:
            return
        weights, before = [1.0 / self.setting.devices] * len(received), self.state["model"]
        self.record_aggregate(received, weights)
        parts = [(before, 1.0), *zip(changes(self.server, received), weights, strict=True)]
        self.state["model"] = self.server.mix(parts, otherwise=before, rescale=False)
