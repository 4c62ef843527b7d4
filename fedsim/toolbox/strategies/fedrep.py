"""FedRep: each device trains its head, then the layers that all share (Collins et al., 2021)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedsim.common.spec import Epochs
from fedsim.common.training import Training
from fedsim.federation import Device, Instruction, PreviousResult, RunInfo
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.strategies.fedper import FedPerParams
from fedsim.world.task import Computation, Train


class FedRepParams(FedPerParams):
    """Parameters of FedRep, in addition to ``FedPerParams``."""

    trains_more: ClassVar[str] = "with FedRep a client trains its head too"
    kind: Literal["fedrep"] = "fedrep"  # type: ignore[assignment]
    head_epochs: Epochs = 10
    """passes over its data for which a device trains its head; then ``local_epochs`` for the
    layers below.
    """
    aggregation: AggregationSpec = Mean()


class FedRepClient(SynchronousClient[FedRepParams]):
    """Trains its head with the layers below held, then these with the head held."""

    def __init__(self, params: FedRepParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        split = params.split_of(setting)
        assert split is not None
        self._split = split

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        head = Training(instruction["model"], self.params.head_epochs, held=self._split.sent)
        return (Train(head), *super().work(device, instruction))

    def training(self, device: Device, instruction: Instruction) -> Training:
        return Training(
            PreviousResult(((0, 1.0),)), self.params.local_epochs, held=self._split.kept
        )


class FedRep(FedAvg[FedRepParams]):
    """Shared representations.

    Source: Collins et al., "Exploiting shared representations for personalized federated learning"
    (ICML 2021), Algorithm 1: with the representation that it received a client makes many steps on
    its head, then with that head some on the representation, and sends the latter back; the server
    takes the mean.

    Sends what FedPer sends; heads begin, and are tested, as there. Epochs of both take as long
    as FedAvg's.
    """

    Params = FedRepParams
    Client = FedRepClient
