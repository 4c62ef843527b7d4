"""Strategies whose devices keep layers of their own: FedPer, FedBN, FedRep."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.federation import Device, Instruction, PreviousResult, RunInfo
from fedsim.language.spec import Epochs
from fedsim.learning.architecture import Tensor
from fedsim.learning.model import matching
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import Training
from fedsim.world.task import Computation, Train


class HeadParams(AggregatingParams):
    """Parameters of strategies whose devices keep a head of their own.

    Attributes:
        head: what stays: so many of the last layers with parameters, or names of tensors, in which * stands for anything.
    """

    kept_by: ClassVar[Literal["nobody", "scenario", "strategy"]] = "strategy"
    head: Annotated[int, Field(ge=1)] | Annotated[list[str], Field(min_length=1)] = 1

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        if isinstance(self.head, int):
            layers = [tensor.name.rpartition(".")[0] for tensor in tensors]
            last = list(dict.fromkeys(layers))[-self.head :]
            return [layer in last for layer in layers]
        chosen = matching([tensor.name for tensor in tensors], self.head, "strategy.head")
        return [tensor.name in chosen for tensor in tensors]


class FedPerParams(HeadParams):
    """Parameters of FedPer; see ``HeadParams`` and ``AggregatingParams``."""

    kind: Literal["fedper"] = "fedper"


class FedPer(FedAvg[FedPerParams]):
    """Federated learning with personalisation layers.

    Source: Arivazhagan et al., "Federated learning with personalization layers" (2019), Algorithm 1: each client trains the
    base layers that it received together with its own head, in one local solve, and sends the base layers back, which are
    averaged.

    Sends the base layers, down and up (4 bytes a number, ``model`` and ``update``). All heads begin as that of the initial
    model, where the paper draws one for each client. A device is tested with its own head; one that has never answered with the
    initial one.
    """

    Params = FedPerParams


class FedBNParams(AggregatingParams):
    """Parameters of FedBN, in addition to ``AggregatingParams``.

    Attributes:
        keeps: ``layers`` whose class is called a norm, such as ``BatchNorm2d``, or their running ``statistics`` alone (SiloBN).
    """

    kept_by: ClassVar[Literal["nobody", "scenario", "strategy"]] = "strategy"
    kind: Literal["fedbn"] = "fedbn"
    keeps: Literal["layers", "statistics"] = "layers"

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        if self.keeps == "statistics":
            found = [tensor.name.rpartition(".")[2] in ("running_mean", "running_var") for tensor in tensors]
            if not any(found):
                raise ScenarioError(
                    "strategy.keeps is 'statistics', and no layer of the model has running statistics; allowed is 'layers', or "
                    "a model.factory of a module with a torch.nn.BatchNorm2d, say, with track_running_stats=True"
                )
            return found
        found = ["norm" in tensor.layer.lower() for tensor in tensors]
        if not any(found):
            layers = ", ".join(dict.fromkeys(tensor.layer for tensor in tensors))
            raise ScenarioError(
                f"strategy.kind is 'fedbn', and the model has no normalisation layer, only {layers}; allowed is a "
                "model.factory of a module with one, torch.nn.BatchNorm2d say"
            )
        return found


class FedBN(FedAvg[FedBNParams]):
    """FedAvg without the normalisation layers.

    Source: Li et al., "FedBN: federated learning on non-IID features via local batch normalization" (ICLR 2021), Algorithm 1:
    after local training the server averages all layers but the normalisation layers, which each client keeps.

    Sends all other tensors, down and up (``model`` and ``update``). Devices that have never answered are tested with the
    initial normalisation layers. Without running statistics (``track_running_stats=False``) a batch norm goes by the batch, in
    tests too.
    """

    Params = FedBNParams


class FedRepParams(HeadParams):
    """Parameters of FedRep, in addition to ``HeadParams``.

    Attributes:
        head_epochs: passes over its data for which a device trains its head; then ``local_epochs`` for the layers below.
    """

    trains_more: ClassVar[str] = "with FedRep a client trains its head too"
    kind: Literal["fedrep"] = "fedrep"
    head_epochs: Epochs = 10
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
        return Training(PreviousResult(((0, 1.0),)), self.params.local_epochs, held=self._split.kept)


class FedRep(FedAvg[FedRepParams]):
    """Shared representations.

    Source: Collins et al., "Exploiting shared representations for personalized federated learning" (ICML 2021), Algorithm 1:
    with the representation that it received a client makes many steps on its head, then with that head some on the
    representation, and sends the latter back; the server takes the mean.

    Sends what FedPer sends; heads begin, and are tested, as there. An epoch of either training takes as long as one of the
    whole model.
    """

    Params = FedRepParams
    Client = FedRepClient
