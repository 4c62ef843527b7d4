"""Strategies whose devices keep some tensors of the model: FedPer and FedRep keep a head, FedBN the normalisation layers."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedsim.errors import ScenarioError
from fedsim.federation.client import Instruction, PreviousResult
from fedsim.federation.devices import Device
from fedsim.language.spec import Epochs
from fedsim.learning.architecture import Tensor
from fedsim.strategies.parts.aggregation import AggregationSpec, Mean
from fedsim.strategies.personal import Keeping, KeepingClient, KeepingParams
from fedsim.training import Training
from fedsim.world.task import Computation, Train


class HeadParams(KeepingParams):
    """What a strategy takes whose devices keep a head of their own.

    Attributes:
        head: what stays: so many of the last layers with parameters, or names of tensors, in which * stands for anything.
    """

    head: Annotated[int, Field(ge=1)] | Annotated[list[str], Field(min_length=1)] = 1

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        if isinstance(self.head, int):
            layers = [tensor.name.rpartition(".")[0] for tensor in tensors]
            last = list(dict.fromkeys(layers))[-self.head :]
            return [layer in last for layer in layers]
        names = [tensor.name for tensor in tensors]
        for pattern in self.head:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ScenarioError(
                    f"strategy.head has {pattern!r}, and the model has no such tensor; it has {', '.join(names)}"
                )
        return [any(fnmatchcase(name, pattern) for pattern in self.head) for name in names]


class FedPerParams(HeadParams):
    """What FedPer takes; see ``HeadParams`` and ``AggregatingParams``."""

    kind: Literal["fedper"] = "fedper"


class FedPer(Keeping[FedPerParams]):
    """Federated learning with personalisation layers.

    Source: Arivazhagan et al., "Federated learning with personalization layers" (2019), Algorithm 1: each client trains the
    base layers that it received together with its own head, in one local solve, and sends the base layers back; they become
    the mean weighted by samples.

    Sends the base layers, down and up (4 bytes a number of theirs, ``model`` and ``update``). All heads begin as that of the
    initial model, where the paper draws one for each client. A device is tested with the base layers of the server and its own
    head; newcomers, and devices that have never answered, with the initial one.
    """

    Params = FedPerParams
    Client = KeepingClient


class FedRepParams(HeadParams):
    """What FedRep takes, besides ``HeadParams``.

    Attributes:
        head_epochs: passes over its data for which a device trains its head; then ``local_epochs`` for the layers below.
        aggregation: the plain mean, as in the paper, unless another is given.
    """

    kind: Literal["fedrep"] = "fedrep"
    head_epochs: Epochs = 10
    aggregation: AggregationSpec = Mean()

    @model_validator(mode="after")
    def _two_trainings(self) -> Self:
        self.refuse_budget("with FedRep a client trains its head too")
        return self


class FedRepClient(KeepingClient[FedRepParams]):
    """Trains its head with the layers below held, then these with the head held."""

    def work(self, device: Device, order: Instruction) -> Sequence[Computation]:
        head = Training(self.begin(device, order), self.params.head_epochs, held=self.sent_places)
        return (Train(head), *super().work(device, order))

    def training(self, device: Device, order: Instruction) -> Training:
        return Training(PreviousResult(((0, 1.0),)), self.params.local_epochs, held=self.kept_places)


class FedRep(Keeping[FedRepParams]):
    """Shared representations.

    Source: Collins et al., "Exploiting shared representations for personalized federated learning" (ICML 2021), Algorithm 1:
    with the representation that it received a client makes many steps on its head, then with that head some on the
    representation, and sends the latter back; the server takes the mean.

    Sends what FedPer sends. An epoch of either training takes as long as one of the whole model: that the gradients of what is
    held are not needed is not taken off. Heads begin, and are tested, as in FedPer.
    """

    Params = FedRepParams
    Client = FedRepClient


class FedBNParams(KeepingParams):
    """What FedBN takes, besides ``AggregatingParams``.

    Attributes:
        keeps: ``layers``: all of the normalisation layers, those whose class is called a norm: ``BatchNorm2d``, ``GroupNorm``,
            ``LayerNorm``, or one of the user's. ``statistics``: their running statistics alone, so that their weights are
            averaged like all others (SiloBN, Andreux et al. 2020).
    """

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


class FedBN(Keeping[FedBNParams]):
    """FedAvg without the normalisation layers.

    Source: Li et al., "FedBN: federated learning on non-IID features via local batch normalization" (ICLR 2021), Algorithm 1:
    after local training the server averages all layers but the normalisation layers, which each client keeps.

    Sends all other tensors, down and up (``model`` and ``update``). Newcomers, and devices that have never answered, are tested
    with the normalisation layers of the initial model. Running statistics are of these layers; without them
    (``track_running_stats=False``) a batch norm goes by the batch, in tests too.
    """

    Params = FedBNParams
    Client = KeepingClient
