"""FedBuff: updates are buffered, and a full buffer makes the next version (Nguyen et al., 2022)."""

from typing import Any, Literal

from pydantic import Field

from fedsim.federation import TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams
from fedsim.strategies.parts.server import ServerOptimiserSpec


class FedBuffParams(AsynchronousParams):
    """Parameters of FedBuff."""

    kind: Literal["fedbuff"] = "fedbuff"
    buffer: int = Field(default=10, ge=1)
    """K, how many updates make a version."""
    server: ServerOptimiserSpec | None = None
    """the server's step along their mean (``parts/server``; the paper's eta_g is ``lr`` of
    ``sgd``); None: eta_g is 1.
    """
    staleness_discount: bool = True
    """whether an update of staleness tau counts 1/sqrt(1 + tau), or all count the same."""
    most_staleness: int | None = Field(default=None, ge=0)
    """an update that is staler counts 0, and fills no place in the buffer; None: all count."""


class FedBuff(Asynchronous[FedBuffParams]):
    """Federated learning with buffered asynchronous aggregation.

    Source: Nguyen et al., "Federated learning with buffered asynchronous aggregation" (AISTATS
    2022), Algorithm 1: with K updates in the buffer, w <- w + eta_g / K sum_i s(tau_i) (w_i -
    w_i^received), where s(tau) = 1/sqrt(1 + tau) (section 5) and tau_i is the number of versions
    made since client i's download. As in the paper the mean is not weighted by samples, and with
    stale updates the weights do not sum to 1. Without an update that is not finite the others weigh
    more.
    """

    Params = FedBuffParams

    async def on_start(self) -> None:
        self.state["buffer"] = []
        await super().on_start()

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        """Put an update into the buffer, and publish what a full one makes.

        It reads the keys ``buffer``, ``staleness_discount``, ``most_staleness`` and ``server``:
        who overrides it reads them too, or drops them by annotating them None.
        """
        params = self.params
        buffer = self.state["buffer"]
        discount = (1 + staleness) ** -0.5 if params.staleness_discount else 1.0
        if params.most_staleness is not None and staleness > params.most_staleness:
            discount = 0.0
        buffer.append(
            self.entry(message, base) | {"weight": discount / params.buffer, "staleness": staleness}
        )
        if sum(each["weight"] > 0 for each in buffer) == params.buffer:
            self.state["buffer"] = []
            await self.publish(self._step(buffer), buffer)

    def _step(self, buffer: list[dict[str, Any]]) -> Ref:
        """The current model moved by the buffer's updates; one that is not finite takes its base
        out with it.
        """
        mix = self.server.models.mix
        model = self.state["model"]
        optimiser = self.params.server
        differences = [
            (mix([(entry["update"], 1.0), (entry["base"], -1.0)]), entry) for entry in buffer
        ]
        step = mix([(difference, entry["weight"]) for difference, entry in differences])
        stepped = mix([(model, 1.0), (step, 1.0)], otherwise=model, rescale=False)
        return (
            stepped
            if optimiser is None
            else optimiser.step(self.server, self.remembered("server"), model, stepped)
        )
