"""FedAvg: the weighted mean of the cohort's models (McMahan et al., 2017)."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedsim.server import Limit, Step, Train, Training
from fedsim.strategies.synchronous import Synchronous, SynchronousParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedsim.learning import Ref


class FedAvgParams(SynchronousParams):
    """What FedAvg takes; see ``SynchronousParams``."""

    kind: Literal["fedavg"] = "fedavg"


class FedAvg(Synchronous[FedAvgParams]):
    """Federated averaging.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", Algorithm 1.

    In each round the server sends the global model (d parameters) to K clients drawn uniformly without replacement; each runs
    E epochs of mini-batch SGD and sends its model back (d parameters); the global model becomes their mean, weighted by
    training samples over the clients whose update arrived in time. If none did, it stays as it is.

    Parameters: ``clients_per_round``, ``local_epochs``, ``deadline`` (s) or ``relative_deadline``, ``over_selection``,
    ``retry`` (s), ``every`` (s).
    State besides ``Synchronous``'s: ``model``, the global model.
    """

    Params: ClassVar[type[SynchronousParams]] = FedAvgParams

    async def on_start(self) -> None:
        """Begin with a freshly initialised model."""
        self.state["model"] = self.server.initial()
        await super().on_start()

    def steps(self, device: int) -> tuple[Step, ...]:
        """Download the global model, train, upload."""
        return (self.server.download(), self.training(), self.server.upload())

    def training(self) -> Train:
        """Local SGD for the full number of epochs; with a deadline from the download on, all of them must fit before it."""
        epochs = self.params.local_epochs
        return Train(Training(self.state["model"], epochs), Limit(budget=self.training_limit, at_least=epochs))

    async def aggregate(self) -> None:
        """The mean of the received models, weighted by training samples."""
        received: list[dict[str, Any]] = self.state["received"]
        total = sum(entry["samples"] for entry in received)
        if total:
            parts = [(entry["update"], entry["samples"] / total) for entry in received]
            self.state["model"] = self.server.mix(parts, otherwise=self.state["model"])
            tasks = [entry["task"] for entry in received]
            self.server.emit("aggregate", round=self.state["round"], tasks=tasks, weights=[weight for _, weight in parts])

    def center(self, entry: dict[str, Any]) -> "Ref":
        """The global model."""
        return self.state["model"]  # type: ignore[no-any-return]

    def models(self) -> "Mapping[str, tuple[Ref, Sequence[int] | None]]":
        """One model for all devices."""
        return {"global": (self.state["model"], None)}
