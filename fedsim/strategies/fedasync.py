"""FedAsync: each update is mixed into the model as it arrives, the less the staler it is (Xie et al., 2019)."""

from typing import Literal

from pydantic import Field

from fedsim.federation import Client, Device, Instruction, TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams
from fedsim.training import Training


class FedAsyncParams(AsynchronousParams):
    """Parameters of FedAsync."""

    kind: Literal["fedasync"] = "fedasync"
    alpha: float = Field(default=0.6, gt=0.0, le=1.0)
    """weight of a fresh update in the new model."""
    exponent: float = Field(default=0.5, ge=0.0)
    """a of the staleness function (1 + tau)^-a; 0: all updates weigh the same (the paper's constant function)."""
    rho: float = Field(default=0.0, ge=0.0, le=1e6)
    """weight of the proximal term rho/2 ||w - w_received||^2 of the local solve."""


class FedAsyncClient(Client[FedAsyncParams]):
    """Minimises its loss plus rho/2 ||w - w_received||^2."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(instruction["model"], self.params.local_epochs, mu=self.params.rho)


class FedAsync(Asynchronous[FedAsyncParams]):
    """Asynchronous federated optimisation.

    Source: Xie, Koyejo and Gupta, "Asynchronous federated optimization" (2019), Algorithm 1 with the polynomial staleness
    function of section 5.2: an update of staleness tau makes w <- (1 - alpha_t) w + alpha_t w_new with alpha_t = alpha (1 +
    tau)^-a. tau is the number of versions made since the client's download, 0 for a fresh update.

    Each update makes a version. An ``evaluation.every`` of some tens lets updates be computed in cohorts, with the same result.
    """

    Params = FedAsyncParams
    Client = FedAsyncClient

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        weight = float(self.params.alpha * (1 + staleness) ** -self.params.exponent)
        before = self.state["model"]
        model = self.server.models.mix([(before, 1.0 - weight), (message["update"], weight)], otherwise=before)
        await self.publish(model, [self._entry(message, base) | {"weight": weight, "staleness": staleness}])
