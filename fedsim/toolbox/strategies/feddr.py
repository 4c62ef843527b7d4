"""FedDR: local proximal points, reflected and averaged (Tran Dinh et al., 2021)."""

from typing import ClassVar, Literal

from pydantic import Field

from fedsim.common.training import Proximal, Training
from fedsim.federation import Contents, Device, Header, Instruction, LocalResult
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import changes
from fedsim.strategies.round_params import SynchronousParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.traits import Traits


class FedDRParams(SynchronousParams):
    """Keys of ``[strategy]`` for FedDR: constants of the local problem and of the relaxation.

    ``SynchronousParams`` describes the keys of all strategies in rounds. Client i has the loss f_i;
    y_i is the centre of its local problem, and x_i its solution.

    Attributes:
        eta: eta of the local problem, min f_i(x) + ||x - y_i||^2 / (2 eta).
        alpha: relaxation, the factor of the step of y_i; 1 is the step of Douglas and Rachford.
        start: model at which SGD on the local problem begins: its ``center``, y_i, or the device's
            ``own`` last x_i, as in the published code.
    """

    traits: ClassVar[Traits] = Traits(accumulated_contents=("update",))

    kind: Literal["feddr"] = "feddr"
    eta: float = Field(default=1.0, gt=0.0, le=1e6)
    alpha: float = Field(default=1.0, gt=0.0, lt=2.0)
    start: Literal["center", "own"] = "center"


class FedDRClient(SynchronousClient[FedDRParams]):
    """Client that moves its point y_i, finds the proximal point x_i by SGD, and sends the change.

    y_i is the centre of client i's local problem, and x_i, the proximal point, its solution. The
    client sends the change of 2 x_i - y_i since its last answer.

    Entries of a device's state: ``x``, the point x_i; ``y``, the point y_i; ``z``, 2 x_i - y_i as
    the server has received it.
    """

    def _point(self, device: Device, name: str) -> Ref:
        point: Ref = device.state.get(name, device.initial())
        return point

    def _next_y(self, device: Device, instruction: Instruction) -> Ref:
        """Return the point y_i after its step, y_i + alpha (w - x_i), with the received model w."""
        alpha = self.params.alpha
        x = self._point(device, "x")
        y = self._point(device, "y")
        return device.mix([(y, 1.0), (instruction["model"], alpha), (x, -alpha)])

    def training(self, device: Device, instruction: Instruction) -> Training:
        center = self._next_y(device, instruction)
        start = self._point(device, "x") if self.params.start == "own" else center
        return Training(
            start, self.params.local_epochs, proximal=Proximal(1.0 / self.params.eta, anchor=center)
        )

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        """Replace the update of a training, the new point x_i, by the update that FedDR sends.

        This update is w + (2 x_i - y_i - z), with the received model w, the new centre y_i of the
        local problem, and z, the value of 2 x_i - y_i that the server has.
        """
        assert result.update is not None
        received = instruction["model"]
        parts = [
            (received, 1.0),
            (result.update, 2.0),  # x_i
            (self._next_y(device, instruction), -1.0),
            (self._point(device, "z"), -1.0),
        ]
        changed = result._replace(update=device.mix(parts), start=received)
        return super().computed(device, instruction, changed)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        assert result.trained is not None
        points = Header([result.trained, self._next_y(device, instruction)])
        return {**(super().reply(device, instruction, result) or {}), "own": points}

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """Store x_i, y_i and z in the device's state, after its answer has arrived at the server.

        x_i is the trained point, y_i the centre of the training, and z the value of 2 x_i - y_i
        that the server has, to which the sent change is added. A change that is not finite is not
        added, as the server leaves it out too.
        """
        x, y = reply["own"].value
        old_x = self._point(device, "x")
        old_y = self._point(device, "y")
        old_z = self._point(device, "z")
        parts = [(old_z, 1.0), (reply["update"], 1.0), (instruction["model"], -1.0)]
        device.state["z"] = device.mix(parts, otherwise=old_z)
        # The other point has the weight 0, and changes no value. With it, a point is stored only if
        # both are finite, as ``otherwise`` is the result if a model of the sum is not finite.
        device.state["x"] = device.mix([(x, 1.0), (y, 0.0)], otherwise=old_x)
        device.state["y"] = device.mix([(y, 1.0), (x, 0.0)], otherwise=old_y)


class FedDR(FedAvg[FedDRParams]):
    """Federated Douglas-Rachford.

    Each client has a centre point, and finds the minimum of its loss near this point. The server
    takes the mean over all devices of the centre points, each reflected at this minimum.

    Source: Tran Dinh, Pham, Phan and Nguyen, "FedDR: randomized Douglas-Rachford splitting
    algorithms for nonconvex federated composite optimization" (NeurIPS 2021), Algorithm 1, without
    a regulariser (g = 0).

    Client i has the loss f_i, the centre point y_i, and x_i, the minimum that it has found last.
    alpha and eta are keys. In a round:

    - The client receives the model w, and moves its centre: y_i <- y_i + alpha (w - x_i).
    - It finds the new x_i, the minimum of f_i(x) + ||x - y_i||^2 / (2 eta), here by
      ``local_epochs`` of SGD.
    - It sends the change of the reflected point 2 x_i - y_i since its last answer.
    - The server sets w to the unweighted mean of 2 x_i - y_i over all devices. Devices that have
      never answered count with the first model.

    Messages are as in FedAvg, the model down and the update up (d parameters each). A client whose
    answer does not arrive keeps its x_i and y_i.
    """

    Params = FedDRParams
    Client = FedDRClient

    async def aggregate(self) -> None:
        received = self.state.received
        model = self.state.model
        if not received:
            return
        weights = [1.0 / self.setting.devices] * len(received)
        self.record_aggregate(received, weights)
        parts = [(model, 1.0), *zip(changes(self.server, received), weights, strict=True)]
        self.state.model = self.server.models.mix(parts, otherwise=model, rescale=False)
