"""FedDyn: local objectives whose optima become the global optimum (Acar et al., 2021)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from fedsim.common.training import Proximal, Training
from fedsim.federation import Contents, Device, Instruction
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import AggregationSpec, Entry, Mean, changes
from fedsim.strategies.parts.mean_of_states import mean_after_changes
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.traits import Traits


class FedDynParams(AggregatingParams):
    """Keys of ``[strategy]`` for FedDyn.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        alpha: weight of the linear and of the proximal term in a client's objective.
        aggregation: rule that combines the updates of a round; by default their plain mean.
    """

    traits: ClassVar[Traits] = Traits(accumulated_contents=("update",))
    why_not: ClassVar[Reasons] = Reasons(
        private_aggregation="FedDyn adds the sum of all earlier moves to the model in each round"
    )

    kind: Literal["feddyn"] = "feddyn"
    alpha: float = Field(default=0.01, gt=0.0, le=1e6)
    aggregation: AggregationSpec = Mean()


class FedDynClient(SynchronousClient[FedDynParams]):
    """Client that trains by SGD with FedDyn's linear and proximal terms, and sends the result.

    Client k minimises L_k(w) + alpha <s_k, w> + alpha / 2 ||w - theta||^2, with its loss L_k, the
    key ``alpha``, and the received model theta, from which the training begins.

    Entries of a device's state: ``moved``, s_k, the sum over the client's answers of (update -
    theta).
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        alpha = self.params.alpha
        epochs = self.params.local_epochs
        linear = None
        if "moved" in device.state:
            linear = device.mix([(device.state["moved"], alpha)])
        return Training(instruction["model"], epochs, proximal=Proximal(alpha), linear=linear)

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        moved = device.state.get("moved", device.zero())
        parts = [(moved, 1.0), (reply["update"], 1.0), (instruction["model"], -1.0)]
        device.state["moved"] = device.mix(parts, otherwise=moved)


@dataclass
class FedDynState(FedAvgState):
    """State of FedDyn on the server: the model, and the sums of the devices' moves.

    A move is an update minus the model that the device had received.

    Attributes:
        moved: s, the mean over all devices of s_k, the sum of a device's moves.
        moves: Device ID -> s_k of each device that has answered; filled only by a robust
            aggregation.
    """

    moved: Ref = field(init=False)
    moves: dict[int, Ref] = field(default_factory=dict)


class FedDyn(FedAvg[FedDynParams]):
    """Federated learning with dynamic regularisation.

    A linear and a proximal term are added to each client's objective, so that its optimum moves
    towards the global optimum.

    Source: Acar et al., "Federated learning based on dynamic regularization" (ICLR 2021), Algorithm
    1. A move of client k is its update theta_k minus the received model theta. Let s_k be the sum
    of client k's moves so far, and s the mean of the s_k of all N devices (the paper's h is -alpha
    s, its grad L_k is -alpha s_k). In a round:

    - Client k minimises L_k(w) + alpha <s_k, w> + alpha / 2 ||w - theta||^2, with its loss L_k and
      the key ``alpha``, and sends its update theta_k.
    - The server sets s <- s + (1/N) sum_k (theta_k - theta) over the clients that answered. With a
      robust aggregation it sets s <- (1 - K / N) s + K / N times the aggregation of the s_k of the
      K clients that answered.
    - The next model is the mean of the theta_k of these clients, plus s.

    Messages are as in FedAvg, the model down and the update up (d parameters each). No s_k is sent,
    as server and client each add up the moves (``moved``). The local problem is solved by
    ``local_epochs`` of SGD; in the paper the solution is the exact minimum. Lost answers and
    updates that are not finite change neither the server's nor the client's ``moved``.
    """

    Params = FedDynParams
    Client = FedDynClient
    State = FedDynState
    state: FedDynState

    async def on_start(self) -> None:
        self.state.moved = self.server.models.zero()
        await super().on_start()

    async def next_model(
        self, model: Ref, entries: list[Entry], slot: int = 0, **record: object
    ) -> Ref:
        """Update s (``state.moved``), and return the next model: the mean of the updates, plus s.

        A move of a device is its update minus the model that it had received. s is the mean over
        all devices of the sum of a device's moves in all rounds. The key ``aggregation`` determines
        the mean of the updates. With a server optimiser (key ``server``), the next model is the
        result of the optimiser's step from the present model towards the mean plus s.

        Args:
            model: the present model.
            entries: the updates of the round; at least one.
            slot: index of the model, always 0, as there is one model.
            record: additional fields of the record ``aggregate``.
        """
        state = self.state
        state.moved = await mean_after_changes(
            self.server,
            self.params.aggregation,
            states=state.moves,  # s_k of each device
            mean=state.moved,  # s
            entries=entries,
            changes=changes(self.server, entries),
        )
        return await super().next_model(model, entries, slot, **record)  # ``advance`` adds s

    def advance(self, model: Ref, aggregated: Ref, group: int = 0) -> Ref:
        parts = [(aggregated, 1.0), (self.state.moved, 1.0)]
        target = self.server.models.mix(parts, otherwise=model, rescale=False)
        return super().advance(model, target, group)
