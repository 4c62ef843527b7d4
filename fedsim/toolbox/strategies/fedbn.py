"""FedBN: normalisation layers stay on each device (Li et al., 2021)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from fedsim.common.errors import ScenarioError
from fedsim.learning.architecture import STATISTICS, Tensor
from fedsim.strategies.fedavg import FedAvg
from fedsim.strategies.round_params import AggregatingParams
from fedsim.strategies.traits import Traits


class FedBNParams(AggregatingParams):
    """Keys of ``[strategy]`` for FedBN: which normalisation layers stay on the devices.

    ``AggregatingParams`` describes the keys of all strategies with rounds and aggregation.

    Attributes:
        keeps: the tensors that stay on the devices. ``layers``: all tensors of the normalisation
            layers, which are the layers with "norm" in the name of their class, such as
            ``BatchNorm2d``. ``statistics``: only the running statistics of these layers, as in
            SiloBN; the layers' weights are averaged.
    """

    traits: ClassVar[Traits] = Traits(kept_by="strategy")
    kind: Literal["fedbn"] = "fedbn"
    keeps: Literal["layers", "statistics"] = "layers"

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return for each tensor of the model whether it stays on the devices.

        The key ``keeps`` selects all tensors of normalisation layers, or only running statistics.

        Args:
            tensors: the tensors of the model.

        Raises:
            ScenarioError: no tensor would stay.
        """
        if self.keeps == "statistics":
            stays = [_is_statistic(tensor) for tensor in tensors]
            name = "running statistics"
        else:
            stays = [_is_of_norm(tensor) for tensor in tensors]
            name = "normalisation layer"
        if not any(stays):
            layers = ", ".join(dict.fromkeys(tensor.layer for tensor in tensors))
            raise ScenarioError(
                f"strategy.keeps is {self.keeps!r}, and the model has no {name}, only {layers}; "
                "allowed is a model.factory of a module with one, torch.nn.BatchNorm2d say"
            )
        return stays


def _is_of_norm(tensor: Tensor) -> bool:
    return "norm" in tensor.layer.lower()


def _is_statistic(tensor: Tensor) -> bool:
    return tensor.is_buffer and (tensor.name.endswith(STATISTICS) or _is_of_norm(tensor))


class FedBN(FedAvg[FedBNParams]):
    """FedAvg without the normalisation layers, which stay on each device.

    Source: Li et al., "FedBN: federated learning on non-IID features via local batch normalization"
    (ICLR 2021), Algorithm 1. After local training the server averages all layers but the
    normalisation layers, which each client keeps.

    All tensors except the kept ones are sent, down and up (``model`` and ``update``). Devices that
    have never answered are tested with the initial normalisation layers. If there are no running
    statistics (``track_running_stats=False``), normalisation uses only the statistics of the batch,
    in tests too.
    """

    Params = FedBNParams
