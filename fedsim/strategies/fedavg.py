"""FedAvg: the mean of the models of a round's clients (McMahan et al., 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fedsim.federation import Contents, Partial, Server
from fedsim.federation.evaluator import ModelAssignment
from fedsim.learning.functions import spliced
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.keeping import Split
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.synchronous import S, Synchronous, SynchronousState


class FedAvgParams(AggregatingParams):
    """Parameters of FedAvg; see ``AggregatingParams``."""

    kept_by: ClassVar[Literal["nobody", "scenario", "strategy"]] = "scenario"
    mixes_states: ClassVar[bool] = True
    kind: Literal["fedavg"] = "fedavg"


@dataclass
class FedAvgState(SynchronousState):
    """Memory of FedAvg."""

    model: Ref = field(init=False)
    """The global model."""
    kept: dict[int, Ref] = field(default_factory=dict)
    """Kept tensors of each device that has ever answered, with ``model.keep`` or ``model.send``."""
    own: dict[int, Ref] = field(default_factory=dict)
    """Models of these devices, with their kept tensors; the server does not use them."""
    followed: dict[int, Ref] = field(default_factory=dict)
    """States that devices keep, for a robust aggregation of them (``followed``)."""


class FedAvg(Synchronous[S]):
    """Federated averaging.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", Algorithm 1.

    In each round the server sends the global model (d parameters) to K clients drawn uniformly
    without replacement; each runs E epochs of mini-batch SGD and sends its model back (d
    parameters); the global model becomes their mean, weighted by training samples over the clients
    whose update arrived in time. If none did, it stays as it is.

    With ``model.keep`` or ``model.send`` some tensors never leave a device, which trains them
    together with the received ones and is tested with them. It begins with those of the initial
    model, and goes back one training if its answer is cut off.
    """

    Params: ClassVar[type[RoundParams]] = FedAvgParams
    State = FedAvgState
    state: FedAvgState

    def __init__(self, params: S, server: Server) -> None:
        super().__init__(params, server)
        self._split = params.split_of(self.setting)
        if self._split is not None:
            self.score = "device-mean"

    async def on_start(self) -> None:
        self.state.model = self.server.models.initial()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        return {"model": self.shared(self.state.model)}

    def shared(self, model: Ref) -> Ref | Partial:
        """A model as it is sent to devices: all of it, or the tensors that they do not keep."""
        return model if self._split is None else Partial(model, model, self._split.sent)

    async def aggregate(self) -> None:
        model = self.state.model
        received = self.state.received
        if any(entry["samples"] for entry in received):
            self.state.model = await self.next_model(model, received)
        if self._split is not None:
            self._keep(model, received, self._split)

    def _keep(self, before: Ref, received: Sequence[dict[str, Any]], split: Split) -> None:
        """Put what devices keep beside the model, of which nothing else than what was sent has
        changed.
        """
        apply = self.server.models.apply
        how = self._needed_aggregation
        if how.protection == "private":  # its noise is on every number
            self.state.model = apply(spliced, [before, self.state.model], places=split.sent)
        kept = self.state.kept
        model = self.state.model
        kept |= {entry["device"]: entry["contents"]["kept"] for entry in received}
        self.state.own = {
            device: apply(spliced, [model, numbers], places=split.kept)
            for device, numbers in kept.items()
        }

    async def followed(
        self, mean: Ref, entries: Sequence[dict[str, Any]], changes: Sequence[Ref]
    ) -> Ref:
        """The mean, over all N devices, of a state that each keeps, after K clients have changed
        theirs: mean + sum / N.

        With a robust aggregation (1 - K / N) mean + K / N times its result of the K states;
        malicious changes would add up.
        """
        mix = self.server.models.mix
        how = self._needed_aggregation
        share = 1.0 / self.setting.devices
        if how.protection != "robust":
            return mix(
                [(mean, 1.0), *((change, share) for change in changes)],
                otherwise=mean,
                rescale=False,
            )
        own = self.state.followed
        for entry, change in zip(entries, changes, strict=True):
            before = own.get(entry["device"]) or self.server.models.zero()
            own[entry["device"]] = mix([(before, 1.0), (change, 1.0)], rescale=False)
        parts = await how.total(self.server, [own[entry["device"]] for entry in entries], share)
        return mix([(mean, 1.0 - share * len(entries)), *parts], otherwise=mean, rescale=False)

    def center(self, entry: dict[str, Any]) -> Ref:
        return self.state.model

    def models(self) -> ModelAssignment:
        own = self.state.own
        others = (
            [device for device in range(self.server.devices) if device not in own] if own else None
        )
        served = {f"device/{device}": (model, [device]) for device, model in sorted(own.items())}
        return {"global": (self.state.model, others), **served}

    def _shared_models(self) -> ModelAssignment:
        return {"global": (self.state.model, None)}
