"""FedAsync: each update is mixed into the model as it arrives (Xie et al., 2019)."""

from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.spec import OnlyWith
from fedsim.common.training import Proximal, Training
from fedsim.federation import Client, Device, Instruction, TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams


class FedAsyncParams(AsynchronousParams):
    """Keys of ``[strategy]`` for FedAsync.

    Attributes:
        alpha: weight of a fresh update in the new model.
        alpha_decay: factor by which alpha is multiplied at each version of ``alpha_decay_at``.
        alpha_decay_at: indices of versions at which alpha decays (the paper: by 0.5 at 800).
        staleness: function of the staleness tau (versions made since the client's download) that
            scales the weight: ``polynomial``, (1 + tau)^-a, or ``hinge``, which is 1 up to tau = b,
            then 1 / (a (tau - b) + 1).
        exponent: a of ``polynomial``; 0: the weight does not fall (the paper's constant function).
        hinge_slope: a of ``hinge``; the defaults are from the paper's experiments.
        hinge_from: b of ``hinge``, in versions.
        rho: weight of the proximal term rho/2 ||w - w_received||^2 in the clients' loss, with the
            model w in training and the received model w_received.
    """

    kind: Literal["fedasync"] = "fedasync"
    alpha: float = Field(default=0.6, gt=0.0, le=1.0)
    alpha_decay: Annotated[float, OnlyWith("alpha_decay_at")] = Field(default=0.5, gt=0.0, le=1.0)
    alpha_decay_at: list[Annotated[int, Field(ge=1)]] = Field(default=[])
    staleness: Literal["polynomial", "hinge"] = "polynomial"
    exponent: Annotated[float, OnlyWith("staleness", values=("polynomial",))] = Field(
        default=0.5, ge=0.0
    )
    hinge_slope: Annotated[float, OnlyWith("staleness", values=("hinge",))] = Field(
        default=10.0, gt=0.0
    )
    hinge_from: Annotated[int, OnlyWith("staleness", values=("hinge",))] = Field(default=4, ge=0)
    rho: float = Field(default=0.0, ge=0.0, le=1e6)

    def weight(self, version: int, staleness: int) -> float:
        """Return alpha_t, the weight of an update in the next model.

        The weight is the key ``alpha``, multiplied by ``alpha_decay`` for each version of
        ``alpha_decay_at`` that is reached, and by the function (key ``staleness``) of the update's
        staleness. Source: Xie et al., section 5.2.

        Args:
            version: count of versions made so far.
            staleness: count of versions made since the client's download.
        """
        decays = sum(version >= decay_at for decay_at in self.alpha_decay_at)
        alpha = self.alpha * self.alpha_decay**decays
        if self.staleness == "hinge":
            return alpha / (self.hinge_slope * max(staleness - self.hinge_from, 0) + 1)
        return float(alpha * (1 + staleness) ** -self.exponent)


class FedAsyncClient(Client[FedAsyncParams]):
    """Client that minimises its loss plus a proximal term, which keeps it near the received model.

    The term is rho/2 ||w - w_received||^2, with the key ``rho``, the model w in training and the
    received model w_received.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(
            instruction["model"], self.params.local_epochs, proximal=Proximal(self.params.rho)
        )


class FedAsync(Asynchronous[FedAsyncParams]):
    """Asynchronous federated optimisation: the server mixes in each update when it arrives.

    The new version is w <- (1 - alpha_t) w + alpha_t w_new, with the server's model w and the
    update w_new. Its weight alpha_t is alpha s(tau), with the keys ``alpha`` and ``staleness`` (the
    function s). The staleness tau is the number of versions made since the client's download, 0 for
    a fresh update.

    Source: Xie, Koyejo and Gupta, "Asynchronous federated optimization" (2019), Algorithm 1 with
    the staleness functions of section 5.2.

    A run takes less real time if tests are rare (``evaluation.every`` of some tens of versions), as
    the trainings between two tests are then computed together. The results are the same.
    """

    Params = FedAsyncParams
    Client = FedAsyncClient

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        weight = self.params.weight(self.state.version, staleness)
        model = self.state.model
        parts = [(model, 1.0 - weight), (message["update"], weight)]
        # ``otherwise`` is the result if the update has all the weight and is not finite
        next_model = self.server.models.mix(parts, otherwise=model)
        update = self.entry(message, base)
        update.weight = weight
        update.staleness = staleness
        await self.publish(next_model, [update])
