"""FedRep: each device trains its head, then the layers that all share (Collins et al., 2021)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedsim.common.spec import Epochs
from fedsim.common.training import Training
from fedsim.federation import Device, Instruction, PreviousResult, RunInfo
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.strategies.fedper import FedPerParams
from fedsim.world.steps import TaskStep, Train


class FedRepParams(FedPerParams):
    """Keys of ``[strategy]`` for FedRep, in addition to the keys of FedPer.

    The head is the last layers of the model, which stay on the device.

    Attributes:
        head_epochs: passes of a device over its data to train its head; ``local_epochs`` train the
            layers below.
    """

    why_not: ClassVar[Reasons] = Reasons(
        training_limit="with FedRep a client trains its head too",
        by_device={"steps": "FedRep trains head and representation, each for its own epochs"},
    )
    kind: Literal["fedrep"] = "fedrep"  # type: ignore[assignment]
    head_epochs: Epochs = 10
    aggregation: AggregationSpec = Mean()


class FedRepClient(SynchronousClient[FedRepParams]):
    """Client that trains its head, the last layers, and then all layers below.

    The layers below are fixed while the head is trained. The head is fixed while the layers below
    are trained. Only the layers below are received from and sent to the server.
    """

    def __init__(self, params: FedRepParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        split = params.split_of(setting)
        assert split is not None
        self._split = split

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        head = Training(instruction["model"], self.params.head_epochs, held=self._split.sent)
        return (Train(head), *super().work(device, instruction))

    def training(self, device: Device, instruction: Instruction) -> Training:
        # the model after the training of the head, the task's first training
        start = PreviousResult(parts=((0, 1.0),))
        return Training(start, self.params.local_epochs, held=self._split.kept)


class FedRep(FedAvg[FedRepParams]):
    """Shared representations, with a head for each client.

    Source: Collins et al., "Exploiting shared representations for personalized federated learning"
    (ICML 2021), Algorithm 1. The head is the last layers of the model (key ``head``), the
    representation all layers below. A client receives the representation. It trains its own head
    for ``head_epochs``, while the representation is fixed. Then it trains the representation for
    ``local_epochs``, while the head is fixed, and sends the representation back. The server takes
    the mean of the representations.

    Only the representation is sent, down and up, as in FedPer. All heads begin as the head of the
    initial model, and a device is tested with its own head. An epoch in which only the head or only
    the representation is trained takes as long as FedAvg's.
    """

    Params = FedRepParams
    Client = FedRepClient
