"""CA2FL: buffered updates, calibrated by the cached updates of all devices (Wang et al., 2024)."""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from fedsim.federation import TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.asynchronous import Asynchronous, AsynchronousParams, AsynchronousState
from fedsim.strategies.parts.server_optimizer import ServerOptimizerSpec
from fedsim.strategies.state import PartState
from fedsim.strategies.updates import AsynchronousUpdate


class CA2FLParams(AsynchronousParams):
    """Keys of ``[strategy]`` for CA2FL: the buffer of updates, and the server optimiser.

    ``AsynchronousParams`` describes the keys of all asynchronous strategies.

    Attributes:
        buffer: M, the count of received updates after which the server publishes a new version of
            the model.
        server: server optimiser for the calibrated step (docs page ``parts/server_optimizer``). The
            paper's eta is ``lr`` of ``sgd``. None: eta is 1.
    """

    kind: Literal["ca2fl"] = "ca2fl"
    buffer: int = Field(default=10, ge=1)
    server: ServerOptimizerSpec | None = None

    @property
    def updates_of_round(self) -> float:
        return float(self.buffer)


@dataclass
class CA2FLState(AsynchronousState):
    """State of CA2FL on the server: the model, the buffered updates, each device's latest change.

    The buffer holds the updates that wait for the next version.

    Attributes:
        buffer: Updates that have arrived since the last version.
        cache: Device -> h_i, its latest change of the model, for each device that has answered.
        server: State of the server optimiser.
    """

    buffer: list[AsynchronousUpdate] = field(default_factory=list)
    cache: dict[int, Ref] = field(default_factory=dict)
    server: PartState = None


class CA2FL(Asynchronous[CA2FLParams]):
    """Cache-aided asynchronous federated learning.

    The server caches the latest change of the model by each device. It moves the model by the mean
    of these changes, corrected by the updates that it has received since its last step.

    Source: Wang, Cao, Wu, Chen and Chen, "Tackling the data heterogeneity in asynchronous federated
    learning with cached update calibration" (ICLR 2024), Algorithm 2.

    There are no rounds. The server collects updates in a buffer. Delta_i is device i's update minus
    the model that it received; h_i is the cached change of device i, 0 before its first update.
    When the buffer has M updates (key ``buffer``), the server makes a step:

    - v = (1/n) sum_i h_i + (1/M) sum_(i in buffer) (Delta_i - h_i). The first mean is over all n
      devices, so that devices that answer often do not dominate.
    - w <- w + eta v, with the model w and the server's learning rate eta. The new w is published as
      a new version of the model.
    - For each device in the buffer h_i becomes its newest Delta_i.

    Messages are as in FedBuff: the model down, the update up (d parameters each). An update that is
    not finite counts as the previous change of its device, and changes no cache.
    """

    Params = CA2FLParams
    State = CA2FLState
    state: CA2FLState

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        """Append an update to the buffer; when the buffer is full, publish a version of the model.

        Args:
            message: the ended task, whose answer has ``update`` and ``samples``.
            base: the model that the client downloaded.
            staleness: count of versions published since that download.
        """
        state = self.state
        update = self.entry(message, base)
        update.weight = 1.0 / self.params.buffer
        update.staleness = staleness
        state.buffer.append(update)
        if len(state.buffer) == self.params.buffer:
            buffer = state.buffer
            state.buffer = []
            await self.publish(self._step(buffer), buffer)

    def _step(self, buffer: list[AsynchronousUpdate]) -> Ref:
        """Compute the next model from the buffered updates and the cached changes h_i of devices.

        Afterwards the cache has, for each device in the buffer, the change by its newest update.
        """
        state = self.state
        models = self.server.models
        # w + (1/n) sum_i h_i + (1/M) sum_(i in buffer) (Delta_i - h_i)
        parts = [(state.model, 1.0)]
        for device in sorted(state.cache):
            parts.append((state.cache[device], 1.0 / self.setting.devices))
        zero = models.zero()
        newest: dict[int, Ref] = {}
        for update in buffer:
            cached = state.cache.get(update.device, zero)
            difference = [(update.update, 1.0), (update.base, -1.0)]
            # an update that is not finite counts as the device's previous change
            change = models.mix(difference, otherwise=newest.get(update.device, cached))
            parts.append((change, update.weight))
            parts.append((cached, -update.weight))
            newest[update.device] = change
        state.cache |= newest
        stepped = models.mix(parts, otherwise=state.model, rescale=False)
        if self.params.server is None:
            return stepped
        return self.params.server.step(self.server, self.remembered("server"), state.model, stepped)
