"""SCAFFOLD: local steps corrected by control variates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from fedsim.common.training import ALL_SAMPLES, Training
from fedsim.federation import Contents, Device, Instruction, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.parts.mean_of_states import mean_after_changes
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.traits import Traits
from fedsim.world.steps import TaskStep, Train


class ScaffoldParams(AggregatingParams):
    """Keys of ``[strategy]`` for SCAFFOLD, in addition to the keys of ``AggregatingParams``.

    The paper's learning rate of the server is ``lr`` of ``server = "sgd"``.

    Attributes:
        option: how a client computes its new control variate c_i. ``II``: from the change of the
            model by the training. ``I``: as the gradient at the received model, for which one more
            pass over the samples is computed.
    """

    traits: ClassVar[Traits] = Traits(accumulated_contents=("control-variate",))

    kind: Literal["scaffold"] = "scaffold"
    aggregation: AggregationSpec = Mean()
    option: Literal["I", "II"] = "II"

    @property
    def why_not(self) -> Reasons:
        second_training = None
        if self.option == "I":
            second_training = "with 'option' I a client finds a gradient too"
        return Reasons(
            private_aggregation="SCAFFOLD sums control variates beside it",
            training_limit=second_training,
            other_steps="SCAFFOLD finds gradients from how far steps have led",
        )


def _minus_control(device: Device) -> list[tuple[Ref, float]]:
    """Return the negative control variate -c_i of a device, as parts of a linear combination.

    The list is empty while c_i is 0.
    """
    if "control" not in device.state:
        return []
    return [(device.state["control"], -1.0)]


class ScaffoldClient(SynchronousClient[ScaffoldParams]):
    """Client that corrects each gradient by control variates, and then updates its control variate.

    It trains along the gradient + c - c_i, with the server's control variate c and its own c_i. The
    entry ``control`` of the device's state is c_i; it is absent while c_i is 0.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """Return the training; with the key ``option = "I"``, a step on all samples before it.

        This step has lr = 1, so that the change of the model is the negative full-batch gradient.
        """
        gradient = Train(Training(instruction["model"], batch_size=ALL_SAMPLES, lr=1.0))
        steps = super().work(device, instruction)
        if self.params.option == "I":
            return (gradient, *steps)
        return steps

    def training(self, device: Device, instruction: Instruction) -> Training:
        linear = device.mix([(instruction["control-variate"], 1.0), *_minus_control(device)])
        return Training(instruction["model"], self.params.local_epochs, linear=linear)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        """Return the update, and the change of the client's control variate as ``control-variate``.

        The server's control variate is c, and the client's is c_i. With the key ``option = "II"``,
        the change of c_i is (x - y_i) / (s lr) - c. Here x is the received model, y_i the trained
        one, s the count of SGD steps, and lr their learning rate. With option I the change is
        g_i(x) - c_i, where g_i(x) is the gradient over all samples at x.
        """
        assert result.update is not None
        model = instruction["model"]
        if result.earlier:  # option I: the first update is a step on all samples, with lr 1
            gradient = [(model, 1.0), (result.earlier[0], -1.0)]  # g_i(x)
            change = device.mix([*gradient, *_minus_control(device)])  # g_i(x) - c_i
        else:  # option II
            scale = 0.0  # without a step the model has not changed
            if result.steps:
                scale = 1.0 / (result.steps * self.setting.lr_in(instruction.round or 0))
            mean_gradient = [(model, scale), (result.update, -scale)]  # (x - y_i) / (s lr)
            server_control = instruction["control-variate"]  # c
            change = device.mix([*mean_gradient, (server_control, -1.0)])
        contents = super().reply(device, instruction, result) or {}
        return {**contents, "control-variate": change}

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        control = device.state.get("control", device.zero())
        change = reply["control-variate"]
        device.state["control"] = device.mix([(control, 1.0), (change, 1.0)], otherwise=control)


@dataclass
class ScaffoldState(FedAvgState):
    """State of SCAFFOLD on the server: model and control variates, and the open round.

    Attributes:
        control: The control variate c of the server.
        controls: Device -> its control variate c_i, for each device that has answered; empty unless
            the aggregation is robust.
    """

    control: Ref = field(init=False)
    controls: dict[int, Ref] = field(default_factory=dict)


class Scaffold(FedAvg[ScaffoldParams]):
    """Stochastic controlled averaging: control variates correct the gradients of clients.

    Source: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated
    learning" (ICML 2020), Algorithm 1, options I and II.

    A control variate estimates a gradient, with one number for each of the model's d parameters.
    The server has c, and client i has c_i. All are 0 at first, also for devices that join later.
    In a round:

    1. The clients of the round receive the model and c (2 d parameters).
    2. Each client trains with c - c_i added to every gradient.
    3. It computes its new c_i, and sends its update and the change of c_i (2 d parameters). If its
       answer is cut off, it keeps the old c_i.
    4. The model becomes the mean of the updates. c changes by the sum of the changes of all c_i,
       divided by the count of all devices.

    With option I the new c_i is the gradient over all samples at the received model. With option II
    it is c_i - c - change / (steps lr), where change is the trained model minus the received one,
    and steps is the count of SGD steps. With ``training.momentum`` a step is longer than lr times a
    gradient, which this division leaves out.
    """

    Params = ScaffoldParams
    Client = ScaffoldClient
    State = ScaffoldState
    state: ScaffoldState

    async def on_start(self) -> None:
        self.state.control = self.server.models.zero()
        await super().on_start()

    def contents(self, device: int) -> Contents:
        return {**super().contents(device), "control-variate": self.state.control}

    async def aggregate(self) -> None:
        """Aggregate the updates, then the changes of the clients' control variates."""
        state = self.state
        changes = [update.contents["control-variate"] for update in state.received]
        await super().aggregate()
        state.control = await mean_after_changes(
            self.server,
            self.params.aggregation,
            states=state.controls,
            mean=state.control,
            entries=state.received,
            changes=changes,
        )
