"""MIFA: the latest update of every device is stored, and counts in each round (Gu et al., 2021)."""

from dataclasses import dataclass, field
from typing import Literal

from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.round_params import SynchronousParams
from fedsim.strategies.state import Entries


class MIFAParams(SynchronousParams):
    """Keys of ``[strategy]`` for MIFA.

    ``SynchronousParams`` describes the keys of all strategies in rounds.

    Attributes:
        unheard: treatment of devices that have not answered yet. ``left-out``: the mean is over the
            devices that have answered. ``zero``: such a device counts with an update of 0, as in
            Algorithm 1 if not all devices answer in the first round.
    """

    kind: Literal["mifa"] = "mifa"
    unheard: Literal["left-out", "zero"] = "left-out"


@dataclass
class Memory(Entries):
    """Latest update of a device, which MIFA's server stores and uses again in later rounds.

    The update is stored as the change of the model, with the learning rate of the training.

    Attributes:
        change: Trained model minus received model.
        lr: Learning rate of the training; the paper's G is -change / lr.
    """

    change: Ref
    lr: float


@dataclass
class MIFAState(FedAvgState):
    """State of MIFA on the server: the model, and each device's latest update.

    Attributes:
        memory: Device -> its latest update, for each device that has answered.
    """

    memory: dict[int, Memory] = field(default_factory=dict)


class MIFA(FedAvg[MIFAParams]):
    """Memory-augmented impatient federated averaging.

    The server stores the latest update of each device, and moves the model by the mean of them all
    in each round, so that absent devices count too.

    Source: Gu, Huang, Zhang and Huang, "Fast federated learning in the presence of arbitrary device
    unavailability" (NeurIPS 2021, arXiv 2106.04159), Algorithm 1. The server moves the model w by
    the mean of the latest updates G_i of all devices: w <- w - eta (1/N) sum_i G_i, with the
    learning rate eta. G_i is (w_received - w_i) / eta_received: the model that device i received,
    minus its trained model w_i, divided by the learning rate of that training. The mean is over all
    N devices, absent ones included, and not weighted by samples. The server does not wait for an
    absent device: its last update counts. A round without any answer moves the model as well.

    In the paper every device answers in the first round. Here the key ``unheard`` determines how
    devices without an answer count.

    Messages are as in FedAvg, the model down and the update up (d parameters each). An update that
    is not finite leaves the memory of its device unchanged.
    """

    Params = MIFAParams
    State = MIFAState
    state: MIFAState

    async def aggregate(self) -> None:
        """Store the round's updates, and move the model by the mean of all devices' last updates.

        Called at the end of a round, also if no update has arrived. Before the first update the
        model is unchanged.
        """
        state = self.state
        mix = self.server.models.mix
        lr = self.setting.lr_in(state.round)
        for update in state.received:
            state.memory[update.device] = self._latest_update(update, lr)
        if not state.memory:
            return
        count = self.setting.devices if self.params.unheard == "zero" else len(state.memory)
        self.record_aggregate(state.received, [1.0 / count] * len(state.received))
        parts = [(state.model, 1.0)]
        for device in sorted(state.memory):
            memory = state.memory[device]
            # -eta (1/N) G_i, as G_i is -change / (learning rate of the training)
            parts.append((memory.change, lr / memory.lr / count))
        state.model = mix(parts, otherwise=state.model, rescale=False)

    def _latest_update(self, update: Entry, lr: float) -> Memory:
        """Return the change of the model by an update, and its learning rate, for the memory.

        If the update is not finite, the device's previous change is kept, or 0 if it has none.

        Args:
            update: the received update.
            lr: learning rate of the round.
        """
        models = self.server.models
        previous_change = models.zero()
        if update.device in self.state.memory:
            previous_change = self.state.memory[update.device].change
        assert update.start is not None
        parts = [(update.update, 1.0), (update.start, -1.0)]
        change = models.mix(parts, otherwise=previous_change)
        return Memory(change, lr)
