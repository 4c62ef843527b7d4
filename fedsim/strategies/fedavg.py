"""FedAvg: the weighted mean of the cohort's models (McMahan et al., 2017)."""

from typing import Any, ClassVar, Literal

from fedsim.evaluation.evaluator import Served
from fedsim.federation.contents import Contents
from fedsim.learning.refs import Ref
from fedsim.strategies.synchronous import AggregatingParams, RoundParams, S, Synchronous


class FedAvgParams(AggregatingParams):
    """What FedAvg takes; see ``AggregatingParams``."""

    kind: Literal["fedavg"] = "fedavg"


class FedAvg(Synchronous[S]):
    """Federated averaging.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", Algorithm 1.

    In each round the server sends the global model (d parameters) to K clients drawn uniformly without replacement; each runs
    E epochs of mini-batch SGD and sends its model back (d parameters); the global model becomes their mean, weighted by
    training samples over the clients whose update arrived in time. If none did, it stays as it is.

    State besides ``Synchronous``'s: ``model``, the global model.
    """

    Params: ClassVar[type[RoundParams]] = FedAvgParams

    async def on_start(self) -> None:
        """Begin with a freshly initialised model."""
        self.state["model"] = self.server.initial()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        """The global model."""
        return {"model": self.state["model"]}

    async def aggregate(self) -> None:
        """The received models become one, by samples unless the parameters say otherwise."""
        received = self.state["received"]
        if any(entry["samples"] for entry in received):
            self.state["model"] = await self.combine(self.state["model"], received)

    def center(self, entry: dict[str, Any]) -> Ref:
        """The global model."""
        return self.state["model"]  # type: ignore[no-any-return]

    def models(self) -> Served:
        """One model for all devices."""
        return {"global": (self.state["model"], None)}
