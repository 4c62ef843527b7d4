"""Ditto: a personal model for every device, held near the global model (Li et al., 2021)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedsim.common.training import Proximal, Training
from fedsim.federation import Contents, Device, Instruction, LocalResult
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import AggregatingParams
from fedsim.toolbox.strategies.personal import OwnModelClient, Personal
from fedsim.world.steps import TaskStep, Train


class DittoParams(AggregatingParams):
    """Keys of ``[strategy]`` for Ditto.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        lam: lambda, weight of the pull of personal models to the global model; with 0 each personal
            model is trained alone.
    """

    why_not: ClassVar[Reasons] = Reasons(
        training_limit="with Ditto a client trains its own model too"
    )
    kind: Literal["ditto"] = "ditto"
    lam: float = Field(default=0.1, ge=0.0, le=1e6)


class DittoClient(OwnModelClient[DittoParams]):
    """Client that trains its personal model, and then an update of the global model.

    Only the update is sent to the server. The personal model stays on the device.
    """

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        received = instruction["model"]
        epochs = self.params.local_epochs
        personal = Training(
            self.last(device), epochs, proximal=Proximal(self.params.lam, anchor=received)
        )
        return (Train(personal), *super().work(device, instruction))

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        personal = result.earlier[0]  # the result of the task's first training
        last = self.last(device)
        return self.answer(device, instruction, result, own=personal, otherwise=last)


class Ditto(Personal[DittoParams]):
    """Personalised federated learning by a second, regularised objective.

    Each device trains a personal model, which is held near FedAvg's global model.

    Source: Li et al., "Ditto: fair and robust federated learning through personalization" (ICML
    2021), Algorithm 1. The global model w is FedAvg's. In addition each client k of a round trains
    its personal model v_k by steps v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w)), with its
    loss F_k and the received w. lr is the learning rate of ``[training]``, and lambda the key
    ``lam``. All v_k begin at the initial model.

    By default clients are drawn uniformly. With ``selection = { kind = "power-of-choice",
    candidates = 1, losses = "reported" }`` they are drawn with probabilities proportional to their
    samples.

    As in FedAvg, the global model is sent down and its update up (d parameters each). A client
    whose answer does not arrive goes back to its previous personal model.
    """

    Params = DittoParams
    Client = DittoClient
