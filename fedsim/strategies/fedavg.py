"""FedAvg: the mean of the models of a round's clients (McMahan et al., 2017)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fedsim.federation import Contents, Partial, Server
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.combining import S
from fedsim.strategies.parts.keeping import ServerKeeping
from fedsim.strategies.round_params import AggregatingParams, RoundParams
from fedsim.strategies.round_state import SynchronousState
from fedsim.strategies.synchronous import Synchronous
from fedsim.strategies.traits import Traits
from fedsim.strategies.updates import Update


class FedAvgParams(AggregatingParams):
    """Keys of ``[strategy]`` for FedAvg: the keys that ``AggregatingParams`` describes."""

    traits: ClassVar[Traits] = Traits(kept_by="scenario", averages_updates=True)
    kind: Literal["fedavg"] = "fedavg"


@dataclass
class FedAvgState(SynchronousState):
    """State of FedAvg on the server: the global model, tensors kept on devices, the open round.

    Attributes:
        model: The global model.
        kept: Device -> its kept tensors, which never leave the device, for each device that has
            answered. Empty without ``model.keep`` and ``model.send``.
        own: Device -> global model with the device's kept tensors, which is tested on the device.
    """

    model: Ref = field(init=False)
    kept: dict[int, Ref] = field(default_factory=dict)
    own: dict[int, Ref] = field(default_factory=dict)


class FedAvg(Synchronous[S]):
    """Federated averaging.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", Algorithm 1.

    In each round the server sends the global model (d parameters) to K clients
    (``clients_per_round``) drawn uniformly without replacement. Each client runs E epochs
    (``local_epochs``) of mini-batch SGD and sends its model back (d parameters). The global model
    becomes the mean of the models that arrived in time, weighted by training samples. If no model
    arrived in time, the global model is unchanged.

    With ``model.keep`` or ``model.send`` some tensors never leave a device, which trains them
    together with the received tensors and is tested with them. A device begins with the kept
    tensors of the initial model. If its answer is cut off, its kept tensors remain as they were
    before the training.

    Example:
        FedAvg that selects only devices with even IDs, in ``mine.py``:

        >>> from fedsim.plugin import FedAvg
        >>> class Even(FedAvg):
        ...     def select(self):
        ...         even = list(range(0, self.server.devices, 2))
        ...         return self.pick(self.params.clients_per_round, among=even)

        >>> import fedsim
        >>> result = fedsim.run(
        ...     fedsim.Scenario(
        ...         learning="off",
        ...         population={"devices": 6},
        ...         strategy={"kind": "mine:Even", "clients_per_round": 3},
        ...         stop={"rounds": 4},
        ...     ),
        ...     "runs/even",
        ... )
        >>> result.devices["selected"].tolist()
        [4, 0, 4, 0, 4, 0]
    """

    Params: ClassVar[type[RoundParams]] = FedAvgParams
    State = FedAvgState
    state: FedAvgState

    def __init__(self, params: S, server: Server) -> None:
        super().__init__(params, server)
        split = params.split_of(self.setting)
        self._keeping = None if split is None else ServerKeeping(split, server)
        if self._keeping is not None:
            self.score = "device-mean"

    async def on_start(self) -> None:
        self.state.model = self.server.models.initial()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        return {"model": self.shared(self.state.model)}

    def shared(self, model: Ref) -> Ref | Partial:
        """Return the part of a model that is sent to devices.

        By ``model.keep`` or ``model.send`` some tensors are kept on the devices and not sent.

        Args:
            model: the whole model.

        Returns:
            The model without the kept tensors; the whole model if no tensors are kept.
        """
        if self._keeping is None:
            return model
        return self._keeping.sent(model)

    async def aggregate(self) -> None:
        """Combine the received updates into the next model, and store the devices' kept tensors.

        The model is unchanged if no update has samples.
        """
        state = self.state
        previous_model = state.model
        if any(update.samples for update in state.received):
            state.model = await self.next_model(previous_model, state.received)
        if self._keeping is None:  # all tensors are sent
            return
        aggregation = self._aggregation
        if aggregation is not None and aggregation.protection == "private":
            # the aggregation has also added noise to the tensors that devices keep
            state.model = self._keeping.restore(previous_model, state.model)
        for update in state.received:
            state.kept[update.device] = update.contents["kept"]  # the device's unsent tensors
        # device -> its whole model: the global model with the device's kept tensors
        state.own = self._keeping.device_models(state.model, state.kept)

    def center(self, entry: Update) -> Ref:
        return self.state.model

    def models(self) -> ModelAssignment:
        own = self.state.own
        if not own:
            return self._shared_models()
        without_own = [device for device in range(self.server.devices) if device not in own]
        models: dict[str, tuple[Ref, list[int]]] = {"global": (self.state.model, without_own)}
        for device in sorted(own):
            models[f"device/{device}"] = own[device], [device]
        return models

    def _shared_models(self) -> ModelAssignment:
        return {"global": (self.state.model, None)}
