"""FedBuff: updates are buffered, and a full buffer makes the next version (Nguyen et al., 2022)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from fedsim.common import former_keys
from fedsim.common.former_keys import Former
from fedsim.federation import TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams, AsynchronousState
from fedsim.strategies.parts.server_optimizer import ServerOptimizerSpec
from fedsim.strategies.state import PartState
from fedsim.strategies.updates import AsynchronousUpdate


class FedBuffParams(AsynchronousParams):
    """Keys of ``[strategy]`` for FedBuff.

    Attributes:
        buffer: K, the count of updates in a version.
        server: server optimiser for the step along the mean of the updates
            (``parts/server_optimizer``). The paper's eta_g is ``lr`` of ``sgd``. None: eta_g is 1.
        staleness_discount: whether the weight of an update is 1/sqrt(1 + tau), with the staleness
            tau, the count of versions made since the client's download; false: the weight is 1.
        most_staleness: largest staleness of an update that is aggregated and counts towards
            ``buffer``; None: any.
    """

    instead: ClassVar[Former] = former_keys.FEDBUFF
    kind: Literal["fedbuff"] = "fedbuff"
    buffer: int = Field(default=10, ge=1)
    server: ServerOptimizerSpec | None = None
    staleness_discount: bool = True
    most_staleness: int | None = Field(default=None, ge=0)

    @property
    def updates_of_round(self) -> float:
        return float(self.buffer)


@dataclass
class FedBuffState(AsynchronousState):
    """State of FedBuff on the server: the global model, and the buffer of updates.

    Attributes:
        buffer: Updates that have arrived since the last version.
        server: State of the server optimiser.
    """

    buffer: list[AsynchronousUpdate] = field(default_factory=list)
    server: PartState = None


class FedBuff(Asynchronous[FedBuffParams]):
    """Federated learning with buffered asynchronous aggregation.

    Source: Nguyen et al., "Federated learning with buffered asynchronous aggregation" (AISTATS
    2022), Algorithm 1.

    Updates are collected in a buffer. When there are K updates (the key ``buffer``), the model w
    becomes w + eta_g / K sum_i s(tau_i) (w_i - w_i^received). Here w_i is the model of client i
    after its training, w_i^received the model that client i had received, and eta_g the server's
    learning rate. tau_i is the staleness, the number of versions made since client i's download,
    and s(tau) = 1/sqrt(1 + tau) (section 5).

    As in the paper the mean is not weighted by samples, and with stale updates the weights do not
    sum to 1. An update that is not finite is left out, and the remaining updates weigh more.
    """

    Params = FedBuffParams
    State = FedBuffState
    state: FedBuffState

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        """Append an update to the buffer, and publish a version when the buffer is full.

        It uses the keys ``buffer``, ``staleness_discount``, ``most_staleness`` and ``server``. A
        subclass that overrides this method must use them too, or remove them from its ``Params``
        by annotating them as None.

        Args:
            message: the ended task, with ``update`` and ``samples``.
            base: the model that the client downloaded.
            staleness: count of versions published since that download.
        """
        params = self.params
        state = self.state
        # the discount of the paper: 1 / sqrt(1 + staleness)
        discount = (1 + staleness) ** -0.5 if params.staleness_discount else 1.0
        is_too_stale = params.most_staleness is not None and staleness > params.most_staleness
        if is_too_stale:
            discount = 0.0
        update = self.entry(message, base)
        update.weight = discount / params.buffer
        update.staleness = staleness
        state.buffer.append(update)
        # updates that are too stale, of weight 0, take no place in the buffer
        used_places = sum(update.weight > 0 for update in state.buffer)
        if used_places == params.buffer:
            buffer = state.buffer
            state.buffer = []
            await self.publish(self._step(buffer), buffer)

    def _step(self, buffer: list[AsynchronousUpdate]) -> Ref:
        """Return the current model moved by the weighted differences of the buffer's updates.

        An update that is not finite is left out together with its base.
        """
        mix = self.server.models.mix
        model = self.state.model
        optimiser = self.params.server
        parts = []
        for update in buffer:
            difference = mix([(update.update, 1.0), (update.base, -1.0)])
            parts.append((difference, update.weight))
        step = mix(parts)
        stepped = mix([(model, 1.0), (step, 1.0)], otherwise=model, rescale=False)
        if optimiser is None:
            return stepped
        # the optimiser takes the difference of ``stepped`` and ``model`` as its gradient
        return optimiser.step(self.server, self.remembered("server"), model, stepped)
