"""FedAvg: the weighted mean of the cohort's models (McMahan et al., 2017)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fedsim.evaluation.evaluator import ModelAssignment
from fedsim.federation.contents import Contents
from fedsim.learning.refs import Ref
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.synchronous import S, Synchronous


class FedAvgParams(AggregatingParams):
    """Parameters of FedAvg; see ``AggregatingParams``."""

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
        self.state["model"] = self.server.models.initial()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        return {"model": self.state["model"]}

    async def aggregate(self) -> None:
        received = self.state["received"]
        if any(entry["samples"] for entry in received):
            self.state["model"] = await self.combine(self.state["model"], received)

    async def followed(self, mean: Ref, entries: Sequence[dict[str, Any]], changes: Sequence[Ref]) -> Ref:
        """The mean, over all N devices, of a state that each keeps, after K clients have changed theirs: mean + sum / N.

        With a robust aggregation, (1 - K / N) mean + K / N times what it makes of the K states. It is not given their changes:
        what malicious ones add to the median of changes would add up.
        """
        mix, how, share = self.server.models.mix, self.params.aggregation, 1.0 / self.setting.devices  # type: ignore[attr-defined]
        if how.protection != "robust":
            return mix([(mean, 1.0), *((change, share) for change in changes)], otherwise=mean, rescale=False)
        own = self.state.setdefault("followed", {})
        for entry, change in zip(entries, changes, strict=True):
            own[entry["device"]] = mix(
                [(own.get(entry["device"]) or self.server.models.zero(), 1.0), (change, 1.0)], rescale=False
            )
        parts = await how.total(self.server, [own[entry["device"]] for entry in entries], share)
        return mix([(mean, 1.0 - share * len(entries)), *parts], otherwise=mean, rescale=False)

    def center(self, entry: dict[str, Any]) -> Ref:
        return self.state["model"]  # type: ignore[no-any-return]

    def models(self) -> ModelAssignment:
        return {"global": (self.state["model"], None)}
